//! `crabbox doctor`: everything is looked at, nothing is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::world::{Ran, World, write};

#[test]
fn it_only_looks() {
    let world = World::new();
    world.crabbox(&["doctor"]).exits(0);
    world.crabbox(&["doctor", "--json"]).exits(0);
    let lines: Vec<_> = world.calls().iter().map(|call| call.line()).collect();
    let once = ["version", "ls --json", "diagnose --output json"];
    assert_eq!(lines, [once, once].concat());
    assert_eq!(world.claim_names(), [""; 0]);
    assert_eq!(world.sandboxes(), [""; 0]);
}

#[test]
fn it_changes_no_state() {
    let world = World::new();
    fs::remove_dir(world.path("state")).unwrap();
    world.crabbox(&["doctor"]).exits(0);
    assert!(
        !world.path("state").exists(),
        "no directory is made to look"
    );
}

#[test]
fn the_validated_version_is_compatible_and_others_are_best_effort() {
    let world = World::new();
    for (version, expected) in [
        (
            "Client Version:  v0.31.3\nServer Version:  v0.31.3",
            "ok      sbx_compatibility  sbx_compatibility=ok baseline=0.31.3",
        ),
        (
            "client: v0.1.0\nserver: v0.1.0\ncontract: 0.31.3 0.39",
            "ok      sbx_compatibility  sbx_compatibility=ok contract=0.31.3",
        ),
        (
            "Client Version:  v0.31.3\nServer Version:  v0.32.0",
            "warn    sbx_compatibility  sbx_compatibility=best-effort",
        ),
        (
            "sbx version v0.40.1",
            "warn    sbx_compatibility  sbx_compatibility=best-effort",
        ),
    ] {
        world.behave("version", version);
        let ran = world.crabbox(&["doctor"]).exits(0);
        assert!(ran.out.contains(expected), "{}", ran.out);
        let first = version.lines().next().unwrap();
        assert!(
            ran.out
                .contains(&format!("sbx_version        version={first}")),
            "{}",
            ran.out
        );
    }
}

#[test]
fn blockers_are_named_with_what_to_do() {
    let world = World::new();
    for (said, hint) in [
        ("ERROR: not logged in", "sbx login"),
        ("cannot open /dev/kvm", "virtualization"),
        ("control plane timed out", "control plane"),
        ("quota exceeded", ""),
        ("no capacity left in region", ""),
    ] {
        world.behave("fail-before-ls", &format!("1\n{said}"));
        let ran = world.crabbox(&["doctor"]).exits(1);
        assert!(ran.out.contains("failed  sbx_inventory"), "{}", ran.out);
        assert!(ran.out.contains(said), "{}", ran.out);
        assert!(ran.err.contains(hint), "{}", ran.err);
        assert_eq!(ran.cause(), "doctor found problems");
        let json = world.crabbox(&["doctor", "--json"]).exits(1).json();
        assert_eq!(json["ok"], false);
    }
}

/// Another engine that does not tell its version makes sandboxes all the same: doctor's verdict is that of a run.
#[test]
fn a_version_that_fails_is_a_warning_where_runs_work() {
    let world = World::new();
    world.behave("fail-before-version", "1\nno such command");
    let doctor = world.crabbox(&["doctor"]).exits(0);
    assert!(doctor.out.contains("warn    sbx_version"), "{}", doctor.out);
    assert!(doctor.out.contains("no such command"), "{}", doctor.out);
    let skipped = "skip    sbx_compatibility  not checked: the version is not known";
    assert!(doctor.out.contains(skipped), "{}", doctor.out);
    world.forget_calls();
    world.crabbox(&["run", "--", "true"]).exits(0);
    // Asked once: one that hangs would hang each time.
    assert_eq!(world.count("version"), 1);
    // What no run does without is no warning.
    world.behave("fail-before-ls", "1\nERROR: not logged in");
    world.crabbox(&["doctor"]).exits(1).says("sbx login");
}

