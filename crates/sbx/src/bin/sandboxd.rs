//! `sandboxd`: the daemon of the sandbox engine. `sbx` starts it; nobody has to.
//!
//! The same executable is the setup helper and the init of every sandbox, under the name `sbx-init`.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandboxd::ServeConfig;
use sbx_engine::StateDir;
use sbx_engine::error::chain;
use sbx_engine::policybook::default_proxy_config;

/// What a client that started us waits for on our stdout.
const READY: &[u8] = b"ready\n";

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    if Path::new(&program)
        .file_name()
        .is_some_and(|name| name == "sbx-init")
    {
        return sbx_init::helper_main(sbx_engine::setup::run_task);
    }
    // A sandbox of the same user may have half of it, of descriptors under way too.
    let _ = sbx_sys::process::raise_open_files();
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Stderr is the log, of which a client shows the end, or a terminal.
            drop(writeln!(std::io::stderr(), "error: {message}"));
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), String> {
    let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = value("HOME").map(PathBuf::from).ok_or("HOME is not set")?;
    let moved = value("SBX_HOME").map(PathBuf::from);
    let state = StateDir::locate(&home, moved.as_deref()).map_err(|error| chain(&error))?;
    let path = value("PATH").unwrap_or_default();
    let default_proxy_config = default_proxy_config(&home, moved.as_deref());
    let served = sandboxd::serve(ServeConfig {
        state,
        path_dirs: std::env::split_paths(&path).collect(),
        log_level: value("SANDBOXD_LOG_LEVEL").and_then(|level| level.into_string().ok()),
        default_proxy_config,
        sudo: sudo(),
        on_ready: Box::new(say_ready),
    });
    served.map_err(|error| match error.hint() {
        Some(hint) => format!("{}\nhint: {hint}", chain(&error)),
        None => chain(&error),
    })
}

/// The program that sandboxes have as `sudo` lies beside ours.
fn sudo() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name("sbx-sudo");
    beside.exists().then_some(beside)
}

/// One line to the client, which then goes its way. In the foreground nobody waits for it.
fn say_ready() {
    if std::env::args_os().nth(1) == Some(OsString::from("--foreground")) {
        return;
    }
    let mut stdout = std::io::stdout();
    // A client that has gone away needs no answer.
    drop(stdout.write_all(READY).and_then(|()| stdout.flush()));
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}
