//! `ssh NAME.sbx` with the real OpenSSH: shell, exec, scp, sftp, rsync, forwards.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{Mode, Ran, Sandbox, World, eventually, host_has, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("ssh::commands_files_and_forwards", everything),
    ("ssh::hostile_paths_stay_inside", hostile),
];

/// The same client does the same in every mode.
pub const INDEPENDENT: &[ModeTest] = &[
    ("ssh::setup_changes_nothing_else", setup),
    ("ssh::setup_refuses_files_of_other_users", refused_files),
    ("ssh::a_shell_on_a_terminal", shell),
    ("ssh::statuses_streams_and_signals", statuses),
    ("ssh::a_hundred_megabytes_both_ways", large),
    ("ssh::sftp_scp_and_rsync", files),
    ("ssh::forwards_to_the_loopback_only", forwards),
    ("ssh::survives_a_restart_of_the_daemon", restart),
    ("ssh::a_connection_counts_as_a_session", counts),
    ("ssh::variables_are_taken_when_settings_say_so", variables),
    ("ssh::what_cannot_be_connected_is_said", unknown),
];

const TOOLS: [&str; 3] = ["ssh", "scp", "sftp"];

/// ssh takes its home from the accounts, not from HOME.
fn config(world: &World) -> PathBuf {
    world.home().join(".ssh/config")
}

/// `sbx setup ssh`, in every world once.
fn set_up(world: &World) -> bool {
    if !TOOLS.iter().all(|tool| host_has(tool)) {
        return false;
    }
    world.run(["setup", "ssh"]).ok();
    true
}

impl Sandbox<'_> {
    fn host(&self) -> String {
        format!("{}.sbx", self.name)
    }

    /// A program of OpenSSH with the block of `sbx setup ssh`.
    fn ssh_program(&self, program: &str) -> Command {
        let mut command = self.world.command(program);
        command.arg("-F").arg(config(self.world));
        command.args(["-o", "BatchMode=yes"]);
        command
    }

    fn ssh(&self, flags: &[&str], command: &[&str]) -> Ran {
        let mut ssh = self.ssh_program("ssh");
        ssh.args(flags).arg(self.host()).args(command);
        Ran::from(ssh.output().unwrap())
    }

    fn scp(&self, words: &[&str]) -> Ran {
        let mut scp = self.ssh_program("scp");
        scp.arg("-rpq").args(words);
        Ran::from(scp.output().unwrap())
    }

    fn sftp(&self, batch: &str) -> Ran {
        let mut sftp = self.ssh_program("sftp");
        sftp.args(["-b", "-", &self.host()]);
        with_input(&mut sftp, batch.as_bytes())
    }
}

fn with_input(command: &mut Command, input: &[u8]) -> Ran {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that does not read everything is no error here.
        let _ = stdin.write_all(&input);
    });
    let ran = Ran::from(child.wait_with_output().unwrap());
    writer.join().unwrap();
    ran
}

/// An echo server on the sandbox's loopback.
fn serve(sandbox: &Sandbox<'_>, port: u16) -> Child {
    let script = include_str!("ports/echo.py");
    sandbox.world.write(&sandbox.path("echo.py"), script);
    sandbox.begin(&format!("exec /usr/bin/python3 echo.py {port}"))
}

