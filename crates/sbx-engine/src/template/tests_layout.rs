//! What a sandbox is given of this host, decided on made-up facts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sbx_api::{Caller, MountKind};
use sbx_proto::plan::Mode;
use tempfile::TempDir;

use super::HostBind;
use super::ensure::{Asker, lay_out};
use super::spec::{Spec, Top, TopKind};
use super::toolchain::{Probe, ToolChains, tool_chains};
use crate::territory::Territory;

/// Somebody without sandboxes.
fn asker(caller: &Caller) -> Asker<'_> {
    static NOWHERE: Territory = Territory::nowhere();
    static NOTHING: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    Asker {
        caller,
        workspaces: &[],
        territory: &NOWHERE,
        sources: &NOTHING,
    }
}

/// A host that shows nothing of its system.
fn bare() -> Spec {
    Spec {
        format: 1,
        mode: Mode::Single,
        mounts: vec![],
        host: "/".into(),
        tops: vec![],
    }
}

#[test]
fn a_directory_with_mounts_below_is_bound_for_ordinary_users() {
    let spec = |mode| Spec {
        format: 1,
        mode,
        mounts: vec!["/usr/local".into()],
        host: "/".into(),
        tops: vec![
            Top {
                name: "usr".into(),
                kind: TopKind::Dir,
            },
            Top {
                name: "opt".into(),
                kind: TopKind::Closed,
            },
        ],
    };
    let of = |mode| {
        lay_out(
            Path::new("/t"),
            "f".into(),
            &spec(mode),
            b"",
            asker(&Caller::default()),
            Path::new("/s/t"),
        )
    };
    let bind = |path: &str| HostBind {
        source: path.into(),
        target: path.into(),
        kind: MountKind::Template,
    };
    let user = of(Mode::Single);
    assert_eq!(
        (user.overlays, user.binds, user.warnings.len()),
        (vec![], vec![bind("/usr")], 2)
    );
    let root = of(Mode::Root);
    assert_eq!(root.binds, [bind("/usr/local")]);
    let [usr] = root.overlays.as_slice() else {
        panic!("one overlay expected");
    };
    assert_eq!(
        (usr.target.as_path(), usr.dir.as_str()),
        (Path::new("/usr"), "usr")
    );
}

/// Directories of a made-up host, and where they really are when that differs.
const DIRS: [(&str, &str); 20] = [
    ("/home/u/.cargo/bin", ""),
    ("/home/u/.rustup", ""),
    ("/home/u/.pyenv", ""),
    ("/home/u/.pyenv/shims", ""),
    ("/home/u/.nvm/versions/node/v22", ""),
    ("/home/u/go/bin", ""),
    ("/home/u/.local/bin", ""),
    ("/home/u/.local/share/uv", ""),
    ("/home/u/mytools", "/data/tools"),
    ("/home/u/.docker/sandboxes/bin", ""),
    ("/home/u/.nix-profile/bin", ""),
    ("/home/u", ""),
    ("/home", ""),
    ("/usr/bin", ""),
    ("/mnt/c/Windows", ""),
    ("/sneaky", "/home"),
    ("/home/u/.ssh", ""),
    ("/home/u/keys", "/home/u/.ssh"),
    ("/home/u/.config/yarn/global/bin", ""),
    ("/home/u/.config/other/bin", ""),
];

/// The caller's, with everything in it that must not be shown.
const PATH: &str = "/home/u/.cargo/bin:/home/u/.pyenv/shims:/home/u/.nvm/versions/node/v22/bin:/home/u/go/bin:.:::relative/bin:\
            /home/u/.local/bin/:/home/u/mytools:/home/u/../x:/home/u/.docker/sandboxes/bin:/home/u/.nix-profile/bin:/home/u:/:\
            /home:/usr/bin:/usr/missing:/mnt/c/Windows:/sneaky:/home/u/go/bin:/home/u/.ssh:/home/u/keys:/ws/.venv/bin:\
            /home/u/.config/yarn/global/bin:/home/u/.config/other/bin";
