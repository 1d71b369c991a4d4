//! The same program on our own engine, where it can run here.

mod limits;
mod own;
mod terminal;

use std::path::Path;
use std::process::Command;

use crate::world::{Ran, write};

pub(crate) use own::Own;

#[test]
fn a_run_with_nothing_configured_uses_the_engine_beside_us() {
    let Some(own) = Own::new() else { return };
    let ran = own
        .crabbox(&["run", "--", "sh", "-c", "pwd; cat README; exit 7"])
        .exits(7);
    assert_eq!(ran.out, format!("{}\nhello\n", own.world.repo().display()));
    assert_eq!(ran.cause(), "docker-sandbox run exited 7");
    own.crabbox(&["run", "--", "sh", "-c", "exit 125"])
        .exits(125);
    own.is_clean();
    let doctor = own.crabbox(&["doctor"]).exits(0);
    assert!(doctor.out.contains("found=bundled"), "{}", doctor.out);
    assert!(
        doctor.out.contains("sbx_compatibility=ok contract=0.31.3"),
        "{}",
        doctor.out
    );
}

#[test]
fn commits_in_a_linked_worktree_need_git_write() {
    let Some(own) = Own::new() else { return };
    let git = |directory: &Path, words: &[&str]| {
        let mut git = Command::new("git");
        own.prepare(&mut git);
        git.args(["-c", "user.name=Host", "-c", "user.email=host@example.test"]);
        git.arg("-C").arg(directory).args(words);
        Ran::from(git.output().unwrap()).exits(0)
    };
    let repo = own.world.repo();
    git(&repo, &["init", "-q"]);
    git(&repo, &["add", "README"]);
    git(&repo, &["commit", "-q", "--allow-empty", "-m", "first"]);
    let linked = own.world.path("linked");
    git(&repo, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    let run = |flags: &[&str]| {
        let commit = "echo x >new && git add new && \
                      git -c user.name=In -c user.email=in@example.test commit -q -m inside";
        let words = [&["run"], flags, &["--", "sh", "-c", commit]].concat();
        let mut command = own.world.command(&words);
        own.environment(&mut command);
        Ran::from(command.current_dir(&linked).output().unwrap())
    };
    let refused = run(&[]).exits(128);
    assert!(
        refused.err.contains("Read-only file system"),
        "{}",
        refused.err
    );
    run(&["--git-write"]).exits(0);
    assert_eq!(git(&linked, &["log", "-1", "--format=%s"]).out, "inside\n");
    assert_eq!(git(&linked, &["status", "--porcelain"]).out, "");
    // Nothing that comes with a repository may ask for it.
    let settings = linked.join(".crabbox.yaml");
    write(&settings, "dockerSandbox:\n  gitWrite: true\n");
    let untrusted = run(&[]);
    assert_ne!(untrusted.code, 0);
    assert!(untrusted.err.contains("gitWrite"), "{}", untrusted.err);
    own.is_clean();
}

#[test]
fn a_kept_lease_is_used_again_and_stopped() {
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "kept"]).exits(0);
    own.crabbox(&[
        "run",
        "--id",
        "kept",
        "--",
        "sh",
        "-c",
        "echo x > /tmp/mark",
    ])
    .exits(0);
    assert_eq!(
        own.crabbox(&["run", "--id", "kept", "--", "cat", "/tmp/mark"])
            .ok(),
        "x\n"
    );
    let status = own
        .crabbox(&["status", "kept", "--wait", "--json"])
        .exits(0)
        .json();
    assert_eq!(status["ready"], true);
    let script = "printf %s \"$CRABBOX_SLUG\"";
    assert_eq!(
        own.crabbox(&["run", "--id", "kept", "--shell", script])
            .ok(),
        "kept"
    );
    own.crabbox(&["stop", "kept"])
        .exits(0)
        .says("released lease=");
    own.is_clean();
}

#[test]
fn a_sandbox_that_vanished_is_told_apart_from_a_command_that_failed() {
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "gone"]).exits(0);
    let sandbox = own
        .world
        .claim_names()
        .remove(0)
        .trim_start_matches("dsbx_")
        .to_owned();
    own.sbx(&["rm", "--force", &sandbox]).exits(0);
    own.crabbox(&["run", "--id", "gone", "--", "true"])
        .exits(4)
        .says("is not present in sbx inventory")
        .says("hint: crabbox stop --provider docker-sandbox gone");
    own.crabbox(&["stop", "gone"]).exits(0);
    own.is_clean();
}

