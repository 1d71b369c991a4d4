//! Files of removed sandboxes, which are deleted while clients go on.
//!
//! A removal renames the sandbox's directory to `trash/ID/NAME` and puts it into a queue; one thread deletes what is in
//! the queue. To lie in the trash is the decision that it goes: a daemon that finds something there after a crash deletes
//! it, whatever its record says. Until then the range of ids of the sandbox is not given to another one.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::remove::delete_files;
use crate::engine::Shared;
use crate::error::{EngineError, chain, prepare_error};
use crate::machine;
use crate::sandbox::record::Record;
use crate::saved;
use crate::state::{SandboxDir, Trashed, make_private_dirs};
use crate::threads::lock;

/// How long a daemon that ends waits for the queue. What is left is deleted by the next one.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Trash {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Item>,
    /// The one that is being deleted.
    current: Option<Item>,
    /// Tried again with the next removal.
    failed: Vec<Item>,
}

#[derive(Debug, Clone)]
struct Item {
    /// Absent where it cannot be read.
    record: Option<Record>,
    place: Trashed,
}

impl Trash {
    fn push(&self, item: Item) {
        let mut queue = lock(&self.queue);
        let failed = std::mem::take(&mut queue.failed);
        queue.waiting.extend(failed);
        queue.waiting.push_back(item);
        self.changed.notify_all();
    }

    /// Waits for the next one.
    fn next(&self) -> Item {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(item) = queue.waiting.pop_front() {
                queue.current = Some(item.clone());
                return item;
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, deleted: bool) {
        let mut queue = lock(&self.queue);
        let current = queue.current.take();
        if !deleted {
            queue.failed.extend(current);
        }
        self.changed.notify_all();
    }

    /// Host ids of what is not deleted yet.
    pub(crate) fn id_ranges(&self) -> Vec<u32> {
        let queue = lock(&self.queue);
        let items = queue.waiting.iter().chain(&queue.current);
        items
            .chain(&queue.failed)
            .filter_map(|item| machine::id_range(item.record.as_ref()?))
            .collect()
    }

    /// Waits until nothing is left to delete but what cannot be deleted.
    pub(crate) fn wait_empty(&self) {
        let until = Instant::now() + EMPTY_TIMEOUT;
        let mut queue = lock(&self.queue);
        while !queue.waiting.is_empty() || queue.current.is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("files of removed sandboxes are left to the next daemon");
                return;
            }
            queue = self
                .changed
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Shared {
    /// Takes the directory of a sandbox that does not run out of everyone's reach.
    pub(crate) fn discard(&self, record: &Record, dir: &SandboxDir) -> Result<(), EngineError> {
        let to = self.config.state.trashed(&record.id, &record.name);
        let above = to.path().parent().unwrap_or(to.path());
        make_private_dirs(above).map_err(|source| prepare_error(above, source))?;
        if let Err(source) = fs::rename(dir.path(), to.path()) {
            drop(fs::remove_dir(above));
            return Err(prepare_error(dir.path(), source));
        }
        self.trash.push(Item {
            record: Some(record.clone()),
            place: Trashed {
                dir: to,
                origin: dir.clone(),
            },
        });
        Ok(())
    }

    /// Puts what a daemon before this one did not finish into the queue.
    pub(crate) fn find_trash(&self) -> Result<(), EngineError> {
        for place in self.config.state.in_trash()? {
            let record = Record::read(&place.dir)
                .inspect_err(|error| {
                    tracing::warn!(dir = %place.dir.path().display(), error = chain(error), "removed sandbox without a record");
                })
                .ok();
            self.trash.push(Item { record, place });
        }
        Ok(())
    }

    /// Deletes what is in the queue, for ever.
    pub(crate) fn empty_trash(self: &Arc<Self>) {
        loop {
            let item = self.trash.next();
            let deleted = self.delete_item(&item);
            if let Err(error) = &deleted {
                let dir = item.place.dir.path().display();
                tracing::error!(%dir, error = chain(error), "cannot delete a removed sandbox");
            }
            self.trash.finish(deleted.is_ok());
            // It may have been the last one of a template that has lost its name.
            if item
                .record
                .as_ref()
                .is_some_and(|it| saved::id_of(it).is_some())
            {
                self.sweep_saved();
            }
        }
    }

    fn delete_item(&self, item: &Item) -> Result<(), EngineError> {
        let Trashed { dir, origin } = &item.place;
        match &item.record {
            Some(record) => self.delete_storage(record, dir, origin)?,
            None => {
                self.config.machines.remove_unknown_storage(dir)?;
                delete_files(dir)?;
            }
        }
        let above = dir.path().parent().unwrap_or(Path::new("/"));
        match fs::remove_dir(above) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(prepare_error(above, e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
