//! More than one engine, and engines that change.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::world::{World, write};

/// Another engine with the same stand-in, which keeps its sandboxes elsewhere.
fn other_program(world: &World) -> String {
    for dir in ["other/bin", "other/engine/sandboxes", "other/engine/behave"] {
        fs::create_dir_all(world.path(dir)).unwrap();
    }
    let program = world.path("other/bin/sbx");
    let copied = std::process::Command::new("cp")
        .args([world.path("bin/sbx"), program.clone()])
        .status();
    assert!(copied.unwrap().success());
    program.display().to_string()
}

#[test]
fn what_another_place_holds_is_not_gone() {
    let world = World::new();
    let alt = world.path("alt").display().to_string();
    let made = world.with_env(&[("SBX_HOME", &alt)], &["warmup", "--slug", "x", "--json"]);
    let lease = made.json()["leaseId"].as_str().unwrap().to_owned();
    let claim = world.claim(&lease);
    assert_eq!(claim["providerScope"], format!("SBX_HOME={alt}"));
    assert_eq!(
        claim["labels"]["engine"],
        world.path("bin/sbx").display().to_string()
    );
    // The stand-in does not go by the variable: what the other place would not list is not there.
    world.behave("ls-raw", "[]");

    let home = format!("HOME={}", world.path("home").display());
    let refused = world.crabbox(&["stop", "x"]).exits(2);
    assert!(
        refused.cause().contains("was created by another engine"),
        "{}",
        refused.err
    );
    let hint = format!("hint: the same command with SBX_HOME={alt}\n");
    refused
        .says(&format!("SBX_HOME={alt}"))
        .says(&home)
        .says(&hint);
    let kept = world.claim(&lease);
    assert_eq!(kept["state"], "ready");

    world.lose_sandbox(lease.strip_prefix("dsbx_").unwrap());
    world
        .crabbox(&["run", "--id", "x", "--", "true"])
        .exits(2)
        .says(&hint);

    // Neither do the others take it for gone.
    world.age(&lease);
    world
        .crabbox(&["cleanup"])
        .says("was created by another engine");
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "other-engine", "{list}");
    world.edit_claim(&lease, |claim| {
        claim["lastUsedAt"] = claim["claimedAt"].clone();
    });
    world
        .crabbox(&["status", "x", "--wait", "--wait-timeout", "1s"])
        .exits(5)
        .says("other-engine");
    assert!(world.claim_names().contains(&lease));
    assert_eq!(world.count("rm"), 0);

    // The same engine's word counts.
    world
        .with_env(&[("SBX_HOME", &alt)], &["stop", "x"])
        .exits(0)
        .says("released");
    assert_eq!(world.claim_names(), [""; 0]);
}

/// Whatever a look-up would find by now. A program that the user names is that or nothing.
#[test]
fn a_lease_keeps_the_engine_that_its_claim_records() {
    let world = World::new();
    let other = other_program(&world);
    let flag = ["--docker-sandbox-cli", &other];
    let warm = |slug: &str| {
        world
            .crabbox(&["warmup", "--slug", slug, flag[0], flag[1]])
            .exits(0);
    };
    warm("x");
    let list = world.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "running", "{list}");
    for args in [
        &["status", "x"][..],
        &["run", "--id", "x", "--", "true"],
        &["ports", "x"],
        &["cp", "--id", "x", "README", "SANDBOX:/tmp/x"],
        &["inspect", "x"],
    ] {
        world.crabbox(args).exits(0);
        let chosen = [&args[..1], &["--provider", "docker-sandbox"], &args[1..]].concat();
        world.crabbox(&chosen).exits(0);
    }
    let doctor = world.crabbox(&["doctor", "--id", "x"]).exits(0);
    let engine = format!("program={other} found=claim");
    assert!(doctor.out.contains(&engine), "{}", doctor.out);
    let here = world.path("bin/sbx").display().to_string();
    let hint = format!("hint: the same command with --docker-sandbox-cli {other}\n");
    for args in [
        &["stop", "x", flag[0], &here][..],
        &["run", "--id", "x", flag[0], &here, "--", "true"],
    ] {
        let refused = world.crabbox(args).exits(2);
        refused.says("was created by another engine").says(&hint);
    }
    assert_eq!(world.calls().len(), 0, "the one in PATH was not asked");
    world.crabbox(&["stop", "x"]).exits(0);
    warm("y");
    let lease = world.claim_names().remove(0);
    world.age(&lease);
    let cleaned = world.crabbox(&["cleanup", "--json"]).exits(0).json();
    assert_eq!(cleaned["removed"], 1, "{cleaned}");
    assert_eq!(world.calls().len(), 0);
}

