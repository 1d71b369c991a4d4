//! The checks on recorded facts: what cannot be provoked on one machine.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sbx_engine::machine::namespace::devices::unusable;
use sbx_proto::plan::Mode;

use super::checks::{Check, Status, check};
use super::facts::{
    Cgroups, Companion, Companions, Daemon, Facts, Rules, Settings, Socket, Storage, StorageState,
    Subordinate, UserNamespaces,
};

/// An ordinary user on a machine that has everything.
fn healthy() -> Facts {
    Facts {
        executable: Some(PathBuf::from("/usr/bin/sbx")),
        companions: Companions {
            daemon: Companion {
                path: PathBuf::from("/usr/bin/sandboxd"),
                found: true,
            },
            init: Companion {
                path: PathBuf::from("/usr/bin/sbx-init"),
                found: true,
            },
            sudo: Companion {
                path: PathBuf::from("/usr/bin/sbx-sudo"),
                found: true,
            },
        },
        version: sbx_api::VERSION,
        mode: Mode::Subordinate,
        confined: false,
        user: "me".to_owned(),
        daemon: Daemon::Running {
            version: sbx_api::VERSION.to_owned(),
        },
        socket: Socket {
            path: PathBuf::from("/s/sandboxd.sock"),
            mode: Some(0o600),
            own: true,
        },
        storage: Storage {
            foreign: None,
            path: PathBuf::from("/s"),
            state: StorageState::Ours { mode: 0o700 },
        },
        settings: Settings::Valid,
        rules: Rules::Readable,
        disk_free: Some(20 << 30),
        kernel: "6.18.4-generic".to_owned(),
        user_namespaces: UserNamespaces {
            supported: true,
            max_user_namespaces: Some(1000),
            ..UserNamespaces::default()
        },
        overlay: true,
        nf_tables: true,
        cgroups: Cgroups::V2 {
            writable: true,
            controllers: "cpu memory pids".to_owned(),
        },
        subordinate: Subordinate {
            tools: true,
            other_group: false,
            uids: 65_536,
            gids: 65_536,
            free: Some((231_072, 296_607)),
        },
        trial: Ok(()),
        unusable_devices: vec![],
        seccomp_actions: vec!["allow".to_owned(), "user_notif".to_owned()],
        proc_masks: vec![],
        kvm: false,
    }
}

fn changed(change: impl FnOnce(&mut Facts)) -> Vec<Check> {
    let mut facts = healthy();
    change(&mut facts);
    check(&facts)
        .into_iter()
        .filter(|check| check.status != Status::Pass)
        .collect()
}

/// The one check that does not pass: its name, status and hint.
fn only(change: impl FnOnce(&mut Facts)) -> (&'static str, Status, String) {
    let mut checks = changed(change);
    assert_eq!(checks.len(), 1, "{checks:?}");
    let check = checks.remove(0);
    (check.name, check.status, check.hint)
}

#[test]
fn a_healthy_machine_passes() {
    assert_eq!(changed(|_| {}), []);
}

#[test]
fn root_of_a_user_namespace_is_told_so() {
    let checks = changed(|facts| {
        facts.mode = Mode::Root;
        facts.confined = true;
    });
    let failed = |check: &&Check| check.status == Status::Fail;
    let failed: Vec<_> = checks.iter().filter(failed).collect();
    let [check] = failed.as_slice() else {
        panic!("{failed:?}");
    };
    assert_eq!(check.name, "Privilege mode");
    assert!(check.hint.contains("outside of the user namespace"));
    assert_eq!(changed(|facts| facts.confined = true), []);
}

#[test]
fn each_switch_for_user_namespaces_has_its_remedy() {
    let name = "User namespaces";
    assert_eq!(
        only(|facts| facts.user_namespaces.unprivileged_userns_clone = Some(0)),
        (
            name,
            Status::Fail,
            "sudo sysctl -w kernel.unprivileged_userns_clone=1".to_owned()
        )
    );
    assert_eq!(
        only(|facts| facts.user_namespaces.max_user_namespaces = Some(0)),
        (
            name,
            Status::Fail,
            "sudo sysctl -w user.max_user_namespaces=28633".to_owned()
        )
    );
    assert_eq!(
        only(|facts| facts.user_namespaces.apparmor_restrict = Some(1)),
        (
            name,
            Status::Fail,
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0".to_owned()
        )
    );
    assert_eq!(
        only(|facts| facts.user_namespaces.supported = false).0,
        name
    );
}