fn everything(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("ssh");
    let out = sandbox.ssh(&[], &["echo out; echo err >&2; exit 7"]);
    assert_eq!((out.code, &*out.out, &*out.err), (7, "out\n", "err\n"));
    // As the user of `sbx exec`, in the home of that user.
    let facts = "cd; pwd; id -u; echo $HOME";
    assert_eq!(
        sandbox.ssh(&[], &["pwd; id -u; echo $HOME"]).ok(),
        sandbox.sh(facts).ok(),
        "as with exec, at home"
    );
    assert_eq!(sandbox.ssh(&["-l", "root"], &["id", "-u"]).ok(), "0");
    let here = world.workspace();
    world.write(&here.join("file"), "text\n");
    let file = here.join("file");
    sandbox
        .scp(&[
            file.to_str().unwrap(),
            &format!("{}:/tmp/there", sandbox.host()),
        ])
        .ok();
    let owner = sandbox
        .sh("cat /tmp/there; stat -c %u /tmp/there; id -u")
        .ok();
    let lines: Vec<&str> = owner.lines().collect();
    assert_eq!((lines[0], lines[1]), ("text", lines[2]), "its own user's");
    let back = here.join("back");
    sandbox
        .scp(&[
            &format!("{}:/tmp/there", sandbox.host()),
            back.to_str().unwrap(),
        ])
        .ok();
    assert_eq!(fs::read_to_string(&back).unwrap(), "text\n");
    let mut server = serve(&sandbox, 4000);
    let mut ssh = sandbox.ssh_program("ssh");
    ssh.args(["-W", "localhost:4000", &sandbox.host()]);
    assert_eq!(with_input(&mut ssh, b"whole\nabc").ok(), "cba");
    server.kill().unwrap();
    server.wait().unwrap();
    // A stopped one is started.
    world.run(["stop", &sandbox.name]).ok();
    assert_eq!(sandbox.ssh(&[], &["cat", "/tmp/there"]).ok(), "text");
}

fn setup(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.home().join(".ssh");
    let block = |world: &World| fs::read_to_string(config(world)).unwrap();
    world.run(["setup", "ssh"]).ok();
    for (path, mode) in [(&dir, 0o700), (&config(&world), 0o600)] {
        let stat = fs::metadata(path).unwrap();
        assert_eq!((stat.mode() & 0o777, stat.uid()), (mode, world.uid));
    }
    let first = block(&world);
    assert!(
        first.contains("\nHost *.sbx\n    User _default_user_\n"),
        "{first}"
    );
    let again = world.run(["setup", "ssh"]);
    assert!(again.err.contains("is as it should be"), "{}", again.err);
    assert_eq!(block(&world), first);
    world.run(["setup", "ssh", "remove"]).ok();
    assert_eq!(block(&world), "");
    let own = "ForwardAgent yes\r\n\n# mine\nHost *\n  User me";
    world.write(&config(&world), own);
    world.run(["setup", "ssh", "--alias", "box-*"]).ok();
    assert!(block(&world).contains("\nHost box-*\n") && block(&world).ends_with(own));
    world.run(["setup", "ssh", "--alias", "none"]).fails(2);
    // What is printed is what is written, and nothing is changed.
    let before = block(&world);
    assert_eq!(world.run(["setup", "ssh", "--print"]).ok() + "\n", first);
    assert_eq!(block(&world), before);
    // Everything of the engine goes, with the block and the key.
    let sandbox = world.sandbox("gone");
    world.run(["ssh", "known-hosts", "x.sbx"]).ok();
    let key = world.state().join("ssh-host-key");
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
    drop(sandbox);
    world.run(["reset", "--force"]).ok();
    assert_eq!(block(&world), own);
    assert!(!key.exists());
}

fn refused_files(world: &'static World) {
    let world = World::fresh(world.mode);
    let dir = world.home().join(".ssh");
    world.make_dir(&dir);
    let elsewhere = world.home().join("elsewhere");
    world.write(&elsewhere, "Host a\n");
    symlink(&elsewhere, config(&world)).unwrap();
    if tester_is_root() {
        std::os::unix::fs::lchown(config(&world), Some(world.uid), Some(world.gid)).unwrap();
    }
    let said = world.run(["setup", "ssh"]).fails(1);
    assert!(said.err.contains("is a link"), "{}", said.err);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "Host a\n");
    fs::remove_file(config(&world)).unwrap();
    world.write(&config(&world), "x");
    if tester_is_root() {
        std::os::unix::fs::chown(config(&world), Some(12345), None).unwrap();
        let said = world.run(["setup", "ssh"]).fails(1);
        assert!(said.err.contains("is not yours"), "{}", said.err);
    }
    let program = world.run(["ssh", "known-hosts", "a b"]).fails(2);
    assert!(program.err.contains("invalid host name"), "{}", program.err);
}

