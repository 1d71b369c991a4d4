//! Building the root file system step by step, then `pivot_root` to it.
//!
//! New file systems are made with `fsopen`, `fsconfig` and `fsmount`, host trees arrive as detached mounts, and both are
//! attached with `move_mount` to a descriptor of the mount point: no path is resolved twice. Programs that were root
//! inside before have written the sandbox's layer, so mount points are found without following links ([`MountTable`]).
//! Other paths below the new root are resolved with `RESOLVE_IN_ROOT`, as if it were `/` already: a hostile link leads to
//! a path inside, never to one of the host.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use rustix::process::{Gid, Uid};
use sbx_proto::OsBytes;
use sbx_proto::inside::{AGENT, TTY_GROUP};
use sbx_proto::plan::{Boot, GitWorktree, Mode, Owner, Step};
use sbx_sys::mounts;

use super::mount_table::{MountTable, Origin, OwnFileSystems};
use super::trust;
use super::whiteouts;
use crate::error::{ErrorContext, SetupError, SetupResult};
use crate::worktree;

/// A directory that every machine has; covered by a scratch tmpfs once all sources are open.
const SCRATCH: &str = "/tmp";
/// Of one sandbox, at the same time.
const MAX_TERMINALS: u32 = 256;

pub(super) struct Built {
    /// The sandbox's `/dev/pts`.
    pub(super) ptys: OwnedFd,
    /// The writable workspaces. Paths to them can be changed from inside; these descriptors cannot.
    pub(super) workspaces: Vec<OwnedFd>,
    /// Git worktrees in which commits are allowed.
    pub(super) git: Vec<worktree::Directories>,
    /// The file systems that were made for this sandbox.
    pub(super) own: OwnFileSystems,
    /// Every mount's id and path.
    pub(super) mounts: BTreeSet<(u64, PathBuf)>,
}

pub(super) fn build(
    boot: &Boot,
    trees: Vec<OwnedFd>,
    program: &OwnedFd,
    mode: Mode,
) -> SetupResult<Built> {
    let null = open_path(Path::new("/dev/null"))?;
    make_private()?;
    mount_at(SCRATCH, "tmpfs", c"mode=0700")?;
    let mut builder = Builder {
        trees: trees.into_iter().map(Some).collect(),
        root: None,
        mount_table: MountTable::new(mode),
        program,
        null,
        mode,
        whiteout_layers: 0,
    };
    rustix::process::umask(FileMode::empty());
    for step in &boot.steps {
        builder.apply(step)?;
    }
    rustix::process::umask(FileMode::from_bits_truncate(0o022));
    let root = builder
        .root
        .take()
        .ok_or_else(|| SetupError::new("build the root", "the plan has no root"))?;
    pivot(root.as_fd())?;
    let ptys = rustix::fs::open(
        "/dev/pts",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        FileMode::empty(),
    )
    .doing(|| "open `/dev/pts` inside".into())?;
    Ok(Built {
        mounts: builder.mount_table.verify()?,
        ptys,
        workspaces: open_workspaces(&builder.mount_table, &boot.workspaces)?,
        git: open_worktrees(&mut builder.trees, &builder.mount_table, &boot.git)?,
        own: builder.mount_table.into_own(),
    })
}

fn open_workspaces(mount_table: &MountTable, paths: &[OsBytes]) -> SetupResult<Vec<OwnedFd>> {
    let mut workspaces = Vec::new();
    for path in paths {
        let root = mount_table.root_of(path.as_path())?;
        // Duplicated as `O_PATH`: root may have no permission to read it where the agent has.
        workspaces.push(fcntl_dupfd_cloexec(root, 0).doing(|| "keep a workspace".into())?);
    }
    Ok(workspaces)
}

