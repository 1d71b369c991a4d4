//! The PATH arguments of `create` and `run`: the workspaces of a sandbox.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sbx_api::WorkspaceRequest;
use sbx_proto::shell::quoted;

use crate::env::Env;
use crate::failure::{Failure, Kind};

const READ_ONLY: [&[u8]; 2] = [b":ro", b":readonly"];

/// The working directory as the user named it (`PWD`), with its symbolic links, because the daemon checks where links
/// lead.
pub(crate) fn here(env: &Env) -> PathBuf {
    let node = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let shells = env.get("PWD").map(PathBuf::from);
    let shells = shells.filter(|path| path.is_absolute() && node(path) == node(Path::new(".")));
    shells
        .or_else(|| std::env::current_dir().ok())
        // Removed: relative paths then fail to resolve.
        .unwrap_or_else(|| "/".into())
}

/// The workspaces that the arguments name; the first one is the primary. Relative paths start at `here`.
pub(crate) fn parse_all<T: AsRef<OsStr>>(
    args: &[T],
    here: &Path,
) -> Result<Vec<WorkspaceRequest>, Failure> {
    let workspaces = parse_more(args, here)?;
    if let Some(primary) = workspaces.first()
        && !Path::new(&primary.path).is_dir()
    {
        return Err(
            bad(format!("workspace `{}` is not a directory", primary.path))
                .hint("put a directory first; a file can follow as `FILE:ro`"),
        );
    }
    Ok(workspaces)
}

/// Workspaces beside a primary one.
pub(crate) fn parse_more<T: AsRef<OsStr>>(
    args: &[T],
    here: &Path,
) -> Result<Vec<WorkspaceRequest>, Failure> {
    args.iter().map(|arg| parse(arg.as_ref(), here)).collect()
}

/// `SRC[:DST][:ro]`. A suffix `:ro` or `:readonly` means read-only. If only a path exists whose name ends that way, the
/// argument is ambiguous and refused: a guess could make it writable. DST begins at the last `:/`; a path that exists with
/// that in its name is refused as well.
fn parse(arg: &OsStr, here: &Path) -> Result<WorkspaceRequest, Failure> {
    let stripped = READ_ONLY
        .iter()
        .find_map(|suffix| arg.as_bytes().strip_suffix(*suffix))
        .filter(|path| !path.is_empty())
        .map(OsStr::from_bytes);
    let (path, readonly) = match stripped {
        Some(path) if !Path::new(path).exists() && Path::new(arg).exists() => {
            return Err(literally_read_only(path, arg));
        }
        Some(path) => (path, true),
        None => (arg, false),
    };
    let (path, target) = split_target(path)?;
    if path.is_empty() {
        return Err(bad("workspace path is empty"));
    }
    let real = std::fs::canonicalize(path).map_err(|error| {
        let shown = Path::new(path).display();
        match error.kind() {
            std::io::ErrorKind::NotFound
                if Path::new(path).is_relative() && working_directory_is_removed() =>
            {
                bad("the working directory no longer exists").hint("cd")
            }
            std::io::ErrorKind::NotFound if names_writable(path) => {
                bad(format!("workspace `{shown}` does not exist"))
                    .hint("remove `:rw`: workspaces are writable by default")
            }
            std::io::ErrorKind::NotFound if names_relative_place(path) => {
                bad(format!("workspace `{shown}` does not exist"))
                    .hint("use an absolute path inside: SRC:/DST")
            }
            std::io::ErrorKind::NotFound if Path::new(path).is_symlink() => {
                bad(format!("workspace `{shown}` is a broken symbolic link"))
            }
            std::io::ErrorKind::NotFound => bad(format!("workspace `{shown}` does not exist"))
                .hint(format!("mkdir -p {}", quoted(&path.to_string_lossy()))),
            _ => bad(format!("cannot use workspace `{shown}`: {error}"))
                .hint("share a directory of your own instead"),
        }
    })?;
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| {
            let shown = path.display();
            bad(format!("workspace path `{shown}` is not valid UTF-8"))
        })
    };
    Ok(WorkspaceRequest {
        path: text(real)?,
        given: Some(text(here.join(path))?),
        target: target.map(|target| text(target.into())).transpose()?,
        readonly,
    })
}

fn literally_read_only(path: &OsStr, arg: &OsStr) -> Failure {
    let [path, arg] = [path, arg].map(|path| path.to_string_lossy());
    bad(format!(
        "ambiguous workspace `{arg}`: `{path}` does not exist, but `{arg}` does"
    ))
    .hint(format!(
        "{} for read-only; {} for a directory that can be written",
        quoted(&format!("{arg}:ro")),
        quoted(&format!("{arg}/"))
    ))
}

/// The path on the host, and the place inside if one is given.
fn split_target(arg: &OsStr) -> Result<(&OsStr, Option<&OsStr>), Failure> {
    let bytes = arg.as_bytes();
    let Some(colon) = bytes.windows(2).rposition(|pair| pair == b":/") else {
        return Ok((arg, None));
    };
    let (source, target) = bytes.split_at(colon);
    let target = target.strip_prefix(b":").unwrap_or(target);
    if Path::new(arg).exists() {
        let shown = arg.to_string_lossy();
        return Err(bad(format!(
            "ambiguous workspace `{shown}`: it exists, but what follows `:` is a place inside"
        ))
        .hint(format!("cd {}, and use `.`", quoted(&shown))));
    }
    Ok((OsStr::from_bytes(source), Some(OsStr::from_bytes(target))))
}

