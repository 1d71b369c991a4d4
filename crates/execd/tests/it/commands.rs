use std::io::Read;
use std::time::{Duration, Instant};

use execd_proto::event::{Ending, Kind};
use serde_json::json;

use crate::daemon::{Daemon, summary};

#[test]
fn output_and_exit_codes() {
    let daemon = Daemon::start();
    let (out, err, ending) = daemon.run("echo a; echo b >&2; printf 'c\\rd'; exit 3");
    assert_eq!(out, ["a", "c", "d"]);
    assert_eq!(err, ["b"]);
    assert_eq!(ending, Ending::Exited(3));
    assert_eq!(daemon.run("true").2, Ending::Exited(0));
    assert_eq!(daemon.run("kill -9 $$").2, Ending::Killed("killed".into()));
}

#[test]
fn a_stream_begins_with_init_and_a_ping() {
    let daemon = Daemon::start();
    let events = daemon.events("/command", &json!({"command": "sleep 0.2"}));
    assert_eq!(events[0].kind, Kind::Init);
    assert_eq!(events[0].text.len(), 32);
    assert_eq!(events[1].kind, Kind::Ping);
    assert_eq!(events[1].text, "pong");
}

#[test]
fn words_variables_and_directories() {
    let daemon = Daemon::start();
    let body = json!({"argv": ["printenv", "A"], "envs": {"A": "$HOME 'x'"}});
    let events = daemon.events("/command", &body);
    assert_eq!(summary(&events).0, ["$HOME 'x'"]);
    let body = json!({"command": "pwd", "cwd": "/usr"});
    assert_eq!(summary(&daemon.events("/command", &body)).0, ["/usr"]);
    let missing = daemon.post("/command", &json!({"command": "pwd", "cwd": "/none"}));
    assert_eq!(missing.status, 400);
    assert_eq!(missing.json()["code"], "INVALID_REQUEST_BODY");
    assert_eq!(daemon.post("/command", &json!({})).status, 400);
}

