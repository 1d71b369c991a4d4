//! Tools outside, inside and outside again: nothing that one of them has in its cache is downloaded or unpacked twice.
//! The packages come from directories, as from a registry.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::ModeTest;
use crate::harness::{Sandbox, World, host_has, python_has};
use crate::software::{bash, blocked, home, listing, outside};

pub(crate) const TESTS: &[ModeTest] = &[
    ("go_downloads_no_module_again_inside", go),
    ("go_compiles_nothing_again_inside_if_asked", go_compiles),
    ("a_build_cache_keeps_what_go_compiled", go_build_cache),
    ("npm_installs_from_the_callers_cache_inside", npm),
    ("pip_builds_no_wheel_again_inside", pip),
    ("maven_downloads_nothing_again_inside", maven),
    ("gradle_downloads_nothing_again_inside", gradle),
];

/// A caller with a home and a workspace of its own, and scripts that run as that caller.
struct Caller<'a> {
    world: &'a World,
    home: TempDir,
    workspace: PathBuf,
    env: Vec<(&'static str, String)>,
}

impl<'a> Caller<'a> {
    fn new(world: &'a World, env: &[(&'static str, &str)]) -> Self {
        let home = home(world);
        let path = home.path().to_str().unwrap();
        let env = env
            .iter()
            .map(|(name, value)| (*name, value.replace("$HOME", path)));
        let env = [("HOME", path.to_owned())].into_iter().chain(env).collect();
        Self {
            world,
            home,
            workspace: world.workspace(),
            env,
        }
    }

    fn sandbox(&self, hint: &str, flags: &[&str]) -> Sandbox<'a> {
        let name = self.world.name(hint);
        let mut create = self.world.sbx(["create", "--name", &name]);
        create.args(flags).arg("shell").arg(&self.workspace);
        outside(create.envs(self.env.iter().cloned()));
        self.world.adopt(&name, &self.workspace)
    }

    #[track_caller]
    fn host(&self, script: &str) -> String {
        let mut shell = self.world.command("sh");
        shell.args(["-euc", script]).envs(self.env.iter().cloned());
        outside(shell.current_dir(&self.workspace))
    }

    /// `script` works outside, then inside without writing to `cache` of the caller's, then outside again. The sandbox,
    /// and what was printed each time.
    #[track_caller]
    fn outside_inside_outside(&self, script: &str, cache: &str) -> (Sandbox<'a>, [String; 3]) {
        let first = self.host(script);
        let before = listing(&self.home.path().join(cache));
        assert!(before.lines().count() > 1, "nothing is cached: {before}");
        let sandbox = self.sandbox("between", &[]);
        let inside = bash(&sandbox, "agent", script).ok();
        assert_eq!(listing(&self.home.path().join(cache)), before);
        let last = self.host(script);
        let said = [first, inside, last].map(|said| said.trim_end().to_owned());
        (sandbox, said)
    }
}

const GO: &[(&str, &str)] = &[
    ("PATH", "/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin"),
    ("GOTOOLCHAIN", "local"),
    ("GOSUMDB", "off"),
    // The directory can be removed afterwards.
    ("GOFLAGS", "-modcacherw"),
];

/// A program with one dependency, and a proxy that is a directory.
const GO_PROJECT: &str = r#"
mkdir -p proxy/sbx.test/dep/@v app
python3 - <<'END'
import zipfile
with zipfile.ZipFile("proxy/sbx.test/dep/@v/v1.0.0.zip", "w") as module:
    module.writestr("sbx.test/dep@v1.0.0/go.mod", "module sbx.test/dep\n")
    module.writestr("sbx.test/dep@v1.0.0/dep.go", 'package dep\n\nfunc Text() string { return "from a dependency" }\n')
END
echo v1.0.0 >proxy/sbx.test/dep/@v/list
echo '{"Version":"v1.0.0"}' >proxy/sbx.test/dep/@v/v1.0.0.info
echo 'module sbx.test/dep' >proxy/sbx.test/dep/@v/v1.0.0.mod
printf 'module sbx.test/app\n\nrequire sbx.test/dep v1.0.0\n' >app/go.mod
printf 'package main\n\nimport "sbx.test/dep"\n\nfunc main() { println(dep.Text()) }\n' >app/main.go
cd app
GOPROXY="file://$PWD/../proxy" go mod tidy 2>&1
"#;
/// What is downloaded, then what is compiled, then what the program says.
const GO_BUILD: &str = "cd app; GOPROXY=off go build -v -o app . 2>&1; ./app 2>&1";

fn has_go() -> bool {
    let there = ["/usr/local/go/bin/go", "/usr/bin/go"].map(|go| Path::new(go).exists());
    if there == [false; 2] {
        blocked("go is not installed for all users");
    }
    there != [false; 2] && host_has("python3")
}