/// A program that is missing is never taken for a sandbox that is gone.
#[test]
fn the_list_of_another_engine_proves_nothing_after_the_creating_one_is_gone() {
    let world = World::new();
    let other = other_program(&world);
    let flag = ["--docker-sandbox-cli", &other];
    let made = world
        .crabbox(&["warmup", "--slug", "x", "--json", flag[0], flag[1]])
        .exits(0);
    let lease = made.json()["leaseId"].as_str().unwrap().to_owned();
    let moved = world.path("other/bin/moved");
    fs::rename(&other, &moved).unwrap();

    for args in [
        &["stop", "x"][..],
        &["run", "--id", "x", "--", "true"],
        &["ports", "--id", "x"],
        &["cp", "--id", "x", "SANDBOX:/a", "b"],
    ] {
        let refused = world.crabbox(args).exits(1);
        assert!(
            refused
                .cause()
                .contains(&format!("was created with {other}, which no longer exists")),
            "{}",
            refused.err
        );
        refused
            .says("hint: the same command with --docker-sandbox-cli")
            .says("hint: crabbox claims forget x removes only the record; the sandbox may still exist\n")
            .never_says("released");
    }
    let told = world.crabbox(&["stop", "x", "--json"]).exits(1);
    let told: serde_json::Value = serde_json::from_str(told.last()).unwrap();
    assert_eq!(told["error"]["code"], "provider_missing");
    let status = world.crabbox(&["status", "x", "--json"]).exits(0).json();
    assert_eq!(status["state"], "engine-missing");
    assert_eq!(status["ready"], false);

    world.age(&lease);
    let cleaned = world.crabbox(&["cleanup", "--json"]).exits(1).json();
    assert_eq!(cleaned["entries"][0]["action"], "skip", "{cleaned}");
    assert_eq!(cleaned["removed"], 0);
    assert_eq!(world.claim_names(), [lease]);

    // Under its new name it is the engine that has the sandbox.
    let moved = moved.display().to_string();
    world
        .crabbox(&["stop", "x", flag[0], &moved])
        .exits(0)
        .says("released");
    assert_eq!(world.claim_names(), [""; 0]);
}

#[test]
fn a_relative_program_is_the_same_from_everywhere() {
    let world = World::new();
    let other = other_program(&world);
    fs::create_dir_all(world.repo().join("sub")).unwrap();
    let flag = ["--docker-sandbox-cli", "../other/bin/sbx"];
    let lease = {
        let args = ["warmup", "--slug", "x", "--json", flag[0], flag[1]];
        let made = world.crabbox(&args).exits(0).json();
        assert_eq!(
            made["cleanupCommand"],
            format!(
                "crabbox stop --provider docker-sandbox --docker-sandbox-cli {}/{} x",
                world.repo().display(),
                flag[1]
            )
        );
        made["leaseId"].as_str().unwrap().to_owned()
    };
    assert_eq!(world.claim(&lease)["labels"]["engine"], other);
    let sub = world.repo().join("sub");
    let here = ["stop", "x", flag[0], flag[1]];
    world
        .within(&sub, &here)
        .exits(1)
        .says("is not an executable file");
    assert_eq!(world.claim_names(), [lease]);
    world.within(&sub, &["stop", "x"]).exits(0);
}

