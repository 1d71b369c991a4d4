//! The same program on our own engine, where it can run here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{OnTerminal, Ran, Terminal, World, blocked, on_terminal, python, signal, write};

/// A world with our engine in it; ended with it.
pub(crate) struct Own {
    pub(crate) world: World,
    sbx: PathBuf,
    /// Where the engine finds its state directory by itself.
    finds_state: bool,
    user: Option<OtherUser>,
}

/// One of the users that `scripts/test-users` makes, and copies of the programs that every user may execute.
struct OtherUser {
    uid: u32,
    gid: u32,
    name: &'static str,
    crabbox: PathBuf,
}

impl Own {
    /// `None` where there is no engine, or where it cannot work.
    pub(crate) fn new() -> Option<Self> {
        let own = Self::unused(false)?;
        let repo = own.world.repo().display().to_string();
        let made = own.sbx(&["create", "--name", "probe", "shell", &repo]);
        let ran = own.sbx(&["exec", "probe", "true"]);
        if (made.code != 0 || ran.code != 0) && !own.can_work() {
            blocked(format!("{} {}", made.err.trim(), ran.err.trim()));
            return None;
        }
        made.exits(0);
        ran.exits(0);
        own.sbx(&["rm", "--force", "probe"]).exits(0);
        Some(own)
    }

    /// Whether the engine's own trial of a sandbox works here. A user may be forbidden some of it; root is not.
    pub(crate) fn can_work(&self) -> bool {
        if self.user.is_none() && rustix::process::geteuid().is_root() {
            return true;
        }
        let diagnosed = self.sbx(&["diagnose", "--output", "json"]).json();
        let checks = diagnosed["checks"].as_array().unwrap();
        let mut trials = checks
            .iter()
            .filter(|check| check["name"] == "Sandbox trial");
        trials.all(|check| check["status"] != "fail")
    }

    /// One that was never used. `finds_state`: nothing says where its state directory is.
    pub(crate) fn unused(finds_state: bool) -> Option<Self> {
        let beside = Path::new(env!("CARGO_BIN_EXE_crabbox")).parent().unwrap();
        let sbx = beside.join("sbx");
        if !sbx.exists() || !beside.join("sandboxd").exists() {
            blocked("sbx is not built");
            return None;
        }
        Some(Self {
            world: World::without_sbx(),
            sbx,
            finds_state,
            user: None,
        })
    }

    /// The same as another user, who has nothing but a home and a repository. `None` where there is no such user, or where
    /// the caller cannot be that user.
    pub(crate) fn of_user(name: &'static str) -> Option<Self> {
        let id = |flag: &str| {
            let said = Command::new("id").args([flag, name]).output().unwrap();
            String::from_utf8(said.stdout).unwrap().trim().parse().ok()
        };
        let (Some(uid), Some(gid)) = (id("-u"), id("-g")) else {
            blocked(format!("no user {name}: run scripts/test-users"));
            return None;
        };
        if !rustix::process::geteuid().is_root() {
            blocked(format!("only root can be {name}"));
            return None;
        }
        let mut own = Self::unused(false)?;
        let programs = own.world.path("programs");
        std::fs::create_dir(&programs).unwrap();
        let built = own.sbx.parent().unwrap().to_owned();
        let names = ["crabbox", "sbx", "sandboxd", "sbx-init", "sbx-sudo"];
        let copied = Command::new("cp")
            .args(names.map(|name| built.join(name)))
            .arg(&programs)
            .status();
        assert!(copied.unwrap().success());
        let owned = Command::new("chown")
            .args(["-R", &format!("{uid}:{gid}")])
            .arg(own.world.path(""))
            .status();
        assert!(owned.unwrap().success());
        own.sbx = programs.join("sbx");
        own.user = Some(OtherUser {
            uid,
            gid,
            name,
            crabbox: programs.join("crabbox"),
        });
        Some(own)
    }

