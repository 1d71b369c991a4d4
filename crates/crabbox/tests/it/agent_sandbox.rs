//! agent-sandbox with the real program, over a stand-in for `kubectl` that keeps a cluster's objects and runs real shells.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::world::{Ran, World, write};

pub(crate) const SAMPLES: [&str; 2] = [
    include_str!("../../../crabbox-providers/tests/data/agent-sandbox/v0.5.6.json"),
    include_str!("../../../crabbox-providers/tests/data/agent-sandbox/v1.0.3.json"),
];

pub(crate) struct Cluster {
    pub(crate) world: World,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self::of(SAMPLES[1])
    }

    pub(crate) fn of(sample: &str) -> Self {
        let world = World::without_sbx();
        let script = format!(
            "#!{} -IS\n{}",
            crate::world::python(),
            include_str!("fake_kubectl.py")
        );
        let fresh = world.path("bin/kubectl.new");
        write(&fresh, script);
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp")
            .args([&fresh, &world.path("bin/kubectl")])
            .status()
            .unwrap();
        assert!(copied.success());
        fs::create_dir_all(world.path("cluster/behave")).unwrap();
        write(&world.path("cluster/sample.json"), sample);
        let pool = json!({"metadata": {"name": "linux-pool", "uid": "pool-1"}});
        write(
            &world.path("cluster/pool.linux-pool.json"),
            pool.to_string(),
        );
        let config = format!(
            "provider: agent-sandbox\nagentSandbox:\n  kubeconfig: /nowhere/config\n  context: agent-cluster\n  namespace: sandboxes\n  warmPool: linux-pool\n  workdir: {}\n",
            world.path("pod/work dir").display()
        );
        world.user_config(&config);
        Self { world }
    }

    pub(crate) fn crabbox(&self, args: &[&str]) -> Ran {
        self.world.crabbox(args)
    }

    pub(crate) fn behave(&self, key: &str, text: &str) {
        write(&self.world.path("cluster/behave").join(key), text);
    }

    pub(crate) fn behave_well(&self, key: &str) {
        fs::remove_file(self.world.path("cluster/behave").join(key)).unwrap();
    }

    /// The calls since the last time.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        let path = self.world.path("cluster/log.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_default();
        drop(fs::remove_file(&path));
        let line = |line: &str| serde_json::from_str(line).unwrap();
        text.lines().map(line).collect()
    }

    pub(crate) fn verbs(&self) -> Vec<String> {
        self.calls()
            .into_iter()
            .map(|call| call[0].clone())
            .collect()
    }

    pub(crate) fn objects(&self, kind: &str) -> Vec<String> {
        let names = fs::read_dir(self.world.path("cluster")).unwrap();
        let mut names: Vec<_> = names
            .map(|name| name.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&format!("{kind}.")))
            .collect();
        names.sort();
        names
    }

    pub(crate) fn edit(&self, kind: &str, edit: impl FnOnce(&mut Value)) {
        let name = self.objects(kind).remove(0);
        let path = self.world.path("cluster").join(name);
        let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        edit(&mut value);
        write(&path, value.to_string());
    }

    pub(crate) fn pod_file(&self, name: &str) -> std::path::PathBuf {
        self.world.path("pod/work dir").join(name)
    }

    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.world.claim_names(), Vec::<String>::new());
        assert_eq!(self.objects("claim"), Vec::<String>::new());
    }
}

#[test]
fn a_fresh_run_syncs_runs_and_leaves_nothing_with_few_processes() {
    for sample in SAMPLES {
        let cluster = Cluster::of(sample);
        let mut command = cluster.world.command(&[
            "run",
            "--allow-env",
            "MY_TOKEN",
            "--",
            "sh",
            "-c",
            "cat README; echo \"$MY_TOKEN $1\" >&2; pwd; exit 7",
            "x",
            "a 'quoted' word",
        ]);
        command.env("MY_TOKEN", "s3cret-value");
        let ran = Ran::from(command.output().unwrap()).exits(7);
        let workdir = cluster.world.path("pod/work dir");
        assert_eq!(ran.out, format!("hello\n{}\n", workdir.display()));
        ran.says("s3cret-value a 'quoted' word\n")
            .says("agent-sandbox run exited 7")
            .never_says("terminated with exit code")
            .never_says("Killed");
        let calls = cluster.calls();
        // create, looks until it is ready, sync, look, command, look, delete.
        assert!(calls.len() <= 8, "{calls:?}");
        for call in calls {
            assert!(!call.join(" ").contains("s3cret-value"), "{call:?}");
        }
        cluster.is_clean();
    }
}

