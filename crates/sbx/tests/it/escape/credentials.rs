//! What lies in and beside the caller's tool chains and caches: programs show, credentials do not, neither those that
//! are there at the start nor those that come while a sandbox runs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{run, sbx};
use crate::ModeTest;
use crate::harness::World;

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "credentials_in_tool_chains_stay_hidden_when_they_are_replaced",
        replaced,
    ),
    ("clones_in_package_caches_stay_outside", clones),
    (
        "tool_chains_that_are_too_much_to_look_through_are_not_shown",
        too_much,
    ),
];

const SYSTEM: &str = "/usr/bin:/bin";
const CANARY: &str = "canary of the host";

const PATH: &[&str] = &[
    ".asdf/shims",
    ".cargo/bin",
    ".dotnet",
    ".local/share/mise/shims",
    ".nvm/versions/node/v22/bin",
    ".pyenv/shims",
    ".sdkman/candidates/maven/current/bin",
    ".volta/bin",
    "tools",
];
/// One in each directory of the PATH; the others are run by their own paths.
const PROGRAMS: &[&str] = &[
    ".asdf/installs/nodejs/20/bin/program",
    ".asdf/shims/program",
    ".cargo/bin/program",
    ".dotnet/dotnet",
    ".local/share/mise/installs/node/20/bin/program",
    ".local/share/mise/shims/program",
    ".nvm/versions/node/v22/bin/program",
    ".pyenv/shims/program",
    ".pyenv/versions/3/bin/program",
    ".rustup/toolchains/stable/bin/program",
    ".sdkman/candidates/maven/3/bin/program",
    ".volta/bin/program",
    ".volta/tools/image/node/20/bin/program",
    "tools/sub/program",
];
const CREDENTIALS: &[&str] = &[
    ".asdf/.npmrc",
    ".asdf/installs/nodejs/20/etc/npmrc",
    ".asdf/plugins/nodejs/.git/config",
    ".cargo/credentials.toml",
    ".dotnet/NuGet.Config",
    ".dotnet/corefx/cryptography/x509stores/my/1.pfx",
    ".local/share/mise/installs/node/20/etc/npmrc",
    ".nvm/versions/node/v22/etc/npmrc",
    ".pyenv/.netrc",
    ".pyenv/versions/3/etc/server.key",
    ".pyenv/versions/3/pip.conf",
    ".rustup/.env",
    ".sdkman/candidates/maven/3/conf/settings.xml",
    ".volta/tools/image/node/20/etc/npmrc",
    "tools/.env",
    "tools/.github-token",
    "tools/client.pfx",
    "tools/client_secret.json",
    "tools/sub/gradle.properties",
];
/// Names that do not exist at the start.
const LATER: &[&str] = &[
    ".asdf/anything",
    ".asdf/installs/nodejs/20/.npmrc",
    ".asdf/installs/nodejs/21/etc/npmrc",
    ".pyenv/versions/3/.pypirc",
    ".pyenv/versions/4/pip.conf",
    ".sdkman/candidates/maven/3/gradle.properties",
    "tools/.netrc",
    "tools/credentials",
];

struct Home<'a> {
    world: &'a World,
    dir: PathBuf,
}

impl<'a> Home<'a> {
    fn new(world: &'a World) -> Self {
        let dir = world.home().join(world.name("credentials"));
        world.make_dir(&dir);
        Self { world, dir }
    }

