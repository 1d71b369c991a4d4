//! The store on real files, and what several tests of claims need.

mod crash;
mod list;
mod race;
mod store;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;

pub(super) fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub(super) fn lease(text: &str) -> LeaseId {
    LeaseId::parse(text).unwrap()
}

/// A claim in the state `creating`, of `/src/app`, from noon on.
pub(super) fn claim(id: &str) -> Claim {
    let intent = Intent {
        lease_id: lease(id),
        provider: "somewhere".to_owned(),
        provider_scope: String::new(),
        repo_root: Some(RepoRoot::new(Path::new("/src/app")).unwrap()),
        idle_timeout_seconds: 1800,
        ttl_seconds: 5400,
        keep: false,
        labels: BTreeMap::new(),
        creator: Creator::default(),
    };
    Claim::intended(intent, time("2026-08-01T12:00:00.25Z"))
}

/// A state directory that does not exist yet.
struct Place {
    temp: TempDir,
    store: ClaimStore,
}

impl Place {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = ClaimStore::open(&temp.path().join("state"));
        Self { temp, store }
    }

    fn state(&self) -> PathBuf {
        self.temp.path().join("state")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.state().join("claims").join(name)
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let file = self.file(name);
        files::create_dir(file.parent().unwrap()).unwrap();
        write(&file, bytes.as_ref());
    }

    fn create(&self, id: &str) -> Claim {
        self.store
            .create(claim(id), &SlugChoice::Generated)
            .unwrap()
    }

    fn slugged(&self, id: &str, slug: &str) -> Result<Claim, crate::Failure> {
        let slug = Slug::request(slug).unwrap();
        self.store.create(claim(id), &SlugChoice::Requested(slug))
    }
}

/// In place and at once, as an editor or a disk error would.
pub(super) fn write(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
