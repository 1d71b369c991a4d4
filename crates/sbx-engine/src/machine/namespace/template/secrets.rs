//! Which names are credentials, and what of a directory is hidden because of them.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::managers::{Contents, Part};
use crate::workspace::private_dirs::PRIVATE;

/// What holds credentials by convention, also in an installation. A file system tells `NuGet.Config` from
/// `nuget.config`: the spellings that are in use.
const CREDENTIALS: &[&str] = &[
    ".boto",
    ".condarc",
    ".curlrc",
    ".databrickscfg",
    ".dockercfg",
    ".env",
    ".envrc",
    ".gemrc",
    ".git",
    ".git-credentials",
    ".gitconfig",
    ".m2",
    ".my.cnf",
    ".mylogin.cnf",
    ".npmrc",
    ".nuget",
    ".pgpass",
    ".pypirc",
    ".s3cfg",
    ".terraformrc",
    ".wgetrc",
    ".yarnrc",
    ".yarnrc.yml",
    "NuGet.Config",
    "NuGet.config",
    "_netrc",
    "bunfig.toml",
    "condarc",
    "credentials",
    "credentials.db",
    "credentials.json",
    "credentials.toml",
    "gemrc",
    "gradle.properties",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_rsa",
    "kubeconfig",
    "netrc",
    "npmrc",
    "nuget.config",
    "pip.conf",
    "settings-security.xml",
    "settings.xml",
];
/// The same in a user's own directory. In an installation they are as likely part of a package.
const IN_OWN_DIRECTORIES: &[&str] = &[
    "auth.json",
    "auth.toml",
    "config.json",
    "hosts.yml",
    "token",
    "token.json",
    "tokens",
];
/// Words of which one makes a file of data a credential: `client_secret.json`, `.github-token`. In the name of a program
/// they say what it does.
const WORDS: &[&str] = &[
    "apikey",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "secret",
    "secrets",
    "token",
    "tokens",
];
const PAIRS: &[(&str, &str)] = &[("api", "key"), ("access", "key"), ("private", "key")];
const DATA: &[&str] = &[
    "cfg",
    "cnf",
    "conf",
    "config",
    "csv",
    "env",
    "ini",
    "json",
    "properties",
    "toml",
    "txt",
    "xml",
    "yaml",
    "yml",
];
const STARTS: &[&str] = &["id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"];
const ENDS: &[&str] = &[
    ".jks",
    ".key",
    ".keystore",
    ".keytab",
    ".p12",
    ".pem",
    ".pfx",
    ".ppk",
];
/// Where in an installation its tools have their settings, beside its top, and what those with credentials are called.
const SETTINGS: &[(&str, &[&str])] = &[
    ("conf", &["settings-security.xml", "settings.xml"]),
    (
        "etc",
        &[
            ".npmrc",
            "condarc",
            "gemrc",
            "gitconfig",
            "netrc",
            "npmrc",
            "pip.conf",
        ],
    ),
];
/// The npm that comes with node has one more.
const NPM: &[&str] = &["lib", "lib/node_modules", "lib/node_modules/npm"];
const NPM_SETTINGS: &str = "lib/node_modules/npm/npmrc";
/// In how many directories of a cache credentials are looked for, and how deep: below that are packages.
const MOST_CACHE_DIRS: usize = 2000;
const CACHE_DEPTH: usize = 2;
/// A clone, whose settings name the repository with what opens it.
const CLONE: &str = ".git";
/// Where cargo keeps the index of each registry: some are clones.
const CARGO_INDEX: &str = "index";
/// In such an index: where its packages are.
const CARGO_CONFIG: &str = "config.json";
/// In how many directories of a user's own directory credentials are looked for: it is done at every start.
const MOST_DIRS: usize = 200;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: OsString,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Dir,
    Link,
    File,
}

/// What the search needs to know of the host.
pub(super) struct FileSystemView<'a> {
    /// What is in a directory.
    pub(super) list: &'a dyn Fn(&Path) -> Vec<Entry>,
    /// What a path is itself; `None` where nothing is, or a workspace, or what programs inside could not enter.
    pub(super) kind: &'a dyn Fn(&Path) -> Option<Kind>,
    /// Whether a workspace of the sandbox is there or below.
    pub(super) holds_workspace: &'a dyn Fn(&Path) -> bool,
}

/// What was found in a directory, by paths below it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Must not be seen, whether it is there or not. Empty: all can be shown.
    pub(super) hidden: BTreeSet<PathBuf>,
    /// Those of them that are links: what they lead to is a credential as well.
    pub(super) links: Vec<PathBuf>,
    /// Hidden because it was too much to look through.
    pub(super) unseen: Vec<PathBuf>,
}

