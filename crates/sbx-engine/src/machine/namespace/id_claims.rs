//! Which sandboxes of this machine have which range of host ids: daemons of root with other state directories must not give
//! the same one.
//!
//! A range is claimed by a file that is named after its first id and holds the path of the sandbox's directory. A claim
//! whose sandbox is gone may be taken over.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::state::{make_private_dirs, private};

/// Kept across boots, as sandboxes are; the second where the first cannot be written.
const PLACES: &[&str] = &["/var/lib/sbx/ids", "/run/sbx/ids"];
/// A claim is made before the sandbox's directory is.
const SETTLE_DELAY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdClaims {
    places: Vec<PathBuf>,
}

impl IdClaims {
    pub(super) fn of_this_machine() -> Self {
        Self {
            places: PLACES.iter().map(PathBuf::from).collect(),
        }
    }

    /// Held until it is dropped: no other process claims meanwhile.
    pub(super) fn lock(&self) -> io::Result<Locked> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for place in &self.places {
            let opened = make_private_dirs(place).and_then(|()| File::open(place));
            match opened.and_then(|dir| {
                Ok(rustix::fs::flock(&dir, FlockOperation::LockExclusive).map(|()| dir)?)
            }) {
                Ok(lock) => {
                    return Ok(Locked {
                        dir: place.clone(),
                        _lock: lock,
                    });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// For errors.
    pub(super) fn place(&self) -> PathBuf {
        self.places.first().cloned().unwrap_or_default()
    }
}

#[derive(Debug)]
pub(super) struct Locked {
    dir: PathBuf,
    _lock: File,
}

impl Locked {
    /// False when a sandbox of another directory has it.
    pub(super) fn claim(&self, base: u32, sandbox: &Path) -> io::Result<bool> {
        let file = self.file(base);
        match holder(&file)? {
            Some(holder) if holder == sandbox => return Ok(true),
            Some(holder) if holder.exists() || is_fresh(&file) => return Ok(false),
            Some(_) => fs::remove_file(&file)?,
            None => {}
        }
        let written = private().create_new(true).open(&file);
        written?.write_all(sandbox.as_os_str().as_bytes())?;
        Ok(true)
    }

    /// Claims what the sandbox of that directory has already: its claim is for another path if a directory above was moved.
    /// False when another sandbox has it.
    pub(super) fn claim_again(&self, base: u32, sandbox: &Path) -> io::Result<bool> {
        let file = self.file(base);
        // A directory of the same name that is not there is this one before it was moved, and not one that is about to be
        // made: so the claim may be fresh.
        let moved = |holder: &PathBuf| {
            holder != sandbox && holder.file_name() == sandbox.file_name() && !holder.exists()
        };
        if holder(&file)?.as_ref().is_some_and(moved) {
            fs::remove_file(&file)?;
        }
        self.claim(base, sandbox)
    }

    pub(super) fn release(&self, base: u32, sandbox: &Path) -> io::Result<()> {
        let file = self.file(base);
        match holder(&file)? {
            Some(holder) if holder == sandbox => fs::remove_file(file),
            Some(_) | None => Ok(()),
        }
    }

    /// Releases what the sandbox of that directory has, whatever it is.
    pub(super) fn release_all(&self, sandbox: &Path) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let file = entry?.path();
            if holder(&file)?.is_some_and(|holder| holder == sandbox) {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }

    /// Removes claims for sandboxes below a directory that are not there: a daemon was killed between the claim and the
    /// sandbox, or between its end and the release.
    pub(super) fn release_unused(&self, below: &Path) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let file = entry?.path();
            if holder(&file)?.is_some_and(|holder| holder.starts_with(below) && !holder.exists()) {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }

    fn file(&self, base: u32) -> PathBuf {
        self.dir.join(base.to_string())
    }
}

fn holder(file: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = Vec::new();
    match File::open(file) {
        Ok(mut opened) => opened.read_to_end(&mut path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(std::ffi::OsStr::from_bytes(&path).into()))
}

/// Its sandbox may be under way. A time in the future is not.
fn is_fresh(file: &Path) -> bool {
    let changed = fs::metadata(file).and_then(|meta| meta.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < SETTLE_DELAY))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn claims(places: &[PathBuf]) -> IdClaims {
        IdClaims {
            places: places.to_vec(),
        }
    }

    #[test]
    fn a_range_has_one_sandbox_of_all_state_directories() {
        let temp = tempfile::tempdir().unwrap();
        let claims = claims(&[temp.path().join("ids")]);
        let [one, other] = ["one", "other"].map(|name| temp.path().join(name));
        let locked = claims.lock().unwrap();
        assert!(locked.claim(7, &one).unwrap() && locked.claim(7, &one).unwrap());
        // Not made yet, and made.
        assert!(!locked.claim(7, &other).unwrap());
        fs::create_dir(&one).unwrap();
        let file = temp.path().join("ids/7");
        let long_ago = SystemTime::now() - 2 * SETTLE_DELAY;
        let age = || {
            File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .set_modified(long_ago)
        };
        age().unwrap();
        assert!(!locked.claim(7, &other).unwrap());
        assert!(locked.claim(8, &other).unwrap());
        // Gone without a word.
        fs::remove_dir(&one).unwrap();
        assert!(locked.claim(7, &other).unwrap());
        locked.release(7, &one).unwrap();
        assert!(file.exists(), "it is another's");
        locked.release(7, &other).unwrap();
        assert!(!file.exists());
        assert!(locked.claim(9, &other).unwrap() && locked.claim(10, &one).unwrap());
        locked.release_all(&other).unwrap();
        let left = fs::read_dir(temp.path().join("ids")).unwrap();
        let left: Vec<_> = left.map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["10"]);
        locked.release(7, &other).unwrap();
    }

    #[test]
    fn claims_of_sandboxes_that_are_not_there_are_swept() {
        let temp = tempfile::tempdir().unwrap();
        let claims = claims(&[temp.path().join("ids")]);
        let place = |name: &str| temp.path().join(name);
        let locked = claims.lock().unwrap();
        for (base, sandbox) in [(7, "vm/gone"), (8, "vm/there"), (9, "other/gone")] {
            assert!(locked.claim(base, &place(sandbox)).unwrap());
        }
        fs::create_dir_all(place("vm/there")).unwrap();
        locked.release_unused(&place("vm")).unwrap();
        let left = [7, 8, 9].map(|base| temp.path().join(format!("ids/{base}")).exists());
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn a_sandbox_that_was_moved_keeps_its_range() {
        let temp = tempfile::tempdir().unwrap();
        let claims = claims(&[temp.path().join("ids")]);
        let [before, after, other] = ["before/vm/a", "after/vm/a", "other/vm/b"];
        let place = |name: &str| temp.path().join(name);
        let locked = claims.lock().unwrap();
        assert!(locked.claim(7, &place(before)).unwrap());
        // It has just been made, and it is there.
        fs::create_dir_all(place(before)).unwrap();
        assert!(!locked.claim_again(7, &place(after)).unwrap());
        fs::rename(place("before"), place("after")).unwrap();
        assert!(locked.claim_again(7, &place(after)).unwrap());
        assert!(locked.claim_again(7, &place(after)).unwrap());
        assert!(!locked.claim(7, &place(other)).unwrap());
        // One without a claim gets it back, unless another has it by now.
        assert!(locked.claim_again(8, &place(after)).unwrap());
        assert!(locked.claim(9, &place(other)).unwrap());
        assert!(!locked.claim_again(9, &place(after)).unwrap());
        locked.release(7, &place(after)).unwrap();
        assert!(!temp.path().join("ids/7").exists());
    }

    #[test]
    fn where_the_first_place_cannot_be_written_the_next_one_is() {
        let temp = tempfile::tempdir().unwrap();
        let in_the_way = temp.path().join("file");
        File::create(&in_the_way).unwrap();
        let both = claims(&[in_the_way.join("ids"), temp.path().join("ids")]);
        assert!(both.lock().unwrap().claim(7, temp.path()).unwrap());
        assert!(temp.path().join("ids/7").exists());
        assert!(claims(&[in_the_way.join("ids")]).lock().is_err());
    }
}
