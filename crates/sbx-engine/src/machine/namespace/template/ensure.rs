//! Finds the template of this host version, or has it built; then lays out a sandbox on it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::ops::Bound;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, FlockOperation, Mode as FileMode, OFlags, access, flock, syncfs};
use rustix::process::geteuid;
use sbx_api::{Caller, MountKind};
use sbx_proto::OsBytes;
use sbx_proto::plan::Mode;
use sbx_sys::mountinfo;

use super::TemplateError;
use super::build::{LAYERS, PRIVATE, ROOT};
use super::caches::{CacheDir, caches, shims};
use super::copy::{make_dir, may_enter, present, write_file};
use super::env::env;
use super::error::At as _;
use super::fingerprint::fingerprint;
use super::hidden::{Facts, Hidden};
use super::layout::{HostBind, HostLayout, OverlayDir};
use super::secrets::{Entry, FileSystemView, Kind, scan_cache};
use super::spec::{Spec, TopKind, is_system, layer_name};
use super::toolchain::{Probe, Refusals, clean, tool_chains};
use crate::machine::namespace::isolation::mode_name;
use crate::machine::process::boot_id;
use crate::threads::spawn;
use crate::workspace::untrusted::{Resolved, UntrustedPaths};

pub(super) const COMPLETE: &str = ".complete";
/// To become [`COMPLETE`].
const WRITTEN_OUT: &str = ".complete-on-disk";
const LOCK: &str = ".lock";
const UNFINISHED: &str = ".building-";
const RETIRED: &str = ".removed-";
/// How often a build is repeated because the host changed meanwhile.
const ATTEMPTS: u32 = 3;

/// Of every system.
const DIRS_OF_PROGRAMS: &[&str] = &[
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/games",
    "/usr/local/bin",
    "/usr/local/games",
    "/usr/local/sbin",
    "/usr/sbin",
];

/// File systems that overlay takes as a lower layer, as `statfs` numbers them: ext2 to ext4, XFS, Btrfs, F2FS, tmpfs,
/// SquashFS and EROFS.
const LAYERED: &[rustix::fs::FsWord] = &[
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x0102_1994,
    0x7371_7368,
    0xe0f5_e1e2,
];

/// The user that a sandbox is for, and what is known of its surroundings.
#[derive(Debug, Clone, Copy)]
pub struct LayoutRequest<'a> {
    pub caller: &'a Caller,
    /// The sandbox's own workspaces.
    pub workspaces: &'a [PathBuf],
    /// What any sandbox can write.
    pub untrusted: &'a UntrustedPaths,
    /// [`HostLayout::sources`] of the first start.
    pub sources: &'a BTreeMap<PathBuf, PathBuf>,
    /// Show the build cache of Go too.
    pub go_build_cache: bool,
}

/// The layout of a sandbox for `request` on this host.
///
/// `store` is `<state>/templates`. `build` runs [`super::build`] on a directory and a specification: as root
/// of the user namespace in subordinate mode, as the caller otherwise. `remove` deletes a tree with the same
/// ids. `progress` is told before something slow.
pub fn ensure(
    store: &Path,
    request: LayoutRequest<'_>,
    mode: Mode,
    build: &dyn Fn(&Path, &str) -> Result<(), String>,
    remove: &dyn Fn(&Path) -> Result<(), String>,
    progress: &dyn Fn(&str),
) -> Result<HostLayout, TemplateError> {
    let mut left_out = request.untrusted.roots().to_vec();
    left_out.push(state(store));
    let maker = Maker {
        store,
        left_out: &left_out,
        build,
        remove,
        progress,
    };
    let mounts = mountinfo::own().at("read", Path::new("/proc/self/mountinfo"))?;
    let (spec, fingerprint) = maker.template(Path::new("/"), mode, &mounts)?;
    let template = store.join(directory(mode, &fingerprint));
    let private = private(&template)?;
    Ok(lay_out(
        &template,
        fingerprint,
        &spec,
        private,
        &mounts,
        request,
        store,
    ))
}

/// Puts the templates aside whose fingerprint is not in `used`, and returns what lies aside: to be removed later, in the
/// background. The caller knows which ones sandboxes use.
pub fn retire_unused(store: &Path, used: &BTreeSet<String>) -> Result<Vec<PathBuf>, TemplateError> {
    let Some(entries) = present(fs::read_dir(store)).at("list", store)? else {
        return Ok(Vec::new());
    };
    let _lock = lock(store)?;
    let mut aside = Vec::new();
    for entry in entries {
        let entry = entry.at("list", store)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        if name.starts_with(RETIRED) {
            aside.push(entry.path());
            continue;
        }
        let print = name
            .strip_prefix("host-")
            .and_then(|it| it.rsplit_once('-'));
        if print.is_some_and(|(_, print)| !used.contains(print)) {
            let place = store.join(format!("{RETIRED}{name}"));
            fs::rename(entry.path(), &place).at("put aside", &place)?;
            aside.push(place);
        }
    }
    Ok(aside)
}

