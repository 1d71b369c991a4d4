//! A process that is in the sandbox already and waits to become a command.
//!
//! Joining the namespaces and installing the filter is most of what starting a command takes, and no command is
//! needed for it: init keeps one process that has done so. Root inside sees it and can stop or kill it, as it can every
//! command; it can neither look into it nor trace it, because it is not dumpable. It holds no descriptor of init's.
//!
//! Init and the spare share a socket pair. The spare sends the seccomp listener when it is ready; init
//! sends one order with the command's stdio (SCM_RIGHTS); the spare confirms it and executes. The pair is
//! close-on-exec, so that its end tells init that `execve` succeeded, unless a failure came before it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use sbx_proto::exec::Exec;
use sbx_proto::frame;
use sbx_sys::process::{self, Fork, SingleThreaded};
use sbx_sys::{fdpass, seccomp, signals};

use crate::setup::Namespaces;
use crate::spawn::{self, CachedAccount, Failure, Stdio, Surroundings};

/// What processes inside see it as until it is a command.
const NAME: &std::ffi::CStr = c"sbx-spare";

#[derive(Debug)]
pub(crate) struct Spare {
    pid: i32,
    /// Takes one order. Says [`LISTENER`] with the filter's listener, [`TAKEN`] when it has the order, and then either
    /// why the command failed or, by ending, that it runs.
    socket: UnixStream,
}

pub(crate) const LISTENER: u8 = b'l';
pub(crate) const TAKEN: u8 = b't';

/// A command as it is handed to a spare process.
#[derive(Debug)]
pub(crate) struct Order {
    exec: Request,
    stdio: Stdio,
}

/// What to execute, as JSON.
#[derive(Debug)]
enum Request {
    /// Of at most [`MAX_INLINE`] bytes, which the socket always takes at once.
    Short(Vec<u8>),
    /// A process that was stopped must not make init wait, however much there is to say.
    File(File),
}

const MAX_INLINE: usize = 2048;

impl Order {
    pub(crate) fn new(exec: &Exec, stdio: Stdio) -> Result<Self, Failure> {
        let write = || {
            let bytes = serde_json::to_vec(exec)?;
            if bytes.len() <= MAX_INLINE {
                return Ok(Request::Short(bytes));
            }
            let mut file = File::from(rustix::fs::memfd_create(c"exec", MemfdFlags::CLOEXEC)?);
            file.write_all(&bytes)?;
            Ok(Request::File(file))
        };
        let exec = write().map_err(|e: io::Error| Failure::engine("write the request down", e))?;
        Ok(Self { exec, stdio })
    }
}

