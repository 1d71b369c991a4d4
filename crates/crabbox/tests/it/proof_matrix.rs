//! The proof matrix of the provider's document, row by row.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::world::{Ran, World};

/// A script of the repository, with this build and the stand-in as the program that is named.
///
/// It works in the directory above its own, and git refuses one that belongs to another user, as this checkout may:
/// so the world's repository has a copy.
fn smoke(world: &World, name: &str, env: &[(&str, &str)]) -> Ran {
    smoke_with(world, name, env, &[])
}

fn smoke_with(world: &World, name: &str, env: &[(&str, &str)], flags: &[&str]) -> Ran {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let copied = Command::new("cp")
        .arg("-r")
        .args([&scripts, &world.repo()])
        .status()
        .unwrap();
    assert!(copied.success());
    let program = build_bin(world);
    let mut command = Command::new("bash");
    command
        .arg(world.repo().join("scripts").join(name))
        .args(flags)
        .env_clear();
    for (name, value) in world.command(&[]).get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
        .env("CRABBOX_BIN", program)
        .envs(env.iter().copied());
    Ran::from(command.output().unwrap())
}

/// `bin/crabbox` of the world's repository, from this build.
fn build_bin(world: &World) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_crabbox")).parent().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-bin");
    let copy = world.repo().join("scripts/build-bin");
    std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
    if !copy.exists() {
        // By another process: a file that is open for writing here could not be executed.
        let copied = Command::new("cp").arg(script).arg(&copy).status();
        assert!(copied.unwrap().success());
    }
    let built = Command::new(&copy).arg(built).status();
    assert!(built.unwrap().success());
    world.repo().join("bin/crabbox")
}

/// The stand-in, not in PATH.
fn elsewhere(world: &World) -> String {
    let program = world.path("elsewhere/sbx");
    std::fs::create_dir(program.parent().unwrap()).unwrap();
    std::fs::rename(world.path("bin/sbx"), &program).unwrap();
    program.display().to_string()
}

#[test]
fn row_01_fresh_local_cli_build() {
    let world = World::without_sbx();
    let ignored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.gitignore");
    std::fs::copy(ignored, world.repo().join(".gitignore")).unwrap();
    let program = build_bin(&world);
    world.git(&["add", "--all"]);
    let said = Command::new(&program).arg("--version").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.trim(), env!("CARGO_PKG_VERSION"));
    // The build leaves nothing in git.
    let listed = Command::new("git")
        .args(["ls-files", "bin"])
        .current_dir(world.repo())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "");
}

#[test]
fn row_02_provider_discovery() {
    let world = World::without_sbx();
    let docker = world.docker_sandbox();
    assert_eq!(docker["family"], "docker-sandbox");
    assert_eq!(docker["kind"], "delegated-run");
    assert_eq!(docker["targets"], json!(["linux"]));
    assert_eq!(docker["coordinator"], "never");
    assert!(
        docker["features"]
            .as_array()
            .unwrap()
            .contains(&json!("run-session"))
    );
}

#[test]
fn row_03_config_upgrade_surface() {
    let world = World::without_sbx();
    let shown = world.crabbox(&["config", "show", "--json"]).exits(0).json();
    assert_eq!(
        shown["dockerSandbox"],
        json!({
            "cliPath": "sbx", "agent": "shell", "template": "", "cpus": 0, "memory": "", "clone": false, "gitWrite": false,
            "workdir": "", "extraWorkspaces": [], "mcp": [], "kit": [],
        })
    );
}

#[test]
fn row_04_alternate_sbx_path() {
    let world = World::new();
    let cli = elsewhere(&world);
    let env = [("CRABBOX_DOCKER_SANDBOX_CLI", cli.as_str())];
    let ran = world
        .with_env(&env, &["doctor", "--provider", "docker-sandbox"])
        .exits(0);
    assert!(
        ran.out
            .contains(&format!("program={cli} found=dockerSandbox.cliPath")),
        "{}",
        ran.out
    );
    let ran = world
        .crabbox(&["doctor", "--docker-sandbox-cli", &cli])
        .exits(0);
    assert!(ran.out.contains(&cli), "{}", ran.out);
    world.user_config(&format!("dockerSandbox:\n  cliPath: {cli}\n"));
    assert!(world.crabbox(&["doctor"]).exits(0).out.contains(&cli));
}

#[test]
fn row_05_missing_cli_or_login() {
    let world = World::without_sbx();
    let args = ["doctor", "--provider", "docker-sandbox"];
    let ran = Ran::from(world.alone(&args).output().unwrap()).exits(1);
    ran.says("install the standalone sbx CLI, or set dockerSandbox.cliPath");
    let world = World::new();
    world.behave("fail-before-ls", "1\nERROR: not logged in");
    world
        .crabbox(&args)
        .exits(1)
        .says("run `sbx login` and retry");
}

#[test]
fn row_06_host_and_runtime_blockers() {
    let world = World::new();
    let virtualization = "hint: enable host virtualization";
    for (said, hint) in [
        ("virtualization is disabled", virtualization),
        ("hypervisor not found", virtualization),
        ("/dev/kvm is missing", virtualization),
        (
            "control plane did not answer: timed out",
            "hint: the sandbox control plane did not respond",
        ),
        ("account quota exceeded", ""),
        ("no capacity", ""),
    ] {
        world.behave("fail-before-ls", &format!("1\n{said}"));
        let ran = world
            .crabbox(&["doctor", "--provider", "docker-sandbox"])
            .exits(1);
        assert!(ran.out.contains(said), "{}", ran.out);
        assert_eq!(ran.cause(), "doctor found problems");
        ran.says(hint);
    }
}

