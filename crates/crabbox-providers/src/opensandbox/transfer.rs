//! Bringing the repository into the sandbox.
//!
//! The archive is uploaded to a temporary file and unpacked into a directory beside the workspace, which then takes its
//! place by two renames. The old tree is beside it until it is discarded.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crabbox_core::process::Cancel;
use crabbox_core::provider::{ArchiveSync, Staged, SyncMode, SyncPhases, Upload, Verified};
use crabbox_core::sync::delta::{Delta, RemoteTree, listing_command, sibling};
use crabbox_core::sync::{Archive, Compression};
use crabbox_core::{Code, Failure};

use super::OpenSandbox;
use super::execd::{self, Download, Execd};
use super::http::HttpError;
use super::script::quote;
use super::{exec, lifetime};

/// A transfer is bounded by the sync's own timeout, which the cancellation carries; without one, by this. Steps that run
/// in the sandbox are bounded as commands are then.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// How often a person is told how far an upload is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Of the list of the sandbox's files: some hundred bytes for each.
const MAX_LISTING: usize = 256 << 20;

/// The names of one sync.
struct Names {
    workdir: String,
    parent: String,
    archive: String,
    list: String,
    script: String,
    staging: String,
    previous: String,
}

impl Names {
    fn new(workdir: &Path, nonce: &str) -> Self {
        let parent = workdir.parent().unwrap_or(Path::new("/"));
        let base = workdir.file_name().unwrap_or_default().to_string_lossy();
        let staging = parent.join(format!(".{base}.crabbox-sync-{nonce}"));
        let staging = staging.to_string_lossy().into_owned();
        Self {
            workdir: workdir.to_string_lossy().into_owned(),
            parent: parent.to_string_lossy().into_owned(),
            archive: format!("/tmp/crabbox-sync-{nonce}.tgz"),
            list: format!("/tmp/crabbox-sync-{nonce}.list"),
            script: format!("/tmp/crabbox-sync-{nonce}.sh"),
            previous: format!("{staging}.previous"),
            staging,
        }
    }
}

/// One upload.
struct Transfer<'a> {
    provider: &'a OpenSandbox,
    execd: &'a Execd<'a>,
    upload: &'a Upload<'a>,
    names: Names,
    cancel: &'a Cancel,
}

