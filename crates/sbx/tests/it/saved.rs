//! Saved templates: what of a sandbox is in the sandboxes that are made from it, and what is not.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ModeTest;
use crate::exec::pty::Session;
use crate::harness::{Mode, Sandbox, World, eventually, host_has, kill, tester_is_root};

pub const TESTS: &[ModeTest] = &[
    ("saved::a_template_has_what_was_changed", changed),
    ("saved::a_template_of_a_template", again),
    ("saved::a_name_is_replaced_and_removed", replaced),
    ("saved::what_cannot_be_saved_or_used", refused),
    ("saved::what_a_crash_left_is_removed", crashed),
    ("saved::on_a_terminal_it_is_asked", asked),
    ("saved::another_agent_is_warned_of", another_agent),
];
pub const REAL_ROOT: &[ModeTest] = &[("saved::programs_of_root_stay_what_they_are", of_root)];
pub const ROOT: &[ModeTest] = &[("saved::a_sandbox_with_a_disk", with_disk)];

/// Stops a sandbox and saves it.
fn save(sandbox: &Sandbox<'_>, tag: &str) {
    let world = sandbox.world;
    world.run(["stop", &sandbox.name]).ok();
    let saved = world.run(["template", "save", &sandbox.name, tag]);
    assert!(saved.err.contains("secrets"), "{saved:?}");
    assert_eq!(saved.ok(), tag);
}

fn store(world: &World) -> PathBuf {
    world.state().join("templates/saved")
}

fn listed(world: &World) -> Vec<Value> {
    let listed = world.run(["template", "ls", "--json"]).ok();
    let mut listed: Value = serde_json::from_str(&listed).unwrap();
    let Value::Array(images) = listed["images"].take() else {
        panic!("no list");
    };
    images
}

/// Directories of templates, the finished ones.
fn stored(world: &World) -> Vec<String> {
    let entries = fs::read_dir(store(world)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != "tags.json").collect();
    names.sort();
    names
}

