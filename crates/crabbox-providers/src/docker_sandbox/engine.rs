//! Which `sbx` is used, and whether it is our own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crabbox_core::{Code, Failure};
use serde::{Deserialize, Serialize};

use super::parse;
use super::settings::Cli;

const NAME: &str = "sbx";
/// What to do when there is none, or none that can be started.
pub(super) const INSTALL: &str =
    "install the standalone sbx CLI, or set dockerSandbox.cliPath (--docker-sandbox-cli)";

/// Where programs are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// `PATH`.
    pub path: OsString,
    /// The directory of our own program.
    pub beside: Option<PathBuf>,
}

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
}

impl By {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Setting => "dockerSandbox.cliPath",
            Self::Path => "PATH",
            Self::Bundled => "bundled",
        }
    }
}

/// What the user names is that or nothing; only the default is searched for.
pub(super) fn find(cli: &Cli, places: &Places) -> Result<Found, Failure> {
    match cli {
        Cli::Named(program) => named(program, places),
        Cli::Default => {
            if let Some(program) = in_path(OsStr::new(NAME), &places.path) {
                return Ok(Found {
                    program,
                    by: By::Path,
                });
            }
            let bundled = places.beside.as_ref().map(|dir| dir.join(NAME));
            match bundled.filter(|program| is_program(program)) {
                Some(program) => Ok(Found {
                    program,
                    by: By::Bundled,
                }),
                None => Err(missing("sbx not found: neither in PATH nor beside crabbox")),
            }
        }
    }
}

fn named(program: &Path, places: &Places) -> Result<Found, Failure> {
    let by = By::Setting;
    let shown = program.display();
    let has_directory = program.components().count() > 1;
    if has_directory {
        let program = program.to_path_buf();
        return if is_program(&program) {
            Ok(Found { program, by })
        } else {
            Err(missing(&format!(
                "sbx not found: dockerSandbox.cliPath is `{shown}`, which is no program"
            )))
        };
    }
    match in_path(program.as_os_str(), &places.path) {
        Some(program) => Ok(Found { program, by }),
        None => Err(missing(&format!(
            "sbx not found: dockerSandbox.cliPath is `{shown}`, which is not in PATH"
        ))),
    }
}

fn missing(message: &str) -> Failure {
    Failure::new(Code::ProviderMissing, message).hint(INSTALL)
}

/// A relative entry would find what lies in the repository.
fn in_path(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// What is known of a program as long as its file does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    program: PathBuf,
    stamp: [i64; 5],
    pub(super) own: bool,
    /// One that may take `--env-file` and do nothing with it.
    pub(super) doubtful_env_file: bool,
}

const CACHE: &str = "sbx-engine.json";

/// What `sbx version` said the last time, if the program is still the same.
pub(super) fn recall(state: &Path, program: &Path) -> Option<Known> {
    let bytes = fs::read(state.join(CACHE)).ok()?;
    let known: Known = serde_json::from_slice(&bytes).ok()?;
    (known.program == program && stamp(program) == Some(known.stamp)).then_some(known)
}

/// For the next time. Without it `sbx version` is asked again.
pub(super) fn remember(state: &Path, program: &Path, version: &parse::Version) -> Known {
    let known = Known {
        program: program.to_path_buf(),
        stamp: stamp(program).unwrap_or_default(),
        own: version.engine == parse::Engine::Own,
        doubtful_env_file: version.has_doubtful_env_file(),
    };
    let write = || -> std::io::Result<()> {
        let file = tempfile::NamedTempFile::new_in(state)?;
        serde_json::to_writer(&file, &known)?;
        file.persist(state.join(CACHE))?;
        Ok(())
    };
    // It only saves time.
    let _ = write();
    known
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
mod tests {
    use std::io::Write;

    use super::*;

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
    fn the_default_is_searched_in_path_and_then_beside_us() {
        let (first, second, beside) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        let places = Places {
            path: std::env::join_paths([first.path(), second.path(), Path::new("relative")])
                .unwrap(),
            beside: Some(beside.path().to_path_buf()),
        };
        let failure = find(&Cli::Default, &places).unwrap_err();
        assert_eq!(failure.code, Code::ProviderMissing);
        let bundled = program(beside.path(), "sbx", 0o755);
        program(first.path(), "sbx", 0o644); // no program
        assert_eq!(
            find(&Cli::Default, &places).unwrap(),
            Found {
                program: bundled,
                by: By::Bundled
            }
        );
        let on_path = program(second.path(), "sbx", 0o755);
        assert_eq!(
            find(&Cli::Default, &places).unwrap(),
            Found {
                program: on_path,
                by: By::Path
            }
        );
    }

    #[test]
    fn a_named_program_that_is_missing_never_falls_through() {
        let dir = tempfile::tempdir().unwrap();
        let sbx = program(dir.path(), "sbx", 0o755);
        let places = Places {
            path: dir.path().into(),
            beside: Some(dir.path().to_path_buf()),
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
    fn what_is_known_ends_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let sbx = program(dir.path(), "sbx", 0o755);
        assert_eq!(recall(dir.path(), &sbx), None);
        remember(dir.path(), &sbx, &parse::version("contract: 0.31.3"));
        assert!(recall(dir.path(), &sbx).unwrap().own);
        write(&sbx, "#!/bin/sh\necho other\n");
        assert_eq!(recall(dir.path(), &sbx), None);
    }
}
