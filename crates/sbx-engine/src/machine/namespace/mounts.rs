//! Workspaces that are mounted into a running sandbox, and taken away from it. A helper does it, in namespaces that init
//! hands out for that; init gets a mount of what can be written, to hand files over in it.

use std::os::fd::{AsFd, OwnedFd};

use sbx_proto::MOUNTS_SINCE;
use sbx_proto::exec::Role;
use sbx_proto::plan::Plan;

use super::Namespace;
use super::plan::{attach_plan, detach_plan};
use crate::error::EngineError;
use crate::machine::Changed;
use crate::machine::control::{ControlError, Link};
use crate::sandbox::record::{Identity, Record, WorkspaceRecord};
use crate::state::SandboxDir;

/// An init that does not know the request stays until the sandbox stops.
const EARLIER: &str = "it was started by an earlier version of sbx";

impl Namespace {
    pub(in crate::machine) fn attach(
        &self,
        record: &Record,
        dir: &SandboxDir,
        workspace: &WorkspaceRecord,
    ) -> Result<Changed, EngineError> {
        let init = init_of(record)?;
        let plan = attach_plan(record, workspace, init);
        let (mut link, kept) = match self.change(record, dir, &plan)? {
            Ok(done) => done,
            Err(why) => return Ok(Changed::NotNow(why)),
        };
        let shared = kept.first().map(|kept| link.share(kept.as_fd()));
        if let Some(Err(error)) = shared {
            // Without it files of root would stay root's.
            let undo = self.change(record, dir, &detach_plan(record, workspace, init));
            tracing::warn!(sandbox = %record.name, ?undo, "a mount was undone");
            return Err(error.into());
        }
        Ok(Changed::Now)
    }

    pub(in crate::machine) fn detach(
        &self,
        record: &Record,
        dir: &SandboxDir,
        workspace: &WorkspaceRecord,
    ) -> Result<Changed, EngineError> {
        let plan = detach_plan(record, workspace, init_of(record)?);
        let (mut link, _) = match self.change(record, dir, &plan)? {
            Ok(done) => done,
            Err(why) => return Ok(Changed::NotNow(why)),
        };
        let node = workspace.identity.as_ref().map(Identity::node);
        if let Some(node) = node.filter(|_| !workspace.readonly) {
            link.unshare(node)?;
        }
        Ok(Changed::Now)
    }

    /// The link to init, and what the helper sent; or why it cannot be done now.
    fn change(
        &self,
        record: &Record,
        dir: &SandboxDir,
        plan: &Plan,
    ) -> Result<Result<(Link, Vec<OwnedFd>), String>, EngineError> {
        let mut link = match Link::connect(dir.path(), &record.id, Role::Daemon) {
            Err(ControlError::OtherVersion(_)) => return Ok(Err(EARLIER.into())),
            link => link?,
        };
        if link.protocol() < MOUNTS_SINCE {
            return Ok(Err(EARLIER.into()));
        }
        let namespaces = link.namespaces()?;
        let done = self.helper.change_running(plan, &namespaces)?;
        Ok(done.map(|received| (link, received)))
    }
}

fn init_of(record: &Record) -> Result<i32, ControlError> {
    let init = record.init.as_ref().ok_or(ControlError::Ended)?;
    Ok(init.pid)
}
