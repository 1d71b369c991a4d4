//! What is left of a state directory after a crash, a reboot or another version: torn records, dead sockets, strange inits.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use sbx_proto::exec::Reply;
use sbx_proto::{SPOKEN, frame};
use serde_json::{Value, json};

use crate::ModeTest;
use crate::harness::{World, eventually, kill};
use crate::limits::group_dirs;

pub const TESTS: &[ModeTest] = &[
    (
        "lifecycle::an_init_that_cannot_be_talked_to_is_ended_with_its_sandbox",
        unusual_init,
    ),
    (
        "lifecycle::a_reboot_loses_no_files_and_no_ports",
        after_a_reboot,
    ),
];

/// What a record looks like is the same in every mode.
pub const INDEPENDENT: &[ModeTest] = &[(
    "lifecycle::a_torn_record_harms_no_other_sandbox",
    torn_record,
)];

fn record_of(world: &World, name: &str) -> PathBuf {
    world.state().join("vm").join(name).join("sandbox.json")
}

fn lives(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Without a warning, and gone when this returns.
fn kill_daemon(world: &World) {
    let pid = world.daemon_pid();
    assert!(kill(pid, Signal::KILL));
    eventually("the daemon is gone", || (!lives(pid)).then_some(()));
}

/// Greets everyone in a version that no daemon speaks, as an init of an unknown version does.
fn speak_another_version(listener: &UnixListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        let hello = Reply::Hello {
            protocol: SPOKEN.end() + 1,
            sandbox: "another".into(),
        };
        drop(stream.write_all(&frame::encode(&hello).unwrap()));
    }
}

fn unusual_init(world: &'static World) {
    let world = World::fresh(world.mode);
    let (kept, strange) = (world.sandbox("kept"), world.sandbox("strange"));
    let init = world.init_pid(&strange.name);
    let kept_init = world.init_pid(&kept.name);
    kill_daemon(&world);
    // Neither the record nor the socket leads to its init.
    world.write(&record_of(&world, &strange.name), "{");
    let socket = record_of(&world, &strange.name).with_file_name("exec.sock");
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    world.own(&socket);
    std::thread::spawn(move || speak_another_version(&listener));
    world.run(["rm", "--force", &strange.name]).ok();
    eventually("its init is gone", || (!lives(init)).then_some(()));
    assert!(!world.names().contains(&strange.name));
    assert!(lives(kept_init), "the init of another sandbox");
    assert_eq!(kept.exec(["echo", "alive"]).ok(), "alive");
}

fn after_a_reboot(world: &'static World) {
    let world = World::fresh(world.mode);
    let sandbox = world.sandbox_with("reboot", &["-p", "8000"]);
    sandbox.exec(["sh", "-c", "echo kept > ~/kept"]).ok();
    let ports = || world.run(["ports", &sandbox.name, "--json"]).ok();
    let before = ports();
    let init = world.init_pid(&sandbox.name);
    let groups = group_dirs(&sandbox);
    kill_daemon(&world);
    assert!(kill(init, Signal::KILL));
    eventually("init is gone", || (!lives(init)).then_some(()));
    // Sockets do not survive in `/run`; here they lie in the state directory, and nothing serves them.
    let record = record_of(&world, &sandbox.name);
    drop(fs::remove_file(record.with_file_name("exec.sock")));
    for name in ["daemon.json", "sandboxd.sock", "docker.sock"] {
        drop(fs::remove_file(world.state().join(name)));
    }
    remove_groups(&groups);
    remove_claims(&world);
    let mut said: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    // The pid is another process's by now: this test's own.
    said["init"]["pid"] = json!(std::process::id());
    said["init"]["boot_id"] = json!("00000000-0000-4000-8000-000000000000");
    world.write(&record, said.to_string());
    assert_eq!(world.status(&sandbox.name), "stopped");
    let read = sandbox.exec(["sh", "-c", "cat ~/kept"]).ok();
    assert_eq!(read, "kept");
    assert_eq!(ports(), before);
    assert_eq!(group_dirs(&sandbox), groups);
    let port: Value = serde_json::from_str(&before).unwrap();
    let port = u16::try_from(port[0]["host_port"].as_u64().unwrap()).unwrap();
    let address = ([127, 0, 0, 1], port).into();
    // Nothing listens inside: the daemon's reset may come before connect(2) returns.
    match std::net::TcpStream::connect_timeout(&address, Duration::from_secs(10)) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// Control groups do not survive; here they are emptied by the end of the processes.
fn remove_groups(groups: &[PathBuf]) {
    for group in groups {
        let all = [group.as_path(), group.parent().unwrap()];
        eventually("the control group is removed", || {
            // The kernel may not have taken the processes apart yet.
            all.into_iter().for_each(|it| drop(fs::remove_dir(it)));
            (!all[1].exists()).then_some(())
        });
    }
}

/// Claims in `/run` do not survive; those in `/var/lib` do, and their loss must not matter either.
fn remove_claims(world: &World) {
    for place in ["/run/sbx/ids", "/var/lib/sbx/ids"] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let holder = fs::read_to_string(entry.path()).unwrap_or_default();
            if Path::new(&holder).starts_with(world.state()) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

fn torn_record(world: &'static World) {
    let world = World::fresh(world.mode);
    let other = world.sandbox("other");
    for damage in ["", "half", "\u{0}noise\u{7}"] {
        let torn = world.sandbox("torn");
        let init = world.init_pid(&torn.name);
        kill_daemon(&world);
        let path = record_of(&world, &torn.name);
        let whole = fs::read_to_string(&path).unwrap();
        let text = match damage {
            "half" => &whole[..whole.len() / 2],
            other => other,
        };
        world.write(&path, text);
        assert_eq!(other.exec(["echo", "alive"]).ok(), "alive");
        let said = world.run(["stop", &torn.name]).fails(1).err;
        assert!(said.contains(&torn.name), "names it: {said}");
        assert!(said.contains("hint: "), "says what to do: {said}");
        world.run(["rm", "--force", &torn.name]).ok();
        eventually("its init is gone", || (!lives(init)).then_some(()));
    }
    assert_eq!(other.exec(["echo", "alive"]).ok(), "alive");
}
