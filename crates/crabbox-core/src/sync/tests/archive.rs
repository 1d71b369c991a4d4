use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use super::*;
use crate::Code;
use crate::process::Cancel;

fn walked(root: &Path) -> Manifest {
    let rules = Rules::new(&[], &[], b"").unwrap();
    list(root, None, Source::Walk, &rules).unwrap()
}

fn write(path: &Path, text: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path).unwrap().write_all(text).unwrap();
}

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write(&root.join("a"), b"hello");
    write(&root.join("dir/empty"), b"");
    write(&root.join("dir/block"), &[7; 512]);
    write(&root.join("-rf\n"), b"x");
    write(&root.join("big"), &vec![9; 300_000]);
    let long = "d".repeat(90);
    write(&root.join(&long).join("f".repeat(120)), b"long");
    write(&root.join("n".repeat(100)), b"exactly");
    symlink("../out//./side/", root.join("dir/link")).unwrap();
    symlink("t".repeat(200), root.join("far")).unwrap();
    let script = root.join("run.sh");
    write(&script, b"#!/bin/sh\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o4755)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_modified(time);
    let file = File::options().write(true).open(root.join("a")).unwrap();
    file.set_times(times).unwrap();
    dir
}

fn packed(manifest: &Manifest, root: &Path, compression: Compression) -> (Vec<u8>, ArchiveStats) {
    let mut bytes = Vec::new();
    let stats = Archive::write(manifest, root, &mut bytes, compression).unwrap();
    (bytes, stats)
}

#[test]
fn everything_comes_back() {
    let dir = tree();
    let manifest = walked(dir.path());
    let (bytes, stats) = packed(&manifest, dir.path(), Compression::Gzip);
    assert_eq!((stats.files, stats.symlinks), (8, 2));
    assert_eq!(stats.written, bytes.len() as u64);
    assert_eq!(stats.warnings, Vec::<String>::new());

    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
    let mut seen = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path_bytes().into_owned();
        let source = dir.path().join(entry.path().unwrap());
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        if header.entry_type().is_symlink() {
            let target = fs::read_link(&source).unwrap();
            let stored = entry.link_name_bytes().unwrap().into_owned();
            assert_eq!(stored, target.as_os_str().as_encoded_bytes());
        } else {
            assert!(header.entry_type().is_file());
            let mode = header.mode().unwrap();
            let own = fs::metadata(&source).unwrap().permissions().mode();
            assert_eq!(mode, own & 0o777);
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).unwrap();
            assert_eq!(contents, fs::read(&source).unwrap());
        }
        seen.push(path);
    }
    let expected: Vec<&[u8]> = manifest.entries.iter().map(|e| e.path.as_bytes()).collect();
    assert_eq!(seen, expected);
}

#[test]
fn other_programs_can_read_it() {
    let dir = tree();
    let (bytes, _) = packed(&walked(dir.path()), dir.path(), Compression::Gzip);
    let out = tempfile::tempdir().unwrap();
    write(&out.path().join("x.tgz"), &bytes);
    let to = out.path().join("to");
    fs::create_dir(&to).unwrap();
    let unpacked = Command::new("tar")
        .args(["-xzf", "../x.tgz"])
        .current_dir(&to)
        .output();
    let Ok(unpacked) = unpacked else {
        writeln!(io::stderr(), "environment_blocked: tar").unwrap();
        return;
    };
    assert!(unpacked.status.success(), "{unpacked:?}");
    assert!(unpacked.stderr.is_empty(), "{unpacked:?}");
    let contents = |root: &Path| -> Vec<(RelPath, Kind, u64)> {
        let entries = walked(root).entries.into_iter();
        entries.map(|e| (e.path, e.kind, e.size)).collect()
    };
    assert_eq!(contents(&to), contents(dir.path()));
    assert_eq!(
        fs::metadata(to.join("a")).unwrap().modified().unwrap(),
        fs::metadata(dir.path().join("a"))
            .unwrap()
            .modified()
            .unwrap()
    );
}

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let dir = tree();
    let manifest = walked(dir.path());
    let (plain, stats) = packed(&manifest, dir.path(), Compression::None);
    assert_eq!(plain.len() % 512, 0);
    assert_eq!(stats.written, plain.len() as u64);
    assert_eq!(plain, packed(&manifest, dir.path(), Compression::None).0);
    let (gzip, _) = packed(&manifest, dir.path(), Compression::Gzip);
    assert_eq!(gzip, packed(&manifest, dir.path(), Compression::Gzip).0);
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&gzip[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert_eq!(plain, unpacked);
}

