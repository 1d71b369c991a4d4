use super::*;

const HOST: Host = Host {
    memory_bytes: 8 << 30,
    cpus: 4,
    processes: 4_000_000,
};

const NO_DISK: Unsupported = Unsupported {
    reason: "no loop devices",
    remedy: "run sbx as root",
};
const NONE: Support = Support {
    memory: Err(NO_GROUPS),
    cpu: Err(NO_GROUPS),
    disk: Err(NO_DISK),
};
const ALL: Support = Support {
    memory: Ok(()),
    cpu: Ok(()),
    disk: Ok(()),
};

fn usual(support: &Support, host: &Host) -> Limits {
    let decided = effective(&Limits::default(), &[], support, host).unwrap();
    assert!(decided.required.is_empty() && decided.warnings.is_empty());
    decided.limits
}

#[test]
fn the_usual_limits_protect_the_host() {
    let processes = Some(MOST_PROCESSES);
    let expected = Limits {
        processes,
        ..Limits::default()
    };
    assert_eq!(usual(&NONE, &HOST), expected);
    let expected = Limits {
        memory_bytes: Some(4 << 30),
        ..expected
    };
    assert_eq!(usual(&ALL, &HOST), expected);
    let small = Host {
        processes: 1000,
        memory_bytes: 1 << 40,
        ..HOST
    };
    assert_eq!(usual(&ALL, &small).processes, Some(500));
    assert_eq!(usual(&ALL, &small).memory_bytes, Some(32 << 30));
    assert_eq!(
        total_memory("MemFree: 1 kB\nMemTotal:  2048 kB\n"),
        Some(2 << 20)
    );
    assert!(default_memory_warning(&NONE).unwrap().contains("memory"));
    assert_eq!(default_memory_warning(&ALL), None);
}

const ASKED: [(Limits, LimitKind); 3] = [
    (limits_of(Some(1000), None, None), LimitKind::Cpus),
    (limits_of(None, Some(1 << 30), None), LimitKind::Memory),
    (limits_of(None, None, Some(1 << 30)), LimitKind::Disk),
];

#[test]
fn what_is_asked_for_and_cannot_be_enforced_is_refused() {
    for (asked, limit) in ASKED {
        let error = effective(&asked, &[], &NONE, &HOST).unwrap_err();
        let flag = format!("--{}", limit.as_str());
        assert!(error.to_string().contains(&flag), "{error}");
        let hint = error.hint();
        assert!(hint.contains(&flag) && hint.contains("root"), "{hint}");
        let decided = effective(&asked, &[], &ALL, &HOST).unwrap();
        assert_eq!(decided.required, [limit]);
        let wanted = Limits {
            processes: decided.limits.processes,
            memory_bytes: decided.limits.memory_bytes,
            ..asked
        };
        assert_eq!(decided.limits, wanted);
        // Later, on another machine.
        assert!(enforceable(&decided.limits, &decided.required, &NONE).is_err());
    }
}

#[test]
fn what_is_preferred_is_enforced_where_possible() {
    for (asked, limit) in ASKED {
        let decided = effective(&asked, &[limit], &NONE, &HOST).unwrap();
        assert_eq!(decided.limits, usual(&NONE, &HOST));
        let flag = format!("--{}", limit.as_str());
        assert_eq!(decided.warnings.len(), 1);
        assert!(decided.warnings[0].contains(&flag), "{decided:?}");
        let decided = effective(&asked, &[limit], &ALL, &HOST).unwrap();
        assert!(decided.warnings.is_empty() && decided.required.is_empty());
        let later = enforceable(&decided.limits, &decided.required, &NONE);
        if limit == LimitKind::Disk {
            assert!(later.is_err());
            continue;
        }
        let (left, warnings) = later.unwrap();
        assert_eq!(left, usual(&NONE, &HOST));
        assert!(!warnings.is_empty());
    }
    let many = limits_of(Some(9000), None, None);
    let decided = effective(&many, &[LimitKind::Cpus], &ALL, &HOST).unwrap();
    assert_eq!(
        (decided.limits.cpu_millis, decided.warnings.len()),
        (None, 1)
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let all = [LimitKind::Memory, LimitKind::Disk, LimitKind::Pids];
    let few = Limits {
        processes: Some(3),
        ..Limits::default()
    };
    for asked in [
        few,
        limits_of(None, Some(1), None),
        limits_of(None, None, Some(1)),
        limits_of(None, None, Some(u64::MAX)),
    ] {
        assert!(effective(&asked, &all, &ALL, &HOST).is_err(), "{asked:?}");
    }
    assert!(effective(&limits_of(Some(9000), None, None), &[], &ALL, &HOST).is_err());
}

const fn limits_of(
    cpu_millis: Option<u32>,
    memory_bytes: Option<u64>,
    disk_bytes: Option<u64>,
) -> Limits {
    Limits {
        cpu_millis,
        memory_bytes,
        processes: None,
        disk_bytes,
    }
}

#[test]
fn half_of_what_the_host_has() {
    let host = |name: &str| match name {
        "max_inotify_instances" => Some(128),
        "max_user_namespaces" => Some(100_000),
        "max_pid_namespaces" => Some(0),
        _ => None,
    };
    let got = limits(&host, Some(20_000));
    let user: Vec<_> = got.user.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let expected = [
        ("max_pid_namespaces", 1),
        ("max_user_namespaces", 4096),
        ("max_inotify_instances", 64),
    ];
    assert_eq!(user, expected);
    let files = |soft, hard| OpenFiles { soft, hard };
    assert_eq!(got.open_files, files(10_000, 10_000));
    let many = limits(&host, Some(1 << 20)).open_files;
    assert_eq!(many, files(65_536, 1 << 19));
}
