//! Build caches that outlive their sandboxes: one per repository and owner, `cache/<id>` in the state directory, for
//! sandboxes that ask for it (`create --cache`). The host never reads one.
//!
//! One sandbox at a time writes to a cache, as the upper layer of its overlays; another one that starts meanwhile goes
//! without, because two overlays must not share an upper layer. What sandboxes hold is in their records, so that the next
//! daemon knows it too.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sbx_api::BuildCache;
use sbx_proto::OsBytes;
use serde::{Deserialize, Serialize};

use crate::sandbox::record::{Record, WorkspaceRecord};
use crate::state::{Durability, StateDir, make_private_dirs, write_atomic};

const META: &str = "cache.json";
const LAYERS: &str = "layers";
/// Put aside, to be removed.
const RETIRED: &str = ".removed-";

/// What is known about one cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meta {
    /// Canonical path of the repository.
    workspace: OsBytes,
    uid: u32,
    created_at: Timestamp,
    used_at: Timestamp,
    /// After its last use.
    bytes: Option<u64>,
    /// There was a cache, of this size. It was removed because it alone was larger than all together may be, and the
    /// user is told so when the next one begins. Until then there is no cache here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    removed_bytes: Option<u64>,
}

/// A cache on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cache {
    pub(crate) id: String,
    pub(crate) dir: PathBuf,
    meta: Meta,
}

/// Where the caches lie.
#[derive(Debug, Clone)]
pub(crate) struct CacheStore {
    root: PathBuf,
}

impl CacheStore {
    pub(crate) fn new(state: &StateDir) -> Self {
        Self {
            root: state.caches(),
        }
    }

    /// Where the layers of a cache lie.
    pub(crate) fn layers(&self, id: &str) -> PathBuf {
        self.root.join(id).join(LAYERS)
    }

    /// Those that can be read; the others are of no use, and are removed when all are.
    pub(crate) fn list(&self) -> io::Result<Vec<Cache>> {
        let mut caches: Vec<Cache> = (self.entries()?.into_iter())
            .filter_map(|dir| {
                let id = dir.file_name()?.to_str()?.to_owned();
                let text = fs::read(dir.join(META)).ok()?;
                let meta = serde_json::from_slice(&text).ok()?;
                Some(Cache { id, dir, meta })
            })
            .collect();
        caches.sort_by(|a, b| a.meta.workspace.cmp(&b.meta.workspace));
        Ok(caches)
    }

    /// Everything in the directory but what is being removed.
    fn entries(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut dirs = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with(RETIRED) {
                dirs.push(entry.path());
            }
        }
        Ok(dirs)
    }

    /// What a daemon that was killed has left to remove.
    pub(crate) fn retired(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(RETIRED))
            .map(|entry| entry.path())
            .collect()
    }

    /// The cache of a repository, made when there is none, and the size of the one that was removed before it because it
    /// was too large.
    pub(crate) fn of(
        &self,
        workspace: &WorkspaceRecord,
        now: Timestamp,
    ) -> io::Result<(Cache, Option<u64>)> {
        let is_meant = |cache: &Cache| {
            cache.meta.workspace == workspace.path && cache.meta.uid == workspace.uid
        };
        let mut cache = match self.list()?.into_iter().find(is_meant) {
            Some(known) => known,
            None => {
                let id = uuid::Uuid::new_v4().to_string();
                Cache {
                    dir: self.root.join(&id),
                    id,
                    meta: Meta {
                        workspace: workspace.path.clone(),
                        uid: workspace.uid,
                        created_at: now,
                        used_at: now,
                        bytes: None,
                        removed_bytes: None,
                    },
                }
            }
        };
        cache.meta.used_at = now;
        let removed = cache.meta.removed_bytes.take();
        make_private_dirs(&cache.dir.join(LAYERS))?;
        cache.write()?;
        Ok((cache, removed))
    }

    /// Removes a cache that there is no room for. If it alone is more than `limit`, that stays known.
    pub(crate) fn remove_excess(&self, cache: &Cache, limit: u64) -> io::Result<()> {
        self.retire(&cache.id)?;
        let Some(bytes) = cache.meta.bytes.filter(|bytes| *bytes > limit) else {
            return Ok(());
        };
        let id = uuid::Uuid::new_v4().to_string();
        let note = Cache {
            dir: self.root.join(&id),
            id,
            meta: Meta {
                bytes: None,
                removed_bytes: Some(bytes),
                ..cache.meta.clone()
            },
        };
        make_private_dirs(&note.dir)?;
        note.write()
    }

    /// Puts a cache out of the way at once: what is removed later belongs to no sandbox.
    pub(crate) fn retire(&self, id: &str) -> io::Result<PathBuf> {
        let aside = self.root.join(format!("{RETIRED}{id}"));
        fs::rename(self.root.join(id), &aside)?;
        Ok(aside)
    }

    /// Notes how large a cache is by now.
    pub(crate) fn measure(&self, id: &str) -> io::Result<()> {
        let Some(mut cache) = self.list()?.into_iter().find(|cache| cache.id == id) else {
            return Ok(());
        };
        cache.meta.bytes = Some(size(&cache.dir));
        cache.write()
    }

    /// The least recently used ones that have to go so that the rest is within `limit`; not those that are `held`.
    pub(crate) fn excess(&self, limit: u64, held: &dyn Fn(&str) -> bool) -> io::Result<Vec<Cache>> {
        let mut caches = self.list()?;
        caches.sort_by_key(|cache| cache.meta.used_at);
        let bytes = |cache: &Cache| cache.meta.bytes.unwrap_or(0);
        let mut total: u64 = caches.iter().map(bytes).sum();
        let mut excess = Vec::new();
        for cache in caches {
            if total <= limit {
                break;
            }
            if held(&cache.id) || cache.is_removed() {
                continue;
            }
            total = total.saturating_sub(bytes(&cache));
            excess.push(cache);
        }
        Ok(excess)
    }
}

