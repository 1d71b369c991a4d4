//! The contract with `sbx`: what it is told, and what is made of its answers.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::world::World;

#[test]
fn create_says_everything_in_the_contracts_order() {
    let world = World::new();
    let extra = world.path("home").display().to_string();
    let read_only = format!("{extra}:ro");
    world
        .crabbox(&[
            "warmup",
            "--slug",
            "a",
            "--docker-sandbox-template",
            "t",
            "--docker-sandbox-cpus",
            "2",
            "--docker-sandbox-memory",
            "4g",
            "--docker-sandbox-mcp",
            "one",
            "--docker-sandbox-mcp",
            "two",
            "--docker-sandbox-kit",
            "k",
            "--docker-sandbox-clone",
            "--docker-sandbox-extra-workspace",
            &extra,
            "--docker-sandbox-extra-workspace",
            &read_only,
        ])
        .exits(0);
    let sandbox = world.sandboxes().remove(0);
    let expected = format!(
        "create --name {sandbox} --template t --cpus 2 --memory 4g --mcp one --mcp two --kit k --clone shell {} {extra} {read_only}",
        world.repo().display()
    );
    assert_eq!(world.call("create").line(), expected);
}

#[test]
fn a_plain_create_says_nothing_more_than_needed() {
    let world = World::new();
    let env = [
        ("CRABBOX_DOCKER_SANDBOX_MCP", "none"),
        ("CRABBOX_DOCKER_SANDBOX_KIT", ""),
    ];
    world.with_env(&env, &["warmup"]).exits(0);
    let sandbox = world.sandboxes().remove(0);
    assert_eq!(
        world.call("create").line(),
        format!("create --name {sandbox} shell {}", world.repo().display())
    );
    assert!(sandbox.starts_with("crabbox-my-app-") && sandbox.len() == "crabbox-my-app-".len() + 6);
}

#[test]
fn the_sandbox_is_named_after_the_origin() {
    let world = World::new();
    world.git(&[
        "remote",
        "add",
        "origin",
        "git@github.com:someone/crabbox-Other.Name.git",
    ]);
    world.crabbox(&["warmup"]).exits(0);
    let sandbox = world.sandboxes().remove(0);
    assert!(sandbox.starts_with("crabbox-other-name-"), "{sandbox}");
}

#[test]
fn every_setting_has_its_variable() {
    let world = World::new();
    let extra = world.path("home").display().to_string();
    let env = [
        ("CRABBOX_DOCKER_SANDBOX_AGENT", "shell"),
        ("CRABBOX_DOCKER_SANDBOX_TEMPLATE", "t"),
        ("CRABBOX_DOCKER_SANDBOX_CPUS", "3"),
        ("CRABBOX_DOCKER_SANDBOX_MEMORY", "1g"),
        ("CRABBOX_DOCKER_SANDBOX_CLONE", "yes"),
        ("CRABBOX_DOCKER_SANDBOX_EXTRA_WORKSPACES", extra.as_str()),
        ("CRABBOX_DOCKER_SANDBOX_MCP", "a,b"),
        ("CRABBOX_DOCKER_SANDBOX_KIT", "k"),
        ("CRABBOX_DOCKER_SANDBOX_WORKDIR", "/tmp"),
    ];
    world
        .with_env(&env, &["run", "--keep", "--", "true"])
        .exits(0);
    let line = world.call("create").line();
    let (_, said) = line.split_once(" --template").unwrap();
    let expected = format!(
        " t --cpus 3 --memory 1g --mcp a --mcp b --kit k --clone shell {} {extra}",
        world.repo().display()
    );
    assert_eq!(said, expected);
    assert!(
        world.call("exec").line().contains("--workdir /tmp "),
        "{}",
        world.call("exec").line()
    );
    // The program itself.
    let other = world.path("other-sbx");
    fs::rename(world.path("bin/sbx"), &other).unwrap();
    let env = [("CRABBOX_DOCKER_SANDBOX_CLI", other.to_str().unwrap())];
    let ran = world.with_env(&env, &["doctor"]);
    assert!(
        ran.out.contains(&format!(
            "program={} found=dockerSandbox.cliPath",
            other.display()
        )),
        "{}",
        ran.out
    );
}

