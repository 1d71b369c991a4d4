//! Seed 001's raw API, `/vm`, with curl as it is written there; and bodies that mean harm.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Mode, Ran, World, host_has};

pub const TESTS: &[ModeTest] = &[("vm::as_the_seed_shows_it", seed)];

/// Names, bodies and workspaces are looked at before the privilege mode matters.
pub const INDEPENDENT: &[ModeTest] = &[
    ("vm::hostile_bodies_are_refused", hostile),
    ("vm::names_are_made_of_any_agent", names),
    ("vm::two_at_the_same_time_have_two_names", race),
    ("vm::a_docker_client_reads_why_it_is_refused", docker),
    (
        "vm::the_default_proxy_configuration_is_copied",
        default_proxy,
    ),
];

/// A daemon at `~/.docker/sandboxes`, without `SBX_HOME`.
struct AtHome(World);

impl AtHome {
    fn new(mode: Mode) -> Self {
        let world = World::fresh(mode);
        let docker = world.home().join(".docker");
        world.make_dir(&docker);
        if mode == Mode::Single {
            let state = docker.join("sandboxes");
            world.make_dir(&state);
            world.write(&state.join("settings.json"), "{\"mode\": \"single\"}\n");
        }
        let home = Self(world);
        home.sbx(&["daemon", "start", "--detach"]).ok();
        home
    }

    fn sbx(&self, args: &[&str]) -> Ran {
        let mut command = self.0.sbx(args);
        Ran::from(command.env_remove("SBX_HOME").output().unwrap())
    }

    fn sh(&self, script: &str) -> Ran {
        let mut command = self.0.command("sh");
        command.args(["-c", script]).env_remove("SBX_HOME");
        Ran::from(command.output().unwrap())
    }

    fn state(&self) -> PathBuf {
        self.0.home().join(".docker/sandboxes")
    }
}