/// As a user has it who once installed something else of that name.
#[test]
fn a_kept_run_and_its_printed_stop_use_the_bundled_engine_with_another_sbx_in_path() {
    let Some(own) = Own::new() else { return };
    let other_engine = own.world.path("strange/sbx");
    write(&other_engine, "#!/bin/sh\nexit 9\n");
    std::fs::set_permissions(
        &other_engine,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        own.world.path("strange").display()
    );
    let crabbox = |args: &[&str]| {
        let mut command = own.world.command(args);
        own.environment(&mut command);
        Ran::from(command.env("PATH", &path).output().unwrap())
    };
    let output = own.world.path("lease.json").display().to_string();
    crabbox(&[
        "run",
        "--keep",
        "--slug",
        "k",
        "--lease-output",
        &output,
        "--",
        "true",
    ])
    .exits(0);
    let session: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    let stop = session["cleanupCommand"].as_str().unwrap();
    let words: Vec<_> = stop.split(' ').skip(1).collect();
    crabbox(&words).exits(0).says("released lease=");
    // What is not found inside is told as the cause.
    let ran = crabbox(&["run", "--", "no-such-program"]).exits(127);
    assert!(
        ran.cause().starts_with("docker-sandbox run exited 127: ")
            && ran.cause().contains("no-such-program"),
        "{}",
        ran.err
    );
    own.is_clean();
}

#[test]
fn ports_and_copies_reach_the_sandbox_of_a_lease() {
    use std::io::{Read, Write};
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "busy"]).exits(0);
    // There and back, by a relative path and through a directory.
    let repo = own.world.repo();
    own.crabbox(&["cp", "--id", "busy", "README", "sandbox:/tmp/read"])
        .exits(0);
    own.crabbox(&[
        "run",
        "--id",
        "busy",
        "--",
        "mkdir -p /tmp/d && cp /tmp/read /tmp/d && ln -s read /tmp/d/link",
    ])
    .exits(0);
    own.crabbox(&["cp", "--id", "busy", "-L", "sandbox:/tmp/d", "copied"])
        .exits(0);
    for name in ["read", "link"] {
        let copied = repo.join("copied").join(name);
        assert!(std::fs::symlink_metadata(&copied).unwrap().is_file());
        assert_eq!(std::fs::read_to_string(copied).unwrap(), "hello\n");
    }
    let missing = own
        .crabbox(&["cp", "--id", "busy", "sandbox:/none", "."])
        .exits(1);
    assert!(
        missing.err.contains("cannot open `/none`"),
        "{}",
        missing.err
    );
    // A server that outlives its run, on the sandbox's loopback.
    let server = "import socket; s = socket.create_server(('127.0.0.1', 8000)); c = s.accept()[0]; c.sendall(c.recv(9)); c.close()";
    let name = own.sbx(&["ls", "-q"]).exits(0).out.trim().to_owned();
    own.sbx(&["exec", "-d", &name, "/usr/bin/python3", "-c", server])
        .exits(0);
    let said = own
        .crabbox(&["ports", "--id", "busy", "--publish", "8000"])
        .exits(0);
    assert!(said.out.starts_with("Published 127.0.0.1:"), "{}", said.out);
    let ports = own
        .crabbox(&["ports", "--id", "busy", "--json"])
        .exits(0)
        .json();
    let port = u16::try_from(ports[0]["host_port"].as_u64().unwrap()).unwrap();
    assert_eq!(ports[0]["sandbox_port"], 8000);
    let mut answer = String::new();
    for _ in 0..600 {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let asked = stream.write_all(b"question\n");
        // Until it listens, a connection is reset.
        if asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && !answer.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(answer, "question\n");
    own.crabbox(&["ports", "--id", "busy", "--unpublish", "8000"])
        .exits(0);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    own.crabbox(&["stop", "busy"]).exits(0);
    own.is_clean();
}

