use super::*;

const LIMITS: Limits = Limits {
    cpu_millis: Some(1500),
    memory_bytes: Some(1 << 30),
    processes: None,
    disk_bytes: None,
};
const ID: &str = "00000000-0000-4000-8000-000000000001";

fn hierarchy(root: &str, version: Version) -> Option<Hierarchy> {
    let root = PathBuf::from(root);
    Some(Hierarchy { root, version })
}

fn shown(controllers: &Controllers) -> Vec<String> {
    let values = controllers.values(&LIMITS);
    let of = values.iter().flat_map(|(it, _, values)| {
        let group = it.group("7");
        values
            .iter()
            .map(move |(file, value, _)| format!("{}={value}", group.join(file).display()))
    });
    of.collect()
}

#[test]
fn values_of_each_version() {
    let hybrid = Controllers {
        memory: hierarchy("/c/memory", Version::V1),
        cpu: hierarchy("/c/cpu,cpuacct", Version::V1),
    };
    let expected = [
        "/c/memory/sbx/7/memory.limit_in_bytes=1073741824",
        "/c/memory/sbx/7/memory.memsw.limit_in_bytes=1073741824",
        "/c/memory/sbx/7/memory.kmem.tcp.limit_in_bytes=1073741824",
        "/c/cpu,cpuacct/sbx/7/cpu.cfs_period_us=100000",
        "/c/cpu,cpuacct/sbx/7/cpu.cfs_quota_us=150000",
    ];
    assert_eq!(shown(&hybrid), expected);
    let unified = Controllers {
        memory: hierarchy("/c", Version::V2),
        cpu: hierarchy("/c", Version::V2),
    };
    let expected = [
        "/c/sbx/7/memory.max=1073741824",
        "/c/sbx/7/memory.swap.max=0",
        "/c/sbx/7/cpu.max=150000 100000",
    ];
    assert_eq!(shown(&unified), expected);
    assert_eq!(unified.groups("7"), [Path::new("/c/sbx/7")]);
    let subordinate = hybrid.clone().usable_in(Mode::Subordinate);
    assert_eq!(subordinate, Controllers::default());
    assert_eq!(hybrid.clone().usable_in(Mode::Single), hybrid);
    assert_eq!(unified.clone().usable_in(Mode::Subordinate), unified);
}

#[test]
fn without_limits_a_sandbox_has_a_group_for_its_cpu_time() {
    for version in [Version::V1, Version::V2] {
        let controllers = Controllers {
            memory: hierarchy("/c/memory", version),
            cpu: hierarchy("/c/cpu", version),
        };
        let values = controllers.values(&Limits::default());
        let found: Vec<_> = values
            .iter()
            .map(|(_, name, values)| (*name, values.len()))
            .collect();
        assert_eq!(found, [("cpu", 0)], "the weight is that of a new group");
    }
}

#[test]
fn all_sandboxes_weigh_as_one_process_on_each_processor() {
    assert_eq!(weight(Version::V1, 8), ("cpu.shares", 8192));
    assert_eq!(weight(Version::V2, 8), ("cpu.weight", 800));
    assert_eq!(weight(Version::V1, 4096), ("cpu.shares", 262_144));
    assert_eq!(weight(Version::V2, 4096), ("cpu.weight", 10_000));
}

#[test]
fn without_controllers_nothing_is_made() {
    let none = Controllers::default();
    assert!(none.prepare("7", &LIMITS).unwrap().is_empty());
    assert!(none.groups("7").is_empty());
}

/// As the kernel lays files out in a new group; version 2.
fn lay_out(root: &Path, id: &str) {
    let group = root.join("sbx").join(id).join("box");
    fs::create_dir_all(&group).unwrap();
    for name in ["memory.max", "cpu.max", "cgroup.procs"] {
        File::create(group.join(name)).unwrap();
    }
    for above in [
        root.to_path_buf(),
        root.join("sbx"),
        root.join("sbx").join(id),
    ] {
        File::create(above.join(SUBTREE)).unwrap();
    }
}

fn unified(root: &Path) -> Controllers {
    let found = hierarchy(root.to_str().unwrap(), Version::V2);
    Controllers {
        memory: found.clone(),
        cpu: found,
    }
}

#[test]
fn groups_are_made_and_updated() {
    let temp = tempfile::tempdir().unwrap();
    lay_out(temp.path(), "7");
    let controllers = unified(temp.path());
    // Memory and cpu are one group: it is joined once.
    assert_eq!(controllers.prepare("7", &LIMITS).unwrap().len(), 1);
    let read = |path: &str| fs::read_to_string(temp.path().join(path)).unwrap();
    assert_eq!(read("sbx/7/box/memory.max"), "1073741824");
    assert_eq!(read("sbx/7/box/cpu.max"), "150000 100000");
    for above in ["", "sbx/", "sbx/7/"] {
        assert_eq!(read(&format!("{above}{SUBTREE}")), "+cpu");
    }
}

#[test]
fn groups_are_removed_with_what_was_made_inside() {
    let temp = tempfile::tempdir().unwrap();
    let group = temp.path().join("sbx").join(ID);
    fs::create_dir_all(group.join("box/nested/deep")).unwrap();
    remove(std::slice::from_ref(&group)).unwrap();
    assert!(!group.exists() && temp.path().join("sbx").exists());
    remove(&[group]).unwrap();
}

#[test]
fn what_cannot_be_made_is_not_used() {
    // Directories have no files of control groups in them.
    let temp = tempfile::tempdir().unwrap();
    let controllers = unified(temp.path());
    let error = controllers.prepare("7", &LIMITS).unwrap_err();
    assert!(error.to_string().contains(SUBTREE), "{error}");
    assert_eq!(controllers.that_work(), Controllers::default());
    let left = fs::read_dir(temp.path().join("sbx")).unwrap();
    assert_eq!(
        left.flatten().map(|it| it.file_name()).collect::<Vec<_>>(),
        ["7"]
    );
}

#[test]
fn only_paths_of_groups_are_taken_for_groups() {
    let group = format!("/sys/fs/cgroup/memory/sbx/{ID}");
    assert!(is_group(Path::new(&group)));
    for other in [
        "/",
        "/home/u/sbx",
        "sbx/7",
        "/sys/fs/cgroup/sbx/box",
        "/etc",
    ] {
        assert!(!is_group(Path::new(other)), "{other}");
    }
}

#[test]
fn only_ones_own_processes_step_aside() {
    let parent = |pid: u32| (pid < 100).then_some(7);
    assert_eq!(own_processes("7\n8\n", 7, &parent), Some(vec![7, 8]));
    assert_eq!(own_processes("7\n100\n", 7, &parent), None);
    assert_eq!(own_processes("", 7, &parent), None);
    // A process of another pid namespace is listed as 0.
    assert_eq!(own_processes("7\n0\n", 7, &|_| None), None);
}