fn shell(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("shell");
    let (config, host) = (config(world), sandbox.host());
    let args = [
        "-F",
        config.to_str().unwrap(),
        "-o",
        "LogLevel=ERROR",
        &host,
    ];
    let session = Session::start_program(world, "ssh", &args);
    session.type_in("pwd; stty size; echo $TERM-$((40+2)); shopt -q login_shell && echo log-in\n");
    session.expect(sandbox.workspace.to_str().unwrap());
    session.expect("31 117");
    session.expect("-42");
    session.expect("log-in");
    session.resize(20, 99);
    session.type_in("while [ \"$(stty size)\" != '20 99' ]; do sleep 0.05; done; echo resi''zed\n");
    session.expect("resized");
    session.type_in("echo be''gun; sleep 1000\n");
    session.expect("begun");
    session.type_in("\x03");
    // What is typed before that is thrown away by the terminal.
    session.expect("^C");
    session.type_in("echo inter''rupted; exit 5\n");
    session.expect("interrupted");
    assert_eq!(session.end().0, Some(5));
}

fn statuses(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("status");
    for code in [0, 1, 42, 255] {
        sandbox.ssh(&[], &[&format!("exit {code}")]).fails(code);
    }
    sandbox.ssh(&[], &["no-such-command-at-all"]).fails(127);
    // ssh has one code for all signals.
    sandbox.ssh(&[], &["kill -9 $$"]).fails(255);
    sandbox.ssh(&["-l", "nosuchuser"], &["true"]).fails(125);
    let unread = sandbox.ssh(&["-s"], &["netconf"]);
    assert!(
        unread.err.contains("subsystem request failed"),
        "{}",
        unread.err
    );
    // One argument, quoted by the shell inside.
    assert_eq!(
        sandbox.ssh(&[], &["printf '%s|' 'a b' \"$0\""]).out,
        "a b|/bin/bash|"
    );
    // The end of the input is told, and its beginning is not lost.
    let mut cat = sandbox.ssh_program("ssh");
    cat.args([&sandbox.host(), "cat; echo end"]);
    assert_eq!(with_input(&mut cat, b"in\n").ok(), "in\nend");
    // A client that goes takes its command with it.
    let mut client = sandbox.ssh_program("ssh");
    client.args([&sandbox.host(), "echo started; exec sleep 4321"]);
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(client.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    eventually("the command ends with its client", || {
        (sandbox.sh("pgrep -f 'sleep 432[1]'").code != 0).then_some(())
    });
    // Many on one connection: the master is the user's decision.
    let socket = world.home().join("master");
    let path = format!("ControlPath={}", socket.display());
    let mut master = sandbox.ssh_program("ssh");
    master.args([
        "-o",
        &path,
        "-o",
        "ControlMaster=yes",
        "-o",
        "ControlPersist=no",
        "-N",
    ]);
    let mut master = master.arg(sandbox.host()).spawn().unwrap();
    eventually("the master listens", || socket.exists().then_some(()));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (path, sandbox) = (&path, &sandbox);
            scope.spawn(move || {
                let command = format!("seq 1 20000 | tail -1; exit {number}");
                let ran = sandbox.ssh(&["-o", path], &[&command]);
                assert_eq!((ran.code, &*ran.out), (number, "20000\n"), "{}", ran.err);
            });
        }
    });
    master.kill().unwrap();
    master.wait().unwrap();
}

