//! The numbered defects of the original, one by one: ours has none of them. Those of providers that are not here yet
//! (9 and 15) have theirs where those providers are.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use crate::world::{Ran, World, write};

#[test]
fn bug_01_every_part_of_a_failure_is_printed() {
    let world = World::new();
    // The sandbox is made, the call fails, and the removal fails as well.
    world.behave("fail-after-create", "1\nERROR: no space left on device");
    world.behave(
        "fail-before-rm",
        "1\nERROR: permission denied by the daemon",
    );
    let ran = world.crabbox(&["run", "--", "true"]).exits(1);
    let last = ran.cause();
    assert!(last.contains("no space left on device"), "{last}");
    assert!(
        last.contains("cleanup of lease dsbx_crabbox-my-app-"),
        "{last}"
    );
    assert!(last.contains("permission denied by the daemon"), "{last}");
    // What is still there keeps its claim, and the hints say how to end it.
    assert_eq!(world.sandboxes().len(), 1);
    assert_eq!(world.claim_names().len(), 1);
    ran.says("hint: crabbox stop --provider docker-sandbox ");
}

#[test]
fn bug_02_flags_for_test_results_are_refused_by_name() {
    let world = World::new();
    for flag in ["--junit=a.xml", "--results-auto", "--fail-on-test-failures"] {
        let ran = world.crabbox(&["run", flag, "--", "true"]).exits(2);
        let name = flag.split('=').next().unwrap();
        let words = format!("docker-sandbox delegates run execution; {name} is not supported");
        assert_eq!(ran.cause(), words);
    }
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn bug_03_an_empty_list_is_an_empty_array() {
    let world = World::new();
    assert_eq!(world.crabbox(&["list", "--json"]).ok(), "[]\n");
    assert_eq!(world.crabbox(&["list"]).ok(), "");
    world.warm("gone");
    let sandbox = world.sandboxes().remove(0);
    world.lose_sandbox(&sandbox);
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "missing");
    world.crabbox(&["stop", "gone"]).exits(0);
    assert_eq!(world.crabbox(&["list", "--json"]).ok(), "[]\n");
}

#[test]
fn bug_04_doctor_shows_every_check_after_one_fails() {
    let world = World::new();
    world.behave("fail-before-ls", "1\nboom");
    let ran = world.crabbox(&["doctor"]).exits(1);
    for check in [
        "config",
        "provider-selection",
        "git",
        "sbx_version",
        "sbx_inventory",
        "sbx_diagnose",
    ] {
        assert!(
            ran.out.contains(&format!(" {check} ")),
            "{check}: {}",
            ran.out
        );
    }
    assert!(ran.out.contains("failed  sbx_inventory"), "{}", ran.out);
    assert!(ran.out.contains("ok      sbx_diagnose"), "{}", ran.out);
    assert_eq!(ran.cause(), "doctor found problems");
}

#[test]
fn bug_05_the_repositorys_file_is_found_from_a_directory_below() {
    let world = World::new();
    world.repo_config("dockerSandbox:\n  template: from-the-root\n");
    let below = world.repo().join("a/b");
    fs::create_dir_all(&below).unwrap();
    // One that lies below the root is not the repository's.
    write(
        &below.join(".crabbox.yaml"),
        "dockerSandbox:\n  template: from-below\n",
    );
    world.within(&below, &["run", "--", "true"]).exits(0);
    let create = world.call("create").line();
    assert!(create.contains("--template from-the-root"), "{create}");
    assert!(
        create.ends_with(&format!("shell {}", world.repo().display())),
        "{create}"
    );
}

