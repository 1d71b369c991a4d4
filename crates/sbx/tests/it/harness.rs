//! Real binaries, real users, real sandboxes: one [`World`] per privilege mode, or a fresh one where a test is
//! about the daemon itself.

mod internet;
mod lacking;
mod processes;
mod steps;
mod templates;

pub use internet::Internet;
pub use lacking::{blocked, host_has, kernel_is_at_least, python_has, trial};
pub use processes::{alive, children, is_pending, kill, state, waiting_helper};

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Root,
    Subordinate,
    Single,
}

pub const MODES: [Mode; 3] = [Mode::Root, Mode::Subordinate, Mode::Single];

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Subordinate => "subordinate",
            Self::Single => "single",
        }
    }

    /// Why this mode's tests cannot run here.
    pub fn blocked(self) -> Option<String> {
        let root = rustix::process::geteuid().is_root();
        match (self, root) {
            (Self::Root, true) => None,
            (Self::Root, false) => Some("root mode needs root".into()),
            (Self::Subordinate | Self::Single, true) => match self.user() {
                Some(_) => None,
                None => Some(format!(
                    "no user for {} mode: run scripts/test-users",
                    self.name()
                )),
            },
            (Self::Subordinate, false) if !has_subordinate_ids() => {
                Some("this user has no subordinate ids".into())
            }
            (Self::Subordinate | Self::Single, false) => None,
        }
    }

    /// Uid, gid and name of the mode's user.
    fn user(self) -> Option<(u32, u32, &'static str)> {
        let name = match self {
            Self::Root => return Some((0, 0, "root")),
            Self::Subordinate => "sbxsub",
            Self::Single => "sbxone",
        };
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        let line = passwd
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((
            fields.next()?.parse().ok()?,
            fields.next()?.parse().ok()?,
            name,
        ))
    }
}

fn has_subordinate_ids() -> bool {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&uid.as_str())).then(|| fields[0].to_owned())
    });
    let listed = |file: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| {
            line.split(':')
                .next()
                .is_some_and(|who| who == uid || Some(who) == name.as_deref())
        })
    };
    listed("/etc/subuid") && listed("/etc/subgid") && Path::new("/usr/bin/newuidmap").exists()
}

static OVER_FRAMES: OnceLock<World> = OnceLock::new();

/// A home, a state directory and a user.
#[derive(Debug)]
pub struct World {
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    user: String,
    dir: TempDir,
    next: AtomicU32,
    internet: Option<Internet>,
    /// None that another world has made, and none for another.
    own_template: bool,
    /// How the client carries a command's streams, where that is not the default.
    exec_transport: Option<&'static str>,
}

/// What a command left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn from(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let status = output.status;
        Self {
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The trimmed stdout of a command that must succeed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self.out.trim_end_matches('\n').to_owned()
    }

    #[track_caller]
    pub fn fails(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.out, self.err
        );
        self
    }

    /// Any failure.
    #[track_caller]
    pub fn refused(self) -> Self {
        assert_ne!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }
}

