//! Tries every step of a sandbox's set-up, to find out whether this machine allows it. Leaves nothing behind.

use std::os::fd::AsFd;

use sbx_proto::plan::Ids;
use sbx_sys::process::{self, Fork, SingleThreaded};
use sbx_sys::seccomp;

use super::{inner, tree};
use crate::error::{ErrorContext, SetupError, SetupResult};
use crate::seccomp_filter::{self, MountPoints};

const PROBE: inner::Wanted<'static> = inner::Wanted {
    hostname: "probe",
    processes: 64,
};

/// Runs as root of a fresh user namespace, in fresh mount and pid namespaces.
pub(super) fn run(proof: &SingleThreaded, ids: &Ids) -> SetupResult<()> {
    let proc = tree::proc_mount()?;
    let inner = inner::start(proof, ids, PROBE, proc.as_fd())?;
    process::setns(inner.namespaces.net.as_fd(), process::NEW_NET)
        .doing(|| "join the new network namespace".into())?;
    tree::try_all_mounts(ids.mode)?;
    try_filter(proof)
}

/// In a child, because a filter cannot be removed.
fn try_filter(proof: &SingleThreaded) -> SetupResult<()> {
    match process::fork(proof, 0).doing(|| "fork".into())? {
        Fork::Child => {
            let installed = seccomp::install(&seccomp_filter::program(MountPoints::Protected));
            process::exit_now(i32::from(installed.is_err()))
        }
        Fork::Parent { pidfd, .. } => match process::exit_code(&pidfd) {
            Ok(0) => Ok(()),
            Ok(_) => Err(SetupError::new(
                "install a system-call filter",
                "the kernel refuses it",
            )),
            Err(error) => Err(error).doing(|| "wait for a child".into()),
        },
    }
}
