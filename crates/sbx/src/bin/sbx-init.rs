//! `sbx-init`: the set-up helper and the init of a sandbox. It is a program of its own because every sandbox runs from a
//! copy in memory, and every command starts as a fork of it. Only `sandboxd` starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sbx_init::helper_main(|_| {
        Err("this task needs the daemon's program".to_owned())
    }))
}
