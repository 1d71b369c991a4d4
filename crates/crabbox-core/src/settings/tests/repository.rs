//! What a repository may and may not say.

use serde_json::json;

use super::*;

#[test]
fn bug_7_a_repository_may_not_choose_the_program() {
    let text = "# hello\nmadeUp:\n  cliPath: ./evil\n";
    let case = Case::default().repository(text);
    assert_eq!(
        case.failure(),
        untrusted(
            "config /r/crabbox.yaml:3: a repository may not set `madeUp.cliPath`: it controls what runs or is reachable outside the sandbox"
        )
    );
    // Also when a flag would win.
    assert_eq!(
        Case::default()
            .repository(text)
            .flag("made-up-cli", "x")
            .failure()
            .code,
        Code::Untrusted
    );
    // The user may.
    assert_eq!(
        Case::default()
            .user(text)
            .settings()
            .text("madeUp", "cliPath"),
        "./evil"
    );
}

#[test]
fn trust_lifts_a_refusal_for_one_content() {
    let dir = tempfile::tempdir().unwrap();
    let text = "madeUp: {cliPath: ./tool}\nttl: 24h\nenv: {allow: [TOKEN]}\nprovider: other\n";
    let mut case = Case::default().repository(text);
    assert_eq!(case.failure().code, Code::Untrusted);
    TrustStore::add(dir.path(), "/r/crabbox.yaml".as_ref(), text.as_bytes()).unwrap();
    case.trust = TrustStore::read(dir.path()).unwrap();
    let settings = case.settings();
    assert_eq!(settings.text("madeUp", "cliPath"), "./tool");
    assert_eq!(settings.provider(), "other");
    case.repository[0].bytes.push(b'\n');
    assert_eq!(case.failure().code, Code::Untrusted);
}

#[test]
fn trust_does_not_lift_what_no_file_may_set() {
    for (text, expected) in [
        (
            "madeUp: {forgetMissing: true}",
            "`madeUp.forgetMissing` cannot be set in a file; use --made-up-forget-missing",
        ),
        (
            "madeUp: {apiURL: https://u:p@h}",
            "`madeUp.apiURL` cannot be set in a file; use --made-up-api-url",
        ),
    ] {
        let failure = Case::default().user(text).failure();
        assert_eq!(failure.code, Code::Config);
        let line = failure.message.lines().next().unwrap();
        assert!(line.ends_with(expected), "{line}");
        assert!(!failure.message.contains("u:p"), "{failure}");
    }
}

#[test]
fn a_repository_may_only_shorten() {
    let case = |user: &str, text: &str| Case::default().user(user).repository(text);
    let ttl = |case: Case| case.settings().duration(None, "ttl").as_secs() / 60;
    assert_eq!(ttl(case("", "ttl: 30m")), 30);
    assert_eq!(ttl(case("", "ttl: 90m")), 90);
    assert_eq!(ttl(case("ttl: 4h", "ttl: 2h")), 120);
    assert_eq!(
        case("ttl: 20m", "lease:\n  ttl: 30m").failure(),
        untrusted(
            "config /r/crabbox.yaml:2: a repository may not set `ttl`: 30m0s is longer than your 20m0s"
        )
    );
    assert_eq!(
        case("", "ttl: 100m\nmadeUp: {readyTimeout: 0s}").failure(),
        {
            let mut failure = untrusted(
                "config /r/crabbox.yaml:1: a repository may not set `ttl`: 1h40m0s is longer than your 1h30m0s",
            );
            failure.also = vec!["config /r/crabbox.yaml:2: a repository may not set `madeUp.readyTimeout`: 0s is longer than your 3m0s".to_owned()];
            failure
        }
    );
    assert_eq!(ttl(case("", "ttl: 100m").flag("ttl", "4h")), 240);
}

#[test]
fn a_repository_may_only_forward_what_the_user_forwards() {
    let allow = |case: Case| case.settings().list("env", "allow").to_vec();
    let case = |text: &str| Case::default().repository(text);
    assert_eq!(allow(case("env: {allow: [CI]}")), ["CI"]);
    assert_eq!(allow(case("env: {allow: []}")), [""; 0]);
    assert_eq!(
        case("env:\n  allow: [CI, AWS_SECRET_ACCESS_KEY, 'GH*']").failure(),
        untrusted(
            "config /r/crabbox.yaml:2: a repository may not set `env.allow`: `AWS_SECRET_ACCESS_KEY`, `GH*` are not in your own list"
        )
    );
    let user = "env: {allow: ['AWS_*', HOME]}";
    let mine = case("env: {allow: [AWS_REGION, 'AWS_S3_*']}").user(user);
    assert_eq!(allow(mine), ["AWS_REGION", "AWS_S3_*"]);
    // An empty list of the user stays empty.
    assert!(
        case("env: {allow: [CI]}")
            .user("env: {allow: []}")
            .load()
            .is_err()
    );
    assert!(case("env: {allow: ['A*']}").user(user).load().is_err());
    assert!(
        case("env: {allow: ['*']}")
            .user("env: {allow: ['*']}")
            .load()
            .is_err()
    );
    let given = case("env: {allow: [TOKEN]}").env("CRABBOX_ENV_ALLOW", "TOKEN");
    assert_eq!(allow(given), ["TOKEN"]);
}

