//! Whole copies, and streams that want to harm who unpacks them.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use proptest::prelude::*;
use rustix::fs::{CWD, mkfifoat};
use tempfile::TempDir;

use super::*;
use crate::pack::{Links, pack};
use crate::pipe::Buffered;
use crate::writer::Writer;

const OWN: Ownership = Ownership::Caller { umask: 0o022 };
const PLAIN: Attributes = Attributes {
    mode: 0o644,
    uid: 1,
    gid: 1,
    mtime: 1_700_000_000,
};

fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    File::create(path)
        .unwrap()
        .write_all(bytes.as_ref())
        .unwrap();
}

#[derive(Default)]
struct Seen {
    files: usize,
    skipped: Vec<String>,
}

impl Watch for Seen {
    fn file(&mut self, _: u64) {
        self.files += 1;
    }

    fn skipped(&mut self, name: &str, reason: &str) {
        self.skipped.push(format!("{name}: {reason}"));
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// A directory to unpack in, with a secret beside it.
struct World {
    temp: TempDir,
}

impl World {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("to")).unwrap();
        put(temp.path().join("secret"), "secret");
        Self { temp }
    }

    fn to(&self) -> PathBuf {
        self.temp.path().join("to")
    }

    fn unpack(&self, stream: &[u8]) -> Result<Vec<String>, CopyError> {
        self.unpack_as(stream, Some(Base::Named(b"b".to_vec())))
    }

    fn unpack_as(&self, stream: &[u8], base: Option<Base>) -> Result<Vec<String>, CopyError> {
        let left_out = self.unpack_all(stream, base)?;
        assert_eq!(u64::try_from(left_out.names.len()).unwrap(), left_out.count);
        Ok(left_out.names)
    }

    fn unpack_all(&self, stream: &[u8], base: Option<Base>) -> Result<LeftOut, CopyError> {
        let mut reader = Reader::new(Buffered(stream));
        let place = Destination {
            dir: open(&self.to()).unwrap(),
            base,
            renamed: None,
        };
        let first = reader.next_entry()?;
        unpack(first, &mut reader, place, OWN, &mut Seen::default())
    }

    /// Nothing beside the directory was touched.
    fn is_whole(&self) -> bool {
        let mut names: Vec<_> = fs::read_dir(self.temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names == ["secret", "to"]
            && fs::read_to_string(self.temp.path().join("secret")).unwrap() == "secret"
    }
}

fn stream(write: impl FnOnce(&mut Writer<Buffered<Vec<u8>>>) -> Result<(), CopyError>) -> Vec<u8> {
    let mut writer = Writer::new(Buffered(Vec::new()));
    write(&mut writer).unwrap();
    writer.finish().unwrap().0
}

fn packed(path: &Path, links: Links) -> Result<(Vec<u8>, Seen), CopyError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(CWD, path, flags, Mode::empty()).unwrap();
    let mut seen = Seen::default();
    let out = pack(
        &source,
        &Base::Named(b"b".to_vec()),
        links,
        Buffered(Vec::new()),
        &mut seen,
    )?;
    Ok((out.0, seen))
}