/// Whatever an engine prints, it may be a secret.
#[test]
fn no_part_of_a_check_shows_a_secret() {
    let world = World::new();
    let secret = "token=abcd1234secret https://u:hunter2@h";
    world.behave("version", secret);
    world.behave("fail-before-ls", &format!("1\n{secret}"));
    world.behave("fail-before-diagnose", &format!("1\n{secret}"));
    for args in [&["doctor", "--json"][..], &["doctor"]] {
        let ran = world.crabbox(args).exits(1);
        assert!(ran.out.contains("[redacted]"), "{}", ran.out);
        ran.never_says("abcd1234").never_says("hunter2");
    }
}

#[test]
fn diagnosis_is_optional() {
    let world = World::new();
    world.behave("fail-before-diagnose", "1\nunknown command");
    let json = world.crabbox(&["doctor", "--json"]).exits(0).json();
    let check = json["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["check"] == "sbx_diagnose")
        .unwrap();
    assert_eq!(
        (&check["status"], &check["details"]["optional"]),
        (&"warn".into(), &"true".into())
    );
    assert_eq!(check["details"]["mutation"], "false");
    world.behave_well("fail-before-diagnose");
    world.behave("diagnose", r#"{"checks":[{"name":"Virtualization","status":"fail","message":"no KVM","hint":"enable it"}]}"#);
    let ran = world.crabbox(&["doctor"]).exits(0);
    assert!(
        ran.out
            .contains("warn    sbx_diagnose       Virtualization: no KVM (hint: enable it)"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("sbx_isolation      no KVM"), "{}", ran.out);
}

#[test]
fn it_names_the_origin_of_the_provider_as_config_show_does() {
    let agrees = |world: &World, env: &[(&str, &str)], flags: &[&str], source: &str| {
        let doctor = world.with_env(env, &[&["doctor"], flags].concat()).ok();
        let selected = source != "compiled_default";
        let line = format!("provider=docker-sandbox source={source} selected={selected}\n");
        assert!(doctor.contains(&line), "{source}: {doctor}");
        let show = world.with_env(env, &[&["config", "show", "--json"], flags].concat());
        let show = show.exits(0).json();
        assert_eq!(show["providerSource"], source);
        assert_eq!(show["providerSelected"], selected, "{source}");
    };
    let world = World::new();
    agrees(&world, &[], &[], "compiled_default");
    world.user_config("provider: docker-sandbox\n");
    agrees(&world, &[], &[], "user_config");
    world.repo_config("provider: docker-sandbox\n");
    agrees(&world, &[], &[], "repo_config");
    let env = [("CRABBOX_PROVIDER", "docker-sandbox")];
    agrees(&world, &env, &[], "environment");
    agrees(&world, &env, &["--provider", "docker-sandbox"], "flag");
    let lease = world.warm("a");
    let line = "provider=docker-sandbox source=lease_context selected=true\n";
    for id in ["a", &lease] {
        let doctor = world.with_env(&env, &["doctor", "--id", id]).ok();
        assert!(doctor.contains(line), "{doctor}");
    }
    let flag = ["doctor", "--id", "a", "--provider", "docker-sandbox"];
    assert!(world.crabbox(&flag).ok().contains(" source=flag "));
    let ran = world.crabbox(&["doctor", "--id", "nobody"]).exits(4);
    ran.says("is not claimed by Crabbox");
}

#[test]
fn a_config_that_others_can_read_is_a_warning_because_runs_work_with_it() {
    let world = World::new();
    world.user_config("ttl: 1h\n");
    let ran = world.crabbox(&["doctor"]).exits(0);
    assert!(ran.out.contains("permissions=0600"), "{}", ran.out);
    let path = world.path("config/crabbox/config.yaml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let ran = world.crabbox(&["doctor"]).exits(0);
    let path = path.display();
    let line = format!(
        "warn    config             {path} permissions 0644 want 0600 (hint: chmod 600 {path})\n"
    );
    assert!(ran.out.starts_with(&line), "{}", ran.out);
    world.crabbox(&["run", "--", "true"]).exits(0);
    assert!(ran.out.contains("ok      sbx_inventory"), "{}", ran.out);
}

/// What `sbx diagnose` warns of is in the output, with the remedy; what it fails for would fail every run.
#[test]
fn doctor_carries_the_warnings_and_remedies_of_our_engine() {
    let world = World::of_our_engine();
    let findings = |status: &str| {
        format!(
            r#"{{"checks":[{{"name":"Subordinate ids","status":"warn","message":"newuidmap is not installed","detail":"without it there is no `sudo`","hint":"sudo apt-get install uidmap"}},{{"name":"Storage directories","status":"{status}","message":"/x belongs to another product","detail":"","hint":"set SBX_HOME to a directory of its own"}}]}}"#
        )
    };
    world.behave("diagnose", &findings("pass"));
    let ran = world.crabbox(&["doctor"]).exits(0);
    let warning = "warn    sbx_subordinate_ids newuidmap is not installed: without it there is no `sudo` (hint: sudo apt-get install uidmap)\n";
    assert!(ran.out.contains(warning), "{}", ran.out);
    let json = world.crabbox(&["doctor", "--json"]).exits(0).json();
    let mut checks = json["checks"].as_array().unwrap().iter();
    let check = checks
        .find(|check| check["check"] == "sbx_subordinate_ids")
        .unwrap();
    assert_eq!(check["status"], "warn");
    assert_eq!(check["details"]["advice"], "sudo apt-get install uidmap");

    world.behave("diagnose", &findings("fail"));
    let ran = world
        .crabbox(&["doctor"])
        .exits(1)
        .says("hint: set SBX_HOME to a directory of its own\n");
    assert!(
        ran.out.contains(
            "failed  sbx_diagnose       Storage directories: /x belongs to another product"
        ),
        "{}",
        ran.out
    );
    assert!(ran.out.contains(warning), "{}", ran.out);
    // Of another engine it is not known what it means by it.
    world.behave(
        "version",
        "Client Version: v0.31.3\nServer Version: v0.31.3",
    );
    world.crabbox(&["doctor"]).exits(0);
}

/// The verdict is the truth about the next run.
#[test]
fn doctor_fails_where_no_claim_could_be_written() {
    let world = World::new();
    write(&world.path("state/crabbox"), "a file");
    let ran = world.crabbox(&["doctor"]).exits(1);
    assert!(ran.out.contains("failed  state "), "{}", ran.out);
    world.crabbox(&["run", "--", "true"]).exits(2);
    fs::remove_file(world.path("state/crabbox")).unwrap();
    let claims = world.path("state/crabbox/claims");
    fs::create_dir_all(&claims).unwrap();
    fs::set_permissions(&claims, fs::Permissions::from_mode(0o777)).unwrap();
    let ran = world.crabbox(&["doctor"]).exits(1).says("hint: chmod 700 ");
    assert!(ran.out.contains("failed  state "), "{}", ran.out);
    world.crabbox(&["run", "--", "true"]).exits(2);
}

#[test]
fn a_config_that_is_wrong_hides_no_other_check() {
    let world = World::new();
    world.user_config("bogus: 1\n");
    world.repo_config("env:\n  allow: [AWS_SECRET_ACCESS_KEY]\n");
    let ran = world.with_env(&[("CRABBOX_TTL", "soon")], &["doctor"]);
    let ran = ran.exits(1).says("hint: review the file, then accept it");
    assert_eq!(ran.cause(), "doctor found problems");
    for line in [
        "config.yaml: line 1 column 1: unknown key `bogus`\n",
        "failed  settings           CRABBOX_TTL",
        "a repository may not set `env.allow`",
        "ok      git",
        "ok      sbx_engine",
        "ok      sbx_version",
        "ok      sbx_inventory",
        "ok      sbx_diagnose",
    ] {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
    let json = world.crabbox(&["doctor", "--json"]).exits(1).json();
    assert_eq!(
        (&json["ok"], &json["provider"]),
        (&false.into(), &"docker-sandbox".into())
    );
    // Only what is wrong is left out.
    world.user_config("dockerSandbox:\n  cliPath: /nonexistent/sbx\n");
    let ran = world.crabbox(&["doctor"]).exits(1);
    assert!(ran.out.contains("/nonexistent/sbx"), "{}", ran.out);
}

#[test]
fn a_config_that_cannot_be_read_or_names_no_provider_is_a_check() {
    let world = World::new();
    world.user_config("provider: nonsense\n");
    let ran = world.crabbox(&["doctor"]).exits(1);
    let told = "config.yaml: line 1 column 11: unknown provider \"nonsense\"";
    assert!(ran.out.contains(told), "{}", ran.out);
    assert!(ran.out.contains("ok      sbx_version"), "{}", ran.out);
    let env = [("CRABBOX_CONFIG", "/nonexistent.yaml")];
    let ran = world.with_env(&env, &["doctor"]).exits(1);
    assert!(ran.out.contains("which does not exist"), "{}", ran.out);
    assert!(ran.out.contains("ok      sbx_version"), "{}", ran.out);
    // What the command line says wrong is a wrong command line.
    world
        .crabbox(&["doctor", "--provider", "nonsense"])
        .exits(2);
    world.crabbox(&["doctor", "--ttl", "soon"]).exits(2);
}

#[test]
fn what_a_diagnosis_fails_with_is_shown() {
    let world = World::new();
    let line = |world: &World| {
        let out = world.crabbox(&["doctor"]).exits(0).out;
        let line = out.lines().find(|line| line.contains(" sbx_diagnose "));
        line.unwrap().to_owned()
    };
    let long = "x".repeat(100_000);
    world.behave(
        "fail-before-diagnose",
        &format!("3\ncannot reach it {long}"),
    );
    let said = line(&world);
    let start = "warn    sbx_diagnose       `sbx diagnose` exited 3: cannot reach it xxx";
    assert!(said.starts_with(start), "{said:.200}");
    assert!(said.len() < 5000, "{}", said.len());
    // It may print checks and complain all the same.
    world.behave_well("fail-before-diagnose");
    world.behave("fail-after-diagnose", "4\nand another thing");
    let said = line(&world);
    assert!(
        said.ends_with("`sbx diagnose` exited 4: and another thing"),
        "{said}"
    );
    world.behave(
        "diagnose",
        r#"{"checks":[{"name":"A","status":"fail","message":"m","hint":"h"}]}"#,
    );
    let said = line(&world);
    let both = "A: m (hint: h); `sbx diagnose` exited 4: and another thing";
    assert!(said.ends_with(both), "{said}");
    world.behave_well("fail-after-diagnose");
    world.behave("diagnose", "nothing");
    assert!(line(&world).ends_with("`sbx diagnose` printed no checks"));
}

#[test]
fn without_git_doctor_says_so() {
    let world = World::new();
    let mut command = world.command(&["doctor"]);
    command.env("PATH", world.path("bin"));
    let ran = Ran::from(command.output().unwrap()).exits(1);
    assert!(ran.out.contains("missing git"), "{}", ran.out);
    assert!(ran.out.contains("sbx_version"), "{}", ran.out);
}

#[test]
fn a_question_that_hangs_leaves_time_for_the_others() {
    let world = World::new();
    let _gate = world.gate("version", "before");
    let ran = world.crabbox(&["doctor", "--json"]).exits(0);
    let json = ran.json();
    let all = json["checks"].as_array().unwrap().iter();
    let status = |name: &str| {
        let mut all = all.clone();
        all.find(|check| check["check"] == name).unwrap()["status"].clone()
    };
    assert_eq!(status("sbx_version"), "warn");
    assert_eq!(status("sbx_compatibility"), "skip");
    assert_eq!(status("sbx_inventory"), "ok");
    assert_eq!(status("sbx_diagnose"), "ok");
}

#[test]
fn what_to_do_is_said_once() {
    let world = World::new();
    for verb in ["version", "ls"] {
        world.behave(&format!("fail-before-{verb}"), "1\nrequest timed out");
    }
    let ran = world.crabbox(&["doctor"]).exits(1);
    let hints = ran.err.lines().filter(|line| line.starts_with("hint: "));
    assert_eq!(hints.count(), 1, "{}", ran.err);
}
