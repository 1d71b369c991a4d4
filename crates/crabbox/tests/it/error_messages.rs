//! What is wrong is said with its place, and the last line of stderr is the cause.

use crate::world::World;

#[test]
fn a_mistake_in_a_file_ends_with_the_cause_after_the_line_it_is_about() {
    let world = World::new();
    world.user_config("ttl: 1h\nbogus: 1\n");
    let ran = world.crabbox(&["list"]).exits(2);
    let file = world.path("config/crabbox/config.yaml");
    assert_eq!(
        ran.err,
        format!(
            "  |\n2 | bogus ...\n  | ^^^^^\nerror: parse config {}: line 2 column 1: unknown key `bogus`\n",
            file.display()
        )
    );
    let told = world.crabbox(&["list", "--json"]).exits(2);
    let told: serde_json::Value = serde_json::from_str(&told.err).unwrap();
    assert_eq!(told["error"]["snippet"], "  |\n2 | bogus ...\n  | ^^^^^");
    assert!(!told["error"]["message"].as_str().unwrap().contains('\n'));
}

#[test]
fn a_wrong_command_line_ends_with_all_of_the_cause() {
    let world = World::new();
    let ran = world.crabbox(&["providers", "describe"]).exits(2);
    assert_eq!(
        ran.cause(),
        "the following required arguments were not provided: <PROVIDER>"
    );
    let ran = world.crabbox(&["run", "--keep=perhaps", "--", "true"]);
    let ran = ran.exits(2);
    assert!(
        ran.cause().starts_with("invalid value 'perhaps'")
            && ran.cause().ends_with("[possible values: true, false]"),
        "{}",
        ran.cause()
    );
}

#[test]
fn an_engines_hints_about_its_own_flags_are_left_out() {
    let world = World::new();
    world.behave(
        "fail-before-create",
        "1\n`--template` is not part of this version yet\nhint: leave it out, or use `-t host`",
    );
    let ran = world.crabbox(&["run", "--", "true"]).exits(1);
    assert!(
        ran.cause()
            .ends_with("`--template` is not part of this version yet"),
        "{}",
        ran.cause()
    );
    ran.never_says("-t host");
}

#[test]
fn what_an_engine_says_on_several_lines_is_one_cause() {
    let world = World::new();
    let said = "1\nERROR: cannot start:\n\n  no space left\n  on device";
    world.warm("a");
    world.behave("fail-before-ls", said);
    let ran = world.crabbox(&["list"]);
    let last = "`sbx ls --json` exited 1: ERROR: cannot start: no space left on device";
    assert_eq!(ran.exits(1).cause(), last);
    // Programs get what it said.
    let ran = world.crabbox(&["list", "--json"]).exits(1);
    let told: serde_json::Value = serde_json::from_str(ran.last()).unwrap();
    let cause = "ERROR: cannot start:\n\n  no space left\n  on device";
    assert_eq!(told["error"]["causes"], serde_json::json!([cause]));
}

