//! The other end of a copy, when it is not what init executes there. It cannot be replaced from inside, so a stand-in
//! answers at init's socket.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use sbx_copy::{Attributes, Buffered, Pipe, Writer};
use sbx_proto::exec::{Cause, ExitStatus, Reply, Request};
use sbx_proto::frame::{Decoder, MAX_REQUEST, encode};
use sbx_sys::fdpass::recv_with_fds;

use crate::ModeTest;
use crate::harness::{Ran, Sandbox, World};

pub(crate) const TESTS: &[ModeTest] = &[(
    "a_hostile_end_of_a_copy_writes_nothing_elsewhere",
    copied_out,
)];

/// What is the command's, as seen from init.
pub(crate) struct Streams {
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

/// At the place of a sandbox's init, for one command that `sbx` gives it.
pub(crate) struct StandIn {
    socket: PathBuf,
    real: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// `act` is what the command does; then it has exited with 0.
    pub(crate) fn new(sandbox: &Sandbox<'_>, act: impl FnOnce(Streams) + Send + 'static) -> Self {
        let world = sandbox.world;
        let dir = world.state().join("vm").join(&sandbox.name);
        let record: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("sandbox.json")).unwrap()).unwrap();
        let id = record["id"].as_str().unwrap().to_owned();
        let socket = dir.join("exec.sock");
        let real = socket.with_extension("real");
        fs::rename(&socket, &real).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        world.own(&socket);
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // Without a command there is nothing to do: the test has failed already.
            if let Some(streams) = greeted(&stream, id) {
                act(streams);
                let status = ExitStatus::Code(0);
                let by = Cause::Itself;
                say(&stream, &Reply::Exited { status, by });
            }
        });
        Self {
            socket,
            real,
            thread: Some(thread),
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // Where nothing came: the accept ends by a connection.
        drop(UnixStream::connect(&self.socket));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::rename(&self.real, &self.socket);
    }
}

/// The client may have left.
fn say(mut stream: &UnixStream, reply: &Reply) {
    let _ = stream.write_all(&encode(reply).unwrap());
}

/// Up to the start of the command.
fn greeted(stream: &UnixStream, sandbox: String) -> Option<Streams> {
    let (mut decoder, mut fds) = (Decoder::new(MAX_REQUEST), Vec::<OwnedFd>::new());
    let mut buffer = [0; 4096];
    loop {
        match recv_with_fds(stream, &mut buffer, &mut fds) {
            Ok(count @ 1..) => decoder.push(&buffer[..count]),
            _ => return None,
        }
        while let Some(request) = decoder.take::<Request>().unwrap() {
            if matches!(request, Request::Exec(_)) {
                let protocol = sbx_proto::PROTOCOL;
                say(stream, &Reply::Hello { protocol, sandbox });
                say(stream, &Reply::Started { id: 1 });
                // The client's pid namespace, stdin, stdout, stderr.
                let stderr = File::from(fds.pop()?);
                let stdout = File::from(fds.pop()?);
                return Some(Streams { stdout, stderr });
            }
        }
    }
}

pub(crate) const PLAIN: Attributes = Attributes {
    mode: 0o4777,
    uid: 0,
    gid: 0,
    mtime: 1_700_000_000,
};

type Tar = Writer<Pipe>;

/// A stream, and whether everything in it can be had.
struct Stream {
    what: &'static str,
    write: fn(&mut Tar, &Path),
    raw: &'static [u8],
}

/// The client may have had enough of the stream.
fn file(tar: &mut Tar, name: &str, bytes: &[u8]) {
    let _ = tar.bytes(name.as_bytes(), bytes, PLAIN);
}

fn streams() -> Vec<Stream> {
    let say = |what, write| Stream {
        what,
        write,
        raw: &[],
    };
    let raw = |what, raw| Stream {
        what,
        write: |_, _| {},
        raw,
    };
    vec![
        say("a name that leads up", |tar, _| {
            file(tar, "out/../../planted", b"x")
        }),
        say("a name that leads up at once", |tar, _| {
            file(tar, "../planted", b"x")
        }),
        say("an absolute name", |tar, outside| {
            file(tar, outside.join("planted").to_str().unwrap(), b"x");
        }),
        say("what was not asked for", |tar, _| {
            file(tar, ".bashrc", b"x")
        }),
        say(
            "a link as the whole copy, and a file below it",
            |tar, outside| {
                let _ = tar.symlink(b"out", outside.as_os_str().as_encoded_bytes(), PLAIN);
                file(tar, "out/planted", b"x");
            },
        ),
        say("a link, and a file below it", |tar, outside| {
            let _ = tar.directory(b"out", PLAIN);
            let _ = tar.symlink(b"out/l", outside.as_os_str().as_encoded_bytes(), PLAIN);
            file(tar, "out/l/planted", b"x");
            let _ = tar.symlink(b"out/m", b"../..", PLAIN);
            file(tar, "out/m/planted", b"x");
        }),
        say(
            "a link in place of a file that is written then",
            |tar, outside| {
                let _ = tar.directory(b"out", PLAIN);
                let secret = outside.join("secret");
                let _ = tar.symlink(b"out/f", secret.as_os_str().as_encoded_bytes(), PLAIN);
                file(tar, "out/f", b"overwritten");
            },
        ),
        say("a hard link to what is outside", |tar, _| {
            let _ = tar.directory(b"out", PLAIN);
            let _ = tar.hard_link(b"out/h", b"../secret", PLAIN);
        }),
        say("a hard link to what was not copied", |tar, _| {
            let _ = tar.directory(b"out", PLAIN);
            let _ = tar.hard_link(b"out/h", b"out/already", PLAIN);
        }),
        raw("nothing", b""),
        raw("noise", &[0x5a; 4096]),
    ]
}

