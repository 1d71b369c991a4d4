//! What the program prints, to the letter.

use crate::world::World;

#[test]
fn a_run_that_succeeds() {
    let world = World::new();
    let _guard = world.snapshots();
    let ran = world.crabbox(&["run", "--", "echo", "ok"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    ok
    --- stderr
    leased dsbx_crabbox-my-app-[id] slug=[slug] provider=docker-sandbox sandbox=crabbox-my-app-[id] name=crabbox-my-app-[id]
    provider=docker-sandbox lease=dsbx_crabbox-my-app-[id] sandbox=crabbox-my-app-[id] workdir=[world]/my-app sync_delegated=true
    docker-sandbox run summary sync_delegated=true command=[time] total=[time] exit=0
    "#);
}

/// Nothing is leased; where it runs, what goes with it and how it ended come in this order.
#[test]
fn a_run_in_a_lease_that_exists() {
    let world = World::new();
    let _guard = world.snapshots();
    world.warm("a");
    let env = [("CI", "1"), ("API_TOKEN", "abcd")];
    let args = [
        "run",
        "--id",
        "a",
        "--allow-env",
        "API_TOKEN",
        "--",
        "echo",
        "ok",
    ];
    let ran = world.with_env(&env, &args);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    ok
    --- stderr
    provider=docker-sandbox lease=dsbx_crabbox-my-app-[id] sandbox=crabbox-my-app-[id] workdir=[world]/my-app sync_delegated=true
    env forwarding provider=docker-sandbox behavior=forwarded vars=API_TOKEN=set len=4 secret=true,CI=set
    docker-sandbox run summary sync_delegated=true command=[time] total=[time] exit=0
    "#);
}

#[test]
fn a_run_that_fails_and_is_kept() {
    let world = World::new();
    let _guard = world.snapshots();
    let args = [
        "run",
        "--keep-on-failure",
        "--timing-json",
        "--label",
        "l",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    let ran = world.crabbox(&args);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 3
    --- stderr
    leased dsbx_crabbox-my-app-[id] slug=[slug] provider=docker-sandbox sandbox=crabbox-my-app-[id] name=crabbox-my-app-[id]
    provider=docker-sandbox lease=dsbx_crabbox-my-app-[id] sandbox=crabbox-my-app-[id] workdir=[world]/my-app sync_delegated=true
    docker-sandbox run summary sync_delegated=true command=[time] total=[time] exit=3
    keep-on-failure: kept lease=dsbx_crabbox-my-app-[id] slug=[slug] expires=idle/ttl idle_timeout=30m0s ttl=1h30m0s
    rerun: crabbox run --provider docker-sandbox --id [slug] -- sh -c 'exit 3'
    stop: crabbox stop --provider docker-sandbox [slug]
    {"provider":"docker-sandbox","leaseId":"dsbx_crabbox-my-app-[id]","slug":"[slug]","runId":"run_[id]","syncMs":[ms],"syncPhases":[{"name":"sync","skipped":true,"reason":"provider-delegated workspace"}],"syncSkipped":true,"syncDelegated":true,"commandMs":[ms],"totalMs":[ms],"endToEndMs":[ms],"exitCode":3,"runStatus":"failed","errorKind":"command-exit","label":"l","phases":[{"name":"lease","ms":[ms]},{"name":"command","ms":[ms]},{"name":"release","ms":[ms]},{"name":"other","ms":[ms]}],"workdir":"[world]/my-app","stopCommand":"crabbox stop --provider docker-sandbox [slug]"}
    error: docker-sandbox run exited 3
    "#);
}

#[test]
fn a_run_that_never_began() {
    let world = World::new();
    let _guard = world.snapshots();
    world.behave("fail-before-create", "1\nERROR: not logged in");
    let ran = world.crabbox(&["run", "--", "true"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 1
    --- stderr
    hint: run `sbx login` and retry
    error: `sbx create --name crabbox-my-app-[id] shell [world]/my-app` exited 1: ERROR: not logged in
    "#);
    let ran = world.crabbox(&["run", "--json", "--", "true"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 1
    --- stderr
    {"error":{"code":"provider","exitCode":1,"message":"`sbx create --name crabbox-my-app-[id] shell [world]/my-app` exited 1","causes":["ERROR: not logged in"],"also":[],"hints":["run `sbx login` and retry"]}}
    "#);
}

#[test]
fn a_new_lease_and_the_list() {
    let world = World::new();
    let _guard = world.snapshots();
    let ran = world.crabbox(&["warmup", "--slug", "a"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    leased dsbx_crabbox-my-app-[id] slug=a provider=docker-sandbox sandbox=crabbox-my-app-[id] name=crabbox-my-app-[id]
    warmup complete total=[time]
    "#);
    let ran = world.crabbox(&["list"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    a                    crabbox-my-app-[id]        running      docker-sandbox lease=dsbx_crabbox-my-app-[id] slug=a keep=true target=linux expires=[time] due=[time]
    "#);
    let ran = world.crabbox(&["list", "--json"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    [
      {
        "CloudID": "crabbox-my-app-[id]",
        "Provider": "docker-sandbox",
        "HostID": "",
        "id": 0,
        "name": "crabbox-my-app-[id]",
        "status": "running",
        "labels": {
          "agent": "shell",
          "engine": "[world]/bin/sbx",
          "lease": "dsbx_crabbox-my-app-[id]",
          "provider": "docker-sandbox",
          "sandbox": "crabbox-my-app-[id]",
          "slug": "a",
          "state": "running",
          "target": "linux",
          "workspace": "[world]/my-app"
        },
        "public_net": {
          "ipv4": {
            "ip": ""
          }
        },
        "private_net": {
          "ipv4": {
            "ip": ""
          }
        },
        "server_type": {
          "name": "docker-sandbox"
        },
        "leaseId": "dsbx_crabbox-my-app-[id]",
        "slug": "a",
        "keep": true,
        "createdAt": "[time]",
        "lastUsedAt": "[time]",
        "idleTimeoutSeconds": 1800,
        "ttlSeconds": 5400,
        "expiresAt": "[time]",
        "dueAt": "[time]",
        "dueReason": "idle"
      }
    ]
    "#);
}

#[test]
fn the_status_of_a_lease() {
    let world = World::new();
    let _guard = world.snapshots();
    world.warm("a");
    let ran = world.crabbox(&["status", "a"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    dsbx_crabbox-my-app-[id] slug=a provider=docker-sandbox target=linux windows_mode=- state=running type=docker-sandbox host= pond=- network=public ready=true has_host=false idle_for=[time] idle_timeout=30m0s expires=[time] due=[time]
    "#);
    let ran = world.crabbox(&["status", "a", "--json"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    {
      "id": "dsbx_crabbox-my-app-[id]",
      "slug": "a",
      "provider": "docker-sandbox",
      "target": "linux",
      "state": "running",
      "serverId": "crabbox-my-app-[id]",
      "serverType": "docker-sandbox",
      "host": "",
      "network": "public",
      "sshHost": "",
      "sshUser": "",
      "sshPort": "",
      "sshKey": "",
      "lastTouchedAt": "[time]",
      "idleFor": "[time]",
      "idleTimeout": "30m0s",
      "expiresAt": "[time]",
      "dueAt": "[time]",
      "dueReason": "idle",
      "repoRoot": "[world]/my-app",
      "labels": {
        "agent": "shell",
        "engine": "[world]/bin/sbx",
        "lease": "dsbx_crabbox-my-app-[id]",
        "provider": "docker-sandbox",
        "sandbox": "crabbox-my-app-[id]",
        "slug": "a",
        "state": "running",
        "target": "linux",
        "workspace": "[world]/my-app"
      },
      "hasHost": false,
      "ready": true
    }
    "#);
}

#[test]
fn the_end_of_a_lease() {
    let world = World::new();
    let _guard = world.snapshots();
    world.warm("a");
    let ran = world.crabbox(&["claims", "list"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    Local claims (unverified local state; provider backends were not queried)

    leaseId="dsbx_crabbox-my-app-[id]"
    slug="a"
    provider="docker-sandbox"
    repoRoot="[world]/my-app"
    state="ready"
    keep="true"
    claimedAt="[time]"
    lastUsedAt="[time]"
    idleTimeoutSeconds="1800"
    ttlSeconds="5400"
    expiresAt="[time]"
    dueAt="[time]"
    dueReason="idle"
    "#);
    let ran = world.crabbox(&["cleanup"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    docker-sandbox cleanup removed=0 checked=1
    --- stderr
    skip lease=dsbx_crabbox-my-app-[id] reason=idle timeout not reached
    "#);
    let ran = world.crabbox(&["stop", "a"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stderr
    released lease=dsbx_crabbox-my-app-[id] sandbox=crabbox-my-app-[id]
    "#);
    let ran = world.crabbox(&["stop", "a"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 4
    --- stderr
    hint: crabbox list
    error: docker-sandbox sandbox "a" is not claimed by Crabbox; use a Crabbox slug or dsbx_<sandbox-name>
    "#);
    let ran = world.crabbox(&["stop", "a", "--json"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 4
    --- stderr
    {"error":{"code":"not_found","exitCode":4,"message":"docker-sandbox sandbox \"a\" is not claimed by Crabbox; use a Crabbox slug or dsbx_<sandbox-name>","causes":[],"also":[],"hints":["crabbox list"]}}
    "#);
}

#[test]
fn json_of_warmup_stop_and_cleanup() {
    let world = World::new();
    let _guard = world.snapshots();
    let ran = world.crabbox(&["warmup", "--slug", "a", "--json"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    {
      "leaseId": "dsbx_crabbox-my-app-[id]",
      "slug": "a",
      "provider": "docker-sandbox",
      "sandbox": "crabbox-my-app-[id]",
      "expiresAt": "[time]",
      "dueAt": "[time]",
      "dueReason": "idle",
      "cleanupCommand": "crabbox stop --provider docker-sandbox a"
    }
    "#);
    let ran = world.crabbox(&["cleanup", "--json"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    {
      "provider": "docker-sandbox",
      "dryRun": false,
      "entries": [
        {
          "leaseId": "dsbx_crabbox-my-app-[id]",
          "slug": "a",
          "sandbox": "crabbox-my-app-[id]",
          "action": "skip",
          "reason": "idle timeout not reached"
        }
      ],
      "removed": 0,
      "checked": 1,
      "failed": 0
    }
    "#);
    let ran = world.crabbox(&["stop", "a", "--json"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    {
      "leaseId": "dsbx_crabbox-my-app-[id]",
      "slug": "a",
      "sandbox": "crabbox-my-app-[id]",
      "released": true
    }
    "#);
}

#[test]
fn history_for_people() {
    let world = World::new();
    let _guard = world.snapshots();
    world
        .crabbox(&["run", "--slug", "a", "--label", "a b", "--", "true"])
        .exits(0);
    let ran = world.crabbox(&["history"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    run_[id] succeeded   exit=0 [ms] [time] slug=a label='a b' lease=[time] command=[time] release=[time] other=[time] true
    "#);
}