#[test]
fn root_is_not_bound_by_what_binds_users() {
    let checks = changed(|facts| {
        facts.mode = Mode::Root;
        facts.user_namespaces.apparmor_restrict = Some(1);
        facts.user_namespaces.unprivileged_userns_clone = Some(0);
        facts.subordinate = Subordinate::default();
    });
    let seen: Vec<_> = checks.iter().map(|c| (c.name, c.status)).collect();
    assert_eq!(seen, [("Subordinate ids", Status::Skip)]);
}

#[test]
fn old_kernels() {
    let kernel = |version: &str, root: bool| {
        changed(|facts| {
            facts.kernel = version.to_owned();
            facts.mode = if root { Mode::Root } else { Mode::Subordinate };
        })
        .into_iter()
        .find(|check| check.name == "Kernel version")
        .map(|check| check.status)
    };
    assert_eq!(kernel("5.11.0-49-generic", false), Some(Status::Fail));
    assert_eq!(kernel("4.18.0-553.el8", true), Some(Status::Fail));
    assert_eq!(kernel("5.12.0", false), None);
    assert_eq!(kernel("5.15.0-91-generic", true), Some(Status::Fail));
    assert_eq!(kernel("5.15.0-91-generic", false), None);
    assert_eq!(kernel("5.19", true), None);
}

#[test]
fn what_else_can_be_missing() {
    let fail = |change: fn(&mut Facts)| only(change);
    assert_eq!(
        fail(|facts| facts.overlay = false),
        (
            "Overlay file system",
            Status::Fail,
            "sudo modprobe overlay".to_owned()
        )
    );
    assert_eq!(fail(|facts| facts.nf_tables = false).1, Status::Warn);
    assert_eq!(fail(|facts| facts.cgroups = Cgroups::None).1, Status::Warn);
    assert_eq!(fail(|facts| facts.seccomp_actions.clear()).1, Status::Fail);
    let trial = fail(|facts| facts.trial = Err("failed to make namespaces".to_owned()));
    assert_eq!((trial.0, trial.1), ("Sandbox trial", Status::Fail));
    assert_eq!(
        fail(|facts| facts.proc_masks.push("/proc/kcore".to_owned())).1,
        Status::Fail
    );
    assert_eq!(
        fail(|facts| facts.subordinate.tools = false).2,
        "sudo apt-get install uidmap"
    );
    assert_eq!(
        fail(|facts| facts.subordinate.gids = 0).2,
        "sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 me"
    );
    let regrouped = fail(|facts| facts.subordinate.other_group = true);
    assert_eq!(
        (regrouped.0, regrouped.1),
        ("Subordinate ids", Status::Warn)
    );
    assert!(regrouped.2.contains("newgrp") && regrouped.2.contains("sbx daemon restart"));
    assert_eq!(
        fail(|facts| facts.disk_free = Some(1 << 20)).1,
        Status::Fail
    );
    assert_eq!(
        fail(|facts| facts.disk_free = Some(500 << 20)).1,
        Status::Warn
    );
}

