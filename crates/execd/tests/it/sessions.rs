use execd_proto::event::Ending;
use serde_json::json;

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
