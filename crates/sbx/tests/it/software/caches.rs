//! Caches of tools: those of the caller keep their paths, and those of sandboxes last if that is asked for.

pub(crate) mod downloads;

use std::path::Path;

use serde_json::{Value, json};

use super::tools::rustup;
use super::{bash, blocked, has_real_root, home, listing, outside, plant, sandbox_of};
use crate::ModeTest;
use crate::harness::{Ran, SYSTEM_PATH, Sandbox, World, copy_program, eventually};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "cargo_compiles_nothing_twice_between_host_and_sandbox",
        cargo,
    ),
    ("caches_of_the_caller_keep_their_paths", paths),
    (
        "a_build_cache_is_kept_for_the_next_sandbox_of_a_repository",
        kept,
    ),
    ("one_sandbox_at_a_time_has_a_build_cache", one_at_a_time),
    ("build_caches_are_bounded", bounded),
];

/// A package with one dependency, from a registry that is a directory: cargo unpacks it below its home, as any other.
const PROJECT: &str = r#"
mkdir -p sbxdep-0.1.0/src registry/index/sb/xd app/src app/.cargo
printf '[package]\nname = "sbxdep"\nversion = "0.1.0"\nedition = "2021"\n' >sbxdep-0.1.0/Cargo.toml
echo 'pub fn text() -> &'"'static"' str { "from a dependency" }' >sbxdep-0.1.0/src/lib.rs
tar czf registry/sbxdep-0.1.0.crate sbxdep-0.1.0
sum=$(sha256sum registry/sbxdep-0.1.0.crate | cut -d' ' -f1)
printf '{"name":"sbxdep","vers":"0.1.0","deps":[],"cksum":"%s","features":{},"yanked":false}\n' "$sum" >registry/index/sb/xd/sbxdep
printf '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nsbxdep = "0.1"\n' >app/Cargo.toml
echo 'fn main() { println!("{}", sbxdep::text()); }' >app/src/main.rs
printf '[source.crates-io]\nreplace-with = "here"\n[source.here]\nlocal-registry = "%s/registry"\n' "$PWD" >app/.cargo/config.toml
"#;

fn cargo(world: &'static World) {
    if world.uid != rustix::process::geteuid().as_raw() {
        return blocked("the tester's tool chains are not for this user");
    }
    let Some((programs, rustup)) = rustup() else {
        return blocked("the tester has no rustup");
    };
    let home = home(world);
    world.make_dir(&home.path().join(".cargo"));
    world.make_dir(&home.path().join(".cargo/bin"));
    for program in ["cargo", "rustc", "rustup"] {
        let inside = home.path().join(".cargo/bin").join(program);
        copy_program(&programs.join(program), &inside);
    }
    let path = format!("{}/.cargo/bin:{SYSTEM_PATH}", home.path().display());
    let caller = [
        ("HOME", home.path().to_str().unwrap()),
        ("PATH", &path),
        ("RUSTUP_HOME", rustup.to_str().unwrap()),
    ];
    let sandbox = sandbox_of(world, "twice", &caller);
    let build = "cd app; cargo build --offline 2>&1; target/debug/app";
    let host = |script: &str| {
        let mut shell = world.command("sh");
        shell.args(["-euc", script]).envs(caller);
        outside(shell.current_dir(&sandbox.workspace))
    };
    host(PROJECT);
    let compiled = |said: &str| {
        assert!(said.ends_with("from a dependency"), "{said}");
        said.matches("Compiling").count()
    };
    assert_eq!(compiled(&host(build)), 2);
    let inside = || bash(&sandbox, "agent", build).ok();
    assert_eq!(compiled(&inside()), 0);
    assert_eq!(compiled(host(build).trim_end()), 0);
    // Also where the sandbox is first: the registry outside has not changed by it.
    let before = listing(&home.path().join(".cargo"));
    host("rm -rf app/target");
    assert_eq!(compiled(&inside()), 2);
    assert_eq!(compiled(&host(build)), 0);
    assert_eq!(listing(&home.path().join(".cargo")), before);
}

