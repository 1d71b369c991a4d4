//! Collects the facts: reads files below /proc, /sys and /etc, asks the daemon, and creates a sandbox's namespaces once as a
//! trial. Starts no daemon and leaves nothing behind.

use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};
use sbx_engine::StateDir;
use sbx_engine::error::chain;
use sbx_engine::machine::ModeOverride;
use sbx_engine::machine::namespace::helper::Helper;
use sbx_engine::machine::namespace::{devices, ids};
use sbx_engine::policy::PolicyBook;
use sbx_engine::state::SOCKET;
use sbx_proto::plan::Mode;

use super::facts::{
    Cgroups, Companion, Companions, Daemon, Facts, Rules, Settings, Socket, Storage, StorageState,
    Subordinate, UserNamespaces,
};
use crate::autostart;
use crate::context::Context;
use crate::failure::Failure;
use crate::lookup;

/// Never fails: what cannot be determined is a fact too.
pub(crate) fn gather(context: &Context) -> Facts {
    let uid = rustix::process::geteuid();
    let user = user_name(context, uid.as_raw());
    let path = context.env.get("PATH").unwrap_or_default();
    let ids = ids::Facts::read(&std::env::split_paths(path).collect::<Vec<_>>());
    let state = context.state();
    let storage = match &state {
        Ok(state) => Storage {
            foreign: foreign(context, state),
            ..storage(state, uid.as_raw())
        },
        Err(failure) => unresolved(failure),
    };
    let state = state.ok().filter(|_| storage.state.is_usable());
    let (settings, wanted_mode) = match &state {
        Some(state) => settings(state),
        None => (Settings::Unread, None),
    };
    let rules = match &state {
        Some(state) => rules(context, state),
        None => Rules::Unread,
    };
    let mode = ids::pick_mode(&ids, wanted_mode);
    Facts {
        executable: std::env::current_exe().ok(),
        companions: companions(),
        version: sbx_api::VERSION,
        mode,
        confined: ids.confined,
        trial: trial(&ids, mode),
        unusable_devices: devices::unusable(Path::new(devices::DIRECTORY)),
        daemon: match state {
            Some(_) => daemon(context),
            None => Daemon::NotChecked,
        },
        socket: socket(&storage.path, uid.as_raw()),
        settings,
        rules,
        disk_free: disk_free(&storage),
        storage,
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        user_namespaces: user_namespaces(),
        overlay: lines("/proc/filesystems")
            .any(|line| line.trim_start_matches("nodev").trim() == "overlay"),
        nf_tables: nf_tables(),
        cgroups: cgroups(),
        subordinate: subordinate(&ids),
        seccomp_actions: lines("/proc/sys/kernel/seccomp/actions_avail")
            .flat_map(|line| words(&line))
            .collect(),
        proc_masks: proc_masks(),
        kvm: access("/dev/kvm", Access::READ_OK | Access::WRITE_OK).is_ok(),
        user,
    }
}

fn rules(context: &Context, state: &StateDir) -> Rules {
    let book = PolicyBook::new(state, context.env.default_proxy_config());
    match book.unreadable() {
        None => Rules::Readable,
        Some(error) => Rules::Broken {
            reason: chain(&error),
            hint: error.hint(),
        },
    }
}

fn companions() -> Companions {
    let beside = |name| {
        let path = autostart::beside(name);
        let found = path.is_file();
        Companion { path, found }
    };
    Companions {
        daemon: beside(autostart::DAEMON_NAME),
        init: beside("sbx-init"),
        sudo: beside("sbx-sudo"),
    }
}

/// The files can be misleading (seccomp filter of a container, security module), so try it. Takes a few milliseconds and
/// leaves nothing behind.
fn trial(facts: &ids::Facts, mode: Mode) -> Result<(), String> {
    let ids = ids::maps(facts, mode, ids::Used::default()).map_err(|error| chain(&error))?;
    let helper = Helper::new().map_err(|error| error.to_string())?;
    let helper = helper.mapping_with(facts.map_tools.clone());
    helper.probe(&ids).map_err(|error| chain(&error))
}

fn daemon(context: &Context) -> Daemon {
    match lookup::daemon(context) {
        Ok(None) => Daemon::NotRunning,
        Ok(Some(info)) => Daemon::Running {
            version: info.version,
        },
        Err(failure) => Daemon::Unreachable {
            message: failure.message,
        },
    }
}

fn socket(state: &Path, uid: u32) -> Socket {
    let path = state.join(SOCKET);
    let meta = fs::symlink_metadata(&path).ok();
    Socket {
        path,
        mode: meta.as_ref().map(|meta| meta.mode() & 0o7777),
        own: meta.is_some_and(|meta| meta.uid() == uid),
    }
}

fn unresolved(failure: &Failure) -> Storage {
    Storage {
        path: PathBuf::new(),
        state: StorageState::Unresolved {
            message: failure.message.clone(),
            hint: failure.hint.clone().unwrap_or_default(),
        },
        foreign: None,
    }
}

fn storage(state: &StateDir, uid: u32) -> Storage {
    let path = state.root().to_path_buf();
    let state = match fs::metadata(&path) {
        Err(error) => match error.kind() {
            ErrorKind::NotFound => StorageState::Missing {
                parent_writable: access(existing_ancestor(&path), Access::WRITE_OK).is_ok(),
            },
            ErrorKind::NotADirectory => StorageState::NotDirectory,
            _ => StorageState::Inaccessible {
                reason: error.to_string(),
            },
        },
        Ok(meta) if !meta.is_dir() => StorageState::NotDirectory,
        Ok(meta) if meta.uid() != uid => StorageState::OtherUser { owner: meta.uid() },
        Ok(meta) => match state.is_claimed() || state.is_unused().unwrap_or(true) {
            true => StorageState::Ours {
                mode: meta.mode() & 0o7777,
            },
            false => StorageState::Foreign,
        },
    };
    Storage {
        path,
        state,
        foreign: None,
    }
}