    /// The program as the world has it, or as the other user has it.
    fn become_user(&self, command: Command) -> Command {
        use std::os::unix::process::CommandExt as _;
        let Some(user) = &self.user else {
            return command;
        };
        let ours = Path::new(command.get_program()) == self.sbx;
        let program = if ours { &self.sbx } else { &user.crabbox };
        let mut own = Command::new(program);
        own.args(command.get_args()).env_clear();
        own.current_dir(self.world.repo())
            .stdin(std::process::Stdio::null());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                own.env(name, value);
            }
        }
        own.env("USER", user.name).uid(user.uid).gid(user.gid);
        own
    }

    fn environment(&self, command: &mut Command) {
        command.env("XDG_RUNTIME_DIR", self.world.path("home"));
        if !self.finds_state {
            command.env("SBX_HOME", self.world.path("sbx-home"));
        }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.world.command(args);
        self.environment(&mut command);
        self.become_user(command)
    }

    pub(crate) fn crabbox(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    pub(crate) fn sbx(&self, args: &[&str]) -> Ran {
        let mut command = self.world.command(&[]);
        let mut own = Command::new(&self.sbx);
        own.args(args).current_dir(self.world.repo()).env_clear();
        for (name, value) in command.env("RUST_BACKTRACE", "0").get_envs() {
            if let Some(value) = value {
                own.env(name, value);
            }
        }
        self.environment(&mut own);
        Ran::from(self.become_user(own).output().unwrap())
    }

    /// The environment of a shell in this world.
    pub(crate) fn prepare(&self, command: &mut Command) {
        let ours = self.world.command(&[]);
        command.current_dir(self.world.repo()).env_clear();
        for (name, value) in ours.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        self.environment(command);
    }

    #[track_caller]
    pub(crate) fn is_clean(&self) {
        let list = self.sbx(&["ls", "--json"]).exits(0).json();
        let sandboxes = list
            .get("sandboxes")
            .unwrap_or(&list)
            .as_array()
            .unwrap()
            .clone();
        assert!(sandboxes.is_empty(), "{sandboxes:?}");
        assert_eq!(self.world.claim_names(), [""; 0]);
        assert_eq!(self.world.env_dir(), [""; 0]);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.sbx(&["daemon", "stop"]);
    }
}

#[test]
fn a_run_with_nothing_configured_uses_the_engine_beside_us() {
    let Some(own) = Own::new() else { return };
    let ran = own
        .crabbox(&["run", "--", "sh", "-c", "pwd; cat README; exit 7"])
        .exits(7);
    assert_eq!(ran.out, format!("{}\nhello\n", own.world.repo().display()));
    assert_eq!(ran.cause(), "docker-sandbox run exited 7");
    own.crabbox(&["run", "--", "sh", "-c", "exit 125"])
        .exits(125);
    own.is_clean();
    let doctor = own.crabbox(&["doctor"]).exits(0);
    assert!(doctor.out.contains("found=bundled"), "{}", doctor.out);
    assert!(
        doctor.out.contains("sbx_compatibility=ok contract=0.31.3"),
        "{}",
        doctor.out
    );
}

