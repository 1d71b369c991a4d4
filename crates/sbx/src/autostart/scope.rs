//! A control group for the daemon of an ordinary user: a scope of systemd's user manager, with everything below it delegated
//! to the user. `systemd-run` makes the scope and becomes the daemon in it.

use std::path::{Path, PathBuf};
use std::process::Command;

const RUNNER: &str = "/usr/bin/systemd-run";
/// There with version 2 of control groups, which alone systemd delegates to users.
const UNIFIED: &str = "/sys/fs/cgroup/cgroup.controllers";
/// Where the user manager listens, below XDG_RUNTIME_DIR.
const MANAGER: &str = "systemd/private";

/// The program that makes the scope, where that can work. Root needs none.
pub(super) fn runner(
    user: u32,
    runtime: Option<&Path>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let manager = runtime?.join(MANAGER);
    let needed = [Path::new(RUNNER), Path::new(UNIFIED), &manager];
    (user != 0 && needed.into_iter().all(exists)).then(|| PathBuf::from(RUNNER))
}

/// The command that runs `program` in a scope of its own.
pub(super) fn command(runner: &Path, program: &Path) -> Command {
    let mut command = Command::new(runner);
    command
        .args(["--user", "--scope", "--quiet", "--collect"])
        .args(["--property", "Delegate=yes", "--"])
        .arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_a_user_manager_runs() {
        let runtime = Path::new("/run/user/7");
        let all = |_: &Path| true;
        assert_eq!(runner(7, Some(runtime), &all), Some(RUNNER.into()));
        assert_eq!(runner(0, Some(runtime), &all), None);
        assert_eq!(runner(7, None, &all), None);
        for missing in [RUNNER, UNIFIED, "/run/user/7/systemd/private"] {
            let but_one = |path: &Path| path != Path::new(missing);
            assert_eq!(runner(7, Some(runtime), &but_one), None, "{missing}");
        }
    }

    #[test]
    fn the_daemon_is_what_it_becomes() {
        let command = command(Path::new(RUNNER), Path::new("/bin/sandboxd"));
        let words: Vec<_> = command.get_args().map(|it| it.to_str().unwrap()).collect();
        assert_eq!(
            words.join(" "),
            "--user --scope --quiet --collect --property Delegate=yes -- /bin/sandboxd"
        );
    }
}
