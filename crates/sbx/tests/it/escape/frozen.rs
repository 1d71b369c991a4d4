//! A command's process is the agent's from the moment it changes its ids, and so can be stopped by others inside before
//! the program runs. The caller's word is still the last.

use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::{Guarded, PYTHON, sbx, script};
use crate::ModeTest;
use crate::harness::{World, eventually, is_pending, kill};

pub(crate) const TESTS: &[ModeTest] = &[(
    "a_command_that_is_frozen_before_it_runs_can_be_left_and_stopped",
    frozen,
)];

/// How many commands are started until one is frozen.
const MOST: usize = 200;

fn frozen(shared: &'static World) {
    let world = World::fresh(shared.mode);
    let sandbox = world.sandbox("frozen");
    let program = "
mine = set(os.listdir('/proc'))
# Before its program runs, a process is still called what init calls it.
names = (open('/proc/1/comm').read(), 'sbx-spare\\n')
os.close(os.open('ready', os.O_CREAT | os.O_WRONLY))
while True:
    for name in os.listdir('/proc'):
        if name.isdigit() and name not in mine:
            try:
                os.kill(int(name), signal.SIGSTOP)
                early = open('/proc/%s/comm' % name).read() in names
                mine.add(name)
                open(('before-' if early else 'late-') + name, 'w').close()
            except OSError:
                pass
";
    let path = sandbox.path("program.py");
    world.write(&path, script(program, &[]));
    let attacker = world
        .sbx(["exec", &sandbox.name, PYTHON, "program.py"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _attacker = Guarded(attacker);
    eventually("the attacker", || {
        sandbox.path("ready").exists().then_some(())
    });
    let frozen = |when: &str| {
        let names = std::fs::read_dir(&sandbox.workspace).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(when)).count()
    };
    // It is a race, which the attacker wins now and then.
    let mut hung: Vec<Child> = Vec::new();
    while frozen("before-") == 0 && hung.len() < MOST {
        let late = frozen("late-");
        let mut child = world
            .sbx(["exec", &sandbox.name, "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the command is frozen, or was faster", || {
            let stopped = frozen("before-") > 0 || frozen("late-") > late;
            (stopped || child.try_wait().unwrap().is_some()).then_some(())
        });
        hung.push(child);
    }
    assert!(frozen("before-") > 0, "no command was frozen in time");
    for child in &mut hung {
        let pid = i32::try_from(child.id()).unwrap();
        for _ in 0..3 {
            if child.try_wait().unwrap().is_none() {
                assert!(kill(pid, Signal::TERM));
                // Another one before that would be the same one.
                eventually("the client has heard it", || {
                    (!is_pending(pid, Signal::TERM)).then_some(())
                });
            }
        }
        eventually("the client's end", || child.try_wait().unwrap());
    }
    sbx(&world, &["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert_eq!(sandbox.sh("echo again").ok(), "again");
    sbx(&world, &["rm", "--force", &sandbox.name]).ok();
}
