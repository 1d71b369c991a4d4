//! The tools of the host and of the caller's PATH.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::languages::WHEELS;
use super::{
    bash, blocked, has_real_root, home, host_has, host_sh, listing, login, outside, plant, python,
    sandbox_of, users,
};
use crate::ModeTest;
use crate::harness::{SYSTEM_PATH, World, copy_program};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "system_tools_are_the_hosts_also_in_login_shells",
        system_tools,
    ),
    (
        "login_shells_with_a_fresh_environment_find_the_callers_tools",
        fresh_logins,
    ),
    ("git_commits_with_the_callers_identity", git),
    (
        "cargo_of_the_caller_builds_and_changes_nothing_outside",
        cargo,
    ),
    ("wrappers_of_version_managers_are_written_again", wrappers),
    ("pip_of_the_callers_pyenv_installs", pyenv),
    (
        "programs_installed_by_the_agent_are_found",
        installed_programs,
    ),
    ("credentials_beside_tool_chains_stay_outside", credentials),
    ("locale_and_time_zone_are_the_callers", locale),
];

fn system_tools(world: &'static World) {
    let sandbox = world.sandbox("tools");
    for (program, argument) in [
        ("python3", "--version"),
        ("node", "--version"),
        ("git", "--version"),
        ("perl", "--version"),
        ("gcc", "--version"),
        ("openssl", "version"),
        ("bash", "--version"),
    ] {
        if !host_has(program) {
            continue;
        }
        let version = outside(world.command(program).arg(argument));
        assert_eq!(sandbox.exec([program, argument]).ok(), version);
        for user in ["agent", "root"] {
            assert_eq!(
                login(&sandbox, user, &format!("{program} {argument}")).ok(),
                version,
                "{user}"
            );
        }
    }
}

/// Nothing of the command's environment is left for them.
fn fresh_logins(world: &'static World) {
    let home = home(world);
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let git = "[user]\n\tname = Ann O'Ther $(false)\n\temail = ann@example.org\n";
    plant(world, home.path(), ".gitconfig", git, 0o600);
    let script = "#!/bin/sh\necho hello\n";
    let tool = plant(world, home.path(), "my tools/bin/greet", script, 0o755);
    let path = format!("{}:{SYSTEM_PATH}", tool.parent().unwrap().display());
    let home = home.path().to_str().unwrap();
    let sandbox = sandbox_of(world, "fresh", &[("HOME", home), ("PATH", &path)]);
    let script = "greet; git config user.name";
    let said = "hello\nAnn O'Ther $(false)";
    let login = ["env", "-i", "HOME=/home/agent", "bash", "-lc", script];
    assert_eq!(sandbox.exec(login).ok(), said);
    assert_eq!(sandbox.exec(["env", "-i", "sh", "-lc", script]).ok(), said);
    if has_real_root(world) && host_has("su") {
        let su = sandbox.exec_with(&["-u", "root"], ["su", "-", "agent", "-c", script]);
        assert_eq!(su.ok(), said);
    }
}