impl World {
    /// The one that tests of this mode share; each test uses names of its own in it.
    pub fn shared(mode: Mode) -> &'static Self {
        static WORLDS: [OnceLock<World>; 3] = [const { OnceLock::new() }; 3];
        let index = MODES.iter().position(|known| *known == mode).unwrap();
        WORLDS[index].get_or_init(|| Self::fresh(mode))
    }

    /// Another shared one, whose client carries the streams of commands as frames.
    pub fn shared_over_frames(mode: Mode) -> &'static Self {
        OVER_FRAMES.get_or_init(|| {
            let mut world = Self::fresh(mode);
            world.exec_transport = Some("frames");
            world
        })
    }

    pub fn fresh(mode: Mode) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("sbx-it-")
            .tempdir()
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = rustix::process::geteuid().is_root();
        let (uid, gid, user) = if root {
            mode.user().unwrap()
        } else {
            (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
                "tester",
            )
        };
        let world = Self {
            mode,
            uid,
            gid,
            user: user.to_owned(),
            dir,
            next: AtomicU32::new(0),
            internet: None,
            own_template: false,
            exec_transport: None,
        };
        world.own(world.dir.path());
        for name in ["home", "work"] {
            world.make_dir(&world.dir.path().join(name));
        }
        if mode == Mode::Single {
            // An ordinary tester may have subordinate ids: do without them.
            world.make_dir(&world.state());
            world.write(
                &world.state().join("settings.json"),
                "{\"mode\": \"single\"}\n",
            );
        }
        world
    }

    /// One whose template is made when its first sandbox is.
    pub fn with_own_template(mode: Mode) -> Self {
        let mut world = Self::fresh(mode);
        world.own_template = true;
        world
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A name that no other test uses.
    pub fn name(&self, hint: &str) -> String {
        format!("{hint}-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A new directory of the user's.
    pub fn workspace(&self) -> PathBuf {
        let path = self.dir.path().join("work").join(self.name("ws"));
        self.make_dir(&path);
        path
    }

    pub fn make_dir(&self, path: &Path) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        self.own(path);
    }

    pub fn write(&self, path: &Path, text: impl AsRef<[u8]>) {
        let mut file = fs::File::create(path).unwrap();
        file.write_all(text.as_ref()).unwrap();
        self.own(path);
    }

    pub fn own(&self, path: &Path) {
        if rustix::process::geteuid().is_root() {
            chown(path, Some(self.uid), Some(self.gid)).unwrap();
        }
    }

    /// A host command as the mode's user, with a clean environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match &self.internet {
            Some(internet) => internet.command(self.uid, self.gid, program.as_ref()),
            None => Command::new(program),
        };
        command
            .env_clear()
            .env("HOME", self.home())
            .env("USER", &self.user)
            .env("PATH", SYSTEM_PATH)
            .env("SBX_HOME", self.state())
            .env("LANG", "C.UTF-8")
            .current_dir(self.home())
            .stdin(Stdio::null());
        if let Some(transport) = self.exec_transport {
            command.env("SBX_EXEC_TRANSPORT", transport);
        }
        if rustix::process::geteuid().is_root() && self.uid != 0 && self.internet.is_none() {
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    pub fn sbx<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(programs().join("sbx"));
        command.args(args);
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        Ran::from(self.sbx(args).output().unwrap())
    }

    /// `run` with something on stdin.
    pub fn run_with_stdin<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Ran {
        let mut child = self
            .sbx(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // A command that does not read everything is no error here.
            let _ = stdin.write_all(&input);
        });
        let ran = Ran::from(child.wait_with_output().unwrap());
        writer.join().unwrap();
        ran
    }

    /// A running sandbox with one workspace; removed when dropped.
    pub fn sandbox(&self, hint: &str) -> Sandbox<'_> {
        self.sandbox_with(hint, &[])
    }

    pub fn sandbox_with(&self, hint: &str, more: &[&str]) -> Sandbox<'_> {
        self.take_template();
        let name = self.name(hint);
        let workspace = self.workspace();
        let mut args = vec!["create", "--name", &name, "shell"];
        let primary = workspace.to_str().unwrap();
        args.push(primary);
        args.extend(more);
        self.run(args).ok();
        Sandbox {
            world: self,
            name,
            workspace,
        }
    }

    /// Ends the daemon and with it every sandbox.
    pub fn stop_daemon(&self) {
        self.run(["rm", "--all", "--force"]);
        self.run(["daemon", "stop"]);
    }
}

/// What the command line says about sandboxes and the daemon.
impl World {
    /// `settings.json`, before the first command.
    pub fn settings(&self, mut settings: serde_json::Value) {
        if self.mode == Mode::Single {
            settings["mode"] = "single".into();
        } else {
            self.make_dir(&self.state());
        }
        self.write(&self.state().join("settings.json"), settings.to_string());
    }