impl Spare {
    pub(crate) fn new(
        proof: &SingleThreaded,
        surroundings: &Surroundings,
    ) -> Result<Self, Failure> {
        let pair = || {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            Ok((ours, theirs))
        };
        let (ours, theirs) =
            pair().map_err(|e: io::Error| Failure::engine("make a socket pair", e))?;
        match process::fork(proof, 0).map_err(|e| Failure::engine("fork", e))? {
            Fork::Child => {
                drop(ours);
                if let Err(failure) = serve(surroundings, &theirs)
                    && let Ok(bytes) = frame::encode(&failure)
                {
                    let _ = fdpass::send_with_fds(&theirs, &bytes, &[]);
                }
                process::exit_now(1)
            }
            Fork::Parent { pid, .. } => Ok(Self { pid, socket: ours }),
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// False when it does not take the order: it is dead.
    pub(crate) fn give(&self, order: &Order) -> bool {
        // Root inside may have stopped it (`kill -STOP -1`), with everything else.
        self.signal(Signal::CONT);
        let [input, output, errors] = &order.stdio;
        let mut fds = vec![input.as_fd(), output.as_fd(), errors.as_fd()];
        let bytes = match &order.exec {
            Request::Short(bytes) => bytes.as_slice(),
            Request::File(file) => {
                fds.push(file.as_fd());
                b"{"
            }
        };
        fdpass::send_with_fds(&self.socket, bytes, &fds).is_ok()
    }

    pub(crate) fn end(&self) {
        self.signal(Signal::KILL);
    }

    /// Where to hear how the command's start goes.
    pub(crate) fn into_door(self) -> UnixStream {
        self.socket
    }

    /// It is init's own child and not reaped yet: its number is still its own.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The spare process: gets ready, waits, becomes the command. Returns `Ok` when init has no use for it any more.
fn serve(surroundings: &Surroundings, socket: &UnixStream) -> Result<(), Failure> {
    get_ready(surroundings, socket)?;
    let cached = CachedAccount::read(surroundings);
    let Some((exec, stdio)) = wait(socket)? else {
        return Ok(());
    };
    fdpass::send_with_fds(socket, &[TAKEN], &[])
        .map_err(|e| Failure::engine("take the request", e))?;
    Err(spawn::enter(surroundings, cached.as_ref(), &exec, &stdio))
}

fn get_ready(surroundings: &Surroundings, socket: &UnixStream) -> Result<(), Failure> {
    let engine = |step: &'static str| move |error: io::Error| Failure::engine(step, error);
    rustix::process::setsid().map_err(|e| Failure::engine("make a session", e))?;
    signals::reset().map_err(engine("reset signals"))?;
    let _ = rustix::thread::set_name(NAME); // for `ps`
    // Before the namespaces: from inside, this process has no right to move itself.
    for group in &surroundings.groups {
        rustix::io::write(group, b"0")
            .map_err(|e| Failure::engine("join the sandbox's control groups", e))?;
    }
    join(&surroundings.namespaces).map_err(engine("join the sandbox"))?;
    // Joining a user namespace that this id owns does not make this process dumpable, whatever `fs.suid_dumpable` says.
    // From here on nothing of init's is left in it but its memory.
    let mut keep = vec![socket.as_fd()];
    keep.extend(surroundings.namespaces.named_root.as_ref().map(AsFd::as_fd));
    process::close_all_but(&keep).map_err(engine("close descriptors"))?;
    process::set_not_dumpable().map_err(engine("close this process to others"))?;
    // In the sandbox's user namespace, where this process has CAP_SYS_ADMIN: without it, a filter needs `no_new_privs`,
    // under which `sudo` would not work.
    let listener = seccomp::install(&surroundings.filter).map_err(engine("install the filter"))?;
    fdpass::send_with_fds(socket, &[LISTENER], &[listener.as_fd()])
        .map_err(engine("hand the filter over"))
}

/// The user namespace first: it is what gives the power to join the others.
fn join(namespaces: &Namespaces) -> io::Result<()> {
    process::setns(namespaces.user.as_fd(), process::NEW_USER)?;
    process::setns(namespaces.ipc.as_fd(), process::NEW_IPC)?;
    process::setns(namespaces.uts.as_fd(), process::NEW_UTS)?;
    process::setns(namespaces.net.as_fd(), process::NEW_NET)?;
    process::setns(namespaces.cgroup.as_fd(), process::NEW_CGROUP)?;
    process::setns(namespaces.mount.as_fd(), process::NEW_MOUNT)
}

/// `None` when init has gone, or has no use for this process.
fn wait(socket: &UnixStream) -> Result<Option<(Exec, Stdio)>, Failure> {
    let mut fds: Vec<OwnedFd> = Vec::new();
    let mut bytes = vec![0; MAX_INLINE];
    // Whole: init sends nothing else, and no more than that.
    let count = fdpass::recv_with_fds(socket, &mut bytes, &mut fds)
        .map_err(|e| Failure::engine("wait for a command", e))?;
    if count == 0 {
        return Ok(None);
    }
    bytes.truncate(count);
    let file = if fds.len() > 3 { fds.pop() } else { None };
    let stdio = Stdio::try_from(fds)
        .map_err(|_| Failure::bad_request("the command's descriptors are missing".into()))?;
    if let Some(file) = file {
        bytes = read(&File::from(file)).map_err(|e| Failure::engine("read the request", e))?;
    }
    Ok(Some((parse(&bytes)?, stdio)))
}

fn parse(bytes: &[u8]) -> Result<Exec, Failure> {
    serde_json::from_slice(bytes).map_err(|e| Failure::bad_request(e.to_string()))
}

/// By position: another process may have to read it again.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let size = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
