//! What the namespace backend isolates in each privilege mode, and what it does not, in words.

use sbx_api::{Limits, Network, Redirect};
use sbx_proto::plan::{Ids, Mode};

use crate::machine::Description;

pub(crate) fn describe(ids: &Ids, network: Option<Network>, limits: &Limits) -> Description {
    Description {
        mode: mode_name(ids.mode),
        isolation: isolation(ids.mode, network, limits),
    }
}

/// The mode's name for people and in names of directories.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Root => "root",
        Mode::Subordinate => "subordinate",
        Mode::Single => "single",
    }
}

fn isolation(mode: Mode, network: Option<Network>, limits: &Limits) -> Vec<String> {
    let ids = match mode {
        Mode::Root => {
            "ids: a range of 65,536 ids of its own: none is the host's root, of an account that the host's name service lists, of /etc/subuid or /etc/subgid, or of another sandbox of root on this machine"
        }
        Mode::Subordinate => {
            "ids: subordinate ids of the caller; the agent inside is the caller, root inside is not the host's root"
        }
        Mode::Single => {
            "ids: the caller's one id, which is the agent inside; root inside is root by name only, packages cannot be installed"
        }
    };
    let network = match network.map(|network| network.redirect) {
        Some(Redirect::Nft) | None => {
            "network: no device but lo; connections to the outside end at the engine"
        }
        Some(Redirect::Ports) => {
            "network: no device but lo; without nf_tables only ports 22, 53, 80, 443 and 3128 of the world end at the engine, and programs inside cannot listen on them"
        }
    };
    [
        "backend namespace: shares the host's kernel; a flaw in the kernel can break the isolation, a microVM is stronger",
        "own user, mount, pid, network, ipc, uts and cgroup namespaces; system calls are filtered",
        ids,
        "files: the workspaces, and the host's programs and package caches read-only; nothing else of the host",
        network,
        &bounded(limits),
    ]
    .map(str::to_owned)
    .to_vec()
}

fn bounded(limits: &Limits) -> String {
    let parts = [
        ("processes", limits.processes.is_some()),
        ("memory", limits.memory_bytes.is_some()),
        ("cpu", limits.cpu_millis.is_some()),
        ("disk", limits.disk_bytes.is_some()),
    ];
    let those = |bounded: bool| {
        let names = parts.iter().filter(|(_, is)| *is == bounded);
        names.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    match (those(true), those(false)) {
        (none, _) if none.is_empty() => "limits: none is enforced".to_owned(),
        (all, none) if none.is_empty() => format!("limits: {all} are enforced"),
        (some, others) => format!("limits: enforced for {some}; not for {others}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No more than the engine does.
    #[test]
    fn what_is_promised_of_ids() {
        let promised = |mode| {
            let all = isolation(mode, None, &Limits::default());
            let mut ids = all.into_iter().filter(|line| line.starts_with("ids: "));
            let only = ids.next().unwrap();
            assert_eq!(ids.next(), None);
            only
        };
        assert_eq!(
            promised(Mode::Root),
            "ids: a range of 65,536 ids of its own: none is the host's root, of an account that the host's name \
             service lists, of /etc/subuid or /etc/subgid, or of another sandbox of root on this machine"
        );
        assert_eq!(
            promised(Mode::Subordinate),
            "ids: subordinate ids of the caller; the agent inside is the caller, root inside is not the host's root"
        );
        assert_eq!(
            promised(Mode::Single),
            "ids: the caller's one id, which is the agent inside; root inside is root by name only, packages cannot \
             be installed"
        );
    }
}