fn git(world: &'static World) {
    if !host_has("git") {
        return;
    }
    let home = home(world);
    plant(
        world,
        home.path(),
        ".gitconfig",
        "[user]\n\tname = Ann Öther\n\temail = ann@example.org\n",
        0o600,
    );
    let sandbox = sandbox_of(world, "git", &[("HOME", home.path().to_str().unwrap())]);
    host_sh(
        world,
        &sandbox.workspace,
        "git init -q -b main .; git -c user.name=x -c user.email=x@x commit -q --allow-empty -m outside",
    );
    bash(
        &sandbox,
        "agent",
        "echo a >a; git add a; git commit -q -m agent",
    )
    .ok();
    // A repository's own identity, and that of the user inside, are closer.
    let closer = "cd /tmp; git init -q own; cd own; git config user.name Own; git commit -q --allow-empty -m x; \
                  git log -1 --format='%an %ae'; git config --global user.email in@side; git config user.email; git config --global --unset user.email";
    assert_eq!(
        bash(&sandbox, "agent", closer).ok(),
        "Own ann@example.org\nin@side"
    );
    login(&sandbox, "agent", "git commit -q --allow-empty -m login").ok();
    bash(
        &sandbox,
        "root",
        "echo b >b; git add b; git commit -q -m root; git status --short",
    )
    .ok();
    assert_eq!(
        bash(
            &sandbox,
            "agent",
            "git config user.name; git config user.email"
        )
        .ok(),
        "Ann Öther\nann@example.org"
    );
    // Outside the history is whole, and the caller can go on with it.
    let log = host_sh(
        world,
        &sandbox.workspace,
        "git fsck --strict 2>&1 | grep -v ^notice || true; git log --format='%s %an %ae'",
    );
    let line = |subject: &str| format!("{subject} Ann Öther ann@example.org\n");
    assert_eq!(
        log,
        [
            line("root"),
            line("login"),
            line("agent"),
            "outside x x@x".into()
        ]
        .concat()
    );
    host_sh(
        world,
        &sandbox.workspace,
        "git -c user.name=x -c user.email=x@x commit -q --allow-empty -m again; git gc -q; rm -r .git",
    );
}

/// Where the tester's own cargo is, if it is rustup's.
#[expect(
    clippy::disallowed_methods,
    reason = "the tool chains of the user who runs the tests"
)]
pub(super) fn rustup() -> Option<(PathBuf, PathBuf)> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let place = |variable: &str, usual: &str| {
        std::env::var_os(variable).map_or_else(|| home.join(usual), PathBuf::from)
    };
    let (cargo, rustup) = (
        place("CARGO_HOME", ".cargo").join("bin"),
        place("RUSTUP_HOME", ".rustup"),
    );
    (cargo.join("cargo").exists() && rustup.join("toolchains").is_dir()).then_some((cargo, rustup))
}

const CRATE: &str = r#"
mkdir -p crate/src
printf '[package]\nname = "sbxcrate"\nversion = "0.1.0"\nedition = "2021"\n' >crate/Cargo.toml
echo 'fn main() { println!("cargo works"); }' >crate/src/main.rs
"#;

fn cargo(world: &'static World) {
    if world.uid != rustix::process::geteuid().as_raw() {
        return blocked("the tester's tool chains are not for this user");
    }
    let Some((programs, rustup)) = rustup() else {
        return blocked("the tester has no rustup");
    };
    // A home of the test's own: the tester's may change meanwhile.
    let home = home(world);
    let marker = plant(
        world,
        home.path(),
        ".cargo/registry/marker",
        "cached\n",
        0o644,
    );
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
    let before = (listing(home.path()), listing(&rustup.join("toolchains")));
    let sandbox = sandbox_of(world, "cargo", &caller);
    host_sh(world, &sandbox.workspace, CRATE);
    let build = "cd crate; rm -rf target; cargo build -q --offline; target/debug/sbxcrate";
    assert_eq!(bash(&sandbox, "agent", build).ok(), "cargo works");
    assert_eq!(login(&sandbox, "agent", build).ok(), "cargo works");
    // What cargo keeps lies above the caller's cache, in the sandbox's own layer.
    let script = "cat $CARGO_HOME/registry/marker; echo changed >$CARGO_HOME/registry/marker; cargo install -q --offline --path crate; sbxcrate";
    assert_eq!(bash(&sandbox, "agent", script).ok(), "cached\ncargo works");
    assert_eq!(
        bash(&sandbox, "agent", "type -P sbxcrate").ok(),
        "/home/agent/.cargo/bin/sbxcrate"
    );
    bash(
        &sandbox,
        "root",
        "cd /tmp; cargo new -q r; cd r; cargo run -q --offline",
    )
    .ok();
    for refused in [
        "touch $RUSTUP_HOME/x",
        &format!("touch {}/x", home.path().join(".cargo/bin").display()),
    ] {
        for user in ["agent", "root"] {
            bash(&sandbox, user, refused).refused();
        }
    }
    assert_eq!(std::fs::read_to_string(marker).unwrap(), "cached\n");
    assert_eq!(
        (listing(home.path()), listing(&rustup.join("toolchains"))),
        before
    );
}

