//! What is private below a system directory of the host, which programs inside could read by their ids.

use std::path::Path;

use super::mounting;
use crate::ModeTest;
use crate::harness::{Mode, World, blocked, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    ("private_places_below_system_directories_are_hidden", plain),
    (
        "private_places_beside_mounts_below_system_directories_are_hidden",
        mounted,
    ),
];

/// An `/opt` of their own, with a home in it, in which everything can be read by its mode or by the user's id.
const STEPS: &str = "set -e; sbx=$1 user=$2 group=$3; shift 3
    mount --make-rprivate /; mount -t tmpfs -o mode=755 none /opt; cd /opt
    mkdir -p x/home/.ssh x/home/.cargo/bin tools/bin other own closed below
    chmod 755 x x/home x/home/.cargo x/home/.cargo/bin x/home/.ssh tools tools/bin other own below
    for file in x/home/.ssh/id_rsa tools/bin/.npmrc tools/key other/file closed/file own/file; do
        echo secret >$file; chmod 644 $file
    done
    for tool in tools/bin/tool x/home/.cargo/bin/cargoed; do
        printf '#!/bin/sh\\necho works\\n' >$tool; chmod 755 $tool
    done
    chmod 600 tools/key; chmod 700 closed
    chown -R $user:$group x tools other own closed
    case $2 in mounted) mount -t tmpfs -o mode=755 none below;; esac
    as() {
        setpriv --reuid=$user --regid=$group --clear-groups env HOME=/opt/x/home \\
            PATH=/opt/tools/bin:/opt/x/home/.cargo/bin:/usr/bin:/bin \"$sbx\" \"$@\"
    }
    end() { as rm --all --force; as daemon stop; }
    trap end EXIT
    as create -q --name other shell /opt/other
    as create -q --name box shell \"$1\" /opt/own
    look='for file in x/home/.ssh/id_rsa tools/bin/.npmrc tools/key other/file closed/file own/file; do
            result=hidden; grep -qs secret /opt/$file && result=ok; echo $ROUND:$file $result
        done; echo $ROUND:tool $(tool); echo $ROUND:cargoed $(cargoed); touch /opt/own/new && echo $ROUND:written ok
        touch /opt/tools/bin/new 2>/dev/null && echo $ROUND:added ok; :'
    for user_inside in agent root; do
        as exec -u $user_inside -e ROUND=$user_inside box sh -c \"$look\"
    done
    as stop box
    as exec -e ROUND=again box sh -c \"$look\"";

fn plain(shared: &'static World) {
    looks(shared, "plain");
}

fn mounted(shared: &'static World) {
    looks(shared, "mounted");
}

fn looks(shared: &'static World, kind: &str) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    if !Path::new("/opt").is_dir() {
        return blocked("no `/opt` to mount on");
    }
    let world = World::fresh(shared.mode);
    let said = mounting(&world, STEPS, &[&world.workspace(), Path::new(kind)]);
    // A directory of the caller's is the agent's inside, also where something in it is hidden.
    if kind == "plain" && shared.mode != Mode::Root {
        assert_eq!(said.result("agent:added"), "ok", "{}", said.all);
    }
    for round in ["agent", "root", "again"] {
        for file in [
            "x/home/.ssh/id_rsa",
            "tools/bin/.npmrc",
            "tools/key",
            "other/file",
            "closed/file",
        ] {
            said.refused(&[(&format!("{round}:{file}"), &["hidden"])]);
        }
        for (name, result) in [
            ("own/file", "ok"),
            ("written", "ok"),
            ("tool", "works"),
            ("cargoed", "works"),
        ] {
            let name = format!("{round}:{name}");
            assert_eq!(said.result(&name), result, "{name}: {}", said.all);
        }
    }
}