/// Changes a file as soon as its header has gone by, while its contents are read.
struct Meddler<'a> {
    file: &'a Path,
    length: u64,
    bytes: Vec<u8>,
}

impl Write for Meddler<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        let file = File::options().write(true).open(self.file)?;
        file.set_len(self.length)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_changes_its_length_does_no_harm_to_the_others() {
    for (length, warning) in [
        (
            1000,
            "warning: a shrank while it was read and was filled with zeros",
        ),
        (2_000_000, "warning: a grew while it was read and was cut"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        write(&file, &vec![1; 1_000_000]);
        write(&dir.path().join("b"), b"after");
        let manifest = walked(dir.path());
        let mut meddler = Meddler {
            file: &file,
            length,
            bytes: Vec::new(),
        };
        let stats = Archive::write(&manifest, dir.path(), &mut meddler, Compression::None);
        let stats = stats.unwrap();
        assert_eq!(stats.warnings, [warning]);
        assert_eq!(stats.changed, 1);
        let mut archive = tar::Archive::new(&meddler.bytes[..]);
        let sizes: Vec<(String, u64)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.size())
            })
            .collect();
        assert_eq!(sizes, [("a".to_owned(), 1_000_000), ("b".to_owned(), 5)]);
    }
}

#[test]
fn what_has_become_something_else_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("d/a");
    write(&file, b"1");
    let manifest = walked(dir.path());
    let pack = || Archive::write(&manifest, dir.path(), io::sink(), Compression::Gzip);

    fs::remove_file(&file).unwrap();
    assert_eq!(
        pack().unwrap().warnings,
        ["warning: d/a is gone and was left out"]
    );
    symlink("/etc/passwd", &file).unwrap();
    let failure = pack().unwrap_err();
    assert_eq!(failure.code, Code::Sync);
    assert_eq!(failure.message, "read d/a for the sync archive");
    fs::remove_file(&file).unwrap();
    // It has no writer: opening it must not wait.
    fifo(&file);
    let failure = pack().unwrap_err();
    assert_eq!(failure.causes, ["it is no longer a regular file"]);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(pack().is_err());

    // A directory on the way that leads elsewhere now.
    fs::remove_dir_all(dir.path().join("d")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("a"), b"secret");
    symlink(outside.path(), dir.path().join("d")).unwrap();
    let stats = pack().unwrap();
    assert_eq!(stats.files, 0);
    assert_eq!(stats.warnings, ["warning: d/a is gone and was left out"]);
}

#[test]
fn a_link_that_is_a_file_now_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink("x", &link).unwrap();
    let manifest = walked(dir.path());
    fs::remove_file(&link).unwrap();
    write(&link, b"1");
    let failure = Archive::write(&manifest, dir.path(), io::sink(), Compression::None);
    assert_eq!(failure.unwrap_err().code, Code::Sync);
}

#[test]
fn the_temporary_file_is_private_and_goes() {
    let dir = tree();
    let temporary = tempfile::tempdir().unwrap();
    let manifest = walked(dir.path());
    let archive = Archive::pack(
        &manifest,
        dir.path(),
        temporary.path(),
        Compression::Gzip,
        &Cancel::new(),
    )
    .unwrap();
    let path = archive.path().to_owned();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(
        name.starts_with("crabbox-sync-") && name.ends_with(".tgz"),
        "{name}"
    );
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.len(), archive.stats.written);
    let mut bytes = Vec::new();
    archive.open().unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, archive.stats.written);
    drop(archive);
    assert!(!path.exists());
    // Also when packing fails.
    fs::remove_file(dir.path().join("a")).unwrap();
    fifo(&dir.path().join("a"));
    assert!(
        Archive::pack(
            &manifest,
            dir.path(),
            temporary.path(),
            Compression::Gzip,
            &Cancel::new()
        )
        .is_err()
    );
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn a_writer_that_fails_is_named_as_such() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let dir = tree();
    let failure = Archive::write(&walked(dir.path()), dir.path(), Full, Compression::Gzip);
    assert_eq!(failure.unwrap_err().message, "write the sync archive");
}