/// Version managers write a wrapper per program after every installation, and fail where they cannot.
fn wrappers(world: &'static World) {
    let home = home(world);
    let tool = plant(
        world,
        home.path(),
        ".pyenv/shims/tool",
        "#!/bin/sh\necho host\n",
        0o755,
    );
    plant(world, home.path(), ".pyenv/libexec/x", "host\n", 0o644);
    let shims = tool.parent().unwrap();
    let path = format!("{}:{SYSTEM_PATH}", shims.display());
    let caller = [("HOME", home.path().to_str().unwrap()), ("PATH", &path)];
    let before = listing(home.path());
    let sandbox = sandbox_of(world, "shims", &caller);
    assert_eq!(sandbox.exec(["tool"]).ok(), "host");
    let script = format!(
        "cd {}; printf '#!/bin/sh\\necho own\\n' >new; chmod 755 new; rm tool; ln new tool; tool",
        shims.display()
    );
    assert_eq!(bash(&sandbox, "agent", &script).ok(), "own");
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(login(&sandbox, "agent", "tool").ok(), "own");
    // Beside them everything is as it was.
    for name in ["new", "libexec/x", "libexec/new"] {
        let script = format!("echo own >{}/../{name}", shims.display());
        bash(&sandbox, "root", &script).refused();
    }
    assert_eq!(listing(home.path()), before);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the tool chains of the user who runs the tests"
)]
fn pyenv(world: &'static World) {
    if world.uid != rustix::process::geteuid().as_raw() {
        return blocked("the tester's tool chains are not for this user");
    }
    let root = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")))
        .filter(|root| root.join("shims/pip").exists());
    let Some(root) = root else {
        return blocked("the tester has no pyenv with pip");
    };
    let home = home(world);
    let path = format!("{}/shims:{SYSTEM_PATH}", root.display());
    let caller = [
        ("HOME", home.path().to_str().unwrap()),
        ("PATH", &path),
        ("PYENV_ROOT", root.to_str().unwrap()),
    ];
    let sandbox = sandbox_of(world, "pyenv", &caller);
    let before = listing(&root.join("shims"));
    python(&sandbox, "agent", WHEELS).ok();
    for user in users(world) {
        for install in ["pip install", "python3 -m pip install"] {
            let script = format!("{install} --no-index ./sbxpip-1-py3-none-any.whl >&2; sbxpip");
            assert_eq!(bash(&sandbox, user, &script).ok(), "pip 1");
        }
        assert_eq!(login(&sandbox, user, "sbxpip").ok(), "pip 1");
    }
    assert_eq!(listing(&root.join("shims")), before);
}

fn installed_programs(world: &'static World) {
    let sandbox = world.sandbox("bins");
    for dir in [".local/bin", ".cargo/bin", "go/bin"] {
        let script = format!(
            "mkdir -p ~/{dir}; printf '#!/bin/sh\\necho {dir}\\n' >~/{dir}/own; chmod 755 ~/{dir}/own"
        );
        bash(&sandbox, "agent", &script).ok();
        assert_eq!(sandbox.exec(["own"]).ok(), dir);
        assert_eq!(login(&sandbox, "agent", "own").ok(), dir);
        bash(&sandbox, "agent", &format!("rm ~/{dir}/own")).ok();
    }
    // Every place is on PATH once, and root's own one is on root's.
    for user in ["agent", "root"] {
        for path in [
            bash(&sandbox, user, "echo $PATH").ok(),
            login(&sandbox, user, "echo $PATH").ok(),
        ] {
            let mut places: Vec<_> = path.split(':').collect();
            if user == "agent" {
                assert!(!places.contains(&"/root/.local/bin"), "{path}");
            }
            let count = places.len();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), count, "{user}: {path}");
        }
    }
}