fn open_worktrees(
    trees: &mut [Option<OwnedFd>],
    mount_table: &MountTable,
    worktrees: &[GitWorktree],
) -> SetupResult<Vec<worktree::Directories>> {
    let inside = |path: &OsBytes| {
        let root = mount_table.root_of(path.as_path())?;
        fcntl_dupfd_cloexec(root, 0).doing(|| "keep a git directory".into())
    };
    let mut host = |index: usize| {
        let tree = trees.get_mut(index).and_then(Option::take);
        tree.ok_or_else(|| SetupError::new("keep a git directory", "its source was used already"))
    };
    let mut found = Vec::new();
    for worktree in worktrees {
        found.push(worktree::Directories {
            inside: inside(&worktree.directory)?,
            host: host(worktree.host)?,
            inside_logs: inside(&worktree.logs)?,
            host_logs: host(worktree.host_logs)?,
        });
    }
    Ok(found)
}

/// A detached mount of proc for the current pid namespace: nothing inside can cover it with another mount.
pub(super) fn proc_mount() -> SetupResult<OwnedFd> {
    new_file_system("proc", &[], MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

/// Mounts everything that a sandbox's tree consists of, once, on a scratch file system in the probe's mount namespace.
pub(super) fn try_all_mounts(mode: Mode) -> SetupResult<()> {
    make_private()?;
    mount_at(SCRATCH, "tmpfs", c"mode=0700")?;
    for name in ["lower", "upper", "work"] {
        let path = format!("{SCRATCH}/{name}");
        rustix::fs::mkdir(&path, FileMode::from_bits_truncate(0o755))
            .doing(|| format!("make `{path}`"))?;
    }
    let whiteouts = whiteout_dir(0);
    whiteouts::make(
        Path::new(&whiteouts),
        &["name".into()],
        &[],
        Owner::Root,
        mode,
    )?;
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| format!("{SCRATCH}/{name}"));
    let layers = [
        ("lowerdir", format!("{whiteouts}:{lower}")),
        ("upperdir", upper),
        ("workdir", work),
    ];
    overlay_mount(Path::new("trial"), &layers, &[], MountAttrFlags::empty())?;
    let devpts = Builder::devpts_options(mode);
    new_file_system("devpts", &devpts, MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    new_file_system("sysfs", &[], MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    Ok(())
}

pub(super) struct Builder<'a> {
    /// By index in the plan; taken when used.
    trees: Vec<Option<OwnedFd>>,
    root: Option<OwnedFd>,
    mount_table: MountTable,
    program: &'a OwnedFd,
    /// The host's `/dev/null`.
    null: OwnedFd,
    mode: Mode,
    /// How many have been made.
    whiteout_layers: usize,
}

#[cfg(test)]
impl<'a> Builder<'a> {
    /// A builder that has its root already.
    pub(super) fn at(root: &Path, program: &'a OwnedFd) -> Self {
        Self {
            trees: Vec::new(),
            root: Some(open_path(root).unwrap()),
            mount_table: MountTable::new(Mode::Single),
            program,
            null: open_path(Path::new("/dev/null")).unwrap(),
            mode: Mode::Single,
            whiteout_layers: 0,
        }
    }
}

impl Builder<'_> {
    fn apply(&mut self, step: &Step) -> SetupResult<()> {
        match step {
            Step::Overlay {
                target,
                lowers,
                whiteouts,
                saved,
                upper,
                dir,
                owner,
                volatile,
            } => {
                let lowers = self.lowers(saved, lowers, *whiteouts)?;
                let upper = self.upper(*upper, dir, *owner)?;
                self.overlay(target.as_path(), lowers, &upper, *volatile)
            }
            Step::Whiteouts {
                hidden,
                agents,
                owner,
            } => {
                let place = whiteout_dir(self.whiteout_layers);
                self.whiteout_layers += 1;
                whiteouts::make(Path::new(&place), hidden, agents, *owner, self.mode)
            }
            Step::BindHidden {
                target,
                source,
                whiteouts,
            } => self.hide_names(target.as_path(), *source, *whiteouts),
            Step::Bind { target, source } => self.bind(target.as_path(), *source),
            Step::Tmpfs { target, mode } => {
                let options = [("mode", format!("{mode:o}"))];
                let mount = new_file_system("tmpfs", &options, MountAttrFlags::empty())?;
                self.attach(mount, target.as_path(), Origin::Sandbox)
            }
            Step::Proc { target } => self.attach(proc_mount()?, target.as_path(), Origin::Host),
            Step::Sysfs { target } => {
                let flags = MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
                let mount = new_file_system("sysfs", &[], flags)?;
                self.attach(mount, target.as_path(), Origin::Host)
            }
            Step::Devpts { target } => self.devpts(target.as_path()),
            Step::Dir {
                target,
                mode,
                owner,
            } => self.directory(target.as_path(), *mode, *owner),
            Step::Symlink { target, to } => self.symlink(target.as_path(), to.as_path()),
            Step::Alias { target, to } => self.alias(target.as_path(), to.as_path()),
            Step::Install { target } => self.install(target.as_path()),
            Step::Trust {
                certificate,
                file,
                bundles,
            } => trust::add(self, certificate, file.as_path(), bundles),
            Step::Close { target } => self.close(target.as_path()),
            Step::Mask { target } => self.mask(target.as_path()),
        }
    }

    /// The directory with the layers that can be written.
    fn upper(&mut self, source: usize, dir: &str, owner: Owner) -> SetupResult<String> {
        self.attach_layer(source)?;
        let upper = format!("{SCRATCH}/{source}/{dir}");
        make_upper(Path::new(&upper), owner, self.mode)?;
        Ok(upper)
    }

    fn overlay(
        &mut self,
        target: &Path,
        lowers: String,
        upper: &str,
        volatile: bool,
    ) -> SetupResult<()> {
        let layers = [
            ("lowerdir", lowers),
            ("upperdir", format!("{upper}/upper")),
            ("workdir", format!("{upper}/work")),
        ];
        allow_again(Path::new(upper))
            .doing(|| format!("open the layers of `{}`", target.display()))?;
        let flags: &[&str] = if volatile { &["volatile"] } else { &[] };
        let mount = overlay_mount(target, &layers, flags, MountAttrFlags::MOUNT_ATTR_NODEV)?;
        if target == Path::new("/") {
            let root = mount_root(&mount)?;
            let copy = fcntl_dupfd_cloexec(&root, 0).doing(|| "keep the root".into())?;
            self.root = Some(root);
            return self.mount_table.add(target, copy, Origin::Sandbox);
        }
        self.attach(mount, target, Origin::Sandbox)
    }

    /// A read-only overlay with a whiteout layer on top. A mount over a name would be lost when the host replaces the file;
    /// a whiteout hides the name whatever is below.
    fn hide_names(&mut self, target: &Path, source: usize, whiteouts: usize) -> SetupResult<()> {
        let lowers = self.lowers(&[], &[source], Some(whiteouts))?;
        let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = overlay_mount(target, &[("lowerdir", lowers)], &[], flags)?;
        self.attach(mount, target, Origin::Host)
    }

    /// The value of `lowerdir=`, uppermost layer first.
    fn lowers(
        &mut self,
        saved: &[usize],
        layers: &[usize],
        whiteouts: Option<usize>,
    ) -> SetupResult<String> {
        for &index in saved.iter().chain(layers) {
            self.attach_layer(index)?;
        }
        let place = |index: &usize| format!("{SCRATCH}/{index}");
        let mut dirs: Vec<String> = saved.iter().map(place).collect();
        dirs.extend(whiteouts.map(whiteout_dir));
        dirs.extend(layers.iter().map(place));
        Ok(dirs.join(":"))
    }

    /// Overlay options are paths: mounts a layer below the scratch directory, under its number.
    fn attach_layer(&mut self, index: usize) -> SetupResult<()> {
        let Some(tree) = self.trees.get_mut(index).and_then(Option::take) else {
            return Ok(()); // there already
        };
        let place = format!("{SCRATCH}/{index}");
        rustix::fs::mkdir(&place, FileMode::from_bits_truncate(0o700))
            .doing(|| format!("make `{place}`"))?;
        let place_fd = open_path(Path::new(&place))?;
        move_to(tree.as_fd(), place_fd.as_fd()).doing(|| format!("mount a layer at `{place}`"))
    }

    fn bind(&mut self, target: &Path, source: usize) -> SetupResult<()> {
        let doing = || format!("mount `{}`", target.display());
        let tree = self
            .trees
            .get_mut(source)
            .and_then(Option::take)
            .ok_or_else(|| SetupError::new(doing(), "its source was used already"))?;
        let kind = rustix::fs::fstat(&tree).doing(doing)?.st_mode;
        let place = if FileType::from_raw_mode(kind) == FileType::Directory {
            self.mount_table.directory(target)?
        } else {
            self.mount_table.file(target)?
        };
        move_to(tree.as_fd(), place.as_fd()).doing(doing)?;
        self.mount_table.add(target, tree, Origin::Host)
    }

    fn devpts(&mut self, target: &Path) -> SetupResult<()> {
        let options = Self::devpts_options(self.mode);
        // Without nodev, unlike all others: terminals are devices.
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        self.attach(
            mount_new("devpts", &options, flags)?,
            target,
            Origin::Sandbox,
        )
    }

    fn devpts_options(mode: Mode) -> Vec<(&'static str, String)> {
        let mut options = vec![
            ("ptmxmode", "0666".into()),
            ("mode", "0620".into()),
            // `kernel.pty.max` is a few thousand for the whole machine.
            ("max", MAX_TERMINALS.to_string()),
        ];
        if mode != Mode::Single {
            options.push(("gid", TTY_GROUP.to_string()));
        }
        options
    }

    fn directory(&self, target: &Path, mode: u32, owner: Owner) -> SetupResult<()> {
        let doing = || format!("make `{}`", target.display());
        let place = self.mount_table.directory(target)?;
        let real = rustix::fs::openat(
            &place,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            FileMode::empty(),
        )
        .doing(doing)?;
        give_to(real.as_fd(), owner, self.mode).doing(doing)?;
        rustix::fs::fchmod(&real, FileMode::from_bits_truncate(mode)).doing(doing)
    }

    fn symlink(&self, target: &Path, to: &Path) -> SetupResult<()> {
        let name = target.file_name().unwrap_or_default();
        let parent = target.parent().unwrap_or(Path::new("/"));
        let parent = self.mount_table.directory(parent)?;
        match rustix::fs::symlinkat(to, &parent, name) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error).doing(|| format!("make the link `{}`", target.display())),
        }
    }

    /// A link that programs inside can do without: it is not made where a read-only part of the sandbox would hold it.
    fn alias(&self, target: &Path, to: &Path) -> SetupResult<()> {
        if resolve(self.root()?, target).is_ok() {
            return Ok(());
        }
        if let Ok((parent, name)) = self.parent(target) {
            let _ = rustix::fs::symlinkat(to, &parent, &name);
        }
        Ok(())
    }

    fn install(&self, target: &Path) -> SetupResult<()> {
        let doing = || format!("install `{}`", target.display());
        let (parent, name) = self.parent(target)?;
        match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).doing(doing),
        }
        let file = rustix::fs::openat(
            &parent,
            &name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
            FileMode::from_bits_truncate(0o755),
        )
        .doing(doing)?;
        let mut file = File::from(file);
        let mut program = File::from(self.program.try_clone().doing(doing)?);
        io::copy(&mut program, &mut file).doing(doing)?;
        rustix::fs::fchmod(&file, FileMode::from_bits_truncate(0o4755)).doing(doing)
    }

    fn mask(&mut self, target: &Path) -> SetupResult<()> {
        let doing = || format!("mask `{}`", target.display());
        let Some(place) = self.mount_table.existing(target)? else {
            return Ok(());
        };
        let kind = rustix::fs::fstat(&place).doing(doing)?.st_mode;
        let cover = if FileType::from_raw_mode(kind) == FileType::Directory {
            let options = [("mode", "0555".into()), ("size", "4k".into())];
            new_file_system("tmpfs", &options, MountAttrFlags::MOUNT_ATTR_RDONLY)?
        } else {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_EMPTY_PATH;
            let null = rustix::mount::open_tree(&self.null, c"", flags).doing(doing)?;
            // Read-only: it is the host's inode, whose times and mode must not change.
            let attributes = mounts::RDONLY | mounts::NOSUID | mounts::NOEXEC;
            mounts::set_attributes(null.as_fd(), false, attributes, None).doing(doing)?;
            null
        };
        move_to(cover.as_fd(), place.as_fd()).doing(doing)?;
        self.mount_table.add(target, cover, Origin::Host)
    }

    fn close(&self, target: &Path) -> SetupResult<()> {
        let Some(mount) = self.mount_table.mounted(target) else {
            return Ok(());
        };
        let attributes = mounts::RDONLY | mounts::NOSUID | mounts::NODEV;
        mounts::set_attributes(mount, false, attributes, None)
            .doing(|| format!("close `{}`", target.display()))
    }

    fn attach(&mut self, mount: OwnedFd, target: &Path, origin: Origin) -> SetupResult<()> {
        let place = self.mount_table.directory(target)?;
        move_to(mount.as_fd(), place.as_fd()).doing(|| format!("mount `{}`", target.display()))?;
        self.mount_table.add(target, mount, origin)
    }

    pub(super) fn root(&self) -> SetupResult<BorrowedFd<'_>> {
        self.root
            .as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| SetupError::new("build the root", "the plan does not begin with `/`"))
    }

    /// The directory that `target` leads to inside, made with its parents if missing. For files of the sandbox; mounts use
    /// [`MountTable`].
    fn make_directory(&self, target: &Path) -> SetupResult<OwnedFd> {
        let root = self.root()?;
        let doing = || format!("make the directory `{}`", target.display());
        match resolve(root, target) {
            Ok(place) => return Ok(place),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error).doing(doing),
        }
        let mut path = PathBuf::from("/");
        let mut place = resolve(root, &path).doing(doing)?;
        for component in target.components() {
            let Component::Normal(name) = component else {
                continue;
            };
            path.push(name);
            place = match resolve(root, &path) {
                Ok(next) => next,
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&place, name, FileMode::from_bits_truncate(0o755))
                        .doing(doing)?;
                    resolve(root, &path).doing(doing)?
                }
                Err(error) => return Err(error).doing(doing),
            };
        }
        Ok(place)
    }

    pub(super) fn parent(&self, target: &Path) -> SetupResult<(OwnedFd, PathBuf)> {
        let name = target
            .file_name()
            .ok_or_else(|| SetupError::new("build the root", "a target has no name"))?;
        let parent = self.make_directory(target.parent().unwrap_or(Path::new("/")))?;
        Ok((parent, PathBuf::from(name)))
    }
}

