//! Settings, from the files to the command line of `sbx`.

use std::fs;

use serde_json::json;

use crate::world::{World, write};

/// The template that a warm-up asks the stand-in for.
fn template(world: &World, env: &[(&str, &str)], flags: &[&str]) -> String {
    world.forget_calls();
    world.with_env(env, &[&["warmup"], flags].concat()).exits(0);
    let argv = world.call("create").argv;
    let at = argv.iter().position(|word| word == "--template").unwrap();
    argv[at + 1].clone()
}

#[test]
fn flags_beat_env_beats_repository_beats_user() {
    let world = World::new();
    world.user_config("dockerSandbox:\n  template: user\n");
    assert_eq!(template(&world, &[], &[]), "user");
    write(
        &world.repo().join("crabbox.yaml"),
        "dockerSandbox:\n  template: repository\n",
    );
    assert_eq!(template(&world, &[], &[]), "repository");
    world.repo_config("dockerSandbox:\n  template: hidden\n");
    assert_eq!(
        template(&world, &[], &[]),
        "hidden",
        "both files, the second wins"
    );
    let env = [("CRABBOX_DOCKER_SANDBOX_TEMPLATE", "env")];
    assert_eq!(template(&world, &env, &[]), "env");
    assert_eq!(
        template(&world, &env, &["--docker-sandbox-template", "flag"]),
        "flag"
    );
    assert_eq!(
        template(&world, &env, &["-docker-sandbox-template=flag"]),
        "flag"
    );
}

#[test]
fn show_says_where_every_value_came_from() {
    let world = World::new();
    world.user_config("ttl: 2h\ndockerSandbox:\n  memory: 4g\n");
    world.repo_config("idleTimeout: 5m\n\ndockerSandbox:\n  cpus: 2\n");
    let env = [("CRABBOX_DOCKER_SANDBOX_MCP", "one,,two")];
    let args = ["config", "show", "--json", "--docker-sandbox-kit", "k"];
    let shown = world.with_env(&env, &args).exits(0).json();
    let source = |key: &str| shown["origins"][key]["source"].as_str().unwrap().to_owned();
    assert_eq!(source("ttl"), "user_config");
    assert_eq!(source("idleTimeout"), "repo_config");
    assert_eq!(shown["origins"]["dockerSandbox.cpus"]["line"], 4);
    assert_eq!(source("dockerSandbox.mcp"), "environment");
    assert_eq!(source("dockerSandbox.kit"), "flag");
    assert_eq!(source("dockerSandbox.template"), "compiled_default");
    assert_eq!(shown["dockerSandbox"]["mcp"], json!(["one", "two"]));
    assert_eq!(shown["dockerSandbox"]["memory"], "4g");
    assert_eq!(shown["dockerSandbox"]["cpus"], 2);
    assert_eq!(shown["ttl"], "2h0m0s");
    assert_eq!(shown["providerSelected"], false);
}

#[test]
fn a_repository_may_not_set_what_reaches_out_of_it() {
    let world = World::new();
    for (key, yaml) in [
        (
            "dockerSandbox.cliPath",
            "dockerSandbox:\n  cliPath: ./sbx\n",
        ),
        (
            "dockerSandbox.extraWorkspaces",
            "dockerSandbox:\n  extraWorkspaces: [/etc]\n",
        ),
        (
            "dockerSandbox.workdir",
            "dockerSandbox:\n  workdir: /elsewhere\n",
        ),
        ("env.allow", "env:\n  allow: [HOME]\n"),
        ("ttl", "ttl: 48h\n"),
        ("idleTimeout", "idleTimeout: 48h\n"),
    ] {
        world.repo_config(yaml);
        let ran = world.crabbox(&["run", "--", "true"]).exits(2);
        let ran = ran.says(&format!("a repository may not set `{key}`"));
        ran.says("hint: review the file, then accept it with `crabbox trust`");
    }
    assert_eq!(world.calls().len(), 0);
    // All of them are named at once.
    world.repo_config("ttl: 48h\nenv:\n  allow: [HOME]\n");
    world
        .crabbox(&["run", "--", "true"])
        .exits(2)
        .says("`ttl`")
        .says("`env.allow`");
    // What only concerns the sandbox itself is accepted.
    world.repo_config("provider: docker-sandbox\nttl: 10m\nidleTimeout: 5m\ndockerSandbox:\n  template: t\n  cpus: 1\n  memory: 1g\n  mcp: [m]\n  kit: [k]\n");
    world.crabbox(&["run", "--", "true"]).exits(0);
}