#[test]
fn a_kept_lease_is_synced_again_with_what_differs() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "kept"]).exits(0);
    let run = |args: &[&str]| {
        let mut all = vec!["run", "--id", "kept"];
        all.extend(args);
        cluster.crabbox(&all).exits(0)
    };
    run(&["--", "sh", "-c", "echo x >stale; ls"]);
    write(&cluster.world.repo().join("new/file"), "new");
    // Without sync nothing goes and nothing comes.
    assert_eq!(run(&["--no-sync", "--", "ls"]).out, "README\nstale\n");
    cluster.calls();
    assert_eq!(run(&["--no-sync", "--", "true"]).out, "");
    let verbs = cluster.verbs();
    assert!(verbs.len() <= 3, "{verbs:?}");
    assert_eq!(run(&["--", "ls"]).out, "README\nnew\n");
    assert_eq!(
        fs::read_to_string(cluster.pod_file("new/file")).unwrap(),
        "new"
    );
    let only = run(&["--sync-only"]);
    let workdir = cluster.world.path("pod/work dir");
    assert_eq!(only.out, format!("synced {}\n", workdir.display()));
    run(&["--sync-only"]).says("sync skipped: unchanged");
    run(&["--sync-only", "--full-resync"]).never_says("unchanged");
    let listed = cluster.crabbox(&["list", "--json"]).exits(0).json();
    assert_eq!(listed[0]["status"], "running");
    let status = cluster
        .crabbox(&["status", "kept", "--wait", "--json"])
        .exits(0)
        .json();
    assert_eq!(status["ready"], true);
    cluster
        .crabbox(&["stop", "kept"])
        .exits(0)
        .says("released lease=asbx_");
    cluster.is_clean();
}

