//! `--status-file`: who ended a command.

use std::process::Stdio;

use crate::ModeTest;
use crate::harness::{World, eventually};

pub const TESTS: &[ModeTest] = &[
    (
        "exec::the_status_file_tells_what_ended_a_command",
        status_file,
    ),
    (
        "exec::a_stop_is_told_from_the_commands_own_end",
        status_of_a_stop,
    ),
];

fn status_file(world: &'static World) {
    let sandbox = world.sandbox("status");
    let file = world.home().join(world.name("status-file"));
    let path = file.to_str().unwrap();
    let name = sandbox.name.as_str();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[name, "true"], 0, "command"),
        (&[name, "sh", "-c", "exit 7"], 7, "command"),
        (&[name, "sh", "-c", "exit 125"], 125, "command"),
        (&[name, "sh", "-c", "exit 126"], 126, "command"),
        (&[name, "sh", "-c", "exit 127"], 127, "command"),
        (&[name, "sh", "-c", "kill -9 $$"], 137, "command"),
        (&["-d", name, "true"], 125, "engine"),
        (&["no-such-sandbox", "true"], 125, "engine"),
        (&["-w", "/no/such", name, "true"], 125, "engine"),
        (&["-u", "no-such-user", name, "true"], 125, "engine"),
        (&[name, "/etc"], 126, "engine"),
        (&[name, "no-such-program"], 127, "engine"),
    ];
    for (args, code, by) in cases {
        let ran = world.run(["exec", "--status-file", path].iter().chain(*args));
        let ran = ran.fails(*code);
        let text = std::fs::read_to_string(&file).unwrap();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status["by"], *by, "{args:?}");
        assert_eq!(status["code"], *code, "{args:?}");
        // What the engine has to say is what it said on stderr.
        match status["message"].as_str() {
            Some(message) => {
                assert_eq!(*by, "engine", "{args:?}");
                assert!(ran.err.contains(message), "{args:?}: {text}");
            }
            None => assert_eq!(*by, "command", "{args:?}"),
        }
        std::fs::remove_file(&file).unwrap();
    }
    // Nothing runs when it could not be told how it ended.
    let ran = world.run([
        "exec",
        "--status-file",
        "/no/such/place",
        name,
        "touch",
        "made",
    ]);
    assert!(ran.fails(125).err.contains("/no/such/place"));
    assert!(!sandbox.path("made").exists());
    let left = std::fs::read_dir(world.home()).unwrap().flatten();
    let hint = file.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(
        !left
            .into_iter()
            .any(|entry| entry.file_name().to_string_lossy().contains(&hint))
    );
}

/// Neither the command nor its caller has ended it.
fn status_of_a_stop(world: &'static World) {
    let sandbox = world.sandbox("status-stop");
    let file = world.home().join(world.name("status-file"));
    let script = "touch runs; exec sleep 600";
    let exec = ["exec", "--status-file", file.to_str().unwrap()];
    let client = world
        .sbx(exec.iter().chain(&[&sandbox.name, "sh", "-c", script]))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the command runs", || {
        sandbox.path("runs").exists().then_some(())
    });
    world.run(["stop", &sandbox.name]).ok();
    let ended = client.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(143));
    let text = std::fs::read_to_string(&file).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&status["by"], &status["code"]),
        (&"engine".into(), &143.into()),
        "{text}"
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("stopped"), "{text}");
    assert_eq!(
        String::from_utf8_lossy(&ended.stderr),
        format!("{message}\n")
    );
}
