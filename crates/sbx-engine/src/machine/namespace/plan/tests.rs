use std::collections::BTreeSet;

use jiff::Timestamp;
use sbx_api::MountKind;
use sbx_proto::plan::OpenFiles;

use super::builder::MASKED;
use super::pins::{innermost, pins};
use super::*;
use crate::machine::namespace::template::{HostBind, OverlayDir, SavedLayers};
use crate::sandbox::record::tests::example;

fn layout() -> HostLayout {
    let overlay = |target: &str, lowers: &[&str], dir: &str, as_owner| OverlayDir {
        target: target.into(),
        lowers: lowers.iter().map(PathBuf::from).collect(),
        dir: dir.into(),
        as_owner,
        hidden: BTreeSet::new(),
        agents: BTreeSet::new(),
    };
    let bind = |path: &str, layered: bool, hidden: &[&str]| HostBind {
        layered,
        source: path.into(),
        target: path.into(),
        kind: MountKind::Toolchain,
        hidden: hidden.iter().map(PathBuf::from).collect(),
    };
    HostLayout {
        fingerprint: "f1".into(),
        root_lower: "/s/templates/t/root".into(),
        overlays: vec![overlay(
            "/usr",
            &["/s/templates/t/usr", "/usr"],
            "usr",
            None,
        )],
        binds: vec![
            bind("/home/u/.rustup", false, &[]),
            bind("/home/u/java", true, &[".env", "etc/npmrc"]),
            bind("/home/u/tools", true, &[".env", "etc/npmrc"]),
        ],
        system: Vec::new(),
        masked: BTreeSet::new(),
        roots: BTreeSet::from(["/home/u/.asdf".into()]),
        links: BTreeMap::from([("/home/u/current".into(), "tools".into())]),
        dirs: BTreeSet::from(["/home/u/.npm".into()]),
        saved: Vec::new(),
        kept: None,
        caches: vec![
            overlay(
                "/home/agent/.cargo/registry",
                &["/home/u/.cargo/registry"],
                "cargo",
                Some((501, 502)),
            ),
            OverlayDir {
                hidden: BTreeSet::from(["cache/vcs".into()]),
                ..overlay(
                    "/home/agent/go/pkg/mod",
                    &["/home/u/go/pkg/mod"],
                    "go",
                    Some((501, 502)),
                )
            },
        ],
        env: BTreeMap::from([("PATH".into(), "/usr/bin".into())]),
        sources: BTreeMap::new(),
        warnings: Vec::new(),
    }
}

fn files() -> SandboxFiles {
    SandboxFiles {
        disk: None,
        layers: "/s/vm/ab/layers".into(),
        files: vec![("/s/vm/ab/etc/hostname".into(), "/etc/hostname".into())],
        shown_group: None,
        sudo: Sudo::Install,
    }
}

fn boot(mode: Mode) -> Boot {
    boot_with(mode, &layout())
}

fn boot_with(mode: Mode, layout: &HostLayout) -> Boot {
    let mut record = example("ab", mode);
    record.created_at = Timestamp::from_nanosecond(1_000_000_007).unwrap();
    record.caller.env.insert("LC_ALL".into(), "C".into());
    record.caller.env.insert("AWS_SECRET".into(), "x".into());
    record.workspaces.push(WorkspaceRecord {
        path: "/w".into(),
        given: Some("/l/w".into()),
        target: None,
        masked: Vec::new(),
        masked_absent: Vec::new(),
        readonly: true,
        added: false,
        pending: None,
        kind: WorkspaceKind::Directory,
        uid: 0,
        gid: 0,
        identity: None,
    });
    // In another workspace, which has the link.
    record.workspaces[0].given = Some("/w/link".into());
    boot_of(&record, layout)
}

fn boot_of(record: &Record, layout: &HostLayout) -> Boot {
    let place = files();
    let trust = Trust {
        certificate: "CA".into(),
        certificate_base64: "Q0E=".into(),
        bundle: "/etc/ssl/certs/ca-certificates.crt",
    };
    let limits = Limits {
        user: vec![("max_user_namespaces".into(), 9)],
        open_files: OpenFiles { soft: 1, hard: 2 },
        processes: 3,
    };
    let plan = boot_plan(record, layout, &place, &trust, limits);
    assert_eq!((plan.protocol, &plan.ids), (PROTOCOL, &record.ids));
    match plan.job {
        Job::Boot(boot) => *boot,
        other => panic!("not a boot: {other:?}"),
    }
}

