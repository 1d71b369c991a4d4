//! Package clients and the registries that this machine's own configuration names. No host is written down here:
//! a client is denied, what `policy suggest` says is allowed, and so on until it works.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{NO_PROXY, WAYS, Way};
use crate::ModeTest;
use crate::harness::{Mode, Ran, Sandbox, World, blocked, copy_program, eventually};

pub(super) const TESTS: &[ModeTest] = &[
    ("packages::apt", apt),
    ("packages::pip", pip),
    ("packages::npm", npm),
    ("packages::cargo", cargo),
];

/// Hosts of a registry; more would mean that something else was asked for.
const MOST: usize = 6;

/// A script of `bash` that fetches one small package into a directory that it makes.
struct Client<'a> {
    name: &'a str,
    user: &'a str,
    script: &'a dyn Fn(&str) -> String,
    /// A program of the host that the script finds as `$PROGRAM`.
    program: Option<&'a Path>,
}

impl Client<'_> {
    fn run(&self, world: &World) {
        let name = self.name;
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("here");
        let mut outside = Command::new("bash");
        outside.args(["-euc", &(self.script)(place.to_str().unwrap())]);
        outside.envs(self.program.map(|program| ("PROGRAM", program)));
        let reachable = Ran::from(outside.output().unwrap());
        if reachable.code != 0 {
            let why = reachable.err.lines().last().unwrap_or_default();
            return blocked(format!("{name}: its registry does not answer here: {why}"));
        }
        for way in WAYS {
            self.run_by(world, way);
        }
    }

    fn run_by(&self, world: &World, way: Way) {
        let name = self.name;
        let sandbox = world.sandbox(name);
        if let Some(program) = self.program {
            copy_program(program, &sandbox.path("program"));
        }
        let before = match way {
            Way::Forward => "",
            Way::Transparent => NO_PROXY,
        };
        let install = || {
            let script = format!(
                "{before}\nexport PROGRAM=$PWD/program\n{}",
                (self.script)(&format!("/tmp/{name}"))
            );
            sandbox.exec_with(&["-u", self.user], ["bash", "-euc", &script])
        };
        let rules = until_it_works(&sandbox, way, install);
        for rule in &rules {
            sandbox.unrule(rule);
        }
        install().refused();
    }
}

/// The rules that it took: each names one host and port, each was used, and nothing came by another way.
#[track_caller]
fn until_it_works(sandbox: &Sandbox<'_>, way: Way, install: impl Fn() -> Ran) -> Vec<String> {
    let mut rules = Vec::new();
    loop {
        let ran = install();
        if ran.code == 0 {
            break;
        }
        let more = suggested(sandbox);
        assert!(
            !more.is_empty() && rules.len() < MOST,
            "{rules:?} {}{}",
            ran.out,
            ran.err
        );
        for rule in more {
            assert!(!rule.contains('*'), "{rule}");
            sandbox.allow(&rule);
            rules.push(rule);
        }
    }
    assert!(!rules.is_empty(), "it was not stopped");
    // A connection is on record with its bytes once it has ended, which may be a moment after its client.
    eventually(&format!("{rules:?} are all used"), || {
        let used = used(sandbox, way);
        let needed = |rule: &String| match way {
            Way::Forward => used.contains(rule),
            // Who may not know an address says no port: that one is a guess.
            Way::Transparent => used.iter().any(|place| host(place) == host(rule)),
        };
        rules.iter().all(needed).then_some(())
    });
    rules
}

fn host(place: &str) -> &str {
    place.rsplit_once(':').map_or(place, |(host, _)| host)
}

/// Where something came from, and by which way.
fn used(sandbox: &Sandbox<'_>, way: Way) -> BTreeSet<String> {
    sandbox
        .log()
        .iter()
        .filter(|line| line["verdict"] == "allow" && line["received"] != 0 && line["port"].is_u64())
        .inspect(|line| {
            let forward = line["proxy"].as_str().unwrap().starts_with("forward");
            assert_eq!(forward, way == Way::Forward, "{line}");
        })
        .map(|line| format!("{}:{}", line["host"].as_str().unwrap(), line["port"]))
        .collect()
}