impl Transfer<'_> {
    fn staged(&self, finished: bool) -> Staged {
        Staged {
            path: self.names.staging.clone(),
            finished,
        }
    }

    fn step(&self, what: &str, script: &str) -> Result<(), Failure> {
        self.provider.step(self.execd, what, script, self.cancel)
    }

    /// What the sandbox lacks; none where it cannot list its files, or lacks so much that all is sent. The list is
    /// untrusted: it decides what is sent, and paths of it only go back to the sandbox.
    fn compare(&self, phases: &mut SyncPhases) -> Result<Option<Delta>, Failure> {
        phases.begin("compare");
        let list = quote(&self.names.list);
        let workdir = self.names.workdir.as_bytes();
        let listing =
            String::from_utf8_lossy(&listing_command(workdir, b".crabbox-none")).into_owned();
        // It needs GNU tar; without it, or without a workdir, all is sent.
        if self
            .step("sync listing", &format!("({listing}) >{list} 2>/dev/null"))
            .is_err()
        {
            return Ok(None);
        }
        // A list that cannot be had or read only means that all is sent; a canceled sync is canceled by the next step.
        let listed = self
            .execd
            .http
            .wait(TRANSFER_TIMEOUT, self.cancel, self.read_list());
        let Some(remote) = listed.ok().and_then(|bytes| RemoteTree::parse(&bytes).ok()) else {
            return Ok(None);
        };
        let delta = self.upload.tree.delta(&remote, self.upload.mode)?;
        Ok(Some(delta).filter(|delta| !delta.is_large(self.upload.tree.manifest())))
    }

    async fn read_list(&self) -> Result<Vec<u8>, HttpError> {
        match self.execd.download(&self.names.list, 0).await? {
            Download::Content { answer, .. } => {
                let bytes = answer.bytes(MAX_LISTING).await?;
                self.execd.remove_file(&self.names.list).await?;
                Ok(bytes)
            }
            Download::Missing | Download::Nothing | Download::Shorter => {
                Err(HttpError::Malformed("no listing".to_owned()))
            }
        }
    }

    fn send_all(&self, phases: &mut SyncPhases) -> Result<Staged, Failure> {
        phases.begin("archive");
        let archive = self.upload.archive(Compression::Gzip, self.cancel)?;
        phases.begin("upload");
        self.send(archive)?;
        phases.begin("prepare");
        let into = quote(self.target());
        let parent = quote(&self.names.parent);
        self.step(
            "sync prepare",
            &format!("mkdir -p {parent} && mkdir -p {into}"),
        )?;
        self.extract(phases)
    }

    /// Into a clone of the tree that is there, or over it.
    fn send_part(&self, delta: &Delta, phases: &mut SyncPhases) -> Result<Staged, Failure> {
        phases.begin("archive");
        let archive = self
            .upload
            .tree
            .part(delta, Compression::Gzip, self.cancel)?;
        phases.begin("upload");
        self.send(&archive)?;
        phases.begin("prepare");
        if self.upload.mode == SyncMode::Replace {
            let (workdir, staging) = (&self.names.workdir, &self.names.staging);
            let script = sibling::clone_script(delta, workdir.as_bytes(), staging.as_bytes());
            let file = execd::Upload::bytes(&self.names.script, script);
            self.execd
                .http
                .wait(TRANSFER_TIMEOUT, self.cancel, self.execd.upload(vec![file]))
                .map_err(|error| error.into_failure("sync prepare"))?;
            self.step("sync prepare", &format!("sh {}", quote(&self.names.script)))?;
        }
        self.extract(phases)
    }

    fn target(&self) -> &str {
        match self.upload.mode {
            SyncMode::Replace => &self.names.staging,
            SyncMode::Merge => &self.names.workdir,
        }
    }

    fn send(&self, archive: &Archive) -> Result<(), Failure> {
        let unread = |error: &dyn std::error::Error| {
            Failure::new(Code::Sync, "cannot read the sync archive").because(error)
        };
        let file = archive.open().map_err(|error| unread(&error))?;
        let length = file.metadata().map_err(|error| unread(&error))?.len();
        let sent = Arc::new(AtomicU64::new(0));
        let file = execd::Upload::file(&self.names.archive, file, length, Arc::clone(&sent));
        let upload = self.execd.upload(vec![file]);
        let watched = async {
            tokio::select! {
                done = upload => done,
                never = self.tell_progress(&sent, length) => match never {},
            }
        };
        self.execd
            .http
            .wait(TRANSFER_TIMEOUT, self.cancel, watched)
            .map_err(|error| error.into_failure("upload"))
    }

    /// For a person who waits; a script gets no such lines.
    async fn tell_progress(&self, sent: &AtomicU64, length: u64) -> Infallible {
        let notices = &self.provider.notices;
        if !notices.is_watched() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            notices.say(&progress(sent.load(Ordering::Relaxed), length));
        }
    }

    fn extract(&self, phases: &mut SyncPhases) -> Result<Staged, Failure> {
        phases.begin("extract");
        let archive = quote(&self.names.archive);
        let into = quote(self.target());
        self.step("sync extract", &format!("tar -xzf {archive} -C {into}"))?;
        Ok(self.staged(false))
    }
}

fn progress(sent: u64, length: u64) -> String {
    let percent = sent.saturating_mul(100).checked_div(length).unwrap_or(100);
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    format!(
        "uploading {:.1} of {:.1} MB ({percent} %)",
        megabytes(sent),
        megabytes(length)
    )
}

impl OpenSandbox {
    /// A step in which trees change places. The script gets the workdir, the staged tree and the place of the old one, quoted.
    fn switch(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        staged: &Staged,
        cancel: &Cancel,
        what: &str,
        script: impl FnOnce(&str, &str, &str) -> String,
    ) -> Result<(), Failure> {
        self.cleaned(|| {
            let execd = self.execd(sandbox, cancel)?;
            let names = Names::new(upload.workdir, upload.nonce);
            let (workdir, staging) = (quote(&names.workdir), quote(&staged.path));
            let script = script(&workdir, &staging, &quote(&names.previous));
            self.step(&execd, what, &script, cancel)
        })
    }