#[test]
fn no_checkout_keeps_its_user_from_looking_and_stopping() {
    let world = World::new();
    for (number, yaml) in [
        "dockerSandbox:\n  cliPath: ./theirs\n",
        "provider: somewhere-else\n",
        "bogus: 1\n",
        "a: [",
    ]
    .into_iter()
    .enumerate()
    {
        let slug = format!("s{number}");
        world.warm(&slug);
        world.repo_config(yaml);
        world
            .crabbox(&["run", "--id", &slug, "--", "true"])
            .exits(2);
        for args in [
            &["list"][..],
            &["status", &slug],
            &["cleanup"],
            &["stop", &slug],
        ] {
            let ran = world.crabbox(args).exits(0);
            ran.says("warning: skipped: ").says(".crabbox.yaml");
        }
        fs::remove_file(world.repo().join(".crabbox.yaml")).unwrap();
        world.is_clean();
    }
    // The user's own mistakes are the user's to mend.
    world.user_config("bogus: 1\n");
    world.crabbox(&["list"]).exits(2);
}

#[test]
fn trust_holds_for_one_file_as_it_is() {
    let world = World::new();
    world.repo_config("ttl: 48h\n");
    world.crabbox(&["warmup", "--slug", "a"]).exits(2);
    world
        .crabbox(&["trust"])
        .exits(0)
        .says("trusted ")
        .says("sha256:");
    world.crabbox(&["warmup", "--slug", "a"]).exits(0);
    assert!(
        world
            .crabbox(&["trust", "--list"])
            .ok()
            .contains(".crabbox.yaml sha256:")
    );
    // Another content is another file.
    world.repo_config("ttl: 49h\n");
    world.crabbox(&["warmup", "--slug", "b"]).exits(2);
    world.repo_config("ttl: 48h\n");
    world.crabbox(&["warmup", "--slug", "b"]).exits(0);
    // The same content elsewhere as well.
    write(&world.repo().join("crabbox.yaml"), "ttl: 48h\n");
    world.crabbox(&["warmup", "--slug", "c"]).exits(2);
    fs::remove_file(world.repo().join("crabbox.yaml")).unwrap();
    world
        .crabbox(&["trust", "--revoke"])
        .exits(0)
        .says("no longer trusted");
    world.crabbox(&["warmup", "--slug", "c"]).exits(2);
    fs::remove_file(world.repo().join(".crabbox.yaml")).unwrap();
    world.crabbox(&["trust"]).exits(4);
}

#[test]
fn what_could_never_load_is_not_trusted() {
    let world = World::new();
    for yaml in ["bogus: 1\n", "ttl: soon\n", "a: ["] {
        world.repo_config(yaml);
        world.crabbox(&["trust"]).exits(2).says("parse config ");
    }
    assert_eq!(world.crabbox(&["trust", "--list"]).ok(), "");
}

