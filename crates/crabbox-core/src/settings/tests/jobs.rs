use super::*;

#[test]
fn jobs_and_presets_come_from_both_files_by_name() {
    let settings = Case::default()
        .user("jobs:\n  a: {command: mine}\n  b: {command: own}\npresets:\n  p: {command: 'x {{v}}', env: {K: v}}\n")
        .repository(
            "jobs:\n  a:\n    command: theirs\n    shell: true\n    stop: never\n    label: l\n    ttl: 10m\n    noSync: true\n    desktop: false\n    junit: []\nprofiles:\n  ci:\n    presets: {q: {command: y, shell: true}, p: {command: z}}\n",
        )
        .settings();
    let a = &settings.jobs["a"];
    assert_eq!(
        (
            a.command.as_str(),
            a.shell,
            a.stop,
            a.label.as_deref(),
            a.no_sync
        ),
        ("theirs", true, StopPolicy::Never, Some("l"), true)
    );
    assert_eq!(a.flags, [("ttl", "10m0s".to_owned())]);
    assert!(a.unsupported.is_empty() && a.refused.is_empty());
    assert_eq!((a.file.to_str().unwrap(), a.line), ("/r/crabbox.yaml", 2));
    assert_eq!(settings.jobs["b"].stop, StopPolicy::Auto);
    assert_eq!(settings.preset_names("default"), ["p"]);
    assert_eq!(settings.preset_names("ci"), ["p", "q"]);
    assert_eq!(settings.preset("ci", "p").unwrap().command, "z");
    let own = settings.preset("default", "p").unwrap();
    assert_eq!(
        (own.command.as_str(), own.env["K"].as_str()),
        ("x {{v}}", "v")
    );
}

/// What the repository may not set it may not say by a job either. The rest of it goes on.
#[test]
fn a_repositorys_job_is_held_to_its_limits_when_it_is_run() {
    let yaml = "jobs:\n  a: {command: x, ttl: 10h, provider: other}\n  b: {command: x}\n";
    let settings = Case::default().repository(yaml).settings();
    assert_eq!(
        settings.jobs["a"].refused,
        [
            "config /r/crabbox.yaml:2: a repository may not set `jobs.a.ttl`: 10h0m0s is longer than your 1h30m0s",
            "config /r/crabbox.yaml:2: a repository may not set `jobs.a.provider`: you have not configured `other`",
        ]
    );
    assert!(settings.jobs["b"].refused.is_empty());
    let settings = Case::default().user(yaml).settings();
    assert!(settings.jobs["a"].refused.is_empty());
}

#[test]
fn what_is_wrong_with_a_job_or_a_preset_is_told_with_its_place() {
    for (yaml, expected) in [
        (
            "jobs: {a: {comand: x}}",
            "unknown key `jobs.a.comand`; did you mean `command`?",
        ),
        ("jobs: {a: {shell: true}}", "`jobs.a` needs a `command`"),
        (
            "jobs: {a: {command: x, stop: soon}}",
            "invalid `jobs.a.stop`, expected one of auto, always, success, failure, never",
        ),
        (
            "jobs: {a: {command: x, shell: maybe}}",
            "`jobs.a.shell` must be true or false",
        ),
        ("jobs: {a: {command: x, ttl: soon}}", "ttl"),
        ("jobs: [a]", "`jobs` must be a mapping"),
        ("presets: {a: {}}", "`presets.a` needs a `command`"),
        (
            "presets: {a: {command: [x]}}",
            "`presets.a.command` must be a string",
        ),
        (
            "presets: {a: {command: x, env: {'1': y}}}",
            "invalid variable name `1`",
        ),
    ] {
        let failure = Case::default().repository(yaml).failure();
        assert_eq!(failure.code, Code::Config, "{yaml}");
        assert!(failure.message.contains(expected), "{failure}");
    }
    let settings = Case::default()
        .repository("jobs: {a: {command: x, class: big}}")
        .settings();
    assert_eq!(settings.jobs["a"].unsupported, ["class"]);
}
