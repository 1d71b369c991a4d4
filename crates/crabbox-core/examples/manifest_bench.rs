//! How long listing a repository of 20,000 files takes, next to `git status` in it.
//!
//! `cargo run --release -p crabbox-core --example manifest_bench`. Runs take turns, so that a busy moment of the
//! machine meets both; the bar is a ratio of 1.5.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crabbox_core::git::{Env, Repository};
use crabbox_core::sync::{Archive, Compression, Rules, Source, list};

const FILES: usize = 20_000;
const FILES_PER_DIR: usize = 20;
const ROUNDS: usize = 21;

#[expect(clippy::disallowed_methods, reason = "main reads the environment")]
fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let root = temporary.path();
    let mut env: Env = std::env::vars_os().collect();
    env.retain(|name, _| !name.to_string_lossy().starts_with("GIT_"));
    make(root, &env)?;
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        ours.push(timed(|| manifest(root, &env).map(drop))?);
        theirs.push(timed(|| git(root, &env, &["status"]))?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let files = manifest(root, &env)?;
    let packing = timed(|| {
        Archive::write(&files, root, std::io::sink(), Compression::Gzip)?;
        Ok(())
    })?;
    let mut out = std::io::stdout();
    writeln!(out, "files        {}", files.entries.len())?;
    writeln!(out, "manifest     {ours:?}")?;
    writeln!(out, "git status   {theirs:?}")?;
    writeln!(out, "archive      {packing:?}")?;
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    writeln!(out, "ratio        {ratio:.2} (bar 1.5)")?;
    Ok(())
}

/// All that a sync does before it checks: find the repository, read the rules, list.
fn manifest(root: &Path, env: &Env) -> Result<crabbox_core::sync::Manifest, Box<dyn Error>> {
    let repository = Repository::discover(root, env)?.ok_or("no repository")?;
    let rules = Rules::load(repository.root(), &[], &[])?;
    Ok(list(root, Some(&repository), Source::Git, &rules)?)
}

fn make(root: &Path, env: &Env) -> Result<(), Box<dyn Error>> {
    for number in 0..FILES {
        let dir = number / FILES_PER_DIR;
        let dir = root.join(format!("part-{}/module-{dir}", dir % 40));
        fs::create_dir_all(&dir)?;
        let mut file = File::create(dir.join(format!("file-{number}.rs")))?;
        writeln!(file, "// {number}\n{}", "let x = 1;\n".repeat(number % 90))?;
    }
    for args in [
        &["init", "-q"][..],
        &["add", "."],
        &[
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "-qm",
            "files",
        ],
        &["status"],
    ] {
        git(root, env, args)?;
    }
    Ok(())
}

fn git(root: &Path, env: &Env, args: &[&str]) -> Result<(), Box<dyn Error>> {
    let status = Command::new("git")
        .args(args)
        .current_dir(root)
        .env_clear()
        .envs(env)
        .stdout(Stdio::null())
        .status()?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| "git failed".into())
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