#[test]
fn trust_is_taken_back_also_from_a_file_that_is_gone() {
    let world = World::new();
    let file = world.repo().join(".crabbox.yaml");
    let named = file.to_str().unwrap();
    let trusted = || {
        world.repo_config("ttl: 48h\n");
        world.crabbox(&["trust"]).exits(0);
        fs::remove_file(&file).unwrap();
    };
    trusted();
    world
        .within(&world.path("home"), &["trust", "--revoke", named])
        .exits(0)
        .says("no longer trusted");
    assert_eq!(world.crabbox(&["trust", "--list"]).ok(), "");
    trusted();
    world
        .crabbox(&["trust", "--revoke", ".crabbox.yaml"])
        .exits(0);
    trusted();
    world.crabbox(&["trust", "--revoke"]).exits(0);
    assert_eq!(world.crabbox(&["trust", "--list"]).ok(), "");
    world.crabbox(&["trust", "--revoke"]).exits(4);
    world
        .crabbox(&["trust", "--revoke", named])
        .exits(0)
        .says("was not trusted");
    // With the directory gone as well.
    trusted();
    fs::rename(world.repo(), world.path("moved")).unwrap();
    world
        .within(&world.path("home"), &["trust", "--revoke", named])
        .exits(0)
        .says("no longer trusted");
    assert_eq!(
        world.within(&world.path("home"), &["trust", "--list"]).ok(),
        ""
    );
    world
        .within(&world.path("home"), &["trust", named])
        .exits(2);
}

#[test]
fn a_file_named_by_the_environment_stands_for_all_others() {
    let world = World::new();
    world.user_config("dockerSandbox:\n  template: user\n  memory: 1g\n");
    world.repo_config("dockerSandbox:\n  template: repository\n");
    let file = world.path("named.yaml");
    write(
        &file,
        format!(
            "dockerSandbox:\n  template: named\n  extraWorkspaces: [{}]\n",
            world.path("home").display()
        ),
    );
    let env = [("CRABBOX_CONFIG", file.to_str().unwrap())];
    assert_eq!(template(&world, &env, &[]), "named");
    let create = world.call("create").line();
    assert!(!create.contains("--memory"), "{create}");
    assert!(
        create.ends_with(world.path("home").to_str().unwrap()),
        "{create}"
    );
    // A file in the repository is untrusted, also when a variable names it, and also through a symlink.
    let inside = world.repo().join("inside.yaml");
    fs::copy(&file, &inside).unwrap();
    let link = world.path("link.yaml");
    std::os::unix::fs::symlink(&inside, &link).unwrap();
    for path in [inside, link] {
        let env = [("CRABBOX_CONFIG", path.to_str().unwrap())];
        world
            .with_env(&env, &["warmup"])
            .exits(2)
            .says("`dockerSandbox.extraWorkspaces`");
    }
    // It is the file that is told about, too.
    let named = file.display();
    let env = [("CRABBOX_CONFIG", file.to_str().unwrap())];
    assert_eq!(
        world.with_env(&env, &["config", "path"]).ok(),
        format!("{named}\n")
    );
    let shown = world.with_env(&env, &["config", "show"]).ok();
    assert!(shown.starts_with(&format!("config={named}\n")), "{shown}");
    let env = [("CRABBOX_CONFIG", "/nowhere.yaml")];
    world
        .with_env(&env, &["list"])
        .exits(2)
        .says("CRABBOX_CONFIG names `/nowhere.yaml`");
}

#[test]
fn known_keys_of_others_are_listed_and_harmless() {
    let world = World::new();
    world.user_config(
        "broker:\n  url: https://example.org\nserverType: y\n\
         ssh:\n  user: u\n  key: /k\nsshKey: /k\nsshPort: 2222\nstatic:\n  host: h\n",
    );
    let shown = world.crabbox(&["config", "show", "--json"]).exits(0).json();
    let keys: Vec<_> = shown["ignored"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["key"])
        .collect();
    assert_eq!(
        keys,
        ["broker", "serverType", "ssh", "sshKey", "sshPort", "static"]
    );
    let text = world.crabbox(&["config", "show"]).ok();
    assert!(text.contains("ignored key=broker"), "{text}");
    // Of a machine over SSH nothing reaches the engine, nor the command.
    let ran = world.crabbox(&["run", "--", "env"]).exits(0);
    ran.never_says("SSH").never_says("2222");
    for call in world.calls() {
        assert!(!call.line().contains("/k"), "{call:?}");
    }
}

