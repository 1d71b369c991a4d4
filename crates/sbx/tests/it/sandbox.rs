//! What a sandbox is and does: Appendix B 1 to 4 and more.

use std::os::unix::fs::MetadataExt;

use crate::ModeTest;
use crate::harness::{Mode, World};

pub const TESTS: &[ModeTest] = &[
    (
        "workspace_is_the_working_directory_and_live_both_ways",
        workspace_live,
    ),
    ("agent_is_uid_1000_and_may_become_root", agent_and_root),
];

fn workspace_live(world: &'static World) {
    let sandbox = world.sandbox("live");
    assert_eq!(
        sandbox.exec(["pwd"]).ok(),
        sandbox.workspace.to_str().unwrap()
    );
    sandbox.sh("echo inside > made-inside").ok();
    let meta = std::fs::metadata(sandbox.path("made-inside")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (world.uid, world.gid));
    world.write(&sandbox.path("made-outside"), "outside\n");
    assert_eq!(sandbox.exec(["cat", "made-outside"]).ok(), "outside");
}

fn agent_and_root(world: &'static World) {
    let sandbox = world.sandbox("users");
    assert_eq!(sandbox.sh("id -un; id -u; id -g").ok(), "agent\n1000\n1000");
    assert_eq!(sandbox.root_sh("id -un; id -u").ok(), "root\n0");
    if world.mode != Mode::Single {
        assert_eq!(sandbox.sh("sudo -n id -u").ok(), "0");
        assert_eq!(sandbox.sh("sudo -nuagent id -un").ok(), "agent");
        assert_eq!(sandbox.sh("sudo -iu agent id -un").ok(), "agent");
        let allowed = sandbox.sh("sudo -n -l").ok();
        assert!(allowed.contains("any command"), "{allowed}");
        let usage = sandbox.sh("sudo --help").ok();
        assert!(usage.starts_with("usage: sudo"), "{usage}");
        // For the distribution's own, should it be installed.
        let rule = "/etc/sudoers.d/sbx-agent";
        assert_eq!(
            sandbox
                .root_sh(&format!(
                    "stat -c '%u:%g %a' /etc/sudoers.d {rule}; cat {rule}"
                ))
                .ok(),
            "0:0 750\n0:0 440\nagent ALL=(ALL:ALL) NOPASSWD: ALL"
        );
    }
    assert_eq!(sandbox.exec(["cat", "/proc/1/comm"]).ok(), "sbx-init");
    // Locks of everybody are where they are everywhere.
    assert_eq!(
        sandbox
            .sh("stat -c %a /run/lock; touch /run/lock/x && test -e /run/lock/x")
            .ok(),
        "1777"
    );
}
