//! The environment of every command: a fixed table of the caller's variables, and PATH.

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
