//! Our own programs: the `sbx` on disk and the daemon's copy of it that init and the helpers run from.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

use super::{Guarded, PYTHON, attack};
use crate::ModeTest;
use crate::harness::{Mode, World, programs};

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

/// The way of CVE-2019-5736: the helper is made to execute itself, and what is then `/proc/PID/exe`, a file of
/// the daemon's, is within reach.
fn self_exe(shared: &'static World) {
    // A daemon whose program is spoilt is not to be in the way of other tests.
    let world = World::fresh(shared.mode);
    let world = &world;
    let program = programs().join("sbx");
    let before = (
        fs::read(&program).unwrap(),
        fs::metadata(&program).unwrap().mode(),
    );
    let sandbox = world.sandbox("self-exe");
    // A script whose interpreter is `/proc/self/exe`, the program that executes it. Written once: while the last command
    // of one round still executes it, a write fails (ETXTBSY).
    let script = sandbox.path("script");
    world.write(&script, "#!/proc/self/exe --help\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for user in ["root", "agent"] {
        let ready = sandbox.path(user);
        let text = script_for(ready.to_str().unwrap());
        let child = world
            .sbx(["exec", "-i", "-u", user, &sandbox.name, PYTHON, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let attack = std::thread::spawn(move || super::Said::from(super::finish(child, &text)));
        while !ready.exists() && !attack.is_finished() {
            std::thread::yield_now();
        }
        // Our program may stay and serve: the client is ended with the attack.
        while !attack.is_finished() {
            let mut exec = world.sbx(["exec", "-u", user, &sandbox.name, script.to_str().unwrap()]);
            exec.stdout(Stdio::null()).stderr(Stdio::null());
            let mut client = Guarded(exec.spawn().unwrap());
            while !attack.is_finished() && client.0.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
        }
        let said = attack.join().unwrap();
        assert_eq!(
            said.result("found"),
            "True",
            "our program was never seen: {}",
            said.all
        );
        let worked: Vec<_> = said
            .results
            .iter()
            .filter(|(_, result)| *result == "ok")
            // Where the caller is an id inside, the copy that this init was executed from has an owner inside.
            // No other sandbox and nothing on disk shares it, as is shown below.
            .filter(|(name, _)| {
                world.mode == Mode::Root
                    || !matches!(name.as_str(), "chmod" | "chown" | "fchmod" | "fchown")
            })
            .collect();
        assert!(worked.is_empty(), "as {user}: {worked:?}\n{}", said.all);
    }
    let after = (
        fs::read(&program).unwrap(),
        fs::metadata(&program).unwrap().mode(),
    );
    assert!(before == after, "the program on disk has changed");
    // The daemon still starts sandboxes from its copy.
    let other = world.sandbox("after-exe");
    assert_eq!(other.exec([PYTHON, "-c", "print(1)"]).ok(), "1");
}

fn script_for(ready: &str) -> Vec<u8> {
    super::script(include_str!("attack/own_binary.py"), &[("READY", ready)])
}