#[test]
fn devices_of_the_host_that_sandboxes_cannot_use() {
    let place = tempfile::tempdir().unwrap();
    let set = |name: &str, mode| {
        let path = place.path().join(name);
        std::fs::File::create(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    };
    for name in ["full", "null", "random", "tty", "urandom", "zero"] {
        set(name, 0o666);
    }
    let found = || {
        let mut checks = changed(|facts| facts.unusable_devices = unusable(place.path()));
        assert!(checks.len() < 2, "{checks:?}");
        let check = checks.pop()?;
        let shown = |text: &str| text.replace(&place.path().display().to_string(), "/dev");
        Some((
            check.name,
            check.status,
            shown(&check.detail),
            shown(&check.hint),
        ))
    };
    assert_eq!(found(), None);
    set("zero", 0o664);
    let zero = "`/dev/zero` has mode 664, which does not let others read and write it";
    let expected = |status, detail: &str, hint: &str| {
        Some(("Sandbox trial", status, detail.to_owned(), hint.to_owned()))
    };
    assert_eq!(
        found(),
        expected(Status::Warn, zero, "sudo chmod 666 /dev/zero")
    );
    set("null", 0o644);
    let null = "`/dev/null` has mode 644, which does not let others read and write it";
    assert_eq!(
        found(),
        expected(
            Status::Fail,
            &format!("{null}; {zero}"),
            "sudo chmod 666 /dev/null /dev/zero"
        )
    );
    set("null", 0o666);
    set("zero", 0o666);
    std::fs::remove_file(place.path().join("tty")).unwrap();
    assert_eq!(
        found(),
        expected(Status::Fail, "`/dev/tty` does not exist", "")
    );
}

#[test]
fn state_and_daemon() {
    let other = |version: &str| Daemon::Running {
        version: version.to_owned(),
    };
    assert_eq!(
        only(|facts| facts.daemon = other("9.9.9")),
        (
            "Version match",
            Status::Fail,
            "sbx daemon restart".to_owned()
        )
    );
    assert_eq!(only(|facts| facts.socket.mode = Some(0o666)).0, "Socket");
    // The engine takes from others what is too much; what its owner lacks, only root can do without.
    for (mode, user, root) in [
        (0o755, Status::Warn, Status::Warn),
        (0o770, Status::Warn, Status::Warn),
        (0o000, Status::Fail, Status::Warn),
        (0o600, Status::Fail, Status::Warn),
    ] {
        for (of, status) in [(Mode::Subordinate, user), (Mode::Root, root)] {
            let checks = changed(|facts| {
                facts.mode = of;
                facts.storage.state = StorageState::Ours { mode };
            });
            let found = checks.iter().find(|c| c.name == "Directory permissions");
            let found = found.map(|check| (check.status, check.hint.as_str()));
            assert_eq!(found, Some((status, "chmod 700 /s")), "{mode:o} {of:?}");
        }
    }
    let (.., hint) = only(|facts| {
        facts.storage.path = "/it's".into();
        facts.storage.state = StorageState::Ours { mode: 0o755 };
    });
    assert_eq!(hint, r"chmod 700 '/it'\''s'");
    let idle = changed(|facts| {
        facts.daemon = Daemon::NotRunning;
        facts.socket.mode = None;
    });
    assert!(idle.iter().all(|check| check.status == Status::Skip));
}

#[test]
fn a_state_directory_that_cannot_be_used_is_the_one_failure() {
    let unresolved = StorageState::Unresolved {
        message: "HOME is not set".to_owned(),
        hint: "set SBX_HOME=/some/directory".to_owned(),
    };
    let inaccessible = StorageState::Inaccessible {
        reason: "Permission denied".to_owned(),
    };
    for (state, message) in [
        (unresolved, "HOME is not set"),
        (StorageState::NotDirectory, "/s is not a directory"),
        (inaccessible, "/s cannot be accessed"),
        (
            StorageState::OtherUser { owner: 1007 },
            "/s belongs to user 1007",
        ),
        (StorageState::Foreign, "/s belongs to another product"),
    ] {
        assert!(!state.is_usable());
        let checks = changed(|facts| {
            facts.storage.state = state;
            facts.settings = Settings::Unread;
            facts.rules = Rules::Unread;
            facts.daemon = Daemon::NotChecked;
        });
        let failed: Vec<_> = checks.iter().filter(|c| c.status == Status::Fail).collect();
        assert_eq!(failed.len(), 1, "{checks:?}");
        assert_eq!(
            (failed[0].name, failed[0].message.as_str()),
            ("Storage directories", message)
        );
        assert!(failed[0].hint.contains("SBX_HOME"), "{:?}", failed[0]);
    }
}

#[test]
fn settings_and_programs_that_are_missing() {
    let broken = Settings::Broken {
        path: PathBuf::from("/s/settings.json"),
        reason: "key must be a string at line 1 column 2".to_owned(),
    };
    assert_eq!(
        only(|facts| facts.settings = broken),
        (
            "Settings",
            Status::Fail,
            "correct '/s/settings.json', or remove it".to_owned()
        )
    );
    let broken = Rules::Broken {
        reason: "it is not a regular file".to_owned(),
        hint: Some("repair it, or start again with `sbx policy reset`".to_owned()),
    };
    assert_eq!(
        only(|facts| facts.rules = broken),
        (
            "Network rules",
            Status::Fail,
            "repair it, or start again with `sbx policy reset`".to_owned()
        )
    );
    let together =
        "install `sbx`, `sandboxd`, `sbx-init` and `sbx-sudo` in one directory".to_owned();
    assert_eq!(
        only(|facts| facts.companions.daemon.found = false),
        ("Daemon binary", Status::Fail, together.clone())
    );
    assert_eq!(
        only(|facts| facts.companions.sudo.found = false),
        ("Sudo binary", Status::Warn, together.clone())
    );
    assert_eq!(
        only(|facts| facts.companions.init.found = false),
        ("Init binary", Status::Warn, together)
    );
}
