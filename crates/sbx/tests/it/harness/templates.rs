//! Templates that worlds hand on. Each is some ten thousand files, and the same for all worlds of a mode: what a test is
//! not about need not be made, and removed, again and again.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::{MODES, World};

/// Those that no world has, by mode.
static SPARE: Mutex<[Vec<PathBuf>; MODES.len()]> = Mutex::new([const { Vec::new() }; MODES.len()]);

/// Where they are meanwhile.
fn store() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        tempfile::Builder::new()
            .prefix("sbx-templates-")
            .tempdir()
            .unwrap()
    })
    .path()
}

impl World {
    fn templates(&self) -> PathBuf {
        self.state().join("templates")
    }

    /// Before the first sandbox: what another world has left. The daemon judges it as one of its own.
    pub(super) fn take_template(&self) {
        if self.own_template || !self.finished().is_empty() {
            return;
        }
        let Some(spare) = self.spare(Vec::pop) else {
            return;
        };
        if !self.templates().exists() {
            self.run(["daemon", "start", "-d"]);
        }
        // Where the state is not to be had the test is about that.
        let _ = self.put_in_place(spare);
    }

    /// Under the lock that the daemon has while it makes one: another test may have begun with a sandbox already.
    fn put_in_place(&self, spare: PathBuf) -> io::Result<()> {
        let path = self.templates().join(".lock");
        let mut how = fs::OpenOptions::new();
        let lock = how.write(true).create(true).mode(0o600).open(&path)?;
        self.own(&path);
        flock(&lock, FlockOperation::LockExclusive)?;
        if self.finished().is_empty() {
            return fs::rename(&spare, self.templates().join(spare.file_name().unwrap()));
        }
        self.spare(|others| others.push(spare));
        Ok(())
    }

    /// After the last one, when its daemon has gone.
    pub(super) fn leave_template(&self) {
        if self.own_template {
            return;
        }
        for template in self.finished() {
            let aside = tempfile::tempdir_in(store()).unwrap().keep();
            let place = aside.join(template.file_name().unwrap());
            // An ordinary tester cannot move what belongs to a subordinate id.
            if fs::rename(&template, &place).is_ok() {
                self.spare(|spare| spare.push(place));
            }
        }
    }

    /// Those of its own mode: a test may have used another one.
    fn finished(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.templates()).into_iter().flatten();
        let prefix = format!("host-{}-", self.mode.name());
        let finished = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(&prefix) && path.is_dir()
        };
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(finished).collect()
    }

    fn spare<T>(&self, work: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
        let mode = MODES.iter().position(|known| *known == self.mode).unwrap();
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut spare[mode])
    }
}

/// Statics are not dropped.
pub(super) fn remove_spare() {
    remove_tree(store());
}

/// By several threads: where the disk is told of everything that is freed, each waits for that at every file.
pub(super) fn remove_tree(root: &Path) {
    const THREADS: usize = 8;
    const ENOUGH: usize = 100;
    let mut trees = vec![root.to_owned()];
    while (1..ENOUGH).contains(&trees.len()) {
        let below = |dir: &PathBuf| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let directories = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
            directories.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        trees = trees.iter().flat_map(below).collect();
    }
    let queue = Mutex::new(trees);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(tree) = next() {
                    let _ = fs::remove_dir_all(tree);
                }
            });
        }
    });
    // An ordinary tester cannot remove what belongs to a subordinate id.
    let _ = fs::remove_dir_all(root);
}