pub(super) struct Maker<'a> {
    pub(super) store: &'a Path,
    /// Canonical paths of directories that nothing is taken of.
    pub(super) left_out: &'a [PathBuf],
    pub(super) build: &'a dyn Fn(&Path, &str) -> Result<(), String>,
    pub(super) remove: &'a dyn Fn(&Path) -> Result<(), String>,
    pub(super) progress: &'a dyn Fn(&str),
}

impl Maker<'_> {
    /// The template of the host as it is now: what it shows, and its fingerprint.
    pub(super) fn template(
        &self,
        host: &Path,
        mode: Mode,
        mountinfo: &[u8],
    ) -> Result<(Spec, String), TemplateError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let spec = Spec::of(host, mode, mountinfo, self.left_out);
            if !spec.dirs().any(|top| top == "usr") {
                return Err(TemplateError::NoSystem {
                    path: host.join("usr"),
                });
            }
            let print = fingerprint(&spec);
            if is_complete(&self.store.join(directory(mode, &print))) {
                return Ok((spec, print));
            }
            self.make(&spec, &print)?;
            // A package may have been installed while we copied its database: then it is half of each.
            if attempt == ATTEMPTS
                || fingerprint(&Spec::of(host, mode, mountinfo, self.left_out)) == print
            {
                return Ok((spec, print));
            }
        }
    }

    fn make(&self, spec: &Spec, print: &str) -> Result<(), TemplateError> {
        make_dir(self.store, 0o700)?;
        let _lock = lock(self.store)?;
        let dir = self.store.join(directory(spec.mode, print));
        if is_complete(&dir) {
            return Ok(());
        }
        self.sweep()?;
        // The machine went down before all of it was on the disk.
        if dir.exists() {
            remove_tree(&dir, self.remove)?;
        }
        (self.progress)("preparing the host template (once per version of this machine's system)");
        let unfinished = self.store.join(format!("{UNFINISHED}{print}"));
        make_dir(&unfinished, 0o700)?;
        let json = serde_json::to_string(spec).map_err(TemplateError::Spec)?;
        if let Err(message) = (self.build)(&unfinished, &json) {
            // The failure is the news; what cannot be removed now is swept by the next build.
            drop((self.remove)(&unfinished));
            return Err(TemplateError::Build {
                path: unfinished,
                message,
            });
        }
        let handle = File::open(&unfinished).at("open", &unfinished)?;
        let boot = boot_id().unwrap_or_default();
        if boot.is_empty() {
            syncfs(&handle).at("write out", &unfinished)?;
        }
        write_file(&unfinished.join(COMPLETE), &boot, 0o600)?;
        fs::rename(&unfinished, &dir).at("put in place", &dir)?;
        if !boot.is_empty() {
            spawn("template", move || match write_out(&handle) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "the template is not known to be on the disk"),
            });
        }
        Ok(())
    }

    /// Removes what a crash left. Under the lock, so nothing of it is being built.
    fn sweep(&self) -> Result<(), TemplateError> {
        for entry in fs::read_dir(self.store).at("list", self.store)? {
            let entry = entry.at("list", self.store)?;
            if entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(UNFINISHED))
            {
                remove_tree(&entry.path(), self.remove)?;
            }
        }
        Ok(())
    }
}

/// Whether a template has all its files. Its marker names the boot of the machine in which it was built, and vouches for it
/// in that one: what was written is there for every process, on the disk or not. An empty marker was made when all of it was
/// on the disk, which may take seconds that no sandbox has to wait for.
pub(super) fn is_complete(template: &Path) -> bool {
    match fs::read(template.join(COMPLETE)) {
        Ok(boot) if boot.is_empty() => true,
        Ok(boot) => boot_id().is_ok_and(|now| now.as_bytes() == boot),
        Err(_) => false,
    }
}

/// The marker must not reach the disk before what it vouches for.
pub(super) fn write_out(template: &File) -> rustix::io::Result<()> {
    syncfs(template)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    rustix::fs::openat(template, WRITTEN_OUT, flags, FileMode::from_raw_mode(0o600))?;
    rustix::fs::renameat(template, WRITTEN_OUT, template, COMPLETE)
}

