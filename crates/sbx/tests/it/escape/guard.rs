//! The process that answers a call in the caller's place, as a target itself.

use std::fs;

use super::{assert_no_set_id, attack, fingerprint};
use crate::ModeTest;
use crate::harness::{Mode, World, blocked, kernel_is_at_least};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "a_path_through_proc_self_is_not_about_the_answering_process",
        proc_self,
    ),
    ("a_stuck_answer_does_not_stop_the_others", stuck_answers),
    (
        "an_answer_that_is_stopped_does_not_stop_the_others",
        stopped_answers,
    ),
    (
        "mount_options_open_no_file_of_the_callers_choice",
        proc_options,
    ),
    (
        "the_mounting_process_is_reaped_before_the_call_returns",
        mounts_of_the_hunted,
    ),
    ("an_answer_comes_whatever_signals_do", signals_while_asking),
    ("a_thread_is_asked_about_its_own_descriptors", threads_own),
    ("every_call_gets_an_answer", every_call_answered),
    (
        "an_answer_is_given_with_the_callers_rights_only",
        callers_rights,
    ),
];

fn proc_self(world: &'static World) {
    let sandbox = world.sandbox("guard-self");
    sandbox.exec_with(&["-d"], ["echo", "logged"]).ok();
    let dir = world.state().join("vm").join(&sandbox.name);
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, include_str!("attack/guard.py"), &[]);
        assert_eq!(said.result("breaches"), "0", "as {user}:\n{}", said.all);
    }
    for log in ["output.0.log", "output.1.log"] {
        if dir.join(log).exists() {
            let mut value = [0_u8; 8];
            assert!(
                rustix::fs::getxattr(dir.join(log), "user.breach", &mut value[..]).is_err(),
                "{log} was changed"
            );
            assert_eq!(fingerprint(&dir.join(log)).mode & 0o7777, 0o600, "{log}");
        }
    }
}

/// An answer that waits (here for the other end of a FIFO) must not keep other programs waiting for ever.
fn stuck_answers(shared: &'static World) {
    let world = World::fresh(shared.mode);
    let world = &world;
    let sandbox = world.sandbox("guard-stuck");
    let program = "
os.mkfifo('/tmp/escape-fifo')
children = []
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        os.open('/tmp/escape-fifo', os.O_CREAT | os.O_WRONLY, 0o4600)
        os._exit(0)
    children.append(pid)
print('children', len(children), flush=True)
open('/tmp/escape-plain', 'w').close()
done = os.fork()
if done == 0:
    os.chmod('/tmp/escape-plain', 0o4755)
    os._exit(0)
deadline = time.monotonic() + 20
ended = 0
while not ended and time.monotonic() < deadline:
    ended, _ = os.waitpid(done, os.WNOHANG)
print('answered', bool(ended))
for pid in children + ([] if ended else [done]):
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
print('ended', True)
";
    let said = attack(&sandbox, "agent", program, &[]);
    assert_eq!(said.result("ended"), "True");
    assert_eq!(
        said.result("answered"),
        "True",
        "40 programs that wait keep everybody else from an answer"
    );
    // What they waited for does not outlive them in the way of others.
    super::sbx(
        world,
        &[
            "exec",
            &sandbox.name,
            "sh",
            "-c",
            "touch /tmp/p && chmod 4755 /tmp/p",
        ],
    )
    .ok();
    world.run(["stop", &sandbox.name]).ok();
}

/// A process with the caller's id may stop the guard's process.
fn stopped_answers(shared: &'static World) {
    let world = World::fresh(shared.mode);
    let sandbox = world.sandbox("guard-stopped");
    let program = "
import signal
open('/tmp/escape-plain', 'w').close()
children = []
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        while True:
            os.setxattr('/tmp/escape-plain', 'user.a', b'1')
    children.append(pid)
def fields(pid):
    return open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()
stopped = set()
deadline = time.monotonic() + 20
while len(stopped) < 16 and time.monotonic() < deadline:
    for name in os.listdir('/proc'):
        try:
            if name.isdigit() and fields(name)[1] == '1' and int(name) not in (os.getpid(), os.getppid()):
                os.kill(int(name), signal.SIGSTOP)
                if fields(name)[0] == 'T':
                    stopped.add(name)
        except OSError:
            pass
print('stopped', len(stopped) > 0, flush=True)
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
done = os.fork()
if done == 0:
    os.setxattr('/tmp/escape-plain', 'user.a', b'2')
    os._exit(0)
deadline = time.monotonic() + 60
ended = 0
while not ended and time.monotonic() < deadline:
    ended, _ = os.waitpid(done, os.WNOHANG)
    time.sleep(0.05)
print('answered', bool(ended))
os.kill(done, 9) if not ended else None
";
    let said = attack(&sandbox, "agent", program, &[]);
    assert_eq!(said.result("stopped"), "True", "{}", said.all);
    assert_eq!(said.result("answered"), "True", "{}", said.all);
    world.run(["stop", &sandbox.name]).ok();
}

