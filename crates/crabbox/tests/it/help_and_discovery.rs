//! What the program says of itself.

use serde_json::{Value, json};

use crate::world::{World, blocked};

const COMMANDS: &[&[&str]] = &[
    &["run"],
    &["warmup"],
    &["list"],
    &["status"],
    &["inspect"],
    &["stop"],
    &["cleanup"],
    &["ports"],
    &["cp"],
    &["job"],
    &["job", "list"],
    &["job", "run"],
    &["history"],
    &["logs"],
    &["doctor"],
    &["providers"],
    &["providers", "describe"],
    &["providers", "filters"],
    &["providers", "recommend"],
    &["config"],
    &["config", "show"],
    &["config", "path"],
    &["cache"],
    &["cache", "ls"],
    &["cache", "clear"],
    &["claims"],
    &["claims", "list"],
    &["claims", "forget"],
    &["claims", "prune"],
    &["bench"],
    &["bench", "report"],
    &["init"],
    &["sync-plan"],
    &["trust"],
    &["completion"],
    &["man"],
    &["version"],
];

#[test]
fn help_fits_on_a_screen() {
    let world = World::new();
    for command in COMMANDS {
        for flag in ["--help", "-h"] {
            let ran = world.crabbox(&[*command, &[flag]].concat()).exits(0);
            let lines = ran.out.lines().count();
            assert!(lines < 80 && lines > 3, "{command:?} {flag}: {lines} lines");
            assert_eq!(ran.err, "");
        }
    }
    let top = world.crabbox(&["--help"]).ok();
    assert!(top.lines().count() < 80);
    for args in [&["help"][..], &["-h"]] {
        let ran = world.crabbox(args).exits(0);
        assert_eq!((ran.out, ran.err), (top.clone(), String::new()), "{args:?}");
    }
    assert_eq!(world.calls().len(), 0);
}

#[test]
fn help_about_a_command_is_its_own_help() {
    let world = World::without_sbx();
    for command in COMMANDS {
        let asked = world.crabbox(&[&["help"], *command].concat()).ok();
        let own = world.crabbox(&[*command, &["--help"]].concat()).ok();
        assert_eq!(asked, own, "{command:?}");
    }
    let status = world.crabbox(&["status", "--help"]).ok();
    let line = status.lines().find(|line| line.contains("--wait-timeout"));
    assert!(line.unwrap().ends_with("[default: 5m]"), "{status}");
}

#[test]
fn help_shows_the_chosen_providers_flags_only() {
    let world = World::new();
    let own = world.crabbox(&["run", "--help"]).ok();
    assert!(own.contains("--docker-sandbox-cli"), "{own}");
    assert!(
        !own.contains("--desktop") && !own.contains("--agent-sandbox"),
        "{own}"
    );
    let named = world
        .crabbox(&["run", "--provider", "docker-sandbox", "--help"])
        .ok();
    assert!(named.contains("--docker-sandbox-clone"), "{named}");
    let other = world
        .crabbox(&["run", "--provider", "opensandbox", "--help"])
        .ok();
    assert!(!other.contains("--docker-sandbox"), "{other}");
    // Commands that create no sandbox have no flags that only apply to a new one.
    let stop = world.crabbox(&["stop", "--help"]).ok();
    assert!(
        stop.contains("--docker-sandbox-cli") && !stop.contains("--docker-sandbox-clone"),
        "{stop}"
    );
}

#[test]
fn help_shows_flags_of_archives_and_fixed_leases_where_they_are_taken() {
    let world = World::without_sbx();
    for (provider, archive, fixed) in [
        ("docker-sandbox", false, false),
        ("agent-sandbox", true, true),
        ("opensandbox", true, false),
    ] {
        for (command, flag, is_taken) in [
            ("run", "--no-sync ", archive),
            ("run", "--sync-only[=<BOOL>] ", archive),
            ("run", "--full-resync[=<BOOL>] ", archive),
            ("warmup", "--lease-id <ID> ", fixed),
        ] {
            let help = world.crabbox(&[command, "--provider", provider, "--help"]);
            let help = help.ok();
            assert_eq!(help.contains(flag), is_taken, "{provider} {flag}: {help}");
        }
        let help = world.crabbox(&["run", "--provider", provider, "--help"]);
        assert!(!help.ok().contains("--checksum"));
    }
}