/// Each is seen, can be written, and is the same outside as before.
fn paths(world: &'static World) {
    let home = home(world);
    let text = |file: &str| {
        let path = plant(world, home.path(), file, "outside\n", 0o644);
        path.to_str().unwrap().to_owned()
    };
    let own = [
        ("CARGO_HOME", text(".cargo/registry/marker")),
        ("npm_config_cache", text(".npm/_cacache/marker")),
        ("PIP_CACHE_DIR", text(".cache/pip/marker")),
        ("GOMODCACHE", text("go/pkg/mod/marker")),
        ("GRADLE_USER_HOME", text(".gradle/caches/modules-2/marker")),
    ];
    let maven = text(".m2/repository/marker");
    // What may hold passwords stays outside.
    let secrets = [text(".m2/settings.xml"), text(".gradle/gradle.properties")];
    let before = listing(home.path());
    let sandbox = sandbox_of(world, "paths", &[("HOME", home.path().to_str().unwrap())]);
    for (variable, marker) in &own {
        let value = bash(&sandbox, "agent", &format!("echo ${variable}")).ok();
        assert!(
            !value.is_empty() && marker.starts_with(&value),
            "{variable}"
        );
        let script = format!("cat {marker}; echo x >{marker}; echo x >{value}/new; cat {marker}");
        assert_eq!(bash(&sandbox, "agent", &script).ok(), "outside\nx");
    }
    let script = format!("cat {maven}; echo x >{maven}; echo $MAVEN_OPTS $MAVEN_ARGS");
    let option = format!(
        "-Dmaven.repo.local={}",
        maven.strip_suffix("/marker").unwrap()
    );
    assert_eq!(
        bash(&sandbox, "agent", &script).ok(),
        format!("outside\n{option} {option}")
    );
    for secret in secrets {
        bash(&sandbox, "agent", &format!("! test -e {secret}")).ok();
    }
    assert_eq!(listing(home.path()), before);
    // What the tools themselves say.
    for (program, question, answer) in [
        ("go", "go env GOMODCACHE", "go/pkg/mod"),
        ("npm", "npm config get cache", ".npm"),
        ("pip", "pip cache dir", ".cache/pip"),
    ] {
        let script = format!("command -v {program} >/dev/null || exit 9; {question}");
        let said = bash(&sandbox, "agent", &script);
        if said.code != 9 {
            assert_eq!(Path::new(&said.ok()), home.path().join(answer));
        }
    }
}

fn create(world: &World, name: &str, workspace: &Path, flags: &[&str]) -> Ran {
    let mut create = world.sbx(["create", "--name", name]);
    create.args(flags).arg("shell").arg(workspace);
    Ran::from(create.output().unwrap())
}

fn caches(world: &World) -> Vec<Value> {
    let shown = world.run(["cache", "ls", "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown["caches"].as_array().unwrap().clone()
}

fn with_cache<'a>(world: &'a World, hint: &str, workspace: &Path) -> Sandbox<'a> {
    let name = world.name(hint);
    create(world, &name, workspace, &["--cache"]).ok();
    world.adopt(&name, workspace)
}

const WRITE: &str = "mkdir -p ~/.cache/go-build ~/.m2/repository/a
    for dir in ~/.cache/go-build ~/.m2/repository/a; do echo kept >$dir/file; chmod 700 $dir; done
    echo kept >~/elsewhere";
const READ: &str = "cat ~/.cache/go-build/file ~/.m2/repository/a/file; ! test -e ~/elsewhere";

fn kept(world: &'static World) {
    let world = World::fresh(world.mode);
    let (workspace, other) = (world.workspace(), world.workspace());
    assert!(caches(&world).is_empty());
    let first = with_cache(&world, "first", &workspace);
    bash(&first, "agent", WRITE).ok();
    if has_real_root(&world) {
        bash(&first, "root", "echo root >~agent/.cache/roots").ok();
    }
    assert_eq!(world.inspect(&first.name)["cache"], "kept");
    let shown = caches(&world);
    assert_eq!(shown.len(), 1);
    let real = workspace.canonicalize().unwrap();
    assert_eq!(shown[0]["workspace"], real.to_str().unwrap());
    assert_eq!(shown[0]["sandbox"], first.name.as_str());
    drop(first);
    // The next one has it, with the ids of its own, and can change it.
    let second = with_cache(&world, "second", &workspace);
    assert_eq!(bash(&second, "agent", READ).ok(), "kept\nkept");
    let change = "echo changed >~/.cache/go-build/file; rm -r ~/.m2/repository/a; mkdir ~/.cache/go-build/sub";
    bash(&second, "agent", change).ok();
    // Also after a stop of its own.
    world.run(["stop", &second.name]).ok();
    let read = "cat ~/.cache/go-build/file; test -d ~/.cache/go-build/sub; ls ~/.m2/repository";
    assert_eq!(bash(&second, "agent", read).ok(), "changed");
    drop(second);
    // None without asking, and none of another repository.
    let name = world.name("without");
    create(&world, &name, &workspace, &[]).ok();
    let without = world.adopt(&name, &workspace);
    bash(&without, "agent", "! test -e ~/.cache/go-build").ok();
    assert_eq!(world.inspect(&without.name)["cache"], Value::Null);
    let elsewhere = with_cache(&world, "elsewhere", &other);
    bash(&elsewhere, "agent", "! test -e ~/.cache/go-build").ok();
    assert_eq!(caches(&world).len(), 2);
}

