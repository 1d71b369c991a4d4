//! Links the unwinder into the programs, where the C compiler has it as an archive.
//!
//! `libgcc_s.so` is the only library besides libc that they would load, and loading it (its constructor asks the
//! processor for its features, which a virtual machine is slow to answer) is a tenth of a millisecond of every
//! `sbx exec`, and of every other command.

#![expect(
    clippy::print_stdout,
    reason = "that is how a build script speaks to cargo"
)]

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../../build-support/unwinder.rs");
    if let Some(archive) = unwinder()
        && let Some(directory) = archive.parent()
    {
        println!("cargo::rustc-link-search=native={}", directory.display());
        // Whole: it comes before what needs it on the linker's command line.
        println!("cargo::rustc-link-lib=static:+whole-archive=gcc_eh");
    }
}

/// Only where the programs are linked by the compiler that is asked: for this machine.
fn unwinder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name);
    if variable("HOST") != variable("TARGET") || variable("CARGO_CFG_TARGET_ENV")? != "gnu" {
        return None;
    }
    let asked = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim());
    // Without the archive the compiler answers with the bare name.
    (path.is_absolute() && path.is_file()).then_some(path)
}
