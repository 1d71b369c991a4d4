//! Staging inside the workdir: for a workdir that may be a mount, and whose parent may not be writable.
//!
//! A sync is one script with a conversation. The provider sends [`sync_script`] to a POSIX shell and keeps its stdin open.
//! The script says `NONCE hello gnu=yes|no gzip=yes|no`, and if a list was asked for and tar can make one, the list and
//! `NONCE listed STATUS`. The provider answers with one line: `none`, `full PACKED 0` or `delta PACKED SIZE` (PACKED is
//! `plain` or `gzip`); after `delta` in a replacement SIZE bytes of [`super::Delta::changes`] follow; then the archive, whose
//! last member is [`complete_name`], up to the end of stdin. The script ends with `NONCE finished`, `NONCE failed WHY` (the
//! workdir is as it was), `NONCE broken WHY` (the old tree is in the staging directory) or `NONCE left` (done, but the
//! staging directory is still there), after `NONCE unpacked` and `NONCE replaced`.
//!
//! After a conversation that was cut off, [`repair_script`] waits for the script's end, puts the old tree back if need be,
//! and removes the staging directory.

use super::remote::listing_command;
use super::shell_quote;
use crate::provider::SyncMode;

const FUNCTIONS: &str = include_str!("inside.sh");
const SYNC: &str = include_str!("inside_sync.sh");
const REPAIR: &str = include_str!("inside_repair.sh");

/// The directory in the workdir that holds the new tree, and the old one until the sync has succeeded.
pub fn staging_name(nonce: &str) -> String {
    format!(".crabbox-sync-{nonce}")
}

/// The file whose arrival proves that the whole archive has arrived.
pub fn complete_name(nonce: &str) -> String {
    format!(".crabbox-complete-{nonce}")
}

pub fn sync_script(workdir: &[u8], nonce: &str, mode: SyncMode, list: bool) -> Vec<u8> {
    let mut script = variables(workdir, nonce, mode, list);
    script.extend_from_slice(b"list() { ");
    script.extend(listing_command(workdir, staging_name(nonce).as_bytes()));
    script.extend_from_slice(b"; }\n");
    script.extend_from_slice(FUNCTIONS.as_bytes());
    script.extend_from_slice(SYNC.as_bytes());
    script
}

pub fn repair_script(workdir: &[u8], nonce: &str) -> Vec<u8> {
    let mut script = variables(workdir, nonce, SyncMode::Replace, false);
    script.extend_from_slice(FUNCTIONS.as_bytes());
    script.extend_from_slice(REPAIR.as_bytes());
    script
}

fn variables(workdir: &[u8], nonce: &str, mode: SyncMode, list: bool) -> Vec<u8> {
    let mode = match mode {
        SyncMode::Replace => "replace",
        SyncMode::Merge => "merge",
    };
    let list = if list { "yes" } else { "no" };
    let mut text = b"W=".to_vec();
    text.extend(shell_quote(workdir));
    text.extend_from_slice(format!("\nN={nonce}\nM={mode}\nL={list}\n").as_bytes());
    text
}