#[test]
fn a_tree_arrives_as_it_was() {
    let (from, world) = (tempfile::tempdir().unwrap(), World::new());
    let from = from.path();
    let long = "n".repeat(200);
    let deep = from.join("d").join(&long).join(&long);
    fs::create_dir_all(&deep).unwrap();
    put(from.join("d/run"), "#!");
    fs::set_permissions(from.join("d/run"), fs::Permissions::from_mode(0o4777)).unwrap();
    put(deep.join("file"), vec![7; 1_000_000]);
    fs::hard_link(deep.join("file"), from.join("second")).unwrap();
    symlink("d/run", from.join("link")).unwrap();
    symlink("../run", from.join("d").join(&long)).unwrap_err();
    symlink("../link", from.join("d/up")).unwrap();
    fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o555)).unwrap();
    let sparse = File::create(from.join("sparse")).unwrap();
    for place in 0..40 {
        sparse.write_all_at(b"data", place * (1 << 20)).unwrap();
    }
    sparse.set_len(5 << 30).unwrap();
    mkfifoat(CWD, from.join("pipe"), Mode::from_raw_mode(0o600)).unwrap();
    let (bytes, seen) = packed(from, Links::Keep).unwrap();
    assert_eq!(seen.skipped, ["b/pipe: a pipe"]);
    assert!(bytes.len() < 8 << 20, "holes are not sent: {}", bytes.len());
    assert_eq!(world.unpack(&bytes).unwrap(), Vec::<String>::new());
    let to = world.to().join("b");
    let mode = |name: &str| fs::metadata(to.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("d/run"), mode("d")), (0o755, 0o555));
    let copied = to.join("d").join(&long).join(&long).join("file");
    assert_eq!(fs::read(&copied).unwrap(), vec![7; 1_000_000]);
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&copied), inode(&to.join("second")));
    assert_eq!(
        fs::read_link(to.join("d/up")).unwrap(),
        Path::new("../link")
    );
    let copied = fs::metadata(to.join("sparse")).unwrap();
    assert_eq!(copied.len(), 5 << 30);
    assert!(copied.blocks() < 8192, "{}", copied.blocks());
    let mut data = [0; 8];
    let copied = File::open(to.join("sparse")).unwrap();
    copied.read_exact_at(&mut data, 39 << 20).unwrap();
    assert_eq!(&data, b"data\0\0\0\0");
    let mtime = |path: &Path| fs::metadata(path).unwrap().mtime();
    assert_eq!(mtime(&from.join("d")), mtime(&to.join("d")));
    fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(to.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn links_are_followed_within_the_tree_only() {
    let (from, world) = (tempfile::tempdir().unwrap(), World::new());
    let from = from.path().join("b");
    fs::create_dir_all(from.join("d")).unwrap();
    put(from.join("d/file"), "text");
    symlink("d/file", from.join("link")).unwrap();
    let (bytes, _) = packed(&from, Links::FollowBelow).unwrap();
    world.unpack(&bytes).unwrap();
    assert!(
        fs::symlink_metadata(world.to().join("b/link"))
            .unwrap()
            .is_file()
    );
    symlink("/etc/passwd", from.join("d/out")).unwrap();
    let error = packed(&from, Links::FollowBelow).err().unwrap().to_string();
    assert!(
        error.contains("b/d/out") && error.contains("leads out"),
        "{error}"
    );
    packed(&from, Links::Follow).unwrap();
    fs::remove_file(from.join("d/out")).unwrap();
    symlink("../d", from.join("d/circle")).unwrap();
    let error = packed(&from, Links::FollowBelow).err().unwrap().to_string();
    assert!(error.contains("circle"), "{error}");
}

#[test]
fn hostile_names_are_refused() {
    for name in [
        "/etc/x",
        "../x",
        "b/../../x",
        "b/..",
        "x",
        ".",
        "b/a/../../../x",
    ] {
        let world = World::new();
        let bytes = stream(|writer| writer.bytes(name.as_bytes(), b"evil", PLAIN));
        assert!(world.unpack(&bytes).is_err(), "{name}");
        assert!(world.is_whole(), "{name}");
    }
}

/// A stream of them takes no room on the disk, so nothing else ends it.
#[test]
fn links_without_end_take_no_memory() {
    let world = World::new();
    let many = u64::try_from(MAX_NAMED).unwrap() + 500;
    let bytes = stream(|writer| {
        writer.directory(b"b", PLAIN)?;
        (0..many).try_for_each(|_| writer.symlink(b"b/link", b"/etc", PLAIN))
    });
    let base = Some(Base::Named(b"b".to_vec()));
    let left_out = world.unpack_all(&bytes, base).unwrap();
    assert_eq!((left_out.count, left_out.names.len()), (many, MAX_NAMED));
}

#[test]
fn links_that_lead_elsewhere_are_left_out() {
    for target in [
        "/etc",
        "..",
        "../secret",
        "a/../../secret",
        "../../x",
        "x/..",
        "./../..",
    ] {
        let world = World::new();
        let bytes = stream(|writer| {
            writer.directory(b"b", PLAIN)?;
            writer.symlink(b"b/link", target.as_bytes(), PLAIN)
        });
        assert_eq!(world.unpack(&bytes).unwrap(), ["b/link"], "{target}");
        assert!(
            fs::symlink_metadata(world.to().join("b/link")).is_err(),
            "{target}"
        );
    }
    // What was copied is the link itself: there is nothing below it.
    let world = World::new();
    let bytes = stream(|writer| writer.symlink(b"b", b"x", PLAIN));
    assert_eq!(world.unpack(&bytes).unwrap(), ["b"]);
    for target in ["x", "x/y", "../d/x", "./x"] {
        let world = World::new();
        let bytes = stream(|writer| {
            writer.directory(b"b", PLAIN)?;
            writer.directory(b"b/d", PLAIN)?;
            writer.symlink(b"b/d/link", target.as_bytes(), PLAIN)
        });
        assert_eq!(
            world.unpack(&bytes).unwrap(),
            Vec::<String>::new(),
            "{target}"
        );
    }
}

#[test]
fn nothing_is_written_through_a_link() {
    // One that was there before, one that the stream made, and one in the place of a file.
    let world = World::new();
    symlink(world.temp.path(), world.to().join("b")).unwrap();
    let bytes = stream(|writer| writer.bytes(b"b/secret", b"evil", PLAIN));
    assert!(world.unpack(&bytes).is_err());
    assert!(world.is_whole());

    let world = World::new();
    fs::create_dir(world.to().join("b")).unwrap();
    symlink(world.temp.path(), world.to().join("b/d")).unwrap();
    for write in [
        stream(|writer| writer.bytes(b"b/d/secret", b"evil", PLAIN)),
        stream(|writer| writer.directory(b"b/d", PLAIN)),
        stream(|writer| writer.hard_link(b"b/stolen", b"b/d/secret", PLAIN)),
        stream(|writer| writer.hard_link(b"b/stolen", b"b/d", PLAIN)),
    ] {
        assert!(world.unpack(&write).is_err());
    }
    assert!(world.is_whole());

    let world = World::new();
    fs::create_dir(world.to().join("b")).unwrap();
    symlink("../../secret", world.to().join("b/file")).unwrap();
    let bytes = stream(|writer| writer.bytes(b"b/file", b"new", PLAIN));
    world.unpack(&bytes).unwrap();
    assert_eq!(
        fs::read_to_string(world.to().join("b/file")).unwrap(),
        "new"
    );
    assert!(world.is_whole());
}

#[test]
fn a_directory_that_is_swapped_for_a_link_meanwhile() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let world = World::new();
    let bytes = stream(|writer| {
        writer.directory(b"b", PLAIN)?;
        for number in 0..400 {
            writer.directory(b"b/d", PLAIN)?;
            writer.bytes(format!("b/d/{number}/secret").as_bytes(), b"evil", PLAIN)?;
            writer.bytes(b"b/d/secret", b"evil", PLAIN)?;
        }
        Ok(())
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (dir, aside) = (world.to().join("b/d"), world.to().join("b/aside"));
            while !done.load(Ordering::Relaxed) {
                if fs::rename(&dir, &aside).is_ok() {
                    let _ = symlink(world.temp.path(), &dir);
                    let _ = fs::remove_file(&dir);
                    let _ = fs::rename(&aside, &dir);
                }
                let _ = fs::remove_dir_all(&aside);
            }
        });
        for _ in 0..20 {
            // Whether it gets to its end is the attacker's choice.
            let _ = world.unpack(&bytes);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(world.is_whole());
}

#[test]
fn damaged_streams_end_with_an_error() {
    let whole = stream(|writer| {
        writer.directory(b"b", PLAIN)?;
        writer.bytes(
            &[b"b/", "x".repeat(150).as_bytes()].concat(),
            &[1; 2000],
            PLAIN,
        )
    });
    for length in (0..whole.len() - 1024).step_by(100) {
        let world = World::new();
        let error = world.unpack(&whole[..length]).unwrap_err();
        assert!(matches!(error, CopyError::Truncated), "{length}: {error}");
    }
    let mut damaged = whole.clone();
    damaged[0] ^= 1;
    assert!(World::new().unpack(&damaged).is_err());
    // A name that would fill the memory.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let error = World::new().unpack(header.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn streams_of_the_tar_program_are_understood() {
    let from = tempfile::tempdir().unwrap();
    let long = "n".repeat(180);
    fs::create_dir_all(from.path().join("d").join(&long)).unwrap();
    put(from.path().join("d").join(&long).join("ä"), "text");
    let sparse = File::create(from.path().join("d/sparse")).unwrap();
    sparse.write_all_at(b"end", 3 << 20).unwrap();
    for format in ["gnu", "pax"] {
        let world = World::new();
        let mut tar = std::process::Command::new("tar");
        tar.arg(format!("--format={format}"))
            .arg("-C")
            .arg(from.path());
        if format == "gnu" {
            tar.arg("--sparse");
        }
        let made = tar.args(["-cf", "-", "d"]).output().unwrap();
        assert!(made.status.success(), "{format}");
        world.unpack_as(&made.stdout, None).unwrap();
        let file = world.to().join("d").join(&long).join("ä");
        assert_eq!(fs::read_to_string(file).unwrap(), "text", "{format}");
        let copied = fs::read(world.to().join("d/sparse")).unwrap();
        assert_eq!(
            (copied.len(), &copied[3 << 20..]),
            ((3 << 20) + 3, &b"end"[..])
        );
    }
    // And ours by it.
    let (bytes, _) = packed(&from.path().join("d"), Links::Keep).unwrap();
    let world = World::new();
    let stored = world.to().join("x.tar");
    put(&stored, bytes);
    let mut tar = std::process::Command::new("tar");
    let read = tar
        .arg("-C")
        .arg(world.to())
        .arg("-xf")
        .arg(&stored)
        .output()
        .unwrap();
    assert!(read.status.success() && read.stderr.is_empty(), "{read:?}");
    assert_eq!(
        fs::metadata(world.to().join("b/sparse")).unwrap().len(),
        (3 << 20) + 3
    );
    assert_eq!(
        fs::read_to_string(world.to().join("b").join(&long).join("ä")).unwrap(),
        "text"
    );
}

/// A reader that leaves at the end of the archive must not break the pipe of a writer that is not done.
#[test]
fn an_archive_ends_with_one_write_which_is_read_whole() {
    #[derive(Default)]
    struct Writes(Vec<usize>);
    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let writer = Writer::new(Buffered(Writes::default()));
    assert_eq!(writer.finish().unwrap().0.0, [1024]);
    let bytes = stream(|_| Ok(()));
    let mut left = bytes.as_slice();
    let mut reader = Reader::new(Buffered(&mut left));
    assert!(reader.next_entry().unwrap().is_none());
    assert!(left.is_empty(), "{} bytes are left", left.len());
}

#[test]
fn where_a_copy_goes() {
    let world = World::new();
    let to = |path: &str, source| {
        let path = world.to().join(path);
        let place = destination(&path, source, Base::Named(b"b".to_vec()), &open);
        place.map(|place| place.renamed.map(|name| String::from_utf8(name).unwrap()))
    };
    assert_eq!(to("", Source::File).unwrap(), None);
    assert_eq!(to("new", Source::File).unwrap().as_deref(), Some("new"));
    assert_eq!(
        to("new/", Source::Directory).unwrap().as_deref(),
        Some("new")
    );
    for (path, source) in [
        ("new/", Source::File),
        ("new", Source::Archive),
        ("missing/new", Source::File),
        ("missing/..", Source::Directory),
    ] {
        assert!(to(path, source).is_err(), "{path}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is changed in a stream, nothing is written elsewhere.
    #[test]
    fn changed_streams_do_no_harm(at in 0usize..4096, byte: u8, again in 0usize..4096, fix: bool) {
        let mut bytes = stream(|writer| {
            writer.directory(b"b", PLAIN)?;
            writer.bytes(b"b/file", &[1; 700], PLAIN)?;
            writer.symlink(b"b/link", b"file", PLAIN)?;
            writer.hard_link(b"b/hard", b"b/file", PLAIN)
        });
        for at in [at, again] {
            let length = bytes.len();
            bytes[at % length] = byte;
            if fix {
                // A checksum that fits: the fields themselves are looked at.
                let block = at % length / 512 * 512;
                let mut header = tar::Header::new_old();
                header.as_mut_bytes().copy_from_slice(&bytes[block..block + 512]);
                header.set_cksum();
                bytes[block..block + 512].copy_from_slice(header.as_bytes());
            }
        }
        let world = World::new();
        let _ = world.unpack(&bytes);
        prop_assert!(world.is_whole());
    }

    #[test]
    fn random_bytes_are_not_a_stream(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let world = World::new();
        let _ = world.unpack(&bytes);
        prop_assert!(world.is_whole());
    }
}