#[test]
fn bug_06_unknown_keys_and_bad_values_are_errors_with_their_place() {
    let world = World::new();
    world.repo_config("ttl: 30m\ndockerSandbox:\n  tmeplate: x\n");
    let ran = world.crabbox(&["run", "--", "true"]).exits(2);
    let file = world.repo().join(".crabbox.yaml").display().to_string();
    let ran = ran.says(&format!(
        "parse config {file}: line 3 column 3: unknown key `dockerSandbox.tmeplate`; did you mean `template`?"
    ));
    // The line itself, without a value that may be anything.
    assert!(ran.err.contains("3 |   tmeplate"), "{}", ran.err);
    for (yaml, said) in [
        ("ttl: soon\n", "ttl"),
        ("ttl: -5m\n", "ttl must be positive"),
        ("dockerSandbox:\n  cpus: many\n", "dockerSandbox.cpus"),
        ("dockerSandbox:\n  clone: perhaps\n", "dockerSandbox.clone"),
        ("dockerSandbox: [\n", ".crabbox.yaml"),
    ] {
        world.repo_config(yaml);
        world.crabbox(&["run", "--", "true"]).exits(2).says(said);
    }
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn bug_07_a_repository_cannot_choose_the_program() {
    let world = World::new();
    let evil = world.repo().join("evil");
    write(&evil, "#!/bin/sh\ntouch \"$0.ran\"\n");
    fs::set_permissions(&evil, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    world.repo_config(&format!("dockerSandbox:\n  cliPath: {}\n", evil.display()));
    let refusal = "a repository may not set `dockerSandbox.cliPath`";
    for args in [&["run", "--", "true"][..], &["warmup"]] {
        let ran = world.crabbox(args).exits(2);
        ran.says(refusal).says("crabbox trust");
    }
    // ProviderFilter all that is looked at it is one problem.
    let ran = world.crabbox(&["doctor"]).exits(1).says("crabbox trust");
    assert!(ran.out.contains(refusal), "{}", ran.out);
    assert!(ran.out.contains("ok      sbx_engine"), "{}", ran.out);
    // What only looks goes on with the user's own program.
    world.crabbox(&["list"]).exits(0).says(refusal);
    assert!(!world.repo().join("evil.ran").exists());
    world.crabbox(&["trust"]).exits(0);
    world.crabbox(&["list"]); // whatever that program is good for
    world.crabbox(&["doctor"]);
    assert!(world.repo().join("evil.ran").exists());
}

#[test]
fn bug_08_config_show_has_the_times_of_a_lease() {
    let world = World::new();
    let shown = world
        .with_env(&[("CRABBOX_TTL", "45m")], &["config", "show", "--json"])
        .exits(0)
        .json();
    assert_eq!(shown["ttl"], "45m0s");
    assert_eq!(shown["idleTimeout"], "30m0s");
    assert_eq!(shown["origins"]["ttl"]["source"], "environment");
    let text = world.crabbox(&["config", "show"]).ok();
    assert!(text.contains("ttl=1h30m0s idle_timeout=30m0s"), "{text}");
}

#[test]
fn bug_10_a_command_knows_its_own_lease_and_slug() {
    let world = World::new();
    let script = "echo $CRABBOX_LEASE_ID $CRABBOX_SLUG $CRABBOX_RUN_ID";
    let ran = world
        .crabbox(&["run", "--keep", "--shell", script])
        .exits(0);
    let lease = world.claim_names().remove(0);
    let slug = world.claim(&lease)["slug"].as_str().unwrap().to_owned();
    let words: Vec<_> = ran.out.split_whitespace().collect();
    assert_eq!(words[..2], [&lease, &slug]);
    assert!(
        words[2].starts_with("run_") && words[2].len() == 16,
        "{words:?}"
    );
    // By any name of the lease.
    let sandbox = lease.strip_prefix("dsbx_").unwrap();
    for id in [lease.as_str(), slug.as_str(), sandbox] {
        let ran = world
            .crabbox(&["run", "--id", id, "--shell", script])
            .exits(0);
        let again: Vec<_> = ran.out.split_whitespace().collect();
        assert_eq!(again[..2], words[..2]);
        assert_ne!(again[2], words[2]);
    }
}

#[test]
fn bug_11_a_missing_sbx_is_said_to_be_missing() {
    let world = World::without_sbx();
    for args in [&["run", "--", "true"][..], &["doctor"], &["warmup"]] {
        let ran = Ran::from(world.alone(args).output().unwrap()).exits(1);
        assert!(
            ran.err.contains("sbx not found") || ran.out.contains("sbx not found"),
            "{}",
            ran.show()
        );
        ran.says("install the standalone sbx CLI, or set dockerSandbox.cliPath");
    }
    // What the user names is that or nothing, also when another one could be found.
    let world = World::new();
    let missing = world.path("nowhere/sbx").display().to_string();
    let ran = world
        .crabbox(&["run", "--docker-sandbox-cli", &missing, "--", "true"])
        .exits(1);
    ran.says("sbx not found").says(&missing);
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn bug_12_names_of_the_user_are_no_symptoms() {
    let world = World::new();
    let dir = world.path("kvm-timeout-unauthorized");
    fs::create_dir_all(dir.join(".git")).unwrap();
    world.behave("fail-before-create", "1\nERROR: something else");
    let ran = world.within(&dir, &["run", "--", "true"]).exits(1);
    let ran = ran.says("kvm-timeout-unauthorized").says("something else");
    ran.never_says("virtualization")
        .never_says("sbx login")
        .never_says("control plane");
}

#[test]
fn bug_13_a_stopped_sandbox_is_ready() {
    let world = World::new();
    world.behave("state", "stopped");
    world.warm("asleep");
    let ran = world
        .crabbox(&["status", "asleep", "--wait", "--json"])
        .exits(0);
    assert_eq!(ran.json()["state"], "stopped");
    assert_eq!(ran.json()["ready"], true);
    assert_eq!(
        world
            .crabbox(&["run", "--id", "asleep", "--", "echo", "awake"])
            .ok(),
        "awake\n"
    );
}

#[test]
fn bug_14_a_missing_program_never_means_gone() {
    let world = World::new();
    let lease = world.warm("kept");
    fs::rename(world.path("bin/sbx"), world.path("bin/sbx.away")).unwrap();
    for args in [
        &["stop", "kept"][..],
        &["list"],
        &["status", "kept"],
        &["run", "--id", "kept", "--", "true"],
    ] {
        let ran = Ran::from(world.alone(args).output().unwrap());
        assert_ne!(ran.code, 0, "{args:?}");
        ran.says("sbx not found").never_says("released");
        assert_eq!(world.claim_names(), [lease.as_str()], "{args:?}");
    }
    world.age(&lease);
    Ran::from(world.alone(&["cleanup"]).output().unwrap()).exits(1);
    assert_eq!(world.claim_names(), [lease.as_str()]);
    fs::rename(world.path("bin/sbx.away"), world.path("bin/sbx")).unwrap();
    world.crabbox(&["stop", "kept"]).exits(0);
    world.is_clean();
}

/// Also words like "not found" in the error of a program that runs prove nothing.
#[test]
fn bug_14_an_error_that_says_not_found_does_not_mean_gone() {
    let world = World::new();
    let lease = world.warm("kept");
    world.behave("fail-before-rm", "1\nError: daemon socket not found");
    world
        .crabbox(&["stop", "kept"])
        .exits(1)
        .says("daemon socket not found")
        .never_says("released");
    world.behave("fail-before-ls", "1\nno such sandbox");
    world.crabbox(&["stop", "kept"]).exits(1);
    assert_eq!(world.claim_names(), [lease]);
    assert_eq!(world.sandboxes().len(), 1);
}

#[test]
fn bug_16_output_streams_through_in_bounded_memory() {
    const MIB: usize = 256;
    let world = World::new();
    world.warm("loud");
    let script = format!("head -c {} /dev/zero", MIB << 20);
    let mut child = world
        .command(&["run", "--id", "loud", "--shell", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let (mut total, mut peak) = (0, 0);
    loop {
        match out.read(&mut buffer).unwrap() {
            0 => break,
            read => total += read,
        }
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = kib.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        peak = peak.max(kib.unwrap_or(0_usize));
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(total, MIB << 20);
    assert!(peak > 0 && peak < 64 << 10, "{peak} KiB");
}
