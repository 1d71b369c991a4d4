//! The inner user namespace and the namespaces that it owns: network, ipc, uts, cgroup and, last, mount.
//!
//! A short-lived child creates them; init keeps their descriptors. The mount namespace comes last, as a copy of the
//! finished tree: when a less privileged user namespace copies a mount namespace, the kernel locks every mount in the
//! copy (`MNT_LOCKED`, and the lock on its flags; mount_namespaces(7)). Root inside can then neither remount, move nor
//! unmount one.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::mount::MountFlags;
use sbx_proto::exec::Listeners;
use sbx_proto::exec::Redirect;
use sbx_proto::frame::{self, Decoder, MAX_REPLY};
use sbx_proto::inside::AGENT;
use sbx_proto::plan::{IdRange, Ids, Mode};
use sbx_sys::fdpass;
use sbx_sys::process::{self, Fork, SingleThreaded};

use super::idmaps;
use super::limits;
use super::network::{self, Network};
use crate::error::{ErrorContext, SetupError, SetupResult};

/// As in other containers, programs may listen on every port: the network namespace is the sandbox's own.
const NETWORK: &[(&str, &str)] = &[("sys/net/ipv4/ip_unprivileged_port_start", "0")];
/// For the same reason the agent's group may open ping sockets.
const PING_GROUPS: &str = "sys/net/ipv4/ping_group_range";
/// Every address is local: without nf_tables rules that drop pings, each one would seem to answer.
const IGNORE_PINGS: &[(&str, &str)] = &[
    ("sys/net/ipv4/icmp_echo_ignore_all", "1"),
    ("sys/net/ipv6/icmp/echo_ignore_all", "1"),
];
/// The descriptors of [`WithoutMounts`], in order.
const NAMES: [&str; 5] = ["user", "net", "ipc", "uts", "cgroup"];

/// How the namespaces are to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) hostname: &'a str,
    /// Of all commands together.
    pub(super) processes: u64,
}

/// What every command joins.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub(crate) user: OwnedFd,
    pub(crate) net: OwnedFd,
    pub(crate) ipc: OwnedFd,
    pub(crate) uts: OwnedFd,
    pub(crate) cgroup: OwnedFd,
    pub(crate) mount: OwnedFd,
    /// With one id only: a child of the inner user namespace in which that id is mapped to 0. Its capabilities do not apply to
    /// the sandbox's other namespaces.
    pub(crate) named_root: Option<OwnedFd>,
}

/// All but the mount namespace, which has to wait for the tree.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) namespaces: WithoutMounts,
    network: Network,
    child: UnixStream,
    pidfd: OwnedFd,
    mode: Mode,
}

#[derive(Debug)]
pub(super) struct WithoutMounts {
    user: OwnedFd,
    pub(super) net: OwnedFd,
    ipc: OwnedFd,
    uts: OwnedFd,
    cgroup: OwnedFd,
}

/// `proc` is a mount of proc for the sandbox's pid namespace.
pub(super) fn start(
    proof: &SingleThreaded,
    ids: &Ids,
    wanted: Wanted<'_>,
    proc: BorrowedFd<'_>,
) -> SetupResult<Inner> {
    let (ours, theirs) = UnixStream::pair().doing(|| "make a socket pair".into())?;
    match process::fork(proof, 0).doing(|| "fork".into())? {
        Fork::Child => {
            drop(ours);
            let result = child(proof, ids.mode, wanted, proc, &theirs);
            process::exit_now(i32::from(result.is_err()))
        }
        Fork::Parent { pid, pidfd } => {
            drop(theirs);
            expect(&ours, b'u', "make the inner user namespace")?;
            write_maps(proc, pid, ids)?;
            say(&ours, b'm')?;
            let (namespaces, network) = receive_namespaces(&ours)?;
            Ok(Inner {
                namespaces,
                network,
                child: ours,
                pidfd,
                mode: ids.mode,
            })
        }
    }
}