/// Whether a name is never that of a tool chain.
pub(super) fn is_secret(name: &OsStr) -> bool {
    let lower = name.to_ascii_lowercase();
    is_credential(name)
        || IN_OWN_DIRECTORIES
            .iter()
            .any(|own| lower.as_os_str() == *own)
        || speaks_of_secrets(&lower)
}

fn speaks_of_secrets(lower: &OsStr) -> bool {
    let Some(name) = lower.to_str() else {
        return false;
    };
    let end = name.rsplit_once('.').map(|(_, end)| end);
    if !name.starts_with('.') && !end.is_some_and(|end| DATA.contains(&end)) {
        return false;
    }
    let words: Vec<&str> = name.split(['.', '-', '_']).collect();
    let pair = |pair: &[&str]| matches!(pair, [a, b] if PAIRS.contains(&(a, b)));
    words.iter().any(|word| WORDS.contains(word)) || words.windows(2).any(pair)
}

fn is_credential(name: &OsStr) -> bool {
    let name = name.to_ascii_lowercase();
    let bytes = name.as_encoded_bytes();
    CREDENTIALS
        .iter()
        .chain(PRIVATE)
        .any(|known| name.eq_ignore_ascii_case(known))
        || STARTS
            .iter()
            .any(|start| bytes.starts_with(start.as_bytes()))
        || ENDS.iter().any(|end| bytes.ends_with(end.as_bytes()))
}

/// Looks at the directory `source`, which is such a part of a tool chain.
pub(super) fn scan(source: &Path, part: &Part, view: &FileSystemView<'_>) -> Scan {
    let mut looked = Scan::default();
    match part.contents {
        Contents::Packages => {}
        Contents::Programs => looked.note(Path::new(""), &(view.list)(source), is_secret),
        Contents::Installation => looked.installation(source, view),
        Contents::Unknown => looked.everything(source, view),
    }
    if part.contents != Contents::Packages
        && !(part.contents == Contents::Programs && looked.hidden.is_empty())
    {
        looked.expect("", names());
    }
    if part.contents == Contents::Unknown {
        looked.expect("", IN_OWN_DIRECTORIES.iter().copied());
    }
    looked.expect("", part.hides.iter().copied());
    looked.hidden = outermost(std::mem::take(&mut looked.hidden));
    looked
}

/// The same for a user's own directory of programs, and not for what lies below it.
pub(super) fn scan_top(source: &Path, view: &FileSystemView<'_>) -> Scan {
    let mut looked = Scan::default();
    looked.note(Path::new(""), &(view.list)(source), is_secret);
    looked.expect("", names().chain(IN_OWN_DIRECTORIES.iter().copied()));
    looked
}

/// What of a package cache must not be seen: clones, and files that are called like credentials, above the packages.
pub(super) fn scan_cache(source: &Path, view: &FileSystemView<'_>) -> BTreeSet<PathBuf> {
    let mut hidden = BTreeSet::new();
    let mut todo = VecDeque::from([PathBuf::new()]);
    let mut seen = 0;
    while let Some(below) = todo.pop_front() {
        seen += 1;
        if seen > MOST_CACHE_DIRS {
            hidden.insert(below);
            continue;
        }
        let depth = below.components().count();
        let entries = (view.list)(&source.join(&below));
        if depth > 0 && entries.iter().any(|entry| entry.name == CLONE) {
            hidden.insert(below);
            continue;
        }
        if below.starts_with(CARGO_INDEX) && depth == 2 {
            // It becomes a clone when the registry's protocol is changed.
            hidden.insert(below.join(CLONE));
        }
        for entry in entries {
            let path = below.join(&entry.name);
            match entry.kind {
                Kind::File | Kind::Link if is_secret(&entry.name) && entry.name != CARGO_CONFIG => {
                    hidden.insert(path);
                }
                Kind::Dir if depth == 0 && is_credential(&entry.name) => {
                    hidden.insert(path);
                }
                // A package of Go has its version in its name.
                Kind::Dir if depth < CACHE_DEPTH && !has_version(&entry.name) => {
                    todo.push_back(path);
                }
                Kind::Dir | Kind::File | Kind::Link => {}
            }
        }
    }
    outermost(hidden)
}

fn has_version(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'@')
}

/// What a credential can be called that is not there yet.
fn names() -> impl Iterator<Item = &'static str> {
    CREDENTIALS.iter().chain(PRIVATE).copied()
}

/// Without what lies below another one.
pub(super) fn outermost(paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::with_capacity(paths.len());
    for path in paths {
        if !kept.last().is_some_and(|above| path.starts_with(above)) {
            kept.push(path);
        }
    }
    kept.into_iter().collect()
}

impl Scan {
    fn expect(&mut self, below: &str, names: impl Iterator<Item = &'static str>) {
        let below = Path::new(below);
        self.hidden.extend(names.map(|name| below.join(name)));
    }