#[test]
fn variables_that_clients_persist_reach_later_commands() {
    let daemon = Daemon::start();
    daemon.run(r#"printf "%s\n" "KEPT='a b'" >> "$EXECD_ENVS""#);
    assert_eq!(daemon.run("echo $KEPT").0, ["a b"]);
}

#[test]
fn a_timeout_kills_the_group() {
    let daemon = Daemon::start();
    let body = json!({"command": "sleep 1000 & sleep 1000", "timeout": 200});
    let events = daemon.events("/command", &body);
    assert_eq!(summary(&events).2, Ending::Killed("killed".into()));
}

#[test]
fn a_descendant_does_not_delay_the_end_and_lives_on() {
    let daemon = Daemon::start();
    let (go, done) = (daemon.path("go"), daemon.path("done"));
    let wait = format!("while [ ! -e {go} ]; do sleep 0.05; done");
    let script = format!("echo first; ({wait}; echo late; echo late >&2; touch {done}) &");
    // It can end only without the descendant, which waits for a file that does not exist yet.
    let (out, _, ending) = daemon.run(&script);
    assert_eq!((out, ending), (vec!["first".to_owned()], Ending::Exited(0)));
    std::fs::write(&go, "").unwrap();
    wait_for(|| std::path::Path::new(&done).exists());
}

#[test]
fn a_client_that_disconnects_ends_the_command() {
    let daemon = Daemon::start();
    let file = daemon.path("pid");
    let body =
        json!({"command": format!("echo $$ > {file}.new; mv {file}.new {file}; sleep 1000")});
    let mut stream = daemon.connect();
    let body = serde_json::to_vec(&body).unwrap();
    let json = "content-type: application/json\r\n";
    daemon.send(&mut stream, "POST", "/command", json, &body);
    let mut head = [0; 64];
    stream.read_exact(&mut head).unwrap();
    wait_for(|| std::path::Path::new(&file).exists());
    let pid = std::fs::read_to_string(&file).unwrap();
    drop(stream);
    wait_for(|| !std::path::Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn background_commands_have_status_and_logs() {
    let daemon = Daemon::start();
    let body = json!({"command": "echo one; echo two >&2; exit 4", "background": true});
    let events = daemon.events("/command", &body);
    let id = events[0].text.clone();
    assert_eq!(events[1].kind, Kind::ExecutionComplete);
    let status = || daemon.get(&format!("/command/status/{id}")).json();
    wait_for(|| status()["running"] == false);
    assert_eq!(status()["exit_code"], 4);
    let logs = daemon.get(&format!("/command/{id}/logs"));
    assert_eq!(logs.text(), "one\ntwo\n");
    assert!(
        logs.head
            .to_lowercase()
            .contains("execd-commands-tail-cursor: 8")
    );
    assert_eq!(
        daemon.get(&format!("/command/{id}/logs?cursor=4")).text(),
        "two\n"
    );
    assert_eq!(daemon.get("/command/status/none").status, 404);
}

#[test]
fn background_commands_can_be_interrupted() {
    let daemon = Daemon::start();
    let body = json!({"command": "sleep 1000", "background": true});
    let id = daemon.events("/command", &body)[0].text.clone();
    assert_eq!(
        daemon
            .request("DELETE", &format!("/command?id={id}"), "", b"")
            .status,
        200
    );
    let status = || daemon.get(&format!("/command/status/{id}")).json();
    wait_for(|| status()["running"] == false);
    assert_eq!(status()["exit_code"], -1);
    assert_eq!(daemon.request("DELETE", "/command", "", b"").status, 400);
    assert_eq!(
        daemon.request("DELETE", "/command?id=none", "", b"").status,
        404
    );
}

#[test]
fn many_commands_at_once_lose_nothing() {
    let daemon = Daemon::start();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..100)
            .map(|number| {
                let daemon = &daemon;
                scope.spawn(move || (number, daemon.run(&format!("echo {number}; seq 200"))))
            })
            .collect();
        for run in runs {
            let (number, (out, _, ending)) = run.join().unwrap();
            assert_eq!(ending, Ending::Exited(0));
            assert_eq!(out.len(), 201);
            assert_eq!(out[0], number.to_string());
        }
    });
}