/// The usual place of the state, if it is not used because another product has it.
fn foreign(context: &Context, state: &StateDir) -> Option<PathBuf> {
    let usual = StateDir::locate(&context.env.home()?, None).ok()?;
    (usual.is_foreign() && usual != *state).then(|| usual.root().to_owned())
}

/// Whether they are valid, and the privilege mode that they ask for.
fn settings(state: &StateDir) -> (Settings, Option<ModeOverride>) {
    match state.settings() {
        Ok(settings) => (Settings::Valid, settings.mode),
        Err(error) => {
            let broken = Settings::Broken {
                path: state.settings_file(),
                reason: error.source().unwrap_or(&error).to_string(),
            };
            (broken, None)
        }
    }
}

fn existing_ancestor(path: &Path) -> &Path {
    path.ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"))
}

fn disk_free(storage: &Storage) -> Option<u64> {
    if matches!(storage.state, StorageState::Unresolved { .. }) {
        return None;
    }
    let stat = statvfs(existing_ancestor(&storage.path)).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

fn user_namespaces() -> UserNamespaces {
    let number = |path: &str| {
        lines(path)
            .next()
            .and_then(|line| line.trim().parse::<u64>().ok())
    };
    UserNamespaces {
        supported: Path::new("/proc/self/ns/user").exists(),
        unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
        apparmor_restrict: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
    }
}

/// Loaded, built in, or available as a module.
fn nf_tables() -> bool {
    if Path::new("/sys/module/nf_tables").exists() {
        return true;
    }
    let release = rustix::system::uname();
    let modules = PathBuf::from("/lib/modules").join(release.release().to_string_lossy().as_ref());
    ["modules.builtin", "modules.dep"].iter().any(|list| {
        lines(modules.join(list)).any(|line| {
            line.split(':')
                .next()
                .is_some_and(|module| module.contains("/nf_tables.ko"))
        })
    }) || symbols_have_nf_tables()
}

/// A kernel without module support shows built-in code only in its symbol table.
fn symbols_have_nf_tables() -> bool {
    lines("/proc/kallsyms").any(|line| line.ends_with(" nf_tables_newtable"))
}

fn cgroups() -> Cgroups {
    let root = Path::new("/sys/fs/cgroup");
    let own = own_cgroups();
    let writable = |dir: PathBuf| access(dir.join("cgroup.procs"), Access::WRITE_OK).is_ok();
    if root.join("cgroup.controllers").exists() {
        let dir = root.join(own.unified.trim_start_matches('/'));
        return Cgroups::V2 {
            writable: writable(dir),
            controllers: lines(root.join("cgroup.controllers"))
                .collect::<Vec<_>>()
                .join(" "),
        };
    }
    if own.memory.is_none() || !root.join("memory").exists() {
        return Cgroups::None;
    }
    let memory = own.memory.unwrap_or_default();
    let dir = root.join("memory").join(memory.trim_start_matches('/'));
    // Inside a container the path of /proc/self/cgroup may not be what is mounted.
    let writable = writable(dir) || writable(root.join("memory"));
    if root.join("unified/cgroup.controllers").exists() {
        Cgroups::Hybrid { writable }
    } else {
        Cgroups::V1 { writable }
    }
}

#[derive(Debug, Default)]
struct OwnCgroups {
    unified: String,
    memory: Option<String>,
}

fn own_cgroups() -> OwnCgroups {
    let mut own = OwnCgroups::default();
    for line in lines("/proc/self/cgroup") {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if controllers.is_empty() {
            own.unified = path.to_owned();
        } else if controllers.split(',').any(|name| name == "memory") {
            own.memory = Some(path.to_owned());
        }
    }
    own
}

fn subordinate(ids: &ids::Facts) -> Subordinate {
    let largest = |spans: &[ids::Span]| spans.iter().map(|span| span.count).max().unwrap_or(0);
    Subordinate {
        tools: ids.map_tools.is_some(),
        other_group: ids.other_group,
        uids: largest(&ids.subuid),
        gids: largest(&ids.subgid),
        free: ids.free_subordinate(),
    }
}

fn user_name(context: &Context, uid: u32) -> String {
    lines("/etc/passwd")
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let own = fields.nth(1)?.parse() == Ok(uid);
            own.then(|| name.to_owned())
        })
        .or_else(|| context.env.text("USER").map(str::to_owned))
        .unwrap_or_else(|| uid.to_string())
}

fn proc_masks() -> Vec<String> {
    lines("/proc/self/mountinfo")
        .filter_map(|line| line.split(' ').nth(4).map(str::to_owned))
        .filter(|target| target.starts_with("/proc/") && !allowed_below_proc(target))
        .collect()
}

/// Mounts that hide nothing: the kernel keeps these directories empty as mount points.
fn allowed_below_proc(target: &str) -> bool {
    matches!(target, "/proc/sys/fs/binfmt_misc" | "/proc/fs/nfsd")
}

/// The lines of a file; none if it cannot be read.
fn lines(path: impl AsRef<Path>) -> impl Iterator<Item = String> {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
