//! The repository's way into the pod: one conversation for all of a sync.

use std::io::Read;
use std::path::Path;

use crabbox_core::process::Cancel;
use crabbox_core::provider::{ArchiveSync, Staged, SyncMode, SyncPhases, Upload, Verified};
use crabbox_core::sync::delta::{Delta, RemoteTree, inside};
use crabbox_core::sync::{Archive, Compression};
use crabbox_core::{Code, Failure};
use flate2::read::GzEncoder;

use super::AgentSandbox;
use super::conversation::Conversation;

/// Below this, packing costs more than it saves.
const GZIP_FROM: u64 = 64 << 10;

/// What is sent.
enum Sending<'a> {
    Nothing,
    Whole(&'a Archive),
    Part { archive: Archive, changes: Vec<u8> },
}

impl ArchiveSync for AgentSandbox {
    /// It is compressed on its way, where the pod can unpack it.
    fn compression(&self) -> Compression {
        Compression::None
    }

    /// The command's own script makes it.
    fn ensure_workdir(
        &self,
        _sandbox: &Verified<'_>,
        _workdir: &Path,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn upload(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        phases: &mut SyncPhases,
        cancel: &Cancel,
    ) -> Result<Staged, Failure> {
        self.forget_proof();
        let chain = self.proved(sandbox)?;
        let pod = self.pod(&chain)?;
        phases.begin("prepare");
        let workdir = upload.workdir.as_os_str().as_encoded_bytes();
        let script = inside::sync_script(workdir, upload.nonce, upload.mode, upload.delta);
        Conversation::hold(&pod, &script, upload.nonce, cancel, |talk| {
            converse(talk, upload, phases, cancel)
        })?;
        Ok(Staged {
            path: inside::staging_name(upload.nonce),
            finished: true,
        })
    }

    /// [`Self::upload`] has done it.
    fn replace(
        &self,
        _sandbox: &Verified<'_>,
        _upload: &Upload<'_>,
        _staged: &Staged,
        _cancel: &Cancel,
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn roll_back(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        _staged: &Staged,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.discard(sandbox, upload, cancel)
    }

    /// After a conversation that was cut off: the old tree is put back if it is not in its place.
    fn discard(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.forget_proof();
        let chain = self.proved(sandbox)?;
        let pod = self.pod(&chain)?;
        let workdir = upload.workdir.as_os_str().as_encoded_bytes();
        let script = inside::repair_script(workdir, upload.nonce);
        Conversation::hold(&pod, &script, upload.nonce, cancel, |talk| {
            talk.close();
            let line = talk.line()?;
            ended(talk, upload, &line)
        })
    }
}

fn converse(
    talk: &mut Conversation,
    upload: &Upload<'_>,
    phases: &mut SyncPhases,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let hello = talk.line()?;
    if !hello.starts_with("hello ") {
        return ended(talk, upload, &hello);
    }
    let can = |what: &str| hello.split(' ').any(|word| word == what);
    let sending = match upload.delta && can("gnu=yes") {
        true => {
            let mut listing = Vec::new();
            let listed = talk.lines_until(&mut listing)?;
            phases.begin("archive");
            choose(upload, (listed == "listed 0").then_some(&*listing), cancel)?
        }
        false => Sending::Whole(upload.archive(Compression::None, cancel)?),
    };
    phases.begin("upload_extract");
    match &sending {
        Sending::Nothing => talk.send(b"none\n")?,
        Sending::Whole(archive) => send(talk, upload, archive, "full", &[], can("gzip=yes"))?,
        Sending::Part { archive, changes } => {
            send(talk, upload, archive, "delta", changes, can("gzip=yes"))?;
        }
    }
    talk.close();
    loop {
        let line = talk.line()?;
        match line.as_str() {
            "unpacked" if upload.mode == SyncMode::Replace => phases.begin("replace"),
            "unpacked" | "replaced" => phases.begin("cleanup"),
            _ => return ended(talk, upload, &line),
        }
    }
}

/// Only what differs, unless that is a lot or the list cannot be used.
fn choose<'a>(
    upload: &'a Upload<'_>,
    listing: Option<&[u8]>,
    cancel: &Cancel,
) -> Result<Sending<'a>, Failure> {
    let whole = || {
        upload
            .archive(Compression::None, cancel)
            .map(Sending::Whole)
    };
    let Some(Ok(remote)) = listing.map(RemoteTree::parse) else {
        return whole();
    };
    let delta: Delta = upload.tree.delta(&remote, upload.mode)?;
    let manifest = upload.tree.manifest();
    if delta.is_empty() {
        return Ok(Sending::Nothing);
    }
    if delta.is_large(manifest) {
        return whole();
    }
    Ok(Sending::Part {
        archive: upload.tree.part(&delta, Compression::None, cancel)?,
        changes: match upload.mode {
            SyncMode::Replace => delta.changes(manifest),
            SyncMode::Merge => Vec::new(),
        },
    })
}

fn send(
    talk: &mut Conversation,
    upload: &Upload<'_>,
    archive: &Archive,
    how: &str,
    changes: &[u8],
    can_gzip: bool,
) -> Result<(), Failure> {
    let gzip = can_gzip && archive.stats.written >= GZIP_FROM;
    let packed = if gzip { "gzip" } else { "plain" };
    talk.send(format!("{how} {packed} {}\n", changes.len()).as_bytes())?;
    talk.send(changes)?;
    let last = inside::complete_name(upload.nonce);
    let bytes = archive.open_with_last(&last).map_err(|error| {
        Failure::new(Code::Sync, "cannot read the sync archive").because(&error)
    })?;
    let sent = match gzip {
        true => talk.send_all(GzEncoder::new(bytes, flate2::Compression::fast())),
        false => talk.send_all(bytes.take(u64::MAX)),
    };
    // A script that has failed says why, which is more than that it stopped reading.
    sent.or(Ok(()))
}

/// The last line of a script.
fn ended(talk: &Conversation, upload: &Upload<'_>, line: &str) -> Result<(), Failure> {
    let staging = format!(
        "{}/{}",
        upload.workdir.display(),
        inside::staging_name(upload.nonce)
    );
    let (word, why) = line.split_once(' ').unwrap_or((line, ""));
    let message = match word {
        "finished" => return Ok(()),
        "failed" => format!("sync failed: {why}"),
        "broken" => format!("sync failed: {why}; the old files are in {staging}/old"),
        "left" => format!("the files are in place, but {staging} could not be removed"),
        _ => format!("the pod gave an answer that is not understood: {line:?}"),
    };
    let mut failure = Failure::new(Code::Sync, message);
    failure.causes.extend(talk.first_error());
    Err(failure)
}
