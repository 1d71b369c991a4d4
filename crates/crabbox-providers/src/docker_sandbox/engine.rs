//! Which `sbx` is used, and whether it is our own.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crabbox_core::git::Env;
use crabbox_core::provider::HostContext;
use crabbox_core::search_path::{self, Missing, is_program};
use crabbox_core::{Code, Failure};
use serde::{Deserialize, Serialize};

use super::parse;
use super::settings::{Cli, First};
use super::state_dir;

/// The program, as it is called on the command line.
pub(super) const NAME: &str = "sbx";
pub(super) const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
/// What to do when there is no engine that can be started.
pub(super) const INSTALL: &str =
    "install the standalone sbx CLI, or set dockerSandbox.cliPath (--docker-sandbox-cli)";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) program: PathBuf,
    pub(super) by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The user named it.
    Setting,
    Path,
    /// It came with us.
    Bundled,
    /// The lease was created with it.
    Claim,
}

impl By {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Setting => "dockerSandbox.cliPath",
            Self::Path => "PATH",
            Self::Bundled => "bundled",
            Self::Claim => "claim",
        }
    }
}

/// What the user names is that or nothing; only the default is searched for.
pub(super) fn find(cli: &Cli, host: &HostContext) -> Result<Found, Failure> {
    match cli {
        Cli::Named(program) => named(program, host),
        Cli::Default(first) => {
            let bundled = host.beside.as_ref().map(|dir| dir.join(NAME));
            let bundled = bundled.filter(|program| is_program(program));
            match (first, bundled, in_path(OsStr::new(NAME), host)) {
                (First::Bundled, Some(program), _) | (First::Path, Some(program), Err(_)) => {
                    Ok(Found {
                        program,
                        by: By::Bundled,
                    })
                }
                (First::Path, _, Ok(program)) | (First::Bundled, None, Ok(program)) => Ok(Found {
                    program,
                    by: By::Path,
                }),
                (_, None, Err(passed_over)) => {
                    let message = "sbx not found: neither in PATH nor beside crabbox";
                    Err(in_checkout(missing(message), passed_over))
                }
            }
        }
    }
}

fn named(program: &Path, host: &HostContext) -> Result<Found, Failure> {
    let by = By::Setting;
    let shown = program.display();
    let has_directory = program.components().count() > 1;
    if has_directory {
        let program = program.to_path_buf();
        return if is_program(&program) {
            Ok(Found { program, by })
        } else {
            Err(missing(&format!(
                "sbx not found: dockerSandbox.cliPath is `{shown}`, which is not an executable file"
            )))
        };
    }
    in_path(program.as_os_str(), host)
        .map(|program| Found { program, by })
        .map_err(|passed_over| {
            let message =
                format!("sbx not found: dockerSandbox.cliPath is `{shown}`, which is not in PATH");
            in_checkout(missing(&message), passed_over)
        })
}

fn missing(message: &str) -> Failure {
    Failure::new(Code::ProviderMissing, message).hint(INSTALL)
}

/// A relative entry would find what lies in the repository, and so would some absolute ones.
fn in_path(name: &OsStr, host: &HostContext) -> Result<PathBuf, Missing> {
    search_path::find(name, &host.path, &host.checkouts)
}

fn in_checkout(failure: Failure, missing: Missing) -> Failure {
    match missing.in_checkout {
        Some(program) => failure.hint(format!(
            "`{0}` is not started, because it lies in the checkout, where a sandbox can write; if it is yours: \
             --docker-sandbox-cli {0}",
            program.display()
        )),
        None => failure,
    }
}

/// Which engine created a sandbox: only that one knows what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineIdentity {
    /// `SBX_HOME=/x`, `XDG_STATE_HOME=/x` or `HOME=/x`: where it keeps its sandboxes.
    pub(super) state_dir: String,
    /// An absolute path.
    pub(super) program: String,
}

impl EngineIdentity {
    /// `None` where no variable says where an engine would keep its sandboxes. `own`: it is our own engine, which makes
    /// way for another product's files.
    pub(super) fn of(program: &Path, env: &Env, own: bool) -> Option<Self> {
        let set = |name: &str| {
            let value = env
                .get(OsStr::new(name))
                .filter(|value| !value.is_empty())?;
            Some(format!("{name}={}", value.to_string_lossy()))
        };
        Some(Self {
            state_dir: set("SBX_HOME")
                .or_else(|| set(XDG_STATE_HOME).filter(|_| own && state_dir::is_xdg(env)))
                .or_else(|| set("HOME"))?,
            program: real(program).to_string_lossy().into_owned(),
        })
    }