/// What the bundled engine refuses is told by `providers describe` alone.
#[test]
fn help_and_completions_show_only_what_the_bundled_engine_has() {
    let world = World::without_sbx();
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_crabbox")).with_file_name("sbx");
    if !beside.exists() {
        blocked("sbx is not built");
        return;
    }
    let shown = |args: &[&str]| world.crabbox(args).ok();
    let help = shown(&["run", "--help"]);
    let described = shown(&["providers", "describe", "docker-sandbox"]);
    let bash = shown(&["completion", "bash"]);
    for flag in ["cpus", "memory"] {
        let flag = format!("--docker-sandbox-{flag}");
        assert!(help.contains(&flag) && bash.contains(&flag), "{flag}");
    }
    for flag in ["template", "clone", "mcp", "kit"] {
        let flag = format!("--docker-sandbox-{flag}");
        assert!(!help.contains(&flag), "{flag}");
        assert!(!bash.contains(&flag), "{flag}");
        assert!(described.contains(&flag), "{flag}: {described}");
    }
    assert!(
        help.contains("Flags for other engines: crabbox providers describe docker-sandbox"),
        "{help}"
    );
    // They are still known, and what is refused everywhere is offered nowhere.
    let other = world.with_env(&[("CRABBOX_DOCKER_SANDBOX_CLI", "sbx")], &["run", "--help"]);
    assert!(other.ok().contains("--docker-sandbox-template"));
    for shell in ["bash", "zsh", "fish"] {
        let script = shown(&["completion", shell]);
        assert!(!script.contains("tailscale"), "{shell}");
        assert!(script.contains("keep-on-failure"), "{shell}");
    }
}

#[test]
fn without_a_command_the_help_is_shown_and_it_is_a_mistake() {
    let world = World::new();
    let ran = world.crabbox(&[]).exits(2);
    assert!(ran.out.contains("Usage: crabbox"), "{}", ran.out);
    assert_eq!(ran.cause(), "missing command");
}

#[test]
fn the_version_is_bare() {
    let world = World::new();
    let version = format!("{}\n", env!("CARGO_PKG_VERSION"));
    for args in ["--version", "-v", "version"] {
        assert_eq!(world.crabbox(&[args]).ok(), version);
    }
}

#[test]
fn an_unknown_flag_is_one_line_and_a_hint() {
    let world = World::new();
    let ran = world.crabbox(&["run", "--nonsense", "--", "true"]).exits(2);
    assert!(ran.cause().contains("--nonsense"), "{}", ran.err);
    assert!(ran.err.lines().count() <= 3, "{}", ran.err);
}

#[test]
fn discovery_is_static() {
    let world = World::without_sbx();
    assert_eq!(
        world.docker_sandbox(),
        json!({
            "provider": "docker-sandbox", "family": "docker-sandbox", "kind": "delegated-run", "category": "local-sandbox",
            "targets": ["linux"], "features": ["run-session", "mcp-attachments", "cleanup"],
            "runtime": ["delegated-command", "local-runtime", "local-sandbox"], "evidence": ["session"],
            "lifecycle": ["cleanup", "run-session"], "coordinator": "never",
            "classCatalog": {"disposition": "unmapped", "profiles": []},
        })
    );
    let chosen = |flag: &str, value: &str| {
        let list = world
            .crabbox(&["providers", "--json", flag, value])
            .exits(0)
            .json();
        list.as_array()
            .unwrap()
            .iter()
            .any(|one| one["provider"] == "docker-sandbox")
    };
    assert!(chosen("--kind", "delegated-run"));
    assert!(chosen("--feature", "run-session,cleanup"));
    assert!(chosen("--target", "linux"));
    let ran = world
        .crabbox(&["providers", "--feature", "teleport"])
        .exits(2);
    assert!(
        ran.cause()
            .starts_with("unknown --feature `teleport`; allowed: "),
        "{}",
        ran.cause()
    );
    let filters = world
        .crabbox(&["providers", "filters", "--json"])
        .exits(0)
        .json();
    assert!(
        filters["feature"]
            .as_array()
            .unwrap()
            .contains(&json!("run-session"))
    );
}

