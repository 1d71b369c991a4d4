//! Which files of repositories the user has accepted: `crabbox trust` records the file's path and what is in it.
//!
//! A record is void as soon as the file changes. A damaged store trusts nothing and says so: it is never repaired
//! in passing.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::failure::{Code, Failure};
use crate::small_file;

const FILE: &str = "trust.json";
const LOCK: &str = "trust.lock";
const VERSION: u32 = 1;

/// The records, as they were when they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustStore {
    records: Vec<TrustRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustRecord {
    /// With every link resolved.
    pub path: PathBuf,
    pub sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    files: Vec<TrustRecord>,
}

impl TrustStore {
    /// Reads the store in the directory for state. Nothing is created; no store trusts nothing.
    pub fn read(state: &Path) -> Result<Self, Failure> {
        let path = state.join(FILE);
        let bytes = match small_file::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unusable(&path, &error)),
        };
        let damaged = |why: String| {
            let message = format!("trust store `{}` is damaged", path.display());
            let mut failure = Failure::new(Code::State, message);
            failure.causes.push(why);
            failure.hint(format!(
                "remove `{}` and run `crabbox trust` again where you need it",
                path.display()
            ))
        };
        let stored: Stored =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if stored.version != VERSION {
            return Err(damaged(format!("unknown version {}", stored.version)));
        }
        Ok(Self {
            records: stored.files,
        })
    }

    /// Whether exactly this content of exactly this file was accepted.
    pub fn trusts(&self, canonical: &Path, content: &[u8]) -> bool {
        let mut records = self.records.iter();
        // A hash is made only for a file that has a record.
        records.any(|record| record.path == canonical && record.sha256 == sha256(content))
    }

    pub fn list(&self) -> &[TrustRecord] {
        &self.records
    }

    /// Accepts this content of a file, and no other any more.
    pub fn add(state: &Path, canonical: &Path, content: &[u8]) -> Result<TrustRecord, Failure> {
        if canonical.to_str().is_none() {
            let path = canonical.display();
            let message = format!("cannot trust `{path}`: path is not UTF-8");
            return Err(Failure::new(Code::State, message));
        }
        let record = TrustRecord {
            path: canonical.to_owned(),
            sha256: sha256(content),
        };
        change(state, |records| {
            records.retain(|other| other.path != canonical);
            records.push(record.clone());
            records.sort_by(|a, b| a.path.cmp(&b.path));
        })?;
        Ok(record)
    }

    /// Takes the trust back. Says whether there was any.
    pub fn remove(state: &Path, canonical: &Path) -> Result<bool, Failure> {
        if !state.join(FILE).exists() {
            return Ok(false);
        }
        let mut found = false;
        change(state, |records| {
            let before = records.len();
            records.retain(|record| record.path != canonical);
            found = records.len() < before;
        })?;
        Ok(found)
    }
}

/// Reads, changes and writes under a lock: two programs at once lose no record.
fn change(state: &Path, edit: impl FnOnce(&mut Vec<TrustRecord>)) -> Result<(), Failure> {
    make_directory(state).map_err(|error| unusable(state, &error))?;
    let lock = state.join(LOCK);
    let _held = hold(&lock).map_err(|error| unusable(&lock, &error))?;
    let mut store = TrustStore::read(state)?;
    edit(&mut store.records);
    let stored = Stored {
        version: VERSION,
        files: store.records,
    };
    let path = state.join(FILE);
    write(state, &path, &stored).map_err(|error| unusable(&path, &error))
}

fn hold(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    file.lock()?;
    Ok(file)
}

fn make_directory(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// A temporary file is made readable for its owner alone.
fn write(state: &Path, path: &Path, stored: &Stored) -> io::Result<()> {
    let mut file = NamedTempFile::with_prefix_in(".trust-", state)?;
    serde_json::to_writer_pretty(&mut file, stored)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    #[cfg(unix)]
    File::open(state)?.sync_all()?;
    Ok(())
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot use trust store `{}`", path.display());
    Failure::new(Code::State, message).because(error)
}

fn sha256(content: &[u8]) -> String {
    (Sha256::digest(content).iter()).fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_record_holds_for_one_file_and_one_content() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state/crabbox");
        let file = Path::new("/r/.crabbox.yaml");
        assert_eq!(TrustStore::read(&state).unwrap(), TrustStore::default());
        assert!(!state.exists(), "reading creates nothing");

        let record = TrustStore::add(&state, file, b"a: 1\n").unwrap();
        let store = TrustStore::read(&state).unwrap();
        assert_eq!(store.list(), [record]);
        assert!(store.trusts(file, b"a: 1\n"));
        assert!(!store.trusts(file, b"a: 2\n"));
        assert!(!store.trusts(Path::new("/other/.crabbox.yaml"), b"a: 1\n"));

        TrustStore::add(&state, file, b"a: 2\n").unwrap();
        let store = TrustStore::read(&state).unwrap();
        assert!(store.trusts(file, b"a: 2\n") && !store.trusts(file, b"a: 1\n"));

        assert!(TrustStore::remove(&state, file).unwrap());
        assert!(!TrustStore::remove(&state, file).unwrap());
        assert_eq!(TrustStore::read(&state).unwrap(), TrustStore::default());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("crabbox");
        TrustStore::add(&state, Path::new("/r/c"), b"").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state), 0o700);
        assert_eq!(mode(&state.join(FILE)), 0o600);
        assert_eq!(mode(&state.join(LOCK)), 0o600);
        let text = fs::read_to_string(state.join(FILE)).unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(
            text,
            format!(
                "{{\n  \"version\": 1,\n  \"files\": [\n    {{\n      \"path\": \"/r/c\",\n      \"sha256\": \"{empty}\"\n    }}\n  ]\n}}\n"
            )
        );
    }

    #[test]
    fn a_damaged_store_is_an_error_that_names_it_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for text in [
            "",
            "{}",
            "[]",
            "{\"version\":2,\"files\":[]}",
            "{\"version\":1,\"files\":[],\"all\":true}",
            "{\"version\":1,\"files\":[{\"path\":\"/r\"}]}",
        ] {
            File::create(&path)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            let failure = TrustStore::read(dir.path()).unwrap_err();
            assert_eq!(failure.code, Code::State, "{text}");
            assert!(
                failure.message.contains(path.to_str().unwrap()),
                "{failure}"
            );
            assert_eq!(failure.hints.len(), 1);
            assert!(TrustStore::add(dir.path(), Path::new("/r"), b"").is_err());
            assert!(TrustStore::remove(dir.path(), Path::new("/r")).is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn two_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let state = dir.path();
                scope.spawn(move || {
                    TrustStore::add(state, &PathBuf::from(format!("/r{number}")), b"x").unwrap();
                });
            }
        });
        assert_eq!(TrustStore::read(dir.path()).unwrap().list().len(), 8);
    }
}
