//! How much a tree takes on disk that something hostile may change meanwhile: no link is followed, and no mount point
//! crossed.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use crate::state::open_beneath;

/// Directories below one another; what is deeper is not counted.
const DEEPEST: usize = 512;

/// In bytes; without what cannot be looked at.
pub(crate) fn tree_size(path: &Path) -> u64 {
    if !fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()) {
        return 0;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::open(path, flags, Mode::empty()) else {
        return 0;
    };
    let mut total = 0;
    // Files with several names count once.
    let mut linked = HashSet::new();
    let mut open: Vec<(OwnedFd, Dir)> = entries(top).into_iter().collect();
    while let Some((dir, listed)) = open.last_mut() {
        let Some(Ok(entry)) = listed.next() else {
            open.pop();
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let once = is_dir || stat.st_nlink < 2 || linked.insert((stat.st_dev, stat.st_ino));
        if once {
            total += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
        if is_dir && open.len() < DEEPEST {
            let below = open
                .last()
                .map(|(dir, _)| open_beneath::open_dir(dir, name));
            if let Some(Ok(below)) = below {
                open.extend(entries(below));
            }
        }
    }
    total
}

fn entries(dir: OwnedFd) -> Option<(OwnedFd, Dir)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(&dir, c".", flags, Mode::empty()).ok()?;
    Some((dir, Dir::new(readable).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn everything_counts_once() {
        let temp = tempfile::tempdir().unwrap();
        let (tree, elsewhere) = (temp.path().join("tree"), temp.path().join("elsewhere"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir_all(&elsewhere).unwrap();
        assert_eq!(tree_size(&temp.path().join("missing")), 0);
        let empty = tree_size(&tree);
        let file = tree.join("a/b/c/file");
        for path in [&file, &elsewhere.join("big")] {
            let mut file = fs::File::create(path).unwrap();
            std::io::Write::write_all(&mut file, &vec![1; 1 << 20]).unwrap();
        }
        fs::hard_link(&file, tree.join("other-name")).unwrap();
        symlink(&elsewhere, tree.join("link")).unwrap();
        let bytes = file.metadata().unwrap().blocks() * 512;
        let size = tree_size(&tree);
        assert!(
            (empty + bytes..empty + bytes + (64 << 10)).contains(&size),
            "{size}"
        );
        assert_eq!(tree_size(&file), 0);
    }
}
