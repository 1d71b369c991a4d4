//! What a sandbox is given of this host, decided on made-up facts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sbx_api::{Caller, MountKind};
use sbx_proto::plan::Mode;
use tempfile::TempDir;

use super::HostBind;
use super::ensure::lay_out;
use super::spec::{Spec, Top, TopKind};
use super::toolchain::{Probe, ToolChains, tool_chains};

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
            &Caller::default(),
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
const DIRS: [(&str, &str); 16] = [
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
        path: "/home/u/.cargo/bin:/home/u/.pyenv/shims:/home/u/.nvm/versions/node/v22/bin:/home/u/go/bin:.:::relative/bin:\
            /home/u/.local/bin/:/home/u/mytools:/home/u/../x:/home/u/.docker/sandboxes/bin:/home/u/.nix-profile/bin:/home/u:/:\
            /home:/usr/bin:/usr/missing:/mnt/c/Windows:/sneaky:/home/u/go/bin"
            .into(),
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
                same("/home/u/.local/bin"),
                same("/home/u/.local/share/uv"),
                same("/home/u/.nvm/versions/node/v22"),
                same("/home/u/.pyenv"),
                same("/home/u/.rustup"),
                same("/home/u/go/bin"),
                bind("/data/tools", "/home/u/mytools"),
            ],
            masks: [
                "/data/tools/x.pem",
                "/home/u/.pyenv/.git",
                "/home/u/.pyenv/id_rsa.pub",
                "/home/u/.pyenv/shims/.netrc",
                "/home/u/mytools/x.pem"
            ]
            .map(PathBuf::from)
            .to_vec(),
            path: [
                "/home/u/.cargo/bin",
                "/home/u/.pyenv/shims",
                "/home/u/.nvm/versions/node/v22/bin",
                "/home/u/go/bin",
                "/home/u/.local/bin",
                "/home/u/mytools",
                "/usr/bin",
            ]
            .map(PathBuf::from)
            .to_vec(),
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
    let spec = Spec {
        format: 1,
        mode: Mode::Single,
        mounts: vec![],
        host: "/".into(),
        tops: vec![],
    };
    let caches = lay_out(
        Path::new("/t"),
        "f".into(),
        &spec,
        b"",
        &caller,
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
