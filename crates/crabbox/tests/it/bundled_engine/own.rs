//! A world with our engine in it, of the caller or of another user.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{OnTerminal, Ran, World, blocked, on_terminal};

/// A world with our engine in it; ended with it.
pub(crate) struct Own {
    pub(crate) world: World,
    pub(super) sbx: PathBuf,
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

    pub(super) fn environment(&self, command: &mut Command) {
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

impl Own {
    /// The same on a terminal.
    pub(crate) fn on_terminal(&self, args: &[&str]) -> (i32, String) {
        self.start_on_terminal(args).end()
    }

    pub(crate) fn start_on_terminal(&self, args: &[&str]) -> OnTerminal {
        on_terminal(self.command(args))
    }
}