/// The resources of `policy suggest --json`. Questions that no rule would answer (apt's for SRV records) are no
/// places that it went to.
#[track_caller]
fn suggested(sandbox: &Sandbox<'_>) -> Vec<String> {
    let said = sandbox
        .world
        .run(["policy", "suggest", &sandbox.name, "--json"])
        .ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    let rules = said["rules"].as_array().unwrap();
    let resource = |rule: &Value| {
        rule["resource"]
            .as_str()
            .unwrap_or_else(|| panic!("{rule}"))
            .to_owned()
    };
    rules.iter().map(resource).collect()
}

fn apt(world: &'static World) {
    // Lists of its own: those of the host are not to be used.
    let script = |dir: &str| {
        format!(
            "rm -rf {dir}; mkdir -p {dir}/lists/partial {dir}/cache/archives/partial; cd {dir}\n\
             apt() {{ /usr/bin/apt-get -qq -o Acquire::Retries=0 -o APT::Update::Error-Mode=any -o Dir::State::lists={dir}/lists \
             -o Dir::Cache={dir}/cache -o APT::Sandbox::User=root -o Acquire::Languages=none \"$@\"; }}\n\
             apt update\napt download hostname\nls hostname_*.deb\n"
        )
    };
    let client = Client {
        name: "apt",
        // With one id there is no other user; nothing is installed, so it needs no root, and what stands before the
        // program on the path there says only that it could not be.
        user: if world.mode == Mode::Single {
            "agent"
        } else {
            "root"
        },
        script: &script,
        program: None,
    };
    client.run(world);
}

fn pip(world: &'static World) {
    let script = |dir: &str| {
        format!(
            "rm -rf {dir}; /usr/bin/python3 -m pip install -q --retries 0 --timeout 20 --no-cache-dir --no-deps \
             --disable-pip-version-check --target {dir} six\nls {dir}/six.py"
        )
    };
    let client = Client {
        name: "pip",
        user: "agent",
        script: &script,
        program: None,
    };
    client.run(world);
}

fn npm(world: &'static World) {
    // Of the tester's configuration this one value.
    let asked = Command::new("npm")
        .args(["config", "get", "registry"])
        .output();
    let registry = match asked {
        Ok(said) if said.status.success() => Ran::from(said).ok().trim().to_owned(),
        Ok(_) | Err(_) => return blocked("npm: the host has none"),
    };
    let script = move |dir: &str| {
        format!(
            "rm -rf {dir}; mkdir -p {dir}; cd {dir}; echo '{{}}' >package.json\n\
             npm install --registry '{registry}' --fetch-retries 0 --cache {dir}/cache --userconfig {dir}/npmrc \
             --no-audit --no-fund --no-update-notifier --loglevel error isarray\n\
             ls node_modules/isarray/package.json"
        )
    };
    let client = Client {
        name: "npm",
        user: "agent",
        script: &script,
        program: None,
    };
    client.run(world);
}

/// The one that built this test, alone: it needs no compiler for this.
fn cargo(world: &'static World) {
    let program = option_env!("CARGO")
        .map(Path::new)
        .filter(|program| program.exists());
    let Some(program) = program else {
        return blocked("cargo: the one that built the tests is gone");
    };
    let script = |dir: &str| {
        format!(
            "mkdir -p {dir}/src; cd {dir}; touch src/lib.rs\n\
             printf '[package]\\nname = \"t\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[dependencies]\\ncfg-if = \"1\"\\n' \
             >Cargo.toml\n\
             export CARGO_HOME={dir}/home CARGO_NET_RETRY=0 CARGO_HTTP_TIMEOUT=20; rm -rf home vendor Cargo.lock\n\
             \"$PROGRAM\" vendor -q >/dev/null\nls vendor/cfg-if/Cargo.toml"
        )
    };
    let client = Client {
        name: "cargo",
        user: "agent",
        script: &script,
        program: Some(program),
    };
    client.run(world);
}