const SHOWN: [&str; 9] = [
    "/home/u/.cargo/bin",
    "/home/u/.pyenv/shims",
    "/home/u/.nvm/versions/node/v22/bin",
    "/home/u/go/bin",
    "/home/u/.local/bin",
    "/home/u/mytools",
    "/usr/bin",
    "/ws/.venv/bin",
    "/home/u/.config/yarn/global/bin",
];
const MASKS: [&str; 5] = [
    "/data/tools/x.pem",
    "/home/u/.pyenv/.git",
    "/home/u/.pyenv/id_rsa.pub",
    "/home/u/.pyenv/shims/.netrc",
    "/home/u/mytools/x.pem",
];
const SOURCES: [(&str, &str); 9] = [
    ("/home/u/.cargo/bin", "/home/u/.cargo/bin"),
    (
        "/home/u/.config/yarn/global/bin",
        "/home/u/.config/yarn/global/bin",
    ),
    ("/home/u/.local/bin", "/home/u/.local/bin"),
    ("/home/u/.local/share/uv", "/home/u/.local/share/uv"),
    (
        "/home/u/.nvm/versions/node/v22",
        "/home/u/.nvm/versions/node/v22",
    ),
    ("/home/u/.pyenv", "/home/u/.pyenv"),
    ("/home/u/.rustup", "/home/u/.rustup"),
    ("/home/u/go/bin", "/home/u/go/bin"),
    ("/home/u/mytools", "/data/tools"),
];

#[test]
fn tool_chains_of_the_path() {
    let dirs = BTreeMap::from(DIRS);
    let names: BTreeMap<&str, Vec<&str>> = BTreeMap::from([
        ("/home/u/.pyenv", vec![".git", "shims", "id_rsa.pub"]),
        ("/home/u/.pyenv/.git", vec!["credentials"]),
        ("/home/u/.pyenv/shims", vec![".netrc", "cacert.pem"]),
        ("/data/tools", vec!["x.pem", "run"]),
    ]);
    let canonical = |path: &Path| {
        let path = path.to_str()?;
        let to = dirs.get(path)?;
        Some(PathBuf::from(if to.is_empty() { path } else { to }))
    };
    let listed = |path: &Path| {
        let found = names
            .get(path.to_str().unwrap())
            .cloned()
            .unwrap_or_default();
        found.into_iter().map(str::to_owned).collect()
    };
    let caller = Caller {
        home: "/home/u".into(),
        path: PATH.into(),
        ..Caller::default()
    };
    let probe = Probe {
        canonical: &canonical,
        dir: &canonical,
        names: &listed,
        // Below `.pyenv` a directory in which only credentials count, and one that is masked as a whole.
        dirs: &|path| match path.to_str() {
            Some("/home/u/.pyenv") => vec![".git".into(), "shims".into()],
            _ => vec![],
        },
        own: &|path| path.starts_with("/ws").then(|| path.to_owned()),
    };
    let got = tool_chains(&caller, Path::new("/home/u/.docker/sandboxes"), &probe);
    let bind = |source: &str, target: &str| HostBind {
        source: source.into(),
        target: target.into(),
        kind: MountKind::Toolchain,
    };
    let same = |path: &str| bind(path, path);
    assert_eq!(
        got,
        ToolChains {
            binds: vec![
                same("/data/tools"),
                same("/home/u/.cargo/bin"),
                same("/home/u/.config/yarn/global/bin"),
                same("/home/u/.local/bin"),
                same("/home/u/.local/share/uv"),
                same("/home/u/.nvm/versions/node/v22"),
                same("/home/u/.pyenv"),
                same("/home/u/.rustup"),
                same("/home/u/go/bin"),
                bind("/data/tools", "/home/u/mytools"),
            ],
            masks: MASKS.map(PathBuf::from).to_vec(),
            path: SHOWN.map(PathBuf::from).to_vec(),
            sources: SOURCES
                .map(|(path, real)| (path.into(), real.into()))
                .into(),
        }
    );
}