#[test]
fn row_07_clone_mode() {
    let world = World::new();
    let linked = world.path("linked");
    world.git(&["worktree", "add", "-q", linked.to_str().unwrap()]);
    let warmup = [
        "warmup",
        "--provider",
        "docker-sandbox",
        "--docker-sandbox-clone",
    ];
    world
        .within(&linked, &warmup)
        .exits(2)
        .says("linked Git worktrees are not supported");
    world
        .within(&world.path("home"), &warmup)
        .exits(2)
        .says("requires a normal Git repository workspace");
    assert_eq!(world.count("create"), 0);
    world.crabbox(&warmup).exits(0);
    assert!(
        world.call("create").line().contains(" --clone shell "),
        "{}",
        world.call("create").line()
    );
}

#[test]
fn row_08_unsupported_delegated_flags() {
    let world = World::new();
    for flags in [
        &["--docker-sandbox-agent", "claude"][..],
        &["--desktop"],
        &["--tailscale"],
        &["--class", "x"],
        &["--type", "x"],
    ] {
        let args = [
            &["run", "--provider", "docker-sandbox"],
            flags,
            &["--", "true"],
        ]
        .concat();
        let ran = world.crabbox(&args).exits(2);
        assert!(ran.cause().contains("support"), "{}", ran.cause());
    }
    assert_eq!(world.calls().len(), 0);
    world
        .crabbox(&["run", "--docker-sandbox-mcp", "m", "--", "true"])
        .exits(0);
    assert!(world.call("create").line().contains("--mcp m"));
}

#[test]
fn row_09_live_lifecycle() {
    let world = World::new();
    let cli = elsewhere(&world);
    let env = [("CRABBOX_DOCKER_SANDBOX_CLI", cli.as_str())];
    let ran = smoke(&world, "live-docker-sandbox-smoke.sh", &env).exits(0);
    let last = ran.out.lines().last().unwrap();
    assert!(
        last.starts_with("classification=live_sbx_smoke_passed"),
        "{}",
        ran.show()
    );
    assert!(last.ends_with("cleanup=complete"), "{last}");
    world.is_clean();
    // And it never claims what it has not seen.
    world.behave("fail-before-create", "1\nquota exceeded");
    let ran = smoke(&world, "live-docker-sandbox-smoke.sh", &env);
    assert_ne!(ran.code, 0);
    ran.says("classification=quota_blocked")
        .never_says("smoke_passed");
    world.behave_well("fail-before-create");
    // What its own stop has to say comes before the result.
    world.behave("fail-before-exec", "125\nno capacity");
    world.behave("noop-rm", "yes");
    let ran = smoke(&world, "live-docker-sandbox-smoke.sh", &env);
    assert!(
        ran.last().starts_with("classification=quota_blocked"),
        "{}",
        ran.show()
    );
    ran.says("the sandbox may still be there");
    world.behave("fail-before-ls", "1\nnot logged in");
    let ran = smoke(&world, "live-docker-sandbox-smoke.sh", &env);
    assert_ne!(ran.code, 0);
    ran.says("classification=environment_blocked")
        .never_says("smoke_passed");
}

/// The script takes the program from wherever crabbox does.
#[test]
fn row_09_the_program_of_the_live_lifecycle_is_named_in_three_ways() {
    let world = World::new();
    let cli = elsewhere(&world);
    let script = "live-docker-sandbox-smoke.sh";
    let passed = |ran: Ran| {
        let ran = ran.exits(0);
        let last = ran.out.lines().last().unwrap_or_default();
        let word = "classification=live_sbx_smoke_passed";
        assert!(last.starts_with(word), "{}", ran.show());
        // Doctor, too, went to the one that was named.
        assert_eq!(world.count("diagnose"), 1);
        world.forget_calls();
        world.is_clean();
    };
    passed(smoke_with(
        &world,
        script,
        &[],
        &["--docker-sandbox-cli", &cli],
    ));
    world.user_config(&format!("dockerSandbox:\n  cliPath: {cli}\n"));
    passed(smoke(&world, script, &[]));
    world.user_config("dockerSandbox:\n  cliPath: /nonexistent/sbx\n");
    passed(smoke(
        &world,
        script,
        &[("CRABBOX_DOCKER_SANDBOX_CLI", &cli)],
    ));
}

#[test]
fn row_10_trust_boundary_handoff() {
    let world = World::without_sbx();
    let ran = smoke(&world, "docker-sandbox-trust-boundary-smoke.sh", &[]).exits(0);
    let last = ran.out.lines().last().unwrap();
    assert!(
        last.starts_with("classification=trust_boundary_proof_passed"),
        "{}",
        ran.show()
    );
    assert!(
        last.contains("env_value_in_argv=false env_value_received=true"),
        "{last}"
    );
}

#[test]
fn the_dispatcher_touches_nothing_unless_it_is_told_to() {
    let world = World::new();
    let ran = smoke(
        &world,
        "live-smoke.sh",
        &[("CRABBOX_LIVE_PROVIDERS", "docker-sandbox")],
    )
    .exits(0);
    assert!(
        ran.out.starts_with("classification=environment_blocked"),
        "{}",
        ran.show()
    );
    assert_eq!(world.calls().len(), 0);
    let env = [
        ("CRABBOX_LIVE", "1"),
        ("CRABBOX_LIVE_PROVIDERS", "docker-sandbox"),
    ];
    let ran = smoke(&world, "live-smoke.sh", &env).exits(0);
    assert!(
        ran.out.contains("classification=live_sbx_smoke_passed"),
        "{}",
        ran.show()
    );
}
