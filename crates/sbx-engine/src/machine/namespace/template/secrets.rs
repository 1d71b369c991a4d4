//! Which names are credentials, and what of a directory is hidden because of them.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::managers::{Part, What};
use crate::workspace::private_dirs::PRIVATE;

/// What holds credentials by convention, also in an installation. A file system tells `NuGet.Config` from
/// `nuget.config`: the spellings that are in use.
const CREDENTIALS: &[&str] = &[
    ".condarc",
    ".env",
    ".gemrc",
    ".git",
    ".git-credentials",
    ".gitconfig",
    ".m2",
    ".npmrc",
    ".nuget",
    ".pypirc",
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
    match part.what {
        What::Packages => {}
        What::Programs => looked.note(Path::new(""), &(view.list)(source), is_secret),
        What::Installation => looked.installation(source, view),
        What::Unknown => looked.everything(source, view),
    }
    if part.what != What::Packages && !(part.what == What::Programs && looked.hidden.is_empty()) {
        looked.expect("", names());
    }
    if part.what == What::Unknown {
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

/// What a credential can be called that is not there yet.
fn names() -> impl Iterator<Item = &'static str> {
    CREDENTIALS.iter().chain(PRIVATE).copied()
}

/// Without what lies below another one.
pub(super) fn outermost(paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let mut kept: Option<PathBuf> = None;
    paths
        .into_iter()
        .filter(|path| {
            let covered = kept.as_ref().is_some_and(|kept| path.starts_with(kept));
            if !covered {
                kept = Some(path.clone());
            }
            !covered
        })
        .collect()
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
