//! What is shown of it.

use serde_json::json;

use super::*;

#[test]
fn bug_8_config_show_has_every_setting_and_its_origin() {
    let settings = Case::default()
        .user("provider: made-up\nmadeUp:\n  cliPath: /opt/made\n")
        .repository("madeUp: {mcp: [a, b]}\n")
        .env("MADE_UP_API_URL", "https://u:p@host/v1?k=s")
        .flag("ttl", "1h30m")
        .settings();
    let shown = shown(&settings);
    assert_eq!(
        shown["madeUp"],
        json!({
            "cliPath": "/opt/made", "template": "", "cpus": 0, "clone": false, "mcp": ["a", "b"],
            "readyTimeout": "3m0s", "apiURL": "https://host/v1", "forgetMissing": false,
        })
    );
    assert_eq!(shown["ttl"], "1h30m0s");
    assert_eq!(shown["idleTimeout"], "30m0s");
    assert_eq!(
        (&shown["providerSelected"], &shown["providerSource"]),
        (&json!(true), &json!("user_config"))
    );
    let origins = &shown["origins"];
    assert_eq!(
        origins.as_object().unwrap().len(),
        CORE.len() + MADE_UP.len()
    );
    let user = "/home/u/.config/crabbox/config.yaml";
    assert_eq!(
        origins["madeUp.cliPath"],
        json!({"source": "user_config", "file": user, "line": 3})
    );
    assert_eq!(
        origins["madeUp.mcp"],
        json!({"source": "repo_config", "file": "/r/crabbox.yaml", "line": 1})
    );
    assert_eq!(
        origins["madeUp.apiURL"],
        json!({"source": "environment", "name": "MADE_UP_API_URL"})
    );
    assert_eq!(origins["ttl"], json!({"source": "flag", "name": "--ttl"}));
    assert_eq!(
        origins["sync.delete"],
        json!({"source": "compiled_default"})
    );
    assert_eq!(
        show_text(&settings, &[], Some(user.as_ref())).replace(&built_in().join(","), "[built-in]"),
        "config=/home/u/.config/crabbox/config.yaml\n\
         profile=default provider=made-up provider_source=user_config target=linux ttl=1h30m0s idle_timeout=30m0s cache=false\n\
         sync exclude=[built-in] include=- delete=true checksum=false git_seed=true fingerprint=true base_ref=- timeout=15m0s \
         warn_files=50000 warn_bytes=5368709120 fail_files=150000 fail_bytes=21474836480 allow_large=false\n\
         env allow=CI,NODE_OPTIONS\n\
         made_up cli=/opt/made template=- cpus=0 clone=false mcp=a,b ready_timeout=3m0s api_url=https://host/v1 \
         forget_missing=false\n"
    );
}

/// What is not sent is what is configured and what never is.
#[test]
fn excludes_are_shown_after_the_built_in_ones() {
    let settings = Case::default()
        .user("sync: {exclude: [mine]}\n")
        .repository("sync: {exclude: [theirs]}\n")
        .settings();
    let all = [built_in(), vec!["mine".to_owned(), "theirs".to_owned()]].concat();
    assert_eq!(shown(&settings)["sync"]["exclude"], json!(all));
    let line = format!("\nsync exclude={} include=-", all.join(","));
    let text = show_text(&settings, &[], None);
    assert!(text.contains(&line), "{text}");
}

#[test]
fn a_list_that_adds_up_has_all_its_origins() {
    let user = "sync: {exclude: [u], include: [u]}\n";
    let case = Case::default()
        .user(user)
        .repository("\nsync: {exclude: [a]}\n")
        .repository("sync: {exclude: [b]}\n");
    let shown = shown(&case.settings());
    let own = ["u", "a", "b"].map(str::to_owned).to_vec();
    let all = [built_in(), own].concat();
    assert_eq!(shown["sync"]["exclude"], json!(all));
    let user =
        json!({"source": "user_config", "file": "/home/u/.config/crabbox/config.yaml", "line": 1});
    assert_eq!(
        shown["origins"]["sync.exclude"],
        json!({
            "source": "repo_config", "file": "/r/.crabbox.yaml", "line": 1,
            "also": [
                {"source": "repo_config", "file": "/r/crabbox.yaml", "line": 2},
                user,
                {"source": "compiled_default"},
            ],
        })
    );
    // From one source it is as any other value.
    assert_eq!(shown["origins"]["sync.include"], user);
}

#[test]
fn settings_are_shown_in_the_order_of_the_tables() {
    let settings = Case::default().user("provider: made-up\n").settings();
    let text = serde_json::to_string_pretty(&show_json(&settings, &[])).unwrap();
    let keys = |indentation: &str| -> Vec<&str> {
        let named = text.lines().filter_map(|line| {
            let field = line.strip_prefix(indentation)?.strip_prefix('"')?;
            field.split_once("\":").map(|(name, _)| name)
        });
        named.collect()
    };
    assert_eq!(
        keys("  "),
        [
            "profile",
            "provider",
            "providerSelected",
            "providerSource",
            "target",
            "ttl",
            "idleTimeout",
            "cache",
            "sync",
            "env",
            "madeUp",
            "profiles",
            "ignored",
            "origins"
        ]
    );
    let sections = CORE.iter().chain(MADE_UP);
    let sections = sections.filter(|setting| setting.section.is_some());
    let all = CORE.iter().chain(MADE_UP).map(Setting::path);
    let expected = sections.map(|setting| setting.key.to_owned());
    assert_eq!(keys("    "), expected.chain(all).collect::<Vec<_>>());
    let origin = "\"source\": \"user_config\",\n      \"file\": \"/home/u/.config/crabbox/config.yaml\",\n      \"line\": 1\n";
    assert!(text.contains(origin), "{text}");
}

#[test]
fn the_reference_has_a_line_per_row() {
    let table = reference(MADE_UP);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2 + MADE_UP.len());
    assert_eq!(
        lines[0],
        "| Key | Flag | Environment | Default | From the repository | Meaning |"
    );
    assert_eq!(
        lines[2],
        "| `madeUp.cliPath` | `--made-up-cli` | `CRABBOX_MADE_UP_CLI` | `made` | after `crabbox trust` | Program to run |"
    );
    assert_eq!(
        lines[3],
        "| `madeUp.template` | `--made-up-template` | `CRABBOX_MADE_UP_TEMPLATE` | - | yes | Template (for new sandboxes) |"
    );
    assert_eq!(
        lines[6],
        "| `madeUp.mcp` | `--made-up-mcp` | `CRABBOX_MADE_UP_MCP` | - | yes | Servers \\| names (can be repeated) |"
    );
    assert_eq!(
        lines[8],
        "| - | `--made-up-api-url` | `CRABBOX_MADE_UP_API_URL`, `MADE_UP_API_URL` | - | no | Where the server is |"
    );
    assert!(reference(CORE).contains(
        "| `ttl`, `lease.ttl` | `--ttl` | `CRABBOX_TTL` | `90m` | shorter than yours only |"
    ));
}

#[test]
fn the_core_table_is_consistent() {
    let mut names = std::collections::BTreeSet::new();
    for row in CORE {
        for name in row.env.iter().chain(&row.flag).chain(row.aliases) {
            assert!(names.insert((*name).to_owned()), "{name} twice");
        }
        assert!(
            names.insert(format!("key {}", row.path())),
            "{} twice",
            row.path()
        );
        assert!(
            !row.help.is_empty() && !row.help.ends_with('.'),
            "{}",
            row.key
        );
        assert!(row.env.iter().all(|name| name.starts_with("CRABBOX_")));
    }
}