fn large(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("large");
    let size = 100 << 20;
    // New keys in the middle of it.
    let mut ssh = sandbox.ssh_program("ssh");
    ssh.args(["-o", "RekeyLimit=16M", &sandbox.host()]);
    ssh.arg(format!("head -c {size} /dev/zero"));
    let mut child = ssh.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut come = 0;
    loop {
        let count = stdout.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        assert!(buffer[..count].iter().all(|byte| *byte == 0));
        come += count;
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(come, size);
    let mut ssh = sandbox.ssh_program("ssh");
    ssh.args(["-o", "RekeyLimit=16M", &sandbox.host(), "sha256sum"]);
    let bytes: Vec<u8> = (0..size)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let said = with_input(&mut ssh, &bytes).ok();
    let same = world.workspace().join("bytes");
    world.write(&same, &bytes);
    let expected = Command::new("sha256sum").arg(&same).output().unwrap();
    assert_eq!(said.as_bytes()[..64], expected.stdout[..64]);
}

fn files(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("files");
    let here = world.workspace();
    world.make_dir(&here.join("tree"));
    world.make_dir(&here.join("tree/sub"));
    world.write(&here.join("tree/sub/file"), "text\n");
    world.write(&here.join("tree/run"), "#!/bin/sh\necho ran\n");
    fs::set_permissions(here.join("tree/run"), fs::Permissions::from_mode(0o755)).unwrap();
    let big: Vec<u8> = (0..3_000_000_u32)
        .map(|at| u8::try_from(at % 253).unwrap())
        .collect();
    world.write(&here.join("tree/big"), &big);
    let local = here.to_str().unwrap();
    let said = sandbox
        .sftp(&format!(
            "mkdir /tmp/s\ncd /tmp/s\nput {local}/tree/big one\nrename one two\nln -s two link\nchmod 640 two\n\
             ls -l\nls -la /tmp/s\nget link {local}/got\nmkdir d\nrmdir d\ndf\npwd\nrm link\n"
        ))
        .ok();
    assert!(
        said.contains("-rw-r-----") && said.contains("two"),
        "{said}"
    );
    assert!(said.contains("Remote working directory: /tmp/s"), "{said}");
    assert_eq!(fs::read(here.join("got")).unwrap(), big);
    assert_eq!(
        sandbox.sh("ls /tmp/s; stat -c %a /tmp/s/two").ok(),
        "two\n640"
    );
    // What is there is not overwritten by the plain rename; an error is an error.
    sandbox.sftp("rm /tmp/s/none\n").fails(1);
    sandbox.sftp("get /tmp/no-such-file\n").fails(1);
    let home = sandbox.sh("cd; pwd").ok();
    assert!(sandbox.sftp("pwd\n").ok().contains(&home));
    let remote = format!("{}:/tmp/copied", sandbox.host());
    let tree = here.join("tree");
    sandbox.scp(&[tree.to_str().unwrap(), &remote]).ok();
    assert_eq!(
        sandbox.sh("/tmp/copied/run; cat /tmp/copied/sub/file").ok(),
        "ran\ntext"
    );
    sandbox.scp(&[&remote, &format!("{local}/back")]).ok();
    assert_eq!(fs::read(here.join("back/big")).unwrap(), big);
    assert_eq!(
        fs::metadata(here.join("back/run")).unwrap().mode() & 0o777,
        0o755
    );
    // The old protocol of scp is a command inside.
    let old = format!("{}:/tmp/old", sandbox.host());
    sandbox
        .scp(&["-O", &format!("{local}/tree/run"), &old])
        .ok();
    assert_eq!(sandbox.sh("/tmp/old").ok(), "ran");
    // A home of the sandbox's user.
    let home = format!("{}:~/x", sandbox.host());
    sandbox.scp(&[&format!("{local}/tree/run"), &home]).ok();
    assert_eq!(sandbox.sh("~/x").ok(), "ran");
    if !host_has("rsync") {
        return;
    }
    let rsync = |words: &[&str]| {
        let mut rsync = world.command("rsync");
        let shell = format!("ssh -F {} -o BatchMode=yes", config(world).display());
        rsync.args(["-a", "--delete", "-e", &shell]).args(words);
        Ran::from(rsync.output().unwrap())
    };
    let mirror = format!("{}:/tmp/mirror/", sandbox.host());
    rsync(&[&format!("{local}/tree/"), &mirror]).ok();
    fs::remove_file(here.join("tree/run")).unwrap();
    rsync(&[&format!("{local}/tree/"), &mirror]).ok();
    assert_eq!(sandbox.sh("ls /tmp/mirror").ok(), "big\nsub");
    rsync(&[&mirror, &format!("{local}/returned/")]).ok();
    assert_eq!(fs::read(here.join("returned/big")).unwrap(), big);
}

fn forwards(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("forward");
    let mut server = serve(&sandbox, 4100);
    let through = |target: &str, input: &[u8]| {
        let mut ssh = sandbox.ssh_program("ssh");
        with_input(ssh.args(["-W", target, &sandbox.host()]), input)
    };
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        assert_eq!(
            through(&format!("{host}:4100"), b"whole\nab").ok(),
            "ba",
            "{host}"
        );
    }
    // Elsewhere is what the network policy is about, also for programs inside.
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = host.local_addr().unwrap().port();
    for target in [
        "example.com:80",
        "10.0.0.1:80",
        "127.0.0.2:4100",
        "0.0.0.0:4100",
        "gateway.docker.internal:3128",
    ] {
        let said = through(target, b"").refused();
        assert!(
            said.err.contains("only localhost of the sandbox"),
            "{target}: {}",
            said.err
        );
    }
    let said = through(&format!("localhost:{port}"), b"").refused();
    assert!(
        said.err.contains("refused"),
        "not the host's own: {}",
        said.err
    );
    // Remote forwards and sockets of files are not offered.
    let reverse = sandbox.ssh(
        &["-o", "ExitOnForwardFailure=yes", "-R", "0:localhost:1"],
        &["true"],
    );
    reverse.refused();
    // A local port, and one thousand lines over it in both directions.
    let mut ssh = sandbox.ssh_program("ssh");
    let socket = world.home().join("forward.sock");
    ssh.args([
        "-N",
        "-L",
        &format!("{}:localhost:4100", socket.display()),
        &sandbox.host(),
    ]);
    let mut ssh = ssh.spawn().unwrap();
    let stream = eventually("ssh listens", || {
        std::os::unix::net::UnixStream::connect(&socket).ok()
    });
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for number in 0..1000 {
            writeln!(writer, "line {number} {}", "x".repeat(1000)).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let lines: Vec<String> = BufReader::new(&stream)
        .lines()
        .map(Result::unwrap)
        .collect();
    writing.join().unwrap();
    assert_eq!(lines.len(), 1000);
    assert!(lines[999].starts_with("line 999 "));
    for child in [&mut ssh, &mut server] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn restart(world: &'static World) {
    let world = World::fresh(world.mode);
    if !set_up(&world) {
        return;
    }
    let sandbox = world.sandbox("restart");
    let mut ssh = sandbox.ssh_program("ssh");
    ssh.args([
        &sandbox.host(),
        "while read line; do echo \"$line\"; done; exit 9",
    ]);
    let mut ssh = ssh
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = ssh.stdin.take().unwrap();
    let mut stdout = BufReader::new(ssh.stdout.take().unwrap());
    let mut say = |text: &str| {
        writeln!(stdin, "{text}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), text);
    };
    say("before");
    world.run(["daemon", "restart"]).ok();
    say("after");
    world.run(["exec", &sandbox.name, "true"]).ok();
    say("still");
    drop(stdin);
    assert_eq!(ssh.wait().unwrap().code(), Some(9));
}

fn counts(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 1}));
    if !set_up(&world) {
        return;
    }
    let (busy, idle) = (world.sandbox("busy"), world.sandbox("idle"));
    // Not even a forward yet.
    let mut ssh = busy.ssh_program("ssh");
    let mut ssh = ssh.args(["-N", &busy.host()]).spawn().unwrap();
    eventually("the connection is a session", || {
        (world.inspect(&busy.name)["sessions"] == 1).then_some(())
    });
    idle.exec(["true"]).ok();
    world.until_stopped(&idle.name, "it was used later");
    assert_eq!(world.status(&busy.name), "running");
    world.run(["rm", &busy.name]).fails(1);
    // With the sandbox the connection ends too.
    world.run(["stop", &busy.name]).ok();
    assert!(!ssh.wait().unwrap().success());
    let mut ssh = busy.ssh_program("ssh");
    let mut ssh = ssh.args(["-N", &busy.host()]).spawn().unwrap();
    eventually("it is started again", || {
        (world.inspect(&busy.name)["sessions"] == 1).then_some(())
    });
    ssh.kill().unwrap();
    ssh.wait().unwrap();
    world.until_stopped(&busy.name, "without a connection it is idle");
}