/// An engine may need any variable of its user's: what a command gets is another matter.
#[test]
fn the_engine_has_the_whole_environment() {
    let world = World::new();
    let env = [("WHO", "its user")];
    for args in [
        &["warmup", "--slug", "a"][..],
        &["run", "--id", "a", "--", "printenv", "WHO"],
        &["list"],
        &["doctor"],
        &["ports", "--id", "a"],
        &["stop", "a"],
    ] {
        let ran = world.with_env(&env, args);
        assert!(!ran.out.contains("its user"), "{args:?}: {}", ran.out);
    }
    let calls = world.events("call");
    let verbs: BTreeSet<_> = calls.iter().map(|call| call["argv"][0].as_str()).collect();
    let all = ["create", "diagnose", "exec", "ls", "ports", "rm", "version"];
    assert_eq!(verbs, all.map(Some).into());
    for call in calls {
        assert_eq!(call["who"], "its user", "{call}");
    }
}

#[test]
fn exec_names_directory_file_and_command() {
    let world = World::new();
    world.crabbox(&["run", "--keep", "--", "true"]).exits(0);
    let sandbox = world.sandboxes().remove(0);
    let env_file = world.env_files()[0]["file"].as_str().unwrap().to_owned();
    assert_eq!(
        world.call("exec").line(),
        format!(
            "exec --workdir {} --env-file {env_file} {sandbox} true",
            world.repo().display()
        )
    );
}

#[test]
fn every_wrapper_and_spelling_of_ls_is_read() {
    let world = World::new();
    world.warm("a");
    for shape in [
        json!({}),
        json!({"wrapper": "sandboxes"}),
        json!({"wrapper": "items", "keys": {"name": "Name", "status": "Status", "agent": "Agent", "workspace": "workdir"}}),
        json!({"wrapper": "data", "keys": {"name": "sandboxName", "id": "ID", "status": "state", "workspace": "workingDir"}}),
        json!({"wrapper": "results", "keys": {"name": "sandbox_name", "id": "sandbox_id", "workspace": "working_dir"}}),
    ] {
        world.behave("ls-shape", &shape.to_string());
        let list = world.crabbox(&["list", "--json"]).exits(0).json();
        assert_eq!(list[0]["status"], "running", "{shape}");
        assert_eq!(list[0]["labels"]["agent"], "shell", "{shape}");
        assert_eq!(
            list[0]["labels"]["workspace"],
            world.repo().display().to_string(),
            "{shape}"
        );
    }
    // What has neither name nor id is no sandbox, and no trouble.
    let sandbox = world.sandboxes().remove(0);
    world.behave(
        "ls-raw",
        &format!("[{{}}, 5, null, {{\"id\": \"{sandbox}\", \"Status\": \"RUNNING\"}}]"),
    );
    assert_eq!(
        world.crabbox(&["list", "--json"]).exits(0).json()[0]["status"],
        "running"
    );
}

/// No output is an empty list; anything else that is not a list is a blocker, and proves nothing about any sandbox.
#[test]
fn a_malformed_list_is_a_blocker() {
    let world = World::new();
    let lease = world.warm("a");
    for (raw, said) in [
        (
            "{}",
            "the object has none of sandboxes, items, data, results",
        ),
        ("{\"message\": \"ok\"}", "the object has none of"),
        ("5", "expected array or object, got number"),
        ("NAME  STATUS\n", "not valid JSON"),
        ("[{", "not valid JSON"),
    ] {
        world.behave("ls-raw", raw);
        for args in [&["stop", "a"][..], &["list"], &["status", "a"]] {
            let ran = world.crabbox(args).exits(2);
            let ran = ran.says("parse sbx ls --json output").says(said);
            ran.says("hint: upgrade or inspect the installed sbx CLI")
                .never_says("released");
        }
        let ran = world.crabbox(&["doctor"]).exits(1);
        assert!(
            ran.out.contains("failed  sbx_inventory") && ran.out.contains(said),
            "{}",
            ran.out
        );
        assert_eq!(world.claim_names(), [lease.as_str()]);
    }
    assert_eq!(world.count("rm"), 0);
    world.behave("ls-raw", "");
    world.crabbox(&["stop", "a"]).exits(0);
    assert_eq!(world.claim_names(), [""; 0]);
}

