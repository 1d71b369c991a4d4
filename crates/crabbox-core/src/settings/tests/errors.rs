//! Unknown keys and invalid values are errors with file and line; sections of other programs are listed as ignored.

use super::*;

#[test]
fn bug_6_unknown_keys_are_errors_with_the_place_and_what_was_meant() {
    assert_eq!(
        Case::default()
            .user("madeUp:\n  cliPth: s3cret\n")
            .failure(),
        failure(
            Code::Config,
            "parse config /home/u/.config/crabbox/config.yaml: line 2 column 3: unknown key `madeUp.cliPth`; did you mean `cliPath`?\n  |\n2 |   cliPth ...\n  |   ^^^^^^"
        )
    );
    let message = |text: &str| {
        let failure = Case::default().user(text).failure();
        assert_eq!(failure.code, Code::Config);
        let message = failure.message.lines().next().unwrap().to_owned();
        message.rsplit_once(": ").unwrap().1.to_owned()
    };
    for (text, expected) in [
        ("syncc: {}", "unknown key `syncc`; did you mean `sync`?"),
        (
            "Provider: x",
            "unknown key `Provider`; did you mean `provider`?",
        ),
        (
            "profile: a\nprofils: {}",
            "unknown key `profils`; did you mean `profile`?",
        ),
        ("zzzzzz: 1", "unknown key `zzzzzz`"),
        ("sync.delete: true", "unknown key `sync.delete`"),
        ("env: {PATH: x}", "unknown key `env.PATH`"),
        ("lease: {tt: 1h}", "unknown key `lease.tt`"),
        ("other: {x: 1}", "unknown key `other.x`"),
        (
            "profiles: {p: {envs: {}}}",
            "unknown key `profiles.p.envs`; did you mean `env`?",
        ),
        (
            "profiles: {p: {env: {A-B: 1}}}",
            "invalid variable name `A-B`",
        ),
        (
            "profiles: {p: {env: {A: [1]}}}",
            "`profiles.p.env.A` must be a string",
        ),
        (
            "profiles: {p: {env: {allow: x}}}",
            "`profiles.p.env.allow` must be a list",
        ),
        ("- a", "the file must be a mapping of settings"),
        ("sync: on", "`sync` must be a mapping"),
        ("madeUp: {mcp: x}", "`madeUp.mcp` must be a list"),
        (
            "madeUp: {mcp: [a, [b]]}",
            "`madeUp.mcp` must be a list of single values",
        ),
        (
            "madeUp: {mcp: ['']}",
            "`madeUp.mcp` must not have an empty entry",
        ),
        (
            "madeUp: {template: [a]}",
            "`madeUp.template` must be a single value",
        ),
        ("\"\\e[31m\": 1", "unknown key `\\u{1b}[31m`"),
    ] {
        assert_eq!(message(text), expected, "{text}");
    }
}

#[test]
fn bug_6_bad_values_in_files_are_errors_with_the_place() {
    let place = "parse config /home/u/.config/crabbox/config.yaml: line 1 column";
    for (text, expected) in [
        (
            "ttl: 90",
            format!(
                "{place} 6: `ttl` must be a duration such as 90m or 1h30m, not `90`\n  |\n1 | ttl: 90\n  |      ^^"
            ),
        ),
        (
            "ttl: 0s",
            format!("{place} 6: ttl must be positive\n  |\n1 | ttl: 0s\n  |      ^^"),
        ),
        (
            "idleTimeout: -5m",
            format!(
                "{place} 14: idle timeout must be positive\n  |\n1 | idleTimeout: -5m\n  |              ^^^"
            ),
        ),
        (
            "madeUp: {cpus: -1}",
            format!(
                "{place} 16: `madeUp.cpus` must be non-negative, not `-1`\n  |\n1 | madeUp: {{cpus: -1}}\n  |                ^^"
            ),
        ),
        (
            "sync: {delete: 2}",
            format!(
                "{place} 16: `sync.delete` must be true or false, not `2`\n  |\n1 | sync: {{delete: 2}}\n  |                ^"
            ),
        ),
    ] {
        assert_eq!(
            Case::default().user(text).failure(),
            failure(Code::Config, &expected),
            "{text}"
        );
    }
}

#[test]
fn bug_6_bad_values_of_variables_and_flags_are_errors_with_the_name() {
    for (name, text, expected) in [
        (
            "CRABBOX_TTL",
            "x",
            "CRABBOX_TTL must be a duration such as 90m or 1h30m, not `x`",
        ),
        ("CRABBOX_TTL", "-1h", "CRABBOX_TTL: ttl must be positive"),
        (
            "CRABBOX_SYNC_DELETE",
            "maybe",
            "CRABBOX_SYNC_DELETE must be true or false, not `maybe`",
        ),
        (
            "CRABBOX_MADE_UP_CPUS",
            "many",
            "CRABBOX_MADE_UP_CPUS must be an integer, not `many`",
        ),
        (
            "CRABBOX_MADE_UP_CPUS",
            "-2",
            "CRABBOX_MADE_UP_CPUS must be non-negative, not `-2`",
        ),
    ] {
        assert_eq!(
            Case::default().env(name, text).failure(),
            failure(Code::Config, expected)
        );
    }
    for (flag, text, expected) in [
        ("ttl", "0", "ttl must be positive"),
        ("idle-timeout", "-1s", "idle timeout must be positive"),
        (
            "ttl",
            "1",
            "--ttl must be a duration such as 90m or 1h30m, not `1`",
        ),
        (
            "made-up-cpus",
            "1.5",
            "--made-up-cpus must be an integer, not `1.5`",
        ),
        ("nonsense", "1", "unknown flag --nonsense"),
    ] {
        let expected = failure(Code::Usage, expected);
        assert_eq!(Case::default().flag(flag, text).failure(), expected);
    }
}

#[test]
fn keys_of_other_surfaces_are_ignored_and_listed() {
    let case = Case::default()
        .user("class: big\nsshKey: x\nbroker:\n  token: s3cret\nlaterProvider: {a: 1}\n")
        .repository("results: {auto: true}\nprofiles: {p: {doctor: {enabled: true}}}\n");
    let settings = case.settings();
    let ignored: Vec<_> = (settings.ignored.iter())
        .map(|ignored| {
            (
                ignored.key.as_str(),
                ignored.file.to_str().unwrap(),
                ignored.line,
            )
        })
        .collect();
    let user = "/home/u/.config/crabbox/config.yaml";
    assert_eq!(
        ignored,
        [
            ("class", user, 1),
            ("sshKey", user, 2),
            ("broker", user, 3),
            ("laterProvider", user, 5),
            ("results", "/r/crabbox.yaml", 1),
            ("profiles.p.doctor", "/r/crabbox.yaml", 2),
        ]
    );
    assert!(!shown(&settings).to_string().contains("s3cret"));
}
