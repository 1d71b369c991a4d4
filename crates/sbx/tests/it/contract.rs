//! The whole sequence that seed 000 relies on (Appendix B 24), as one test.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{Ran, World, eventually};

pub const TESTS: &[ModeTest] = &[("contract::the_whole_sequence_of_the_seed", sequence)];

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Whether this machine and user can bound memory and CPU time: else those flags are refused, as they must be.
fn can_limit(world: &World) -> bool {
    let (name, place) = (world.name("probe"), world.workspace());
    let place = place.to_str().unwrap();
    let probe = [
        "create", "--name", &name, "--cpus", "1", "--memory", "256m", "shell", place,
    ];
    let ran = world.run(probe);
    if ran.code == 0 {
        world.run(["rm", "--force", &name]).ok();
        return true;
    }
    assert!(ran.err.contains("hint: "), "{}", ran.err);
    assert!(!world.names().contains(&name));
    false
}

fn sequence(world: &'static World) {
    let world = &World::fresh(world.mode);
    before_anything(world);
    drop(world.sandbox("first"));
    let (root, extra) = (world.workspace(), world.workspace());
    world.write(&extra.join("shared"), "extra\n");
    let [root_text, extra_text] = [&root, &extra].map(|path| path.to_str().unwrap());
    let mut create = vec!["create", "--name", "crabbox-blue-lobster"];
    let limits = can_limit(world);
    if limits {
        create.extend(["--cpus", "1", "--memory", "512m"]);
    }
    create.extend(["--template", "host", "shell", root_text, extra_text]);
    world.run(create).ok();
    let name = "crabbox-blue-lobster";
    let listed = parsed(&world.run(["ls", "--json"]).ok());
    let item = &listed["sandboxes"][0];
    assert_eq!(
        (&item["name"], &item["status"]),
        (&json!(name), &json!("running"))
    );
    assert_eq!(item["workspaces"], json!([root_text, extra_text]));
    assert_eq!(item["workspace"], root_text);
    assert_eq!(item["agent"], "shell");
    if limits {
        let applied = &world.inspect(name)["limits"];
        assert_eq!(applied["memory_bytes"], 512 << 20);
        assert_eq!(applied["cpu_millis"], 1000);
    }

    let env = world.home().join("env");
    world.write(&env, "TOKEN=a b'\"c\n# a comment\nEMPTY=\n");
    let exec = [
        "exec",
        "--workdir",
        extra_text,
        "--env-file",
        env.to_str().unwrap(),
        name,
    ];
    let script = r#"pwd; cat shared; printf '%s|%s' "$TOKEN" "$EMPTY"; echo gone >&2; exit 9"#;
    let ran = world
        .run(exec.into_iter().chain(["sh", "-lc", script]))
        .fails(9);
    assert_eq!(ran.out, format!("{extra_text}\nextra\na b'\"c|"));
    assert_eq!(ran.err, "gone\n");

    publish(world, name);

    world.write(&root.join("data"), "data\n");
    symlink("data", root.join("link")).unwrap();
    let cp = |words: &[&str]| {
        let mut command = world.sbx(["cp"]);
        Ran::from(command.args(words).current_dir(&root).output().unwrap()).ok()
    };
    cp(&["-L", "link", &format!("{name}:/tmp/in")]);
    cp(&[&format!("{name}:/tmp/in"), "out"]);
    assert_eq!(fs::read_to_string(root.join("out")).unwrap(), "data\n");
    assert!(fs::symlink_metadata(root.join("out")).unwrap().is_file());

    world.run(["rm", "--force", name]).ok();
    assert_eq!(
        parsed(&world.run(["ls", "--json"]).ok()),
        json!({"sandboxes": []})
    );
    assert!(root.join("data").exists(), "workspaces stay");
    let again = world.run(["rm", "--force", name]).fails(1);
    assert!(
        again.err.contains(&format!("sandbox '{name}' not found")),
        "{}",
        again.err
    );
}

/// Nothing is started or created by these.
fn before_anything(world: &World) {
    let version = world.run(["version"]).ok();
    let first = version.lines().next().unwrap();
    assert!(
        first.starts_with("client: v") && first.contains("0.31.3"),
        "{version}"
    );
    assert!(version.lines().any(|line| line.starts_with("server: ")));
    assert_eq!(
        parsed(&world.run(["ls", "--json"]).ok()),
        json!({"sandboxes": []})
    );
    let diagnosis = world.run(["diagnose", "--output", "json"]);
    let diagnosis = parsed(&diagnosis.out);
    assert_eq!(diagnosis["version"], "1.0");
    assert!(diagnosis["checks"].is_array() && diagnosis["summary"]["fail"].is_number());
    assert!(!world.state().join("sandboxd.sock").exists());
}

fn publish(world: &World, name: &str) {
    let ports = |flags: &[&str]| {
        let words = ["ports", name].into_iter().chain(flags.iter().copied());
        world.run(words).ok()
    };
    assert_eq!(parsed(&ports(&["--json"])), json!([]));
    let published = parsed(&ports(&["--publish", "8000", "--json"]));
    let port = published[0]["host_port"].as_u64().unwrap();
    let expected = json!([
        {"host_ip": "127.0.0.1", "host_port": port, "sandbox_port": 8000, "protocol": "tcp4"}
    ]);
    assert_eq!(published, expected);
    assert_eq!(parsed(&ports(&["--json"])), expected);
    let serve = "cd /tmp && echo served >page && exec python3 -m http.server --bind 127.0.0.1 8000";
    world.run(["exec", "-d", name, "sh", "-c", serve]).ok();
    eventually("the server answers", || {
        let mut stream = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).ok()?;
        stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.ends_with("served\n").then_some(())
    });
    let both = format!("{port}:8000");
    assert_eq!(parsed(&ports(&["--unpublish", &both, "--json"])), json!([]));
    assert!(TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).is_err());
}