    fn step(
        &self,
        execd: &Execd<'_>,
        what: &str,
        script: &str,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let request = format!("sh -lc {}", quote(script));
        let limit = lifetime::step(&self.config);
        // The daemon's own limit is for the case that it does not see us leave.
        let script = execd.script(&request, limit.saturating_add(exec::END_TIMEOUT));
        let done = execd
            .http
            .wait(limit, cancel, script)
            .map_err(|error| error.into_failure(what))?;
        done.check()
            .map(drop)
            .map_err(|why| Failure::new(Code::Sync, format!("opensandbox {what} failed: {why}")))
    }
}

impl ArchiveSync for OpenSandbox {
    fn compression(&self) -> Compression {
        Compression::Gzip
    }

    fn ensure_workdir(
        &self,
        sandbox: &Verified<'_>,
        workdir: &Path,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.cleaned(|| {
            let execd = self.execd(sandbox, cancel)?;
            let path = workdir.to_string_lossy();
            // One that is there keeps its permissions.
            let ensure = async {
                match execd.exists(&path).await? {
                    true => Ok(()),
                    false => execd.make_directory(&path, 755).await,
                }
            };
            execd
                .wait(cancel, ensure)
                .map_err(|error| error.into_failure("workspace setup"))
        })
    }

    fn upload(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        phases: &mut SyncPhases,
        cancel: &Cancel,
    ) -> Result<Staged, Failure> {
        self.cleaned(|| {
            let execd = self.execd(sandbox, cancel)?;
            let transfer = Transfer {
                provider: self,
                execd: &execd,
                upload,
                names: Names::new(upload.workdir, upload.nonce),
                cancel,
            };
            let delta = match upload.delta {
                true => transfer.compare(phases)?,
                false => None,
            };
            match &delta {
                Some(delta) if delta.is_empty() => Ok(transfer.staged(true)),
                Some(delta) => transfer.send_part(delta, phases),
                None => transfer.send_all(phases),
            }
        })
    }

    fn replace(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        staged: &Staged,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        let script = |workdir: &str, staging: &str, previous: &str| {
            format!(
                "if [ -e {workdir} ] || [ -L {workdir} ]; then mv {workdir} {previous} || exit 1; fi\n\
                 mv {staging} {workdir} && exit 0\n\
                 if [ -e {previous} ] || [ -L {previous} ]; then mv {previous} {workdir}; fi\nexit 1"
            )
        };
        self.switch(sandbox, upload, staged, cancel, "sync replace", script)
    }

    fn roll_back(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        staged: &Staged,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        // The old tree is back when there is none beside. A new tree in its place becomes the staged one again.
        let script = |workdir: &str, staging: &str, previous: &str| {
            format!(
                "if [ -e {previous} ] || [ -L {previous} ]; then\n\
                 if [ -e {workdir} ]; then mv {workdir} {staging} || exit 1; fi\n\
                 mv {previous} {workdir} || exit 1\nfi"
            )
        };
        self.switch(sandbox, upload, staged, cancel, "sync roll back", script)
    }

    fn discard(
        &self,
        sandbox: &Verified<'_>,
        upload: &Upload<'_>,
        cancel: &Cancel,
    ) -> Result<(), Failure> {
        self.cleaned(|| {
            let execd = self.execd(sandbox, cancel)?;
            let names = Names::new(upload.workdir, upload.nonce);
            let paths = [
                &names.archive,
                &names.list,
                &names.script,
                &names.staging,
                &names.previous,
            ];
            let paths = paths.map(|path| quote(path));
            let script = format!("rm -rf {}", paths.join(" "));
            self.step(&execd, "sync cleanup", &script, cancel)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_much_of_how_much() {
        assert_eq!(
            progress(25_000_000, 100_000_000),
            "uploading 25.0 of 100.0 MB (25 %)"
        );
        assert_eq!(progress(0, 0), "uploading 0.0 of 0.0 MB (100 %)");
    }

    #[test]
    fn staging_is_beside_the_workspace() {
        let names = Names::new(Path::new("/workspace/my app"), "a1b2c3");
        assert_eq!(names.staging, "/workspace/.my app.crabbox-sync-a1b2c3");
        assert_eq!(
            names.previous,
            "/workspace/.my app.crabbox-sync-a1b2c3.previous"
        );
        assert_eq!(names.archive, "/tmp/crabbox-sync-a1b2c3.tgz");
    }
}
