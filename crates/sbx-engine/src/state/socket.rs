//! Unix sockets in directories of any length: the kernel's limit of 108 bytes is for the path that is given,
//! so the directory of a longer one is opened first and named through `/proc/self/fd`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// Of a path to a socket, without the byte that ends it.
const LONGEST: usize = 107;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener at `dir/name` that only the owner can reach. One that lies there already is replaced: the
/// caller knows (by a lock) that no process serves it.
pub fn bind_unix(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let dir = open_dir(dir)?;
    // Bound under another name, so that at its own name the socket never has a wider mode.
    let fresh = format!(".{name}.new");
    match rustix::fs::unlinkat(&dir, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let listener = UnixListener::bind(short_path(&dir, &fresh))?;
    rustix::fs::chmodat(&dir, &fresh, Mode::from_raw_mode(0o600), AtFlags::empty())?;
    rustix::fs::renameat(&dir, &fresh, &dir, name)?;
    Ok(listener)
}

/// Waits for the listening process to accept, but not for ever: it may be hostile.
pub fn connect_unix(dir: &Path, name: &str) -> io::Result<UnixStream> {
    connect_within(dir, name, CONNECT_TIMEOUT)
}

/// The same where only a process of the caller or of root may serve (SO_PEERCRED: the one that called listen(2)): it gets
/// commands with their environment.
pub fn connect_own(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let stream = connect_unix(dir, name)?;
    let server = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    check_server(server.as_raw(), rustix::process::geteuid().as_raw())?;
    Ok(stream)
}

fn check_server(server: u32, user: u32) -> io::Result<()> {
    if server == user || server == 0 {
        return Ok(());
    }
    let message = format!("it is served by user {server}, not by user {user}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn connect_within(dir: &Path, name: &str, limit: Duration) -> io::Result<UnixStream> {
    let path = dir.join(name);
    let (_dir, path) = if path.as_os_str().len() <= LONGEST {
        (None, path)
    } else {
        let dir = open_dir(dir)?;
        let path = short_path(&dir, name);
        (Some(dir), path)
    };
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // What limits sending limits connecting.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &address).map_err(|error| match error {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "it does not accept connections"),
        other => other.into(),
    })?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

/// Whether a process listens at `dir/name`, without ever waiting.
pub(crate) fn listens(dir: &Path, name: &str) -> bool {
    let connected = || {
        let dir = open_dir(dir)?;
        let address = SocketAddrUnix::new(short_path(&dir, name))?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok::<_, io::Error>(rustix::net::connect(&socket, &address)?)
    };
    match connected() {
        Ok(()) => true,
        // More wait than it takes.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// No process listens, as opposed to one that cannot be reached.
pub fn is_unserved(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?)
}

fn short_path(dir: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_in_a_directory_of_any_length() {
        let temp = tempfile::tempdir().unwrap();
        let rest = LONGEST - temp.path().as_os_str().len() - "/".len() - "/exec.sock".len();
        let long = "x".repeat(200);
        for dir in [
            "a",
            &"x".repeat(rest),
            &"x".repeat(rest + 1),
            &format!("{long}/{long}"),
        ] {
            serves_in(&temp.path().join(dir));
        }
    }

    #[test]
    fn a_socket_that_another_user_serves_is_not_used() {
        let temp = tempfile::tempdir().unwrap();
        let _listener = bind_unix(temp.path(), "exec.sock").unwrap();
        connect_own(temp.path(), "exec.sock").unwrap();
        check_server(0, 1000).unwrap();
        for user in [0, 1000] {
            let error = check_server(1001, user).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("user 1001"));
        }
    }

    #[test]
    fn a_socket_without_a_listener_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind_unix(dir.path(), "exec.sock").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let connect = || connect_within(dir.path(), "exec.sock", Duration::from_millis(20));
        let _waits = connect().unwrap();
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    fn serves_in(dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        for _ in 0..2 {
            let listener = bind_unix(dir, "exec.sock").unwrap();
            let mode = dir
                .join("exec.sock")
                .metadata()
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
            let mut client = connect_unix(dir, "exec.sock").unwrap();
            let (mut served, _) = listener.accept().unwrap();
            client.write_all(b"hello").unwrap();
            drop(client);
            let mut text = String::new();
            served.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hello");
        }
    }
}
