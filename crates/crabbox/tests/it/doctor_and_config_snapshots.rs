//! What the program prints about itself and its surroundings, to the letter.

use crate::world::World;

#[test]
fn doctor_in_good_and_bad_health() {
    let world = World::new();
    let _guard = world.snapshots();
    let ran = world.crabbox(&["doctor"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    ok      config             [world]/config/crabbox/config.yaml does not exist; using defaults
    ok      provider-selection provider=docker-sandbox source=compiled_default selected=false
    ok      state              [world]/state/crabbox
    ok      git                found
    ok      ssh-key            per-lease
    ok      sbx_engine         program=[world]/bin/sbx found=PATH
    ok      sbx_version        version=Client Version:  v0.31.3
    ok      sbx_compatibility  sbx_compatibility=ok baseline=0.31.3
    ok      sbx_inventory      leases=0
    ok      sbx_diagnose       checks=1
    "#);
    world.behave("fail-before-ls", "1\nERROR: not logged in");
    let ran = world.crabbox(&["doctor"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 1
    --- stdout
    ok      config             [world]/config/crabbox/config.yaml does not exist; using defaults
    ok      provider-selection provider=docker-sandbox source=compiled_default selected=false
    ok      state              [world]/state/crabbox
    ok      git                found
    ok      ssh-key            per-lease
    ok      sbx_engine         program=[world]/bin/sbx found=PATH
    ok      sbx_version        version=Client Version:  v0.31.3
    ok      sbx_compatibility  sbx_compatibility=ok baseline=0.31.3
    failed  sbx_inventory      `sbx ls --json` exited 1: ERROR: not logged in
    ok      sbx_diagnose       checks=1
    --- stderr
    hint: run `sbx login` and retry
    error: doctor found problems
    "#);
}

#[test]
fn doctor_for_programs() {
    let world = World::new();
    let _guard = world.snapshots();
    world.behave("fail-before-ls", "1\nERROR: not logged in");
    let ran = world.crabbox(&["doctor", "--json"]).exits(1);
    // With a line for each check.
    let printed = ran.out.trim_end().replace("{\"status\"", "\n{\"status\"");
    insta::assert_snapshot!(printed, @r#"
    {"ok":false,"provider":"docker-sandbox","checks":[
    {"status":"ok","check":"config","provider":"docker-sandbox","message":"[world]/config/crabbox/config.yaml does not exist; using defaults","details":{"path":"[world]/config/crabbox/config.yaml"}},
    {"status":"ok","check":"provider-selection","provider":"docker-sandbox","message":"provider=docker-sandbox source=compiled_default selected=false","details":{"provider":"docker-sandbox","selected":"false","source":"compiled_default"}},
    {"status":"ok","check":"state","provider":"docker-sandbox","message":"[world]/state/crabbox","details":{"path":"[world]/state/crabbox"}},
    {"status":"ok","check":"git","provider":"docker-sandbox","message":"found","details":{"path":"[git]","tool":"git"}},
    {"status":"ok","check":"ssh-key","provider":"docker-sandbox","message":"per-lease","details":{"mode":"per-lease"}},
    {"status":"ok","check":"sbx_engine","provider":"docker-sandbox","message":"program=[world]/bin/sbx found=PATH","details":{"found":"PATH","mutation":"false","path":"[world]/bin/sbx","program":"[world]/bin/sbx","source":"PATH","tool":"sbx"}},
    {"status":"ok","check":"sbx_version","provider":"docker-sandbox","message":"version=Client Version:  v0.31.3","details":{"mutation":"false","version":"Client Version:  v0.31.3"}},
    {"status":"ok","check":"sbx_compatibility","provider":"docker-sandbox","message":"sbx_compatibility=ok baseline=0.31.3","details":{"baseline":"0.31.3","mutation":"false"}},
    {"status":"failed","check":"sbx_inventory","provider":"docker-sandbox","message":"`sbx ls --json` exited 1: ERROR: not logged in","details":{"advice":"run `sbx login` and retry","class":"auth","hint":"check_provider_auth_and_config","mutation":"false"}},
    {"status":"ok","check":"sbx_diagnose","provider":"docker-sandbox","message":"checks=1","details":{"mutation":"false"}}]}
    "#);
    insta::assert_snapshot!(ran.err, @r#"
    {"error":{"code":"unhealthy","exitCode":1,"message":"doctor found problems","causes":[],"also":[],"hints":["run `sbx login` and retry"]}}
    "#);
}

#[test]
fn settings_and_their_mistakes() {
    let world = World::new();
    let _guard = world.snapshots();
    let ran = world.crabbox(&["config", "show"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    config=[world]/config/crabbox/config.yaml
    profile=default provider=docker-sandbox provider_source=compiled_default target=linux ttl=1h30m0s idle_timeout=30m0s cache=false
    sync exclude=.git,._*,node_modules,.ignored,.turbo,.next,.vite,.parcel-cache,.rollup.cache,.cache,.tmp,.local,.swiftpm,.pnpm-store,.npm,.yarn/cache,.venv,__pycache__,.pytest_cache,.mypy_cache,.ruff_cache,.gradle,dist,dist-runtime,coverage,playwright-report,test-results,.build,apps/*/.build,target,.crabbox/env,.crabbox/scripts,.crabbox/logs,.crabbox/captures,.crabbox/runs include=- delete=true checksum=false git_seed=true fingerprint=true base_ref=- timeout=15m0s warn_files=50000 warn_bytes=5368709120 fail_files=150000 fail_bytes=21474836480 allow_large=false
    env allow=CI,NODE_OPTIONS
    docker_sandbox cli=sbx agent=shell template=- cpus=0 memory=- clone=false git_write=false workdir=- extra_workspaces=- mcp=- kit=-
    agent_sandbox kubectl=kubectl kubeconfig=- context=- namespace=default warm_pool=- container=- workdir=/workspace/crabbox sandbox_ready_timeout=3m0s pod_ready_timeout=3m0s exec_timeout_secs=600 delete_on_release=true forget_missing=false
    open_sandbox api_url=- image=ubuntu:24.04 workdir=/workspace/crabbox cpu=1 memory=2Gi timeout_secs=0 exec_timeout_secs=600 platform_os=linux platform_arch=amd64 secure_access=false use_server_proxy=false forget_missing=false
    "#);
    world.repo_config("ttl: 1h\nidelTimeout: 5m\n");
    let ran = world.crabbox(&["config", "show"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 2
    --- stderr
      |
    2 | idelTimeout ...
      | ^^^^^^^^^^^
    error: parse config [world]/my-app/.crabbox.yaml: line 2 column 1: unknown key `idelTimeout`; did you mean `idleTimeout`?
    "#);
    world.repo_config("dockerSandbox:\n  cliPath: ./sbx\n");
    let ran = world.crabbox(&["run", "--", "true"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 2
    --- stderr
    hint: review the file, then accept it with `crabbox trust`
    error: config [world]/my-app/.crabbox.yaml:2: a repository may not set `dockerSandbox.cliPath`: it controls what runs or is reachable outside the sandbox
    "#);
    let ran = world.crabbox(&["run", "--json", "--", "true"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 2
    --- stderr
    {"error":{"code":"untrusted","exitCode":2,"message":"config [world]/my-app/.crabbox.yaml:2: a repository may not set `dockerSandbox.cliPath`: it controls what runs or is reachable outside the sandbox","causes":[],"also":[],"hints":["review the file, then accept it with `crabbox trust`"]}}
    "#);
}

#[test]
fn discovery_for_people() {
    let world = World::new();
    let _guard = world.snapshots();
    let ran = world.crabbox(&["providers"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    docker-sandbox   delegated-run  local-sandbox  targets=linux features=run-session,mcp-attachments,cleanup
    agent-sandbox    delegated-run  delegated-sandbox targets=linux features=archive-sync,cleanup,run-session,fixed-lease-id
    opensandbox      delegated-run  delegated-sandbox targets=linux features=archive-sync,cleanup,run-session
    "#);
    let ran = world.crabbox(&["providers", "describe", "docker-sandbox"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    docker-sandbox
      kind=delegated-run category=local-sandbox targets=linux coordinator=never
      features=run-session,mcp-attachments,cleanup
      --docker-sandbox-cli                 The sbx program: a name in PATH or a path
      --docker-sandbox-agent               Agent of the sandbox; only shell is supported
      --docker-sandbox-template            Template to create the sandbox from
      --docker-sandbox-cpus                Processors; 0 leaves it to sbx
      --docker-sandbox-memory              Memory, such as 4g
      --docker-sandbox-clone               Work on a clone of the repository instead of the directory itself
      --git-write                          Let commands commit in a linked git worktree: opens objects, refs and reflogs of its repository (bundled engine)
      --docker-sandbox-workdir             Where commands run; empty means the repository's own path
      --docker-sandbox-extra-workspace     Additional directories to share
      --docker-sandbox-mcp                 MCP servers to attach
      --docker-sandbox-kit                 Kits to add
    "#);
    let ran = world.crabbox(&["list", "--provider", "docker"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 2
    --- stderr
    --provider docker
    hint: local-container is not part of this build; use docker-sandbox
    error: unknown provider "docker"
    "#);
    let ran = world.crabbox(&["stop", "--help"]);
    insta::assert_snapshot!(ran.show(), @r#"
    exit: 0
    --- stdout
    Remove a lease and its sandbox

    Usage: crabbox stop [OPTIONS] [LEASE]

    Arguments:
      [LEASE]  Lease slug, lease id or sandbox name

    Options:
          --id <LEASE>  Lease, given as a flag
          --force       End running commands instead of waiting for them
          --json        Output the result or failure as JSON
      -h, --help        Print help

    Settings:
          --profile <VALUE>   Profile whose variables are passed to commands
          --provider <VALUE>  Provider that runs commands
          --target <VALUE>    Operating system of the sandbox

    docker-sandbox:
          --docker-sandbox-cli <VALUE>      The sbx program: a name in PATH or a path
          --docker-sandbox-workdir <VALUE>  Where commands run; empty means the repository's own path

    Waits for running commands. The lease is forgotten only after the sandbox is proved gone.
    "#);
}