fn variables(world: &'static World) {
    let world = World::fresh(world.mode);
    world.settings(json!({"auto_stop_seconds": 0}));
    if !set_up(&world) {
        return;
    }
    let sandbox = world.sandbox("variables");
    let said = || {
        let flags = ["-o", "SetEnv=LC_X=1 OTHER=2"];
        sandbox.ssh(&flags, &["echo \"[$LC_X][$OTHER]\""]).ok()
    };
    assert_eq!(said(), "[][]");
    let mut settings = json!({"auto_stop_seconds": 0, "ssh_accept_env": ["LC_*"]});
    if world.mode == Mode::Single {
        settings["mode"] = "single".into();
    }
    world.write(&world.state().join("settings.json"), settings.to_string());
    assert_eq!(said(), "[1][]");
}

fn unknown(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("known");
    let mut ssh = sandbox.ssh_program("ssh");
    let said = Ran::from(ssh.args(["no-such-box.sbx", "true"]).output().unwrap()).fails(255);
    assert!(said.err.contains("no-such-box"), "{}", said.err);
    assert!(
        !world.names().contains(&"no-such-box".to_owned()),
        "nothing is created"
    );
    // Another key than the one of `known-hosts` is not accepted.
    let other = world.home().join("other_hosts");
    let line =
        "* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea\n";
    world.write(&other, line);
    let file = format!("UserKnownHostsFile={}", other.display());
    let flags = ["-o", &file, "-o", "KnownHostsCommand=none"];
    let said = sandbox.ssh(&flags, &["true"]).fails(255);
    assert!(
        said.err.contains("REMOTE HOST IDENTIFICATION") || said.err.contains("verification failed"),
        "{}",
        said.err
    );
    let key = world.run(["ssh", "known-hosts", &sandbox.host()]).ok();
    assert!(key.starts_with(&format!("{} ssh-ed25519 AAAA", sandbox.host())));
    world.write(&other, format!("{key}\n"));
    sandbox.ssh(&flags, &["true"]).ok();
    // What is not ssh.
    let said = world.run_with_stdin(["ssh", "proxy", &sandbox.host()], b"GET / HTTP/1.1\r\n\r\n");
    assert!(said.fails(1).err.contains("does not speak SSH 2"));
}