    fn note(&mut self, below: &Path, entries: &[Entry], secret: fn(&OsStr) -> bool) {
        for entry in entries.iter().filter(|entry| secret(&entry.name)) {
            let path = below.join(&entry.name);
            if entry.kind == Kind::Link {
                self.links.push(path.clone());
            }
            self.hidden.insert(path);
        }
    }

    fn installation(&mut self, source: &Path, view: &FileSystemView<'_>) {
        let top = (view.list)(source);
        self.note(Path::new(""), &top, is_credential);
        for (dir, names) in SETTINGS {
            let found = top.iter().find(|entry| entry.name == **dir);
            match found.map(|entry| entry.kind) {
                // A whiteout cannot lie behind a symlink: the link itself is hidden.
                Some(Kind::Link) => {
                    self.hidden.insert(dir.into());
                }
                Some(Kind::File) => {}
                Some(Kind::Dir) => {
                    let entries = (view.list)(&source.join(dir));
                    self.note(Path::new(dir), &entries, is_credential);
                    self.expect(dir, names.iter().copied());
                }
                None => self.expect(dir, names.iter().copied()),
            }
        }
        let has_lib = top.iter().any(|entry| entry.name == "lib");
        if has_lib
            && NPM
                .iter()
                .rev()
                .all(|dir| (view.kind)(&source.join(dir)) == Some(Kind::Dir))
        {
            self.hidden.insert(NPM_SETTINGS.into());
        }
    }

    /// All of it, breadth first; the directories at the top that are not looked through in the end are hidden.
    fn everything(&mut self, source: &Path, view: &FileSystemView<'_>) {
        let mut todo = VecDeque::from([PathBuf::new()]);
        let mut unseen = BTreeSet::new();
        let mut seen = 0;
        while let Some(below) = todo.pop_front() {
            if seen == MOST_DIRS {
                unseen.extend(below.iter().next().map(PathBuf::from));
                continue;
            }
            seen += 1;
            // Joining nothing would add a slash.
            let place = if below.as_os_str().is_empty() {
                source.to_owned()
            } else {
                source.join(&below)
            };
            let mut entries = (view.list)(&place);
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            self.note(&below, &entries, is_secret);
            for entry in entries {
                if entry.kind != Kind::Dir || is_secret(&entry.name) {
                    continue;
                }
                let path = below.join(&entry.name);
                let place = place.join(&entry.name);
                if (view.kind)(&place) == Some(Kind::Dir) {
                    todo.push_back(path);
                } else if !(view.holds_workspace)(&place) {
                    self.hidden.insert(path);
                }
            }
        }
        self.hidden.extend(unseen.iter().cloned());
        self.unseen = unseen.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_and_of_programs() {
        for name in [
            ".github-token",
            ".pgpass",
            "client_secret.json",
            "API_KEY.txt",
            "my-token.txt",
            "prod.secrets.yaml",
            "db-password.ini",
            "kubeconfig",
            "service.key",
        ] {
            assert!(is_secret(OsStr::new(name)), "{name}");
        }
        for name in [
            "git-credential-store",
            "docker-credential-pass",
            "secret-tool",
            "passwd",
            "tokenizer.json",
            "token-counter",
            "key.txt",
            "program.conf",
        ] {
            assert!(!is_secret(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn clones_and_credentials_in_caches_are_hidden_and_packages_are_not() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        let files = [
            ".netrc",
            "token",
            "index/private-1/.git/config",
            "index/private-1/config.json",
            "index/crates.io-1/config.json",
            "index/crates.io-1/.cache/se/rd/serde",
            "src/crates.io-1/tls-1.0/tests/server.key",
            "src/crates.io-1/tls-1.0/.env",
            "src/crates.io-1/credentials.toml",
            "cache/crates.io-1/tls-1.0.crate",
            "github.com/ann/module@v1.0.0/secrets.yaml",
            "gopkg.in/yaml@v3/token",
            "github.com/clone/.git/config",
        ];
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::File::create(path).unwrap();
        }
        let list = |dir: &Path| -> Vec<Entry> {
            let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
            let entry = |entry: std::fs::DirEntry| Entry {
                name: entry.file_name(),
                kind: match entry.file_type().unwrap().is_dir() {
                    true => Kind::Dir,
                    false => Kind::File,
                },
            };
            entries.map(entry).collect()
        };
        let view = FileSystemView {
            list: &list,
            kind: &|_| None,
            holds_workspace: &|_| false,
        };
        let hidden = scan_cache(root, &view);
        let expected = [
            ".netrc",
            "github.com/clone",
            "index/crates.io-1/.git",
            "index/private-1",
            "src/crates.io-1/credentials.toml",
            "token",
        ];
        assert_eq!(hidden, expected.map(PathBuf::from).into());
    }
}