#[test]
fn what_the_engine_says_is_shown_with_what_to_do() {
    let world = World::new();
    for (said, hint) in [
        ("ERROR: not logged in", "run `sbx login` and retry"),
        ("401 Unauthorized", "run `sbx login` and retry"),
        (
            "/dev/kvm: permission denied",
            "enable host virtualization for Docker Sandboxes and retry",
        ),
        (
            "no hypervisor",
            "enable host virtualization for Docker Sandboxes and retry",
        ),
        (
            "request timed out",
            "the sandbox control plane did not respond; check it with `sbx diagnose`",
        ),
    ] {
        world.behave("fail-before-create", &format!("1\n{said}"));
        let ran = world.crabbox(&["run", "--", "true"]).exits(1);
        let ran = ran.says(&format!("hint: {hint}"));
        assert!(ran.cause().contains(said), "{}", ran.cause());
        assert!(ran.cause().contains("exited 1"), "{}", ran.cause());
    }
    world.behave("fail-before-create", "1\nquota exceeded: 3 of 3 sandboxes");
    let ran = world.crabbox(&["run", "--", "true"]).exits(1);
    assert!(
        ran.cause().contains("quota exceeded: 3 of 3 sandboxes"),
        "{}",
        ran.cause()
    );
    world.is_clean();
}

#[test]
fn secrets_in_the_engines_words_are_hidden() {
    let world = World::new();
    world.behave("fail-before-create", "1\nGET https://user:hunter2@example.org?token=hunter2 Authorization: Bearer hunter2hunter2");
    world
        .crabbox(&["run", "--", "true"])
        .exits(1)
        .says("[redacted]")
        .never_says("hunter2");
}

#[test]
fn clone_mode_is_kept_after_success_with_the_command_that_ends_it() {
    let world = World::new();
    let ran = world
        .crabbox(&["run", "--slug", "c", "--docker-sandbox-clone", "--", "true"])
        .exits(0);
    ran.says("docker-sandbox clone run kept sandbox to preserve unfetched commits; cleanup manually with: crabbox stop --provider docker-sandbox c");
    assert_eq!(world.sandboxes().len(), 1);
    assert_eq!(world.count("rm"), 0);
    // Nor does a cleanup remove it.
    let lease = world.claim_names().remove(0);
    world.age(&lease);
    for args in [&["cleanup", "--dry-run"][..], &["cleanup"]] {
        let ran = world.crabbox(args).exits(0);
        let line = format!(
            "skip lease={lease} reason=clone mode may hold commits that were not fetched; crabbox stop --provider docker-sandbox c"
        );
        ran.says(&line);
    }
    world.crabbox(&["stop", "c"]).exits(0);
    world.is_clean();
    // A command that failed has nothing to keep.
    world
        .crabbox(&["run", "--docker-sandbox-clone", "--", "false"])
        .exits(1);
    world.is_clean();
}

#[test]
fn clone_mode_needs_the_main_checkout() {
    let world = World::new();
    let linked = world.path("linked");
    world.git(&["worktree", "add", "-q", linked.to_str().unwrap()]);
    for command in [
        &["run", "--docker-sandbox-clone", "--", "true"][..],
        &["warmup", "--docker-sandbox-clone"],
    ] {
        let ran = world.within(&linked, command).exits(2);
        assert_eq!(
            ran.cause(),
            "docker-sandbox --clone requires a normal Git repository workspace: linked Git worktrees are not supported"
        );
        let plain = world.path("home");
        let ran = world.within(&plain, command).exits(2);
        assert!(
            ran.cause()
                .starts_with("docker-sandbox --clone requires a normal Git repository workspace: "),
            "{}",
            ran.cause()
        );
    }
    assert_eq!(world.calls().len(), 0);
    world.within(&linked, &["run", "--", "true"]).exits(0);
}