fn directory(mode: Mode, print: &str) -> String {
    format!("host-{}-{print}", mode_name(mode))
}

fn lock(store: &Path) -> Result<File, TemplateError> {
    let path = store.join(LOCK);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .at("open", &path)?;
    flock(&file, FlockOperation::LockExclusive).at("lock", &path)?;
    Ok(file)
}

fn remove_tree(
    path: &Path,
    remove: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<(), TemplateError> {
    remove(path).map_err(|message| TemplateError::Remove {
        path: path.to_owned(),
        message,
    })
}

/// What [`super::build`] found that the caller keeps from others.
pub(super) fn private(template: &Path) -> Result<Vec<OsBytes>, TemplateError> {
    let path = template.join(PRIVATE);
    let text = fs::read(&path).at("read", &path)?;
    serde_json::from_slice(&text).map_err(|source| TemplateError::Damaged { path, source })
}

/// The state directory, canonical.
fn state(store: &Path) -> PathBuf {
    let state = store.parent().unwrap_or(store);
    fs::canonicalize(state).unwrap_or_else(|_| state.to_owned())
}

pub(super) fn lay_out(
    template: &Path,
    fingerprint: String,
    spec: &Spec,
    private: Vec<OsBytes>,
    mountinfo: &[u8],
    request: LayoutRequest<'_>,
    store: &Path,
) -> HostLayout {
    let mut warnings = Vec::new();
    let (mut overlays, mut system) = system_dirs(template, spec, &mut warnings);
    let state = state(store);
    let mut hidden = hidden(request, &state, private);
    let finder = Finder::new(request);
    let mounts = mountinfo::parse(mountinfo).into_iter();
    let points = mounts.map(|mount| mount.point).collect();
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    let probe = Probe {
        system: &|path| is_system(path) && !hidden.covers(path),
        personal: &is_personal,
        canonical: &canonical,
        dir: &|path| visible_dir(finder.find(path)?, spec.mode),
        link: &|path| fs::read_link(path).ok(),
        layer: &|path| layer_problem(path, spec.mode, &points),
        own: &|path| finder.own(path),
        view: FileSystemView {
            list: &list,
            kind: &|path| kind(path, spec.mode, request.untrusted),
            holds_workspace: &|path| request.workspaces.iter().any(|one| one.starts_with(path)),
        },
    };
    let caller = request.caller;
    let mut tools = tool_chains(caller, &state, &probe);
    let mut env = env(caller, &tools.path, &|path| {
        let shown = path.is_dir() && ((probe.system)(path) || tools.shows(path));
        let own = || finder.own(path).as_deref() == Some(path);
        shown || (own() && fs::symlink_metadata(path).is_ok())
    });
    let mut sources = std::mem::take(&mut tools.sources);
    let (mut writable, mut dirs) = (Vec::new(), BTreeSet::new());
    if let Some(home) = clean(&caller.home) {
        let refusals = Refusals::new(&home, &state, &canonical);
        let view = probe.view;
        let probe = |path: &Path| {
            let place = finder.find(path)?;
            let refused = refusals.cover(path) || refusals.cover(&place);
            cache_dir(place, spec.mode, &points).filter(|_| !refused)
        };
        writable = shims(&mut tools.binds, &probe);
        let free = |path: &Path| !refusals.cover(path) && tools.leave_free(path);
        let found = caches(&home, &caller.env, request.go_build_cache, &probe, &free);
        writable.extend(without_secrets(found.overlays, &view));
        sources.extend(found.sources);
        dirs = found.dirs;
        env.extend(found.env);
    }
    hidden.add(tools.hidden);
    let facts = Facts {
        is_dir: &|path| fs::symlink_metadata(path).ok().map(|meta| meta.is_dir()),
        // Root's own are root's inside.
        callers: &|path| fs::symlink_metadata(path).is_ok_and(|m| is_callers(&m) && m.uid() != 0),
        workspaces: request.workspaces,
    };
    let (covers, told) = hidden.apply(&mut overlays, &mut system, &facts);
    tools.roots.extend(covers.dirs);
    warnings.extend(told);
    warnings.extend(tools.warnings);
    warnings.extend(finder.warnings.into_inner());
    // What was there once and is not now may come back, and must then be what it was.
    for (path, real) in request.sources {
        sources.insert(path.clone(), real.clone());
    }
    HostLayout {
        fingerprint,
        root_lower: template.join(ROOT),
        overlays,
        system,
        masked: covers.files,
        binds: tools.binds,
        roots: tools.roots,
        links: tools.links,
        dirs,
        caches: writable,
        saved: Vec::new(),
        kept: None,
        env,
        sources,
        warnings,
    }
}

/// Hides what in them is called like a credential.
fn without_secrets(mut caches: Vec<OverlayDir>, view: &FileSystemView<'_>) -> Vec<OverlayDir> {
    for cache in &mut caches {
        let secrets = cache.lowers.first().map(|real| scan_cache(real, view));
        cache.hidden.extend(secrets.into_iter().flatten());
    }
    caches
}

/// What of the system directories is not the sandbox's to see. Its own workspaces are mounted on top.
fn hidden(request: LayoutRequest<'_>, state: &Path, private: Vec<OsBytes>) -> Hidden {
    // The home of an account without a person may be any directory.
    let own = |home: &PathBuf| fs::metadata(home).is_ok_and(|meta| is_callers(&meta));
    let home = clean(&request.caller.home).and_then(|home| fs::canonicalize(home).ok());
    let untrusted = request.untrusted.roots().iter().cloned();
    let private = private.iter().map(OsBytes::to_path_buf);
    Hidden::new(
        home.filter(own)
            .into_iter()
            .chain([state.to_owned()])
            .chain(untrusted)
            .chain(private),
    )
}

/// Whether a directory of programs is a user's own. Root's are the system's, but for those that root added as a caller.
fn is_personal(dir: &Path) -> bool {
    let usual = || DIRS_OF_PROGRAMS.iter().any(|usual| dir == Path::new(usual));
    let owner = fs::metadata(dir).map(|meta| meta.uid());
    owner.is_ok_and(|uid| uid != 0 || (geteuid().is_root() && !usual()))
}

fn is_callers(meta: &Metadata) -> bool {
    meta.uid() == geteuid().as_raw()
}

/// Finds what the caller names, unless a program in a sandbox had a hand in where that is.
struct Finder<'a> {
    request: LayoutRequest<'a>,
    /// What was found: a path is asked for several times, and leads to one place.
    resolved: RefCell<BTreeMap<PathBuf, Option<Resolved>>>,
    warnings: RefCell<Vec<String>>,
}