#[test]
fn describe_has_every_flag_of_the_seed() {
    let world = World::without_sbx();
    // Compiled in: a file that is wrong does not matter.
    world.user_config("nonsense: true\n");
    let told = world
        .crabbox(&["providers", "describe", "docker-sandbox", "--json"])
        .exits(0)
        .json();
    assert_eq!(told["schemaVersion"], 2);
    assert_eq!(told["provider"]["canonical"], "docker-sandbox");
    assert_eq!(told["provider"]["aliases"], json!([]));
    let names: Vec<_> = told["providerFlags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flag| flag["name"].as_str().unwrap())
        .collect();
    // Not the seed's, and of our engine only.
    let ours = names.iter().position(|name| *name == "git-write").unwrap();
    let names = [&names[..ours], &names[ours + 1..]].concat();
    assert_eq!(
        names,
        [
            "cli",
            "agent",
            "template",
            "cpus",
            "memory",
            "clone",
            "workdir",
            "extra-workspace",
            "mcp",
            "kit"
        ]
        .map(|name| format!("docker-sandbox-{name}"))
    );
    let kit = &told["providerFlags"][10];
    assert_eq!(
        (&kit["valueShape"], &kit["repeatable"], &kit["creationOnly"]),
        (&json!("string-list"), &json!(true), &json!(true))
    );
    let ran = world.crabbox(&["providers", "describe", "docker"]).exits(2);
    assert_eq!(ran.cause(), "unknown provider \"docker\"");
}

#[test]
fn the_originals_commands_of_two_words_are_known() {
    let world = World::new();
    assert_eq!(world.crabbox(&["pool", "list", "--json"]).ok().trim(), "[]");
    let cleaned = world.crabbox(&["machine", "cleanup", "--dry-run"]).ok();
    assert_eq!(cleaned, "");
    world.crabbox(&["pool", "drain"]).exits(2);
}

#[test]
fn manual_pages_exist_for_the_program_and_its_commands() {
    let world = World::new();
    let all = world.crabbox(&["man"]).ok();
    assert!(
        all.contains(".TH crabbox 1") && all.contains("warmup"),
        "{all}"
    );
    let one = world.crabbox(&["man", "run"]).ok();
    assert!(
        one.contains(".TH crabbox-run 1") && one.contains("keep"),
        "{one}"
    );
    for (words, flag) in [
        (["config", "show"], "json"),
        (["providers", "describe"], "json"),
        (["claims", "forget"], "LEASE"),
    ] {
        let below = world.crabbox(&[&["man"][..], &words].concat()).ok();
        let title = format!(".TH crabbox-{} 1", words.join("-"));
        assert!(below.contains(&title) && below.contains(flag), "{below}");
        assert!(below.contains("\\fBcrabbox "), "{below}");
    }
    world.crabbox(&["man", "nothing"]).exits(2);
    world
        .crabbox(&["man", "config", "nothing"])
        .exits(2)
        .says("unknown command `config nothing`");
}

#[test]
fn an_unknown_command_is_told_as_sbx_tells_it() {
    let world = World::without_sbx();
    for (args, message, hint) in [
        (
            &["lst"][..],
            "unknown command `lst`",
            "did you mean `crabbox list`?",
        ),
        (&["zzz"], "unknown command `zzz`", "crabbox --help"),
        (
            &["config", "pth"],
            "unknown command `config pth`",
            "did you mean `crabbox config path`?",
        ),
        (
            &["config", "zzz"],
            "unknown command `config zzz`",
            "crabbox config --help",
        ),
    ] {
        let ran = world.crabbox(args).exits(2);
        assert_eq!(ran.err, format!("hint: {hint}\nerror: {message}\n"));
    }
}

#[test]
fn completions_exist_for_the_usual_shells() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = world.crabbox(&["completion", shell]).ok();
        assert!(
            script.contains("crabbox") && script.contains("warmup"),
            "{shell}"
        );
    }
    world.crabbox(&["completion", "tcl"]).exits(2);
}

