//! Package managers of languages.

use super::{bash, blocked, host_has, login, python, users};
use crate::ModeTest;
use crate::harness::World;

pub(crate) const TESTS: &[ModeTest] = &[
    ("pip_installs_for_agent_and_root", pip),
    ("npm_installs_for_agent_and_root", npm),
];
pub(crate) const REAL_ROOT: &[ModeTest] =
    &[("npm_replaces_a_global_package_of_the_host", npm_replaces)];

/// Two versions of a wheel in the current directory.
pub(super) const WHEELS: &str = r#"
import zipfile
for version in "1", "2":
    info = f"sbxpip-{version}.dist-info"
    with zipfile.ZipFile(f"sbxpip-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sbxpip.py", f"def main(): print('pip {version}')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sbxpip\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nsbxpip=sbxpip:main\n")
        wheel.writestr(f"{info}/RECORD", "")
"#;

fn pip(world: &'static World) {
    if !host_has("python3") {
        return;
    }
    let sandbox = world.sandbox("pip");
    if python(&sandbox, "agent", "import pip").code != 0 {
        return blocked("the host's python3 has no pip");
    }
    python(&sandbox, "agent", WHEELS).ok();
    for user in users(world) {
        // No flag: the sandbox's system is its own, whatever the host's python says about being managed.
        let install = "/usr/bin/python3 -m pip install --no-index";
        bash(
            &sandbox,
            user,
            &format!("{install} ./sbxpip-1-py3-none-any.whl"),
        )
        .ok();
        assert_eq!(bash(&sandbox, user, "sbxpip").ok(), "pip 1");
        bash(
            &sandbox,
            user,
            &format!("{install} ./sbxpip-2-py3-none-any.whl"),
        )
        .ok();
        assert_eq!(login(&sandbox, user, "sbxpip").ok(), "pip 2");
        bash(
            &sandbox,
            user,
            "/usr/bin/python3 -m pip uninstall -y sbxpip; ! type -P sbxpip",
        )
        .ok();
        if python(&sandbox, user, "import venv, ensurepip").code == 0 {
            let script = "/usr/bin/python3 -m venv ~/v; ~/v/bin/pip install --no-index ./sbxpip-1-py3-none-any.whl >&2; ~/v/bin/sbxpip";
            assert_eq!(bash(&sandbox, user, script).ok(), "pip 1");
        } else {
            blocked("the host's python3 makes no virtual environments");
        }
    }
    assert!(!std::path::Path::new("/usr/local/bin/sbxpip").exists());
}

/// A package in a directory of its own, and its archive.
const NPM_PACKAGE: &str = r#"
mkdir -p pkg-$NAME; cd pkg-$NAME
printf '{"name":"%s","version":"99.0.0","bin":{"%s":"main.js"}}' "$NAME" "$NAME" >package.json
printf '#!/usr/bin/env node\nconsole.log("npm works")\n' >main.js
chmod 755 main.js
npm pack --silent --offline --pack-destination ..
cd ..
"#;
const NPM_INSTALL: &str = "npm install -g --offline --no-audit --no-fund";

fn npm(world: &'static World) {
    if !host_has("npm") {
        return;
    }
    let sandbox = world.sandbox("npm");
    for user in users(world) {
        let script =
            format!("NAME=sbxnpm-{user}; {NPM_PACKAGE} {NPM_INSTALL} ./sbxnpm-{user}-99.0.0.tgz");
        bash(&sandbox, user, &script).ok();
        let program = format!("sbxnpm-{user}");
        assert_eq!(bash(&sandbox, user, &program).ok(), "npm works");
        assert_eq!(login(&sandbox, user, &program).ok(), "npm works");
        world.run(["stop", &sandbox.name]).ok();
        assert_eq!(bash(&sandbox, user, &program).ok(), "npm works");
        // As a link to a directory.
        bash(
            &sandbox,
            user,
            &format!("{NPM_INSTALL} ./pkg-sbxnpm-{user}; {program}"),
        )
        .ok();
        bash(
            &sandbox,
            user,
            &format!("npm uninstall -g {program}; ! type -P {program}"),
        )
        .ok();
    }
}

/// npm moves the old package aside before it puts the new one in place.
fn npm_replaces(world: &'static World) {
    if !host_has("npm") || !host_has("corepack") {
        return;
    }
    let sandbox = world.sandbox("npm-up");
    let before = std::fs::read_link("/usr/bin/corepack").ok();
    let script =
        format!("NAME=corepack; {NPM_PACKAGE} sudo {NPM_INSTALL} ./corepack-99.0.0.tgz; corepack");
    let shown = bash(&sandbox, "agent", &script).ok();
    assert!(shown.ends_with("npm works"), "{shown}");
    assert_eq!(std::fs::read_link("/usr/bin/corepack").ok(), before);
}