impl<'a> Finder<'a> {
    fn new(request: LayoutRequest<'a>) -> Self {
        Self {
            request,
            resolved: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    fn find(&self, path: &Path) -> Option<PathBuf> {
        let shown = path.display();
        match self.resolve(path)? {
            Resolved::Untrusted(place) => {
                if self.own(path).is_none() && fs::symlink_metadata(&place).is_ok() {
                    self.warn(format!(
                        "`{shown}` is not shown inside: it lies in a workspace of another sandbox"
                    ));
                }
                None
            }
            Resolved::Trusted(real) => match self.request.sources.get(path) {
                Some(known) if *known != real => {
                    self.warn(format!(
                        "`{shown}` is not shown inside: it resolves to another path than when the sandbox was created; hint: `sbx rm` it and create it again"
                    ));
                    None
                }
                Some(_) | None => Some(real),
            },
        }
    }

    /// Where in one of the sandbox's own workspaces the path leads to.
    fn own(&self, path: &Path) -> Option<PathBuf> {
        let Resolved::Untrusted(place) = self.resolve(path)? else {
            return None;
        };
        let plain = place.components().all(|part| part != Component::ParentDir);
        let mut workspaces = self.request.workspaces.iter();
        (plain && workspaces.any(|workspace| place.starts_with(workspace))).then_some(place)
    }

    fn resolve(&self, path: &Path) -> Option<Resolved> {
        let mut resolved = self.resolved.borrow_mut();
        if let Some(known) = resolved.get(path) {
            return known.clone();
        }
        let found = self.request.untrusted.resolve(path);
        resolved.insert(path.to_owned(), found.clone());
        found
    }

    fn warn(&self, warning: String) {
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
}

fn system_dirs(
    template: &Path,
    spec: &Spec,
    warnings: &mut Vec<String>,
) -> (Vec<OverlayDir>, Vec<HostBind>) {
    let mut overlays = Vec::new();
    let mut binds = Vec::new();
    let bind = |path: &Path| HostBind {
        source: path.to_owned(),
        target: path.to_owned(),
        kind: MountKind::Template,
        layered: false,
        hidden: BTreeSet::new(),
    };
    for top in &spec.tops {
        let target = Path::new("/").join(&top.name);
        let shown = target.display();
        match top.kind {
            TopKind::Link(_) => continue,
            TopKind::Closed => {
                warnings.push(format!(
                    "`{shown}` is empty inside: on the host it is not for everyone"
                ));
                continue;
            }
            TopKind::Dir => {}
        }
        let mut below = spec.mounts();
        below.retain(|point| point.starts_with(&target));
        if !below.is_empty() && !matches!(spec.mode, Mode::Root) {
            warnings.push(format!(
                "`{shown}` is read-only inside, and Unix sockets and named pipes of the host below it can be reached: other file systems are mounted below it on the host"
            ));
            binds.push(bind(&target));
            continue;
        }
        binds.extend(
            below
                .iter()
                .filter(|point| open_to_others(point))
                .map(|point| HostBind {
                    layered: takes_layer(point),
                    ..bind(point)
                }),
        );
        let layer = template.join(LAYERS).join(&top.name);
        let host = spec.host.join(&top.name);
        overlays.push(OverlayDir {
            lowers: if layer.is_dir() {
                vec![layer, host]
            } else {
                vec![host]
            },
            dir: layer_name(&target),
            target,
            agents: BTreeSet::new(),
            as_owner: None,
            hidden: BTreeSet::new(),
        });
    }
    (overlays, binds)
}

/// Whether a mount of the host can be shown through a layer, which keeps its sockets and pipes out of reach. Overlay
/// refuses some file systems, and the layer's mode is not that of a directory that is closed to others.
pub(super) fn takes_layer(point: &Path) -> bool {
    let open = fs::symlink_metadata(point).is_ok_and(|m| m.is_dir() && may_enter(m.mode()));
    open && rustix::fs::statfs(point).is_ok_and(|known| LAYERED.contains(&known.f_type))
}

/// What is in a directory; of one that cannot be listed, nothing.
fn list(dir: &Path) -> Vec<Entry> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| Entry {
            kind: entry.file_type().map_or(Kind::File, kind_of),
            name: entry.file_name(),
        })
        .collect()
}

fn kind_of(kind: fs::FileType) -> Kind {
    if kind.is_dir() {
        Kind::Dir
    } else if kind.is_symlink() {
        Kind::Link
    } else {
        Kind::File
    }
}

/// What a name in a directory outside of all workspaces is; a directory only if it can be shown as well.
fn kind(path: &Path, mode: Mode, untrusted: &UntrustedPaths) -> Option<Kind> {
    let meta = fs::symlink_metadata(path).ok()?;
    let kind = kind_of(meta.file_type());
    let shown = kind != Kind::Dir
        || (untrusted.is_trusted(path, &meta) && (mode != Mode::Root || may_enter(meta.mode())));
    shown.then_some(kind)
}

/// A directory that can be shown as it is. In root mode the sandbox has no id of the host, so that only
/// what others may read is of any use.
fn visible_dir(canonical: PathBuf, mode: Mode) -> Option<PathBuf> {
    let meta = fs::metadata(&canonical).ok()?;
    let readable = match mode {
        Mode::Root => may_enter(meta.mode()),
        Mode::Subordinate | Mode::Single => {
            access(&canonical, Access::READ_OK | Access::EXEC_OK).is_ok()
        }
    };
    (meta.is_dir() && readable).then_some(canonical)
}

/// Whether others may go to a path: all directories above it let them.
fn open_to_others(path: &Path) -> bool {
    path.ancestors()
        .skip(1)
        .all(|above| fs::symlink_metadata(above).is_ok_and(|meta| may_enter(meta.mode())))
}

/// Why a directory cannot be part of an overlay.
fn layer_problem(
    path: &Path,
    mode: Mode,
    mount_points: &BTreeSet<PathBuf>,
) -> Option<&'static str> {
    // What lies below a path follows it in their order.
    let next = (Bound::Excluded(path), Bound::Unbounded);
    let next = mount_points.range::<Path, _>(next).next();
    if next.is_some_and(|point| point.starts_with(path)) {
        return Some("other file systems are mounted below it");
    }
    // An overlay reads its layers as root inside, who has no power over what belongs to a group that is not inside.
    let closed = |meta: Metadata| {
        !may_enter(meta.mode()) && meta.gid() != rustix::process::getegid().as_raw()
    };
    let closed = mode == Mode::Subordinate && fs::metadata(path).is_ok_and(closed);
    closed.then_some("it is closed to others, and its group is not yours")
}

fn cache_dir(canonical: PathBuf, mode: Mode, mount_points: &BTreeSet<PathBuf>) -> Option<CacheDir> {
    let meta = fs::metadata(&canonical).ok()?;
    let usable = meta.is_dir()
        && access(&canonical, Access::READ_OK | Access::EXEC_OK).is_ok()
        && layer_problem(&canonical, mode, mount_points).is_none();
    usable.then(|| CacheDir {
        path: canonical,
        owner: (meta.uid(), meta.gid()),
    })
}