/// `path` as a process origin root is `root` would find it.
fn resolve(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        FileMode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

fn whiteout_dir(number: usize) -> String {
    format!("{SCRATCH}/whiteouts{number}")
}

fn overlay_mount(
    target: &Path,
    layers: &[(&str, String)],
    options: &[&str],
    flags: MountAttrFlags,
) -> SetupResult<OwnedFd> {
    let doing = || format!("mount the layers of `{}`", target.display());
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).doing(doing)?;
    for (key, value) in layers {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, value.as_str()).doing(doing)?;
    }
    for option in options {
        rustix::mount::fsconfig_set_flag(context.as_fd(), *option).doing(doing)?;
    }
    // Overlay stores its marks in `user.overlay.*`: in a user namespace it may not set `trusted.*`, and without marks
    // `rm -r` and renames of directories fail.
    rustix::mount::fsconfig_set_flag(context.as_fd(), "userxattr").doing(doing)?;
    rustix::mount::fsconfig_create(context.as_fd()).doing(doing)?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).doing(doing)
}

/// The kernel marks the layers of a volatile overlay and refuses to mount them a second time, since the machine may have
/// crashed in between. It has not: a daemon that finds a temporary sandbox stopped removes it, and starts only what it has seen
/// stop.
fn allow_again(upper: &Path) -> Result<(), Errno> {
    let mark = upper.join("work/work/incompat/volatile");
    for removed in [
        rustix::fs::unlink(mark.join("dirty")),
        rustix::fs::rmdir(&mark),
    ] {
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The layers' own directories, made at the first start.
fn make_upper(dir: &Path, owner: Owner, mode: Mode) -> SetupResult<()> {
    for (path, owner) in [
        (dir.to_path_buf(), Owner::Root),
        (dir.join("upper"), owner),
        (dir.join("work"), Owner::Root),
    ] {
        let doing = || format!("make the layer `{}`", path.display());
        match rustix::fs::mkdir(&path, FileMode::from_bits_truncate(0o755)) {
            Ok(()) => {
                let made = rustix::fs::open(
                    &path,
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    FileMode::empty(),
                )
                .doing(doing)?;
                give_to(made.as_fd(), owner, mode).doing(doing)?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error).doing(doing),
        }
    }
    Ok(())
}

pub(super) fn give_to(fd: BorrowedFd<'_>, owner: Owner, mode: Mode) -> Result<(), Errno> {
    let id = match (owner, mode) {
        (_, Mode::Single) => return Ok(()), // there is one id
        (Owner::Root, Mode::Root | Mode::Subordinate) => 0,
        (Owner::Agent, Mode::Root | Mode::Subordinate) => AGENT,
    };
    rustix::fs::fchown(fd, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)))
}