#[test]
fn stdin_is_exact_and_ends() {
    let cluster = Cluster::new();
    let bytes: Vec<u8> = (0..200_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut child = cluster
        .world
        .command(&["run", "--no-sync", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(out == bytes, "{} bytes", out.len());
}

#[test]
fn a_run_without_a_proved_end_fails() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.behave("fail-exec", "lost");
    let ran = cluster
        .crabbox(&["run", "--id", "a", "--no-sync", "--", "true"])
        .exits(1);
    assert!(
        ran.cause().contains("its exit code is not known"),
        "{}",
        ran.cause()
    );
    cluster.behave("fail-exec", "before\n1\nerror: unable to upgrade connection: pods \"p\" is forbidden: User \"u\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"n\"");
    let ran = cluster
        .crabbox(&["run", "--id", "a", "--no-sync", "--", "true"])
        .exits(5);
    assert!(
        ran.cause().contains("RBAC denied: create pods/exec"),
        "{}",
        ran.cause()
    );
    // The sync of files is not begun either.
    let ran = cluster.crabbox(&["run", "--id", "a", "--", "true"]);
    assert!(
        ran.cause().contains("RBAC denied: create pods/exec"),
        "{}",
        ran.cause()
    );
}

#[test]
fn a_claim_whose_creation_was_not_answered_is_adopted_only_if_it_is_ours() {
    let cluster = Cluster::new();
    cluster.behave("fail-create", "after\n1\nunexpected EOF");
    let ran = cluster
        .crabbox(&["run", "--no-sync", "--", "true"])
        .exits(0);
    ran.says("reconciled agent-sandbox claim=crabbox-");
    cluster.is_clean();
    // The server refused it: nothing is looked for, nothing stays.
    cluster.behave("fail-create", "before\n1\nError from server (Forbidden): x is forbidden: User \"u\" cannot create resource \"sandboxclaims\" in API group \"extensions.agents.x-k8s.io\" in the namespace \"n\"");
    cluster.calls();
    let ran = cluster.crabbox(&["warmup"]).exits(5);
    let said = "agent-sandbox RBAC denied: create sandboxclaims (extensions.agents.x-k8s.io)";
    assert!(ran.cause().contains(said), "{}", ran.cause());
    assert_eq!(cluster.verbs(), ["create"]);
    cluster.is_clean();
}

#[test]
fn replaced_objects_get_nothing_and_are_not_deleted() {
    let cluster = Cluster::new();
    cluster
        .crabbox(&["warmup", "--slug", "a", "--idle-timeout", "1s"])
        .exits(0);
    type Case = (&'static str, fn(&mut Value));
    let cases: [Case; 5] = [
        ("claim", |one| one["metadata"]["uid"] = json!("other")),
        ("claim", |one| {
            one["spec"]["warmPoolRef"]["name"] = json!("other")
        }),
        ("sandbox", |one| one["metadata"]["uid"] = json!("other")),
        ("pod", |one| one["metadata"]["uid"] = json!("other")),
        ("pod", |one| {
            one["status"]["containerStatuses"][0]["containerID"] = json!("containerd://other");
        }),
    ];
    for (index, (kind, change)) in cases.into_iter().enumerate() {
        let name = cluster.objects(kind).remove(0);
        let path = cluster.world.path("cluster").join(name);
        let before = fs::read_to_string(&path).unwrap();
        cluster.edit(kind, change);
        cluster.calls();
        cluster
            .crabbox(&["run", "--id", "a", "--", "true"])
            .exits(4);
        assert!(
            !cluster.verbs().contains(&"exec".to_owned()),
            "{kind} {index}"
        );
        if kind == "claim" {
            cluster.crabbox(&["stop", "a"]).exits(4);
            let preview = cluster.crabbox(&["cleanup", "--dry-run"]);
            preview.never_says("would delete");
        }
        write(&path, before);
    }
    assert_eq!(cluster.objects("claim").len(), 1);
    cluster.crabbox(&["stop", "a"]).exits(0);
    cluster.is_clean();
}

#[test]
fn a_missing_claim_is_kept_here_unless_the_user_says_otherwise() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let fixed = ["warmup", "--lease-id", "cbx_0123456789ab", "--slug", "b"];
    cluster.crabbox(&fixed).exits(0);
    for name in cluster.objects("claim") {
        fs::remove_file(cluster.world.path("cluster").join(name)).unwrap();
    }
    cluster
        .crabbox(&["run", "--id", "a", "--", "true"])
        .exits(4);
    cluster.crabbox(&["stop", "a"]).exits(4);
    cluster.crabbox(&["status", "a", "--wait"]).exits(4);
    assert_eq!(cluster.world.claim_names().len(), 2);
    let forget = "--agent-sandbox-forget-missing";
    cluster.crabbox(&["stop", forget, "a"]).exits(0);
    cluster.crabbox(&["stop", forget, "b"]).exits(4);
    assert_eq!(cluster.world.claim_names(), ["cbx_0123456789ab"]);
}

#[test]
fn a_chosen_id_is_replayed_refused_and_never_used_again() {
    let cluster = Cluster::new();
    let id = "cbx_0123456789ab";
    let warm = |more: &[&str]| {
        let mut args = vec!["warmup", "--lease-id", id];
        args.extend(more);
        cluster.crabbox(&args)
    };
    cluster.crabbox(&["warmup", "--lease-id", "mine"]).exits(2);
    warm(&[]).exits(0);
    let calls = cluster.calls();
    let create = calls.iter().find(|call| call[0] == "create").unwrap();
    // A field that the server does not know is no claim that it half understands.
    let strict = |word: &String| word.ends_with("/sandboxclaims?fieldValidation=Strict");
    assert!(create.iter().any(strict), "{create:?}");
    warm(&[]).exits(0);
    assert!(!cluster.verbs().contains(&"create".to_owned()));
    warm(&["--ttl", "5m"]).exits(2).says("its ttl differs");
    cluster.calls();
    cluster.crabbox(&["stop", id]).exits(0);
    cluster.is_clean();
    assert_eq!(propagation(&cluster), "Foreground");
    warm(&[]).exits(2).says("never used again");
    assert_eq!(cluster.objects("claim").len(), 0);
}

/// How the last claim was deleted.
fn propagation(cluster: &Cluster) -> String {
    let options = fs::read_to_string(cluster.world.path("cluster/deleted")).unwrap();
    let options: Value = serde_json::from_str(&options).unwrap();
    options["propagationPolicy"].as_str().unwrap().to_owned()
}

#[test]
fn a_release_that_fails_is_told_and_can_be_repeated() {
    let cluster = Cluster::new();
    cluster.behave("fail-delete", "before\n1\nnet/http: TLS handshake timeout");
    let output = cluster.world.path("lease.json");
    let run = ["run", "--no-sync", "--lease-output"];
    let ran = cluster
        .crabbox(&[&run[..], &[output.to_str().unwrap(), "--", "true"]].concat())
        .exits(1);
    assert!(ran.cause().contains("rm failed"), "{}", ran.cause());
    let session: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert_eq!(session["kept"], true, "{session}");
    let lease = cluster.world.claim_names().remove(0);
    ran.says(&format!("crabbox stop --provider agent-sandbox {lease}"));
    cluster.behave_well("fail-delete");
    cluster.crabbox(&["stop", &lease]).exits(0);
    cluster.is_clean();
    assert_eq!(propagation(&cluster), "Background");
    // Its answer was lost, and it had happened.
    cluster.behave("fail-delete", "after\n1\nunexpected EOF");
    cluster
        .crabbox(&["run", "--no-sync", "--", "true"])
        .exits(0);
    cluster.is_clean();
}

#[test]
fn terminal_states_end_a_wait_at_once_and_time_outs_have_their_class() {
    let cluster = Cluster::new();
    cluster.behave("no-controller", "");
    let timeout = ["warmup", "--agent-sandbox-sandbox-ready-timeout", "1s"];
    let ran = cluster.crabbox(&timeout).exits(5);
    assert!(
        ran.cause().contains("class=sandbox_ready_timeout"),
        "{}",
        ran.cause()
    );
    cluster.is_clean();
    cluster.behave_well("no-controller");
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    cluster.edit("claim", |one| {
        one["status"]["conditions"] = json!([{"type": "Ready", "status": "False", "reason": "ClaimExpired", "message": "Claim expired."}]);
    });
    let started = Instant::now();
    let ran = cluster.crabbox(&["status", "a", "--wait"]).exits(5);
    assert!(
        ran.cause().contains("terminal state expired"),
        "{}",
        ran.cause()
    );
    cluster
        .crabbox(&["run", "--id", "a", "--", "true"])
        .exits(4);
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn doctor_asks_few_questions_and_names_what_is_denied() {
    let cluster = Cluster::new();
    cluster.crabbox(&["doctor"]).exits(0);
    let calls = cluster.calls();
    assert!(calls.len() <= 5, "{calls:?}");
    cluster.behave("denied", "create pods/exec\nlist pods\n");
    let ran = cluster.crabbox(&["doctor"]).exits(1);
    for denied in ["create pods/exec", "list pods"] {
        let said = format!("RBAC denied: {denied} ");
        assert!(ran.out.contains(&said), "{}", ran.out);
    }
    fs::remove_file(cluster.world.path("cluster/pool.linux-pool.json")).unwrap();
    let ran = cluster.crabbox(&["doctor"]).exits(1);
    let said = "has no SandboxWarmPool \"linux-pool\"";
    assert!(ran.out.contains(said), "{}", ran.out);
    assert_eq!(cluster.objects("claim").len(), 0);
}

/// What did not answer is not what lacks the API.
#[test]
fn doctor_tells_a_wrong_context_from_a_cluster_without_agent_sandbox() {
    let cluster = Cluster::new();
    let install = "install Agent Sandbox";
    cluster.behave("api-gone", "");
    let ran = cluster.crabbox(&["doctor"]).exits(1).says(install);
    assert!(ran.out.contains("does not serve sandboxes."), "{}", ran.out);
    cluster.behave_well("api-gone");
    for (said, hint) in [
        ("error: context \"agent-cluster\" does not exist", true),
        ("The connection to the server h:1 was refused", false),
    ] {
        for verb in ["get", "create"] {
            cluster.behave(&format!("fail-{verb}"), &format!("before\n1\n{said}"));
        }
        let ran = cluster.crabbox(&["doctor"]).exits(1).never_says(install);
        assert_eq!(
            ran.err.contains("--agent-sandbox-context"),
            hint,
            "{}",
            ran.err
        );
        assert!(!ran.out.contains("does not serve"), "{}", ran.out);
        let ran = cluster.crabbox(&["run", "--", "true"]);
        assert_eq!(
            ran.err.contains("kubectl config get-contexts"),
            hint,
            "{}",
            ran.err
        );
        assert!(ran.cause().contains(said), "{}", ran.cause());
        cluster.is_clean();
    }
}

#[test]
fn ctrl_c_ends_what_runs_in_the_pod() {
    let cluster = Cluster::new();
    let mark = format!("{}", 8_000_000 + std::process::id());
    let script = format!("echo started; setsid sleep {mark} & sleep {mark}");
    let mut child = cluster
        .world
        .spawn(&["run", "--no-sync", "--", "sh", "-c", &script]);
    let mut out = child.stdout.take().unwrap();
    let mut started = [0; 8];
    out.read_exact(&mut started).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let ps = Command::new("sh")
        .args(["-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&ps.stdout).contains(&format!("sleep {mark} ")));
    cluster.is_clean();
}

#[test]
fn leases_of_another_cluster_are_counted_and_not_used() {
    let cluster = Cluster::new();
    cluster.crabbox(&["warmup", "--slug", "a"]).exits(0);
    let ran = cluster
        .crabbox(&["list", "--json", "--agent-sandbox-context", "other"])
        .exits(0);
    assert_eq!(ran.json(), json!([]));
    let ran = cluster
        .crabbox(&["list", "--agent-sandbox-context", "other"])
        .exits(0);
    let note = "note: 1 lease of provider=agent-sandbox in another scope: crabbox claims list";
    assert_eq!((ran.out.as_str(), ran.last()), ("", note));
    for args in [
        &["stop", "--agent-sandbox-context", "other", "a"][..],
        &[
            "run",
            "--id",
            "a",
            "--agent-sandbox-context",
            "other",
            "--",
            "true",
        ],
    ] {
        let ran = cluster.crabbox(args).exits(2);
        assert!(
            ran.cause().contains("different agent-sandbox scope"),
            "{}",
            ran.cause()
        );
    }
    assert_eq!(cluster.objects("claim").len(), 1);
}
