//! What makes a sandbox and stays in it as its init, and nothing else of the engine: every sandbox has a copy of it in
//! memory, and every command begins as a fork of it. `sandboxd` starts it; nobody else does.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sbx_init::helper_main(|_| {
        Err("the daemon's own program does that".to_owned())
    }))
}