/// An existing path with `:` and something relative after it.
fn names_relative_place(path: &OsStr) -> bool {
    let bytes = path.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':');
    let source = colon.and_then(|colon| bytes.get(..colon));
    source.is_some_and(|source| Path::new(OsStr::from_bytes(source)).exists())
}

/// An existing path with docker's suffix `:rw`.
fn names_writable(path: &OsStr) -> bool {
    let stripped = path.as_bytes().strip_suffix(b":rw");
    stripped.is_some_and(|path| Path::new(OsStr::from_bytes(path)).exists())
}

/// Whether getcwd(2) fails with ENOENT.
fn working_directory_is_removed() -> bool {
    std::env::current_dir().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn bad(message: impl Into<String>) -> Failure {
    Failure::new(Kind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_dir(names: &[&str], arg: &str) -> Result<(String, bool), Failure> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in names {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let request = parse(root.join(arg).as_os_str(), Path::new("/"))?;
        let relative = Path::new(&request.path).strip_prefix(&root).unwrap();
        Ok((relative.to_str().unwrap().to_owned(), request.readonly))
    }

    #[test]
    fn the_suffix_wins_and_is_not_taken_for_a_name() {
        assert_eq!(in_dir(&["a"], "a").unwrap(), ("a".to_owned(), false));
        assert_eq!(in_dir(&["a"], "a:ro").unwrap(), ("a".to_owned(), true));
        assert_eq!(
            in_dir(&["a"], "a:readonly").unwrap(),
            ("a".to_owned(), true)
        );
        assert_eq!(
            in_dir(&["a", "a:ro"], "a:ro").unwrap(),
            ("a".to_owned(), true)
        );
        let unclear = in_dir(&["a:ro"], "a:ro").unwrap_err();
        assert!(unclear.message.contains("ambiguous"), "{unclear:?}");
        for (arg, readonly) in [("a:ro:ro", true), ("a:ro/", false)] {
            let found = in_dir(&["a:ro"], arg).unwrap();
            assert_eq!(found, ("a:ro".to_owned(), readonly));
        }
        assert!(
            in_dir(&[], "b:ro")
                .unwrap_err()
                .message
                .ends_with("b` does not exist")
        );
    }

    #[test]
    fn a_place_inside_follows_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["a", "b:", "b:/c", "a:x"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let parsed = |arg: &str| {
            let request = parse(root.join(arg).as_os_str(), Path::new("/"))?;
            let name = Path::new(&request.path).strip_prefix(&root).unwrap();
            Ok::<_, Failure>((name.display().to_string(), request.target, request.readonly))
        };
        let found = |name: &str, target: Option<&str>, readonly| {
            Ok((name.to_owned(), target.map(str::to_owned), readonly))
        };
        assert_eq!(parsed("a:/mnt/a"), found("a", Some("/mnt/a"), false));
        assert_eq!(parsed("a:/mnt/a:ro"), found("a", Some("/mnt/a"), true));
        assert_eq!(parsed("a:x:/mnt/a"), found("a:x", Some("/mnt/a"), false));
        assert_eq!(parsed("a:x"), found("a:x", None, false));
        // It could be meant either way.
        assert!(parsed("b:/c").unwrap_err().message.contains("ambiguous"));
        let hint = parsed("a:mnt").unwrap_err().hint.unwrap();
        assert!(hint.contains("absolute"), "{hint}");
    }

    #[test]
    fn the_way_is_told_as_it_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        let link = root.join("link");
        std::os::unix::fs::symlink("real", &link).unwrap();
        for (arg, expected) in [
            (link.as_os_str(), link.clone()),
            (OsStr::new("."), Path::new("/by/a/link").join(".")),
        ] {
            let request = parse(arg, Path::new("/by/a/link")).unwrap();
            assert_eq!(request.given.as_deref(), expected.to_str(), "{arg:?}");
        }
    }

    #[test]
    fn odd_names_are_paths_like_any_other() {
        for name in ["with space", "ünï", "new\nline", "-dash"] {
            assert_eq!(in_dir(&[name], name).unwrap(), (name.to_owned(), false));
        }
    }

    #[test]
    fn the_primary_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::File::create(&file).unwrap();
        let read_only = format!("{}:ro", dir.path().display());
        assert!(parse_all(&[&read_only], dir.path()).unwrap()[0].readonly);
        assert!(parse_all(&[&file], dir.path()).is_err());
        let file = format!("{}:ro", file.display());
        let both = parse_all(&[dir.path().as_os_str(), OsStr::new(&file)], dir.path()).unwrap();
        assert!(both[1].readonly);
    }

    #[test]
    fn names_that_are_not_text_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OsStr::from_bytes(b"bad\xff"));
        std::fs::create_dir(&path).unwrap();
        assert!(
            parse(path.as_os_str(), Path::new("/"))
                .unwrap_err()
                .message
                .contains("not valid UTF-8")
        );
    }
}
