//! What a sandbox is given of this host, decided on made-up facts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sbx_api::{Caller, MountKind};
use sbx_proto::plan::Mode;
use tempfile::TempDir;

use super::ensure::{LayoutRequest, lay_out, takes_layer};
use super::hidden::Hidden;
use super::secrets::{Entry, FileSystemView, Kind};
use super::spec::{Spec, Top, TopKind, is_system};
use super::toolchain::{Probe, tool_chains};
use super::{HostBind, HostLayout};
use crate::workspace::untrusted::UntrustedPaths;

/// A caller without sandboxes.
fn request(caller: &Caller) -> LayoutRequest<'_> {
    static NOWHERE: UntrustedPaths = UntrustedPaths::none();
    static NOTHING: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    LayoutRequest {
        caller,
        workspaces: &[],
        untrusted: &NOWHERE,
        sources: &NOTHING,
        go_build_cache: false,
    }
}

/// A host that shows nothing of its system.
fn bare() -> Spec {
    Spec {
        format: 1,
        mode: Mode::Single,
        mounts: vec![],
        left_out: vec![],
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
        left_out: vec![],
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
            vec![],
            b"",
            request(&Caller::default()),
            Path::new("/s/t"),
        )
    };
    let bind = |path: &str| HostBind {
        source: path.into(),
        target: path.into(),
        kind: MountKind::Template,
        layered: false,
        hidden: BTreeSet::new(),
    };
    let user = of(Mode::Single);
    assert_eq!(
        (user.overlays, user.system, user.warnings.len()),
        (vec![], vec![bind("/usr")], 2)
    );
    let root = of(Mode::Root);
    let mut mounted = bind("/usr/local");
    mounted.layered = takes_layer(Path::new("/usr/local"));
    assert_eq!(root.system, [mounted]);
    let [usr] = root.overlays.as_slice() else {
        panic!("one overlay expected");
    };
    assert_eq!(
        (usr.target.as_path(), usr.dir.as_str()),
        (Path::new("/usr"), "usr")
    );
}

/// Only what overlay takes, and what is open to all: the layer's own mode is.
#[test]
fn a_mount_has_a_layer_where_it_can() {
    let temp = TempDir::new_in("/dev/shm").unwrap();
    let chmod = |mode| fs::set_permissions(temp.path(), Permissions::from_mode(mode)).unwrap();
    chmod(0o755);
    assert!(takes_layer(temp.path()));
    chmod(0o711);
    assert!(!takes_layer(temp.path()));
    assert!(!takes_layer(Path::new("/proc")) && !takes_layer(Path::new("/dev/null")));
}

