//! Which sandbox writes to the build cache of its repository, and what becomes of the caches.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use sbx_api::{BuildCache, ClearedCaches};

use super::entry::Entry;
use crate::cache::CacheStore;
use crate::engine::Shared;
use crate::error::{EngineError, chain, prepare_error};
use crate::sandbox::record::CacheUse;
use crate::threads::{lock, spawn};

const NOT_KEPT: &str = "what this one caches is not kept";
const REMOVED: &str = "the build cache of this repository was removed";
const MIB: u64 = 1 << 20;

impl Shared {
    fn cache_store(&self) -> CacheStore {
        CacheStore::new(&self.config.state)
    }

    /// The sandbox that writes to a cache, other than `but`.
    fn cache_holder(&self, id: &str, but: Option<&Entry>) -> Option<String> {
        let entries = self.entries();
        let mut others = entries
            .iter()
            .filter(|entry| but.is_none_or(|but| entry.name != but.name));
        let holder = others.find(|entry| entry.state().record.held_cache() == Some(id))?;
        Some(holder.name.to_string())
    }

    /// Before a start: the sandbox gets the cache of its repository if it asked for one and no other has it; else it has
    /// a warning.
    pub(crate) fn take_cache(&self, entry: &Entry) -> Result<(), EngineError> {
        let record = entry.record();
        let (Some(_), Some(primary)) = (&record.cache, record.primary()) else {
            return Ok(());
        };
        let _caches = lock(&self.caches);
        let cache = self.cache_store().of(primary, Timestamp::now());
        let (cache, removed) =
            cache.map_err(|source| prepare_error(&self.config.state.caches(), source))?;
        let holder = self.cache_holder(&cache.id, Some(entry));
        let mut state = entry.state();
        let record = &mut state.record;
        let is_old = |known: &str| known.ends_with(NOT_KEPT) || known.starts_with(REMOVED);
        record.warnings.retain(|known| !is_old(known));
        record.cache = Some(CacheUse {
            held: holder.is_none().then_some(cache.id),
        });
        record.warnings.extend(holder.map(|holder| {
            format!("sandbox `{holder}` uses the build cache of this repository: {NOT_KEPT}")
        }));
        let limit = self.settings().cache_bytes();
        let removed = removed.map(|bytes| too_large(bytes, limit));
        record.warnings.extend(removed);
        Ok(())
    }

    /// After a failed start.
    pub(crate) fn release_cache(&self, entry: &Entry) {
        if let Some(known) = &mut entry.state().record.cache {
            known.held = None;
        }
    }

    /// After a stop, in the background: notes how large the cache has become, and removes what is too much.
    pub(crate) fn trim_caches(self: &Arc<Self>, id: String) {
        let shared = Arc::clone(self);
        spawn("caches", move || {
            let store = shared.cache_store();
            let trimmed = store.measure(&id).and_then(|()| {
                let _caches = lock(&shared.caches);
                let held = |id: &str| shared.cache_holder(id, None).is_some();
                let limit = shared.settings().cache_bytes();
                for cache in store.excess(limit, &held)? {
                    tracing::info!(
                        id = cache.id,
                        "a build cache is removed: there is more than the settings allow"
                    );
                    store.remove_excess(&cache, limit)?;
                }
                Ok(())
            });
            if let Err(error) = trimmed {
                tracing::warn!(error = chain(&error), "cannot look after the build caches");
            }
            shared.sweep_caches();
        });
    }

    /// Removes what was put aside.
    pub(crate) fn sweep_caches(&self) {
        for path in self.cache_store().retired() {
            if let Err(error) = self.config.machines.remove_tree(&path) {
                tracing::warn!(error = chain(&error), "cannot remove a build cache");
            }
        }
    }

    /// Removes the cache of one repository or all, but for those that sandboxes write to.
    pub(crate) fn clear_caches(
        &self,
        workspace: Option<&Path>,
    ) -> Result<ClearedCaches, EngineError> {
        let store = self.cache_store();
        let failed = |source| prepare_error(&self.config.state.caches(), source);
        let (mut cleared, mut busy): (Vec<BuildCache>, Vec<BuildCache>) = Default::default();
        {
            let _caches = lock(&self.caches);
            for cache in store.list().map_err(failed)? {
                if workspace.is_some_and(|wanted| !cache.is_of(wanted)) {
                    continue;
                }
                match self.cache_holder(&cache.id, None) {
                    Some(holder) => busy.push(cache.shown(Some(holder))),
                    None => {
                        store.retire(&cache.id).map_err(failed)?;
                        if !cache.is_removed() {
                            cleared.push(cache.shown(None));
                        }
                    }
                }
            }
        }
        for path in store.retired() {
            self.config.machines.remove_tree(&path)?;
        }
        Ok(ClearedCaches { cleared, busy })
    }
}

/// `limit` is what the settings say now.
fn too_large(bytes: u64, limit: u64) -> String {
    let (had, may) = (bytes.div_ceil(MIB), limit / MIB);
    format!(
        "{REMOVED}: it had {had} MiB, and all caches together may have {may} MiB (`sbx settings set cache_max_mib`)"
    )
}