    /// A file that everybody may read and run, with the directories above it.
    fn put(&self, file: &str, text: &str) {
        let path = self.dir.join(file);
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.retain(|dir| !dir.exists());
        for dir in above.into_iter().rev() {
            self.world.make_dir(dir);
        }
        // As programs replace files that others read.
        let new = path.with_extension("new");
        self.world.write(&new, text);
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn create(&self, name: &str, path: &[&str]) -> String {
        let mut entries: Vec<_> = path.iter().map(|entry| self.at(entry)).collect();
        entries.push(SYSTEM.to_owned());
        let mut command = self.world.sbx(["create", "--name", name, "shell"]);
        command
            .arg(self.world.workspace())
            .env("HOME", &self.dir)
            .env("PATH", entries.join(":"));
        let made = run(&mut command, b"");
        let said = made.err.clone();
        made.ok();
        said
    }

    fn at(&self, file: &str) -> String {
        self.dir.join(file).to_str().unwrap().to_owned()
    }

    /// Where inside the canary is found, by everybody there.
    fn hunt(&self, name: &str) -> String {
        // In two halves: the command's own arguments do not count.
        let (first, rest) = CANARY.split_at(6);
        let script = format!(
            "cd /; c='{first}'; grep -rsl \"$c\"'{rest}' '{}' /home /root /tmp /opt /srv /mnt; :",
            self.dir.display()
        );
        let users = ["root", "agent"].map(|user| {
            let ran = sbx(self.world, &["exec", "-u", user, name, "sh", "-c", &script]);
            assert_eq!(ran.code, 0, "{ran:?}");
            ran.out
        });
        users.concat()
    }
}

fn replaced(world: &'static World) {
    let home = Home::new(world);
    for program in PROGRAMS {
        home.put(program, "#!/bin/sh\necho it runs\n");
    }
    for file in CREDENTIALS {
        home.put(file, CANARY);
    }
    let current = home.dir.join(".sdkman/candidates/maven/current");
    std::os::unix::fs::symlink("3", current).unwrap();
    let name = world.name("replaced");
    home.create(&name, PATH);
    for program in PROGRAMS {
        let ran = sbx(world, &["exec", &name, &home.at(program)]);
        assert_eq!(ran.ok(), "it runs", "{program}");
    }
    let script = "echo \"$PATH\"; dotnet; program";
    let said = sbx(world, &["exec", &name, "sh", "-c", script]).ok();
    for entry in PATH {
        assert!(said.contains(&home.at(entry)), "{entry}: {said}");
    }
    assert!(said.ends_with("it runs\nit runs"), "{said}");
    assert_eq!(home.hunt(&name), "");
    for file in CREDENTIALS.iter().chain(LATER) {
        home.put(file, CANARY);
    }
    assert_eq!(home.hunt(&name), "", "while it runs");
    for file in CREDENTIALS.iter().chain(LATER) {
        let ran = sbx(world, &["exec", "-u", "root", &name, "cat", &home.at(file)]);
        assert!(ran.code != 0 && !ran.out.contains(CANARY), "{file}");
    }
    // The hunt is real: a file that is not a credential is found.
    home.put("tools/sub/notes", CANARY);
    assert!(home.hunt(&name).contains("tools/sub/notes"));
    fs::remove_file(home.dir.join("tools/sub/notes")).unwrap();
    sbx(world, &["stop", &name]).ok();
    assert_eq!(home.hunt(&name), "", "after another start");
    sbx(world, &["rm", "--force", &name]).ok();
}

fn clones(world: &'static World) {
    let home = Home::new(world);
    for file in [
        ".cargo/git/checkouts/private/src/lib.rs",
        ".cargo/git/db/private/config",
        "go/pkg/mod/cache/vcs/1/config",
        ".cargo/registry/index/private-1/.git/config",
        ".cargo/registry/index/private-1/.cache/x",
        ".cargo/registry/credentials.toml",
        ".cargo/registry/src/crates.io-1/.netrc",
        "go/pkg/mod/.netrc",
        ".cache/pip/pip.conf",
        ".npm/_cacache/.npmrc",
    ] {
        home.put(file, CANARY);
    }
    home.put("go/pkg/mod/cache/download/list", "a module\n");
    home.put(".cargo/registry/index/crates.io-1/config.json", "sparse\n");
    let name = world.name("clones");
    home.create(&name, &[]);
    assert_eq!(home.hunt(&name), "");
    let config = "cat $CARGO_HOME/registry/index/crates.io-1/config.json";
    let shown = sbx(world, &["exec", &name, "sh", "-c", config]);
    assert_eq!(shown.ok(), "sparse");
    // The rest of the cache is there, and the agent's own clones have a place.
    let script = "cd \"$GOMODCACHE\"; cat cache/download/list; mkdir cache/vcs; echo own >cache/vcs/x; \
        echo more >>cache/download/list; touch new; cat cache/vcs/x";
    let exec = |script: &str| sbx(world, &["exec", &name, "sh", "-euc", script]).ok();
    assert_eq!(exec(script), "a module\nown");
    sbx(world, &["stop", &name]).ok();
    let script = "cd \"$GOMODCACHE\"; cat cache/download/list; ls cache/vcs";
    assert_eq!(exec(script), "a module\nmore\nx");
    assert_eq!(home.hunt(&name), "");
    sbx(world, &["rm", "--force", &name]).ok();
}

fn too_much(world: &'static World) {
    let home = Home::new(world);
    home.put("tools/program", "#!/bin/sh\necho it runs\n");
    for number in 0..250 {
        home.put(&format!("tools/many/{number}/kept"), CANARY);
    }
    let name = world.name("many");
    let said = home.create(&name, &["tools"]);
    assert!(said.contains("too much to look through"), "{said}");
    assert_eq!(sbx(world, &["exec", &name, "program"]).ok(), "it runs");
    assert_eq!(home.hunt(&name), "");
    sbx(world, &["rm", "--force", &name]).ok();
}
