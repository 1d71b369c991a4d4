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
const STEPS: &str = "set -e; umask 022; sbx=$1 user=$2 group=$3; shift 3
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
    deep=deep; for level in $(seq 70); do deep=$deep/d; done
    mkdir -p below/priv $deep/priv unlisted volume; chmod 711 unlisted
    for dir in below/priv $deep/priv unlisted volume; do echo secret >$dir/file; chmod 600 $dir/file; done
    for dir in below/priv $deep/priv; do chmod 700 $dir; chown -R $user:$group $dir; done
    chown $user:$group unlisted/file; chmod 700 volume
    name=$(id -un $user) || name=$user
    subordinate=$(awk -F: -v n=$name -v u=$user '$1 == n || $1 == u { print $2 + 70; exit }' /etc/subuid)
    case $subordinate in '') ;; *) chown -R $subordinate:$subordinate volume;; esac
    service=$(python3 -c \"$3\" /opt/below/socket)
    as() {
        setpriv --reuid=$user --regid=$group --clear-groups env HOME=/opt/x/home \\
            PATH=/opt/tools/bin:/opt/x/home/.cargo/bin:/usr/bin:/bin \"$sbx\" \"$@\"
    }
    end() { kill $service; as rm --all --force; as daemon stop; }
    trap end EXIT
    as create -q --name other shell /opt/other
    as create -q --name box shell \"$1\" /opt/own
    look='for file in x/home/.ssh/id_rsa tools/bin/.npmrc tools/key other/file closed/file own/file \\
            below/priv/file unlisted/file volume/file; do
            result=hidden; grep -qs secret /opt/$file && result=ok; echo $ROUND:$file $result
        done; result=hidden; grep -qs secret /opt/$DEEP/priv/file && result=ok; echo $ROUND:deep $result
        python3 -c \"$CONNECT\" $ROUND:socket /opt/below/socket
        echo $ROUND:tool $(tool); echo $ROUND:cargoed $(cargoed); touch /opt/own/new && echo $ROUND:written ok
        touch /opt/tools/bin/new 2>/dev/null && echo $ROUND:added ok; :'
    for user_inside in agent root; do
        as exec -u $user_inside -e \"CONNECT=$4\" -e DEEP=$deep -e ROUND=$user_inside box sh -c \"$look\"
    done
    as stop box
    as exec -e \"CONNECT=$4\" -e DEEP=$deep -e ROUND=again box sh -c \"$look\"";

/// A service of the host's, which everybody may connect to. It says who it is once it listens.
const SERVICE: &str = "import os, signal, socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); s.listen(9)
child = os.fork()
if child: print(child)
else: os.close(1); signal.pause()";
const CONNECT: &str = "import errno, socket, sys
code = socket.socket(socket.AF_UNIX).connect_ex(sys.argv[2])
print(sys.argv[1], errno.errorcode.get(code, 'ok'))";

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
    let world = World::with_own_template(shared.mode);
    let said = mounting(
        &world,
        STEPS,
        &[
            &world.workspace(),
            Path::new(kind),
            Path::new(SERVICE),
            Path::new(CONNECT),
        ],
    );
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
            "below/priv/file",
            "unlisted/file",
            "volume/file",
            "deep",
        ] {
            said.refused(&[(&format!("{round}:{file}"), &["hidden"])]);
        }
        // An ordinary user cannot have an overlay on a directory with mounts below it; `create` says so.
        if kind == "plain" || shared.mode == Mode::Root {
            said.refused(&[(&format!("{round}:socket"), &["ECONNREFUSED"])]);
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