impl Inner {
    /// To be called when the tree is finished: the child copies the mount namespace for the commands.
    pub(super) fn finish(self) -> SetupResult<(Namespaces, Network)> {
        say(&self.child, b't')?;
        let one = |step| -> SetupResult<OwnedFd> {
            receive_fds(&self.child, 1, step)?
                .pop()
                .ok_or_else(|| SetupError::new(step, "missing descriptor"))
        };
        let mount = one("make the inner mount namespace")?;
        let named_root = match self.mode {
            Mode::Single => Some(one("make a namespace for root by name")?),
            Mode::Root | Mode::Subordinate => None,
        };
        process::wait_pidfd(&self.pidfd).doing(|| "wait for a child".into())?;
        let WithoutMounts {
            user,
            net,
            ipc,
            uts,
            cgroup,
        } = self.namespaces;
        let namespaces = Namespaces {
            user,
            net,
            ipc,
            uts,
            cgroup,
            mount,
            named_root,
        };
        Ok((namespaces, self.network))
    }
}

fn child(
    proof: &SingleThreaded,
    mode: Mode,
    wanted: Wanted<'_>,
    proc: BorrowedFd<'_>,
    mut parent: &UnixStream,
) -> SetupResult<()> {
    let result = make(proof, wanted, proc, parent).and_then(|()| match mode {
        Mode::Single => make_named_root(proof, proc, parent),
        Mode::Root | Mode::Subordinate => Ok(()),
    });
    if let Err(error) = &result {
        // `E` instead of the expected byte: an error message follows.
        let _ = parent.write_all(format!("E{error}").as_bytes());
    }
    result
}

