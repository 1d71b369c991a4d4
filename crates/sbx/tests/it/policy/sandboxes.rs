//! What belongs to one sandbox.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{entry, is_empty, world};
use crate::harness::{Ran, eventually};

pub fn denials_of_a_create() {
    let world = world();
    let workspace = world.workspace();
    let path = workspace.to_str().unwrap();
    let create = |denied: &str| {
        world.run([
            "create",
            "--name",
            "dev",
            "--deny-network",
            denied,
            "shell",
            path,
        ])
    };
    let bad = create("a.test,*").fails(1);
    assert!(bad.err.contains("`**`"), "{}", bad.err);
    assert!(
        !world.state().exists(),
        "bad input started or made something"
    );
    let made = create("a.test,*.b.test");
    assert!(made.err.contains("using \"balanced\""), "{}", made.err);
    let sandbox = world.adopt("dev", &workspace);
    let rules = world.json("policy ls dev --json --decision deny");
    assert_eq!(rules["rules"][0]["scope"], "sandbox:dev");
    assert_eq!(
        rules["rules"][0]["resources"],
        json!(["a.test", "*.b.test"])
    );
    world
        .line("policy check network --sandbox dev a.test")
        .fails(1);
    let again = create("c.test").fails(1);
    assert!(again.err.contains("exists"), "{}", again.err);
    assert_eq!(world.json("policy ls dev --json --decision deny"), rules);
    let run = world
        .run(["run", "--name", "dev", "--deny-network", "*.c.test"])
        .fails(125);
    let hint = "hint: sbx policy deny network --sandbox dev '*.c.test'\n";
    assert!(run.err.contains(hint), "{}", run.err);

    world.logged("dev", &entry("dev", 1, "a.test", 443, "deny"));
    drop(sandbox);
    assert_eq!(
        world.json("policy ls --json --decision deny")["rules"],
        json!([])
    );
    assert!(world.line("policy log dev").ok().contains("a.test:443"));
    let suggested = world.line("policy suggest dev");
    assert!(
        suggested.err.contains("`dev` no longer exists"),
        "{}",
        suggested.err
    );
    let suggested = suggested.ok();
    assert!(
        suggested.contains("--sandbox dev a.test:443"),
        "{suggested}"
    );
    let sandbox = world.sandbox("dev");
    assert!(!world.line("policy ls").err.contains("chosen"));
    let rules = world.json(&format!(
        "policy ls {} --json --decision deny",
        sandbox.name
    ));
    assert_eq!(rules["rules"], json!([]));
}