#[test]
fn commits_in_a_linked_worktree_need_git_write() {
    let Some(own) = Own::new() else { return };
    let git = |directory: &Path, words: &[&str]| {
        let mut git = Command::new("git");
        own.prepare(&mut git);
        git.args(["-c", "user.name=Host", "-c", "user.email=host@example.test"]);
        git.arg("-C").arg(directory).args(words);
        Ran::from(git.output().unwrap()).exits(0)
    };
    let repo = own.world.repo();
    git(&repo, &["init", "-q"]);
    git(&repo, &["add", "README"]);
    git(&repo, &["commit", "-q", "--allow-empty", "-m", "first"]);
    let linked = own.world.path("linked");
    git(&repo, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    let run = |flags: &[&str]| {
        let commit = "echo x >new && git add new && \
                      git -c user.name=In -c user.email=in@example.test commit -q -m inside";
        let words = [&["run"], flags, &["--", "sh", "-c", commit]].concat();
        let mut command = own.world.command(&words);
        own.environment(&mut command);
        Ran::from(command.current_dir(&linked).output().unwrap())
    };
    let refused = run(&[]).exits(128);
    assert!(
        refused.err.contains("Read-only file system"),
        "{}",
        refused.err
    );
    run(&["--git-write"]).exits(0);
    assert_eq!(git(&linked, &["log", "-1", "--format=%s"]).out, "inside\n");
    assert_eq!(git(&linked, &["status", "--porcelain"]).out, "");
    // Nothing that comes with a repository may ask for it.
    let settings = linked.join(".crabbox.yaml");
    write(&settings, "dockerSandbox:\n  gitWrite: true\n");
    let untrusted = run(&[]);
    assert_ne!(untrusted.code, 0);
    assert!(untrusted.err.contains("gitWrite"), "{}", untrusted.err);
    own.is_clean();
}

#[test]
fn a_kept_lease_is_used_again_and_stopped() {
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "kept"]).exits(0);
    own.crabbox(&[
        "run",
        "--id",
        "kept",
        "--",
        "sh",
        "-c",
        "echo x > /tmp/mark",
    ])
    .exits(0);
    assert_eq!(
        own.crabbox(&["run", "--id", "kept", "--", "cat", "/tmp/mark"])
            .ok(),
        "x\n"
    );
    let status = own
        .crabbox(&["status", "kept", "--wait", "--json"])
        .exits(0)
        .json();
    assert_eq!(status["ready"], true);
    let script = "printf %s \"$CRABBOX_SLUG\"";
    assert_eq!(
        own.crabbox(&["run", "--id", "kept", "--shell", script])
            .ok(),
        "kept"
    );
    own.crabbox(&["stop", "kept"])
        .exits(0)
        .says("released lease=");
    own.is_clean();
}

#[test]
fn a_sandbox_that_vanished_is_told_apart_from_a_command_that_failed() {
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "gone"]).exits(0);
    let sandbox = own
        .world
        .claim_names()
        .remove(0)
        .trim_start_matches("dsbx_")
        .to_owned();
    own.sbx(&["rm", "--force", &sandbox]).exits(0);
    own.crabbox(&["run", "--id", "gone", "--", "true"])
        .exits(4)
        .says("is not present in sbx inventory")
        .says("hint: crabbox stop --provider docker-sandbox gone");
    own.crabbox(&["stop", "gone"]).exits(0);
    own.is_clean();
}

/// As a user has it who once installed something else of that name.
#[test]
fn a_kept_run_and_its_printed_stop_use_the_bundled_engine_with_another_sbx_in_path() {
    let Some(own) = Own::new() else { return };
    let other_engine = own.world.path("strange/sbx");
    write(&other_engine, "#!/bin/sh\nexit 9\n");
    std::fs::set_permissions(
        &other_engine,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        own.world.path("strange").display()
    );
    let crabbox = |args: &[&str]| {
        let mut command = own.world.command(args);
        own.environment(&mut command);
        Ran::from(command.env("PATH", &path).output().unwrap())
    };
    let output = own.world.path("lease.json").display().to_string();
    crabbox(&[
        "run",
        "--keep",
        "--slug",
        "k",
        "--lease-output",
        &output,
        "--",
        "true",
    ])
    .exits(0);
    let session: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    let stop = session["cleanupCommand"].as_str().unwrap();
    let words: Vec<_> = stop.split(' ').skip(1).collect();
    crabbox(&words).exits(0).says("released lease=");
    // What is not found inside is told as the cause.
    let ran = crabbox(&["run", "--", "no-such-program"]).exits(127);
    assert!(
        ran.cause().starts_with("docker-sandbox run exited 127: ")
            && ran.cause().contains("no-such-program"),
        "{}",
        ran.err
    );
    own.is_clean();
}

