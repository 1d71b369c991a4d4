//! `crabbox init`

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::ArgMatches;
use crabbox_core::settings::repository_files;
use crabbox_core::{Code, Failure, small_file};
use serde::Serialize;

use crate::app::App;
use crate::cli::parsed;

/// Write a .crabbox.yaml for this repository
///
/// With --detect the file has a job that runs the repository's tests: `crabbox job run detected`. A file that exists is
/// never overwritten.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Find out how the repository is tested, and write a job for it
    #[arg(long)]
    detect: bool,
    /// Output the result or failure as JSON
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    force: bool,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    file: String,
    detected: &'a [Found],
}

/// A part of the repository that can be tested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Found {
    /// The file that says so.
    by: &'static str,
    command: String,
}

const NAME: &str = ".crabbox.yaml";

pub(crate) fn execute(app: &App<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let args: Args = parsed(matches)?;
    if args.force {
        let message = "`crabbox init` never overwrites a file; --force is not supported";
        return Err(
            Failure::new(Code::Unsupported, message).hint(format!("remove {NAME} yourself"))
        );
    }
    app.require_cwd()?;
    let root = app.root();
    for path in repository_files(&root) {
        if path.symlink_metadata().is_ok() {
            return Err(exists(&path));
        }
    }
    let found = match args.detect {
        true => detect(&root),
        false => Vec::new(),
    };
    if args.detect && found.is_empty() {
        let message = format!("found nothing to test in `{}`", root.display());
        return Err(
            Failure::new(Code::NotFound, message).hint("crabbox init writes a file without a job")
        );
    }
    let path = root.join(NAME);
    write(&path, &text(&found))?;
    if args.json {
        let file = path.display().to_string();
        app.ui.json(&Written {
            file,
            detected: &found,
        })?;
        return Ok(0);
    }
    for one in &found {
        app.ui.say(&format!("detected {}: {}", one.by, one.command));
    }
    app.ui.data(&format!("wrote {}\n", path.display()))?;
    if args.detect {
        app.ui.say("try: crabbox job run detected");
    }
    Ok(0)
}

fn exists(path: &Path) -> Failure {
    let message = format!(
        "`{}` exists; `crabbox init` never overwrites it",
        path.display()
    );
    Failure::usage(message).hint("edit it, or remove it first")
}

/// Fails if anything has that name by now.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let written = made.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(path),
        _ => {
            let message = format!("cannot write `{}`", path.display());
            Failure::new(Code::Local, message).because(&error)
        }
    })
}

fn text(found: &[Found]) -> String {
    let mut text = String::from(
        "# Settings of this repository for crabbox; `crabbox config show` shows what holds.\n",
    );
    if found.is_empty() {
        text.push_str("# jobs:\n#   test:\n#     shell: true\n#     command: make test\n");
        return text;
    }
    let commands: Vec<_> = found.iter().map(|one| one.command.as_str()).collect();
    text.push_str("jobs:\n  detected:\n    shell: true\n");
    text.push_str(&format!("    command: {}\n", commands.join(" && ")));
    text
}

/// How a repository with these files is tested. The commands are ours: nothing of the repository's text is in them.
fn detect(root: &Path) -> Vec<Found> {
    let has = |name: &str| root.join(name).is_file();
    let found = |by: &'static str, command: &str| Found {
        by,
        command: command.to_owned(),
    };
    let mut all = Vec::new();
    if has("Cargo.toml") {
        all.push(found("Cargo.toml", "cargo test"));
    }
    if has("go.mod") {
        all.push(found("go.mod", "go test ./..."));
    }
    if has("package.json") {
        let manager = package_manager(root);
        let command = format!("{manager} install && {manager} test");
        all.push(found("package.json", &command));
    }
    if has("pyproject.toml") || has("setup.py") {
        all.push(found("pyproject.toml", "python3 -m pytest"));
    }
    if has("pom.xml") {
        all.push(found("pom.xml", "mvn -q test"));
    }
    if has("gradlew") {
        all.push(found("gradlew", "./gradlew test"));
    }
    if all.is_empty() && has_test_target(root) {
        all.push(found("Makefile", "make test"));
    }
    all
}

/// By the manifest's own word, else by the lock file.
fn package_manager(root: &Path) -> &'static str {
    const LOCKS: [(&str, &str); 5] = [
        ("pnpm-lock.yaml", "pnpm"),
        ("yarn.lock", "yarn"),
        ("bun.lockb", "bun"),
        ("bun.lock", "bun"),
        ("package-lock.json", "npm"),
    ];
    let manifest = small_file::read(&root.join("package.json")).unwrap_or_default();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap_or_default();
    let named = manifest
        .get("packageManager")
        .and_then(|word| word.as_str());
    let named = named.and_then(|word| word.split('@').next());
    let known = ["pnpm", "yarn", "bun", "npm"];
    if let Some(manager) = known.into_iter().find(|manager| Some(*manager) == named) {
        return manager;
    }
    let lock = LOCKS.iter().find(|(lock, _)| root.join(lock).is_file());
    lock.map_or("npm", |(_, manager)| manager)
}

fn has_test_target(root: &Path) -> bool {
    let names = ["GNUmakefile", "makefile", "Makefile"];
    names.into_iter().any(|name| {
        let text = small_file::read(&root.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().any(|line| {
            let target = line.split_once(':').map(|(target, _)| target);
            let assigns = line.contains(":=") || line.contains("::=");
            !assigns && target.is_some_and(|target| target.split(' ').any(|word| word == "test"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let mut file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        let found = detect(dir.path());
        let found: Vec<_> = found.into_iter().map(|one| one.command).collect();
        found.join("; ")
    }

    #[test]
    fn every_kind_of_repository_has_its_command() {
        for (files, command) in [
            (&[][..], ""),
            (&[("Cargo.toml", "")], "cargo test"),
            (&[("go.mod", "")], "go test ./..."),
            (&[("package.json", "{}")], "npm install && npm test"),
            (
                &[("package.json", "{}"), ("yarn.lock", "")],
                "yarn install && yarn test",
            ),
            (
                &[
                    ("package.json", r#"{"packageManager":"pnpm@9.1.0"}"#),
                    ("yarn.lock", ""),
                ],
                "pnpm install && pnpm test",
            ),
            (
                &[("package.json", r#"{"packageManager":"x; rm -rf /@1"}"#)],
                "npm install && npm test",
            ),
            (
                &[("Makefile", "all:\n\ttrue\ncheck test: all\n")],
                "make test",
            ),
            (&[("Makefile", "test := 1\ntests: x\n")], ""),
            (
                &[("Makefile", "test:\n"), ("Cargo.toml", ""), ("go.mod", "")],
                "cargo test; go test ./...",
            ),
        ] {
            assert_eq!(of(files), command, "{files:?}");
        }
    }
}