    /// Why this engine's list proves nothing about a sandbox that `creator` created.
    pub(super) fn mismatch(&self, creator: &Self) -> Option<EngineMismatch> {
        if !same_state_dir(&self.state_dir, &creator.state_dir) {
            return Some(EngineMismatch::StateDir);
        }
        if same_file(&self.program, &creator.program) {
            return None;
        }
        let program = Path::new(&creator.program);
        // A relative path means nothing in another directory.
        let exists = program.is_absolute() && is_program(program);
        Some(match exists {
            true => EngineMismatch::Program,
            false => EngineMismatch::ProgramGone,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineMismatch {
    StateDir,
    Program,
    /// The other program no longer exists. If this one has the sandbox, it is that engine under another name; if
    /// not, there is no engine to ask.
    ProgramGone,
}

/// Without links, but under its own name: some programs go by how they are called.
fn real(program: &Path) -> PathBuf {
    let whole = fs::canonicalize(program).ok();
    if let Some(whole) = whole.filter(|whole| whole.file_name() == program.file_name()) {
        return whole;
    }
    let dir = program.parent().and_then(|dir| fs::canonicalize(dir).ok());
    match (dir, program.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        (None, _) | (_, None) => program.to_path_buf(),
    }
}

fn same_state_dir(one: &str, other: &str) -> bool {
    match (one.split_once('='), other.split_once('=')) {
        (Some((one, here)), Some((other, there))) => one == other && same_file(here, there),
        _ => one == other,
    }
}

fn same_file(one: &str, other: &str) -> bool {
    let real = |path: &str| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| real(other) == Some(one))
}

/// What is known of a program as long as its file does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    program: PathBuf,
    stamp: [i64; 5],
    /// Whether it is our own engine.
    #[serde(rename = "own")]
    pub(super) bundled: bool,
    /// Whether it may accept `--env-file` and ignore it.
    pub(super) may_ignore_env_file: bool,
}

impl Known {
    /// What must be taken for granted of an engine that says nothing of itself.
    pub(super) fn foreign(program: &Path) -> Self {
        Self {
            program: program.to_path_buf(),
            stamp: [0; 5],
            bundled: false,
            may_ignore_env_file: true,
        }
    }
}

const CACHE: &str = "sbx-engine.json";

/// What `sbx version` said the last time, if the program is still the same.
pub(super) fn recall(state: &Path, program: &Path) -> Option<Known> {
    let bytes = fs::read(state.join(CACHE)).ok()?;
    let known: Known = serde_json::from_slice(&bytes).ok()?;
    let same = known.program == program && stamp(program) == Some(known.stamp);
    (same && is_its_own_program(program)).then_some(known)
}

/// For the next time. Without it `sbx version` is asked again.
pub(super) fn remember(state: &Path, program: &Path, version: &parse::Version) -> Known {
    let known = Known {
        program: program.to_path_buf(),
        stamp: stamp(program).unwrap_or_default(),
        bundled: version.engine == parse::Engine::Own,
        may_ignore_env_file: version.may_ignore_env_file(),
    };
    if !is_its_own_program(program) {
        return known;
    }
    let write = || -> std::io::Result<()> {
        let file = tempfile::NamedTempFile::new_in(state)?;
        serde_json::to_writer(&file, &known)?;
        file.persist(state.join(CACHE))?;
        Ok(())
    };
    // The record only saves time.
    let _ = write();
    known
}

/// For an engine that does not know a flag it once knew: it was replaced.
pub(super) fn forget(state: &Path) {
    // A failure only costs a question: a wrong record is found out the next time.
    let _ = fs::remove_file(state.join(CACHE));
}

/// Whether the file is the program, so that another program is another file. A script, or a program under another
/// name, may start anything.
fn is_its_own_program(program: &Path) -> bool {
    let real = fs::canonicalize(program);
    let same_name = real.is_ok_and(|real| real.file_name() == program.file_name());
    let mut magic = [0; 4];
    let read = fs::File::open(program).and_then(|mut file| file.read_exact(&mut magic));
    same_name && read.is_ok() && magic == *b"\x7fELF"
}

fn stamp(program: &Path) -> Option<[i64; 5]> {
    let meta = fs::metadata(program).ok()?;
    Some([
        meta.dev().cast_signed(),
        meta.ino().cast_signed(),
        meta.size().cast_signed(),
        meta.ctime(),
        meta.ctime_nsec(),
    ])
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    pub(in super::super) fn host() -> HostContext {
        HostContext {
            path: std::ffi::OsString::new(),
            beside: None,
            checkouts: Vec::new(),
            root: PathBuf::new(),
            cwd: PathBuf::new(),
            state: PathBuf::new(),
            env: Env::new(),
        }
    }

    fn write(path: &Path, text: &str) {
        fs::File::create(path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    fn program(dir: &Path, name: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        write(&path, "#!/bin/sh\n");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn the_default_is_searched_in_path_and_beside_us() {
        let (by_user, by_default) = (Cli::Default(First::Path), Cli::Default(First::Bundled));
        let (first, second, beside) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        let places = HostContext {
            path: std::env::join_paths([first.path(), second.path(), Path::new("relative")])
                .unwrap(),
            beside: Some(beside.path().to_path_buf()),
            ..host()
        };
        for cli in [&by_user, &by_default] {
            let failure = find(cli, &places).unwrap_err();
            assert_eq!(failure.code, Code::ProviderMissing);
        }
        let bundled = program(beside.path(), "sbx", 0o755);
        program(first.path(), "sbx", 0o644); // no program
        let bundled = Found {
            program: bundled,
            by: By::Bundled,
        };
        for cli in [&by_user, &by_default] {
            assert_eq!(find(cli, &places).unwrap(), bundled);
        }
        let on_path = Found {
            program: program(second.path(), "sbx", 0o755),
            by: By::Path,
        };
        assert_eq!(find(&by_user, &places).unwrap(), on_path);
        assert_eq!(find(&by_default, &places).unwrap(), bundled);
        fs::remove_file(&bundled.program).unwrap();
        assert_eq!(find(&by_default, &places).unwrap(), on_path);
    }

    #[test]
    fn a_named_program_that_is_missing_never_falls_through() {
        let dir = tempfile::tempdir().unwrap();
        let sbx = program(dir.path(), "sbx", 0o755);
        let places = HostContext {
            path: dir.path().into(),
            beside: Some(dir.path().to_path_buf()),
            ..host()
        };
        for bad in ["/nonexistent/sbx", "other-sbx", "./sbx-relative"] {
            let failure = find(&Cli::Named(bad.into()), &places).unwrap_err();
            assert_eq!(failure.code, Code::ProviderMissing, "{bad}");
            assert!(failure.message.contains(bad), "{}", failure.message);
        }
        let found = find(&Cli::Named("sbx".into()), &places).unwrap();
        assert_eq!(
            found,
            Found {
                program: sbx.clone(),
                by: By::Setting
            }
        );
        assert_eq!(
            find(&Cli::Named(sbx.clone()), &places).unwrap().program,
            sbx
        );
    }

    #[test]
    fn a_changed_program_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let sbx = dir.path().join("sbx");
        fs::copy("/bin/true", &sbx).unwrap();
        let ask = || remember(dir.path(), &sbx, &parse::version("contract: 0.31.3"));
        assert_eq!(recall(dir.path(), &sbx), None);
        ask();
        assert!(recall(dir.path(), &sbx).unwrap().bundled);
        forget(dir.path());
        assert_eq!(recall(dir.path(), &sbx), None);
        ask();
        write(&sbx, "#!/bin/sh\necho other\n");
        assert_eq!(recall(dir.path(), &sbx), None);
    }

    #[test]
    fn an_engine_is_its_state_directory_and_its_program() {
        let dir = tempfile::tempdir().unwrap();
        let at = fs::canonicalize(dir.path()).unwrap();
        let (old, new) = (program(&at, "old", 0o755), program(&at, "new", 0o755));
        let env = |pairs: &[(&str, &str)]| -> Env {
            pairs
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect()
        };
        let home = env(&[("HOME", "/h")]);
        let of = |program: &Path, env: &Env| EngineIdentity::of(program, env, true).unwrap();
        assert_eq!(EngineIdentity::of(&old, &env(&[("HOME", "")]), true), None);
        let moved = of(&old, &env(&[("HOME", "/h"), ("SBX_HOME", "/alt")]));
        assert_eq!(moved.state_dir, "SBX_HOME=/alt");
        let made = of(&old, &home);
        assert_eq!(moved.mismatch(&made), Some(EngineMismatch::StateDir));
        assert_eq!(made.mismatch(&moved), Some(EngineMismatch::StateDir));
        assert_eq!(made.mismatch(&made), None);
        assert_eq!(
            of(&new, &home).mismatch(&made),
            Some(EngineMismatch::Program)
        );
        let linked = at.join("linked");
        std::os::unix::fs::symlink(&old, &linked).unwrap();
        assert_eq!(of(&linked, &home).mismatch(&made), None);
        assert_eq!(of(&linked, &home).program, linked.display().to_string());
        let elsewhere = at.join("elsewhere");
        std::os::unix::fs::symlink(&at, &elsewhere).unwrap();
        assert_eq!(of(&elsewhere.join("old"), &home), made);
        fs::remove_file(&old).unwrap();
        assert_eq!(
            of(&new, &home).mismatch(&made),
            Some(EngineMismatch::ProgramGone)
        );
        let relative = EngineIdentity {
            program: "tools/sbx".to_owned(),
            ..made
        };
        assert_eq!(
            of(&new, &home).mismatch(&relative),
            Some(EngineMismatch::ProgramGone)
        );
    }

    #[test]
    fn our_engine_makes_way_for_another_products_files() {
        let dir = tempfile::tempdir().unwrap();
        let (home, states) = (dir.path().join("home"), dir.path().join("states"));
        let env: Env = [("HOME", &home), ("XDG_STATE_HOME", &states)]
            .map(|(name, path)| (name.into(), path.into()))
            .into();
        let at = |own: bool| {
            let identity = EngineIdentity::of(Path::new("/bin/sbx"), &env, own).unwrap();
            identity.state_dir.split('=').next().unwrap().to_owned()
        };
        assert_eq!(at(true), "HOME");
        let usual = home.join(".docker/sandboxes");
        fs::create_dir_all(usual.join("templates")).unwrap();
        write(&usual.join("settings.json"), "{}");
        assert_eq!(at(true), "HOME", "as good as empty");
        write(&usual.join("of-another-product"), "");
        assert_eq!(
            (at(true), at(false)),
            ("XDG_STATE_HOME".into(), "HOME".into())
        );
        // Once it is in use, it stays so.
        fs::remove_dir_all(&usual).unwrap();
        fs::create_dir_all(states.join("sbx")).unwrap();
        write(&states.join("sbx/.sbx-owner"), "");
        assert_eq!(at(true), "XDG_STATE_HOME");
        fs::create_dir_all(&usual).unwrap();
        write(&usual.join(".sbx-owner"), "");
        assert_eq!(at(true), "HOME");
    }

    #[test]
    fn nothing_is_remembered_of_what_starts_another_program() {
        let dir = tempfile::tempdir().unwrap();
        let version = parse::version("contract: 0.31.3");
        let script = program(dir.path(), "sbx", 0o755);
        assert!(remember(dir.path(), &script, &version).bundled);
        assert_eq!(recall(dir.path(), &script), None);
        let shim = dir.path().join("shim");
        fs::copy("/bin/true", dir.path().join("multiplexer")).unwrap();
        std::os::unix::fs::symlink("multiplexer", &shim).unwrap();
        remember(dir.path(), &shim, &version);
        assert_eq!(recall(dir.path(), &shim), None);
    }

    #[test]
    fn programs_in_the_checkout_are_not_found() {
        let (checkout, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let there = program(checkout.path(), "sbx", 0o755);
        let mut places = HostContext {
            path: std::env::join_paths([checkout.path(), outside.path()]).unwrap(),
            checkouts: vec![checkout.path().to_path_buf()],
            ..host()
        };
        for cli in [Cli::Default(First::Path), Cli::Named("sbx".into())] {
            let failure = find(&cli, &places).unwrap_err();
            let hint = format!("--docker-sandbox-cli {}", there.display());
            assert!(
                failure.hints.iter().any(|h| h.ends_with(&hint)),
                "{failure:?}"
            );
        }
        let own = program(outside.path(), "sbx", 0o755);
        assert_eq!(
            find(&Cli::Default(First::Path), &places).unwrap().program,
            own
        );
        // What the user names with its directory is what the user wants.
        places.path.clear();
        let named = find(&Cli::Named(there.clone()), &places).unwrap();
        assert_eq!(named.program, there);
    }
}
