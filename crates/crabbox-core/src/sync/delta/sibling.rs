//! Staging beside the workdir, for a provider that swaps directories.

use super::{Delta, shell_quote};

/// Makes `staging` a clone of `workdir` without what has to go, with hard links where the file system has them. What is
/// sent is to be unpacked over it (every path that is sent is missing in it, so that no link is written through), and
/// then it is swapped in like a tree that was sent whole.
pub fn clone_script(delta: &Delta, workdir: &[u8], staging: &[u8]) -> Vec<u8> {
    let (from, to) = (shell_quote(workdir), shell_quote(staging));
    let mut script = Vec::new();
    let mut add = |parts: &[&[u8]]| {
        for part in parts {
            script.extend_from_slice(part);
        }
    };
    add(&[b"rm -rf -- ", &to, b" || exit 1\n"]);
    add(&[
        b"cp -al -- ",
        &from,
        b" ",
        &to,
        b" 2>/dev/null || { rm -rf -- ",
    ]);
    add(&[&to, b"; cp -a -- ", &from, b" ", &to, b" || exit 1; }\n"]);
    add(&[b"cd -- ", &to, b" || exit 1\n"]);
    script.extend(delta.removal());
    script
}
