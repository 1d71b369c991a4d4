//! A mount of the host's that one sandbox hands to another: there it is new, and still the host's.

use super::{attack, mounting, script};
use crate::ModeTest;
use crate::harness::{Mode, World, blocked, tester_is_root};

pub(crate) const TESTS: &[ModeTest] = &[
    (
        "a_memory_workspace_that_another_sandbox_hands_over_gets_no_bits",
        handed_over,
    ),
    (
        "no_other_file_system_gets_the_number_of_one_that_is_the_sandboxs_own",
        number_of_an_own_one,
    ),
];

/// The sandbox that has the workspace sends it to one that has not, through a socket in what they share.
const GIVES: &str = "
import socket, array, time
nested()
tree = call('open_tree', -100, PLACE, 0x88001)
door = socket.socket(socket.AF_UNIX)
for _ in range(1200):
    try:
        door.connect('door')
        break
    except OSError:
        time.sleep(0.05)
door.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [tree]))])
door.recv(1)
";

/// It attaches what it got, in the one way or the other, and tries what it may do in its own.
const TAKES: &str = "
import socket, array
nested()
door = socket.socket(socket.AF_UNIX)
door.bind('door')
door.listen(1)
door.settimeout(60)
peer = door.accept()[0]
_, control, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(4))
tree = array.array('i')
tree.frombytes(control[0][2])
os.mkdir('/tmp/handed')
attempt('attached', lambda: call('move_mount', tree[0], '', -100, '/tmp/handed', 4))
os.mkdir('/tmp/own')
attempt('mounted', lambda: mount('tmpfs', '/tmp/own', 'tmpfs', 0))
for name in ('handed', 'own'):
    place = '/tmp/%s/file' % name
    # Where each sandbox has ids of its own, the other one's are none here.
    attempt(name + '_made', lambda: open(place, 'w').close())
    attempt(name + '_chmod', lambda: os.chmod(place, 0o6755))
    attempt(name + '_fchmod', lambda: os.fchmod(os.open(place, os.O_RDWR), 0o4755))
    capability = b'\\1\\0\\0\\2' + b'\\0\\x20\\0\\0' + b'\\0' * 12
    attempt(name + '_xattr', lambda: os.setxattr(place, 'security.capability', capability))
peer.send(b'x')
";

fn handed_over(shared: &'static World) {
    if !tester_is_root() {
        return blocked("only root can mount on the host");
    }
    let world = World::fresh(shared.mode);
    let (common, memory) = (world.workspace(), world.workspace());
    let write = |name: &str, program: &str, settings: &[(&str, &str)]| {
        let path = world.home().join(name);
        world.write(&path, script(program, settings));
        path
    };
    let place = memory.to_str().unwrap();
    let gives = write("gives", GIVES, &[("PLACE", place)]);
    let takes = write("takes", TAKES, &[]);
    let steps = "set -e; sbx=$1 user=$2 group=$3; shift 3
        mount --make-rprivate /; mount -t tmpfs -o mode=755 none \"$2\"; chown $user:$group \"$2\"
        as() { setpriv --reuid=$user --regid=$group --clear-groups \"$sbx\" \"$@\"; }
        end() { as rm --all --force; as daemon stop; }
        trap end EXIT
        as create -q --name taker shell \"$1\"
        as create -q --name giver shell \"$1\" \"$2\"
        as exec -i taker python3 - <\"$4\" & taker=$!
        as exec -i giver python3 - <\"$3\"
        wait $taker
        find \"$2\" -perm /6000 -printf 'set_id ok\\n'";
    let said = mounting(&world, steps, &[&common, &memory, &gives, &takes]);
    for done in [
        "attached",
        "mounted",
        "own_chmod",
        "own_fchmod",
        "own_xattr",
    ] {
        assert_eq!(said.result(done), "ok", "{done}: {}", said.all);
    }
    let refused = match world.mode {
        Mode::Root => "ENOENT",
        Mode::Subordinate | Mode::Single => {
            assert_eq!(said.result("handed_made"), "ok", "{}", said.all);
            "EPERM"
        }
    };
    said.refused(&[
        ("handed_chmod", &[refused]),
        ("handed_fchmod", &[refused]),
        ("handed_xattr", &[refused]),
    ]);
    assert!(!said.results.contains_key("set_id"), "{}", said.all);
}

/// In a nested namespace that has left the sandbox's mounts behind, the directory that `/run` is mounted on can be removed,
/// and the mount goes with it. The lowest number that is free is given to the next file system.
const FREES: &str = "
def number(path):
    return [line.split()[2] for line in open('/proc/self/mountinfo') if line.split()[4] == path][-1:]
own = number('/run')[0]
root = os.open('/', os.O_RDONLY | os.O_DIRECTORY)
def free():
    (nested_all if real_root() else nested)()
    os.mkdir('/tmp/new')
    mount('none', '/tmp/new', 'tmpfs', 0)
    os.mkdir('/tmp/new/old')
    call('pivot_root', '/tmp/new', '/tmp/new/old')
    os.chdir('/')
    call('umount2', '/old', MNT_DETACH)
    attempt('taken_away', lambda: os.rmdir('run', dir_fd=root))
in_child(free)
nested()
mine = set()
os.mkdir('/tmp/fill')
for index in range(200):
    place = '/tmp/fill/%d' % index
    os.mkdir(place)
    mount('none', place, 'tmpfs', 0)
    mine.update(number(place))
print('mounted', len(mine) > 100)
print('own_number', 'ok' if own in mine else 'EBUSY')
";

fn number_of_an_own_one(world: &'static World) {
    let sandbox = world.sandbox("numbers");
    let user = match world.mode {
        Mode::Root | Mode::Subordinate => "root",
        Mode::Single => "agent",
    };
    let said = attack(&sandbox, user, FREES, &[]);
    assert_eq!(said.result("taken_away"), "ok", "{}", said.all);
    assert_eq!(said.result("mounted"), "True", "{}", said.all);
    assert_eq!(said.result("own_number"), "EBUSY", "{}", said.all);
}
