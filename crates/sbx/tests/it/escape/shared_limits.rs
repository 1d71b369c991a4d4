//! What the kernel counts per user, not per sandbox: one sandbox must not use up what others and the host's programs of
//! the same user need.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};

use super::{Guarded, PYTHON, attack, on_host, sbx, script};
use crate::ModeTest;
use crate::harness::{Sandbox, World};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "descriptors_under_way_in_one_sandbox_do_not_stop_others",
        in_flight,
    ),
    ("a_sandbox_has_half_of_what_its_user_has", halves),
    (
        "signals_and_queues_of_a_sandbox_leave_some_to_the_host",
        signals_and_queues,
    ),
    ("leases_are_refused", leases),
    ("terminals_are_bounded", terminals),
];

/// Runs an attack that says `ready` and then holds what it has.
fn holding(sandbox: &Sandbox<'_>, program: &str) -> (Guarded, BufReader<ChildStdout>, String) {
    let path = sandbox.path("program.py");
    sandbox.world.write(&path, script(program, &[]));
    let mut command = sandbox
        .world
        .sbx(["exec", &sandbox.name, PYTHON, "program.py"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let child = Guarded(child);
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line)
}

/// What it says after `ready`.
fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect()
}

fn in_flight(world: &'static World) {
    let hostile = world.sandbox("in-flight");
    let other = world.sandbox("in-flight-other");
    let program = "
import array, resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
null = os.open('/dev/null', os.O_RDONLY)
many = array.array('i', [null] * 250)
pairs, sent, said = [], 0, 'none'
while sent < 2 * hard and said == 'none':
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pairs.append(pair)
    pair[0].setblocking(False)
    try:
        while True:
            pair[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
            sent += len(many)
    except BlockingIOError:
        pass
    except OSError as error:
        said = name_of(error)
print('ready', sent, said, hard, flush=True)
time.sleep(600)
";
    let (_held, _out, line) = holding(&hostile, program);
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words.first(), Some(&"ready"), "{line}");
    // The attack was real: it had as many under way as it may.
    assert_eq!(words[2], "ETOOMANYREFS", "{line}");
    let exec = |sandbox: &Sandbox<'_>| sbx(world, &["exec", &sandbox.name, "echo", "alive"]);
    assert_eq!(exec(&other).ok(), "alive");
    assert_eq!(exec(&hostile).ok(), "alive");
    assert_eq!(world.sandbox("in-flight-new").sh("echo new").ok(), "new");
    sbx(world, &["stop", &other.name]).ok();
    assert_eq!(exec(&other).ok(), "alive");
}

fn halves(world: &'static World) {
    let sandbox = world.sandbox("halves");
    let program = "
import resource
count = 0
while libc.inotify_init1(0) >= 0:
    count += 1
def limit(name):
    with open('/proc/sys/user/' + name) as file:
        return int(file.read())
print('ready', count, *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
time.sleep(600)
";
    let (_held, _out, line) = holding(&sandbox, program);
    let numbers = numbers(&line);
    let host = fs::read_to_string("/proc/sys/user/max_inotify_instances").unwrap();
    let host: u64 = host.trim().parse().unwrap();
    assert!((1..=host / 2).contains(&numbers[0]), "{line}");
    let nofile = crate::ports::descriptors_of(world.daemon_pid());
    assert_eq!(numbers[2], nofile / 2, "{line}");
    assert!(numbers[1] <= numbers[2]);
    let said = on_host(
        world,
        "attempt('inotify', lambda: None if libc.inotify_init1(0) >= 0 else call(-1))",
        &[],
    );
    assert_eq!(said.result("inotify"), "ok", "{}", said.all);
    // Root inside cannot have it back.
    let raise = "
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def raised():
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard + 1))
    except ValueError:
        raise OSError(errno.EPERM, '')
attempt('raise', raised)
def more():
    with open('/proc/sys/user/max_inotify_instances', 'w') as file:
        file.write('1000000')
    for _ in range(4096):
        if libc.inotify_init1(0) < 0:
            raise OSError(ctypes.get_errno(), '')
attempt('instances', more)
";
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, raise, &[]);
        said.all_refused(2);
    }
    // What nested containers and browsers do is far below it.
    let nested = "