fn one_at_a_time(world: &'static World) {
    let world = World::fresh(world.mode);
    let workspace = world.workspace();
    let first = with_cache(&world, "first", &workspace);
    bash(&first, "agent", WRITE).ok();
    let name = world.name("second");
    let made = create(&world, &name, &workspace, &["--cache"]);
    assert!(made.err.contains(&first.name), "{}", made.err);
    assert!(made.err.contains("is not kept"), "{}", made.err);
    let second = world.adopt(&name, &workspace);
    assert_eq!(world.inspect(&second.name)["cache"], "busy");
    bash(
        &second,
        "agent",
        "! test -e ~/.cache/go-build; echo x >~/.cache/x",
    )
    .ok();
    // The daemon may be another by then.
    world.run(["daemon", "restart"]).ok();
    let busy = world.run(["cache", "clear", "--json"]).fails(1);
    let busy: Value = serde_json::from_str(busy.out.lines().next().unwrap_or_default())
        .unwrap_or_else(|_| serde_json::from_str(&busy.out).unwrap());
    assert_eq!(busy["busy"][0]["sandbox"], first.name.as_str());
    assert_eq!(busy["cleared"], json!([]));
    assert_eq!(
        bash(&first, "agent", READ.split("; !").next().unwrap()).ok(),
        "kept\nkept"
    );
    world.run(["stop", &first.name]).ok();
    // The one that was without gets it at its next start.
    world.run(["stop", &second.name]).ok();
    assert_eq!(bash(&second, "agent", READ).ok(), "kept\nkept");
    drop((first, second));
    let path = workspace.to_str().unwrap();
    let cleared = world.run(["cache", "clear", path]).ok();
    let real = workspace.canonicalize().unwrap();
    assert_eq!(cleared, real.to_str().unwrap());
    assert!(caches(&world).is_empty());
    let left = std::fs::read_dir(world.state().join("cache")).unwrap();
    assert_eq!(left.count(), 0);
    let third = with_cache(&world, "third", &workspace);
    bash(&third, "agent", "! test -e ~/.cache/go-build").ok();
}

fn bounded(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"cache_max_mib": 4}));
    let workspaces = [world.workspace(), world.workspace()];
    for (workspace, mib) in workspaces.iter().zip([2, 3]) {
        let sandbox = with_cache(&world, "fills", workspace);
        let write = format!("head -c {mib}M /dev/zero | tr '\\0' x >~/.cache/file");
        bash(&sandbox, "agent", &write).ok();
        world.run(["stop", &sandbox.name]).ok();
        eventually("its size is known", || {
            let shown = caches(&world);
            let real = workspace.canonicalize().unwrap();
            let known = |cache: &&Value| {
                cache["workspace"] == real.to_str().unwrap() && cache["bytes"].is_u64()
            };
            shown.iter().find(known).map(drop)
        });
    }
    eventually("the older one is removed", || {
        let shown = caches(&world);
        let newer = workspaces[1].canonicalize().unwrap();
        (shown.len() == 1 && shown[0]["workspace"] == newer.to_str().unwrap()).then_some(())
    });
    // One that is too large alone goes as well, and the next sandbox says so, once.
    let large = with_cache(&world, "large", &workspaces[1]);
    let write = "head -c 6M /dev/zero | tr '\\0' x >~/.cache/file";
    bash(&large, "agent", write).ok();
    world.run(["stop", &large.name]).ok();
    eventually("it is removed", || caches(&world).is_empty().then_some(()));
    let warning = "the build cache of this repository was removed: it had ";
    for warned in [true, false] {
        let name = world.name("next");
        let made = create(&world, &name, &workspaces[1], &["--cache"]);
        let next = world.adopt(&name, &workspaces[1]);
        bash(&next, "agent", "! test -e ~/.cache/file").ok();
        assert_eq!(made.err.contains(warning), warned, "{}", made.err);
    }
}
