//! What the API refuses, and how; and the life of the daemon itself.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use sandboxd::{ServeConfig, ServeError, serve};
use sbx_api::{DaemonInfo, ErrorCode, LogLevels, VERSION};
use sbx_engine::state::StateError;
use serde_json::json;

use crate::harness::{Daemon, vm_host};

fn create(workspace: &str) -> serde_json::Value {
    json!({
        "agent": "shell",
        "workspaces": [{"path": workspace}],
        "caller": {"home": "/home/u"},
    })
}

#[test]
fn bodies_that_are_not_understood() {
    let daemon = Daemon::start();
    let mut unknown = create(&daemon.project());
    unknown["novel"] = json!(1);
    let mut arrays = create("");
    arrays["workspaces"] = json!([[daemon.project(), null, false]]);
    let bodies = [
        "",
        "{",
        "[]",
        "{\"agent\":1}",
        &unknown.to_string(),
        &arrays.to_string(),
    ];
    for body in bodies {
        let (status, error) = daemon.refused("POST", "/v1/sandboxes", body);
        assert_eq!((status, error.code), (400, ErrorCode::BadRequest), "{body}");
    }
    let (_, error) = daemon.refused("POST", "/v1/sandboxes", &unknown.to_string());
    assert!(error.message.contains("novel"), "{}", error.message);
    // An array of the values is not an object, however well they fit.
    for (method, path, body) in [
        ("POST", "/v1/sandboxes", "[]"),
        ("PUT", "/v1/daemon/log-level", r#"["trace","trace"]"#),
        ("POST", "/v1/daemon/shutdown", "[true]"),
    ] {
        let (status, error) = daemon.refused(method, path, body);
        assert_eq!((status, error.code), (400, ErrorCode::BadRequest), "{path}");
        assert!(
            error.message.contains("expected an object"),
            "{}",
            error.message
        );
    }
    let levels = daemon.call("GET", "/v1/daemon/log-level", "").1;
    assert!(!levels.contains("trace"), "{levels}");
    assert_eq!(
        daemon.call("GET", "/v1/sandboxes", "").1,
        r#"{"sandboxes":[]}"#
    );
}

#[test]
fn bodies_where_none_belongs() {
    let daemon = Daemon::start();
    let preset = r#"{"preset":"balanced"}"#;
    assert_eq!(daemon.call("POST", "/v1/policy/init", preset).0, 204);
    for (method, path, otherwise) in [
        ("GET", "/v1/version", 200),
        ("GET", "/v1/openapi.json", 200),
        ("GET", "/v1/sandboxes", 200),
        ("GET", "/v1/sandboxes/gone", 404),
        ("GET", "/v1/sandboxes/gone/proxy-config", 404),
        ("DELETE", "/v1/sandboxes/gone?force=true", 404),
        ("POST", "/v1/sandboxes/gone/start", 404),
        ("POST", "/v1/sandboxes/gone/stop", 404),
        ("GET", "/v1/daemon/log-level", 200),
        ("POST", "/v1/policy/reset", 204),
    ] {
        // Before anything is looked up, and before anything is done.
        for body in ["{", "[]", "null", " ", r#"{"force":true}"#] {
            let (status, error) = daemon.refused(method, path, body);
            assert_eq!((status, error.code), (400, ErrorCode::BadRequest), "{path}");
        }
        let large = " ".repeat((1 << 20) + 1);
        assert_eq!(daemon.refused(method, path, &large).0, 413, "{path}");
        if path == "/v1/policy/reset" {
            assert_eq!(daemon.refused("POST", "/v1/policy/init", preset).0, 409);
        }
        for body in ["", "{}", "{ }\n"] {
            assert_eq!(daemon.call(method, path, body).0, otherwise, "{path}");
        }
    }
}

#[test]
fn a_body_that_is_too_large() {
    let daemon = Daemon::start();
    let (status, error) = daemon.refused("POST", "/v1/sandboxes", &" ".repeat((1 << 20) + 1));
    assert_eq!((status, error.code), (413, ErrorCode::TooLarge));
}

/// A client that sends all of it before it reads the answer gets one.
#[test]
fn an_upload_that_is_far_too_large() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect();
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\nsbx-version: {VERSION}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..4 << 4 {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("{\"message\":"), "{answer}");
}

