//! A command's process is the agent's from the moment it changes its ids, and so can be stopped by others inside before
//! the program runs. The caller's word is still the last.

use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Guarded, PYTHON, sbx, script};
use crate::ModeTest;
use crate::harness::{World, eventually};

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
                if open('/proc/%s/comm' % name).read() in names:
                    mine.add(name)
                    open('before-' + name, 'w').close()
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
    let frozen_early = || {
        let names = std::fs::read_dir(&sandbox.workspace).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("before-")).count()
    };
    // It is a race, which the attacker wins now and then.
    let mut hung: Vec<Child> = Vec::new();
    while frozen_early() == 0 && hung.len() < MOST {
        let child = world
            .sbx(["exec", &sandbox.name, "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        hung.push(child);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(frozen_early() > 0, "no command was frozen in time");
    for child in &mut hung {
        let pid = Pid::from_child(child);
        for _ in 0..3 {
            if child.try_wait().unwrap().is_none() {
                kill_process(pid, Signal::TERM).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        eventually("the client's end", || child.try_wait().unwrap());
    }
    sbx(&world, &["stop", &sandbox.name]).ok();
    assert_eq!(world.status(&sandbox.name), "stopped");
    assert_eq!(sandbox.sh("echo again").ok(), "again");
    sbx(&world, &["rm", "--force", &sandbox.name]).ok();
}
