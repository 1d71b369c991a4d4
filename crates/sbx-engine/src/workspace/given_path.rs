//! The path by which the user names a workspace, and where its links lead.
//!
//! A link in a writable workspace may be the work of a program in a sandbox. A path that crosses such a link is refused
//! where it would share something that the user did not name, or would name a read-only workspace by a link that programs
//! inside can change.

use std::fs;
use std::path::{Component, Path, PathBuf};

use sbx_api::WorkspaceRequest;
use sbx_proto::OsBytes;

use super::private_dirs::is_private;
use super::untrusted::{UntrustedPaths, UntrustedRoot};
use super::{WorkspaceError, Writable};
use crate::sandbox::record::WorkspaceRecord;

pub(super) fn check_ways(
    requests: &[WorkspaceRequest],
    workspaces: &[WorkspaceRecord],
    others: &[Writable],
) -> Result<(), WorkspaceError> {
    let theirs = UntrustedPaths::new(others);
    let own = workspaces.iter().filter(|workspace| !workspace.readonly);
    let own = own.map(|workspace| UntrustedRoot::from(workspace.path.to_path_buf()));
    let all = UntrustedPaths::new(own.chain(others.iter().map(UntrustedRoot::from)));
    for (request, workspace) in requests.iter().zip(workspaces) {
        check_way(request, workspace.path.as_path(), &theirs, others)?;
        if request.readonly {
            check_read_only_way(request, &all)?;
        }
    }
    Ok(())
}

/// What would be read-only is where the link leads. The link is not, and leads elsewhere as soon as a program inside
/// wants it to: a program that uses the given path would not get the protected one.
fn check_read_only_way(
    request: &WorkspaceRequest,
    untrusted: &UntrustedPaths,
) -> Result<(), WorkspaceError> {
    let given = given_path(request);
    let led = untrusted.follow(given);
    let led = led.ok_or_else(|| WorkspaceError::Missing(given.into()))?;
    match led.crossed {
        Some(link) => Err(WorkspaceError::ReadOnlyLink {
            path: given.components().collect(),
            link: link.link,
            writable: link.root,
            to: led.real,
        }),
        None => Ok(()),
    }
}

/// As the user spelt it, where that is known.
pub(super) fn given_path(request: &WorkspaceRequest) -> &Path {
    Path::new(request.given.as_deref().unwrap_or(&request.path))
}

/// The name that leads to a workspace by symbolic links, where there is one. What is before `..` is resolved: only the
/// file system knows where that leads.
pub(super) fn other_name(given: &Path, real: &Path) -> Option<OsBytes> {
    let parts: Vec<_> = given.components().collect();
    let last_up = parts.iter().rposition(|part| *part == Component::ParentDir);
    let (before, after) = parts.split_at(last_up.map_or(0, |index| index + 1));
    let mut name = PathBuf::new();
    if !before.is_empty() {
        name = fs::canonicalize(before.iter().collect::<PathBuf>()).ok()?;
    }
    name.extend(after);
    let leads_there = fs::canonicalize(&name).is_ok_and(|found| found == real);
    (name.is_absolute() && name != real && leads_there).then(|| name.as_path().into())
}

/// The user must have meant this directory. A link in a workspace may be the work of a program inside, and so may be the
/// way by which a shell came to a directory of secrets.
fn check_way(
    request: &WorkspaceRequest,
    real: &Path,
    untrusted: &UntrustedPaths,
    others: &[Writable],
) -> Result<(), WorkspaceError> {
    let given = given_path(request);
    let led = untrusted.follow(given);
    let led = led.ok_or_else(|| WorkspaceError::Missing(given.into()))?;
    if let Some(link) = led.escape
        && let Some(other) = others.iter().find(|other| other.path == link.root)
    {
        return Err(WorkspaceError::Planted {
            // As one would write it: `.` at the end is ours.
            path: given.components().collect(),
            link: link.link,
            sandbox: other.sandbox.clone(),
            to: led.real,
        });
    }
    if led.real != real {
        return Err(WorkspaceError::Moved(given.into()));
    }
    let literal = is_spelt_out(given, real);
    if is_private(real) && !literal {
        return Err(WorkspaceError::Private(real.to_path_buf()));
    }
    Ok(())
}

fn is_spelt_out(given: &Path, real: &Path) -> bool {
    let given = given.as_os_str().as_encoded_bytes();
    let end = given.iter().rposition(|byte| *byte != b'/');
    end.and_then(|end| given.get(..=end)) == Some(real.as_os_str().as_encoded_bytes())
}