/// Directories of a made-up host, and where they really are when that differs.
const DIRS: [(&str, &str); 21] = [
    ("/home/u/.cargo/bin", ""),
    ("/home/u/.rustup", ""),
    ("/home/u/.pyenv", ""),
    ("/home/u/.pyenv/shims", ""),
    ("/home/u/.nvm", ""),
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
const ROOTS: [&str; 3] = ["/home/u/.nvm", "/home/u/.pyenv", "/home/u/.rustup"];
const SOURCES: [(&str, &str); 9] = [
    ("/home/u/.cargo/bin", "/home/u/.cargo/bin"),
    (
        "/home/u/.config/yarn/global/bin",
        "/home/u/.config/yarn/global/bin",
    ),
    ("/home/u/.local/bin", "/home/u/.local/bin"),
    ("/home/u/.local/share/uv", "/home/u/.local/share/uv"),
    ("/home/u/.nvm", "/home/u/.nvm"),
    ("/home/u/.pyenv", "/home/u/.pyenv"),
    ("/home/u/.rustup", "/home/u/.rustup"),
    ("/home/u/go/bin", "/home/u/go/bin"),
    ("/home/u/mytools", "/data/tools"),
];

#[test]
fn tool_chains_of_the_path() {
    let dirs = BTreeMap::from(DIRS);
    let canonical = |path: &Path| {
        let path = path.to_str()?;
        let to = dirs.get(path)?;
        Some(PathBuf::from(if to.is_empty() { path } else { to }))
    };
    let entry = |name: &str| Entry {
        name: name.into(),
        kind: if name == "3" { Kind::Link } else { Kind::Dir },
    };
    let caller = Caller {
        home: "/home/u".into(),
        path: PATH.into(),
        ..Caller::default()
    };
    let probe = Probe {
        system: &is_system,
        personal: &|_| false,
        canonical: &canonical,
        dir: &canonical,
        link: &|_| Some("3.1".into()),
        layer: &|_| None,
        own: &|path| path.starts_with("/ws").then(|| path.to_owned()),
        view: FileSystemView {
            list: &|path| match path.to_str() {
                Some("/home/u/.pyenv/versions") => vec![entry("3.1"), entry("3"), entry(".git")],
                _ => vec![],
            },
            kind: &|path| match path.to_str()? {
                "/home/u/.pyenv/versions" | "/home/u/.pyenv/versions/3.1" => Some(Kind::Dir),
                "/home/u/.pyenv/versions/3" => Some(Kind::Link),
                "/home/u/.pyenv/version" => Some(Kind::File),
                "/home/u/.nvm/versions" | "/home/u/.nvm/versions/node" => Some(Kind::Dir),
                "/home/u/.rustup/toolchains" | "/home/u/.local/share/uv/tools" => Some(Kind::Dir),
                path => dirs.contains_key(path).then_some(Kind::Dir),
            },
            holds_workspace: &|_| false,
        },
    };
    let got = tool_chains(&caller, Path::new("/home/u/.docker/sandboxes"), &probe);
    let shown: Vec<_> = got
        .binds
        .iter()
        .map(|bind| {
            let suffix = match (bind.layered, bind.hidden.is_empty()) {
                (true, true) => " layered",
                (true, false) => " hidden",
                (false, _) => "",
            };
            let (source, target) = (bind.source.display(), bind.target.display());
            format!("{target} <- {source}{suffix}")
        })
        .collect();
    let same = |path: &str, suffix: &str| format!("{path} <- {path}{suffix}");
    let expected = [
        same("/data/tools", " hidden"),
        same("/home/u/.cargo/bin", " layered"),
        same("/home/u/.config/yarn/global/bin", " hidden"),
        same("/home/u/.local/bin", " hidden"),
        same("/home/u/.nvm/versions/node/v22", " hidden"),
        same("/home/u/.pyenv/shims", " layered"),
        same("/home/u/.pyenv/version", ""),
        same("/home/u/.pyenv/versions/3.1", " hidden"),
        same("/home/u/.rustup/toolchains", " layered"),
        same("/home/u/go/bin", " hidden"),
        "/home/u/mytools <- /data/tools hidden".to_owned(),
    ];
    assert_eq!(shown, expected);
    assert_eq!(
        (got.roots, got.links, got.path, got.sources, got.warnings),
        (
            ROOTS.map(PathBuf::from).into(),
            BTreeMap::from([("/home/u/.pyenv/versions/3".into(), "3.1".into())]),
            SHOWN.map(PathBuf::from).to_vec(),
            SOURCES
                .map(|(path, real)| (path.into(), real.into()))
                .into(),
            vec![],
        )
    );
}

/// A home in a system directory is a home, and a directory of one's own there is one's own.
#[test]
fn what_is_hidden_in_system_directories() {
    let dirs = [
        "/opt/x/home",
        "/opt/x/home/.cargo/bin",
        "/opt/x/home/.ssh",
        "/opt/tools/bin",
        "/usr/bin",
    ];
    let canonical = |path: &Path| match path.to_str()? {
        "/opt/tools/bin/.netrc" => Some("/opt/keys/netrc".into()),
        text => dirs.contains(&text).then(|| path.to_owned()),
    };
    let hidden = Hidden::new(["/opt/x/home".into()]);
    let file = |name: &str, kind| Entry {
        name: name.into(),
        kind,
    };
    let probe = Probe {
        system: &|path| is_system(path) && !hidden.covers(path),
        personal: &|path| !path.starts_with("/usr"),
        canonical: &canonical,
        dir: &canonical,
        link: &|_| None,
        layer: &|_| None,
        own: &|_| None,
        view: FileSystemView {
            list: &|path| match path.to_str() {
                Some("/opt/tools/bin") => vec![
                    file("my.key", Kind::File),
                    file(".netrc", Kind::Link),
                    file("tool", Kind::File),
                ],
                _ => vec![],
            },
            kind: &|path| canonical(path).map(|_| Kind::Dir),
            holds_workspace: &|_| false,
        },
    };
    let caller = Caller {
        home: "/opt/x/home".into(),
        path: "/opt/x/home/.cargo/bin:/opt/x/home/.ssh:/opt/tools/bin:/usr/bin".into(),
        ..Caller::default()
    };
    let got = tool_chains(&caller, Path::new("/s"), &probe);
    let shown = ["/opt/x/home/.cargo/bin", "/opt/tools/bin", "/usr/bin"];
    assert_eq!(got.path, shown.map(PathBuf::from));
    let binds: Vec<_> = got.binds.iter().map(|bind| &bind.target).collect();
    assert_eq!(binds, [Path::new("/opt/x/home/.cargo/bin")]);
    for name in ["my.key", ".netrc", ".npmrc", "token"] {
        let path = Path::new("/opt/tools/bin").join(name);
        assert!(got.hidden.contains(&path), "{name}");
    }
    assert!(got.hidden.contains(Path::new("/opt/keys/netrc")));
    assert!(!got.hidden.iter().any(|path| path.starts_with("/usr")));
}

/// A home with these files, and what is shown of it to a caller with these directories in PATH.
struct Home {
    dir: TempDir,
    layout: HostLayout,
}

impl Home {
    fn new(files: &[&str], path: &[&str], workspaces: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let home = fs::canonicalize(dir.path()).unwrap();
        for file in files {
            let file = home.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::File::create(file).unwrap();
        }
        let layout = Self::lay_out(&home, path, workspaces);
        Self { dir, layout }
    }

    fn lay_out(home: &Path, path: &[&str], workspaces: &[&str]) -> HostLayout {
        let at = |name: &&str| home.join(name);
        let path: Vec<_> = path
            .iter()
            .map(at)
            .map(|p| p.display().to_string())
            .collect();
        let workspaces: Vec<_> = workspaces.iter().map(at).collect();
        let caller = Caller {
            home: home.to_str().unwrap().into(),
            path: path.join(":"),
            ..Caller::default()
        };
        let untrusted = UntrustedPaths::new(workspaces.clone());
        let request = LayoutRequest {
            workspaces: &workspaces,
            untrusted: &untrusted,
            ..request(&caller)
        };
        let (template, store) = (Path::new("/t"), Path::new("/s/t"));
        lay_out(template, "f".into(), &bare(), vec![], b"", request, store)
    }

    fn shows(&self, file: &str) -> bool {
        let path = fs::canonicalize(self.dir.path()).unwrap().join(file);
        let hidden = |bind: &HostBind| {
            let below = path.strip_prefix(&bind.target).unwrap();
            bind.hidden.iter().any(|hidden| below.starts_with(hidden))
        };
        let binds = &self.layout.binds;
        let mut caches = self.layout.caches.iter();
        binds
            .iter()
            .any(|bind| path.starts_with(&bind.target) && !hidden(bind))
            || caches.any(|cache| {
                let below = path.strip_prefix(&cache.target);
                let hides = |below: &Path| cache.hidden.iter().any(|it| below.starts_with(it));
                below.is_ok_and(|below| !hides(below))
            })
    }
}

const MANAGED: [&str; 12] = [
    ".asdf/shims",
    ".bun/bin",
    ".cargo/bin",
    ".dotnet",
    ".local/bin",
    ".local/share/mise/shims",
    ".nvm/versions/node/v22/bin",
    ".pyenv/shims",
    ".sdkman/candidates/maven/current/bin",
    ".volta/bin",
    "miniconda3/bin",
    "tools",
];
/// What the programs there need.
const NEEDED: [&str; 28] = [
    ".asdf/installs/nodejs/20.1.0/bin/node",
    ".asdf/installs/nodejs/20.1.0/lib/node_modules/npm/index.js",
    ".asdf/plugins/nodejs/bin/exec-env",
    ".asdf/shims/node",
    ".bun/bin/bun",
    ".cargo/bin/cargo",
    ".dotnet/dotnet",
    ".dotnet/sdk/9/dotnet.dll",
    ".local/bin/tool",
    ".local/share/mise/installs/node/20/bin/node",
    ".local/share/mise/shims/node",
    ".local/share/uv/tools/ruff/bin/ruff",
    ".nvm/versions/node/v22/bin/node",
    ".pyenv/bin/pyenv",
    ".pyenv/plugins/some/etc/pyenv.d/exec/hook.bash",
    ".pyenv/shims/python3",
    ".pyenv/version",
    ".pyenv/versions/3.12/bin/python3",
    ".pyenv/versions/3.12/etc/jupyter/config",
    ".pyenv/versions/3.12/lib/python3.12/site-packages/certifi/cacert.pem",
    ".rustup/settings.toml",
    ".rustup/toolchains/stable/bin/cargo",
    ".sdkman/candidates/maven/3.9/bin/mvn",
    ".volta/bin/node",
    ".volta/tools/image/node/20/bin/node",
    "miniconda3/bin/conda",
    "miniconda3/envs/one/bin/python3",
    "tools/deep/deeper/program",
];
const CREDENTIALS: [&str; 35] = [
    ".asdf/.npmrc",
    ".asdf/anything",
    ".asdf/installs/nodejs/20.1.0/etc/npmrc",
    ".asdf/installs/nodejs/20.1.0/lib/node_modules/npm/npmrc",
    ".asdf/plugins/nodejs/.git/config",
    ".bun/install/cache/private/index.js",
    ".cargo/bin/key.pem",
    ".cargo/config.toml",
    ".cargo/credentials.toml",
    ".cargo/git/db/private/config",
    ".dotnet/NuGet.Config",
    ".dotnet/corefx/cryptography/x509stores/my/1.pfx",
    ".local/bin/.env",
    ".local/share/mise/installs/node/20/etc/npmrc",
    ".local/share/uv/credentials/credentials.toml",
    ".local/share/uv/tools/ruff/pip.conf",
    ".nvm/versions/node/v22/etc/npmrc",
    ".pyenv/.git/config",
    ".pyenv/versions/3.12/.pypirc",
    ".pyenv/versions/3.12/etc/server.key",
    ".pyenv/versions/3.12/pip.conf",
    ".rustup/.env",
    ".sdkman/candidates/gradle/8/gradle.properties",
    ".sdkman/candidates/maven/3.9/conf/settings.xml",
    ".sdkman/etc/config",
    ".volta/hooks.json",
    ".volta/tools/image/node/20/etc/npmrc",
    "go/pkg/mod/cache/vcs/1/config",
    "miniconda3/.condarc",
    "miniconda3/envs/one/.condarc",
    "miniconda3/etc/npmrc",
    "tools/NuGet.config",
    "tools/deep/deeper/Gradle.Properties",
    "tools/deep/deeper/store.PFX",
    "tools/deep/deeper/token",
];

#[test]
fn tool_chains_are_shown_without_their_credentials() {
    let home = Home::new(&[&NEEDED[..], &CREDENTIALS[..]].concat(), &MANAGED, &[]);
    for file in NEEDED {
        assert!(home.shows(file), "{file}");
    }
    for file in CREDENTIALS {
        assert!(!home.shows(file), "{file}");
    }
    assert_eq!(home.layout.warnings, Vec::<String>::new());
    // What is not there at the start does not show when it comes.
    let home = Home::new(&NEEDED, &MANAGED, &[]);
    for file in CREDENTIALS {
        let found_by_ending = [".pem", ".key", ".PFX"]
            .iter()
            .any(|end| file.ends_with(end));
        let deep = file.starts_with("tools/deep");
        assert!(found_by_ending || deep || !home.shows(file), "{file}");
    }
}

#[test]
fn a_link_beside_the_versions_is_one_inside() {
    let files = [".sdkman/candidates/java/21/bin/java", ".pyenv/shims/x"];
    let path = [".sdkman/candidates/java/current/bin"];
    let home = Home::new(&files, &[], &[]);
    let at = |name: &str| fs::canonicalize(home.dir.path()).unwrap().join(name);
    let link = at(".sdkman/candidates/java/current");
    std::os::unix::fs::symlink("21", &link).unwrap();
    let layout = Home::lay_out(&at(""), &path, &[]);
    assert_eq!(layout.links, BTreeMap::from([(link, "21".into())]));
    assert_eq!(layout.roots, BTreeSet::from([at(".sdkman")]));
    assert!(layout.env["PATH"].contains("java/current/bin"));
}

#[test]
fn what_was_not_looked_through_is_not_shown() {
    let many: Vec<String> = (0..300)
        .map(|i| format!("tools/many/{i}/program"))
        .collect();
    let mut files: Vec<&str> = many.iter().map(String::as_str).collect();
    files.extend(["tools/program", "tools/few/program"]);
    let home = Home::new(&files, &["tools"], &[]);
    assert!(home.shows("tools/program") && home.shows("tools/few/program"));
    assert!(!home.shows("tools/many/0/program") && !home.shows("tools/many/299/program"));
    let [warning] = home.layout.warnings.as_slice() else {
        panic!("one expected: {:?}", home.layout.warnings);
    };
    assert!(warning.contains("tools/many") && warning.contains("look through"));
    // A workspace in there needs a place: then nothing is shown.
    let workspace = "tools/many/7";
    let home = Home::new(&files, &["tools"], &[workspace]);
    assert!(!home.shows("tools/program"));
    assert!(home.layout.warnings.iter().any(|w| w.contains("workspace")));
}

#[test]
fn what_a_credential_leads_to_is_hidden_as_well() {
    let files = ["tools/real", "tools/program", "other/run"];
    let home = Home::new(&files, &[], &[]);
    let root = fs::canonicalize(home.dir.path()).unwrap();
    std::os::unix::fs::symlink("../tools/real", root.join("other/.netrc")).unwrap();
    let layout = Home::lay_out(&root, &["tools", "other"], &[]);
    let home = Home { layout, ..home };
    assert!(home.shows("tools/program") && home.shows("other/run"));
    assert!(!home.shows("tools/real") && !home.shows("other/.netrc"));
}

#[test]
fn caches_keep_their_owner() {
    let home = TempDir::new().unwrap();
    let shims = home.path().join(".pyenv/shims");
    for dir in [
        ".cargo/registry",
        ".cargo/git",
        ".pyenv/shims",
        "go/pkg/mod",
        ".m2/repository",
        ".gradle/caches/modules-2",
    ] {
        fs::create_dir_all(home.path().join(dir)).unwrap();
    }
    let caller = Caller {
        home: home.path().to_str().unwrap().into(),
        path: shims.to_str().unwrap().into(),
        ..Caller::default()
    };
    let spec = bare();
    let HostLayout {
        caches, dirs, env, ..
    } = lay_out(
        Path::new("/t"),
        "f".into(),
        &spec,
        vec![],
        b"",
        request(&caller),
        Path::new("/s/t"),
    );
    let meta = fs::metadata(home.path()).unwrap();
    let [wrappers, cache, modules, maven, gradle] = caches.as_slice() else {
        panic!("five expected: {caches:?}");
    };
    // Clones of private repositories, and settings with tokens in them.
    assert_eq!(modules.target, home.path().join("go/pkg/mod"));
    assert_eq!(modules.hidden, BTreeSet::from(["cache/vcs".into()]));
    assert_eq!(
        (&wrappers.target, &wrappers.lowers),
        (&shims, &vec![shims.clone()])
    );
    // At the paths that they have outside, in directories that the agent can write to.
    let cargo = home.path().join(".cargo");
    assert_eq!(cache.target, cargo.join("registry"));
    let gradle_home = home.path().join(".gradle");
    assert_eq!(dirs, BTreeSet::from([cargo.clone(), gradle_home.clone()]));
    let told = |name: &str| env.get(name).map(Path::new);
    assert_eq!(told("CARGO_HOME"), Some(cargo.as_path()));
    assert_eq!(
        told("CARGO_INSTALL_ROOT"),
        Some(Path::new("/home/agent/.cargo"))
    );
    assert_eq!(told("GOMODCACHE"), Some(modules.target.as_path()));
    assert_eq!(told("GRADLE_USER_HOME"), Some(gradle_home.as_path()));
    assert_eq!(gradle.target, gradle_home.join("caches/modules-2"));
    let options = format!("-Dmaven.repo.local={}", maven.target.display());
    assert_eq!(maven.target, home.path().join(".m2/repository"));
    for name in ["MAVEN_OPTS", "MAVEN_ARGS"] {
        assert_eq!(env.get(name), Some(&options));
    }
    assert_eq!(told("PIP_CACHE_DIR"), None, "there is none");
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
    let (own, untrusted) = (
        [home.join("ws")],
        UntrustedPaths::new([home.join("ws"), home.join("other")]),
    );
    let of = |sources: &BTreeMap<PathBuf, PathBuf>| {
        let request = LayoutRequest {
            workspaces: &own,
            untrusted: &untrusted,
            sources,
            ..request(&caller)
        };
        lay_out(
            Path::new("/t"),
            "f".into(),
            &spec,
            vec![],
            b"",
            request,
            Path::new("/s/t"),
        )
    };
    let targets = |layout: &HostLayout| -> Vec<PathBuf> {
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
    assert!(second.warnings.iter().any(|w| w.contains("another path")));
    link("tools/one", "current");
    assert_eq!(targets(&of(&second.sources)), targets(&first));
}