#[test]
fn invalid_values_in_files_are_shown_with_file_and_line() {
    let world = World::new();
    let file = world.path("config/crabbox/config.yaml");
    let sandbox = "dockerSandbox:\n  ";
    for (yaml, line, column, what) in [
        (
            "ttl: 1h\nprovider: nope\n",
            2,
            11,
            "unknown provider \"nope\"".to_owned(),
        ),
        (
            &format!("{sandbox}agent: claude\n"),
            2,
            10,
            "docker-sandbox agent \"claude\" is not supported yet; v1 supports shell only"
                .to_owned(),
        ),
        (
            &format!("{sandbox}workdir: /\n"),
            2,
            12,
            "docker-sandbox workdir `/` is too broad; choose a dedicated workspace path".to_owned(),
        ),
        (
            &format!("{sandbox}kit:\n    - -x\n"),
            2,
            3,
            "docker-sandbox kit entry \"-x\" begins with a hyphen".to_owned(),
        ),
        (
            "env:\n  allow: [CI, FOO-BAR]\n",
            2,
            15,
            "`env.allow` must be a list of variables, such as `CI` or `NPM_*`, not `FOO-BAR`"
                .to_owned(),
        ),
        (
            "profiles:\n  ci:\n    envAllow: [1A]\n",
            3,
            16,
            "`profiles.ci.envAllow` must be a list of variables, such as `CI` or `NPM_*`, not `1A`"
                .to_owned(),
        ),
    ] {
        world.user_config(yaml);
        for args in [&["config", "show"][..], &["run", "--", "true"]] {
            let ran = world.crabbox(args).exits(2);
            let place = format!(
                "parse config {}: line {line} column {column}: {what}",
                file.display()
            );
            assert_eq!(ran.cause(), place);
            let text = yaml.lines().nth(line - 1).unwrap();
            let marked = format!("{line} | {text}\n  | {}^", " ".repeat(column - 1));
            ran.says(&marked);
        }
    }
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn bad_values_elsewhere_come_with_the_name_of_the_variable_or_flag() {
    let world = World::new();
    for (name, value, what) in [
        (
            "CRABBOX_PROVIDER",
            "nope",
            "CRABBOX_PROVIDER: unknown provider \"nope\"",
        ),
        (
            "CRABBOX_ENV_ALLOW",
            "CI,a-b",
            "CRABBOX_ENV_ALLOW must be a list of variables, such as `CI` or `NPM_*`, not `a-b`",
        ),
        (
            "CRABBOX_DOCKER_SANDBOX_WORKDIR",
            "here",
            "CRABBOX_DOCKER_SANDBOX_WORKDIR: docker-sandbox workdir `here` must be absolute",
        ),
        ("CRABBOX_TTL", "0s", "CRABBOX_TTL: ttl must be positive"),
    ] {
        for args in [&["config", "show"][..], &["run", "--", "true"]] {
            let ran = world.with_env(&[(name, value)], args).exits(2);
            assert_eq!(ran.cause(), what);
        }
    }
    let ran = world.crabbox(&["config", "show", "--docker-sandbox-agent", "claude"]);
    let ran = ran.exits(2).says("--docker-sandbox-agent claude\n");
    assert_eq!(
        ran.cause(),
        "docker-sandbox agent \"claude\" is not supported yet; v1 supports shell only"
    );
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn without_a_home_nothing_is_made_and_what_needs_none_works() {
    let world = World::new();
    let without_home = |home: Option<&str>, args: &[&str]| {
        let mut command = world.command(args);
        for name in ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env_remove(name);
        }
        command.envs(home.map(|home| ("HOME", home)));
        crate::world::Ran::from(command.output().unwrap())
    };
    for home in [None, Some(""), Some("relative")] {
        for args in [
            &["run", "--", "true"][..],
            &["warmup"],
            &["list"],
            &["history"],
            &["trust"],
        ] {
            let ran = without_home(home, args).exits(2);
            assert!(
                ran.cause().contains("HOME") && ran.cause().contains("XDG_STATE_HOME"),
                "{}",
                ran.cause()
            );
            ran.says("hint: set HOME");
        }
    }
    assert_eq!(world.calls().len(), 0);
    assert!(!std::path::Path::new("/nonexistent").exists());
    for args in [
        &["--version"][..],
        &["--help"],
        &["run", "--help"],
        &["providers"],
        &["completion", "bash"],
    ] {
        without_home(None, args).exits(0);
    }
    // A place for state is enough.
    let mut command = world.command(&["run", "--", "true"]);
    command.env_remove("HOME").env_remove("XDG_CONFIG_HOME");
    crate::world::Ran::from(command.output().unwrap()).exits(0);
}

/// Only the path of the user's file is unknown then, and no command needs that file.
#[test]
fn where_only_state_has_a_place_the_users_file_is_missing_and_nothing_else() {
    let world = World::new();
    let run = |args: &[&str]| {
        let mut command = world.command(args);
        command.env_remove("HOME").env_remove("XDG_CONFIG_HOME");
        crate::world::Ran::from(command.output().unwrap())
    };
    let said = "cannot find the configuration directory: neither XDG_CONFIG_HOME nor HOME is an absolute path";
    let doctor = run(&["doctor"]).exits(0).out;
    assert!(
        doctor.starts_with(&format!("warn    config             {said}\n")),
        "{doctor}"
    );
    assert!(doctor.contains("ok      sbx_inventory"), "{doctor}");
    let shown = run(&["config", "show"]).ok();
    assert!(shown.starts_with("config=-\n"), "{shown}");
    let path = run(&["config", "path"]).exits(2);
    assert_eq!(path.cause(), said);
}

#[test]
fn a_negative_value_after_a_blank_is_a_value() {
    let world = World::new();
    for (flags, what) in [
        (&["--ttl", "-5m"][..], "ttl must be positive"),
        (&["--idle-timeout", "-1s"], "idle timeout must be positive"),
        (
            &["--docker-sandbox-cpus", "-1"],
            "--docker-sandbox-cpus must be non-negative, not `-1`",
        ),
    ] {
        let ran = world.crabbox(&[&["run"], flags, &["--", "true"]].concat());
        assert_eq!(ran.exits(2).cause(), what);
        let ran = world.crabbox(&[&["warmup"], flags].concat());
        assert_eq!(ran.exits(2).cause(), what);
    }
    let ran = world.crabbox(&["status", "--wait", "--wait-timeout", "-5m", "x"]);
    assert!(
        ran.cause()
            .starts_with("invalid duration `-5m` for --wait-timeout: "),
        "{}",
        ran.cause()
    );
    ran.exits(2);
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn a_star_alone_forwards_nothing_and_that_is_said() {
    let world = World::new();
    let ignored = "ignoring bare `*`; use names or prefixes such as `NPM_*`";
    let env = [("SECRET_PLAN", "x"), ("CI", "1")];
    let ran = world.with_env(&env, &["run", "--allow-env", "*", "--", "true"]);
    let ran = ran
        .exits(0)
        .says(&format!("warning: --allow-env: {ignored}"));
    ran.says("vars=CI=set\n");
    world.user_config("env:\n  allow: ['*']\n");
    let ran = world.with_env(&env, &["run", "--", "true"]).exits(0);
    ran.says(&format!("warning: env.allow: {ignored}"));
    let named = [("CRABBOX_ENV_ALLOW", "*"), ("SECRET_PLAN", "x")];
    let ran = world.with_env(&named, &["run", "--", "true"]).exits(0);
    ran.says(&format!("warning: CRABBOX_ENV_ALLOW: {ignored}"));
    for file in world.env_files() {
        assert!(!file.to_string().contains("SECRET_PLAN"), "{file}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_instead_of_waited_for() {
    let world = World::new();
    let pipe = |path: &std::path::Path| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    let refused = |path: &std::path::Path, args: &[&str]| {
        let ran = world.crabbox(args).exits(2);
        assert!(
            ran.cause().contains(path.to_str().unwrap())
                && ran.cause().ends_with("not a regular file"),
            "{}",
            ran.cause()
        );
    };
    let profile = world.path("home/profile");
    pipe(&profile);
    let from = ["run", "--env-from-profile", profile.to_str().unwrap()];
    refused(&profile, &[&from[..], &["--", "true"]].concat());
    let ignore = world.repo().join(".crabboxignore");
    pipe(&ignore);
    let ran = world.crabbox(&["sync-plan"]).exits(2);
    assert!(ran.cause().ends_with("not a regular file"));
    for path in [
        world.path("config/crabbox/config.yaml"),
        world.repo().join(".crabbox.yaml"),
        world.state().join("trust.json"),
    ] {
        pipe(&path);
        refused(&path, &["config", "show"]);
        refused(&path, &["run", "--", "true"]);
        std::fs::remove_file(&path).unwrap();
    }
    world.user_config(&"#".repeat((1 << 20) + 1));
    let ran = world.crabbox(&["config", "show"]).exits(2);
    assert!(ran.cause().ends_with("larger than 1 MiB"));
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn an_unsupported_target_does_not_stop_lenient_commands() {
    let world = World::new();
    let lease = world.warm("w");
    world.repo_config("target: windows\n");
    let file = world.repo().join(".crabbox.yaml");
    let told = format!(
        "warning: skipped: config {}:1: unsupported `target` `windows`, expected linux\n",
        file.display()
    );
    for args in [
        &["list"][..],
        &["status", "w"],
        &["cleanup"],
        &["stop", "w"],
    ] {
        world.crabbox(args).exits(0).says(&told);
    }
    assert!(!world.claim_names().contains(&lease));
    world
        .crabbox(&["run", "--", "true"])
        .exits(2)
        .says("supports target=linux only");
}
