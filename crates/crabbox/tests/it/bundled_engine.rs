//! The same program on our own engine, where it can run here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Ran, World};

/// A world with our engine in it; ended with it.
struct Own {
    world: World,
    sbx: PathBuf,
}

impl Own {
    /// `None` where there is no engine, or where it cannot work.
    fn new() -> Option<Self> {
        let beside = Path::new(env!("CARGO_BIN_EXE_crabbox")).parent().unwrap();
        let sbx = beside.join("sbx");
        if !sbx.exists() || !beside.join("sandboxd").exists() {
            eprintln!("environment_blocked: sbx is not built");
            return None;
        }
        let own = Self {
            world: World::without_sbx(),
            sbx,
        };
        let repo = own.world.repo().display().to_string();
        let made = own.sbx(&["create", "--name", "probe", "shell", &repo]);
        let ran = own.sbx(&["exec", "probe", "true"]);
        // A user may be forbidden what a sandbox needs; root is not.
        if (made.code != 0 || ran.code != 0) && !rustix::process::geteuid().is_root() {
            eprintln!(
                "environment_blocked: {} {}",
                made.err.trim(),
                ran.err.trim()
            );
            return None;
        }
        made.exits(0);
        ran.exits(0);
        own.sbx(&["rm", "--force", "probe"]).exits(0);
        Some(own)
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("SBX_HOME", self.world.path("sbx-home"))
            .env("XDG_RUNTIME_DIR", self.world.path("home"));
    }

    fn crabbox(&self, args: &[&str]) -> Ran {
        let mut command = self.world.command(args);
        self.environment(&mut command);
        Ran::from(command.output().unwrap())
    }

    fn sbx(&self, args: &[&str]) -> Ran {
        let mut command = self.world.command(&[]);
        let mut own = Command::new(&self.sbx);
        own.args(args).current_dir(self.world.repo()).env_clear();
        for (name, value) in command.env("RUST_BACKTRACE", "0").get_envs() {
            if let Some(value) = value {
                own.env(name, value);
            }
        }
        self.environment(&mut own);
        Ran::from(own.output().unwrap())
    }

    #[track_caller]
    fn is_clean(&self) {
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
        .says("is not present in sbx inventory");
    own.crabbox(&["stop", "gone"]).exits(0);
    own.is_clean();
}
