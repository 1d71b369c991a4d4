//! Our own programs: the `sbx` on disk and the daemon's copy of it that init and the helpers run from.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use super::{Guarded, PYTHON, attack};
use crate::ModeTest;
use crate::harness::{World, programs};

pub(crate) const TESTS: &[ModeTest] = &[
    ("our_program_cannot_be_changed_through_proc_exe", proc_exe),
    ("a_program_that_is_proc_self_exe_changes_nothing", self_exe),
];

fn proc_exe(world: &'static World) {
    let sandbox = world.sandbox("exe");
    let program = "
for pid in ('1', 'self'):
    exe = '/proc/%s/exe' % pid
    for name, flags in (('write', os.O_WRONLY), ('read', os.O_RDONLY), ('path', os.O_PATH), ('truncate', os.O_RDWR | os.O_TRUNC)):
        if pid == '1':
            attempt(name, lambda: os.open(exe, flags))
attempt('execute', lambda: os.execv('/proc/1/exe', ['x']))
attempt('readlink', lambda: os.readlink('/proc/1/exe'))
attempt('stat', lambda: os.stat('/proc/1/exe'))
";
    for user in ["root", "agent"] {
        let said = attack(&sandbox, user, program, &[]);
        said.all_refused(6);
        said.refused(&[
            ("write", &["EACCES", "EPERM"]),
            ("read", &["EACCES", "EPERM"]),
        ]);
    }
}

/// The way of CVE-2019-5736: the helper is made to execute itself, and what is then `/proc/PID/exe` is
/// opened for writing. A library of the sandbox's choice runs in it and keeps it alive.
fn self_exe(world: &'static World) {
    let name = |dir: &str| fs::read(programs().join(dir)).unwrap();
    let before = (
        name("sbx"),
        fs::metadata(programs().join("sbx")).unwrap().mode(),
    );
    let sandbox = world.sandbox("self-exe");
    // A script whose interpreter is whoever executes it.
    for (file, line) in [
        ("direct", "#!/proc/self/exe daemon"),
        ("thread", "#!/proc/thread-self/exe"),
    ] {
        world.write(&sandbox.path(file), format!("{line}\n"));
        fs::set_permissions(sandbox.path(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::os::unix::fs::symlink("/proc/self/exe", sandbox.path("link")).unwrap();
    let link = sandbox.path("link");
    let mut found = 0;
    for (user, command) in [
        ("agent", vec!["./direct"]),
        ("root", vec!["./direct"]),
        ("agent", vec!["./thread"]),
        // A command line that does not end by itself.
        (
            "agent",
            vec![link.to_str().unwrap(), "daemon", "start", "--foreground"],
        ),
        (
            "agent",
            vec![link.to_str().unwrap(), "exec", "-i", "x", "y"],
        ),
        ("root", vec![link.to_str().unwrap(), "exec", "-i", "x", "y"]),
    ] {
        // Stopped at its first instruction, or as soon as it can be: by a tracer that it is born under.
        let mut exec = world.sbx(["exec", "-i", "-u", user, &sandbox.name]);
        exec.args(&command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _held = Guarded(exec.spawn().unwrap());
        let said = attack(
            &sandbox,
            user,
            &short(include_str!("attack/own_binary.py")),
            &[],
        );
        if said.result("found") == "True" {
            found += 1;
            let worked: Vec<_> = said
                .results
                .iter()
                .filter(|(_, result)| *result == "ok")
                .collect();
            assert!(
                worked.is_empty(),
                "as {user} by {command:?}: {worked:?}\n{}",
                said.all
            );
        }
    }
    let after = (
        name("sbx"),
        fs::metadata(programs().join("sbx")).unwrap().mode(),
    );
    assert!(before == after, "the program on disk has changed");
    // The daemon still starts sandboxes from its copy.
    let other = world.sandbox("after-exe");
    assert_eq!(other.exec([PYTHON, "-c", "print(1)"]).ok(), "1");
    let _ = found;
}

/// The search ends sooner: most of these end by themselves.
fn short(program: &str) -> String {
    program.replace("+ 20", "+ 1.5")
}
