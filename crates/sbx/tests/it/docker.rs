//! `docker sandbox ...`: the plugin through the real `docker` command line.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, host_has, programs};

/// The client is the same in every mode; what it does with sandboxes is tested elsewhere.
pub const INDEPENDENT: &[ModeTest] = &[
    ("docker::the_plugin_has_the_commands_of_the_seed", commands),
    ("docker::the_plugin_refuses_what_it_does_not_have", refused),
];

/// A `DOCKER_CONFIG` whose plugin directory has ours.
struct Docker<'a> {
    world: &'a World,
    config: PathBuf,
}

impl<'a> Docker<'a> {
    fn new(world: &'a World) -> Self {
        let config = world.home().join(world.name("docker-config"));
        let plugins = config.join("cli-plugins");
        world.make_dir(&config);
        world.make_dir(&plugins);
        symlink(programs().join("sbx"), plugins.join("docker-sandbox")).unwrap();
        Self { world, config }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut docker = self.world.command("docker");
        docker.env("DOCKER_CONFIG", &self.config).args(args);
        docker
    }

    fn sandbox(&self, args: &[&str]) -> Ran {
        let mut docker = self.command(&["sandbox"]);
        Ran::from(docker.args(args).output().unwrap())
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn commands(world: &'static World) {
    if !host_has("docker") {
        return;
    }
    let world = &World::fresh(world.mode);
    drop(world.sandbox("first"));
    let docker = Docker::new(world);
    let listed = Ran::from(docker.command(&["--help"]).output().unwrap()).ok();
    assert!(listed.contains("sandbox*"), "{listed}");
    assert_eq!(
        parsed(&docker.sandbox(&["ls", "--json"]).ok()),
        json!({"vms": []})
    );
    let version = docker.sandbox(&["version"]).ok();
    assert!(version.starts_with("sbx/cli-plugin v"), "{version}");
    assert_eq!(version.lines().count(), 1);
    let workspace = world.workspace();
    let place = workspace.to_str().unwrap();
    let created = docker.sandbox(&["create", "--name", "my-sandbox", "shell", place]);
    assert_eq!(created.ok(), "my-sandbox");
    let state = world.state();
    let vms = parsed(&docker.sandbox(&["ls", "--json"]).ok());
    assert_eq!(
        vms,
        json!({"vms": [{
            "name": "my-sandbox",
            "agent": "shell",
            "status": "running",
            "socket_path": state.join("vm/my-sandbox/docker.sock"),
            "sandbox_count": 1,
            "workspaces": [place],
        }]})
    );
    let table = docker.sandbox(&["ls", "--no-trunc"]).ok();
    let words: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(words[0], ["SANDBOX", "AGENT", "STATUS", "WORKSPACE"]);
    assert_eq!(words[1], ["my-sandbox", "shell", "running", place]);
    assert_eq!(docker.sandbox(&["ls", "-q"]).ok(), "my-sandbox");
    // With Docker's own options before it, and the engine's socket after.
    let socket = state.join("sandboxd.sock");
    let mut elsewhere =
        docker.command(&["--log-level", "error", "sandbox", "ls", "-q", "--socket"]);
    let elsewhere = elsewhere.arg(socket).env_remove("SBX_HOME").output();
    assert_eq!(Ran::from(elsewhere.unwrap()).ok(), "my-sandbox");
    use_it(&docker, place);
    save_it(&docker, place);
    // Nothing is asked.
    docker.sandbox(&["rm", "my-sandbox"]).ok();
    let flags = [
        "run",
        "--name",
        "again",
        "--pull-template",
        "missing",
        "--load-local-template",
    ];
    let words = ["shell", place, "--", "-c", "echo ran"];
    assert_eq!(docker.sandbox(&[&flags[..], &words].concat()).ok(), "ran");
    docker.sandbox(&["reset", "--force"]).ok();
    assert_eq!(
        parsed(&docker.sandbox(&["ls", "--json"]).ok()),
        json!({"vms": []})
    );
}

/// What is done with the sandbox `my-sandbox`, until it is stopped.
fn use_it(docker: &Docker<'_>, place: &str) {
    let exec = [
        "exec",
        "-e",
        "API_KEY=xxx",
        "my-sandbox",
        "sh",
        "-c",
        "echo $API_KEY; exit 7",
    ];
    let ran = docker.sandbox(&exec).fails(7);
    assert_eq!(ran.out, "xxx\n");
    let ran = docker
        .sandbox(&["run", "my-sandbox", "--", "-c", "pwd; exit 3"])
        .fails(3);
    assert_eq!(ran.out.trim(), place);
    assert!(!ran.err.contains("deprecated"), "{}", ran.err);
    let inspected = parsed(&docker.sandbox(&["inspect", "my-sandbox"]).ok());
    assert_eq!(inspected[0]["name"], "my-sandbox");
    assert_eq!(inspected[0]["labels"]["com.docker.sandbox.agent"], "shell");
    assert_eq!(
        inspected[0]["labels"]["com.docker.sandbox.workingDirectory"],
        place
    );
    let proxy = ["network", "proxy", "my-sandbox"];
    docker
        .sandbox(
            &[
                &proxy[..],
                &["--policy", "deny", "--allow-host", "api.example.com"],
            ]
            .concat(),
        )
        .ok();
    assert!(docker.sandbox(&proxy).ok().contains("api.example.com"));
    docker.sandbox(&["network", "log", "my-sandbox"]).ok();
    assert_eq!(docker.sandbox(&["stop", "my-sandbox"]).ok(), "my-sandbox");
}

/// The lines of the seed; the sandbox is stopped.
fn save_it(docker: &Docker<'_>, place: &str) {
    let change = ["exec", "my-sandbox", "sh", "-c", "echo saved > ~/note"];
    docker.sandbox(&change).ok();
    docker.sandbox(&["stop", "my-sandbox"]).ok();
    let saved = docker.sandbox(&["save", "my-sandbox", "my-template:v1"]);
    assert!(saved.err.contains("secrets"), "{saved:?}");
    assert_eq!(saved.ok(), "my-template:v1");
    let words = ["shell", place, "--", "-c", "cat ~/note"];
    for (name, flags) in [
        ("one", &["--template", "my-template:v1"][..]),
        ("two", &["--load-local-template", "-t", "my-template:v1"]),
    ] {
        let run = [&["run", "--name", name], flags, &words].concat();
        assert_eq!(docker.sandbox(&run).ok(), "saved");
        let inspected = parsed(&docker.sandbox(&["inspect", name]).ok());
        assert_eq!(inspected[0]["template"], "my-template:v1");
        docker.sandbox(&["rm", name]).ok();
    }
}

fn refused(world: &'static World) {
    if !host_has("docker") {
        return;
    }
    let sandbox = world.sandbox("docker-refused");
    let docker = Docker::new(world);
    let says = |args: &[&str], code: i32, expected: &str| {
        let ran = docker.sandbox(args).fails(code);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    };
    says(
        &["save", &sandbox.name, "my-template:v1"],
        1,
        "cannot save a running sandbox",
    );
    says(
        &["save", "-o", "image.tar", &sandbox.name, "my-template:v1"],
        1,
        "writes an image",
    );
    says(
        &["save", "no-such-box", "my-template:v1"],
        1,
        "no sandbox named",
    );
    let place = sandbox.workspace.to_str().unwrap();
    says(&["create", "claude", place], 1, "agent `claude`");
    says(&["create", "nonsense", place], 1, "unknown agent");
    says(
        &["create", "--pull-template", "always", "shell", place],
        1,
        "--pull always",
    );
    says(
        &["create", "--pull-template", "soon", "shell", place],
        2,
        "invalid value",
    );
    says(
        &[
            "create",
            "--load-local-template",
            "-t",
            "my:v1",
            "shell",
            place,
        ],
        1,
        "no template `my:v1`",
    );
    says(&["ls", "--socket", "/tmp/other.sock"], 1, "--socket");
    says(&["bogus"], 2, "unrecognized subcommand");
    says(&["exec", "no-such-box", "true"], 125, "no sandbox named");
    let missing = docker
        .sandbox(&["inspect", &sandbox.name, "no-such-box"])
        .fails(1);
    assert_eq!(parsed(&missing.out).as_array().unwrap().len(), 1);
    assert!(docker.sandbox(&[]).ok().contains("docker sandbox"));
}
