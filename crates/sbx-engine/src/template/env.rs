//! The environment of every command: a fixed table of the caller's variables, PATH and git's identity.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sbx_api::Caller;

/// Taken as they are.
const VERBATIM: &[&str] = &["GOTOOLCHAIN", "LANG", "LANGUAGE", "TZ"];
/// Taken where they name something visible inside; some have a usual place below the home.
const PLACES: &[(&str, Option<&str>)] = &[
    ("GOROOT", None),
    ("JAVA_HOME", None),
    ("NVM_DIR", None),
    ("PYENV_ROOT", Some(".pyenv")),
    ("RUSTUP_HOME", Some(".rustup")),
];
/// Where `pip`, `npm -g`, `cargo install` and `go install` put the agent's programs.
const OWN_BINS: &[&str] = &[
    "/home/agent/.local/bin",
    "/home/agent/.cargo/bin",
    "/home/agent/go/bin",
];
const OUR_BIN: &str = "/usr/local/sbin";
const SYSTEM: &[&str] = &[
    OUR_BIN,
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// `path` has the entries of the caller's PATH that exist inside.
pub(super) fn env(
    caller: &Caller,
    path: &[PathBuf],
    visible: &dyn Fn(&Path) -> bool,
) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (name, value) in &caller.env {
        if VERBATIM.contains(&name.as_str()) || name.starts_with("LC_") {
            out.insert(name.clone(), value.clone());
        }
    }
    for (name, usual) in PLACES {
        let given = caller.env.get(*name).map(PathBuf::from);
        let place = given.or_else(|| usual.map(|usual| Path::new(&caller.home).join(usual)));
        if let Some(text) = place
            .filter(|place| visible(place))
            .and_then(|place| place.to_str().map(str::to_owned))
        {
            out.insert((*name).to_owned(), text);
        }
    }
    let path = search_path(path);
    out.insert("SBX_PATH".to_owned(), path.clone());
    out.insert("PATH".to_owned(), path);
    out.insert(
        "BASH_ENV".to_owned(),
        "/etc/sandbox-persistent.sh".to_owned(),
    );
    git(caller, &mut out);
    out
}

fn search_path(caller: &[PathBuf]) -> String {
    let mut entries: Vec<&str> = caller.iter().filter_map(|entry| entry.to_str()).collect();
    // Our wrappers of package programs must be found before the programs.
    let first = entries
        .iter()
        .position(|entry| SYSTEM.contains(entry))
        .unwrap_or(entries.len());
    entries.insert(first, OUR_BIN);
    let mut seen = std::collections::BTreeSet::new();
    OWN_BINS
        .iter()
        .copied()
        .chain(entries)
        .chain(SYSTEM.iter().copied())
        .filter(|entry| seen.insert(*entry))
        .collect::<Vec<_>>()
        .join(":")
}

/// As configuration, not as `GIT_AUTHOR_NAME`: `git config user.name` has to answer as well.
fn git(caller: &Caller, out: &mut BTreeMap<String, String>) {
    let settings = [
        ("user.name", caller.git_name.as_deref()),
        ("user.email", caller.git_email.as_deref()),
        // A read-only workspace or a tool chain may belong to an id that does not exist inside.
        ("safe.directory", Some("*")),
    ];
    let mut count = 0;
    for (key, value) in settings {
        if let Some(value) = value {
            out.insert(format!("GIT_CONFIG_KEY_{count}"), key.to_owned());
            out.insert(format!("GIT_CONFIG_VALUE_{count}"), value.to_owned());
            count += 1;
        }
    }
    out.insert("GIT_CONFIG_COUNT".to_owned(), count.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_is_taken() {
        let pairs = [
            ("LC_ALL", "C"),
            ("TZ", "UTC"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("RUSTUP_HOME", "/r"),
            ("JAVA_HOME", "/hidden"),
        ];
        let caller = Caller {
            home: "/home/u".into(),
            env: pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect(),
            git_name: Some("A B".into()),
            ..Caller::default()
        };
        let path = [
            PathBuf::from("/home/u/go/bin"),
            "/usr/bin".into(),
            "/usr/games".into(),
        ];
        let got = env(&caller, &path, &|place| place == Path::new("/r"));
        let search = "/home/agent/.local/bin:/home/agent/.cargo/bin:/home/agent/go/bin:/home/u/go/bin:/usr/local/sbin:/usr/bin:/usr/games:/usr/local/bin:/usr/sbin:/sbin:/bin";
        let want = [
            ("BASH_ENV", "/etc/sandbox-persistent.sh"),
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "user.name"),
            ("GIT_CONFIG_KEY_1", "safe.directory"),
            ("GIT_CONFIG_VALUE_0", "A B"),
            ("GIT_CONFIG_VALUE_1", "*"),
            ("LC_ALL", "C"),
            ("PATH", search),
            ("RUSTUP_HOME", "/r"),
            ("SBX_PATH", search),
            ("TZ", "UTC"),
        ];
        let want: BTreeMap<_, _> = want
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect();
        assert_eq!(got, want);
    }
}
