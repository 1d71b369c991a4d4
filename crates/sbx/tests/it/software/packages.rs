//! Debian packages, from a repository that the test makes.

use std::path::Path;
use std::process::Command;

use super::{bash, blocked, host_has, host_sh, listing, outside};
use crate::ModeTest;
use crate::harness::{Sandbox, World};

pub(crate) const REAL_ROOT: &[ModeTest] = &[
    ("apt_installs_keeps_and_removes_a_new_package", new_package),
    ("apt_upgrades_a_package_of_the_host", upgrade),
    ("dpkg_removes_a_package_of_the_host", remove_host_package),
];
pub(crate) const SINGLE: &[ModeTest] = &[("packages_are_refused_with_one_id", refused)];

/// A package of every Debian with a setuid program and conffiles, small enough to be replaced.
const HOST_PACKAGE: &str = "passwd";
const SET_ID: &str = "/usr/bin/chfn";
const CONFFILE: &str = "/etc/pam.d/chfn";

/// apt with no other source than the test's.
const APT: &str = "apt-get -qy -o Dir::Etc::sourcelist=/etc/apt/sources.list.d/sbx-test.list -o Dir::Etc::sourceparts=-";

/// Makes packages and their index in the current directory.
const REPOSITORY: &str = r#"
arch=$(dpkg --print-architecture)
pack() { # name version
  mkdir -p "$1/DEBIAN"
  printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: t <t@example.org>\nDescription: test\n' \
    "$1" "$2" "$arch" >"$1/DEBIAN/control"
  chmod -R go=rX "$1"
  [ ! -e "$1/usr/bin/chfn" ] || chmod 4755 "$1/usr/bin/chfn"
  dpkg-deb --root-owner-group --build "$1" "$1.deb" >/dev/null
  {
    cat "$1/DEBIAN/control"
    printf 'Filename: ./%s.deb\nSize: %s\nSHA256: %s\n\n' \
      "$1" "$(stat -c %s "$1.deb")" "$(sha256sum <"$1.deb" | cut -d' ' -f1)"
  } >>Packages
}
mkdir -p sbx-hello/usr/bin sbx-hello/etc sbx-hello/DEBIAN
printf '#!/bin/sh\necho hello from a package\n' >sbx-hello/usr/bin/sbx-hello
chmod 755 sbx-hello/usr/bin/sbx-hello
echo original >sbx-hello/etc/sbx-hello.conf
echo /etc/sbx-hello.conf >sbx-hello/DEBIAN/conffiles
printf '#!/bin/sh\nset -e\nadduser --system --quiet --no-create-home sbxhello\nmkdir -p /var/lib/sbx-hello\nchown sbxhello /var/lib/sbx-hello\n' \
  >sbx-hello/DEBIAN/postinst
chmod 755 sbx-hello/DEBIAN/postinst
pack sbx-hello 1.0
mkdir -p passwd/usr/bin passwd/etc/pam.d passwd/DEBIAN
printf '#!/bin/sh\necho upgraded\n' >passwd/usr/bin/chfn
echo '# upgraded' >passwd/etc/pam.d/chfn
echo /etc/pam.d/chfn >passwd/DEBIAN/conffiles
pack passwd 99:1
"#;

/// The host's side of everything that these tests change inside.
fn host_state() -> String {
    let hashes = outside(Command::new("sha256sum").args([
        SET_ID,
        CONFFILE,
        "/var/lib/dpkg/status",
        "/usr/bin/dpkg",
    ]));
    let info = listing(Path::new("/var/lib/dpkg/info"));
    let modes = outside(Command::new("stat").args(["-c", "%n %a %u %g %Y", SET_ID, CONFFILE]));
    assert!(!Path::new("/usr/bin/sbx-hello").exists() && !Path::new("/var/lib/sbx-hello").exists());
    format!("{hashes}\n{modes}\n{info}")
}

/// Whether this machine has Debian packages at all.
fn has_packages() -> bool {
    if !(host_has("dpkg-deb") && host_has("apt-get")) {
        return false;
    }
    let installed = Command::new("dpkg-query")
        .args(["-S", SET_ID])
        .output()
        .unwrap();
    let ours = String::from_utf8_lossy(&installed.stdout).starts_with(HOST_PACKAGE);
    if !ours {
        blocked(format!("the host has no package `{HOST_PACKAGE}`"));
    }
    ours
}

/// A sandbox with the repository in its workspace and in apt's sources.
fn with_repository<'a>(world: &'a World, hint: &str) -> Sandbox<'a> {
    let sandbox = world.sandbox(hint);
    host_sh(world, &sandbox.workspace, REPOSITORY);
    let line = format!("deb [trusted=yes] file:{} ./", sandbox.workspace.display());
    bash(
        &sandbox,
        "root",
        &format!("echo '{line}' >/etc/apt/sources.list.d/sbx-test.list; {APT} update"),
    )
    .ok();
    sandbox
}