/// The module cache is the caller's. What Go compiled is not shown inside: see `docs/decisions`.
fn go(world: &'static World) {
    if !has_go() {
        return;
    }
    let caller = Caller::new(world, GO);
    let downloaded = caller.host(GO_PROJECT);
    assert!(
        downloaded.contains("go: downloading sbx.test/dep v1.0.0"),
        "{downloaded}"
    );
    let (sandbox, said) = caller.outside_inside_outside(GO_BUILD, "go/pkg/mod");
    for said in &said {
        assert!(!said.contains("downloading"), "{said}");
        assert!(said.ends_with("from a dependency"), "{said}");
    }
    // Compiled once on each side: the host has no more to do after the sandbox, and the sandbox none a second time.
    assert!(said[1].contains("sbx.test/dep\n"), "{}", said[1]);
    assert_eq!(said[2], "from a dependency");
    assert_eq!(bash(&sandbox, "agent", GO_BUILD).ok(), "from a dependency");
    // Nothing was unpacked again, and what the host compiled is not there.
    let home = caller.home.path().display();
    let again = format!(
        "touch before; {GO_BUILD}; find $(go env GOMODCACHE)/sbx.test -newer ../before; ! test -e {home}/.cache/go-build"
    );
    assert_eq!(bash(&sandbox, "agent", &again).ok(), "from a dependency");
}

/// With the setting, what Go compiled outside is there inside, and the caller's cache stays as it is.
fn go_compiles(world: &'static World) {
    if !has_go() {
        return;
    }
    let world = World::fresh(world.mode);
    world
        .run(["settings", "set", "go_build_cache", "true"])
        .ok();
    let caller = Caller::new(&world, GO);
    caller.host(GO_PROJECT);
    let (sandbox, said) = caller.outside_inside_outside(GO_BUILD, ".cache/go-build");
    assert!(said[0].contains("sbx.test/dep\n"), "{}", said[0]);
    assert_eq!(said[1..], ["from a dependency"; 2]);
    let change = "echo '// changed' >>app/main.go; ";
    let said = bash(&sandbox, "agent", &format!("{change}{GO_BUILD}")).ok();
    assert!(said.contains("sbx.test/app\n"), "{said}");
    // A running sandbox keeps what it was started with.
    world
        .run(["settings", "set", "go_build_cache", "false"])
        .ok();
    world.run(["stop", &sandbox.name]).ok();
    let home = caller.home.path().display();
    let script = format!("! test -e {home}/.cache/go-build/README");
    bash(&sandbox, "agent", &script).ok();
}

/// The remedy that the documentation names.
fn go_build_cache(world: &'static World) {
    if !has_go() {
        return;
    }
    let world = World::fresh(world.mode);
    let caller = Caller::new(&world, GO);
    caller.host(GO_PROJECT);
    let first = caller.sandbox("first", &["--cache"]);
    let said = bash(&first, "agent", GO_BUILD).ok();
    assert!(said.contains("sbx.test/dep\n"), "{said}");
    drop(first);
    let second = caller.sandbox("second", &["--cache"]);
    assert_eq!(bash(&second, "agent", GO_BUILD).ok(), "from a dependency");
}

/// The lock file names a registry that does not exist.
const NPM_PROJECT: &str = r#"
mkdir -p package app
printf '{"name":"sbxdep","version":"1.0.0","main":"index.js"}' >package/package.json
echo 'module.exports = "from a dependency"' >package/index.js
tar czf sbxdep-1.0.0.tgz package
sum=$(python3 -c 'import base64, hashlib; print(base64.b64encode(hashlib.sha512(open("sbxdep-1.0.0.tgz", "rb").read()).digest()).decode())')
printf '{"name":"app","version":"1.0.0","dependencies":{"sbxdep":"1.0.0"}}' >app/package.json
printf '{"name":"app","version":"1.0.0","lockfileVersion":3,"packages":{"":{"name":"app","version":"1.0.0","dependencies":{"sbxdep":"1.0.0"}},"node_modules/sbxdep":{"version":"1.0.0","resolved":"http://registry.invalid/sbxdep-1.0.0.tgz","integrity":"sha512-%s"}}}' "$sum" >app/package-lock.json
cd app
! npm ci --offline >&2
npm cache add ../sbxdep-1.0.0.tgz >&2
"#;

fn npm(world: &'static World) {
    if !host_has("python3") || !host_has("npm") {
        return;
    }
    let caller = Caller::new(world, &[("npm_config_update_notifier", "false")]);
    caller.host(NPM_PROJECT);
    let install = "cd app; rm -rf node_modules; npm ci --offline --no-audit --no-fund >&2; node -p 'require(\"sbxdep\")'";
    let (_sandbox, said) = caller.outside_inside_outside(install, ".npm/_cacache");
    assert_eq!(said, ["from a dependency"; 3]);
}