fn source(path: &str, ids: SourceIds, access: Access, recursive: bool) -> Source {
    Source {
        path: path.into(),
        ids,
        access,
        recursive,
        node: None,
    }
}

#[test]
fn sources_of_root_mode() {
    use Access::*;
    use SourceIds::*;
    let boot = boot(Mode::Root);
    let owner = Owner { uid: 501, gid: 502 };
    let device = |name: &str| source(&format!("/dev/{name}"), Plain, Device, false);
    assert_eq!(
        boot.sources,
        vec![
            source("/s/vm/ab/layers", Plain, Layer, false),
            source("/s/templates/t/root", Shifted, Layer, false),
            source("/s/templates/t/usr", Shifted, Layer, false),
            source("/usr", Plain, Layer, false),
            source("/home/u/.rustup", Plain, ReadOnly, true),
            source("/home/u/java", Plain, ReadOnly, false),
            source("/home/u/tools", Plain, ReadOnly, false),
            source("/home/u/.cargo/registry", owner, Layer, false),
            source("/home/u/go/pkg/mod", owner, Layer, false),
            source("/s/vm/ab/etc/hostname", Plain, ReadOnly, false),
            device("full"),
            device("null"),
            device("random"),
            device("tty"),
            device("urandom"),
            device("zero"),
            source("/w", Owner { uid: 0, gid: 0 }, ReadOnly, true),
            source("/w/project", owner, ReadWrite, true),
        ]
    );
}

#[test]
fn other_modes_shift_nothing() {
    for mode in [Mode::Subordinate, Mode::Single] {
        let boot = boot(mode);
        assert!(boot.sources.iter().all(|s| s.ids == SourceIds::Plain));
    }
}

/// What must not be seen of a bound system directory is covered before a tool chain is shown in it.
#[test]
fn bound_system_directories_come_first() {
    let mut layout = layout();
    layout.system = vec![HostBind {
        source: "/opt".into(),
        target: "/opt".into(),
        kind: MountKind::Template,
        layered: false,
        hidden: BTreeSet::new(),
    }];
    layout.masked = BTreeSet::from(["/opt/key".into()]);
    layout.roots = BTreeSet::from(["/opt/home".into()]);
    let steps = boot_with(Mode::Single, &layout).steps;
    let shown: Vec<_> = steps.iter().map(brief).collect();
    assert_eq!(
        shown[2..6],
        [
            "bind /opt 4",
            "mask /opt/key",
            "tmpfs /opt/home 755",
            "bind /home/u/.rustup 5",
        ]
    );
    assert_eq!(shown.last().unwrap(), "close /opt/home");
}

/// Sockets in it are out of reach only below a layer.
#[test]
fn a_directory_in_which_nothing_is_hidden_has_a_layer_too() {
    let mut layout = layout();
    layout.binds.iter_mut().for_each(|bind| bind.layered = true);
    let boot = boot_with(Mode::Root, &layout);
    let shown: Vec<_> = boot.steps.iter().map(brief).collect();
    assert_eq!(
        shown[3..5],
        ["whiteouts  Root", "bind hidden /home/u/.rustup 4 0"]
    );
    assert!(boot.sources.get(4).is_some_and(|source| !source.recursive));
}