/// What the shell offers for a line that ends in the last word.
fn completed(world: &World, line: &[&str]) -> Vec<String> {
    let crabbox = world
        .command(&[])
        .get_program()
        .to_str()
        .unwrap()
        .to_owned();
    let script = r#"source <("$0" completion bash); COMP_WORDS=("$0" "$@"); COMP_CWORD=$#
        _crabbox_and_leases "$0" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = std::process::Command::new("bash");
    bash.args(["--norc", "-c", script, &crabbox]).args(line);
    for (name, value) in world.command(&[]).env("LC_ALL", "C").get_envs() {
        bash.env(name, value.unwrap());
    }
    let said = bash.output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    text.lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn slugs_complete() {
    let world = World::new();
    for slug in ["fix-one", "fix-two", "other"] {
        world.warm(slug);
    }
    assert_eq!(world.crabbox(&["claims", "slugs"]).ok().lines().count(), 3);
    for line in [
        &["stop", "fix"][..],
        &["status", "--json", "fix"],
        &["inspect", "fix"],
        &["run", "--id", "fix"],
        &["cp", "--id", "fix"],
        &["claims", "forget", "fix"],
    ] {
        let mut offered = completed(&world, line);
        offered.sort();
        assert_eq!(offered, ["fix-one", "fix-two"], "{line:?}");
    }
    // Neither in the place of a value, nor of a command, nor of a flag.
    for line in [
        &["st"][..],
        &["run", "--slug", "fix"],
        &["status", "--wait-timeout", "fix"],
        &["stop", "--"],
        &["list", "fix"],
    ] {
        let offered = completed(&world, line);
        assert!(
            !offered.iter().any(|word| word.starts_with("fix")),
            "{line:?} {offered:?}"
        );
    }
    let offered = completed(&world, &["run", "--"]);
    assert!(offered.contains(&"--keep".to_owned()), "{offered:?}");
    assert!(
        !offered.contains(&"--desktop".to_owned()),
        "only what can work: {offered:?}"
    );
    let zsh = world.crabbox(&["completion", "zsh"]).ok();
    assert!(
        zsh.contains(":LEASE:_crabbox_leases'") && zsh.contains("\n_crabbox_leases() {"),
        "{zsh}"
    );
    let fish = world.crabbox(&["completion", "fish"]).ok();
    assert!(
        fish.contains("-l id -x -a \"(crabbox claims slugs 2>/dev/null)\""),
        "{fish}"
    );
}

#[test]
fn failures_are_json_where_data_would_be() {
    let world = World::new();
    let error = |args: &[&str], code: i32| -> Value {
        let ran = world.crabbox(args).exits(code);
        assert_eq!(ran.out, "", "{args:?}");
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        serde_json::from_str(ran.last()).unwrap()
    };
    let told = error(&["stop", "--json", "nope"], 4);
    assert_eq!(told["error"]["code"], "not_found");
    assert_eq!(told["error"]["exitCode"], 4);
    assert_eq!(told["error"]["hints"], json!(["crabbox list"]));
    assert_eq!(
        error(&["list", "--json", "--provider", "docker"], 2)["error"]["code"],
        "unknown_provider"
    );
    assert_eq!(
        error(&["list", "--json", "--nonsense"], 2)["error"]["code"],
        "usage"
    );
    assert_eq!(
        error(&["run", "--json", "--desktop", "--", "true"], 2)["error"]["code"],
        "unsupported"
    );
    world.repo_config("nonsense: 1\n");
    assert_eq!(
        error(&["config", "show", "--json"], 2)["error"]["code"],
        "config"
    );
    world.repo_config("ttl: 99h\n");
    assert_eq!(
        error(&["config", "show", "--json"], 2)["error"]["code"],
        "untrusted"
    );
    world.repo_config("");
    world.warm("a");
    world.behave("ls-raw", "{}");
    assert_eq!(
        error(&["status", "a", "--json"], 2)["error"]["code"],
        "provider_malformed"
    );
    world.behave("fail-before-ls", "1\nboom");
    let told = error(&["stop", "--json", "a"], 1);
    assert_eq!(told["error"]["code"], "provider");
    assert_eq!(told["error"]["exitCode"], 1);
    // "Unknown" is never reported as "gone", nor "not yours" as either.
    let flag = ["--docker-sandbox-cli", "/nonexistent/sbx"];
    let told = error(&[&["stop", "--json"], &flag[..], &["a"]].concat(), 1);
    assert_eq!(told["error"]["code"], "provider_missing");
    assert_eq!(world.claim_names().len(), 1);
    let other = world.path("other");
    std::fs::create_dir_all(other.join(".git")).unwrap();
    let args = ["run", "--json", "--id", "a", "--", "true"];
    let ran = world.within(&other, &args).exits(2);
    let told: Value = serde_json::from_str(ran.last()).unwrap();
    assert_eq!(told["error"]["code"], "other_repository");
    assert_eq!(told["error"]["exitCode"], 2);
}

/// What belongs to the command is not ours.
#[test]
fn a_flag_of_the_command_changes_nothing_of_ours() {
    let world = World::new();
    world.behave("fail-before-create", "1\nboom");
    let ran = world.crabbox(&["run", "echo", "--json"]).exits(1);
    assert!(!ran.last().starts_with('{'), "{}", ran.last());
}

/// The nearest flag is no advice: it may be one that is refused.
#[test]
fn an_unknown_flag_leads_to_the_help_of_its_command() {
    let world = World::new();
    for (args, command) in [
        (&["doctor", "--idle"][..], "crabbox doctor"),
        (&["run", "--timing", "--", "true"], "crabbox run"),
        (
            &["providers", "describe", "--jsno", "x"],
            "crabbox providers describe",
        ),
        (&["--nonsense"], "crabbox"),
    ] {
        let ran = world.crabbox(args).exits(2);
        let hint = format!("hint: {command} --help\n");
        assert!(ran.err.starts_with(&hint), "{args:?}: {}", ran.err);
        assert!(
            ran.cause().contains("unexpected argument '--"),
            "{}",
            ran.err
        );
    }
}

/// What the user's own file says counts as much as a variable.
#[test]
fn help_shows_the_flags_of_the_engine_that_the_user_configured() {
    let world = World::without_sbx();
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_crabbox")).with_file_name("sbx");
    if !beside.exists() {
        blocked("sbx is not built");
        return;
    }
    let flag = "--docker-sandbox-template";
    let shows = |args: &[&str]| world.crabbox(args).ok().contains(flag);
    let both = || (shows(&["run", "--help"]), shows(&["completion", "bash"]));
    assert_eq!(both(), (false, false));
    world.repo_config("provider: docker-sandbox\n");
    assert_eq!(both(), (false, false), "a repository chooses no program");
    world.repo_config("");
    for config in [
        "provider: docker-sandbox\n",
        "dockerSandbox:\n  cliPath: sbx\n",
    ] {
        world.user_config(config);
        assert_eq!(both(), (true, true), "{config}");
    }
    world.user_config("provider: opensandbox\n");
    let help = world.crabbox(&["run", "--help"]).ok();
    assert!(
        help.contains("--opensandbox-") && !help.contains(flag),
        "{help}"
    );
    // Settings that cannot be read are no reason to show no help.
    world.user_config("nonsense: [\n");
    assert!(shows(&["run", "--help"]));
}
