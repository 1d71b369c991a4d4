use execd_proto::event::Ending;
use serde_json::json;

use crate::commands::wait_for;
use crate::daemon::{Daemon, summary};

#[test]
fn sessions_keep_exports_and_directory() {
    let daemon = Daemon::start();
    let created = daemon.request("POST", "/session", "", b"").json();
    let target = format!("/session/{}/run", created["session_id"].as_str().unwrap());
    let run = |command: &str| summary(&daemon.events(&target, &json!({"command": command})));
    assert_eq!(
        run("export A='x y'; B=lost; cd /usr; echo err >&2").0,
        ["err"]
    );
    assert_eq!(run("echo $A,$B; pwd").0, ["x y,", "/usr"]);
    assert_eq!(run("cd /; exit 5").2, Ending::Exited(5));
    assert_eq!(run("pwd").0, ["/"]);
    let elsewhere = daemon.events(&target, &json!({"command": "pwd", "cwd": "/usr/bin"}));
    assert_eq!(summary(&elsewhere).0, ["/usr/bin"]);
    let session = target.trim_end_matches("/run");
    assert_eq!(daemon.request("DELETE", session, "", b"").status, 200);
    assert_eq!(daemon.post(&target, &json!({"command": "pwd"})).status, 404);
}

#[test]
fn runs_of_one_session_are_one_after_the_other() {
    let daemon = Daemon::start();
    let created = daemon.request("POST", "/session", "", b"").json();
    let target = format!("/session/{}/run", created["session_id"].as_str().unwrap());
    let (began, go) = (daemon.path("began"), daemon.path("go"));
    let wait =
        format!("touch {began}; while [ ! -e {go} ]; do sleep 0.02; done; export SEEN=first");
    let (first, second) = std::thread::scope(|scope| {
        let run = |command: String| summary(&daemon.events(&target, &json!({"command": command})));
        let first = scope.spawn(move || run(wait));
        wait_for(|| std::path::Path::new(&began).exists());
        // Its output says whether it began before the first one was allowed to end.
        let look = format!("[ -e {go} ] && echo after; echo $SEEN");
        let second = scope.spawn(move || run(look));
        // The session is not the daemon: another command runs meanwhile, and lets the first one end.
        assert_eq!(daemon.run("sleep 0.2").2, Ending::Exited(0));
        assert!(!second.is_finished());
        std::fs::write(&go, "").unwrap();
        (first.join().unwrap(), second.join().unwrap())
    });
    assert_eq!(first.2, Ending::Exited(0));
    assert_eq!(second.0, ["after", "first"]);
}
