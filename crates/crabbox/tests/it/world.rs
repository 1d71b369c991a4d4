//! A home, a repository, a stand-in for `sbx`, and the real `crabbox` in an environment of its own.

mod barrier;
mod ran;
mod terminal;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use barrier::Barrier;
pub(crate) use ran::{Call, Ran};
pub(crate) use terminal::{OnTerminal, Terminal, on_terminal};

#[derive(Debug)]
pub(crate) struct World {
    dir: TempDir,
}

/// A python without its start-up files: a launcher of many versions takes longer than everything else here.
pub(crate) fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let said = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output()
            .unwrap();
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    })
}

/// What could not be tried here, and why. It is shown also of a test that passes, whose own output is not.
pub(crate) fn blocked(reason: impl std::fmt::Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let line = format!("environment_blocked: {test}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// The program in a directory of its own.
fn apart() -> &'static Path {
    static APART: OnceLock<PathBuf> = OnceLock::new();
    APART.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("apart");
        fs::create_dir_all(&dir).unwrap();
        let (fresh, program) = (
            dir.join(format!("crabbox.{}", std::process::id())),
            dir.join("crabbox"),
        );
        fs::hard_link(env!("CARGO_BIN_EXE_crabbox"), &fresh).unwrap();
        fs::rename(&fresh, &program).unwrap();
        // Two names of one file stay both.
        drop(fs::remove_file(&fresh));
        program
    })
}

pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = File::create(path).unwrap();
    file.write_all(text.as_ref()).unwrap();
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self::without_sbx();
        let program = world.path("bin/sbx");
        let script = format!("#!{} -IS\n{}", python(), include_str!("fake_sbx.py"));
        // Under another name first: a process that is forked meanwhile would have it open for writing.
        let fresh = world.path("bin/sbx.new");
        write(&fresh, script);
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp")
            .args([&fresh, &program])
            .status()
            .unwrap();
        assert!(copied.success());
        world
    }

    /// With a stand-in for our own engine, which knows more than the original.
    pub(crate) fn of_our_engine() -> Self {
        let world = Self::new();
        world.behave("own", "yes");
        world.behave(
            "version",
            "client: v0.1.0\nserver: v0.1.0\ncontract: 0.31.3 0.39",
        );
        world
    }

    /// With nothing to make sandboxes with.
    pub(crate) fn without_sbx() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("crabbox-it-")
            .tempdir()
            .unwrap();
        let world = Self { dir };
        for name in [
            "home",
            "config",
            "state",
            "bin",
            "engine/sandboxes",
            "engine/behave",
            "my-app",
        ] {
            fs::create_dir_all(world.path(name)).unwrap();
        }
        world.git(&["init", "-q", "-b", "main"]);
        write(&world.path("my-app/README"), "hello\n");
        world.git(&["add", "."]);
        world.git(&["commit", "-q", "-m", "one"]);
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.path("my-app")
    }

    pub(crate) fn git(&self, args: &[&str]) {
        let mut git = Command::new("git");
        self.environment(&mut git);
        let done = git.args(args).current_dir(self.repo()).status().unwrap();
        assert!(done.success(), "git {args:?}");
    }

    fn environment(&self, command: &mut Command) {
        command
            .env_clear()
            .env(
                "PATH",
                format!(
                    "{}:/usr/local/bin:/usr/bin:/bin",
                    self.path("bin").display()
                ),
            )
            .env("HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("TMPDIR", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_AUTHOR_NAME", "a")
            .env("GIT_AUTHOR_EMAIL", "a@example.org")
            .env("GIT_COMMITTER_NAME", "a")
            .env("GIT_COMMITTER_EMAIL", "a@example.org");
    }

    /// The real program in the repository. Where the world has a stand-in, no engine lies beside the program: it would
    /// be the one that is used.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        match self.path("bin/sbx").exists() {
            true => self.program(apart(), args),
            false => self.program(Path::new(env!("CARGO_BIN_EXE_crabbox")), args),
        }
    }

    /// The same program, with no `sbx` beside it.
    pub(crate) fn alone(&self, args: &[&str]) -> Command {
        let copy = self.path("alone/crabbox");
        if !copy.exists() {
            fs::create_dir_all(self.path("alone")).unwrap();
            let original = env!("CARGO_BIN_EXE_crabbox");
            if fs::hard_link(original, &copy).is_err() {
                // By another process: a file that is open for writing here, and so in whatever another test forks at
                // this moment, cannot be executed.
                let copied = Command::new("cp").arg(original).arg(&copy).status();
                assert!(copied.unwrap().success());
            }
        }
        self.program(&copy, args)
    }

    fn program(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        self.environment(&mut command);
        command
            .args(args)
            .current_dir(self.repo())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn crabbox(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    pub(crate) fn with_env(&self, env: &[(&str, &str)], args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.envs(env.iter().copied());
        Ran::from(command.output().unwrap())
    }

    pub(crate) fn within(&self, dir: &Path, args: &[&str]) -> Ran {
        Ran::from(self.command(args).current_dir(dir).output().unwrap())
    }

    pub(crate) fn with_stdin(&self, input: &[u8], args: &[&str]) -> Ran {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut to = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || to.write_all(&input));
        let ran = Ran::from(child.wait_with_output().unwrap());
        // Who does not read it has not failed.
        drop(writer.join().unwrap());
        ran
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// A kept lease; its lease id.
    #[track_caller]
    pub(crate) fn warm(&self, slug: &str) -> String {
        let ran = self.crabbox(&["warmup", "--slug", slug, "--json"]).exits(0);
        ran.json()["leaseId"].as_str().unwrap().to_owned()
    }

    /// What discovery says about docker-sandbox.
    #[track_caller]
    pub(crate) fn docker_sandbox(&self) -> Value {
        let all = self.crabbox(&["providers", "--json"]).exits(0).json();
        let mut all = all.as_array().unwrap().iter();
        all.find(|one| one["provider"] == "docker-sandbox")
            .unwrap()
            .clone()
    }

    // The stand-in.

    pub(crate) fn behave(&self, key: &str, text: &str) {
        write(&self.path("engine/behave").join(key), text);
    }

    pub(crate) fn behave_well(&self, key: &str) {
        fs::remove_file(self.path("engine/behave").join(key)).unwrap();
    }

    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("engine/log.jsonl")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(crate) fn events(&self, event: &str) -> Vec<Value> {
        let mut all = self.log();
        all.retain(|entry| entry["event"] == event);
        all
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        let argv = |entry: Value| entry["argv"].as_array().unwrap().iter().map(text).collect();
        let calls = self.events("call").into_iter();
        calls.map(|entry| Call { argv: argv(entry) }).collect()
    }

    /// The only call of this verb.
    #[track_caller]
    pub(crate) fn call(&self, verb: &str) -> Call {
        let mut calls = self.calls();
        calls.retain(|call| call.verb() == verb);
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls.remove(0)
    }

    pub(crate) fn count(&self, verb: &str) -> usize {
        self.calls()
            .iter()
            .filter(|call| call.verb() == verb)
            .count()
    }

    pub(crate) fn forget_calls(&self) {
        write(&self.path("engine/log.jsonl"), "");
    }

    /// The env files that commands were given.
    pub(crate) fn env_files(&self) -> Vec<Value> {
        self.events("env")
    }

    pub(crate) fn sandboxes(&self) -> Vec<String> {
        names(&self.path("engine/sandboxes"), ".json")
    }

    /// One that no claim names.
    pub(crate) fn foreign_sandbox(&self, name: &str) {
        let one = serde_json::json!({"name": name, "status": "running", "agent": "shell", "workspace": "/"});
        write(
            &self.path("engine/sandboxes").join(format!("{name}.json")),
            one.to_string(),
        );
    }

    pub(crate) fn lose_sandbox(&self, name: &str) {
        fs::remove_file(self.path("engine/sandboxes").join(format!("{name}.json"))).unwrap();
    }

    /// Holds the stand-in up in a call of this verb.
    pub(crate) fn gate(&self, verb: &str, when: &str) -> Barrier {
        let open = |end: &str| {
            let path = self.path("engine").join(format!("gate-{verb}.{end}"));
            let made = Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap()
        };
        let gate = Barrier {
            reached: open("reached"),
            go: open("go"),
        };
        self.behave(&format!("gate-{verb}"), when);
        gate
    }

    // Our own files.

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state/crabbox")
    }

    pub(crate) fn claim_names(&self) -> Vec<String> {
        names(&self.state().join("claims"), ".json")
    }

    pub(crate) fn claim(&self, lease: &str) -> Value {
        let bytes = fs::read(self.claim_path(lease)).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    pub(crate) fn claim_path(&self, lease: &str) -> PathBuf {
        self.state().join("claims").join(format!("{lease}.json"))
    }

    pub(crate) fn edit_claim(&self, lease: &str, edit: impl FnOnce(&mut Value)) {
        let mut claim = self.claim(lease);
        edit(&mut claim);
        write(&self.claim_path(lease), claim.to_string());
    }

    /// Its idle time is over.
    pub(crate) fn age(&self, lease: &str) {
        self.edit_claim(lease, |claim| {
            claim["lastUsedAt"] = "2020-01-01T00:00:00Z".into()
        });
    }

    pub(crate) fn env_dir(&self) -> Vec<String> {
        names(&self.state().join("env"), "")
    }

    pub(crate) fn user_config(&self, yaml: &str) {
        let path = self.path("config/crabbox/config.yaml");
        write(&path, yaml);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub(crate) fn repo_config(&self, yaml: &str) {
        write(&self.repo().join(".crabbox.yaml"), yaml);
    }

    /// Nothing is left of any run.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.sandboxes(), [""; 0]);
        assert_eq!(self.claim_names(), [""; 0]);
        assert_eq!(self.env_dir(), [""; 0]);
    }

    /// What differs from run to run is shown by its name, as long as this lives.
    pub(crate) fn snapshots(&self) -> insta::internals::SettingsBindDropGuard {
        let mut settings = insta::Settings::clone_current();
        let dir = self.dir.path().canonicalize().unwrap();
        settings.add_filter(&dir.display().to_string(), "[world]");
        settings.add_filter(r"crabbox-my-app-[0-9a-f]{6}", "crabbox-my-app-[id]");
        settings.add_filter(r"run_[0-9a-f]{12}", "run_[id]");
        settings.add_filter(r"\b(amber|blue|brisk|coral|crimson|golden|harbor|jade|pearl|quick|silver|swift|tidal|violet)-[a-z]+-[0-9a-f]{8}(-[0-9a-f]{4})?\b", "[slug]");
        settings.add_filter(r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z", "[time]");
        settings.add_filter(r#""([a-zA-Z]*(?:Ms|ms))": ?\d+"#, r#""$1":[ms]"#);
        settings.add_filter(
            r"\b(lease|command|release|other|total|idle_for)=\d[0-9hms.µn]*",
            "$1=[time]",
        );
        settings.add_filter(r#"("idleFor": )"[^"]+""#, "$1\"[time]\"");
        settings.add_filter(r" +\d+ms ", " [ms] ");
        settings.add_filter(r#""path":"[^"]*/git""#, r#""path":"[git]""#);
        settings.add_filter(r"sha256:[0-9a-f]{64}", "sha256:[hash]");
        settings.add_filter(&regex_literal(env!("CARGO_PKG_VERSION")), "[version]");
        settings.bind_to_scope()
    }
}

fn regex_literal(text: &str) -> String {
    text.replace('.', r"\.")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn names(dir: &Path, suffix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        name.strip_suffix(suffix).map(str::to_owned)
    };
    let mut names: Vec<_> = entries.flatten().filter_map(name).collect();
    names.sort();
    names
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits for the end and takes what was written.
pub(crate) fn end(child: Child) -> Ran {
    Ran::from(child.wait_with_output().unwrap())
}
