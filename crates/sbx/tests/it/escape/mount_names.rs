//! Mount points whose names are not text: the list of mounts that decides whose a file is must survive them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{attack, mounting, sbx, script};
use crate::ModeTest;
use crate::harness::{Mode, World, blocked, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    ("a_mount_point_that_is_not_text_breaks_nothing", made_inside),
    (
        "a_mount_point_that_is_not_text_does_not_open_a_workspace",
        in_a_workspace,
    ),
];

/// Root inside mounts something; everybody else goes on.
fn made_inside(world: &'static World) {
    let sandbox = world.sandbox("mount-name");
    let mounting = "
NAMES = (b'/tmp/\\xff\\xfe', b'/tmp/\\xc3(', b'/tmp/a - tmpfs \\xff\\n1 1 0:1 - tmpfs')
def mounted():
    for number, name in enumerate(NAMES):
        os.mkdir(name)
        attempt('mount_%d' % number, lambda: call('mount', 'tmpfs', name, 'tmpfs', 0, 0))
def own(prefix):
    for number, place in enumerate((b'/tmp/plain',) + tuple(name + b'/file' for name in NAMES)):
        open(place, 'w').close()
        attempt('%s_own_%d' % (prefix, number), lambda: os.chmod(place, 0o4755))
    open('shared', 'w').close()
    attempt(prefix + '_shared', lambda: os.chmod('shared', 0o4755))
";
    // The real root's mounts are there for every command of the sandbox; a nested one's for its own only.
    let whole = world.mode != Mode::Single;
    let inside = if whole { "" } else { "nested()\n" };
    let program = format!("{mounting}\n{inside}mounted()\nown('first')\n");
    let said = attack(&sandbox, "root", &program, &[]);
    let works = |said: &super::Said, name: &str| {
        assert_eq!(said.result(name), "ok", "{}", said.all);
    };
    for number in 0..3 {
        works(&said, &format!("mount_{number}"));
    }
    // What is the sandbox's own is known to be, and what is not, is not.
    for number in 0..4 {
        works(&said, &format!("first_own_{number}"));
    }
    said.refused(&[("first_shared", &["EPERM"])]);
    if whole {
        let said = attack(&sandbox, "root", &format!("{mounting}\nown('next')\n"), &[]);
        for number in 0..4 {
            works(&said, &format!("next_own_{number}"));
        }
        said.refused(&[("next_shared", &["EPERM"])]);
    }
    let seen = sandbox.sh("grep -c tmpfs /proc/self/mountinfo").ok();
    assert!(seen.parse::<u32>().unwrap() >= 1);
    sbx(world, &["stop", &sandbox.name]).ok();
    assert_eq!(sandbox.exec(["echo", "again"]).ok(), "again");
    assert_eq!(
        fs::metadata(sandbox.path("shared")).unwrap().mode() & 0o6000,
        0
    );
    super::assert_no_set_id(&sandbox.workspace);
}

/// A workspace in memory looks like the sandbox's own memory file systems, but for the list of what is shared;
/// a mount of the host's below it, with such a name, is in the list that init reads first.
fn in_a_workspace(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::fresh(shared.mode);
    let place = world.workspace();
    let program = world.home().join("program");
    world.write(
        &program,
        script(
            "
for number, place in enumerate((b'file', b'\\xff/file')):
    open(place, 'w').close()
    attempt('chmod_%d' % number, lambda: os.chmod(place, 0o4755))
    attempt('fchmod_%d' % number, lambda: os.fchmod(os.open(place, os.O_RDWR), 0o2755))
    print('mode_%d' % number, oct(os.stat(place).st_mode & 0o7000))
",
            &[],
        ),
    );
    let steps = "set -e; sbx=$1 user=$2 group=$3; shift 3
        mount --make-rprivate /; mount -t tmpfs -o mode=755 none \"$1\"
        below=$(printf '%s/\\377' \"$1\"); mkdir \"$below\"; mount -t tmpfs -o mode=755 none \"$below\"
        chown $user:$group \"$1\" \"$below\"
        as() { setpriv --reuid=$user --regid=$group --clear-groups \"$sbx\" \"$@\"; }
        end() { as rm --all --force; as daemon stop; }
        trap end EXIT
        as create -q --name box shell \"$1\"
        as exec -i box python3 - <\"$2\"
        find \"$1\" -perm /6000 -printf 'set_id ok\\n'";
    let said = mounting(&world, steps, &[&place, &program]);
    for number in 0..2 {
        said.refused(&[
            (&format!("chmod_{number}"), &["EPERM"]),
            (&format!("fchmod_{number}"), &["EPERM"]),
            (&format!("mode_{number}"), &["0o0"]),
        ]);
    }
    assert!(!said.results.contains_key("set_id"), "{}", said.all);
}
