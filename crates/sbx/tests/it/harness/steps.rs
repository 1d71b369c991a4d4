//! What many tests do on the way to what they are about.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::{Ran, Sandbox, World, eventually, kill};

impl World {
    /// `sbx` in that directory.
    pub fn run_in(&self, dir: &Path, args: &[&str]) -> Ran {
        Ran::from(self.sbx(args).current_dir(dir).output().unwrap())
    }

    pub fn create(&self, name: &str, dir: &Path) -> Ran {
        self.take_template();
        self.run(["create", "--name", name, "shell", dir.to_str().unwrap()])
    }

    /// A create that goes on while the test does something else.
    pub fn begin_create(&self, name: &str, dir: &Path) -> Child {
        let dir = dir.to_str().unwrap();
        self.sbx(["create", "-q", "--name", name, "shell", dir])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// A sandbox that some other command has made; removed when dropped.
    pub fn adopt(&self, name: &str, workspace: &Path) -> Sandbox<'_> {
        Sandbox {
            world: self,
            name: name.to_owned(),
            workspace: workspace.to_path_buf(),
        }
    }

    #[track_caller]
    pub fn id(&self, name: &str) -> String {
        self.inspect(name)["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a sandbox has stopped, for a reason that is not this test's command.
    #[track_caller]
    pub fn until_stopped(&self, name: &str, what: &str) {
        eventually(what, || (self.status(name) == "stopped").then_some(()));
    }

    /// No sandbox is listed, and none has left a file.
    #[track_caller]
    pub fn assert_no_sandboxes(&self) {
        assert_eq!(self.names(), Vec::<String>::new());
        assert_eq!(fs::read_dir(self.state().join("vm")).unwrap().count(), 0);
    }
}

impl Sandbox<'_> {
    /// Runs a script until it has said `ready`; what it says after that is in the client's output.
    #[track_caller]
    pub fn begin(&self, script: &str) -> Child {
        let mut client = self
            .world
            .sbx(["exec", &self.name, "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Not a byte more: the rest belongs to the test.
        let mut ready = [0; 6];
        let stdout = client.stdout.as_mut().unwrap();
        stdout.read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"ready\n");
        client
    }

    /// A command that runs until the file `go` exists, says `end` and exits with 44.
    #[track_caller]
    pub fn open_session(&self) -> Child {
        self.begin("echo ready; while [ ! -e go ]; do sleep 0.05; done; echo end; exit 44")
    }

    /// Ends init without any warning, and waits until the daemon knows.
    #[track_caller]
    pub fn kill_init(&self) {
        assert!(kill(self.world.init_pid(&self.name), Signal::KILL));
        self.world.until_stopped(&self.name, "the daemon knows");
    }
}