/// The server of SFTP has the sandbox's files and ids, whatever it is asked for.
fn hostile(world: &'static World) {
    if !set_up(world) {
        return;
    }
    let sandbox = world.sandbox("hostile");
    let outside = world.workspace();
    world.write(&outside.join("secret"), "secret\n");
    let secret = outside.join("secret");
    let up = format!("{}{}", "../".repeat(40), secret.display());
    for path in [secret.to_str().unwrap(), &up] {
        sandbox
            .sftp(&format!("get {path} {}/stolen\n", outside.display()))
            .fails(1);
    }
    // A link that leads out of the workspace leads to a place inside.
    let link = sandbox.path("out");
    sandbox.sh(&format!("ln -s {} out", secret.display())).ok();
    sandbox
        .sftp(&format!(
            "get {} {}/stolen\n",
            link.display(),
            outside.display()
        ))
        .fails(1);
    assert!(!outside.join("stolen").exists());
    let file = outside.join("mine");
    world.write(&file, "mine\n");
    sandbox
        .sftp(&format!("put {} {}\n", file.display(), link.display()))
        .refused();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret\n");
    let accounts = || fs::read("/etc/passwd").unwrap();
    let before = accounts();
    let said = sandbox.sftp("put /etc/hostname /etc/passwd\n");
    // With one id the sandbox's own copy is its user's.
    if world.mode != Mode::Single {
        let err = said.refused().err;
        assert!(err.contains("ermission denied"), "{err}");
    }
    assert_eq!(accounts(), before);
}