/// `pidns=` of a new proc (Linux 6.17) is opened by the process that mounts.
fn proc_options(world: &'static World) {
    let sandbox = world.sandbox("guard-options");
    let program = "
os.mkfifo('/tmp/escape-fifo-%s' % WHO)
def inner():
    nested()
    for number in range(64):
        attempt('fd_%d' % number, lambda: mount('p', '/mnt', 'proc', 0, 'pidns=/proc/self/fd/%d' % number))
    attempt('fifo', lambda: mount('p', '/mnt', 'proc', 0, 'hidepid=2,pidns=/tmp/escape-fifo-%s' % WHO))
in_child(inner)
def usual():
    nested()
    unshare(CLONE_NEWPID)
    if os.fork():
        os._exit(0 if os.wait()[1] == 0 else 1)
    mount('p', '/mnt', 'proc', 0, 'hidepid=invisible,gid=0,subset=pid')
    print('usual', os.path.isdir('/mnt/self'), flush=True)
in_child(usual)
";
    for user in ["agent", "root"] {
        let said = attack(&sandbox, user, program, &[("WHO", user)]);
        let tried = said
            .results
            .iter()
            .filter(|(name, _)| name.as_str() != "usual");
        let others: Vec<_> = tried
            .clone()
            .filter(|(_, how)| how.as_str() != "EINVAL")
            .collect();
        assert!(others.is_empty(), "as {user}: {others:?}");
        assert_eq!(tried.count(), 65, "{}", said.all);
        assert_eq!(said.result("usual"), "True", "{}", said.all);
    }
}

/// In a pid namespace of its own, whose root stops and kills all that comes into it from outside.
fn mounts_of_the_hunted(world: &'static World) {
    let sandbox = world.sandbox("guard-hunted");
    let program = "
import signal
def inner():
    unshare(CLONE_NEWPID)
    first = os.fork()
    if first:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
    for how in (signal.SIGKILL, signal.SIGSTOP) if WHO == 'root' else (signal.SIGKILL,):
        mounters = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                if how == signal.SIGSTOP:
                    # It is ended after a while.
                    try: mount('p', '/mnt', 'proc', 0)
                    except OSError: pass
                    os._exit(0)
                for _ in range(10):
                    try: mount('p', '/mnt', 'proc', 0)
                    except OSError: pass
                    try:
                        fd = call('fsopen', 'tmpfs', 1)
                        if fd < 3: os._exit(9)
                        os.close(fd)
                    except OSError: pass
                os._exit(0)
            mounters.append(pid)
        codes = []
        while len(codes) < len(mounters):
            top = max(mounters)
            for pid in range(top + 1, top + 60):
                try: os.kill(pid, how)
                except OSError: pass
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended in mounters: codes.append(os.waitstatus_to_exitcode(status))
        print('codes_%d' % how, set(codes) == {0}, flush=True)
        strangers = []
        for pid in range(2, max(mounters) + 2000):
            try: os.kill(pid, 0)
            except ProcessLookupError: continue
            except PermissionError: pass
            strangers.append(pid)
        print('left_%d' % how, len(strangers), flush=True)
    os._exit(0)
def hunted():
    nested()
    inner()
in_child(hunted)
";
    for user in ["agent", "root"] {
        let said = attack(&sandbox, user, program, &[("WHO", user)]);
        for how in if user == "root" {
            &["9", "19"][..]
        } else {
            &["9"]
        } {
            assert_eq!(said.result(&format!("codes_{how}")), "True", "{}", said.all);
            assert_eq!(said.result(&format!("left_{how}")), "0", "{}", said.all);
        }
    }
}

/// A call that init has taken up is neither aborted by a signal nor done twice.
fn signals_while_asking(world: &'static World) {
    if !kernel_is_at_least(5, 19) {
        return blocked("the kernel aborts a call that waits for an answer");
    }
    let sandbox = world.sandbox("guard-signals");
    let program = "
import signal
signals = 0
def count(*_):
    global signals
    signals += 1
signal.signal(signal.SIGUSR1, count)
signal.siginterrupt(signal.SIGUSR1, False)
me = os.getpid()
sender = os.fork()
if sender == 0:
    while os.getppid() == me:
        os.kill(me, signal.SIGUSR1)
        time.sleep(0.002)
    os._exit(0)
for number in range(300):
    os.close(os.open(f'/tmp/new-{number}', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o4644))
os.kill(sender, 9)
os.waitpid(sender, 0)
print('signals', signals > 20)
";
    let said = attack(&sandbox, "agent", program, &[]);
    assert_eq!(said.result("signals"), "True", "{}", said.all);
}