fn changed(world: &'static World) {
    let world = &World::fresh(world.mode);
    let first = world.sandbox("first");
    first
        .sh("echo mine > ~/made; ln ~/made ~/linked; ln -s /etc/shadow ~/link; mkfifo ~/pipe
            rm ~/.npmrc; rm -rf ~/.local; mkdir -p ~/.local/new ~/closed; chmod 700 ~/closed
            mkdir ~/old; echo old > ~/old/file; touch -d @1000000000 ~/made
            python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/home/agent/old/socket\")' || true
            echo in-the-workspace > note")
        .ok();
    save(&first, "my-template:v1");
    let [image] = listed(world).try_into().unwrap();
    assert_eq!(
        (&image["repository"], &image["tag"], &image["flavor"]),
        (&"my-template".into(), &"v1".into(), &"shell".into())
    );
    assert!(image["size"].as_u64().is_some_and(|size| size > 0));
    let table = world.run(["template", "ls"]).ok();
    assert!(table.starts_with("REPOSITORY "), "{table}");
    let second = world.sandbox_with("second", &["-t", "docker.io/library/my-template:v1"]);
    let shown = world.inspect(&second.name);
    assert_eq!(shown["template"], "my-template:v1");
    assert!(
        !shown["warnings"].to_string().contains("template"),
        "{shown}"
    );
    let seen = second.sh("cat ~/made; readlink ~/link; stat -c '%h %Y' ~/made; test -p ~/pipe; ls -A ~/.local
        test ! -e ~/.npmrc && test ! -e ~/old/socket && stat -c '%U %a' ~/closed; ls -A ~/old; cat ~/old/file; cat /etc/hostname; hostname");
    let name = &second.name;
    let expected =
        format!("mine\n/etc/shadow\n2 1000000000\nnew\nagent 700\nfile\nold\n{name}\n{name}");
    assert_eq!(seen.ok(), expected);
    let old = first.workspace.to_str().unwrap();
    second.exec(["test", "!", "-e", old]).ok();
    // Its own authority, and not the other one's as well.
    let plain = world.sandbox("plain");
    let bundle = "grep -c BEGIN $SSL_CERT_FILE";
    assert_eq!(second.sh(bundle).ok(), plain.sh(bundle).ok());
    // What hides goes on hiding when it is changed, and listed.
    second
        .sh("echo more >> ~/made; rm ~/old/file; touch ~/.npmrc; ls ~ | grep -c '?' || true")
        .ok();
    first
        .sh("test \"$(cat ~/made)\" = mine; test -e ~/old/file; test ! -e ~/.npmrc")
        .ok();
    // The sandbox that it was saved from, and its name, are nothing to it.
    world.run(["rm", "--force", &first.name]).ok();
    world.run(["daemon", "restart"]).ok();
    world.run(["stop", &second.name]).ok();
    assert_eq!(second.sh("cat ~/made; ls -A ~/old").ok(), "mine\nmore");
    let third = world.sandbox_with("third", &["--template", "my-template:v1"]);
    assert_eq!(third.sh("cat ~/made ~/old/file").ok(), "mine\nold");
}

fn of_root(world: &'static World) {
    let sandbox = world.sandbox("packages");
    sandbox
        .root_sh("mkdir -p /opt/tool/bin /srv/data && cp /bin/true /opt/tool/bin/t && chmod 4755 /opt/tool/bin/t
            chown 33:44 /srv/data && chmod 2750 /srv/data && echo x > /usr/local/bin/x && chmod 755 /usr/local/bin/x
            rm /usr/bin/whoami && rm -rf /usr/share/doc && mkdir /usr/share/doc && echo own > /usr/share/doc/own
            echo 'pg:x:999:999::/srv/data:/bin/sh' >> /etc/passwd && echo 0123 > /etc/machine-id
            echo not-ours > /usr/bin/sudo.note; mkdir -p /var/lib/docker && echo layer > /var/lib/docker/layer")
        .ok();
    let ns_caps = host_has("setcap")
        && (sandbox
            .root_sh("cp /bin/true /opt/tool/bin/c && setcap cap_net_raw+ep /opt/tool/bin/c"))
        .code
            == 0;
    save(&sandbox, "packages:1");
    let made = world.sandbox_with("from-packages", &["-t", "packages:1"]);
    let seen = made.root_sh(
        "stat -c '%u:%g %a' /opt/tool/bin/t /srv/data /usr/local/bin/x; ls /usr/share/doc
        test ! -e /usr/bin/whoami && test ! -e /var/lib/docker/layer && test ! -s /etc/machine-id && tail -n 1 /etc/passwd",
    );
    assert_eq!(
        seen.ok(),
        "0:0 4755\n33:44 2750\n0:0 755\nown\npg:x:999:999::/srv/data:/bin/sh"
    );
    assert_eq!(
        made.sh("sudo -n id -u; ls /usr/bin | grep -c whoami").out,
        "0\n0\n"
    );
    made.root_sh("rm -r /usr/share/doc /opt/tool/bin/t && test ! -e /usr/share/doc")
        .ok();
    if ns_caps {
        assert!(
            made.root_sh("getcap /opt/tool/bin/c")
                .ok()
                .contains("cap_net_raw")
        );
    }
    if world.mode == Mode::Root && tester_is_root() {
        // None of it belongs to the host's root.
        let id = listed(world)
            .into_iter()
            .find(|image| image["repository"] == "packages")
            .unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let layers = store(world).join(id).join("layers");
        let found = world
            .command("find")
            .arg(layers)
            .args(["-uid", "0"])
            .output();
        assert_eq!(String::from_utf8_lossy(&found.unwrap().stdout), "");
    }
}

fn again(world: &'static World) {
    let world = &World::fresh(world.mode);
    let first = world.sandbox("first");
    first
        .sh("mkdir ~/d; echo 1 > ~/d/one; echo 1 > ~/d/gone; echo 1 > ~/f")
        .ok();
    save(&first, "one:1");
    let second = world.sandbox_with("second", &["-t", "one:1"]);
    second
        .sh("rm ~/d/gone; echo 2 > ~/d/two; rm -rf ~/f; mkdir ~/f; echo 2 > ~/f/in")
        .ok();
    save(&second, "two:1");
    let third = world.sandbox_with("third", &["-t", "two:1"]);
    let seen = "cat ~/d/one ~/d/two ~/f/in; ls ~/d";
    assert_eq!(third.sh(seen).ok(), "1\n2\n2\none\ntwo");
    // The one below stays for the one above.
    for sandbox in [&first, &second] {
        world.run(["rm", "--force", &sandbox.name]).ok();
    }
    world.run(["template", "rm", "one:1"]).ok();
    world.run(["stop", &third.name]).ok();
    assert_eq!(third.sh(seen).ok(), "1\n2\n2\none\ntwo");
    assert_eq!(stored(world).len(), 2);
    world.run(["template", "rm", "two:1"]).ok();
    world.run(["rm", "--force", &third.name]).ok();
    eventually("no templates", || stored(world).is_empty().then_some(()));
}

fn replaced(world: &'static World) {
    let world = &World::fresh(world.mode);
    let source = world.sandbox("source");
    source.sh("echo old > ~/v").ok();
    save(&source, "t:v1");
    let user = world.sandbox_with("user", &["-t", "t:v1"]);
    source.sh("echo new > ~/v").ok();
    save(&source, "t:v1");
    assert_eq!(listed(world).len(), 1);
    // It keeps what it was made from.
    world.run(["stop", &user.name]).ok();
    assert_eq!(user.sh("cat ~/v").ok(), "old");
    let newer = world.sandbox_with("newer", &["-t", "t:v1"]);
    assert_eq!(newer.sh("cat ~/v").ok(), "new");
    assert_eq!(stored(world).len(), 2);
    world.run(["rm", "--force", &user.name]).ok();
    eventually("the older one is gone", || {
        (stored(world).len() == 1).then_some(())
    });
    let id = listed(world)[0]["id"].as_str().unwrap().to_owned();
    let removed = world.run(["template", "rm", &id[..8]]);
    assert!(removed.err.contains(&newer.name), "{removed:?}");
    removed.ok();
    assert!(listed(world).is_empty());
    assert!(
        world
            .run(["template", "ls"])
            .err
            .contains("No template images found")
    );
    world.run(["stop", &newer.name]).ok();
    assert_eq!(newer.sh("cat ~/v").ok(), "new");
    world.run(["rm", "--force", &newer.name]).ok();
    eventually("no templates", || stored(world).is_empty().then_some(()));
    // A reset removes those that are there.
    save(&source, "t:v1");
    world.run(["reset", "--force"]).ok();
    assert!(!store(world).exists());
}

fn refused(world: &'static World) {
    let sandbox = world.sandbox("not-saved");
    let says = |args: &[&str], expected: &str| {
        let ran = world.run(args).fails(1);
        assert!(ran.err.contains(expected), "{args:?}: {}", ran.err);
    };
    let name = sandbox.name.as_str();
    says(
        &["template", "save", name, "x:v1"],
        "cannot save a running sandbox",
    );
    says(&["save", name, "x:v1"], "cannot save a running sandbox");
    says(
        &["template", "save", "no-such-box", "x:v1"],
        "no sandbox named",
    );
    for bad in ["X", "host", "a:b:c", "../a"] {
        says(&["template", "save", name, bad], "invalid template name `");
    }
    says(
        &["template", "save", name, "x", "-o", "f"],
        "writes an image",
    );
    says(
        &["template", "load", "f.tar"],
        "makes no templates of images",
    );
    says(&["template", "rm", "no-such-template"], "no template");
    let place = sandbox.workspace.to_str().unwrap();
    says(
        &[
            "create",
            "--name",
            "none-of-it",
            "-t",
            "no-such-template",
            "shell",
            place,
        ],
        "no template `no-such-template:latest`",
    );
    says(
        &["create", "-t", "A", "shell", place],
        "invalid template name `",
    );
    assert!(!world.names().contains(&"none-of-it".to_owned()));
}

fn asked(world: &'static World) {
    let sandbox = world.sandbox("asked-to-stop");
    let save = ["template", "save", &sandbox.name, "asked:1"];
    for (answer, code) in [("\n", 1), ("y\n", 0)] {
        let session = Session::start(world, &save);
        session.expect("Stop it and save it?");
        session.type_in(answer);
        let (ended, shown) = session.end();
        assert_eq!(ended, Some(code), "{shown}");
        let status = if code == 0 { "stopped" } else { "running" };
        assert_eq!(world.status(&sandbox.name), status);
    }
    world.run(["template", "rm", "asked:1"]).ok();
}

fn another_agent(world: &'static World) {
    if !host_has("curl") {
        return;
    }
    let world = &World::fresh(world.mode);
    drop(world.sandbox("first"));
    let place = world.workspace();
    let body = json!({"agent_name": "sandbox-agent", "workspace_dir": place});
    let (status, made) = crate::vm::post(world, body.to_string().as_bytes());
    assert_eq!(status, 200, "{made}");
    world.run(["stop", "sandbox-agent-vm"]).ok();
    world.run(["save", "sandbox-agent-vm", "other"]).ok();
    assert_eq!(listed(world)[0]["flavor"], "sandbox-agent");
    let place = place.to_str().unwrap();
    let create = world.run(["create", "--name", "shell", "-t", "other", "shell", place]);
    let told = "`other:latest` was saved from a sandbox of agent `sandbox-agent`, and this one is of `shell`";
    assert!(create.err.contains(told), "{create:?}");
    create.ok();
}

fn crashed(world: &'static World) {
    let world = &World::fresh(world.mode);
    let sandbox = world.sandbox("large");
    // Many files: a copy that takes a while.
    sandbox
        .sh("mkdir ~/many; cd ~/many; for i in $(seq 40); do mkdir $i; (cd $i; seq 500 | xargs touch); done")
        .ok();
    save(&sandbox, "whole:1");
    let before = stored(world);
    assert_eq!(before.len(), 1);
    let pid = world.daemon_pid();
    let mut saving = world
        .sbx(["template", "save", &sandbox.name, "whole:1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let unfinished = || stored(world).iter().any(|name| name.starts_with(".new-"));
    eventually("it is being saved", || {
        let began = unfinished();
        (began || stored(world) != before).then_some(())
    });
    kill(pid, Signal::KILL);
    saving.wait().unwrap();
    world.run(["daemon", "start", "-d"]).ok();
    eventually("nothing of it is left", || {
        let left = stored(world);
        let whole = left.len() == 1 && !left[0].starts_with('.');
        whole.then_some(())
    });
    assert_eq!(listed(world).len(), 1);
    let user = world.sandbox_with("user", &["-t", "whole:1"]);
    assert_eq!(user.sh("ls ~/many/40 | wc -l").ok(), "500");
}

fn with_disk(world: &'static World) {
    if let Some(reason) = crate::limits::no_disks() {
        return crate::harness::blocked(reason);
    }
    let sandbox = world.sandbox_with("disk-to-save", &["--disk", "64m"]);
    sandbox
        .root_sh("echo kept > /kept && chown 33 /kept && rm /usr/bin/whoami")
        .ok();
    save(&sandbox, "disk:1");
    for more in [&["-t", "disk:1"][..], &["-t", "disk:1", "--disk", "64m"]] {
        let made = world.sandbox_with("from-disk", more);
        let seen = made
            .root_sh("cat /kept; stat -c %u /kept; test ! -e /usr/bin/whoami; echo more >> /kept");
        assert_eq!(seen.ok(), "kept\n33");
    }
    assert_eq!(sandbox.exec(["cat", "/kept"]).ok(), "kept");
    world.run(["template", "rm", "disk:1"]).ok();
}