const CANARY: &str = "sbx-canary-7f3a";

/// What a home holds beside tool chains.
const SECRETS: &[&str] = &[
    ".aws/credentials",
    ".cargo/credentials.toml",
    ".cargo/config.toml",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".nvm/versions/node/v1/etc/npmrc",
    ".pyenv/.git/config",
    ".pyenv/.netrc",
    ".pyenv/credentials.json",
    ".pyenv/versions/3/.pypirc",
    ".pyenv/versions/3/etc/.netrc",
    ".rustup/.env",
    ".ssh/id_ed25519",
    "mytools/.env",
    "mytools/id_rsa",
    "mytools/server.key",
    "notes.txt",
];

fn credentials(world: &'static World) {
    let home = home(world);
    for file in SECRETS {
        // Readable for all: it is not the mode that hides them.
        plant(world, home.path(), file, CANARY, 0o644);
    }
    let dirs = [
        ".cargo/bin",
        ".pyenv/shims",
        ".nvm/versions/node/v1/bin",
        "mytools",
    ];
    let mut path = String::new();
    for (index, dir) in dirs.iter().enumerate() {
        let program = format!("#!/bin/sh\necho tool {index}\n");
        plant(
            world,
            home.path(),
            &format!("{dir}/tool{index}"),
            &program,
            0o755,
        );
        path.push_str(&format!("{}/{dir}:", home.path().display()));
    }
    path.push_str(SYSTEM_PATH);
    let caller = [
        ("HOME", home.path().to_str().unwrap()),
        ("PATH", &path),
        ("AWS_SECRET_ACCESS_KEY", CANARY),
        ("GITHUB_TOKEN", CANARY),
    ];
    let sandbox = sandbox_of(world, "creds", &caller);
    for user in ["agent", "root"] {
        for index in 0..dirs.len() {
            let tool = format!("tool{index}");
            assert_eq!(bash(&sandbox, user, &tool).ok(), format!("tool {index}"));
            assert_eq!(login(&sandbox, user, &tool).ok(), format!("tool {index}"));
        }
        let search = format!(
            "c={}; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c \"$c-7f3a\" || true; \
             find {} /home /root /etc /opt /run /tmp /var /srv /mnt /media -path /run/.visible -prune \
               -o -type f -exec grep -sl \"$c-7f3a\" {{}} + || true",
            CANARY.trim_end_matches("-7f3a"),
            home.path().display(),
        );
        assert_eq!(bash(&sandbox, user, &search).ok(), "0", "{user}");
    }
    // Neither through a path that exists outside.
    for file in SECRETS {
        let path = home.path().join(file);
        let ran = sandbox.exec_with(&["-u", "root"], [Path::new("cat"), &path]);
        assert!(!ran.out.contains(CANARY), "{file}");
    }
}

fn locale(world: &'static World) {
    let caller = [
        ("TZ", "Pacific/Kiritimati"),
        ("LC_ALL", "C.UTF-8"),
        ("LANGUAGE", "de"),
    ];
    let sandbox = sandbox_of(world, "locale", &caller);
    for user in users(world) {
        let shown = login(
            &sandbox,
            user,
            "date +%z; echo $LC_ALL $LANG $LANGUAGE; printf ä | wc -m",
        )
        .ok();
        assert_eq!(shown, "+1400\nC.UTF-8 C.UTF-8 de\n1");
    }
    // Without a variable it is the machine's.
    let sandbox = world.sandbox("zone");
    let zone = outside(Command::new("date").arg("+%Z").env_remove("TZ"));
    assert_eq!(sandbox.exec(["date", "+%Z"]).ok(), zone);
}