#[test]
fn relative_paths_of_a_repository_begin_at_its_root() {
    let world = World::new();
    let other = other_program(&world);
    world.repo_config(
        "dockerSandbox:\n  cliPath: ../other/bin/sbx\n  extraWorkspaces: [docs, ../other]\n",
    );
    let sub = world.repo().join("sub");
    for dir in [sub.clone(), world.repo().join("docs")] {
        fs::create_dir_all(dir).unwrap();
    }
    world.crabbox(&["trust"]).exits(0);
    let made = world
        .within(&sub, &["warmup", "--slug", "x", "--json"])
        .exits(0);
    let lease = made.json()["leaseId"].as_str().unwrap().to_owned();
    assert_eq!(world.claim(&lease)["labels"]["engine"], other);
    let log = fs::read_to_string(world.path("other/engine/log.jsonl")).unwrap();
    let root = world.repo().display().to_string();
    let shared = format!("\"{root}\", \"{root}/docs\", \"{root}/../other\"");
    assert!(log.contains(&shared), "{log}");
}

#[test]
fn a_sandbox_of_the_same_name_is_not_the_one() {
    let world = World::new();
    let other = other_program(&world);
    let flag = ["--docker-sandbox-cli", &other];
    let made = world
        .crabbox(&["warmup", "--slug", "x", "--json", flag[0], flag[1]])
        .exits(0)
        .json();
    let name = made["sandbox"].as_str().unwrap();
    let lease = made["leaseId"].as_str().unwrap();
    world.foreign_sandbox(name);
    world.forget_calls();
    let here = world.path("bin/sbx").display().to_string();
    let named = [("CRABBOX_DOCKER_SANDBOX_CLI", here.as_str())];
    for args in [
        &["stop", "x"][..],
        &["run", "--id", "x", "--", "true"],
        &["ports", "--id", "x"],
        &["cp", "--id", "x", "SANDBOX:/a", "b"],
    ] {
        world
            .with_env(&named, args)
            .exits(2)
            .says("was created by another engine");
    }
    for verb in ["rm", "exec", "ports", "cp"] {
        assert_eq!(world.count(verb), 0, "{verb}");
    }
    // Also when its time is over: that says nothing about the sandbox.
    world.edit_claim(lease, |claim| {
        claim["expiresAt"] = "2020-01-01T00:00:00Z".into();
    });
    let list = world.with_env(&named, &["list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "other-engine");
    let status = world
        .with_env(&named, &["status", "x", "--json"])
        .exits(0)
        .json();
    assert_eq!(status["state"], "other-engine");
}

#[test]
fn a_record_can_be_dropped_alone() {
    let world = World::new();
    let lease = world.warm("x");
    let name = lease.strip_prefix("dsbx_").unwrap();
    let mut gate = world.gate("exec", "before");
    let run = world.spawn(&["run", "--id", "x", "--", "true"]);
    gate.wait();
    world
        .crabbox(&["claims", "forget", "x"])
        .exits(5)
        .says("is in use by process");
    gate.open();
    crate::world::end(run).exits(0);
    world.forget_calls();

    let forgot = world
        .crabbox(&["claims", "forget", name, "--json"])
        .exits(0)
        .says(&format!(
            "sandbox {name} of provider=docker-sandbox may still exist"
        ));
    assert_eq!(
        forgot.json(),
        serde_json::json!({"leaseId": lease, "slug": "x", "sandbox": name, "forgotten": true})
    );
    assert_eq!(world.claim_names(), [""; 0]);
    assert_eq!(world.sandboxes(), [name]);
    assert_eq!(world.calls().len(), 0);
    world
        .crabbox(&["claims", "forget", "x"])
        .exits(4)
        .says("hint: crabbox claims list");
}

#[test]
fn a_claim_without_an_engine_is_as_it_was() {
    let world = World::new();
    let lease = world.warm("x");
    world.edit_claim(&lease, |claim| {
        claim.as_object_mut().unwrap().remove("providerScope");
        claim["labels"].as_object_mut().unwrap().remove("engine");
    });
    world.behave("ls-raw", "[]");
    world
        .with_env(&[("SBX_HOME", "/elsewhere")], &["stop", "x"])
        .exits(0);
}

#[test]
fn commands_that_are_shown_name_the_program_of_the_flag() {
    let world = World::new();
    let other = other_program(&world);
    let flag = ["--docker-sandbox-cli", &other];
    let made = world
        .crabbox(&["warmup", "--slug", "x", "--json", flag[0], flag[1]])
        .exits(0);
    assert_eq!(
        made.json()["cleanupCommand"],
        format!("crabbox stop --provider docker-sandbox --docker-sandbox-cli {other} x")
    );
    world
        .crabbox(&["run", "--keep-on-failure", "--slug", "y", flag[0], flag[1], "--", "false"])
        .exits(1)
        .says(&format!(
            "stop: crabbox stop --provider docker-sandbox --docker-sandbox-cli {other} y\n"
        ))
        .says(&format!(
            "rerun: crabbox run --provider docker-sandbox --docker-sandbox-cli {other} --id y -- false\n"
        ));
}

#[test]
fn an_error_for_programs_is_shown_for_people() {
    let world = World::new();
    let said =
        r#"{"error":{"code":"daemon","message":"no daemon answers","hint":"sbx daemon start"}}"#;
    world.behave("fail-before-ls", &format!("1\n{said}"));
    world.warm("x");
    let ran = world.crabbox(&["list"]).exits(1);
    assert_eq!(ran.cause(), "`sbx ls --json` exited 1: no daemon answers");
    ran.says("hint: sbx daemon start\n").never_says("{");
}

#[test]
fn a_stop_that_never_began_leaves_the_lease_as_it_was() {
    let world = World::new();
    let lease = world.warm("x");
    world.behave("fail-before-ls", "1\nno daemon");
    world.crabbox(&["stop", "x"]).exits(1);
    assert_eq!(world.claim(&lease)["state"], "ready");
    world.behave_well("fail-before-ls");
    world.crabbox(&["run", "--id", "x", "--", "true"]).exits(0);
    // Once it has begun, it stays begun.
    world.behave("noop-rm", "yes");
    world.crabbox(&["stop", "x"]).exits(1);
    assert_eq!(world.claim(&lease)["state"], "releasing");
}

#[test]
fn an_sbx_in_the_checkout_is_not_started() {
    let world = World::without_sbx();
    let in_checkout = world.repo().join(".venv/bin/sbx");
    let proof = world.path("sprung");
    write(
        &in_checkout,
        format!("#!/bin/sh\ntouch {}\n", proof.display()),
    );
    fs::set_permissions(&in_checkout, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", in_checkout.parent().unwrap().display());
    for args in [&["list"][..], &["run", "--", "true"], &["doctor"]] {
        let mut command = world.alone(args);
        command.env("PATH", &path);
        let ran = crate::world::Ran::from(command.output().unwrap());
        if args != ["list"] {
            assert!(ran.code != 0, "{}", ran.err);
            ran.says("it lies in the checkout");
        }
    }
    assert!(!proof.exists());
}

#[test]
fn what_the_engine_advises_is_passed_on_where_it_helps() {
    let world = World::new();
    let said =
        "ERROR: this directory holds the state of sbx\nhint: share a project directory instead";
    world.behave("fail-before-create", &format!("1\n{said}"));
    let ran = world.crabbox(&["run", "--", "true"]).exits(1);
    assert!(
        ran.cause()
            .ends_with("exited 1: ERROR: this directory holds the state of sbx"),
        "{}",
        ran.err
    );
    ran.says("hint: share a project directory instead\n");
    let ran = world.crabbox(&["run", "--json", "--", "true"]).exits(1);
    let told: serde_json::Value = serde_json::from_str(ran.last()).unwrap();
    assert_eq!(
        told["error"]["hints"],
        serde_json::json!(["share a project directory instead"])
    );
    // Its flags are not ours.
    world.behave(
        "fail-before-create",
        "125\nERROR: no such template\nhint: leave it out, or use `-t host`",
    );
    world
        .crabbox(&["run", "--", "true"])
        .exits(1)
        .never_says("-t host");
}