def many():
    for _ in range(30):
        in_child(lambda: unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID))
many()
print('done yes')
";
    assert_eq!(attack(&sandbox, "agent", nested, &[]).result("done"), "yes");
}

fn signals_and_queues(world: &'static World) {
    let sandbox = world.sandbox("queues");
    let program = "
import resource
for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (hard, hard))
number = signal.SIGRTMIN + 1
signal.pthread_sigmask(signal.SIG_BLOCK, [number])
signals = queues = 0
while signals < 1 << 21 and libc.sigqueue(os.getpid(), number, None) == 0:
    signals += 1
while queues < 1 << 12:
    try:
        call(240, b'q%d' % queues, os.O_CREAT | os.O_RDWR, 0o600, None)
        queues += 1
    except OSError:
        break
print('ready', signals, queues, flush=True)
time.sleep(600)
";
    let (_held, _out, line) = holding(&sandbox, program);
    let numbers = numbers(&line);
    // The attack was real, and ended at a limit.
    assert!((1..1 << 21).contains(&numbers[0]), "{line}");
    assert!((1..1 << 12).contains(&numbers[1]), "{line}");
    let host = "
timer = ctypes.c_int()
attempt('timer', lambda: call(222, 0, None, ctypes.byref(timer)))
name = b'sbx-it-%d' % os.getpid()
def queue():
    os.close(call(240, name, os.O_CREAT | os.O_RDWR, 0o600, None))
    call(241, name)
attempt('queue', queue)
";
    let said = on_host(world, host, &[]);
    for what in ["timer", "queue"] {
        assert_eq!(said.result(what), "ok", "{}", said.all);
    }
}

fn leases(world: &'static World) {
    let sandbox = world.sandbox("lease");
    let program = "
import fcntl
fd = os.open('leased', os.O_CREAT | os.O_RDWR, 0o600)
attempt('lease_write', lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK))
attempt('lease_read', lambda: fcntl.fcntl(os.open('leased', os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK))
attempt('upper_half', lambda: call(72, fd, fcntl.F_SETLEASE | 1 << 40, fcntl.F_WRLCK))
attempt('delegation', lambda: call(72, os.open('.', os.O_RDONLY), 1024 + 16, 0))
";
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, program, &[]);
        said.refused(&[
            ("lease_write", &["EAGAIN"]),
            ("lease_read", &["EAGAIN"]),
            ("upper_half", &["EAGAIN"]),
            ("delegation", &["EAGAIN"]),
        ]);
        fs::remove_file(sandbox.path("leased")).unwrap();
    }
}

/// The machine has some thousand for everybody. Others, and other sandboxes, have theirs meanwhile.
fn terminals(world: &'static World) {
    let hostile = world.sandbox("terminals");
    let other = world.sandbox("terminals-other");
    // In the sandbox, and on a file system of terminals that is mounted there, with a count of its own.
    let program = "
def fill(ptmx):
    while len(opened) < 400:
        try:
            opened.append(os.open(ptmx, os.O_RDWR | os.O_NOCTTY))
        except OSError as error:
            return name_of(error)
opened = []
fill('/dev/ptmx')
nested()
os.mkdir('/tmp/terminals')
mount('none', '/tmp/terminals', 'devpts', 0, 'newinstance,ptmxmode=0666,max=4000')
said = fill('/tmp/terminals/ptmx')
for change in 'max=4000', 'reserve':
    try:
        mount('none', '/tmp/terminals', None, MS_REMOUNT, change)
    except OSError:
        pass
said = fill('/tmp/terminals/ptmx')
try:
    call('fsopen', 'devpts', 0)
    said = 'fsopen'
except OSError:
    pass
print('ready', len(opened), flush=True)
print(said, flush=True)
time.sleep(1000)
";
    let (_held, mut out, line) = holding(&hostile, program);
    let [opened] = numbers(&line)[..] else {
        panic!("{line}");
    };
    assert!((200..=256).contains(&opened), "{line}");
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    assert_eq!(said.trim(), "ENOSPC");
    other.sh("exec 3<>/dev/ptmx").ok();
}