fn copied_out(world: &'static World) {
    let sandbox = world.sandbox("hostile-copy");
    sandbox.exec(["true"]).ok();
    for stream in streams() {
        let Stream { what, write, raw } = stream;
        let here = Here::new(world);
        let outside = here.outside.clone();
        let ran = here.copy(&sandbox, move |mut streams| {
            let _ = streams.stdout.write_all(raw);
            let mut tar = Writer::new(Pipe(streams.stdout));
            if raw.is_empty() {
                write(&mut tar, &outside);
                let _ = tar.finish();
            }
        });
        assert_eq!(ran.code, 1, "{what}: {ran:?}");
        assert!(ran.err.contains("error: "), "{what}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{what}: {ran:?}");
        here.is_whole(what);
    }
    endings(world, &sandbox);
    assert_eq!(sandbox.exec(["echo", "back"]).ok(), "back");
}

/// What is well-formed, but not what it seems.
fn endings(world: &World, sandbox: &Sandbox<'_>) {
    // Bits that only the owner of a file should give it, and text for the caller's terminal.
    let here = Here::new(world);
    let ran = here.copy(sandbox, |mut streams| {
        let mut tar = Writer::new(Pipe(streams.stdout));
        file(&mut tar, "out", b"text");
        let _ = tar.finish();
        let _ = streams.stderr.write_all(b"\x1b]0;title\x07\x1b[2J evil\n");
    });
    assert!(!ran.err.contains(['\u{1b}', '\u{7}']), "{ran:?}");
    let mode = fs::metadata(here.to.join("out")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o7022, 0, "{ran:?}");
    here.is_whole("special bits");
    // An end before the end is no success, whatever the exit code says.
    let here = Here::new(world);
    let ran = here.copy(sandbox, |mut streams| {
        let mut tar = Writer::new(Buffered(Vec::new()));
        tar.bytes(b"out", &[0; 1 << 20], PLAIN).unwrap();
        let whole = tar.finish().unwrap().0;
        let _ = streams.stdout.write_all(&whole[..1 << 19]);
    });
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("ended before its end"), "{ran:?}");
}

/// Where a copy goes, beside what is none of its business.
struct Here<'a> {
    world: &'a World,
    outside: PathBuf,
    to: PathBuf,
}

impl<'a> Here<'a> {
    fn new(world: &'a World) -> Self {
        let outside = world.workspace();
        world.write(&outside.join("secret"), "secret\n");
        let to = outside.join("to");
        world.make_dir(&to);
        world.write(&to.join("already"), "already\n");
        symlink("secret", outside.join("link")).unwrap();
        Self { world, outside, to }
    }

    fn copy(&self, sandbox: &Sandbox<'_>, act: impl FnOnce(Streams) + Send + 'static) -> Ran {
        let _stand_in = StandIn::new(sandbox, act);
        let source = format!("{}:/tmp/out", sandbox.name);
        self.world.run(["cp", &source, self.to.to_str().unwrap()])
    }

    #[track_caller]
    fn is_whole(&self, what: &str) {
        let names = |dir: &Path| {
            let all = fs::read_dir(dir).unwrap();
            let mut names: Vec<_> = all.map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.outside), ["link", "secret", "to"], "{what}");
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(read(self.outside.join("secret")), "secret\n", "{what}");
        assert_eq!(read(self.to.join("already")), "already\n", "{what}");
        let copied = names(&self.to);
        assert!(
            copied == ["already"] || copied == ["already", "out"],
            "{what}: {copied:?}"
        );
        let copy = fs::symlink_metadata(self.to.join("out"));
        assert!(!copy.is_ok_and(|it| it.is_symlink()), "{what}");
    }
}