fn new_file_system(
    kind: &str,
    options: &[(&str, String)],
    flags: MountAttrFlags,
) -> SetupResult<OwnedFd> {
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount_new(kind, options, flags | safe)
}

fn mount_new(
    kind: &str,
    options: &[(&str, String)],
    flags: MountAttrFlags,
) -> SetupResult<OwnedFd> {
    let doing = || format!("make a {kind} file system");
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).doing(doing)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, value.as_str()).doing(doing)?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).doing(doing)?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).doing(doing)
}

pub(super) fn move_to(mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::mount::move_mount(
        mount,
        c"",
        place,
        c"",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
}

fn mount_root(mount: &OwnedFd) -> SetupResult<OwnedFd> {
    let place = format!("{SCRATCH}/root");
    rustix::fs::mkdir(&place, FileMode::from_bits_truncate(0o755))
        .doing(|| "make a mount point for the root".into())?;
    let place_fd = open_path(Path::new(&place))?;
    move_to(mount.as_fd(), place_fd.as_fd()).doing(|| "mount the root".into())?;
    open_path(Path::new(&place))
}

pub(super) fn open_path(path: &Path) -> SetupResult<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, FileMode::empty())
        .doing(|| format!("open `{}`", path.display()))
}

/// No mount propagates between this namespace and the host (`MS_PRIVATE | MS_REC`).
pub(super) fn make_private() -> SetupResult<()> {
    rustix::mount::mount_change(
        c"/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .doing(|| "make the mounts private".into())
}

fn mount_at(place: &str, kind: &str, options: &std::ffi::CStr) -> SetupResult<()> {
    let kind = CString::new(kind).map_err(|e| SetupError::new("mount", e.to_string()))?;
    rustix::mount::mount(
        kind.as_c_str(),
        place,
        kind.as_c_str(),
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(options),
    )
    .doing(|| format!("mount `{place}`"))
}

/// `pivot_root(".", ".")` puts the old root on top of the new one; detaching it (`MNT_DETACH`) removes the host's whole
/// tree from this mount namespace.
fn pivot(root: BorrowedFd<'_>) -> SetupResult<()> {
    rustix::process::fchdir(root).doing(|| "enter the root".into())?;
    rustix::process::pivot_root(".", ".").doing(|| "change the root".into())?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).doing(|| "detach the host's root".into())?;
    rustix::process::chdir("/").doing(|| "enter the root".into())
}