/// A package that builds its wheel itself, and counts how often it does.
const PIP_PROJECT: &str = r#"
import io, os, tarfile
backend = '''
import os, zipfile
def build_wheel(directory, config=None, metadata=None):
    print("x", file=open(os.environ["BUILDS"], "a"))
    name, info = "sbxdep-1.0-py3-none-any.whl", "sbxdep-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("sbxdep.py", "text = 'from a dependency'\\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: sbxdep\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''
project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "sbxdep"\nversion = "1.0"\n'
os.mkdir("index")
with tarfile.open("index/sbxdep-1.0.tar.gz", "w:gz") as archive:
    for name, text in ("pyproject.toml", project), ("backend.py", backend), ("PKG-INFO", "Metadata-Version: 2.1\nName: sbxdep\nVersion: 1.0\n"):
        member = tarfile.TarInfo("sbxdep-1.0/" + name)
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
"#;

fn pip(world: &'static World) {
    if !host_has("python3") || !python_has("pip") {
        return;
    }
    let caller = Caller::new(world, &[]);
    world.write(&caller.workspace.join("project.py"), PIP_PROJECT);
    caller.host("python3 project.py");
    let install = "rm -rf target; export BUILDS=$PWD/builds
        /usr/bin/python3 -m pip install -q --no-index --find-links index --target target sbxdep >&2
        PYTHONPATH=target /usr/bin/python3 -c 'import sbxdep; print(sbxdep.text)'; cat builds";
    let (_sandbox, said) = caller.outside_inside_outside(install, ".cache/pip");
    assert_eq!(said, ["from a dependency\nx"; 3]);
}

/// Maven gets its parent project from a repository that is a directory.
const MAVEN_PROJECT: &str = r#"
mkdir -p repository/sbx/parent/1 app
printf '<project><modelVersion>4.0.0</modelVersion><groupId>sbx</groupId><artifactId>parent</artifactId><version>1</version><packaging>pom</packaging></project>' >repository/sbx/parent/1/parent-1.pom
printf '<project><modelVersion>4.0.0</modelVersion><parent><groupId>sbx</groupId><artifactId>parent</artifactId><version>1</version><relativePath/></parent><artifactId>app</artifactId><packaging>pom</packaging><repositories><repository><id>here</id><url>file://%s/repository</url></repository></repositories></project>' "$PWD" >app/pom.xml
cd app
! mvn -B -o validate
"#;

fn maven(world: &'static World) {
    if !host_has("mvn") {
        return;
    }
    // The JVM takes the home from the list of accounts, not from the variable.
    let option = "-Dmaven.repo.local=$HOME/.m2/repository";
    let caller = Caller::new(world, &[("MAVEN_OPTS", option)]);
    caller.host(MAVEN_PROJECT);
    let validate = "cd app; mvn -B validate";
    let (_sandbox, said) = caller.outside_inside_outside(validate, ".m2/repository");
    let downloads = said.map(|said| {
        assert!(said.contains("BUILD SUCCESS"), "{said}");
        said.contains("Downloading from here")
    });
    assert_eq!(downloads, [true, false, false]);
}

/// Gradle uses what is in a directory where it is; from a server it downloads.
const GRADLE_PROJECT: &str = r#"
import functools, http.server, os, subprocess, threading
def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(text, file=open(path, "w"))
write("repository/sbx/dep/1/dep-1.pom", "<project><modelVersion>4.0.0</modelVersion><groupId>sbx</groupId><artifactId>dep</artifactId><version>1</version></project>")
write("repository/sbx/dep/1/dep-1.txt", "from a dependency")
files = functools.partial(http.server.SimpleHTTPRequestHandler, directory="repository")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), files)
threading.Thread(target=server.serve_forever, daemon=True).start()
write("app/settings.gradle", "rootProject.name = 'app'")
write("app/build.gradle", f"""
repositories {{ maven {{ url = uri('http://127.0.0.1:{server.server_port}/'); allowInsecureProtocol = true }} }}
configurations {{ text }}
dependencies {{ text 'sbx:dep:1@txt' }}
tasks.register('show') {{ def files = configurations.text; doLast {{ println files.singleFile.text.trim() }} }}
""")
subprocess.run(["gradle", "--no-daemon", "-q", "show"], cwd="app", check=True)
"#;

/// The server is gone after the first download.
fn gradle(world: &'static World) {
    if !host_has("python3") || !host_has("gradle") {
        return;
    }
    // The JVM takes the home from the list of accounts, not from the variable.
    let caller = Caller::new(world, &[("GRADLE_USER_HOME", "$HOME/.gradle")]);
    world.write(&caller.workspace.join("project.py"), GRADLE_PROJECT);
    caller.host("python3 project.py");
    let show = "cd app; gradle --no-daemon --offline -q show";
    let (_sandbox, said) =
        caller.outside_inside_outside(show, ".gradle/caches/modules-2/files-2.1");
    assert_eq!(said, ["from a dependency"; 3]);
}