fn make(
    proof: &SingleThreaded,
    wanted: Wanted<'_>,
    proc: BorrowedFd<'_>,
    parent: &UnixStream,
) -> SetupResult<()> {
    limits::set_processes(wanted.processes);
    process::unshare(proof, process::NEW_USER).doing(|| "make the inner user namespace".into())?;
    // The change of ids cleared the dumpable flag, and the maps of such a process are not writable for its parent.
    process::set_dumpable().doing(|| "set the dumpable flag".into())?;
    say(parent, b'u')?;
    expect(parent, b'm', "wait for the id maps")?;
    process::unshare(
        proof,
        process::NEW_NET | process::NEW_IPC | process::NEW_UTS | process::NEW_CGROUP,
    )
    .doing(|| "make the inner namespaces".into())?;
    rustix::system::sethostname(wanted.hostname.as_bytes()).doing(|| "set the host name".into())?;
    let network = network::make()?;
    let mute = match network.redirect {
        Redirect::Nft => &[][..],
        Redirect::Ports => IGNORE_PINGS,
    };
    let agents = format!("{AGENT} {AGENT}");
    for (path, value) in NETWORK.iter().chain(mute).chain([&(PING_GROUPS, &*agents)]) {
        // Optional: an older kernel lacks some of them.
        let _ = write(proc, path, value);
    }
    send_namespaces(parent, proc, &network)?;
    drop(network);
    expect(parent, b't', "wait for the tree")?;
    process::unshare(proof, process::NEW_MOUNT)
        .doing(|| "make the inner mount namespace".into())?;
    rustix::mount::mount(
        c"mqueue",
        c"/dev/mqueue",
        c"mqueue",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .doing(|| "mount `/dev/mqueue`".into())?;
    let mount = namespace(proc, "mnt")?;
    fdpass::send_with_fds(parent, b"n", &[mount.as_fd()])
        .doing(|| "send the mount namespace".into())
}

/// Sends the namespaces' descriptors and the network's listeners (`SCM_RIGHTS`), and a description of the latter.
fn send_namespaces(
    parent: &UnixStream,
    proc: BorrowedFd<'_>,
    network: &Network,
) -> SetupResult<()> {
    let namespaces = NAMES
        .iter()
        .map(|name| namespace(proc, name))
        .collect::<SetupResult<Vec<_>>>()?;
    let sockets = network.sockets.iter().map(|(_, socket)| socket);
    let fds: Vec<_> = namespaces.iter().chain(sockets).map(AsFd::as_fd).collect();
    let words = frame::encode(&network.listeners())
        .map_err(|error| SetupError::new("send the namespaces", error.to_string()))?;
    fdpass::send_with_fds(parent, &[b"n", &*words].concat(), &fds)
        .doing(|| "send the namespaces".into())
}

fn receive_namespaces(child: &UnixStream) -> SetupResult<(WithoutMounts, Network)> {
    let step = "make the inner namespaces";
    let mut fds = Vec::new();
    let mut buffer = [0; 1000];
    let bytes = fdpass::recv_with_fds(child, &mut buffer, &mut fds).doing(|| step.into())?;
    let words = buffer.get(1..bytes).unwrap_or_default();
    if fds.len() < NAMES.len() {
        return Err(SetupError::new(step, String::from_utf8_lossy(words)));
    }
    let sockets = fds.split_off(NAMES.len());
    let missing = || SetupError::new(step, "descriptors are missing");
    let [user, net, ipc, uts, cgroup] = fds.try_into().map_err(|_| missing())?;
    let mut decoder = Decoder::new(MAX_REPLY);
    decoder.push(words);
    let listeners: Listeners = decoder
        .take()
        .map_err(|error| SetupError::new(step, error.to_string()))?
        .ok_or_else(missing)?;
    let namespaces = WithoutMounts {
        user,
        net,
        ipc,
        uts,
        cgroup,
    };
    Ok((namespaces, Network::from(&listeners, sockets)?))
}

fn make_named_root(
    proof: &SingleThreaded,
    proc: BorrowedFd<'_>,
    parent: &UnixStream,
) -> SetupResult<()> {
    process::unshare(proof, process::NEW_USER)
        .doing(|| "make a namespace for root by name".into())?;
    process::set_dumpable().doing(|| "set the dumpable flag".into())?;
    let root_by_name = format!("0 {AGENT} 1\n");
    write(proc, "self/uid_map", &root_by_name)?;
    write(proc, "self/gid_map", &root_by_name)?;
    let user = namespace(proc, "user")?;
    fdpass::send_with_fds(parent, b"n", &[user.as_fd()]).doing(|| "send a user namespace".into())
}

fn write(proc: BorrowedFd<'_>, path: &str, text: &str) -> SetupResult<()> {
    rustix::fs::openat(
        proc,
        path,
        OFlags::WRONLY | OFlags::CLOEXEC,
        FileMode::empty(),
    )
    .and_then(|file| rustix::io::write(&file, text.as_bytes()))
    .doing(|| format!("write `{path}`"))?;
    Ok(())
}

fn namespace(proc: BorrowedFd<'_>, name: &str) -> SetupResult<OwnedFd> {
    rustix::fs::openat(
        proc,
        format!("self/ns/{name}"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        FileMode::empty(),
    )
    .doing(|| format!("open the {name} namespace"))
}

/// The inner namespace has the same ids as the outer one.
fn write_maps(proc: BorrowedFd<'_>, pid: i32, ids: &Ids) -> SetupResult<()> {
    if ids.mode == Mode::Single {
        write(proc, &format!("{pid}/setgroups"), "deny")?;
    }
    write(
        proc,
        &format!("{pid}/uid_map"),
        &idmaps::lines(&identity(&ids.uid)),
    )?;
    write(
        proc,
        &format!("{pid}/gid_map"),
        &idmaps::lines(&identity(&ids.gid)),
    )
}

/// An identity map. One line per line of the outer map: the kernel refuses a range that spans two extents of the parent.
fn identity(ranges: &[IdRange]) -> Vec<IdRange> {
    ranges
        .iter()
        .map(|range| IdRange {
            outside: range.inside,
            ..*range
        })
        .collect()
}

fn say(mut socket: &UnixStream, byte: u8) -> SetupResult<()> {
    socket
        .write_all(&[byte])
        .doing(|| "talk to the other process".into())
}

fn expect(mut socket: &UnixStream, byte: u8, step: &str) -> SetupResult<()> {
    let mut seen = [0];
    socket.read_exact(&mut seen).doing(|| step.into())?;
    if seen == [byte] {
        return Ok(());
    }
    let mut words = String::new();
    let _ = socket.take(1000).read_to_string(&mut words);
    Err(SetupError::new(step, words))
}

fn receive_fds(socket: &UnixStream, count: usize, step: &str) -> SetupResult<Vec<OwnedFd>> {
    let mut fds = Vec::new();
    let mut buffer = [0; 1000];
    let bytes = fdpass::recv_with_fds(socket, &mut buffer, &mut fds).doing(|| step.into())?;
    if fds.len() == count {
        return Ok(fds);
    }
    let words = buffer.get(1..bytes).unwrap_or_default();
    Err(SetupError::new(step, String::from_utf8_lossy(words)))
}