fn new_package(world: &'static World) {
    if !has_packages() {
        return;
    }
    let before = host_state();
    let sandbox = with_repository(world, "apt-new");
    let works = |sandbox: &Sandbox<'_>| {
        assert_eq!(sandbox.exec(["sbx-hello"]).ok(), "hello from a package");
        assert_eq!(
            sandbox
                .exec(["stat", "-c", "%U", "/var/lib/sbx-hello"])
                .ok(),
            "sbxhello"
        );
        assert_eq!(
            bash(sandbox, "root", "dpkg --audit; dpkg -V sbx-hello").ok(),
            ""
        );
    };
    // By the agent, through sudo.
    bash(&sandbox, "agent", &format!("sudo {APT} install sbx-hello")).ok();
    works(&sandbox);
    world.run(["stop", &sandbox.name]).ok();
    works(&sandbox);
    // A changed conffile outlives the removal, and not the purge.
    bash(
        &sandbox,
        "root",
        &format!("echo mine >/etc/sbx-hello.conf; {APT} remove sbx-hello"),
    )
    .ok();
    assert_eq!(
        bash(
            &sandbox,
            "agent",
            "! type -P sbx-hello; cat /etc/sbx-hello.conf"
        )
        .ok(),
        "mine"
    );
    bash(
        &sandbox,
        "root",
        &format!("{APT} purge sbx-hello; [ ! -e /etc/sbx-hello.conf ]"),
    )
    .ok();
    // By root, from a file.
    bash(&sandbox, "root", "dpkg -i sbx-hello.deb").ok();
    works(&sandbox);
    assert_eq!(host_state(), before);
}

fn upgrade(world: &'static World) {
    if !has_packages() {
        return;
    }
    let before = host_state();
    for (user, command) in [
        ("root", format!("{APT} install {HOST_PACKAGE}")),
        ("agent", format!("sudo {APT} install {HOST_PACKAGE}")),
        ("root", "dpkg -i passwd.deb".to_owned()),
    ] {
        let sandbox = with_repository(world, "apt-up");
        assert_eq!(
            sandbox.exec(["stat", "-c", "%a %U", SET_ID]).ok(),
            "4755 root"
        );
        let ran = bash(&sandbox, user, &command);
        assert!(!ran.err.contains("cannot prepare"), "{}", ran.err);
        ran.ok();
        let upgraded = |sandbox: &Sandbox<'_>| {
            assert_eq!(sandbox.exec([SET_ID]).ok(), "upgraded");
            assert_eq!(
                sandbox.exec(["stat", "-c", "%a %U", SET_ID]).ok(),
                "4755 root"
            );
            assert_eq!(sandbox.exec(["cat", CONFFILE]).ok(), "# upgraded");
            let shown = sandbox
                .exec([
                    "dpkg-query",
                    "-W",
                    "-f",
                    "${Version} ${db:Status-Abbrev}",
                    HOST_PACKAGE,
                ])
                .ok();
            assert_eq!(shown.trim(), "99:1 ii");
            assert_eq!(
                bash(
                    sandbox,
                    "root",
                    &format!("dpkg --audit; dpkg -V {HOST_PACKAGE}")
                )
                .ok(),
                ""
            );
        };
        upgraded(&sandbox);
        world.run(["stop", &sandbox.name]).ok();
        upgraded(&sandbox);
        let left = bash(
            &sandbox,
            "root",
            "find / -xdev -name '*.sbx-copy' -o -xdev -name '*.dpkg-tmp'",
        )
        .ok();
        assert_eq!(left, "");
    }
    assert_eq!(host_state(), before);
}

fn remove_host_package(world: &'static World) {
    if !has_packages() {
        return;
    }
    let before = host_state();
    let sandbox = world.sandbox("dpkg-rm");
    bash(
        &sandbox,
        "root",
        &format!("dpkg --force-all -r {HOST_PACKAGE}"),
    )
    .ok();
    bash(
        &sandbox,
        "root",
        &format!("[ ! -e {SET_ID} ]; [ -e {CONFFILE} ]"),
    )
    .ok();
    // What its own tools move: a diversion renames the file of the host.
    bash(
        &sandbox,
        "root",
        "dpkg-divert --local --rename --add /usr/bin/diff",
    )
    .ok();
    assert!(
        sandbox
            .exec(["/usr/bin/diff.distrib", "--version"])
            .ok()
            .contains("diff")
    );
    assert_eq!(host_state(), before);
}

fn refused(world: &'static World) {
    if !has_packages() {
        return;
    }
    let sandbox = world.sandbox("apt-no");
    for user in ["agent", "root"] {
        for command in [
            "apt-get -y install sbx-hello",
            "apt install sbx-hello",
            "apt-get -o A::B=c update",
            "dpkg -i x.deb",
        ] {
            let ran = bash(&sandbox, user, command).fails(100);
            let mut lines = ran.err.lines();
            let program = command.split(' ').next().unwrap();
            let message = "packages cannot be installed in this sandbox: it runs with one user id";
            assert_eq!(lines.next(), Some(format!("{program}: {message}").as_str()));
            assert!(lines.next().unwrap().starts_with("hint: "), "{}", ran.err);
        }
        // What only reads works as ever.
        let shown = bash(
            &sandbox,
            user,
            &format!("dpkg -s {HOST_PACKAGE}; apt-get --version; dpkg -L {HOST_PACKAGE}"),
        )
        .ok();
        assert!(shown.contains("Status: install ok installed") && shown.contains(SET_ID));
    }
}