#[test]
fn profiles_carry_variables_and_a_repository_cannot_widen_them() {
    let user =
        "profiles:\n  ci: {env: {A: 1.10, B: yes, E: }, envAllow: [TOKEN, 'X_*']}\n  label: {}\n";
    let case = |text: &str| Case::default().user(user).repository(text);
    let settings =
        case("profiles: {ci: {env: {A: repo, allow: [X_1]}}, own: {env: {C: c}}}").settings();
    let profile = |env: &[(&str, &str)], allow: &[&str]| ProfileEnv {
        env: env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        allow: allow.iter().map(|name| (*name).to_owned()).collect(),
        presets: BTreeMap::new(),
        doctor: false,
    };
    assert_eq!(
        settings.profile_env("ci"),
        Some(&profile(
            &[("A", "repo"), ("B", "yes"), ("E", "")],
            &["X_1"]
        ))
    );
    assert_eq!(
        settings.profile_env("own"),
        Some(&profile(&[("C", "c")], &[]))
    );
    assert_eq!(
        shown(&settings)["profiles"],
        json!({
            "ci": {"env": ["A", "B", "E"], "envAllow": ["X_1"]},
            "label": {"env": [], "envAllow": []},
            "own": {"env": ["C"], "envAllow": []},
        })
    );
    assert_eq!(
        case("profiles:\n  own:\n    envAllow: [CI, TOKEN]\n").failure(),
        untrusted(
            "config /r/crabbox.yaml:3: a repository may not set `profiles.own.envAllow`: `TOKEN` is not in your own list"
        )
    );
    assert_eq!(
        case("profile: ci").failure(),
        untrusted(
            "config /r/crabbox.yaml:1: a repository may not set `profile`: your own profile `ci` sets variables"
        )
    );
    assert_eq!(
        case("profile: label").settings().text(None, "profile"),
        "label"
    );
    let text = "profiles: {default: {envAllow: [TOKEN]}}";
    let case = Case::default().user(text).repository("profile: default");
    assert_eq!(case.settings().text(None, "profile"), "default");
}

#[test]
fn a_repository_may_choose_among_the_users_providers() {
    let choice = |case: Case| {
        case.repository("provider: Made-Up").load().map(|settings| {
            let origin = settings.origin(None, "provider").unwrap().source();
            (settings.provider().to_owned(), origin)
        })
    };
    let yes = Ok(("made-up".to_owned(), "repo_config"));
    assert_eq!(
        choice(Case::default()),
        Err(untrusted(
            "config /r/crabbox.yaml:1: a repository may not set `provider`: you have not configured `made-up`"
        ))
    );
    assert_eq!(choice(Case::default().user("madeUp: {cpus: 1}")), yes);
    assert_eq!(choice(Case::default().user("provider: made-up")), yes);
    assert_eq!(
        choice(Case::default().env("MADE_UP_API_URL", "https://h")),
        yes
    );
    let configured = Case {
        configured: vec!["made-up".to_owned()],
        ..Case::default()
    };
    assert_eq!(choice(configured), yes);
    let case = Case::default().repository("provider: fallback");
    assert_eq!(case.settings().provider(), "fallback");
    // Its own section does not make it the user's.
    assert!(
        Case::default()
            .repository("provider: made-up\nmadeUp: {cpus: 1}")
            .load()
            .is_err()
    );
}

#[test]
fn what_only_looks_goes_on_without_what_is_refused() {
    let case = Case {
        untrusted: Some(Untrusted::LeaveOut),
        ..Case::default()
    };
    let case = case
        .user("madeUp: {cliPath: mine}\n")
        .repository("ttl: [\n")
        .repository("madeUp: {cliPath: theirs, cpus: 2}\nenv: {allow: [HOME]}\nprofiles: {p: {envAllow: [HOME]}}\n");
    let settings = case.settings();
    assert_eq!(settings.text("madeUp", "cliPath"), "mine");
    assert_eq!(settings.count("madeUp", "cpus"), 2);
    assert_eq!(settings.list("env", "allow"), ["CI", "NODE_OPTIONS"]);
    assert_eq!(settings.profile_env("p").unwrap().allow, [""; 0]);
    let told = settings.left_out.join("\n");
    for word in [
        "/r/crabbox.yaml",
        "`madeUp.cliPath`",
        "`env.allow`",
        "`profiles.p.envAllow`",
    ] {
        assert!(told.contains(word), "{told}");
    }
    // The user's own mistakes are errors as ever.
    assert!(case.user("ttl: [\n").load().is_err());
}

#[test]
fn lenient_commands_skip_an_unsupported_target() {
    let case = Case::default().repository("targetOS: windows\nmadeUp: {cpus: 2}\n");
    assert_eq!(case.settings().text(None, "target"), "windows");
    let case = Case {
        untrusted: Some(Untrusted::LeaveOut),
        ..case
    };
    let settings = case.settings();
    assert_eq!(settings.text(None, "target"), "linux");
    assert_eq!(settings.count("madeUp", "cpus"), 2);
    assert_eq!(
        settings.left_out,
        ["config /r/crabbox.yaml:1: unsupported `target` `windows`, expected linux"]
    );
}