#[test]
fn a_command_runs_as_the_user_and_group_of_its_request() {
    let daemon = Daemon::start();
    let is_root = rustix::process::geteuid().is_root();
    let (uid, gid) = match is_root {
        true => (65_534, 65_533),
        // An ordinary user can only run as itself.
        false => (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    };
    let body = json!({"command": "id -u; id -g", "uid": uid, "gid": gid});
    let (out, err, ending) = summary(&daemon.events("/command", &body));
    assert_eq!((ending, err), (Ending::Exited(0), Vec::<String>::new()));
    assert_eq!(out, [uid.to_string(), gid.to_string()]);
    let without_uid = daemon.post("/command", &json!({"command": "true", "gid": gid}));
    assert_eq!(without_uid.status, 400);
}

#[test]
fn metrics_are_sent_again_and_again() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect();
    daemon.send(&mut stream, "GET", "/metrics/watch", "", b"");
    let mut received = String::new();
    let mut piece = [0; 4096];
    // One object for each line; between them are the sizes of chunks.
    let objects = |text: &str| -> Vec<serde_json::Value> {
        let complete = text.split_inclusive('\n');
        let lines = complete.filter(|line| line.starts_with('{') && line.ends_with('\n'));
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    while objects(&received).len() < 2 {
        let count = stream.read(&mut piece).unwrap();
        assert_ne!(count, 0, "{received}");
        received.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    assert!(received.starts_with("HTTP/1.1 200"), "{received}");
    let objects = objects(&received);
    let time = |at: usize| objects[at]["timestamp"].as_i64().unwrap();
    assert!(time(1) > time(0), "{received}");
    for key in ["cpu_count", "mem_total_mib"] {
        assert!(objects[0][key].as_f64().unwrap() > 0.0, "{received}");
    }
}

#[test]
fn a_token_is_checked() {
    let daemon = Daemon::with_token(Some("s3cret"));
    assert_eq!(daemon.get("/ping").status, 200);
    let refused = daemon.get("/metrics");
    assert_eq!(refused.status, 401);
    assert!(!refused.text().contains("s3cret"));
    for (token, status) in [("s3cret", 200), ("s3cre", 401), ("s3cretx", 401), ("", 401)] {
        let header = format!("X-EXECD-ACCESS-TOKEN: {token}\r\n");
        assert_eq!(
            daemon.request("GET", "/metrics", &header, b"").status,
            status,
            "{token}"
        );
    }
}

#[test]
fn the_proxy_reaches_loopback() {
    let daemon = Daemon::start();
    let other = Daemon::start();
    let port = other.address.rsplit(':').next().unwrap();
    let answer = daemon.get(&format!("/proxy/{port}/command/status/a%2Fb"));
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["message"], "command a/b not found");
    // Nothing listens on the discard port.
    assert_eq!(daemon.get("/proxy/9/").status, 502);
}

pub fn wait_for(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn invalid_requests_get_the_errors_of_the_protocol() {
    let daemon = Daemon::start();
    let json = "content-type: application/json\r\n";
    for (method, target, body) in [
        ("POST", "/command", &b"{"[..]),
        ("POST", "/command", b"{\"command\":7}"),
        ("POST", "/directories", b"[]"),
        ("GET", "/command/x/logs?cursor=y", b""),
    ] {
        let answer = daemon.request(method, target, json, body);
        assert_eq!(answer.status, 400, "{target}: {}", answer.text());
        assert_eq!(answer.json()["code"], "INVALID_REQUEST_BODY", "{target}");
        assert!(answer.json()["message"].is_string(), "{target}");
    }
    for (method, target) in [
        ("POST", "/code"),
        ("DELETE", "/code?id=x"),
        ("POST", "/code/context"),
        ("GET", "/code/contexts/x"),
        ("POST", "/v1/isolated/session"),
        ("GET", "/v1/isolated/session/x/runs/y/logs"),
        ("POST", "/command/operations"),
        ("GET", "/execution/instance"),
        ("GET", "/execution/operation?id=x"),
    ] {
        let answer = daemon.request(method, target, json, b"{}");
        assert_eq!(answer.status, 501, "{target}");
        assert_eq!(answer.json()["code"], "NOT_SUPPORTED", "{target}");
    }
    let answer = daemon.get("/no/such/route?token=x");
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (404, &json!("UNKNOWN"))
    );
    assert_eq!(answer.json()["message"], "no route GET /no/such/route");
}

#[test]
fn a_group_whose_leader_was_reaped_is_not_signalled() {
    let daemon = Daemon::start();
    let (leader, go, done) = (
        daemon.path("leader"),
        daemon.path("go"),
        daemon.path("done"),
    );
    // Its descendant, in the same group, writes more than the client reads, so that the end of the output is far.
    let script = format!(
        "(while [ ! -e {go} ]; do echo x; done; touch {done}) & echo $$ >{leader}.new; mv {leader}.new {leader}"
    );
    let body = serde_json::to_vec(&json!({"command": script})).unwrap();
    let mut stream = daemon.connect();
    let json = "content-type: application/json\r\n";
    daemon.send(&mut stream, "POST", "/command", json, &body);
    let mut said = Vec::new();
    let id = loop {
        let mut piece = [0; 512];
        let count = stream.read(&mut piece).unwrap();
        said.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&said);
        if let Some((_, rest)) = text.split_once("\"text\":\"") {
            break rest[..32].to_owned();
        }
    };
    wait_for(|| std::path::Path::new(&leader).exists());
    let pid = std::fs::read_to_string(&leader).unwrap();
    wait_for(|| !std::path::Path::new("/proc").join(pid.trim()).exists());
    let interrupted = daemon.request("DELETE", &format!("/command?id={id}"), "", b"");
    assert_eq!(interrupted.status, 200);
    std::fs::write(&go, "").unwrap();
    drop(stream);
    wait_for(|| std::path::Path::new(&done).exists());
}