#[test]
fn steps_in_order() {
    let boot = boot(Mode::Root);
    let shown: Vec<_> = boot.steps.iter().map(brief).collect();
    let masks = MASKED.iter().map(|path| format!("mask {path}"));
    let expected: Vec<_> = [
        "overlay / [1] 0/root Root",
        "overlay /usr [2, 3] 0/usr Root",
        "tmpfs /home/u/.asdf 755",
        "bind /home/u/.rustup 4",
        "whiteouts .env etc/npmrc Root",
        "bind hidden /home/u/java 5 0",
        "bind hidden /home/u/tools 6 0",
        "symlink /home/u/current tools",
        "dir /home/u/.npm 755",
        "overlay /home/agent/.cargo/registry [7] 0/cargo Agent",
        "whiteouts cache/vcs Agent",
        "overlay /home/agent/go/pkg/mod [8] 0/go Agent 1",
        "bind /etc/hostname 9",
        "dir /tmp 1777",
        "install /usr/bin/sudo",
        "trust CA /usr/local/share/ca-certificates/proxy-ca.crt",
        "tmpfs /run 755",
        "dir /run/lock 1777",
        "proc /proc",
        "sysfs /sys",
        "tmpfs /dev 755",
        "bind /dev/full 10",
        "bind /dev/null 11",
        "bind /dev/random 12",
        "bind /dev/tty 13",
        "bind /dev/urandom 14",
        "bind /dev/zero 15",
        "devpts /dev/pts",
        "tmpfs /dev/shm 1777",
        "dir /dev/mqueue 755",
        "symlink /dev/ptmx pts/ptmx",
        "symlink /dev/fd /proc/self/fd",
        "symlink /dev/stdin /proc/self/fd/0",
        "symlink /dev/stdout /proc/self/fd/1",
        "symlink /dev/stderr /proc/self/fd/2",
        "proc /run/.visible/proc",
        "sysfs /run/.visible/sys",
        "dir /run/.visible 0",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain(masks)
    .chain([
        "mask /sys/fs/cgroup".into(),
        "alias /l/w /w".into(),
        "bind /w 16".into(),
        "bind /w/project 17".into(),
        "close /home/u/.asdf".into(),
    ])
    .collect();
    assert_eq!(shown, expected);
}

#[test]
fn a_control_group_to_show_is_read_only() {
    let mut steps = Builder::new(Mode::Root, false);
    let mut files = files();
    files.shown_group = Some("/cg/sbx/shown".into());
    steps.groups(&files);
    assert_eq!(brief(&steps.steps[0]), "bind /sys/fs/cgroup 0");
    let expected = source("/cg/sbx/shown", SourceIds::Plain, Access::ReadOnly, false);
    assert_eq!(steps.sources, [expected]);
}

#[test]
fn the_rest_of_a_boot() {
    let boot = boot(Mode::Root);
    let env: Vec<(OsBytes, OsBytes)> = [
        ("HTTPS_PROXY", "http://gateway.docker.internal:3128"),
        ("HTTP_PROXY", "http://gateway.docker.internal:3128"),
        ("LC_ALL", "C"),
        ("NODE_EXTRA_CA_CERTS", BUNDLES[0]),
        ("NODE_USE_ENV_PROXY", "1"),
        (
            "NO_PROXY",
            "localhost,127.0.0.1,::1,gateway.docker.internal",
        ),
        ("PATH", "/usr/bin"),
        ("PROXY_CA_CERT_B64", "Q0E="),
        ("REQUESTS_CA_BUNDLE", BUNDLES[0]),
        ("SBX_SANDBOX", "ab"),
        ("SSL_CERT_FILE", BUNDLES[0]),
        ("TOKEN", "secret"),
        ("http_proxy", "http://gateway.docker.internal:3128"),
        ("https_proxy", "http://gateway.docker.internal:3128"),
        (
            "no_proxy",
            "localhost,127.0.0.1,::1,gateway.docker.internal",
        ),
    ]
    .map(|(k, v)| (k.into(), v.into()))
    .to_vec();
    assert_eq!(boot.env, env);
    assert_eq!(boot.hostname, "ab");
    assert_eq!(boot.workdir, "/w/project".into());
    assert_eq!(boot.workspaces, vec!["/w/project".into()]);
    assert_eq!(boot.made_at, 1_000_000_007);
    assert_eq!(boot.limits.user, [("max_user_namespaces".to_owned(), 9)]);
}

#[test]
fn mounts_for_inspect() {
    let shown: Vec<_> = {
        let record = example("ab", Mode::Root);
        mounts(&record.workspaces, &record, &layout())
    }
    .into_iter()
    .map(|m| format!("{} <- {} {} {:?}", m.target, m.source, m.readonly, m.kind))
    .collect();
    assert_eq!(
        shown,
        [
            "/w/project <- /w/project false Workspace",
            "/ <- /s/templates/t/root false Template",
            "/usr <- /usr false Template",
            "/home/u/.rustup <- /home/u/.rustup true Toolchain",
            "/home/u/java <- /home/u/java true Toolchain",
            "/home/u/tools <- /home/u/tools true Toolchain",
            "/home/agent/.cargo/registry <- /home/u/.cargo/registry false Cache",
            "/home/agent/go/pkg/mod <- /home/u/go/pkg/mod false Cache",
        ]
    );
}

/// One line per step.
fn brief(step: &Step) -> String {
    let text = |path: &OsBytes| path.as_path().display().to_string();
    match step {
        Step::Overlay {
            target,
            lowers,
            upper,
            dir,
            owner,
            whiteouts,
            saved: _,
            volatile: _,
        } => {
            let whiteouts = whiteouts
                .map(|whiteouts| format!(" {whiteouts}"))
                .unwrap_or_default();
            format!(
                "overlay {} {lowers:?} {upper}/{dir} {owner:?}{whiteouts}",
                text(target)
            )
        }
        Step::Whiteouts {
            hidden,
            agents,
            owner,
        } => {
            let words = [hidden.as_slice(), agents].map(|paths| {
                let paths: Vec<_> = paths.iter().map(text).collect();
                paths.join(" ")
            });
            let [hidden, agents] = words;
            let agents = if agents.is_empty() {
                agents
            } else {
                format!(" ({agents})")
            };
            format!("whiteouts {hidden}{agents} {owner:?}")
        }
        Step::BindHidden {
            target,
            source,
            whiteouts,
        } => format!("bind hidden {} {source} {whiteouts}", text(target)),
        Step::Install { target } => format!("install {}", text(target)),
        Step::Bind { target, source } => format!("bind {} {source}", text(target)),
        Step::Tmpfs { target, mode } => format!("tmpfs {} {mode:o}", text(target)),
        Step::Proc { target } => format!("proc {}", text(target)),
        Step::Sysfs { target } => format!("sysfs {}", text(target)),
        Step::Devpts { target } => format!("devpts {}", text(target)),
        Step::Dir { target, mode, .. } => format!("dir {} {mode:o}", text(target)),
        Step::Symlink { target, to } => format!("symlink {} {}", text(target), text(to)),
        Step::Alias { target, to } => format!("alias {} {}", text(target), text(to)),
        Step::Trust {
            certificate, file, ..
        } => format!("trust {certificate} {}", text(file)),
        Step::Close { target } => format!("close {}", text(target)),
        Step::Mask { target } => format!("mask {}", text(target)),
    }
}

/// Every way to share none, some or all of a chain of directories, each writable or read-only.
#[test]
fn a_directory_is_as_its_innermost_workspace_whatever_holds_it_in_place() {
    const LEVELS: [&str; 5] = ["/m", "/m/a", "/m/a/b", "/m/a/b/c", "/m/a/b/c/d"];
    const KINDS: usize = 3;
    let mut pinned = 0;
    for case in 0..KINDS.pow(LEVELS.len() as u32) {
        let mut workspaces = Vec::new();
        for (level, path) in LEVELS.iter().enumerate() {
            let readonly = match case / KINDS.pow(level as u32) % KINDS {
                0 => continue,
                kind => kind == 2,
            };
            workspaces.push(WorkspaceRecord {
                path: Path::new(path).into(),
                given: None,
                target: None,
                masked: Vec::new(),
                masked_absent: Vec::new(),
                readonly,
                added: false,
                pending: None,
                kind: WorkspaceKind::Directory,
                uid: 1000 + level as u32,
                gid: 1000,
                identity: None,
            });
        }
        let mut mounts = workspaces.clone();
        mounts.extend(pins(&workspaces));
        pinned += mounts.len() - workspaces.len();
        for path in LEVELS {
            let file = Path::new(path).join("file");
            let shared = |all| innermost(all, &file).map(|by| (by.readonly, by.uid));
            assert_eq!(
                shared(&mounts),
                shared(&workspaces),
                "{path}: {workspaces:?}"
            );
            // What can be renamed lies in a writable one, and no read-only one below it.
            let directory = Path::new(path);
            let may_change = innermost(&workspaces, directory).is_some_and(|by| !by.readonly);
            let below = |inner: &&WorkspaceRecord| inner.path.as_path().starts_with(directory);
            let holds = workspaces.iter().filter(below).any(|inner| inner.readonly);
            let is_mount = mounts.iter().any(|it| it.path.as_path() == directory);
            assert!(!may_change || !holds || is_mount, "{path}: {workspaces:?}");
        }
    }
    assert!(pinned > 0);
}

/// What is kept lies elsewhere, with ids that do not depend on the sandbox.
#[test]
fn kept_caches_have_a_layer_of_their_own() {
    let mut layout = layout();
    layout.keep_caches("/s/cache/c/layers".into(), (501, 502));
    let kept = layout.kept.clone().unwrap();
    assert!(kept.dirs.contains("cargo") && kept.dirs.contains("go"));
    let targets: Vec<_> = (layout.caches.iter())
        .map(|cache| cache.target.to_str().unwrap())
        .collect();
    // What no tool of the caller has yet is kept too; parents come first.
    assert_eq!(
        targets,
        [
            "/home/agent/.cache",
            "/home/agent/.cache/pip",
            "/home/agent/.cargo/git",
            "/home/agent/.gradle/caches",
            "/home/agent/.gradle/caches/modules-2",
            "/home/agent/.m2/repository",
            "/home/agent/.npm/_cacache",
            "/home/agent/.cargo/registry",
            "/home/agent/go/pkg/mod",
        ]
    );
    for (mode, ids) in [
        (Mode::Root, SourceIds::Owner { uid: 501, gid: 502 }),
        (Mode::Subordinate, SourceIds::Plain),
        (Mode::Single, SourceIds::Plain),
    ] {
        let boot = boot_with(mode, &layout);
        let layer = (boot.sources.iter())
            .position(|source| source.path == "/s/cache/c/layers".into())
            .unwrap();
        assert_eq!(boot.sources[layer].ids, ids, "{mode:?}");
        let uppers: Vec<_> = (boot.steps.iter())
            .filter_map(|step| match step {
                Step::Overlay { target, upper, .. } => Some((target.as_path(), *upper)),
                _ => None,
            })
            .collect();
        for (target, upper) in uppers {
            let is_kept = targets.iter().any(|kept| target == Path::new(kept));
            assert_eq!(upper == layer, is_kept, "{}", target.display());
        }
    }
}

#[test]
fn layers_are_volatile_unless_they_outlive_the_sandbox() {
    let mut layout = layout();
    layout.keep_caches("/s/cache/c/layers".into(), (501, 502));
    for temporary in [false, true] {
        let record = Record {
            temporary,
            ..example("ab", Mode::Root)
        };
        let boot = boot_of(&record, &layout);
        let kept = |upper: usize| boot.sources[upper].path == "/s/cache/c/layers".into();
        let mut seen = BTreeSet::new();
        for step in &boot.steps {
            if let Step::Overlay {
                upper, volatile, ..
            } = step
            {
                assert_eq!(*volatile, temporary && !kept(*upper));
                seen.insert(kept(*upper));
            }
        }
        assert_eq!(seen.len(), 2);
    }
}

#[test]
fn saved_layers_lie_above_the_hosts() {
    let saved = |id: &str, base, dirs: &[&str]| SavedLayers {
        layers: format!("/s/templates/saved/{id}/layers").into(),
        dirs: dirs.iter().map(|dir| (*dir).to_owned()).collect(),
        base,
    };
    for (mode, ids) in [
        (Mode::Root, [7, 8].map(|base| SourceIds::Range { base })),
        (Mode::Subordinate, [SourceIds::Plain; 2]),
        (Mode::Single, [SourceIds::Plain; 2]),
    ] {
        let base = |base| (mode == Mode::Root).then_some(base);
        let layout = HostLayout {
            saved: vec![
                saved("upper", base(7), &["root", "usr", "cargo"]),
                saved("lower", base(8), &["usr"]),
            ],
            ..layout()
        };
        let boot = boot_with(mode, &layout);
        let of = |wanted: &str| {
            let mut steps = boot.steps.iter().filter_map(|step| match step {
                Step::Overlay { target, saved, .. } if target.as_path() == Path::new(wanted) => {
                    Some(saved.clone())
                }
                _ => None,
            });
            let saved = steps.next().unwrap().into_iter();
            let sources = saved.map(|index| boot.sources[index].clone());
            sources.collect::<Vec<_>>()
        };
        let layer = |path: &str, ids| {
            let path = format!("/s/templates/saved/{path}");
            source(&path, ids, Access::Layer, false)
        };
        assert_eq!(of("/"), [layer("upper/layers/root", ids[0])]);
        assert_eq!(
            of("/usr"),
            [
                layer("upper/layers/usr", ids[0]),
                layer("lower/layers/usr", ids[1])
            ]
        );
        assert_eq!(
            of("/home/agent/.cargo/registry"),
            [layer("upper/layers/cargo", ids[0])]
        );
        assert!(of("/home/agent/go/pkg/mod").is_empty());
    }
}

#[test]
fn what_is_one_sandboxs_alone() {
    let mut record = example("ab", Mode::Root);
    let mut more = record.workspaces[0].clone();
    more.path = "/w/lib".into();
    more.target = Some("/lib/inside".into());
    record.workspaces.push(more);
    let paths = of_one_sandbox(&record);
    for path in [
        "/etc/hostname",
        "/etc/hosts",
        "/usr/bin/sudo",
        CA_FILE,
        "/etc/machine-id",
        "/w/project",
        "/lib/inside",
    ] {
        assert!(paths.contains(&path.into()), "{path}");
    }
    assert!(!paths.contains(&"/w/lib".into()) && !paths.contains(&"/etc/passwd".into()));
}
