//! How a template is saved and removed, and how a new sandbox finds the one that it is to be made from.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use sbx_api::{RemovedTemplate, SavedNow, Status};

use super::entry::Entry;
use crate::engine::Shared;
use crate::error::{EngineError, chain, prepare_error};
use crate::machine::Template;
use crate::sandbox::record::Record;
use crate::sandbox::tag::Tag;
use crate::saved::{self, Meta, SavedStore};
use crate::threads::{lock, spawn};

const HOST: &str = "host";
/// Templates that are saved one from the other: each is a lower layer more, and their names have to fit into one option of
/// a mount (256 bytes).
const MAX_STACK: usize = 16;
const SECRETS: &str =
    "the template has everything that programs wrote in the sandbox, and secrets among it";

impl Shared {
    fn saved_store(&self) -> SavedStore {
        SavedStore::new(&self.config.state)
    }

    /// What a new sandbox is to be made from, and what its user should know of it.
    pub(crate) fn template(
        &self,
        asked: Option<&str>,
        agent: &str,
    ) -> Result<(Template, Option<String>), EngineError> {
        let Some(asked) = asked.filter(|asked| *asked != HOST) else {
            return Ok((Template::Host, None));
        };
        let tag = Tag::parse(asked)?;
        let unreadable = |source| EngineError::UnreadableTemplate {
            tag: tag.to_string(),
            source,
        };
        let found = self.saved_store().find(&tag).map_err(unreadable)?;
        let found = found.ok_or_else(|| EngineError::NoTemplate(tag.to_string()))?;
        let machines = &self.config.machines;
        machines.check_saved(machines.default_backend(), &found)?;
        let mismatch = (found.agent != agent).then(|| {
            format!(
                "template `{tag}` was saved from a sandbox of agent `{}`, and this one is of `{agent}`; hint: sbx create -t {tag} {}",
                found.agent, found.agent
            )
        });
        let id = found.id;
        Ok((Template::Saved { tag, id }, mismatch))
    }

    /// The caller holds the operation lock.
    pub(crate) fn save(self: &Arc<Self>, entry: &Entry, tag: Tag) -> Result<SavedNow, EngineError> {
        if entry.state().live.is_some() {
            return Err(EngineError::SaveRunning(entry.name.clone()));
        }
        let record = entry.record();
        let store = self.saved_store();
        let id = uuid::Uuid::new_v4().simple().to_string();
        let saved = self.copy(entry, &record, &store, &id, tag);
        match saved {
            Ok(meta) => {
                // The one that had the name.
                self.sweep_saved_later();
                Ok(SavedNow {
                    template: saved::shown(&meta.tag, &meta),
                    warnings: vec![SECRETS.into()],
                })
            }
            Err(error) => {
                // The failure is the news; what cannot be removed now is swept by the next daemon.
                let left = self.config.machines.remove_tree(&store.unfinished(&id));
                if let Err(left) = left {
                    tracing::warn!(
                        error = chain(&left),
                        "cannot remove a template that was not finished"
                    );
                }
                Err(error)
            }
        }
    }

    fn copy(
        &self,
        entry: &Entry,
        record: &Record,
        store: &SavedStore,
        id: &str,
        tag: Tag,
    ) -> Result<Meta, EngineError> {
        let failed = |source: io::Error| prepare_error(store.root(), source);
        let below = match saved::id_of(record) {
            None => Vec::new(),
            Some(id) => {
                let stack = store.stack(id);
                let stack = stack.map_err(|source| EngineError::UnreadableTemplate {
                    tag: record.template.name.to_string(),
                    source,
                })?;
                stack.into_iter().map(|template| template.id).collect()
            }
        };
        if below.len() >= MAX_STACK {
            return Err(EngineError::ManyTemplates {
                name: entry.name.clone(),
                count: below.len(),
            });
        }
        let layers = store.begin(id).map_err(failed)?;
        let authority = self.config.egress.authority(&record.id, &entry.dir);
        let authority = authority.map_err(EngineError::Egress)?;
        let machines = &self.config.machines;
        let bytes = machines.copy_layers(record, &entry.dir, &layers, &authority)?;
        let meta = Meta {
            version: saved::VERSION,
            id: id.to_owned(),
            tag,
            created_at: Timestamp::now(),
            sandbox: record.name.to_string(),
            agent: record.agent.clone(),
            ids: record.ids.clone(),
            host: (record.template.started_with.clone())
                .or_else(|| record.template.fingerprint.clone()),
            bytes,
            dirs: names(&layers).map_err(failed)?,
            below,
        };
        let _saved = lock(&self.saved);
        store.finish(&meta).map_err(failed)?;
        Ok(meta)
    }

    /// Takes the name away. Sandboxes that are made from it go on.
    pub(crate) fn remove_template(
        self: &Arc<Self>,
        wanted: &str,
    ) -> Result<RemovedTemplate, EngineError> {
        let store = self.saved_store();
        let failed = |source: io::Error| prepare_error(store.root(), source);
        let (tag, meta) = {
            let _saved = lock(&self.saved);
            let mut found = store.named(wanted).map_err(failed)?;
            let Some((tag, meta)) = found.pop() else {
                // One that cannot be read has a name all the same.
                let tag = Tag::parse(wanted).ok();
                if let Some(tag) = tag.filter(|tag| store.find(tag).is_err()) {
                    store.untag(&tag).map_err(failed)?;
                }
                return Err(EngineError::NoTemplate(wanted.to_owned()));
            };
            if !found.is_empty() {
                return Err(EngineError::AmbiguousTemplate(wanted.to_owned()));
            }
            store.untag(&tag).map_err(failed)?;
            (tag, meta)
        };
        self.sweep_saved_later();
        let entries = self.entries();
        let records = entries.iter().map(|entry| entry.record());
        let users = records.filter(|record| saved::id_of(record) == Some(&meta.id));
        Ok(RemovedTemplate {
            template: saved::shown(&tag, &meta),
            sandboxes: users.map(|record| record.name.to_string()).collect(),
        })
    }

    /// In the background: there may be many files.
    fn sweep_saved_later(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        spawn("templates", move || shared.sweep_saved());
    }

    /// Removes what no name and no sandbox stands for.
    pub(crate) fn sweep_saved(&self) {
        let store = self.saved_store();
        let _one_at_a_time = lock(&self.saved_removal);
        let retired = {
            let _saved = lock(&self.saved);
            match self.saved_in_use() {
                Some(used) => store.retire_unused(&used),
                None => Ok(()),
            }
            .and_then(|()| store.retired())
        };
        let removed = retired
            .map_err(|source| prepare_error(store.root(), source))
            .and_then(|retired| {
                let mut retired = retired.iter();
                retired.try_for_each(|path| self.config.machines.remove_tree(path))
            });
        if let Err(error) = removed {
            tracing::warn!(error = chain(&error), "cannot remove a saved template");
        }
    }

    /// Before anything is saved.
    pub(crate) fn retire_unfinished_templates(&self) {
        if let Err(error) = self.saved_store().retire_unfinished() {
            tracing::warn!(%error, "templates that were not finished stay");
        }
    }

    /// Unknown where a record cannot be read, which a newer version may have written.
    fn saved_in_use(&self) -> Option<BTreeSet<String>> {
        if !lock(&self.registry).damaged.is_empty() {
            return None;
        }
        let entries = self.entries();
        let records = entries.iter().map(|entry| entry.record());
        Some(
            records
                .filter(|record| record.status != Status::Removing)
                .filter_map(|record| saved::id_of(&record).map(str::to_owned))
                .collect(),
        )
    }
}

fn names(dir: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}