impl Cache {
    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.meta)?;
        write_atomic(&self.dir, META, &text, Durability::Soon)
    }

    /// Only the note that there was one.
    pub(crate) fn is_removed(&self) -> bool {
        self.meta.removed_bytes.is_some()
    }

    pub(crate) fn is_of(&self, workspace: &Path) -> bool {
        self.meta.workspace.as_path() == workspace
    }

    pub(crate) fn shown(&self, sandbox: Option<String>) -> BuildCache {
        BuildCache {
            workspace: self.meta.workspace.as_path().display().to_string(),
            uid: self.meta.uid,
            bytes: self.meta.bytes,
            created_at: self.meta.created_at,
            used_at: self.meta.used_at,
            sandbox,
        }
    }
}

/// All caches and the sandboxes that write to them. Reads files only.
pub fn list(state: &StateDir) -> io::Result<Vec<BuildCache>> {
    let names = state.names().map_err(io::Error::other)?;
    let mut held = BTreeMap::new();
    for name in names {
        if let Ok(record) = Record::read(&state.sandbox(&name))
            && let Some(id) = record.held_cache()
        {
            held.insert(id.to_owned(), name.to_string());
        }
    }
    let caches = CacheStore::new(state).list()?;
    let shown = caches
        .iter()
        .filter(|cache| !cache.is_removed())
        .map(|cache| cache.shown(held.remove(&cache.id)));
    Ok(shown.collect())
}

/// Of everything below a directory that can be looked at, in bytes on the disk.
fn size(dir: &Path) -> u64 {
    let mut total = 0;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            // Not followed, if it is a link.
            let Ok(meta) = entry.metadata() else { continue };
            total += meta.blocks() * 512;
            if meta.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::record::tests::any_example;

    fn second(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn workspace(path: &str, uid: u32) -> WorkspaceRecord {
        WorkspaceRecord {
            path: path.into(),
            uid,
            ..any_example("ab").workspaces[0].clone()
        }
    }

    #[test]
    fn a_cache_belongs_to_a_path_and_an_owner() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        let store = CacheStore::new(&state);
        let of = |path: &str, uid| store.of(&workspace(path, uid), second(1)).unwrap().0.id;
        let first = of("/a", 1);
        assert_eq!(of("/a", 1), first);
        assert_ne!(of("/a", 2), first);
        assert_ne!(of("/a/b", 1), first);
        assert!(store.layers(&first).is_dir());
        let shown = list(&state).unwrap();
        assert_eq!(shown.len(), 3);
        assert!(shown.iter().all(|cache| cache.sandbox.is_none()));
        store.retire(&first).unwrap();
        assert_eq!(list(&state).unwrap().len(), 2);
        assert_eq!(store.retired().len(), 1);
        assert_ne!(of("/a", 1), first, "a new one");
    }

    #[test]
    fn the_oldest_go_when_there_is_too_much() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        let store = CacheStore::new(&state);
        let ids: Vec<String> = [("/old", 1), ("/held", 2), ("/new", 3)]
            .map(|(path, at)| {
                let (cache, _) = store.of(&workspace(path, 1), second(at)).unwrap();
                let file = fs::File::create(cache.dir.join(LAYERS).join("file")).unwrap();
                rustix::io::write(&file, &[1; 64 << 10]).unwrap();
                drop(file);
                store.measure(&cache.id).unwrap();
                cache.id
            })
            .to_vec();
        let sizes: Vec<u64> = (list(&state).unwrap().iter())
            .map(|cache| cache.bytes.unwrap())
            .collect();
        assert!(sizes.iter().all(|size| *size >= 64 << 10), "{sizes:?}");
        let total: u64 = sizes.iter().sum();
        let excess = |limit| -> Vec<String> {
            let excess = store.excess(limit, &|id| id == ids[1]).unwrap();
            excess.into_iter().map(|cache| cache.id).collect()
        };
        assert_eq!(excess(total), Vec::<String>::new());
        assert_eq!(excess(total - 1), [ids[0].clone()]);
        assert_eq!(excess(0), [ids[0].clone(), ids[2].clone()]);
    }
    #[test]
    fn a_cache_that_is_too_large_alone_is_remembered_until_the_next_one_begins() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(temp.path(), Some(temp.path())).unwrap();
        let store = CacheStore::new(&state);
        let of = || store.of(&workspace("/a", 1), second(1)).unwrap();
        for (limit, known) in [(1, true), (1 << 30, false)] {
            let (cache, _) = of();
            store.measure(&cache.id).unwrap();
            let cache = store.list().unwrap().remove(0);
            store.remove_excess(&cache, limit).unwrap();
            assert!(list(&state).unwrap().is_empty(), "there is none");
            assert!(store.excess(0, &|_| false).unwrap().is_empty());
            for path in store.retired() {
                fs::remove_dir_all(path).unwrap();
            }
            let (next, removed) = of();
            assert_eq!(removed, cache.meta.bytes.filter(|_| known));
            assert!(store.layers(&next.id).is_dir());
            assert_eq!(of().1, None, "said once");
        }
    }
}
