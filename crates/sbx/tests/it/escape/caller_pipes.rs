//! A pipe of the caller's as stdout or stderr: others on the host write to it too, and inside must not read that.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use super::{PYTHON, finish, run, script};
use crate::ModeTest;
use crate::harness::{Mode, World, programs};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "what_others_write_to_the_callers_pipe_cannot_be_read",
        reading,
    ),
    ("output_through_pipes_is_whole_and_in_order", whole),
    ("a_pipe_stays_as_the_caller_has_it", flags),
];

fn reading(world: &'static World) {
    let sandbox = world.sandbox("pipe-read");
    let program = "
other = int(OTHER)
def stolen(flags):
    fd = os.open('/proc/self/fd/%d' % int(STREAM), flags | os.O_NONBLOCK)
    found = b''
    for _ in range(20):
        time.sleep(0.05)
        try:
            found += os.read(fd, 4096)
        except BlockingIOError:
            pass
    return found
os.write(other, b'begin\\n')
for name, flags in (('read', os.O_RDONLY), ('both', os.O_RDWR)):
    try:
        os.write(other, b'%s opened %s\\n' % (name.encode(), repr(stolen(flags)).encode()))
    except OSError as error:
        os.write(other, b'%s %s\\n' % (name.encode(), name_of(error).encode()))
";
    // Root of a user namespace is the caller still: it owns the pipe, and so does the agent inside.
    let clients: &[&str] = match world.mode {
        Mode::Root => &[""],
        Mode::Subordinate | Mode::Single => &["", "unshare -Ur "],
    };
    let streams = [("1", "2", "2>said"), ("2", "1", "2>&1 1>said")];
    for (client, (stream, other, streams)) in clients
        .iter()
        .flat_map(|client| streams.map(|streams| (client, streams)))
    {
        let settings = [("STREAM", stream), ("OTHER", other)];
        world.write(&sandbox.path("program.py"), script(program, &settings));
        // The pipe is the user's own, and another host program writes to it all the time.
        let steps = format!(
            "cd '{}'; {{ {client}\"$0\" exec \"$1\" {PYTHON} program.py {streams} & i=0; \
               while [ $i -lt 40 ]; do echo HOST-SECRET; sleep 0.05; i=$((i+1)); done; wait; }} | {{ sleep 4; cat; }}",
            sandbox.workspace.display()
        );
        let mut command = world.command("sh");
        command
            .args(["-c", &steps])
            .arg(programs().join("sbx"))
            .arg(&sandbox.name);
        let arrived = run(&mut command, b"").ok();
        let said = fs::read_to_string(sandbox.path("said")).unwrap();
        assert!(said.contains("begin") && said.contains("both"), "{said}");
        assert!(!said.contains("HOST-SECRET"), "{client}{said}");
        if world.mode == Mode::Root {
            let refused = said.contains("read EACCES") && said.contains("both EACCES");
            assert!(refused, "{said}");
        }
        assert_eq!(arrived.matches("HOST-SECRET").count(), 40, "{said}");
    }
}

/// Other writers of the pipe may rely on blocking writes, while the command runs and afterwards.
fn flags(world: &'static World) {
    let sandbox = world.sandbox("pipe-flags");
    let (mut read, write) = std::io::pipe().unwrap();
    let program = "import os; os.set_blocking(1, False); os.set_blocking(2, False); os.write(1, b'set'); os.read(0, 1)";
    let waits = || {
        let flags = rustix::fs::fcntl_getfl(&write).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
    };
    let mut command = world.sbx(["exec", &sandbox.name, PYTHON, "-c", program]);
    command
        .stdout(write.try_clone().unwrap())
        .stderr(write.try_clone().unwrap());
    let child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 3];
    read.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"set");
    waits();
    assert_eq!(finish(child, b"").code, 0);
    waits();
}

/// Both streams into one pipe, whose reader is slow and which is in either mode.
fn whole(world: &'static World) {
    let sandbox = world.sandbox("pipe-whole");
    let script = "i=0; while [ $i -lt 3000 ]; do echo out-$i-$PAD; echo err-$i-$PAD >&2; i=$((i+1)); done; exit 7";
    let pad = "x".repeat(100);
    for nonblocking in [false, true] {
        let (mut read, write) = std::io::pipe().unwrap();
        if nonblocking {
            rustix::io::ioctl_fionbio(&write, true).unwrap();
        }
        let mut command = world.sbx([
            "exec",
            "-e",
            &format!("PAD={pad}"),
            &sandbox.name,
            "sh",
            "-c",
            script,
        ]);
        command.stdout(write.try_clone().unwrap()).stderr(write);
        let child = command.spawn().unwrap();
        drop(command);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut buffer = [0; 1000];
            loop {
                match read.read(&mut buffer).unwrap() {
                    0 => return String::from_utf8(all).unwrap(),
                    count => all.extend_from_slice(&buffer[..count]),
                }
            }
        });
        let ran = finish(child, b"");
        assert_eq!(ran.code, 7, "{ran:?}");
        let all = reader.join().unwrap();
        // A command that may not wait can lose its own output in root mode, where the pipe is the caller's.
        if !nonblocking || world.mode != Mode::Root {
            let expected: String = (0..3000)
                .map(|i| format!("out-{i}-{pad}\nerr-{i}-{pad}\n"))
                .collect();
            assert!(all == expected, "{} of {} bytes", all.len(), expected.len());
        }
    }
}