pub fn a_reset_is_followed_by_a_choice() {
    let world = world();
    world.line("policy init allow-all").ok();
    let sandbox = world.sandbox("dev");
    let name = sandbox.name.as_str();
    let taken = |args: &[&str]| {
        let ran = world.run(args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.err.contains("using \"balanced\"")
    };
    for start in [
        &["exec", name, "true"][..],
        &["run", "--name", name, "--", "-c", "true"],
        &["run", "-d", "--name", name],
    ] {
        world.line("policy reset -f").ok();
        assert!(taken(start), "{start:?}");
        assert!(world.state().join("policy.json").exists());
        assert!(!taken(&["exec", name, "true"]), "{start:?}");
    }
}

/// They concern every sandbox of the directory, however it is named, and outlive both.
pub fn rules_of_a_repository() {
    let world = world();
    world.line("policy init deny-all").ok();
    let workspace = world.workspace();
    let real = workspace.canonicalize().unwrap();
    let path = real.to_str().unwrap();
    let link = world.home().join("link");
    std::os::unix::fs::symlink(&workspace, &link).unwrap();
    let link = link.to_str().unwrap();
    let gone = world.line("policy allow network --repo /no/such/dir a.test");
    assert!(gone.fails(1).err.contains("does not exist"));
    let added = world
        .line(&format!("policy allow network --repo {link} a.test"))
        .ok();
    assert!(added.contains(&format!("scope: repo:{path}")), "{added}");
    let both = world.line("policy allow network --repo / --sandbox dev a.test");
    assert_eq!(both.code, 2, "{}", both.err);
    // Nothing lies in the checkout.
    assert!(is_empty(&workspace));
    let check = |whose: &str, target: &str| {
        let line = format!("policy check network{whose} 192.0.2.9:80");
        world.line(&line.replace("192.0.2.9:80", target)).code
    };
    world
        .line(&format!("policy allow network --repo {path} 192.0.2.9"))
        .ok();
    world.create("dev", &workspace).ok();
    let sandbox = world.adopt("dev", &workspace);
    let other = world.sandbox("other");
    let target = "192.0.2.9:80";
    assert_eq!(check(" --sandbox dev", target), 0);
    assert_eq!(check(&format!(" --repo {path}"), target), 0);
    assert_eq!(check(&format!(" --sandbox {}", other.name), target), 1);
    assert_eq!(check("", target), 1);
    // Shown everywhere, with the command that removes it.
    let rules = world.json(&format!("policy ls --json --repo {link}"));
    let scope = format!("repo:{path}");
    let own: Vec<&Value> = (rules["rules"].as_array().unwrap().iter())
        .filter(|rule| rule["scope"] == scope)
        .collect();
    assert_eq!(own.len(), 2, "{rules:#}");
    for line in ["policy ls", "policy ls dev", "policy ls --wide"] {
        let shown = world.line(line).ok();
        assert!(shown.contains(&format!("repo:{path}")), "{line}: {shown}");
    }
    let id = own[0]["id"].as_str().unwrap();
    let shown = world.line(&format!("policy inspect {id}")).ok();
    let remove = format!("policy rm network --repo {path} --id {id}");
    assert!(shown.contains(&remove), "{shown}");
    assert_eq!(world.inspect("dev")["network_policy"]["repo_rules"], 2);
    // A denial is answered with a rule for the repository if that is asked for, and what a rule allows is left out.
    world.logged("dev", &entry("dev", 1, "a.test", 443, "deny"));
    world.logged("dev", &entry("dev", 2, "b.test", 443, "deny"));
    let suggest = format!("policy suggest dev --repo {link} --since 2026-01-29T00:00:00Z");
    let wanted = format!("sbx policy allow network --repo {path} b.test:443");
    let suggested = world.line(&suggest).ok();
    assert!(suggested.starts_with(&wanted), "{suggested}");
    assert_eq!(suggested.lines().count(), 1, "{suggested}");
    // They stay when the sandbox goes, and hold for the next one.
    drop(sandbox);
    let suggested = world.line(&suggest);
    assert!(
        !suggested.err.contains("no longer exists"),
        "{}",
        suggested.err
    );
    assert!(suggested.ok().starts_with(&wanted));
    world.create("dev", &workspace).ok();
    let _sandbox = world.adopt("dev", &workspace);
    assert_eq!(check(" --sandbox dev", target), 0);
    world.line(&remove).ok();
    world
        .line(&format!(
            "policy rm network --repo {path} --resource 192.0.2.9"
        ))
        .ok();
    assert_eq!(check(" --sandbox dev", target), 1);
}

/// They can be removed after the directory is gone.
pub fn rules_of_a_lost_repository() {
    let world = world();
    let old = world.workspace();
    let old_path = old.canonicalize().unwrap();
    let old_path = old_path.to_str().unwrap();
    world
        .line(&format!("policy allow network --repo {old_path} a.test"))
        .ok();
    fs::remove_dir_all(&old).unwrap();
    world
        .line(&format!(
            "policy rm network --repo {old_path} --resource a.test"
        ))
        .ok();
}

pub fn older_settings() {
    let world = world();
    let default = r#"{"network": {"allowedDomains": ["*.a.test"]}}"#;
    if !world.state().exists() {
        world.make_dir(&world.state());
        world.write(&world.state().join(".sbx-owner"), "sbx\n");
    }
    world.write(&world.state().join("proxy-config.json"), default);
    world.line("policy init deny-all").ok();
    let sandbox = world.sandbox("old");
    let name = &sandbox.name;
    let proxy = |flags: &str| world.line(&format!("network proxy {name}{flags}"));
    let begin = "Policy:          as set by `sbx policy`\nAllowed hosts:   *.a.test";
    assert_eq!(proxy("").ok(), begin);
    let changed = proxy(
        " --policy deny --allow-host b.test:443 --block-host c.test --bypass-host d.test \
         --allow-cidr 192.0.2.0/24 --block-cidr 192.0.2.7 --bypass-cidr 198.51.100.0/24"
            .replace("         ", "")
            .as_str(),
    );
    let expected = "Policy:          deny\nAllowed hosts:   *.a.test, b.test:443\n\
                    Blocked hosts:   c.test\nBypassed hosts:  d.test\nAllowed CIDRs:   192.0.2.0/24\n\
                    Blocked CIDRs:   192.0.2.7\nBypassed CIDRs:  198.51.100.0/24";
    assert_eq!(changed.ok(), expected);
    assert_eq!(proxy("").ok(), expected);
    let check = |target: &str| {
        world
            .run(["policy", "check", "network", "--sandbox", name, target])
            .code
    };
    assert_eq!((check("192.0.2.1"), check("192.0.2.7")), (0, 1));
    let bad = proxy(" --allow-host ok.test --block-cidr nonsense").fails(1);
    assert!(bad.err.contains("nonsense"), "{}", bad.err);
    assert_eq!(proxy("").ok(), expected, "a change is whole or none");
    // What a person writes counts at once.
    let own = world
        .state()
        .join("vm")
        .join(name)
        .join("proxy-config.json");
    world.write(&own, "nonsense");
    let damaged = world.line(&format!("policy ls {name}")).fails(1);
    assert!(damaged.err.contains("proxy-config.json"), "{}", damaged.err);
    fs::remove_file(&own).unwrap();
    world.line("policy reset -f").ok();
    world.line("policy init allow-all").ok();
    proxy(" --policy deny").ok();
    for line in [
        format!("policy ls {name} --wide"),
        format!("policy check network --sandbox {name} a.test"),
    ] {
        let ran = world.line(&line);
        let said = format!("{}{}", ran.out, ran.err);
        for word in [own.to_str().unwrap(), "`default-allow-all`"] {
            assert!(said.contains(word), "{line}: {said}");
        }
    }
    fs::remove_file(&own).unwrap();
    assert!(proxy("").ok().starts_with("No proxy-config.json"));
    assert_eq!(
        fs::read_to_string(world.state().join("proxy-config.json")).unwrap(),
        default
    );
}

pub fn a_run_says_what_was_denied() {
    let world = world();
    let workspace = world.workspace();
    world.create("dev", &workspace).ok();
    let _sandbox = world.adopt("dev", &workspace);
    world.logged("dev", &entry("dev", 1, "before.test", 443, "deny"));
    let run = |more: &[&str], meanwhile: &dyn Fn()| {
        let _ = fs::remove_file(workspace.join("go"));
        let _ = fs::remove_file(workspace.join("here"));
        let script = "touch here; while [ ! -e go ]; do sleep 0.05; done; exit 3";
        let mut command = world.sbx(["run", "--name", "dev"]);
        command.args(more).args(["--", "-c", script]);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the run begins", || {
            workspace.join("here").exists().then_some(())
        });
        meanwhile();
        world.write(&workspace.join("go"), "");
        Ran::from(child.wait_with_output().unwrap()).fails(3).err
    };
    assert_eq!(run(&[], &|| ()), "");
    let denied = |hosts: &[&str]| {
        for (id, host) in (10..).zip(hosts) {
            world.logged("dev", &entry("dev", id, host, 443, "deny"));
        }
        world.logged("dev", &entry("dev", 50, "fine.test", 443, "allow"));
    };
    assert_eq!(
        run(&[], &|| denied(&["a.test", "b.test", "a.test"])),
        "2 hosts were denied by the network policy; sbx policy log dev shows them\n"
    );
    assert_eq!(
        run(&[], &|| denied(&["a.test"])),
        "1 host was denied by the network policy; sbx policy log dev shows it\n"
    );
    assert_eq!(run(&["-q"], &|| denied(&["a.test"])), "");
    // These lines are older than the sandbox: of another one of its name, unless they are asked for.
    assert_eq!(world.line("policy suggest dev").ok(), "");
    let since = "--since 2026-01-29T00:00:00Z";
    let suggested = world.line(&format!("policy suggest dev {since}")).ok();
    assert!(
        suggested.contains("sbx policy allow network --sandbox dev a.test:443  # "),
        "{suggested}"
    );
    let json = world.json(&format!("policy suggest dev --json {since}"));
    assert_eq!(json["sandbox"], "dev");
    assert_eq!(json["rules"].as_array().unwrap().len(), 3, "{json:#}");
}
