//! How the programs are linked: for a quick start, because a program that runs a command in a sandbox is started
//! for every command.
//!
//! - The unwinder comes from an archive. `libgcc_s.so` would be the only library besides libc, and its constructor
//!   asks the processor for its features, which a virtual machine is slow to answer.
//! - Programs of [`SELF_CONTAINED`] have libc in them as well, and no dynamic loader before them. They stay
//!   position independent. A program that looks up hosts or users by name must not be one of them: libc would load
//!   modules for it.
//!
//! `docs/decisions/0006-static-linking.md` has the figures. Where the C compiler has no such archive, and where it builds
//! for another machine, the programs are linked as usual.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "that is how a build script and cargo speak to each other"
)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Packages and their programs.
const SELF_CONTAINED: [(&str, &[&str]); 2] = [
    ("sbx", &["sbx", "sbx-init", "sbx-sudo"]),
    ("crabbox", &["crabbox"]),
];

/// What rustc names for the C library, all of it as shared objects.
const SHARED: [&str; 7] = ["gcc_s", "util", "rt", "pthread", "m", "dl", "c"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=../../build-support/linking.rs");
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("HOST") != variable("TARGET") || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return Ok(());
    }
    let Some(unwinder) = archive("gcc_eh") else {
        return Ok(());
    };
    let out = PathBuf::from(variable("OUT_DIR"));

    // A directory with this one file: that of the compiler has shared objects as well.
    let directory = fresh_directory(&out, "unwinder")?;
    symlink(&unwinder, directory.join("libgcc_eh.a"))?;
    println!("cargo::rustc-link-search=native={}", directory.display());
    // Whole: it comes before what needs it on the linker's command line.
    println!("cargo::rustc-link-lib=static:+whole-archive=gcc_eh");

    let package = variable("CARGO_PKG_NAME");
    let programs = SELF_CONTAINED
        .iter()
        .find_map(|(name, programs)| (*name == package).then_some(*programs))
        .unwrap_or_default();
    let archives: Option<Vec<PathBuf>> = SHARED
        .into_iter()
        .map(|name| match name {
            "gcc_s" => Some(unwinder.clone()),
            other => archive(other),
        })
        .collect();
    if let Some(archives) = archives {
        // The linker takes the first directory that has a library in either form.
        let directory = fresh_directory(&out, "archives")?;
        for (name, archive) in SHARED.into_iter().zip(archives) {
            symlink(archive, directory.join(format!("lib{name}.a")))?;
        }
        for program in programs {
            let argument = format!("cargo::rustc-link-arg-bin={program}");
            println!("{argument}=-static-pie");
            println!("{argument}=-L{}", directory.display());
            // What libc itself needs of the compiler, for linkers that go by the order.
            println!("{argument}=-lgcc");
            println!("{argument}=-lc");
        }
    }
    Ok(())
}

fn fresh_directory(out: &Path, name: &str) -> io::Result<PathBuf> {
    let directory = out.join(name);
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir(&directory)?;
    Ok(directory)
}

/// Where the C compiler would take the library from.
fn archive(name: &str) -> Option<PathBuf> {
    let asked = Command::new("cc")
        .arg(format!("-print-file-name=lib{name}.a"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim());
    // Without the archive the compiler answers with the bare name.
    (path.is_absolute() && path.is_file()).then_some(path)
}
