//! The way out, end to end: real clients in real sandboxes, and an outside world of the test's own that records
//! whatever reaches it. Clients are tried as they come, with the proxy that they are told of, and as those that
//! know of none.

mod allowed;
mod clients;
mod cut;
mod denied;
mod exfiltration;
mod grpc;
mod host;
mod names;
mod neighbours;
mod packages;
mod quic;
mod rebinding;
mod starved;
mod streams;

use std::fs;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::ModeTest;
use crate::harness::{Internet, Mode, Ran, Sandbox, World, blocked, host_has, trial};

/// In one world, with sandboxes of their own.
const SHARED: &[&[ModeTest]] = &[
    denied::TESTS,
    allowed::TESTS,
    cut::TESTS,
    host::TESTS,
    names::TESTS,
    rebinding::TESTS,
    clients::TESTS,
    streams::TESTS,
    grpc::TESTS,
    quic::TESTS,
    neighbours::TESTS,
];

/// The smoke in the modes besides the strongest: the same proxy decides, reached from another kind of namespace.
pub(crate) const IN_ALL_MODES: &[&str] = &[
    "denied::by_default",
    "allowed::certificates_are_the_origins",
    "clients::curl",
    "names::questions_are_answered_or_refused",
    "neighbours::the_daemon_accepts_no_other_client",
];

pub(crate) fn in_all_modes(name: &str) -> bool {
    name.split_once("::egress::")
        .is_some_and(|(_, name)| IN_ALL_MODES.contains(&name))
}

pub(crate) fn trials(mode: Mode, no_mode: bool) -> Vec<Trial> {
    let offline = Internet::blocked();
    if let (false, Some(reason)) = (no_mode, &offline) {
        eprintln!(
            "environment_blocked: egress in {} mode: {reason}",
            mode.name()
        );
    }
    let named = |name: &str| format!("{}::egress::{name}", mode.name());
    let shared = SHARED.iter().copied().flatten();
    let online = shared.map(|(name, test)| trial(named(name), move || test(World::online(mode))));
    // In worlds of their own.
    let fresh = (exfiltration::TESTS.iter())
        .chain(starved::TESTS)
        .chain([&cut::FRESH])
        .map(|(name, test)| trial(named(name), move || test(mode)));
    let tests = online.chain(fresh);
    let tests = tests.map(|trial| trial.with_ignored_flag(no_mode || offline.is_some()));
    // With the machine's own network.
    let registries = packages::TESTS.iter().map(|(name, test)| {
        trial(named(name), move || test(World::strict(mode))).with_ignored_flag(no_mode)
    });
    tests.chain(registries).collect()
}

/// How a client gets out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Through the proxy that the environment names.
    Forward,
    /// It knows of none.
    Transparent,
}

const WAYS: [Way; 2] = [Way::Forward, Way::Transparent];

/// Before a shell script.
const NO_PROXY: &str =
    "unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NODE_USE_ENV_PROXY";

/// Trusts both the world's authority and the proxy's.
const TRUST: &str = r#"cat "$SSL_CERT_FILE" ca.pem >all.pem"#;

/// A sandbox in the outside world; nothing is allowed in it.
fn sandbox<'a>(world: &'a World, hint: &str) -> Sandbox<'a> {
    let sandbox = world.sandbox(hint);
    let authority = fs::read(world.internet().file("ca.pem")).unwrap();
    world.write(&sandbox.path("ca.pem"), authority);
    sandbox.sh(TRUST).ok();
    sandbox
}

impl Sandbox<'_> {
    #[track_caller]
    fn allow(&self, resource: &str) {
        self.rule("allow", resource);
    }

    #[track_caller]
    fn rule(&self, decision: &str, resource: &str) {
        let world = self.world;
        world
            .run([
                "policy",
                decision,
                "network",
                "--sandbox",
                &self.name,
                resource,
            ])
            .ok();
    }

    #[track_caller]
    fn unrule(&self, resource: &str) {
        let world = self.world;
        world
            .run([
                "policy",
                "rm",
                "network",
                "--sandbox",
                &self.name,
                "--resource",
                resource,
            ])
            .ok();
    }

    /// `policy check --json`, whatever it says.
    #[track_caller]
    fn check(&self, target: &str) -> Value {
        let world = self.world;
        let ran = world.run([
            "policy",
            "check",
            "network",
            "--json",
            "--sandbox",
            &self.name,
            target,
        ]);
        let said: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(ran.code == 0, said["allowed"] == true, "{said}");
        said
    }

    /// A script that takes this way out.
    fn by(&self, way: Way, script: &str) -> Ran {
        match way {
            Way::Forward => self.sh(script),
            Way::Transparent => self.sh(&format!("{NO_PROXY}\n{script}")),
        }
    }

    /// `curl` that trusts everybody it should; a word of arguments each.
    fn curl(&self, way: Way, args: &str) -> Ran {
        self.by(way, &format!("curl -sS -m 30 --cacert all.pem {args}"))
    }

    fn python(&self, way: Way, script: &str, args: &[&str]) -> Ran {
        let file = self.path("script.py");
        self.world.write(&file, script);
        let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
        self.by(
            way,
            &format!("/usr/bin/python3 script.py {}", quoted.join(" ")),
        )
    }

    /// The lines of the network log, oldest first; what goes on and was not denied has none yet.
    fn log(&self) -> Vec<Value> {
        let all = self.all_log().into_iter();
        all.filter(|line| line["phase"] == "closed").collect()
    }

    /// With those about what goes on.
    fn all_log(&self) -> Vec<Value> {
        let dir = self.world.state().join("log/network");
        let mut lines: Vec<Value> = Vec::new();
        for part in ["", "_dns", "_denied"] {
            let file = dir.join(format!("{}{part}.jsonl", self.name));
            let text = fs::read_to_string(file).unwrap_or_default();
            lines.extend(text.lines().map(|line| serde_json::from_str(line).unwrap()));
        }
        lines.sort_by_key(|line| line["time"].as_str().map(str::to_owned));
        lines
    }

    /// Whether there is a line about this host with this way and verdict.
    #[track_caller]
    fn assert_logged(&self, host: &str, proxy: &str, verdict: &str) -> Value {
        let log = self.log();
        let found = log.iter().find(|line| {
            line["host"] == host && line["proxy"] == proxy && line["verdict"] == verdict
        });
        found
            .unwrap_or_else(|| panic!("no {proxy} {verdict} of {host} in {log:#?}"))
            .clone()
    }
}

/// What the world has on record about a name, as a question or as a request.
fn heard_of(world: &World, name: &str) -> Vec<Value> {
    let all = world.internet().records();
    all.into_iter()
        .filter(|record| {
            record["name"] == name
                || record["host"]
                    .as_str()
                    .is_some_and(|host| host.starts_with(name))
        })
        .collect()
}
