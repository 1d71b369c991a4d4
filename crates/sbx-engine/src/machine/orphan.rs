//! An init that cannot be talked to, found by what it has mounted.
//!
//! The socket does not tell whose it is: `SO_PEERCRED` names the process that called listen(2), which was an earlier daemon.
//! But files of a sandbox's own directory (such as `/etc/hosts`) are mounted in its init, and that directory is that sandbox's
//! alone. Commands inside have the same mounts; the init is the one that is the first process of a pid namespace. Only a process whose mounts
//! this user may read is found, which those of other users are not.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sbx_sys::process::pidfd_open;

use super::process::Process;

/// Kills the inits of the sandbox in `dir`. False when none was found or one has not ended.
pub(super) fn end(dir: &Path) -> bool {
    let (Ok(own), Ok(processes)) = (fs::read("/proc/self/mountinfo"), fs::read_dir("/proc")) else {
        return false;
    };
    let Some(place) = SandboxPath::of(&own, dir) else {
        return false;
    };
    let pids = processes
        .flatten()
        .filter_map(|it| it.file_name().to_str()?.parse().ok());
    let found: Vec<Process> = pids.filter_map(|pid| init_of(pid, &place)).collect();
    for process in &found {
        process.end();
    }
    !found.is_empty() && found.iter().all(Process::has_ended)
}

fn init_of(pid: i32, place: &SandboxPath) -> Option<Process> {
    // Opened before the process is looked at: from now on the pid cannot become another process.
    let process = Process::new(pidfd_open(pid).ok()?);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    if !is_first(&status) {
        return None;
    }
    let mounts = fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
    (place.is_mounted(&mounts) && !process.has_ended()).then_some(process)
}

/// Whether it is process 1 of a pid namespace below ours.
fn is_first(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut pids = line.unwrap_or_default().split_whitespace();
    pids.next().is_some() && pids.next_back() == Some("1")
}

/// A directory as the kernel names what is mounted from it: its file system, and its path from the root of that.
#[derive(Debug, PartialEq, Eq)]
struct SandboxPath {
    device: Vec<u8>,
    path: Vec<u8>,
}

impl SandboxPath {
    /// `own` is the table of the process that sees `dir`.
    fn of(own: &[u8], dir: &Path) -> Option<Self> {
        let dir = escaped(dir.as_os_str().as_bytes());
        let mut best: Option<(usize, Self)> = None;
        for (device, root, at) in own.split(|byte| *byte == b'\n').filter_map(fields) {
            let at = if at == b"/" { &[][..] } else { at };
            let root = if root == b"/" { &[][..] } else { root };
            let Some(rest) = dir.strip_prefix(at).filter(|rest| rest.starts_with(b"/")) else {
                continue;
            };
            // Of two mounts at the same place the later one is on top.
            if best.as_ref().is_none_or(|(length, _)| at.len() >= *length) {
                let device = device.to_vec();
                let path = [root, rest].concat();
                best = Some((at.len(), Self { device, path }));
            }
        }
        best.map(|(_, place)| place)
    }

    /// Whether anything that lies in it is mounted.
    fn is_mounted(&self, mounts: &[u8]) -> bool {
        let mut lines = mounts.split(|byte| *byte == b'\n').filter_map(fields);
        lines.any(|(device, root, _)| {
            let rest = root.strip_prefix(self.path.as_slice());
            device == self.device && rest.is_some_and(|rest| rest.starts_with(b"/"))
        })
    }
}

/// The device, the root and the mount point of a line.
fn fields(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    Some((words.next()?, words.next()?, words.next()?))
}

/// As the kernel writes a path there.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len() + 1);
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => {
                out.extend(format!("\\{byte:03o}").into_bytes());
            }
            byte => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_process_of_another_pid_namespace() {
        assert!(is_first("Name:\tinit\nNSpid:\t812\t1\n"));
        for other in ["NSpid:\t1\n", "NSpid:\t812\t7\n", "NSpid:\t812\n", ""] {
            assert!(!is_first(other), "{other}");
        }
    }

    #[test]
    fn mounts_of_one_directory_alone() {
        let own = b"1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 /sub /home rw - ext4 e rw\n";
        let place = |dir: &str| SandboxPath::of(own, Path::new(dir)).unwrap();
        let here = place("/home/a b/vm/one");
        let expected = SandboxPath {
            device: b"8:2".into(),
            path: b"/sub/a\\040b/vm/one".into(),
        };
        assert_eq!(here, expected);
        let inside = b"7 6 8:2 /sub/a\\040b/vm/one/etc/hosts /etc/hosts rw - ext4 e rw\n";
        assert!(here.is_mounted(inside));
        for other in ["/home/a b/vm/on", "/home/a b/vm/two", "/sub/a b/vm/one"] {
            assert!(!place(other).is_mounted(inside), "{other}");
        }
    }

    #[test]
    fn nothing_is_ended_that_mounts_nothing_of_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!end(dir.path()));
    }
}