#[test]
fn background_work_of_a_kept_lease_goes_on_until_its_idle_timeout() {
    let Some(own) = Own::new() else { return };
    own.crabbox(&["warmup", "--slug", "kept", "--idle-timeout", "40m"])
        .exits(0);
    let lease = own.world.claim_names().remove(0);
    let sandbox = lease.trim_start_matches("dsbx_");
    let shown = own.sbx(&["inspect", "--json", sandbox]).exits(0).json();
    let shown = shown.get(0).unwrap_or(&shown);
    assert_eq!(shown["idle_seconds"], 2400, "{shown}");
    // It outlives the engine's usual time: a sandbox that has no more than that stops meanwhile.
    own.sbx(&["settings", "set", "auto_stop_seconds", "1"])
        .exits(0);
    let background = "setsid sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/background";
    own.crabbox(&["run", "--id", "kept", "--", "sh", "-c", background])
        .exits(0);
    let repo = own.world.repo().display().to_string();
    own.sbx(&["create", "--name", "usual", "shell", &repo])
        .exits(0);
    own.sbx(&["exec", "usual", "true"]).exits(0);
    let inspected = |name: &str| {
        let shown = own.sbx(&["inspect", "--json", name]).exits(0).json();
        shown.get(0).unwrap_or(&shown).clone()
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while inspected("usual")["stop_reason"] != "idle" {
        assert!(std::time::Instant::now() < end, "{}", inspected("usual"));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let shown = inspected(sandbox);
    assert_eq!(shown["status"], "running", "{shown}");
    let alive = "kill -0 $(cat /tmp/background)";
    own.crabbox(&["run", "--id", "kept", "--", "sh", "-c", alive])
        .exits(0);
    own.sbx(&["rm", "--force", "usual"]).exits(0);
    own.crabbox(&["stop", "kept"]).exits(0);
    own.is_clean();
}

#[test]
fn a_detached_command_runs_in_the_sandbox_and_is_ended_by_force() {
    let Some(own) = Own::new() else { return };
    let script = "echo up; exec sleep 1000";
    let started = own.crabbox(&["run", "-d", "--slug", "bg", "--", "sh", "-c", script]);
    assert_eq!(started.exits(0).out, "bg\n");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while own.crabbox(&["logs", "bg"]).exits(0).out != "up\n" {
        assert!(std::time::Instant::now() < end, "no output");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    own.crabbox(&["stop", "--force", "bg"]).exits(0);
    // The supervisor ends, and with it what it had in use.
    let run = || own.crabbox(&["history", "--json"]).exits(0).json()["runs"][0].clone();
    while run()["runStatus"] == "running" {
        assert!(std::time::Instant::now() < end, "{}", run());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_ne!(run()["runStatus"], "succeeded");
    own.is_clean();
}

/// A program named `sbx` that writes down what it is called for, and then is our engine.
fn counting_engine(own: &Own) -> (String, impl Fn() -> Vec<String>) {
    let (program, calls) = (own.world.path("counting/sbx"), own.world.path("calls"));
    let script = format!(
        "#!/bin/sh\necho \"$1\" >>'{}'\nexec '{}' \"$@\"\n",
        calls.display(),
        own.sbx.display()
    );
    write(&program, &script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let made = move || {
        let text = std::fs::read_to_string(&calls).unwrap();
        std::fs::remove_file(&calls).unwrap();
        // A script may start another program each time; what is known of a program is kept.
        let all = text.lines().filter(|call| *call != "version");
        all.map(str::to_owned).collect()
    };
    (program.display().to_string(), made)
}

#[test]
fn a_run_is_three_calls_of_our_engine() {
    let Some(own) = Own::new() else { return };
    let (program, calls) = counting_engine(&own);
    let run = |script: &str| {
        let words = ["run", "--docker-sandbox-cli", &program, "--", "bash", "-c"];
        own.crabbox(&[&words[..], &[script]].concat())
    };
    run("true").exits(0);
    assert_eq!(calls(), ["create", "exec", "rm"]);
    run("exit 3").exits(3);
    assert_eq!(calls(), ["create", "exec", "rm"]);
    // Only a denial is asked about, also of a command that succeeds.
    run("exec 3<>/dev/tcp/denied.example/443 || true")
        .says("warning: the network policy denied denied.example:443")
        .says("policy allow network --repo ");
    assert_eq!(calls(), ["create", "exec", "policy", "rm"]);
    own.is_clean();
}

/// The slug of a lease is the directory's name, which is found without git. Only the engine asks git: who the user is.
#[test]
fn a_run_starts_no_git_for_a_name() {
    let Some(own) = Own::new() else { return };
    let repo = own.world.repo();
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        own.prepare(&mut git);
        Ran::from(git.args(words).output().unwrap()).exits(0)
    };
    git(&["init", "-q"]);
    git(&[
        "remote",
        "add",
        "origin",
        "https://example.test/a/other.git",
    ]);
    let calls = own.world.path("calls");
    let script = format!("#!/bin/sh\necho \"$*\" >>'{}'\n", calls.display());
    let shim = own.world.path("shim/git");
    write(&shim, &script);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&shim, mode).unwrap();
    let path = format!(
        "{}:/usr/local/bin:/usr/bin:/bin",
        own.world.path("shim").display()
    );
    let run = |directory: &Path| {
        let mut command = own.command(&["run", "--", "true"]);
        command.current_dir(directory).env("PATH", &path);
        Ran::from(command.output().unwrap()).exits(0)
    };
    let below = repo.join("below");
    std::fs::create_dir(&below).unwrap();
    for directory in [&repo, &below] {
        run(directory);
        let made = std::fs::read_to_string(&calls).unwrap();
        std::fs::remove_file(&calls).unwrap();
        let asked = |call: &str| call.starts_with("config ") && call.contains("user");
        assert!(made.lines().all(asked), "{made}");
    }
    own.is_clean();
}

#[test]
fn a_removal_that_our_engine_refuses_keeps_the_lease() {
    let Some(own) = Own::new() else { return };
    let (program, _) = counting_engine(&own);
    let flag = ["--docker-sandbox-cli", &program];
    own.crabbox(&[&["warmup", "--slug", "kept"], &flag[..]].concat())
        .exits(0);
    let whole = std::fs::read_to_string(&program).unwrap();
    let refusing = whole.replace(
        "exec ",
        "test \"$1\" = rm && echo error: no >&2 && exit 1\nexec ",
    );
    write(Path::new(&program), &refusing);
    let stop = || own.crabbox(&[&["stop", "kept"], &flag[..]].concat());
    let failed = stop().exits(1);
    assert_eq!(own.world.claim_names().len(), 1);
    write(Path::new(&program), &whole);
    // What the hint says works as it is, in a shell that knows nothing of this engine.
    let hint = failed.err.lines().find_map(|line| {
        let command = line.strip_prefix("hint: run `")?;
        command.strip_suffix("` to retry cleanup")
    });
    let hint = hint.unwrap_or_else(|| panic!("no hint: {}", failed.err));
    assert!(hint.contains(&program), "{hint}");
    let mut typed = Command::new("sh");
    typed.args(["-c", hint]);
    own.prepare(&mut typed);
    Ran::from(typed.env_remove("SBX_HOME").output().unwrap()).exits(0);
    assert_eq!(own.sbx(&["ls", "-q"]).exits(0).out, "");
    stop().exits(0).says("released lease=");
    own.is_clean();
}

#[test]
fn a_denied_run_names_a_command_that_works_for_the_next_one() {
    let Some(own) = Own::new() else { return };
    // No such host: what matters is who refuses it.
    let script = "exec 3<>/dev/tcp/denied.example/443";
    let run = ["run", "--", "bash", "-c", script];
    let ran = own.crabbox(&run);
    assert_ne!(ran.code, 0);
    let denied = "warning: the network policy denied denied.example:443";
    let ran = ran.says(denied);
    let hint = ran.err.lines().find_map(|line| line.strip_prefix("hint: "));
    let hint = hint.unwrap_or_else(|| panic!("no hint: {}", ran.err));
    assert!(hint.contains("policy allow network --repo "), "{hint}");
    let mut allow = Command::new("sh");
    allow.args(["-c", hint]);
    own.prepare(&mut allow);
    let allowed = Ran::from(allow.output().unwrap()).exits(0);
    assert!(
        allowed.out.contains("denied.example:443"),
        "{}",
        allowed.out
    );
    own.crabbox(&run).never_says("the network policy denied");
    own.is_clean();
}

#[test]
fn a_build_cache_lasts_from_one_run_to_the_next() {
    let Some(own) = Own::new() else { return };
    let run = |flags: &[&str], script: &str| {
        let args = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        own.crabbox(&args)
    };
    let said = own.crabbox(&["cache", "ls"]).exits(0);
    assert_eq!(said.out, "");
    let write = "mkdir -p ~/.cache/tool && echo kept > ~/.cache/tool/file && echo x > ~/elsewhere";
    run(&["--cache"], write)
        .exits(0)
        .says("using the build cache of");
    let read = "cat ~/.cache/tool/file; ! test -e ~/elsewhere";
    assert_eq!(run(&["--cache"], read).ok(), "kept\n");
    run(&[], "! test -e ~/.cache/tool")
        .exits(0)
        .never_says("build cache");
    let shown = own.crabbox(&["cache", "ls", "--json"]).exits(0).json();
    let repo = own.world.repo().display().to_string();
    assert_eq!(shown["caches"][0]["workspace"], repo.as_str());
    // A lease that has it is named.
    own.crabbox(&["warmup", "--cache", "--slug", "holds"])
        .exits(0);
    let busy = own.crabbox(&["cache", "clear"]).exits(1);
    assert!(
        busy.cause().contains("is in use by sandbox"),
        "{}",
        busy.err
    );
    busy.says("hint: crabbox stop holds");
    own.crabbox(&["stop", "holds"]).exits(0);
    let cleared = own.crabbox(&["cache", "clear", "."]).exits(0);
    assert_eq!(cleared.out, format!("cleared {repo}\n"));
    run(&["--cache"], "! test -e ~/.cache/tool").exits(0);
    own.is_clean();
}