/// One that has descriptors of its own, which its process has not.
fn threads_own(world: &'static World) {
    if !kernel_is_at_least(6, 9) {
        return blocked("the kernel tells a process's descriptors only");
    }
    let sandbox = world.sandbox("guard-thread");
    let program = "
import ctypes, threading
CLONE_FILES = 0x400
def work():
    assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
    fd = os.open('/tmp/own', os.O_CREAT | os.O_WRONLY, 0o644)
    os.setxattr(fd, 'user.a', b'thread')
    print('set', os.getxattr('/tmp/own', 'user.a').decode())
thread = threading.Thread(target=work)
thread.start()
thread.join()
";
    let said = attack(&sandbox, "agent", program, &[]);
    assert_eq!(said.result("set"), "thread", "{}", said.all);
}

/// Agent and nested root gain nothing by asking: what they may not do by themselves is refused.
fn callers_rights(world: &'static World) {
    let sandbox = world.sandbox("guard-rights");
    sandbox
        .root_sh("mkdir -m 700 /root/closed; touch /root/closed/f; chmod 600 /root/closed/f")
        .ok();
    let program = "
attempt('chmod', lambda: os.chmod('/usr/bin/env', 0o4755))
attempt('closed', lambda: os.chmod('/root/closed/f', 0o4755))
attempt('open', lambda: os.open('/root/closed/f', os.O_CREAT | os.O_RDWR, 0o4755))
attempt('create', lambda: os.open('/usr/escape-new', os.O_CREAT | os.O_RDWR, 0o4755))
attempt('mount', lambda: mount('tmpfs', '/mnt', 'tmpfs', 0))
attempt('trusted', lambda: os.setxattr('/tmp', 'trusted.x', b'1'))
def inner():
    nested()
    attempt('nested_chmod', lambda: os.chmod('/usr/bin/env', 0o4755))
    attempt('nested_open', lambda: os.open('/root/closed/f', os.O_CREAT | os.O_RDWR, 0o4755))
    attempt('nested_create', lambda: os.open('/usr/escape-new', os.O_CREAT | os.O_RDWR, 0o4755))
in_child(inner)
";
    let program = match world.mode {
        // With one id the closed directory is the agent's own.
        Mode::Single => program
            .lines()
            .filter(|line| !line.contains("closed"))
            .collect::<Vec<_>>()
            .join("\n"),
        _ => program.to_owned(),
    };
    let said = attack(&sandbox, "agent", &program, &[]);
    // With one id the directories of the system are the agent's own; what is made is in the own layer.
    if world.mode == Mode::Single {
        assert_eq!(
            (said.result("chmod"), said.result("nested_chmod")),
            ("EPERM", "EPERM"),
            "{}",
            said.all
        );
    } else {
        said.all_refused(6);
    }
    assert_no_set_id(&sandbox.workspace);
    assert!(fs::symlink_metadata("/usr/escape-new").is_err());
}

/// Also where the descriptor cannot be delivered: one that names a place only, or one too many.
fn every_call_answered(world: &'static World) {
    let sandbox = world.sandbox("guard-answer");
    let program = "
import resource
def answered(name, work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    deadline = time.monotonic() + 5
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print(name, bool(ended))
def few():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    os.open('/tmp/escape-few', os.O_CREAT | os.O_WRONLY, 0o4755)
open('/tmp/escape-plain', 'w').close()
answered('plain', lambda: os.open('/tmp/escape-plain', os.O_CREAT | os.O_WRONLY, 0o4755))
answered('path', lambda: os.open('/tmp/escape-plain', os.O_CREAT | os.O_PATH, 0o4755))
answered('few', few)
answered('bad_pointer', lambda: call('chmod', 1, 0o4755))
answered('bad_descriptor', lambda: call('fchmod', 1 << 30, 0o4755))
answered('long_name', lambda: os.chmod('/tmp/' + 'x/' * 3000, 0o4755))
answered('large_value', lambda: call('setxattr', '/tmp', b'user.x', 0, 1 << 40, 0))
answered('null_value', lambda: call('setxattr', '/tmp', b'user.x', 0, 0, 0))
answered('fsopen', lambda: call('fsopen', 'tmpfs', 0))
answered('bad_fsopen', lambda: call('fsopen', 1, 0))
";
    for user in ["agent", "root"] {
        let said = attack(&sandbox, user, program, &[]);
        let silent: Vec<_> = said
            .results
            .iter()
            .filter(|(_, result)| *result != "True")
            .collect();
        assert!(silent.is_empty(), "as {user} no answer: {silent:?}");
    }
}