#[test]
fn caches_keep_their_owner() {
    let home = TempDir::new().unwrap();
    let shims = home.path().join(".pyenv/shims");
    for dir in [&home.path().join(".cargo/registry"), &shims] {
        fs::create_dir_all(dir).unwrap();
    }
    let caller = Caller {
        home: home.path().to_str().unwrap().into(),
        path: shims.to_str().unwrap().into(),
        ..Caller::default()
    };
    let spec = bare();
    let caches = lay_out(
        Path::new("/t"),
        "f".into(),
        &spec,
        b"",
        asker(&caller),
        Path::new("/s/t"),
    )
    .caches;
    let meta = fs::metadata(home.path()).unwrap();
    let [wrappers, cache] = caches.as_slice() else {
        panic!("two expected: {caches:?}");
    };
    assert_eq!(
        (&wrappers.target, &wrappers.lowers),
        (&shims, &vec![shims.clone()])
    );
    assert_eq!(cache.target, Path::new("/home/agent/.cargo/registry"));
    assert_eq!(cache.dir, "home-agent--cargo-registry");
    assert_eq!(cache.as_owner, Some((meta.uid(), meta.gid())));
}

#[test]
fn what_sandboxes_can_write_and_what_has_moved_is_not_shown() {
    let temp = TempDir::new().unwrap();
    let home = fs::canonicalize(temp.path()).unwrap();
    for dir in [
        ".secret",
        "ws/.venv",
        "other/bin",
        "tools/one",
        "tools/two",
        "real",
        "cargo",
    ] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    let link = |to: &str, at: &str| {
        let _ = fs::remove_file(home.join(at));
        std::os::unix::fs::symlink(home.join(to), home.join(at)).unwrap();
    };
    link(".secret", "ws/.venv/bin");
    link(".secret", "ws/registry");
    link("ws/.venv/bin", "around");
    link("tools/one", "current");
    let path = ["ws/.venv/bin", "around", "other/bin", "current", "real"];
    let path: Vec<_> = path
        .iter()
        .map(|name| home.join(name).to_str().unwrap().to_owned())
        .collect();
    let caller = Caller {
        home: home.to_str().unwrap().into(),
        path: path.join(":"),
        env: BTreeMap::from([
            ("CARGO_HOME".into(), path[0].replace("/.venv/bin", "")),
            ("JAVA_HOME".into(), path[0].clone()),
        ]),
        ..Caller::default()
    };
    let spec = bare();
    let (own, territory) = (
        [home.join("ws")],
        Territory::new([home.join("ws"), home.join("other")]),
    );
    let of = |sources: &BTreeMap<PathBuf, PathBuf>| {
        let asker = Asker {
            workspaces: &own,
            territory: &territory,
            sources,
            ..asker(&caller)
        };
        lay_out(
            Path::new("/t"),
            "f".into(),
            &spec,
            b"",
            asker,
            Path::new("/s/t"),
        )
    };
    let targets = |layout: &super::HostLayout| -> Vec<PathBuf> {
        layout
            .binds
            .iter()
            .map(|bind| bind.target.clone())
            .collect()
    };
    let first = of(&BTreeMap::new());
    let at = |name: &str| home.join(name);
    assert_eq!(
        targets(&first),
        [at("current"), at("real"), at("tools/one")]
    );
    assert!(first.caches.is_empty(), "{:?}", first.caches);
    assert_eq!(first.env["JAVA_HOME"], path[0]);
    assert!(first.env["PATH"].contains(&path[0]));
    assert_eq!(first.warnings.len(), 1, "{:?}", first.warnings);

    link("tools/two", "current");
    let second = of(&first.sources);
    assert_eq!(targets(&second), [at("real")]);
    assert!(second.warnings.iter().any(|w| w.contains("elsewhere")));
    link("tools/one", "current");
    assert_eq!(targets(&of(&second.sources)), targets(&first));
}
