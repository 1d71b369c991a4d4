//! An init that answers the client and the daemon with garbage. It cannot be provoked from inside, so a
//! stand-in listens at init's socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use super::{run, sbx};
use crate::ModeTest;
use crate::harness::World;

pub(crate) const TESTS: &[ModeTest] = &[
    ("a_client_survives_a_hostile_init", client),
    ("a_daemon_survives_a_hostile_init", daemon),
];

fn frame(json: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(json.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes
}

fn hello(id: &str) -> Vec<u8> {
    frame(&format!(
        "{{\"hello\":{{\"protocol\":{},\"sandbox\":\"{id}\"}}}}",
        sbx_proto::PROTOCOL
    ))
}

/// What to say, and whether to say it for ever.
#[derive(Clone)]
struct Speech {
    what: &'static str,
    first: Vec<u8>,
    again: Vec<u8>,
}

fn speeches(id: &str) -> Vec<Speech> {
    let say = |what, first: Vec<u8>, again: Vec<u8>| Speech { what, first, again };
    let greeted = |more: &[u8]| [hello(id), more.to_vec()].concat();
    let started = frame("{\"started\":{\"id\":1}}");
    vec![
        say("nothing and the end", vec![], vec![]),
        say("a length of 4 GiB", vec![0xff; 4], vec![0x41; 4096]),
        say("a length of 0", vec![0; 4], vec![]),
        say(
            "noise",
            (0_u32..5000)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect(),
            vec![],
        ),
        say("not JSON", frame("{]"), vec![]),
        say("another type", frame("{\"hello\":7}"), vec![]),
        say(
            "an unknown reply",
            greeted(&frame("{\"novel\":{}}")),
            vec![],
        ),
        say(
            "an unknown field",
            frame("{\"hello\":{\"protocol\":2,\"sandbox\":\"x\",\"y\":1}}"),
            vec![],
        ),
        say(
            "another protocol",
            frame("{\"hello\":{\"protocol\":99,\"sandbox\":\"x\"}}"),
            vec![],
        ),
        say("a deep nest", frame(&"[".repeat(60_000)), vec![]),
        say("the start before the greeting", started.clone(), vec![]),
        say(
            "an exit before the start",
            greeted(&frame("{\"exited\":{\"status\":{\"code\":0}}}")),
            vec![],
        ),
        say("two greetings", greeted(&hello(id)), vec![]),
        say(
            "two starts",
            greeted(&[started.clone(), started.clone()].concat()),
            vec![],
        ),
        say(
            "the daemon's news to a client",
            greeted(&frame("{\"commands\":{\"running\":4294967295}}")),
            vec![],
        ),
        say(
            "an exit code out of range",
            greeted(
                &[
                    started.clone(),
                    frame("{\"exited\":{\"status\":{\"code\":99999999999}}}"),
                ]
                .concat(),
            ),
            vec![],
        ),
        say(
            "listeners that are not there",
            greeted(&frame(
                "{\"listeners\":{\"redirect\":\"nft\",\"sockets\":[\"tcp4\",\"dns_udp4\"]}}",
            )),
            vec![],
        ),
        say("greetings for ever", hello(id), hello(id)),
        say(
            "half a message for ever",
            greeted(&[0xff, 0xff, 0, 0]),
            vec![b' '; 4096],
        ),
    ]
}

/// Answers every connection with one speech until it is dropped.
struct Impostor {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    fn listen(world: &World, path: &Path, speech: Speech) -> Self {
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        world.own(path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let (stop, served) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU32::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&served));
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                counted.fetch_add(1, Ordering::SeqCst);
                let speech = speech.clone();
                thread::spawn(move || speak(stream, &speech));
            }
        });
        Self {
            path: path.to_path_buf(),
            stop,
            served,
            thread: Some(thread),
        }
    }

    fn served(&self) -> u32 {
        self.served.load(Ordering::SeqCst)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The accept ends by one more connection; another process may have the path by now.
        drop(UnixStream::connect(&self.path));
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
        {
            let _ = thread.join();
        }
    }
}

