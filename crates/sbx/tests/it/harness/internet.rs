//! An outside world that the test owns: a network and mount namespace in which every address is one program, which
//! records whatever reaches it. The engine is started in it and sees no other.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

use super::{MODES, Mode, World, tester_is_root};

/// One per mode.
type Worlds = [OnceLock<World>; MODES.len()];

static ONLINE: Worlds = [const { OnceLock::new() }; MODES.len()];
static STRICT: Worlds = [const { OnceLock::new() }; MODES.len()];

/// Beside the tests that use them.
const FILES: [(&str, &str); 4] = [
    ("internet.sh", include_str!("../egress/internet.sh")),
    ("origin.py", include_str!("../egress/origin.py")),
    ("h2.js", include_str!("../egress/h2.js")),
    ("grpc_origin.py", include_str!("../egress/grpc_origin.py")),
];

/// In a shell, because `nsenter` would begin in the root directory. Then come the program and its arguments.
const ENTER: &str = r#"pid=$0 gid=$1 uid=$2; shift 2
exec nsenter --target "$pid" --net --mount --setgid "$gid" --setuid "$uid" --wdns="$(pwd -P)" -- "$@""#;

#[derive(Debug)]
pub struct Internet {
    pid: u32,
    origin: Mutex<Child>,
    dir: TempDir,
}

impl Internet {
    /// Why there can be none here.
    pub fn blocked() -> Option<String> {
        if !tester_is_root() {
            return Some("an internet of the test's own needs root".into());
        }
        let missing = ["unshare", "nsenter", "ip", "openssl", "git", "python3"]
            .into_iter()
            .find(|program| {
                let mut dirs = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].into_iter();
                !dirs.any(|dir| Path::new(dir).join(program).exists())
            });
        missing.map(|program| format!("the host has no `{program}`"))
    }

    /// With `sniff` every packet is recorded, which is slow.
    pub fn open(sniff: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("sbx-net-")
            .tempdir()
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, text) in FILES {
            write(&dir.path().join(name), text);
        }
        if sniff {
            write(&dir.path().join("sniff"), "");
        }
        let mut origin = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private", "sh"])
            .arg(dir.path().join("internet.sh"))
            .arg(dir.path())
            .env_clear()
            .env("PATH", super::SYSTEM_PATH)
            // It ends with this one, whatever becomes of the test.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let heard = origin.stdout.as_mut().unwrap().read_exact(&mut ready);
        let internet = Self {
            pid: origin.id(),
            origin: Mutex::new(origin),
            dir,
        };
        heard.unwrap();
        assert_eq!(&ready, b"ready\n");
        internet
    }

    /// A program in this world as that user.
    pub fn command(&self, uid: u32, gid: u32, program: &OsStr) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ENTER]);
        for id in [self.pid, gid, uid] {
            command.arg(id.to_string());
        }
        command.arg(program);
        command
    }

    /// A file of the world, such as its certificate authority `ca.pem`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What has reached it so far.
    pub fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file("record.jsonl")).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Ends the world and its files.
    pub fn close(&self) {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        drop(origin.stdin.take());
        let _ = origin.wait();
        let _ = fs::remove_dir_all(self.dir.path());
    }
}

impl World {
    /// The one that tests of this mode share that need an outside world. Nothing is allowed in it.
    pub fn online(mode: Mode) -> &'static Self {
        shared(&ONLINE, mode).get_or_init(|| Self::fresh_online(mode, false))
    }

    /// The same with the machine's own network.
    pub fn strict(mode: Mode) -> &'static Self {
        shared(&STRICT, mode).get_or_init(|| {
            let world = Self::fresh(mode);
            world.run(["policy", "init", "deny-all"]).ok();
            world
        })
    }

    /// Its packets are recorded with `sniff`.
    pub fn fresh_online(mode: Mode, sniff: bool) -> Self {
        let mut world = Self::fresh(mode);
        world.internet = Some(Internet::open(sniff));
        world.run(["policy", "init", "deny-all"]).ok();
        world
    }

    pub fn internet(&self) -> &Internet {
        self.internet.as_ref().unwrap()
    }
}

fn shared(worlds: &'static Worlds, mode: Mode) -> &'static OnceLock<World> {
    &worlds[MODES.iter().position(|known| *known == mode).unwrap()]
}

/// Statics are not dropped.
pub(super) fn stop_shared() {
    for world in ONLINE.iter().chain(&STRICT).filter_map(OnceLock::get) {
        world.stop_daemon();
        super::templates::remove_tree(world.dir.path());
        if let Some(internet) = &world.internet {
            internet.close();
        }
    }
}

fn write(path: &Path, text: &str) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

impl Drop for Internet {
    fn drop(&mut self) {
        self.close();
    }
}