#[test]
fn bad_settings_of_the_provider_are_refused_before_anything_is_made() {
    let world = World::new();
    for (flags, words) in [
        (
            &["--docker-sandbox-agent", "claude"][..],
            "docker-sandbox agent \"claude\" is not supported yet; v1 supports shell only",
        ),
        (
            &["--docker-sandbox-workdir", "/"],
            "docker-sandbox workdir `/` is too broad; choose a dedicated workspace path",
        ),
        (
            &["--docker-sandbox-workdir", "work"],
            "docker-sandbox workdir `work` must be absolute",
        ),
        (
            &["--docker-sandbox-kit", "--privileged"],
            "docker-sandbox kit entry \"--privileged\" begins with a hyphen",
        ),
    ] {
        let flags = flags.to_vec();
        let joined = format!("{}={}", flags[0], flags[1]);
        let ran = world.crabbox(&["run", &joined, "--", "true"]).exits(2);
        assert_eq!(ran.cause(), words);
        let ran = world.crabbox(&["config", "show", &joined]).exits(2);
        assert_eq!(ran.cause(), words);
    }
    for cpus in ["-1", "1.5", "many"] {
        let env = [("CRABBOX_DOCKER_SANDBOX_CPUS", cpus)];
        world
            .with_env(&env, &["run", "--", "true"])
            .exits(2)
            .says("CRABBOX_DOCKER_SANDBOX_CPUS");
        let flag = format!("--docker-sandbox-cpus={cpus}");
        world
            .crabbox(&["run", &flag, "--", "true"])
            .exits(2)
            .says("docker-sandbox-cpus");
    }
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn names_that_are_no_provider_here() {
    let world = World::new();
    for name in ["docker", "container", "local-docker"] {
        let ran = world.crabbox(&["list", "--provider", name]).exits(2);
        assert_eq!(ran.cause(), format!("unknown provider {name:?}"));
        ran.says("local-container is not part of this build");
    }
    let ran = world
        .crabbox(&["run", "--provider", "osb", "--", "true"])
        .exits(2);
    assert_eq!(ran.cause(), "unknown provider \"osb\"");
    let ran = world
        .with_env(&[("CRABBOX_PROVIDER", "nope")], &["list"])
        .exits(2);
    assert_eq!(ran.cause(), "CRABBOX_PROVIDER: unknown provider \"nope\"");
    // Case and blanks do not matter.
    world
        .crabbox(&["list", "--provider", " Docker-Sandbox "])
        .exits(0);
    world.repo_config("provider: somewhere-else\n");
    world.crabbox(&["run", "--", "true"]).exits(2);
}

#[test]
fn a_repository_may_ask_for_a_clone_and_for_the_only_agent() {
    let world = World::new();
    world.repo_config("dockerSandbox:\n  clone: true\n  agent: shell\n");
    world.crabbox(&["warmup"]).exits(0);
    let create = world.call("create").line();
    assert!(create.contains(" --clone shell "), "{create}");
    let file = world.repo().join(".crabbox.yaml");
    world.repo_config("dockerSandbox:\n  agent: claude\n");
    for args in [&["config", "show"][..], &["warmup"], &["run", "--", "true"]] {
        let ran = world.crabbox(args).exits(2);
        assert_eq!(
            ran.cause(),
            format!(
                "parse config {}: line 2 column 10: docker-sandbox agent \"claude\" is not supported yet; v1 supports shell only",
                file.display()
            )
        );
    }
    assert_eq!(world.count("create"), 1);
}

#[test]
fn a_repository_may_not_aim_another_provider_either() {
    let world = World::new();
    world.repo_config("agentSandbox:\n  kubectl: ./theirs\n  namespace: x\n");
    for args in [&["config", "show"][..], &["run", "--", "true"]] {
        let ran = world.crabbox(args).exits(2);
        ran.says("a repository may not set `agentSandbox.kubectl`");
    }
    assert_eq!(world.log().len(), 0);
    world.repo_config("agentSandbox:\n  podReadyTimeout: 60s\n  execTimeoutSecs: 30\n");
    world.crabbox(&["run", "--", "true"]).exits(0);
}
