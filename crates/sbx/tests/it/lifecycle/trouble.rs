//! What befalls one sandbox is neither the others' trouble nor that of its own next command.

use std::fs::File;

use rustix::process::Signal;

use crate::ModeTest;
use crate::harness::{Mode, Ran, World, blocked, kill, programs};

pub const TESTS: &[ModeTest] = &[
    (
        "lifecycle::a_command_right_after_a_crash_runs",
        command_after_a_crash,
    ),
    (
        "lifecycle::a_workspace_that_does_not_answer_blocks_no_other_sandbox",
        workspace_out_of_reach,
    ),
];

fn command_after_a_crash(world: &'static World) {
    let sandbox = world.sandbox("crashing");
    // What is walked through before it counts as stopped.
    for dir in 0..20 {
        let dir = sandbox.path(&format!("dir{dir}"));
        world.make_dir(&dir);
        for file in 0..100 {
            File::create(dir.join(file.to_string())).unwrap();
        }
    }
    for _ in 0..5 {
        sandbox.root_sh("true").ok();
        assert!(kill(world.init_pid(&sandbox.name), Signal::KILL));
        assert_eq!(sandbox.exec(["echo", "back"]).ok(), "back");
    }
}

/// A file system whose server never says a word.
const SILENCE: &str = r#"
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
if libc.mount(b"silence", sys.argv[1].encode(), b"fuse", 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
print("silent", flush=True)
sys.stdin.read()
"#;

fn workspace_out_of_reach(world: &'static World) {
    if world.mode != Mode::Root
        || File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_err()
    {
        return blocked("a file system of the test's own needs root and /dev/fuse");
    }
    let world = World::fresh(world.mode);
    let (near, far) = (world.workspace(), world.workspace());
    // A command that waits for the far one is ended, which shows.
    let script = r#"
        "$SBX" create --name near shell "$NEAR" && "$SBX" create --name far shell "$FAR"
        "$SBX" stop near; "$SBX" stop far
        mkfifo "$HOME/end" && exec 9<>"$HOME/end"
        python3 -c "$SILENCE" "$FAR" <"$HOME/end" >"$HOME/said" & server=$!
        until grep -q silent "$HOME/said"; do kill -0 $server || exit 1; sleep 0.05; done
        timeout 20 "$SBX" ls -q
        timeout 20 "$SBX" exec near echo alive
        timeout 20 "$SBX" create --name third shell "$NEAR"
        timeout 20 "$SBX" rm --force near
        timeout 20 "$SBX" ls -q
        kill $server; wait $server
        umount --lazy "$FAR"
        "$SBX" rm --all --force
        "$SBX" daemon stop"#;
    let mut command = world.command("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-uc", script])
        .env("SBX", programs().join("sbx"))
        .env("SILENCE", SILENCE)
        .env("NEAR", &near)
        .env("FAR", &far);
    let said = Ran::from(command.output().unwrap());
    let expected = "near\nfar\nfar\nnear\nalive\nthird\nfar\nthird\n";
    assert_eq!(said.out, expected, "{said:?}");
    assert_eq!(said.code, 0, "{said:?}");
}