#[test]
fn ports_and_copies_reach_the_sandbox_of_a_lease() {
    use std::io::{Read, Write};
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "busy"]).exits(0);
    // There and back, by a relative path and through a directory.
    let repo = own.world.repo();
    own.crabbox(&["cp", "--id", "busy", "README", "sandbox:/tmp/read"])
        .exits(0);
    own.crabbox(&[
        "run",
        "--id",
        "busy",
        "--",
        "mkdir -p /tmp/d && cp /tmp/read /tmp/d && ln -s read /tmp/d/link",
    ])
    .exits(0);
    own.crabbox(&["cp", "--id", "busy", "-L", "sandbox:/tmp/d", "copied"])
        .exits(0);
    for name in ["read", "link"] {
        let copied = repo.join("copied").join(name);
        assert!(std::fs::symlink_metadata(&copied).unwrap().is_file());
        assert_eq!(std::fs::read_to_string(copied).unwrap(), "hello\n");
    }
    let missing = own
        .crabbox(&["cp", "--id", "busy", "sandbox:/none", "."])
        .exits(1);
    assert!(
        missing.err.contains("cannot open `/none`"),
        "{}",
        missing.err
    );
    // A server that outlives its run, on the sandbox's loopback.
    let server = "import socket; s = socket.create_server(('127.0.0.1', 8000)); c = s.accept()[0]; c.sendall(c.recv(9)); c.close()";
    let name = own.sbx(&["ls", "-q"]).exits(0).out.trim().to_owned();
    own.sbx(&["exec", "-d", &name, "/usr/bin/python3", "-c", server])
        .exits(0);
    let said = own
        .crabbox(&["ports", "--id", "busy", "--publish", "8000"])
        .exits(0);
    assert!(said.out.starts_with("Published 127.0.0.1:"), "{}", said.out);
    let ports = own
        .crabbox(&["ports", "--id", "busy", "--json"])
        .exits(0)
        .json();
    let port = u16::try_from(ports[0]["host_port"].as_u64().unwrap()).unwrap();
    assert_eq!(ports[0]["sandbox_port"], 8000);
    let mut answer = String::new();
    for _ in 0..600 {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let asked = stream.write_all(b"question\n");
        // Until it listens, a connection is reset.
        if asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && !answer.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(answer, "question\n");
    own.crabbox(&["ports", "--id", "busy", "--unpublish", "8000"])
        .exits(0);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    own.crabbox(&["stop", "busy"]).exits(0);
    own.is_clean();
}

impl Own {
    /// The same on a terminal.
    pub(crate) fn on_terminal(&self, args: &[&str]) -> (i32, String) {
        self.start_on_terminal(args).end()
    }

    pub(crate) fn start_on_terminal(&self, args: &[&str]) -> OnTerminal {
        on_terminal(self.command(args))
    }
}

#[test]
fn a_command_has_the_terminal_of_its_caller_and_is_recorded() {
    let Some(own) = Own::new() else { return };
    let script = "test -t 0 && test -t 1 && test -t 2 && echo three; echo oops >&2";
    let (code, shown) = own.on_terminal(&["run", "--", "sh", "-c", script]);
    assert_eq!(code, 0, "{shown}");
    // With one more `\r` if the terminal is no longer raw when the last of it is written.
    assert!(shown.contains("three\r"), "{shown}");
    assert!(shown.trim_end().ends_with("s  exit 0"), "{shown}");
    let log = own.crabbox(&["logs"]).exits(0);
    assert_eq!(log.out.replace('\r', ""), "three\noops\n");
    log.says("had a terminal: stdout and stderr are one stream");
    let (_, shown) = own.on_terminal(&["run", "--no-tty", "--", "sh", "-c", script]);
    assert!(!shown.contains("three"), "{shown}");
    own.is_clean();
}