#[test]
fn creates_that_are_refused_leave_nothing() {
    let daemon = Daemon::start();
    let project = daemon.project();
    let with = |key: &str, value: serde_json::Value| {
        let mut body = create(&project);
        body[key] = value;
        body
    };
    let bad = (400, ErrorCode::BadRequest);
    for (body, expected, word) in [
        (with("name", json!("a_b")), bad, "a_b"),
        (
            with("workspaces", json!([{"path": project, "target": "/etc/x"}])),
            bad,
            "/etc/x",
        ),
        (create("relative"), bad, "relative"),
        (create("/"), bad, "whole machine"),
        (create("/nowhere/at/all"), bad, "does not exist"),
        (
            create(daemon.root().to_str().unwrap()),
            bad,
            "state directory",
        ),
        (
            create(daemon.home.path().to_str().unwrap()),
            bad,
            "state directory",
        ),
        (with("env", json!({"A=B": "x"})), bad, "A=B"),
        (with("platform", json!("plan9/mips")), bad, "plan9/mips"),
        (
            with("agent", json!("nosuch")),
            bad,
            "unknown agent \"nosuch\"",
        ),
        (
            with("agent", json!("claude")),
            (501, ErrorCode::NotYet),
            "claude",
        ),
    ] {
        let (status, error) = daemon.refused("POST", "/v1/sandboxes", &body.to_string());
        assert_eq!((status, error.code), expected, "{}", error.message);
        assert!(error.message.contains(word), "{}", error.message);
    }
    assert_eq!(daemon.state.names().unwrap(), vec![]);
}

#[test]
fn names_routes_and_methods_that_do_not_exist() {
    let daemon = Daemon::start();
    for (method, path, body) in [
        ("GET", "/v1/sandboxes/gone", ""),
        ("GET", "/v1/sandboxes/..%2f..%2fetc", ""),
        ("DELETE", "/v1/sandboxes/gone", ""),
        ("POST", "/v1/sandboxes/gone/start", ""),
        ("POST", "/v1/sandboxes/gone/stop", ""),
        ("POST", "/v1/sandboxes/gone/keep", r#"{"keep_alive":true}"#),
        ("GET", "/v2/sandboxes", ""),
        ("GET", "/", ""),
    ] {
        let (status, error) = daemon.refused(method, path, body);
        assert_eq!((status, error.code), (404, ErrorCode::NotFound), "{path}");
    }
    let (status, error) = daemon.refused("PATCH", "/v1/sandboxes", "");
    assert_eq!((status, error.code), (405, ErrorCode::BadRequest));
    let (status, error) = daemon.refused("DELETE", "/v1/sandboxes/gone?forec=true", "");
    assert_eq!((status, error.code), (400, ErrorCode::BadRequest));
}

#[test]
fn another_version_is_told_what_to_do() {
    let daemon = Daemon::start();
    let other = "sbx-version: 9.9.9\r\n";
    let (status, body) = daemon.call_with("GET", "/v1/sandboxes", other, "");
    assert_eq!(status, 409, "{body}");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&body).unwrap(),
        json!({
            "message": format!("this is sbx 9.9.9, the daemon is {VERSION}"),
            "code": "version_mismatch",
            "hint": "sbx daemon restart",
        })
    );
    assert_eq!(daemon.call_with("GET", "/v1/sandboxes", "", "").0, 400);
    let (status, body) = daemon.call_with("GET", "/v1/version", other, "");
    assert_eq!(status, 200);
    let info: DaemonInfo = serde_json::from_str(&body).unwrap();
    assert_eq!(info.version, VERSION);
    assert_eq!(info.pid, std::process::id());
}

#[test]
fn log_levels_can_be_changed() {
    let daemon = Daemon::start();
    let path = "/v1/daemon/log-level";
    let levels = r#"{"general":"debug","proxy":"trace"}"#;
    assert_eq!(daemon.call("PUT", path, levels).0, 200);
    let now: LogLevels = serde_json::from_str(&daemon.call("GET", path, "").1).unwrap();
    assert_eq!(
        (now.general.as_str(), now.proxy.as_str()),
        ("debug", "trace")
    );
    let (status, error) = daemon.refused("PUT", path, r#"{"general":"loud","proxy":"info"}"#);
    assert_eq!((status, error.code), (400, ErrorCode::BadRequest));
    assert!(error.message.contains("loud"));
}

#[test]
fn a_second_daemon_is_refused_and_the_first_leaves_no_socket() {
    let mut daemon = Daemon::start();
    let second = serve(ServeConfig {
        state: daemon.state.clone(),
        path_dirs: Vec::new(),
        overrides: std::collections::BTreeMap::new(),
        log_level: None,
        default_proxy_config: "/nowhere".into(),
        makes_proxy_config: false,
        vm: vm_host(&daemon.state),
        companions: None,
        on_ready: Box::new(|| panic!("the second daemon serves")),
    });
    assert!(matches!(
        second,
        Err(ServeError::State(StateError::Locked { .. }))
    ));
    let socket = daemon.state.socket();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(daemon.root()), mode(&socket)), (0o700, 0o600));
    daemon.end();
    assert!(!socket.exists());
}