    /// The one object of `inspect --json`.
    #[track_caller]
    pub fn inspect(&self, name: &str) -> serde_json::Value {
        let mut all: Vec<serde_json::Value> =
            serde_json::from_str(&self.run(["inspect", "--json", name]).ok()).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    #[track_caller]
    pub fn status(&self, name: &str) -> String {
        self.inspect(name)["status"].as_str().unwrap().to_owned()
    }

    /// The names that `ls` shows.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        self.run(["ls", "-q"])
            .ok()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// `daemon status --json`.
    #[track_caller]
    pub fn daemon(&self) -> serde_json::Value {
        serde_json::from_str(&self.run(["daemon", "status", "--json"]).ok()).unwrap()
    }

    #[track_caller]
    pub fn daemon_pid(&self) -> i32 {
        i32::try_from(self.daemon()["pid"].as_i64().unwrap()).unwrap()
    }

    /// The pid of a sandbox's init, as the host sees it.
    #[track_caller]
    pub fn init_pid(&self, name: &str) -> i32 {
        let record = fs::read(self.state().join("vm").join(name).join("sandbox.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        i32::try_from(record["init"]["pid"].as_i64().unwrap()).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop_daemon();
        self.leave_template();
    }
}

/// What happens by itself is asked for again, a bounded number of times.
#[track_caller]
pub fn eventually<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    eventually_or(probe, || what.to_owned())
}

/// The same with an explanation of what there is instead.
#[track_caller]
pub fn eventually_or<T>(
    mut probe: impl FnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    for _ in 0..TRIES {
        if let Some(found) = probe() {
            return found;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    panic!("it did not come about: {}", explain());
}

const TRIES: u32 = 2400;
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(25);

/// Descriptors and processes of other users are seen by root alone.
pub fn tester_is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Ends what [`World::shared`] started: statics are not dropped.
pub fn stop_shared() {
    let shared = MODES.into_iter().filter(|mode| mode.blocked().is_none());
    for world in shared.map(World::shared).chain(OVER_FRAMES.get()) {
        world.stop_daemon();
        templates::remove_tree(world.dir.path());
    }
    internet::stop_shared();
    templates::remove_spare();
    // A static too.
    let _ = fs::remove_dir_all(programs());
}

#[derive(Debug)]
pub struct Sandbox<'a> {
    pub world: &'a World,
    pub name: String,
    pub workspace: PathBuf,
}

impl Sandbox<'_> {
    pub fn exec<S: AsRef<OsStr>>(&self, command: impl IntoIterator<Item = S>) -> Ran {
        self.exec_with(&[], command)
    }

    pub fn exec_with<S: AsRef<OsStr>>(
        &self,
        flags: &[&str],
        command: impl IntoIterator<Item = S>,
    ) -> Ran {
        let mut sbx = self.world.sbx(["exec"]);
        sbx.args(flags).arg(&self.name).args(command);
        Ran::from(sbx.output().unwrap())
    }

    pub fn sh(&self, script: &str) -> Ran {
        self.exec(["sh", "-c", script])
    }

    pub fn root_sh(&self, script: &str) -> Ran {
        self.exec_with(&["-u", "root"], ["sh", "-c", script])
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.workspace.join(name)
    }
}

impl Drop for Sandbox<'_> {
    fn drop(&mut self) {
        // No second panic in a test that has failed already: it would end the others too.
        let _ = self.world.sbx(["rm", "--force", &self.name]).output();
    }
}

/// The built programs, where every user can execute them: a build directory may be closed to others.
pub fn programs() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = tempfile::Builder::new()
            .prefix("sbx-bin-")
            .tempdir()
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, path) in [
            ("sbx", env!("CARGO_BIN_EXE_sbx")),
            ("sandboxd", env!("CARGO_BIN_EXE_sandboxd")),
            ("sbx-init", env!("CARGO_BIN_EXE_sbx-init")),
            ("sbx-sudo", env!("CARGO_BIN_EXE_sbx-sudo")),
        ] {
            copy_program(path.as_ref(), &dir.path().join(name));
        }
        dir
    })
    .path()
}

/// By another process: what is open for writing here, and in whatever another test forks meanwhile, cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}