fn speak(mut stream: UnixStream, speech: &Speech) {
    // Heard first, so that nothing is lost to a reset.
    let mut heard = [0; 4096];
    let _ = stream.read(&mut heard);
    if stream.write_all(&speech.first).is_err() {
        return;
    }
    // For ever is until the other side has enough, or 1 GiB.
    let mut sent = 0_usize;
    while !speech.again.is_empty() && sent < 1 << 30 && stream.write_all(&speech.again).is_ok() {
        sent += speech.again.len();
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    while stream.read(&mut heard).is_ok_and(|count| count > 0) {}
}

/// The most memory that a child of this process had, in KiB, is not told per child: `time` does.
fn measured(world: &World, args: &[&str]) -> (crate::harness::Ran, u64) {
    let sbx = crate::harness::programs().join("sbx");
    let program = "import resource, subprocess, sys\ncode = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode\nprint('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\nsys.exit(code)";
    let mut command = world.command(super::PYTHON);
    command.args(["-c", program]).arg(sbx).args(args);
    let ran = run(&mut command, b"");
    let peak = ran
        .out
        .lines()
        .find_map(|line| line.strip_prefix("peak "))
        .unwrap()
        .parse()
        .unwrap();
    (ran, peak)
}

fn record(world: &World, name: &str) -> serde_json::Value {
    let path = world.state().join("vm").join(name).join("sandbox.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn client(world: &'static World) {
    let sandbox = world.sandbox("impostor");
    sandbox.exec(["true"]).ok();
    let id = record(world, &sandbox.name)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let socket = world
        .state()
        .join("vm")
        .join(&sandbox.name)
        .join("exec.sock");
    let real = socket.with_extension("real");
    fs::rename(&socket, &real).unwrap();
    for speech in speeches(&id) {
        let what = speech.what;
        let impostor = Impostor::listen(world, &socket, speech);
        let (ran, peak) = measured(world, &["exec", &sandbox.name, "echo", "hello"]);
        assert!(impostor.served() > 0, "{what}: the client went elsewhere");
        assert_eq!(ran.code, 125, "{what}: {ran:?}");
        assert!(
            !ran.err.trim().is_empty() && !ran.err.contains("panicked"),
            "{what}: {ran:?}"
        );
        assert!(peak < 64 << 10, "{what}: {peak} KiB");
    }
    // What it says about a failure is text, not commands for the caller's terminal.
    let evil = "{\"failed\":{\"kind\":\"engine\",\"message\":\"\\u001b]0;title\\u0007\\u001b[2J\\u009b31m evil\"}}";
    let evil = Speech {
        what: "escapes",
        first: [hello(&id), frame(evil)].concat(),
        again: vec![],
    };
    let impostor = Impostor::listen(world, &socket, evil);
    let ran = sbx(world, &["exec", &sandbox.name, "true"]);
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(
        ran.err.contains("evil") && !ran.err.contains(['\u{1b}', '\u{7}', '\u{9b}']),
        "{:?}",
        ran.err
    );
    drop(impostor);
    fs::rename(&real, &socket).unwrap();
    assert_eq!(sandbox.exec(["echo", "back"]).ok(), "back");
}

/// Each speech is met by a daemon that comes back after a crash and finds its sandbox like this.
fn daemon(shared: &'static World) {
    let world = World::fresh(shared.mode);
    let speeches = speeches("").len();
    for number in 0..speeches {
        let sandbox = world.sandbox("hostile");
        sandbox.exec(["true"]).ok();
        let id = record(&world, &sandbox.name)["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let speech = self::speeches(&id).swap_remove(number);
        let what = speech.what;
        let daemon: serde_json::Value =
            serde_json::from_slice(&fs::read(world.state().join("daemon.json")).unwrap()).unwrap();
        let pid = i32::try_from(daemon["pid"].as_i64().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(
                &ended,
                rustix::event::PollFlags::IN,
            )],
            None,
        )
        .unwrap();
        let socket = world
            .state()
            .join("vm")
            .join(&sandbox.name)
            .join("exec.sock");
        let impostor = Impostor::listen(&world, &socket, speech);
        // Starts a daemon, which looks for its sandboxes.
        let start = sbx(&world, &["daemon", "start", "--detach"]);
        assert_eq!(start.code, 0, "{what}: {start:?}");
        let listed = sbx(&world, &["ls", "--json"]).ok();
        assert!(listed.contains(&sandbox.name), "{what}: {listed}");
        assert!(impostor.served() > 0, "{what}: the daemon did not ask");
        let daemon: serde_json::Value =
            serde_json::from_slice(&fs::read(world.state().join("daemon.json")).unwrap()).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", daemon["pid"])).unwrap();
        let peak: u64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        assert!(peak < 128 << 10, "{what}: {peak} KiB");
        drop(impostor);
        // It is of use again, at the latest when it has been stopped, and can be removed.
        let echo = || sbx(&world, &["exec", &sandbox.name, "echo", "again"]);
        let mut ran = echo();
        if ran.code != 0 {
            let stopped = sbx(&world, &["stop", &sandbox.name]);
            assert_eq!(
                (ran.code, stopped.code),
                (125, 0),
                "{what}: {ran:?} {stopped:?}"
            );
            ran = echo();
        }
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (0, "again\n"),
            "{what}: {ran:?}"
        );
        sbx(&world, &["rm", "--force", &sandbox.name]).ok();
    }
}