#[test]
fn background_work_of_a_kept_lease_goes_on_until_its_idle_timeout() {
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "kept", "--idle-timeout", "40m"])
        .exits(0);
    let lease = own.world.claim_names().remove(0);
    let sandbox = lease.trim_start_matches("dsbx_");
    let shown = own.sbx(&["inspect", "--json", sandbox]).exits(0).json();
    let shown = shown.get(0).unwrap_or(&shown);
    assert_eq!(shown["idle_seconds"], 2400, "{shown}");
    // It outlives the engine's usual time: a sandbox that has no more than that stops meanwhile.
    own.sbx(&["settings", "set", "auto_stop_seconds", "1"])
        .exits(0);
    let background = "setsid sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/background";
    own.crabbox(&["run", "--id", "kept", "--", "sh", "-c", background])
        .exits(0);
    let repo = own.world.repo().display().to_string();
    own.sbx(&["create", "--name", "usual", "shell", &repo])
        .exits(0);
    own.sbx(&["exec", "usual", "true"]).exits(0);
    let inspected = |name: &str| {
        let shown = own.sbx(&["inspect", "--json", name]).exits(0).json();
        shown.get(0).unwrap_or(&shown).clone()
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while inspected("usual")["stop_reason"] != "idle" {
        assert!(std::time::Instant::now() < end, "{}", inspected("usual"));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let shown = inspected(sandbox);
    assert_eq!(shown["status"], "running", "{shown}");
    let alive = "kill -0 $(cat /tmp/background)";
    own.crabbox(&["run", "--id", "kept", "--", "sh", "-c", alive])
        .exits(0);
    own.sbx(&["rm", "--force", "usual"]).exits(0);
    own.crabbox(&["stop", "kept"]).exits(0);
    own.is_clean();
}

#[test]
fn a_detached_command_runs_in_the_sandbox_and_is_ended_by_force() {
    let Some(own) = Own::new() else { return };
    let script = "echo up; exec sleep 1000";
    let started = own.crabbox(&["run", "-d", "--slug", "bg", "--", "sh", "-c", script]);
    assert_eq!(started.exits(0).out, "bg\n");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while own.crabbox(&["logs", "bg"]).exits(0).out != "up\n" {
        assert!(std::time::Instant::now() < end, "no output");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    own.crabbox(&["stop", "--force", "bg"]).exits(0);
    // The supervisor ends, and with it what it had in use.
    let run = || own.crabbox(&["history", "--json"]).exits(0).json()["runs"][0].clone();
    while run()["runStatus"] == "running" {
        assert!(std::time::Instant::now() < end, "{}", run());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_ne!(run()["runStatus"], "succeeded");
    own.is_clean();
}

/// A program named `sbx` that writes down what it is called for, and then is our engine.
fn counting_engine(own: &Own) -> (String, impl Fn() -> Vec<String>) {
    let (program, calls) = (own.world.path("counting/sbx"), own.world.path("calls"));
    let script = format!(
        "#!/bin/sh\necho \"$1\" >>'{}'\nexec '{}' \"$@\"\n",
        calls.display(),
        own.sbx.display()
    );
    write(&program, &script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let made = move || {
        let text = std::fs::read_to_string(&calls).unwrap();
        std::fs::remove_file(&calls).unwrap();
        // A script may start another program each time; what is known of a program is kept.
        let all = text.lines().filter(|call| *call != "version");
        all.map(str::to_owned).collect()
    };
    (program.display().to_string(), made)
}

#[test]
fn a_run_is_three_calls_of_our_engine() {
    let Some(own) = Own::new() else { return };
    let (program, calls) = counting_engine(&own);
    let run = |script: &str| {
        let words = ["run", "--docker-sandbox-cli", &program, "--", "bash", "-c"];
        own.crabbox(&[&words[..], &[script]].concat())
    };
    run("true").exits(0);
    assert_eq!(calls(), ["create", "exec", "rm"]);
    run("exit 3").exits(3);
    assert_eq!(calls(), ["create", "exec", "rm"]);
    // Only a denial is asked about, also of a command that succeeds.
    run("exec 3<>/dev/tcp/denied.example/443 || true")
        .says("warning: the network policy denied denied.example:443")
        .says("policy allow network --repo ");
    assert_eq!(calls(), ["create", "exec", "policy", "rm"]);
    own.is_clean();
}

/// The slug of a lease is the directory's name, which is found without git. Only the engine asks git: who the user is.
#[test]
fn a_run_starts_no_git_for_a_name() {
    let Some(own) = Own::new() else { return };
    let repo = own.world.repo();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        own.prepare(&mut git);
        Ran::from(git.args(words).output().unwrap()).exits(0)
    };
    git(&["init", "-q"]);
    git(&[
        "remote",
        "add",
        "origin",
        "https://example.test/a/other.git",
    ]);
    let calls = own.world.path("calls");
    let script = format!("#!/bin/sh\necho \"$*\" >>'{}'\n", calls.display());
    let shim = own.world.path("shim/git");
    write(&shim, &script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&shim, mode).unwrap();
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        own.world.path("shim").display()
    );
    let run = |directory: &Path| {
        let mut command = own.command(&["run", "--", "true"]);
        command.current_dir(directory).env("PATH", &path);
        Ran::from(command.output().unwrap()).exits(0)
    };
    let below = repo.join("below");
    std::fs::create_dir(&below).unwrap();
    for directory in [&repo, &below] {
        run(directory);
        let made = std::fs::read_to_string(&calls).unwrap();
        std::fs::remove_file(&calls).unwrap();
        let asked = |call: &str| call.starts_with("config ") && call.contains("user");
        assert!(made.lines().all(asked), "{made}");
    }
    own.is_clean();
}

#[test]
fn a_removal_that_our_engine_refuses_keeps_the_lease() {
    let Some(own) = Own::new() else { return };
    let (program, _) = counting_engine(&own);
    let flag = ["--docker-sandbox-cli", &program];
    own.crabbox(&[&["warmup", "--slug", "kept"], &flag[..]].concat())
        .exits(0);
    let whole = std::fs::read_to_string(&program).unwrap();
    let refusing = whole.replace(
        "exec ",
        "test \"$1\" = rm && echo error: no >&2 && exit 1\nexec ",
    );
    write(Path::new(&program), &refusing);
    let stop = || own.crabbox(&[&["stop", "kept"], &flag[..]].concat());
    let failed = stop().exits(1);
    assert_eq!(own.world.claim_names().len(), 1);
    write(Path::new(&program), &whole);
    // What the hint says works as it is, in a shell that knows nothing of this engine.
    let hint = failed.err.lines().find_map(|line| {
        let command = line.strip_prefix("hint: run `")?;
        command.strip_suffix("` to retry cleanup")
    });
    let hint = hint.unwrap_or_else(|| panic!("no hint: {}", failed.err));
    assert!(hint.contains(&program), "{hint}");
    let mut typed = Command::new("sh");
    typed.args(["-c", hint]);
    own.prepare(&mut typed);
    Ran::from(typed.env_remove("SBX_HOME").output().unwrap()).exits(0);
    assert_eq!(own.sbx(&["ls", "-q"]).exits(0).out, "");
    stop().exits(0).says("released lease=");
    own.is_clean();
}

#[test]
fn a_denied_run_names_a_command_that_works_for_the_next_one() {
    let Some(own) = Own::new() else { return };
    // No such host: what matters is who refuses it.
    let script = "exec 3<>/dev/tcp/denied.example/443";
    let run = ["run", "--", "bash", "-c", script];
    let ran = own.crabbox(&run);
    assert_ne!(ran.code, 0);
    let denied = "warning: the network policy denied denied.example:443";
    let ran = ran.says(denied);
    let hint = ran.err.lines().find_map(|line| line.strip_prefix("hint: "));
    let hint = hint.unwrap_or_else(|| panic!("no hint: {}", ran.err));
    assert!(hint.contains("policy allow network --repo "), "{hint}");
    let mut allow = Command::new("sh");
    allow.args(["-c", hint]);
    own.prepare(&mut allow);
    let allowed = Ran::from(allow.output().unwrap()).exits(0);
    assert!(
        allowed.out.contains("denied.example:443"),
        "{}",
        allowed.out
    );
    own.crabbox(&run).never_says("the network policy denied");
    own.is_clean();
}

#[test]
fn a_build_cache_lasts_from_one_run_to_the_next() {
    let Some(own) = Own::new() else { return };
    let run = |flags: &[&str], script: &str| {
        let args = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        own.crabbox(&args)
    };
    let said = own.crabbox(&["cache", "ls"]).exits(0);
    assert_eq!(said.out, "");
    let write = "mkdir -p ~/.cache/tool && echo kept > ~/.cache/tool/file && echo x > ~/elsewhere";
    run(&["--cache"], write)
        .exits(0)
        .says("using the build cache of");
    let read = "cat ~/.cache/tool/file; ! test -e ~/elsewhere";
    assert_eq!(run(&["--cache"], read).ok(), "kept\n");
    run(&[], "! test -e ~/.cache/tool")
        .exits(0)
        .never_says("build cache");
    let shown = own.crabbox(&["cache", "ls", "--json"]).exits(0).json();
    let repo = own.world.repo().display().to_string();
    assert_eq!(shown["caches"][0]["workspace"], repo.as_str());
    // A lease that has it is named.
    own.crabbox(&["warmup", "--cache", "--slug", "holds"])
        .exits(0);
    let busy = own.crabbox(&["cache", "clear"]).exits(1);
    assert!(
        busy.cause().contains("is in use by sandbox"),
        "{}",
        busy.err
    );
    busy.says("hint: crabbox stop holds");
    own.crabbox(&["stop", "holds"]).exits(0);
    let cleared = own.crabbox(&["cache", "clear", "."]).exits(0);
    assert_eq!(cleared.out, format!("cleared {repo}\n"));
    run(&["--cache"], "! test -e ~/.cache/tool").exits(0);
    own.is_clean();
}

#[test]
fn cpus_and_memory_reach_the_engine() {
    let Some(own) = Own::new() else { return };
    let limits = [
        "--docker-sandbox-cpus",
        "1",
        "--docker-sandbox-memory",
        "512m",
    ];
    let made = own.crabbox(&[&["warmup", "--slug", "small"], &limits[..]].concat());
    if made.code != 0 && made.err.contains("cannot enforce") {
        // An ordinary user without a control group of its own: it is told why.
        made.says("hint: run sbx as root");
        blocked("no control group can be used here");
        return own.is_clean();
    }
    made.exits(0);
    let lease = own.world.claim_names().remove(0);
    let sandbox = lease.trim_start_matches("dsbx_");
    let shown = own.sbx(&["inspect", "--json", sandbox]).exits(0).json();
    let shown = shown.get(0).unwrap_or(&shown);
    assert_eq!(shown["limits"]["cpu_millis"], 1000, "{shown}");
    assert_eq!(shown["limits"]["memory_bytes"], 512 << 20, "{shown}");
    own.crabbox(&["stop", "small"]).exits(0);
    own.is_clean();
}

/// More than any machine has: what cannot be enforced wherever this runs.
const TOO_MANY: &str = "100000";

#[test]
fn limits_of_a_repository_are_best_effort_with_one_warning() {
    let Some(own) = Own::new() else { return };
    let yaml = format!("dockerSandbox:\n  cpus: {TOO_MANY}\n");
    own.world.repo_config(&yaml);
    let ran = own.crabbox(&["run", "--", "true"]).exits(0);
    let told = |line: &&str| line.starts_with("warning: ") && line.contains("does not apply");
    let warnings: Vec<&str> = ran.err.lines().filter(told).collect();
    assert_eq!(warnings.len(), 1, "{}", ran.err);
    assert!(warnings[0].contains("CPUs"), "{}", ran.err);
    own.is_clean();
}

#[test]
fn limits_of_the_user_are_enforced_or_refused() {
    let Some(own) = Own::new() else { return };
    let refused = |ran: Ran| {
        assert_ne!(ran.code, 0, "{}", ran.err);
        assert!(!ran.err.contains("does not apply"), "{}", ran.err);
        own.is_clean();
    };
    refused(own.crabbox(&["run", "--docker-sandbox-cpus", TOO_MANY, "--", "true"]));
    let mut by_variable = own.command(&["run", "--", "true"]);
    by_variable.env("CRABBOX_DOCKER_SANDBOX_CPUS", TOO_MANY);
    refused(Ran::from(by_variable.output().unwrap()));
    // Also where the repository says the same: the user's word is the stronger one.
    let yaml = format!("dockerSandbox:\n  cpus: {TOO_MANY}\n");
    own.world.repo_config(&yaml);
    refused(own.crabbox(&["run", "--docker-sandbox-cpus", TOO_MANY, "--", "true"]));
    std::fs::remove_file(own.world.repo().join(".crabbox.yaml")).unwrap();
    own.world.user_config(&yaml);
    refused(own.crabbox(&["run", "--", "true"]));
}

/// Whether a process has this word in its command line, in a sandbox or not.
fn is_running(mark: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap();
    let lines = all.filter_map(|entry| std::fs::read(entry.unwrap().path().join("cmdline")).ok());
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.any(|line| line.split('\0').any(|word| word == mark))
}

#[test]
fn signals_and_a_closed_terminal_end_the_command_the_lease_and_the_env_file() {
    use rustix::process::Signal;
    use std::io::Read as _;
    use std::process::Stdio;
    let Some(own) = Own::new() else { return };
    let lead = "import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])";
    for (number, (sent, code)) in [
        (Some(Signal::HUP), 129),
        (Some(Signal::TERM), 143),
        (None, 129),
    ]
    .into_iter()
    .enumerate()
    {
        let mark = format!("{}.{}", 5000 + number, std::process::id());
        let script = format!("echo begun; exec sleep {mark}");
        let command = own.command(&["run", "-e", "MARK=x", "--", "sh", "-c", &script]);
        let (mut child, mut shown) = match sent {
            Some(_) => {
                let mut command = command;
                command.stdin(Stdio::null()).stdout(Stdio::piped());
                let mut child = command.stderr(Stdio::null()).spawn().unwrap();
                let stdout = std::os::fd::OwnedFd::from(child.stdout.take().unwrap());
                (child, std::fs::File::from(stdout))
            }
            // As a terminal emulator starts a shell: what leads the session of a terminal is told that it is closed.
            None => {
                let Terminal { ours, theirs } = Terminal::open();
                let mut leader = Command::new(python());
                leader.args(["-c", lead]).arg(command.get_program());
                leader.args(command.get_args());
                own.prepare(&mut leader);
                leader
                    .stdin(theirs.try_clone().unwrap())
                    .stdout(theirs.try_clone().unwrap());
                let child = leader.stderr(theirs).spawn().unwrap();
                (child, std::fs::File::from(ours))
            }
        };
        let (mut said, mut bytes) = (String::new(), [0; 4096]);
        while !said.contains("begun") {
            let count = shown.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "{said}");
            said.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        assert_eq!(own.world.env_dir().len(), 1);
        match sent {
            Some(sent) => signal(&child, sent),
            None => drop(shown),
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "{sent:?}");
        own.is_clean();
        assert!(!is_running(&mark), "{sent:?}");
    }
}

/// Programs read the provider's name; people have not chosen one.
#[test]
fn failures_on_a_terminal_name_the_engine() {
    let Some(own) = Own::new() else { return };
    let (code, shown) = own.on_terminal(&["run", "--", "no-such-program"]);
    assert_eq!(code, 127, "{shown}");
    assert!(
        shown.contains("error: bundled engine: run exited 127: "),
        "{shown}"
    );
    assert!(!shown.contains("docker-sandbox"), "{shown}");
    own.crabbox(&["warmup", "--slug", "gone"]).exits(0);
    let lease = own.world.claim_names().remove(0);
    let sandbox = lease.trim_start_matches("dsbx_");
    own.sbx(&["rm", "--force", sandbox]).exits(0);
    let run = ["run", "--id", "gone", "--", "true"];
    let (_, shown) = own.on_terminal(&run);
    let told = format!("error: bundled engine: sandbox {sandbox:?} is not present");
    assert!(shown.contains(&told), "{shown}");
    own.crabbox(&run)
        .exits(4)
        .says("error: docker-sandbox sandbox ");
    own.crabbox(&["stop", "gone"]).exits(0);
    for (args, told) in [
        (
            &["stop", "nope"][..],
            "error: bundled engine: sandbox \"nope\" is not claimed",
        ),
        (
            &["status", "nope"],
            "error: bundled engine: sandbox \"nope\" is not claimed",
        ),
        (
            &["run", "--docker-sandbox-workdir", "/", "--", "true"],
            "error: bundled engine: workdir `/` is too broad",
        ),
        (&["cleanup"], "bundled engine: cleanup removed=0 checked=0"),
    ] {
        let (_, shown) = own.on_terminal(args);
        assert!(shown.contains(told), "{args:?}: {shown}");
        let piped = own.crabbox(args);
        let piped = piped.out + &piped.err;
        let told = told.replace("bundled engine:", "docker-sandbox");
        assert!(piped.contains(&told), "{args:?}: {piped}");
    }
    let help = own.crabbox(&["run", "--help"]).exits(0).out;
    assert!(help.contains("\nBundled engine:\n"), "{help}");
    assert!(!help.contains("docker-sandbox:"), "{help}");
    own.is_clean();
}