#[test]
fn ports_of_a_claimed_sandbox() {
    let world = World::new();
    world.warm("a");
    let sandbox = world.sandboxes().remove(0);
    world.forget_calls();
    assert_eq!(
        world.crabbox(&["ports", "--id", "a"]).ok(),
        "3000/tcp -> 127.0.0.1:3000\n"
    );
    world
        .crabbox(&[
            "ports",
            "--id",
            "a",
            "--publish",
            "3000",
            "--publish",
            "8080:80/tcp",
        ])
        .exits(0);
    world
        .crabbox(&["ports", "--id", "a", "--unpublish", "3000"])
        .exits(0);
    let json = world
        .crabbox(&["ports", "--id", "a", "--json"])
        .exits(0)
        .json();
    assert_eq!(json[0]["host_port"], 3000);
    world.behave("ports", "");
    assert_eq!(
        world.crabbox(&["ports", "--id", "a", "--json"]).ok(),
        "[]\n"
    );
    world.behave("ports", "nonsense");
    world.crabbox(&["ports", "--id", "a", "--json"]).exits(2);
    let lines: Vec<_> = world.calls().iter().map(|call| call.line()).collect();
    assert_eq!(
        lines[..4],
        [
            format!("ports {sandbox}"),
            format!("ports {sandbox} --publish 3000 --publish 8080:80/tcp"),
            format!("ports {sandbox} --unpublish 3000"),
            format!("ports {sandbox} --json"),
        ]
    );
}

#[test]
fn copies_name_the_real_sandbox() {
    let world = World::new();
    world.warm("a");
    let sandbox = world.sandboxes().remove(0);
    world.forget_calls();
    world
        .crabbox(&["cp", "--id", "a", "SANDBOX:/tmp/out.log", "./out.log"])
        .exits(0);
    world
        .crabbox(&["cp", "--id", "a", "-L", "in.txt", "sandbox:/tmp/"])
        .exits(0);
    world.behave("fail-before-cp", "1\nno such file in there");
    let ran = world
        .crabbox(&["cp", "--id", "a", "SANDBOX:/x", "y"])
        .exits(1);
    assert!(
        ran.cause().contains("no such file in there"),
        "{}",
        ran.cause()
    );
    let lines: Vec<_> = world.calls().iter().map(|call| call.line()).collect();
    assert_eq!(
        lines[..2],
        [
            format!("cp {sandbox}:/tmp/out.log ./out.log"),
            format!("cp -L in.txt {sandbox}:/tmp/")
        ]
    );
}

/// The list that other programs make of our own file names stays readable: only what a claim says is used.
#[test]
fn a_lease_is_found_by_every_name_it_has() {
    let world = World::new();
    let lease = world.warm("a");
    let sandbox = world.sandboxes().remove(0);
    for id in ["a", lease.as_str(), sandbox.as_str()] {
        assert_eq!(
            world.crabbox(&["status", id, "--json"]).exits(0).json()["id"],
            lease.as_str()
        );
    }
}

#[test]
fn the_workdir_is_cleaned() {
    let world = World::new();
    let env = [("CRABBOX_DOCKER_SANDBOX_WORKDIR", "/usr//./share/../")];
    world
        .with_env(&env, &["run", "--", "true"])
        .exits(0)
        .says(" workdir=/usr sync_delegated=true");
    let argv = world.call("exec").argv;
    let at = argv.iter().position(|word| word == "--workdir").unwrap();
    assert_eq!(argv[at + 1], "/usr");
}
