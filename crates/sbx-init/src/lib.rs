//! The single-threaded helper that makes a sandbox, and the init that stays in it.
//!
//! [`helper_main`] is a mode of the one executable. The daemon starts it from a sealed copy with an empty
//! environment; it receives a [`Plan`](sbx_proto::plan::Plan) on its stdin and applies it ([`setup`]). For a
//! boot, the forked child is pid 1 of the sandbox and serves commands until it is shut down ([`init`]).
//! Nothing here decides what a sandbox looks like.

mod accounts;
mod error;
mod guard;
mod handover;
mod init;
mod seccomp_filter;
mod setup;
mod spare;
mod spawn;
mod syscall_profile;
mod tools;
mod worktree;

use sbx_proto::plan::{Outcome, Task};

/// Does what the daemon asks for over stdin. `run_task` is the engine's own work for
/// [`Job::Task`](sbx_proto::plan::Job::Task).
pub fn helper_main(run_task: fn(&Task) -> Result<Outcome, String>) -> u8 {
    // Init executes it inside, with arguments; the daemon has none for it.
    match std::env::args_os().nth(1) {
        Some(_) => tools::main(),
        None => setup::main(run_task),
    }
}
