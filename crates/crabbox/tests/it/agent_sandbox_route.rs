//! agent-sandbox: which cluster a command line means, and which one the commands mean that it prints.

use std::fs;

use crate::agent_sandbox::Cluster;

/// A cluster whose kubeconfig the configuration does not name.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    let path = cluster.world.path("config/crabbox/config.yaml");
    let config = fs::read_to_string(&path).unwrap();
    let line = "  kubeconfig: /nowhere/config\n";
    assert!(config.contains(line), "{config}");
    cluster.world.user_config(&config.replace(line, ""));
    cluster
}

#[test]
fn entries_of_kubeconfig_may_begin_with_the_home_directory_and_no_other() {
    let cluster = cluster();
    let run = |value: &str| {
        cluster.world.with_env(
            &[("KUBECONFIG", value)],
            &["run", "--no-sync", "--", "true"],
        )
    };
    run("~/a:/b").exits(0);
    let home = cluster.world.path("home");
    let seen = fs::read_to_string(cluster.world.path("cluster/kubeconfig")).unwrap();
    assert_eq!(seen, format!("{}/a:/b", home.display()));
    cluster.calls();
    for value in ["a:/b", "~/a:b", "~other/a"] {
        let ran = run(value).exits(2);
        assert!(ran.cause().contains("must be absolute"), "{}", ran.cause());
    }
    assert_eq!(cluster.calls(), Vec::<Vec<String>>::new());
}

/// Another terminal has the files of this one, but not its variables.
#[test]
fn a_printed_command_repeats_what_variables_said_of_the_route() {
    let cluster = cluster();
    let stop = |kubeconfig: &str, own: &str| {
        let env = [
            ("KUBECONFIG", kubeconfig),
            ("CRABBOX_AGENT_SANDBOX_KUBECONFIG", own),
            ("CRABBOX_AGENT_SANDBOX_CONTEXT", "other cluster"),
            ("CRABBOX_AGENT_SANDBOX_EXEC_TIMEOUT_SECS", "60"),
        ];
        let warm = [
            "warmup",
            "--json",
            "--agent-sandbox-warm-pool",
            "linux-pool",
        ];
        let leased = cluster.world.with_env(&env, &warm).exits(0).json();
        let lease = leased["leaseId"].as_str().unwrap().to_owned();
        let command = leased["cleanupCommand"].as_str().unwrap().to_owned();
        let command = command.replace(&lease, "ID");
        (command, lease)
    };
    let rest = "--agent-sandbox-context 'other cluster' --agent-sandbox-warm-pool linux-pool ID";
    let one = format!(
        "crabbox stop --provider agent-sandbox --agent-sandbox-kubeconfig /one/config {rest}"
    );
    assert_eq!(stop("/ignored", "/one/config").0, one);
    let (command, lease) = stop("/one/config", "");
    assert_eq!(command, one);
    // It is the same scope, whichever way it was said.
    let words = one.replace("ID", &lease);
    let words: Vec<_> = words.split(' ').skip(1).collect();
    let words: Vec<_> = words.iter().map(|word| word.trim_matches('\'')).collect();
    let context = words.iter().position(|word| *word == "other").unwrap();
    let mut args = words.clone();
    args.splice(context..context + 2, ["other cluster"]);
    cluster.crabbox(&args).exits(0);
    // No flag says a list.
    let list = "KUBECONFIG='/one config:/two' crabbox stop --provider agent-sandbox";
    assert_eq!(stop("/one config:/two", "").0, format!("{list} {rest}"));
}