impl Drop for AtHome {
    fn drop(&mut self) {
        self.sbx(&["rm", "--all", "--force"]);
        self.sbx(&["reset", "--force"]);
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn seed(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let home = AtHome::new(world.mode);
    let workspace = home.0.workspace();
    let workspace = workspace.to_str().unwrap();
    let list = "curl -s --unix-socket ~/.docker/sandboxes/sandboxd.sock http://localhost/vm";
    assert_eq!(parsed(&home.sh(list).ok()), json!([]));
    let create = format!(
        r#"curl -s -X POST --unix-socket ~/.docker/sandboxes/sandboxd.sock \
http://localhost/vm \
-H "Content-Type: application/json" \
-d '{{"agent_name": "sandbox-agent", "workspace_dir": "{workspace}"}}'"#
    );
    let created = parsed(&home.sh(&create).ok());
    let state = home.state().join("vm/sandbox-agent-vm");
    let at = |name: &str| state.join(name).to_str().unwrap().to_owned();
    let certificate = fs::read(state.join("proxy_cacerts/proxy-ca.crt")).unwrap();
    assert!(certificate.starts_with(b"-----BEGIN CERTIFICATE-----\n"));
    let encoded =
        home.sh("base64 -w0 ~/.docker/sandboxes/vm/sandbox-agent-vm/proxy_cacerts/proxy-ca.crt");
    let encoded = encoded.ok();
    let id = created["vm_id"].as_str().unwrap();
    assert_eq!(
        created,
        json!({
            "vm_id": id,
            "vm_name": "sandbox-agent-vm",
            "vm_config": {
                "socketPath": at("docker.sock"),
                "fileSharingDirectories": [workspace],
                "stateDir": state,
                "assetDir": home.0.home().join(".container-platform"),
            },
            "ca_cert_path": at("proxy_cacerts/proxy-ca.crt"),
            "ca_cert_data": encoded,
        })
    );
    let socket = fs::metadata(at("docker.sock")).unwrap();
    assert!(socket.file_type().is_socket());
    let config = parsed(&fs::read_to_string(at("proxy-config.json")).unwrap());
    assert!(config["network"]["allowedDomains"].is_array(), "{config}");
    assert_eq!(config.get("policy"), None, "the rules of `sbx policy` hold");
    let listed = json!([{
        "vm_id": id,
        "vm_name": "sandbox-agent-vm",
        "agent_name": "sandbox-agent",
        "workspace_dir": workspace,
    }]);
    assert_eq!(parsed(&home.sh(list).ok()), listed);
    // It is a sandbox like any other.
    let seen = home.sbx(&["exec", "sandbox-agent-vm", "pwd"]).ok();
    assert_eq!(seen, workspace);
    let second = parsed(&home.sh(&create).ok());
    assert_eq!(second["vm_name"], "sandbox-agent-vm-2");
    for name in ["sandbox-agent-vm", "sandbox-agent-vm-2"] {
        let delete = format!(
            "curl -s -X DELETE --unix-socket ~/.docker/sandboxes/sandboxd.sock \
             http://localhost/vm/{name}"
        );
        assert_eq!(home.sh(&delete).ok(), "");
        let again = parsed(&home.sh(&delete).ok());
        assert_eq!(again, json!({"message": format!("no sandbox `{name}`")}));
    }
    assert_eq!(parsed(&home.sh(list).ok()), json!([]));
    assert!(!state.exists());
    default_file(&home);
}

/// `~/.sandboxd/proxy-config.json`: there from the first daemon on, without an effect, and then its user's.
fn default_file(home: &AtHome) {
    let path = home.0.home().join(".sandboxd/proxy-config.json");
    let config = parsed(&fs::read_to_string(&path).unwrap());
    assert_eq!(config.get("policy"), None, "{config}");
    let lists = config["network"].as_object().unwrap();
    assert!(lists.values().all(|list| *list == json!([])), "{config}");
    let edited = "{\"network\": {\"blockedDomains\": [\"blocked.example\"]}}";
    home.0.write(&path, edited);
    home.sbx(&["daemon", "restart"]).ok();
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    home.sbx(&["reset", "--force"]).ok();
    home.sbx(&["daemon", "start", "--detach"]).ok();
    assert_eq!(fs::read_to_string(&path).unwrap(), edited);
    // A link is left alone too, also one that leads nowhere.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", &path).unwrap();
    home.sbx(&["daemon", "restart"]).ok();
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
}

/// Status and answer of one request.
fn curl(world: &World, args: &[&str], body: Option<&[u8]>) -> (u16, Value) {
    let socket = world.state().join("sandboxd.sock");
    let mut command = world.command("curl");
    command.args(["-s", "-w", "\n%{http_code}", "--unix-socket"]);
    command.arg(socket).args(args);
    let file = world.home().join(world.name("body"));
    if let Some(body) = body {
        world.write(&file, body);
        let mut data = std::ffi::OsString::from("@");
        data.push(&file);
        command.arg("--data-binary").arg(data);
    }
    let said = Ran::from(command.output().unwrap()).ok();
    let (answer, status) = said.rsplit_once('\n').unwrap();
    let answer = match answer {
        "" => Value::Null,
        text => parsed(text),
    };
    (status.parse().unwrap(), answer)
}

pub fn post(world: &World, body: &[u8]) -> (u16, Value) {
    curl(world, &["http://localhost/vm"], Some(body))
}

fn remove(world: &World, name: &Value) {
    let url = format!("http://localhost/vm/{}", name.as_str().unwrap());
    assert_eq!(curl(world, &["-X", "DELETE", &url], None).0, 204);
}

/// The names of all of them.
fn all(world: &World) -> Vec<String> {
    let (status, list) = curl(world, &["http://localhost/vm"], None);
    assert_eq!(status, 200);
    let names = list.as_array().unwrap().iter();
    names
        .map(|vm| vm["vm_name"].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn is_refused(answer: &(u16, Value), status: u16, says: &str) {
    let (given, body) = answer;
    assert_eq!(*given, status, "{body}");
    let keys: Vec<_> = body.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["message"], "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(message.contains(says), "{message}");
    assert!(message.len() < 5000, "{} bytes", message.len());
}

fn hostile(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let world = &World::fresh(world.mode);
    let _one = world.sandbox("bystander");
    let workspace = world.workspace();
    let good = workspace.to_str().unwrap();
    let before = all(world);
    let asked = |agent: Value, workspace: Value| {
        let body = json!({"agent_name": agent, "workspace_dir": workspace}).to_string();
        post(world, body.as_bytes())
    };
    let invalid: [&[u8]; 14] = [
        b"",
        b"null",
        b"[]",
        br#"["a", "/w"]"#,
        br#""agent_name""#,
        br#"{"agent_name": "a"}"#,
        br#"{"workspace_dir": "/w"}"#,
        br#"{"agent_name": 1, "workspace_dir": "/w"}"#,
        br#"{"agent_name": "a", "workspace_dir": ["/w"]}"#,
        br#"{"agent_name": "a", "agent_name": "b", "workspace_dir": "/w"}"#,
        br#"{"agent_name": "a", "workspace_dir": "/w", "privileged": true}"#,
        br#"{"agent_name": "a", "workspace_dir": "/w"} {}"#,
        b"{\"agent_name\": \"\xff\xfe\", \"workspace_dir\": \"/w\"}",
        br#"{"agent_name": "a", "workspace_dir": "/w""#,
    ];
    for body in invalid {
        is_refused(&post(world, body), 400, "invalid request body");
    }
    let deep = "[".repeat(100_000);
    is_refused(&post(world, deep.as_bytes()), 400, "invalid request body");
    let mut large = br#"{"agent_name": ""#.to_vec();
    large.resize(8 << 20, b'a');
    is_refused(&post(world, &large), 400, "more than 1048576 bytes");
    for agent in ["", "a\0b", "a\nb", "\u{1b}[2J", "\u{85}"] {
        is_refused(&asked(agent.into(), good.into()), 400, "invalid agent name");
    }
    let long = "a".repeat(100_000);
    is_refused(&asked(long.into(), good.into()), 400, "invalid agent name");
    let far = format!("/{}", "a".repeat(500_000));
    is_refused(&asked("a".into(), far.into()), 400, "workspace_dir");
    refused_places(world, good);
    for name in [
        "no-such-vm",
        "..",
        "%2e%2e",
        "a%2fb",
        "a%00b",
        "%ff",
        &"a".repeat(5000),
    ] {
        let url = format!("http://localhost/vm/{name}");
        let (status, body) = curl(world, &["--path-as-is", "-X", "DELETE", &url], None);
        assert!([400, 404].contains(&status), "{name}: {status}");
        assert!(body["message"].is_string(), "{body}");
    }
    assert_eq!(all(world), before);
    // Where a link leads is what is shared, and shown.
    let way = world.home().join("way");
    std::os::unix::fs::symlink(&workspace, &way).unwrap();
    let (status, made) = asked("agent".into(), way.to_str().into());
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["vm_config"]["fileSharingDirectories"], json!([good]));
    remove(world, &made["vm_name"]);
    assert_eq!(all(world), before);
}

/// Workspaces that no sandbox may have.
fn refused_places(world: &World, good: &str) {
    let state = world.state();
    let link = world.home().join("link");
    std::os::unix::fs::symlink(&state, &link).unwrap();
    let file = world.home().join("file");
    world.write(&file, "");
    for (place, says) in [
        ("", "not an absolute path"),
        ("relative", "not an absolute path"),
        ("../..", "not an absolute path"),
        ("~/x", "not an absolute path"),
        ("/no/such/place", "does not exist"),
        ("/w\0/x", "cannot look at workspace"),
        ("/", "whole machine"),
        ("/proc", "kernel"),
        ("/etc", "would hide"),
        (&format!("{good}/../../.."), ""),
        (state.to_str().unwrap(), "state directory"),
        (state.join("vm").to_str().unwrap(), "state directory"),
        (link.to_str().unwrap(), "state directory"),
        (
            world.home().parent().unwrap().to_str().unwrap(),
            "state directory",
        ),
        (file.to_str().unwrap(), "read-only"),
    ] {
        let body = json!({"agent_name": "agent", "workspace_dir": place}).to_string();
        is_refused(&post(world, body.as_bytes()), 400, says);
    }
}

fn names(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let world = &World::fresh(world.mode);
    let bystander = world.sandbox("claude-vm");
    let workspace = world.workspace();
    let create = |agent: &str| {
        let body = json!({"agent_name": agent, "workspace_dir": workspace}).to_string();
        let (status, made) = post(world, body.as_bytes());
        assert_eq!(status, 200, "{made}");
        made["vm_name"].clone()
    };
    for (agent, name) in [
        ("claude", "claude-vm".to_owned()),
        ("../../../etc", "etc-vm".to_owned()),
        ("a b\u{202e}c", "a-b-c-vm".to_owned()),
        (&"x".repeat(200), format!("{}-vm", "x".repeat(60))),
        (&"x".repeat(201), format!("{}-vm-2", "x".repeat(58))),
    ] {
        assert_eq!(create(agent), name, "{agent}");
    }
    // What is not a sandbox, but in the way, is left alone.
    let foreign = world.state().join("vm/dir-vm");
    world.make_dir(&foreign);
    assert_eq!(create("dir"), "dir-vm-2");
    assert!(foreign.exists());
    // The terminal is not told to write backwards.
    let table = world.run(["ls"]).ok();
    assert!(table.contains("a b\\u{202e}c"), "{table}");
    let failed = world.run(["run", "--name", "etc-vm"]).fails(125);
    assert!(
        failed.err.contains("hint: sbx exec -it etc-vm bash"),
        "{}",
        failed.err
    );
    assert!(world.names().contains(&bystander.name));
}

fn race(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let world = &World::fresh(world.mode);
    drop(world.sandbox("first"));
    let workspace = world.workspace();
    let body = json!({"agent_name": "twin", "workspace_dir": workspace}).to_string();
    let mut names: Vec<String> = std::thread::scope(|scope| {
        let create = || {
            let (status, made) = post(world, body.as_bytes());
            assert_eq!(status, 200, "{made}");
            made["vm_name"].as_str().unwrap().to_owned()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
        let done = threads.into_iter();
        done.map(|thread| thread.join().unwrap()).collect()
    });
    names.sort();
    assert_eq!(names, ["twin-vm", "twin-vm-2", "twin-vm-3", "twin-vm-4"]);
    // A number that is free again is used again.
    remove(world, &"twin-vm-2".into());
    assert_eq!(post(world, body.as_bytes()).1["vm_name"], "twin-vm-2");
}

fn docker(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let sandbox = world.sandbox("docker");
    let socket = world
        .state()
        .join("vm")
        .join(&sandbox.name)
        .join("docker.sock");
    let ask = |path: &str| {
        let mut curl = world.command("curl");
        curl.args(["-s", "-w", " %{http_code}", "--unix-socket"]);
        Ran::from(
            curl.arg(&socket)
                .arg(format!("http://localhost{path}"))
                .output()
                .unwrap(),
        )
        .ok()
    };
    // Neither Docker's API nor the daemon's own is there.
    for path in ["/_ping", "/v1.47/containers/json", "/vm", "/v1/version"] {
        let said = ask(path);
        assert!(
            said.starts_with(r#"{"message":"this sandbox has no Docker daemon"#),
            "{said}"
        );
        assert!(said.ends_with(" 501"), "{said}");
    }
    // The next daemon answers there too.
    world.run(["daemon", "restart"]).ok();
    assert!(ask("/_ping").ends_with(" 501"));
    if !host_has("docker") {
        return;
    }
    let host = format!("unix://{}", socket.display());
    let docker = |args: &[&str]| {
        let mut docker = world.command("docker");
        Ran::from(docker.args(["--host", &host]).args(args).output().unwrap())
    };
    let refused = docker(&["ps"]).refused();
    assert!(
        refused.err.contains("has no Docker daemon"),
        "{}",
        refused.err
    );
    let image = world.home().join("image");
    world.write(&image, vec![0; 4 << 20]);
    let refused = docker(&["load", "-i", image.to_str().unwrap()]).refused();
    assert!(
        refused.err.contains("has no Docker daemon"),
        "{}",
        refused.err
    );
}

fn default_proxy(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let world = &World::fresh(world.mode);
    drop(world.sandbox("first"));
    let default = r#"{"policy": "deny", "network": {"allowedDomains": ["api.example.com"]}}"#;
    world.write(&world.state().join("proxy-config.json"), default);
    let workspace = world.workspace();
    let body = json!({"agent_name": "claude", "workspace_dir": workspace}).to_string();
    assert_eq!(post(world, body.as_bytes()).0, 200);
    let copied = world.state().join("vm/claude-vm/proxy-config.json");
    let copied = parsed(&fs::read_to_string(copied).unwrap());
    assert_eq!(copied["policy"], "deny");
    assert_eq!(
        copied["network"]["allowedDomains"],
        json!(["api.example.com"])
    );
    let kept = fs::read_to_string(world.state().join(Path::new("proxy-config.json"))).unwrap();
    assert_eq!(kept, default, "never overwritten");
}
