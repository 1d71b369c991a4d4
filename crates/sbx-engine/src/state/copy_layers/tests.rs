use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use tempfile::TempDir;

use super::*;

struct Trees {
    _temp: TempDir,
    from: PathBuf,
    to: PathBuf,
}

fn trees() -> Trees {
    let temp = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| temp.path().join(name));
    for path in [
        "from/root/upper",
        "from/root/work",
        "from/usr/upper",
        "from/git-0/upper",
        "to",
    ] {
        fs::create_dir_all(temp.path().join(path)).unwrap();
    }
    Trees {
        _temp: temp,
        from,
        to,
    }
}

impl Trees {
    fn upper(&self, path: &str) -> PathBuf {
        self.from.join("root/upper").join(path)
    }

    fn copy(&self) -> Result<(), CopyLayersError> {
        copy_layers(&CopyLayers {
            from: self.from.as_path().into(),
            disk: false,
            to: self.to.as_path().into(),
            skip: "git-".into(),
            omit: vec![
                "/etc/hostname".into(),
                "/usr/bin/sudo".into(),
                "/work/x".into(),
            ],
            certificate: "CA\n".into(),
            bundles: vec!["/etc/bundle".into(), "/etc/none".into(), "/etc/link".into()],
        })
    }

    fn copied(&self, path: &str) -> PathBuf {
        self.to.join(path)
    }
}

fn write(path: &Path, text: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::create(path).unwrap().write_all(text).unwrap();
}

fn whiteout(path: &Path) {
    let kind = FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::empty(), 0).unwrap();
}

#[test]
fn what_hides_goes_on_hiding() {
    let trees = trees();
    fs::create_dir_all(trees.upper("merged/below")).unwrap();
    fs::create_dir_all(trees.upper("opaque")).unwrap();
    whiteout(&trees.upper("merged/gone"));
    whiteout(&trees.upper("gone"));
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(trees.upper(path), name, value, XattrFlags::empty()).unwrap();
    };
    set("opaque", OPAQUE, b"y");
    set("opaque", "user.overlay.impure", b"y");
    set("opaque", "user.note", b"kept");
    let _socket = UnixListener::bind(trees.upper("merged/socket")).unwrap();
    trees.copy().unwrap();
    for path in ["root/gone", "root/merged/gone", "root/merged/socket"] {
        let meta = fs::symlink_metadata(trees.copied(path)).unwrap();
        assert!(meta.file_type().is_char_device(), "{path}");
        assert_eq!(meta.rdev(), 0);
    }
    let names = |path: &str| {
        let dir = File::open(trees.copied(path)).unwrap();
        let names = extended(dir.as_fd()).unwrap().into_iter();
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("user."));
        names.sort();
        names
    };
    assert_eq!(names("root/opaque"), ["user.note", OPAQUE]);
    assert_eq!(names("root/merged"), [ORIGIN]);
    assert!(names("root/merged/below").is_empty() && names("root").is_empty());
}

#[test]
fn files_stay_what_they_are() {
    let trees = trees();
    write(&trees.upper("bin/tool"), b"tool");
    fs::set_permissions(trees.upper("bin/tool"), PermissionsExt::from_mode(0o4755)).unwrap();
    fs::hard_link(trees.upper("bin/tool"), trees.upper("bin/other")).unwrap();
    symlink("/etc/shadow", trees.upper("bin/link")).unwrap();
    let fifo = trees.upper("bin/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let sparse = File::create(trees.upper("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"end", (1 << 40) - 3).unwrap();
    let odd = OsStr::from_bytes(b"bin/\xff\n");
    write(&trees.from.join("root/upper").join(odd), b"odd");
    fs::create_dir(trees.upper("closed")).unwrap();
    write(&trees.upper("closed/file"), b"");
    fs::set_permissions(trees.upper("closed"), PermissionsExt::from_mode(0o500)).unwrap();
    trees.copy().unwrap();
    let meta = |path: &str| fs::symlink_metadata(trees.copied(path)).unwrap();
    assert_eq!(meta("root/bin/tool").mode() & 0o7777, 0o4755);
    assert_eq!(meta("root/bin/tool").ino(), meta("root/bin/other").ino());
    assert_eq!(meta("root/bin/tool").nlink(), 2);
    let before = fs::metadata(trees.upper("bin/tool")).unwrap();
    assert_eq!(
        meta("root/bin/tool").modified().unwrap(),
        before.modified().unwrap()
    );
    assert_eq!(
        fs::read_link(trees.copied("root/bin/link")).unwrap(),
        Path::new("/etc/shadow")
    );
    assert!(meta("root/bin/fifo").file_type().is_fifo());
    assert_eq!(meta("root/sparse").len(), 1 << 40);
    assert!(meta("root/sparse").blocks() < 1 << 14);
    assert_eq!(fs::read(trees.to.join("root").join(odd)).unwrap(), b"odd");
    assert_eq!(meta("root/closed").mode() & 0o7777, 0o500);
    assert!(trees.copied("root/closed/file").exists());
    assert!(!trees.copied(".links").exists() && !trees.copied("git-0").exists());
    assert!(trees.copied("usr").is_dir());
}

#[test]
fn what_is_one_sandboxs_alone_is_left_out() {
    let trees = trees();
    for path in ["etc/hostname", "etc/hosts", "work/x/file", "work/xy"] {
        write(&trees.upper(path), b"");
    }
    write(&trees.from.join("usr/upper/bin/sudo"), b"");
    write(&trees.from.join("usr/upper/bin/sudoers"), b"");
    write(&trees.upper("etc/bundle"), b"\xfcne\nCA\ntwo\n");
    write(&trees.upper("elsewhere"), b"CA\n");
    symlink("../elsewhere", trees.upper("etc/link")).unwrap();
    trees.copy().unwrap();
    for (path, there) in [
        ("root/etc/hostname", false),
        ("root/etc/hosts", true),
        ("root/work/x", false),
        ("root/work/xy", true),
        ("usr/bin/sudo", false),
        ("usr/bin/sudoers", true),
    ] {
        assert_eq!(trees.copied(path).exists(), there, "{path}");
    }
    assert_eq!(
        fs::read(trees.copied("root/etc/bundle")).unwrap(),
        b"\xfcne\ntwo\n"
    );
    assert_eq!(fs::read(trees.copied("root/elsewhere")).unwrap(), b"CA\n");
}

#[test]
fn depth_is_not_limited_by_path_lengths() {
    let trees = trees();
    let name = "d".repeat(100);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let open = |dir: &File| rustix::fs::openat(dir, &name, flags, Mode::empty());
    let mut dir = File::open(trees.upper("")).unwrap();
    for _ in 0..100 {
        rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
        dir = open(&dir).unwrap().into();
    }
    trees.copy().unwrap();
    let mut copied = File::open(trees.copied("root")).unwrap();
    let mut depth = 0;
    while let Ok(below) = open(&copied) {
        copied = below.into();
        depth += 1;
    }
    assert_eq!(depth, 100);
}
