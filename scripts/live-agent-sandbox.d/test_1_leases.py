"""Claims from warm and cold pools, their shape, and the commands of a lease's life."""
import datetime, hashlib, os, subprocess, time

from harness import CLAIMS, EXTENSIONS, RIGHTS, ROOT, SANDBOXES, World


class Leases(World):
    def launch_type(self, lease):
        return self.cluster.get(SANDBOXES, lease["labels"]["sandbox"])["metadata"]["labels"].get("agents.x-k8s.io/launch-type")

    def test_smoke_a_run_takes_a_warm_sandbox_and_leaves_nothing(self):
        ran = self.crabbox("run", "--slug", "once", "--", "cat", "README")
        self.assertEqual(ran.out, "hello\n")
        self.assert_clean()
        self.assertEqual(self.claims_of("once"), [])

    def test_smoke_a_lease_lives(self):
        lease = self.warm("lives")
        claim = lease["labels"]["claim"]
        self.assertEqual(self.launch_type(lease), "warm")
        status = self.crabbox("status", "--id", "lives", "--wait", "--json").json()
        self.assertEqual((status["state"], status["ready"]), ("running", True))
        listed = self.crabbox("list", "--json").json()
        self.assertEqual([one["labels"]["slug"] for one in listed], ["lives"])
        self.assertEqual(self.run_on("lives", "--no-sync", "--", "echo", "again").out, "again\n")
        kept = self.crabbox("cleanup", "--dry-run")
        self.assertIn("idle timeout not reached", kept.out + kept.err)
        stopped = self.crabbox("stop", "lives")
        self.assert_says(stopped, f"released lease={lease['leaseID']}")
        self.assert_gone(claim)
        self.assert_clean()

    def test_a_claim_says_whose_it_is(self):
        began = datetime.datetime.now(datetime.timezone.utc)
        lease = self.warm("whose", "--ttl", "20m")
        identity = lease["leaseID"]
        name = f"crabbox-whose-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
        claim = self.cluster.get(CLAIMS, name)
        self.assertRegex(identity, r"^asbx_[0-9a-f]{12}$")
        labels, notes = claim["metadata"]["labels"], claim["metadata"]["annotations"]
        self.assertEqual((labels["crabbox.dev/provider"], labels["crabbox.dev/lease-id"], labels["crabbox.dev/slug"]),
                         ("agent-sandbox", identity, "whose"))
        self.assertRegex(notes["crabbox.dev/provider-scope"], r"^[0-9a-f]{64}$")
        self.assertEqual(notes["crabbox.dev/workdir"], self.workdir)
        self.assertNotIn(self.kubeconfig, str(claim))
        self.assertEqual(claim["spec"]["warmPoolRef"]["name"], self.pool)
        lifecycle = claim["spec"]["lifecycle"]
        self.assertEqual(lifecycle["shutdownPolicy"], "Retain")
        left = datetime.datetime.fromisoformat(lifecycle["shutdownTime"].replace("Z", "+00:00")) - began
        self.assertTrue(19 * 60 < left.total_seconds() < 23 * 60, lifecycle)
        self.crabbox("stop", "whose")

    def test_a_cold_pool(self):
        self.pool = "cold-pool"
        lease = self.warm("cold")
        self.assertEqual(self.launch_type(lease), "cold")
        self.assertEqual(self.run_on("cold", "--", "cat", "src/main.c").out, "int main;\n")
        self.crabbox("stop", "cold")
        self.assert_clean()

    def test_an_image_with_busybox(self):
        self.pool = "tiny-pool"
        self.assertEqual(self.crabbox("run", "--", "sh", "-c", "cat README; exit 3", code=3).out, "hello\n")
        self.assert_clean()

    def test_the_container_that_is_configured(self):
        self.pool = "multi-pool"
        implicit = self.warm("implicit")
        self.run_on("implicit", "--no-sync", "--", "touch", "/tmp/here")
        self.assertEqual(self.cluster.inside(self.pod_of(implicit), "ls /tmp", "worker"), "here\n")
        self.assertEqual(self.cluster.inside(self.pod_of(implicit), "ls /tmp", "sidecar"), "")
        self.crabbox("stop", "implicit")
        self.extra["CRABBOX_AGENT_SANDBOX_CONTAINER"] = "sidecar"
        explicit = self.warm("explicit")
        self.run_on("explicit", "--no-sync", "--", "touch", "/tmp/there")
        self.assertEqual(self.cluster.inside(self.pod_of(explicit), "ls /tmp", "sidecar"), "there\n")
        self.crabbox("stop", "explicit")

    def test_a_container_that_is_not_there(self):
        self.extra["CRABBOX_AGENT_SANDBOX_CONTAINER"] = "nosuch"
        self.assert_says(self.crabbox("run", "--no-sync", "--", "true", code=4), "nosuch")
        self.assert_clean()

    def test_another_scope_is_refused(self):
        self.warm("scoped")
        self.pool = "cold-pool"
        self.run_on("scoped", "--no-sync", "--", "true", code=2)
        self.crabbox("stop", "scoped", code=2)
        self.assertEqual(self.crabbox("list", "--json").json(), [])
        self.pool = "linux-pool"
        self.run_on("scoped", "--no-sync", "--", "true")
        self.crabbox("stop", "scoped")

    def test_delete_on_release_can_be_turned_off(self):
        self.extra["CRABBOX_AGENT_SANDBOX_DELETE_ON_RELEASE"] = "false"
        self.crabbox("run", "--slug", "stays", "--no-sync", "--", "true")
        (lease,) = self.leases()
        self.assertIsNotNone(self.cluster.get(CLAIMS, self.local(lease)["labels"]["claim"]))
        self.extra.clear()
        self.crabbox("stop", "stays")
        self.assert_clean()

    def test_keep_on_failure(self):
        self.crabbox("run", "--slug", "failed", "--keep-on-failure", "--no-sync", "--", "false", code=1)
        self.assertEqual(self.run_on("failed", "--no-sync", "--", "echo", "still").out, "still\n")
        self.crabbox("stop", "failed")
        self.crabbox("run", "--keep-on-failure", "--no-sync", "--", "true")
        self.assert_clean()

    def test_doctor_is_content_and_changes_nothing(self):
        calls = self.dir / "calls"
        self.wrap_kubectl(f'printf "%s\\n" "$words" >>{calls}; case $words in *" --filename=-"*|*" -f "*) tee -a {calls} | real "$@"; exit "${{PIPESTATUS[1]}}";; esac')
        report = self.crabbox("doctor", "--json").json()
        self.assertTrue(report["ok"], report)
        self.assertNotIn(" delete ", calls.read_text())
        self.assertNotIn('"SandboxClaim"', calls.read_text())
        self.assert_clean()

    def test_a_pool_that_is_not_there(self):
        self.pool = "nosuch-pool"
        self.assert_says(self.crabbox("run", "--no-sync", "--", "true", code=4), "nosuch-pool")
        self.crabbox("doctor", code=1)
        self.assert_clean()


class Script(World):
    def test_smoke_of_the_provider(self):
        """`scripts/live-agent-sandbox-smoke.sh`, through the dispatcher."""
        live = {"CRABBOX_LIVE": "1", "CRABBOX_LIVE_PROVIDERS": "agent-sandbox", "CRABBOX_BIN": os.environ["CRABBOX_BIN"]}
        done = subprocess.run([ROOT / "scripts/live-smoke.sh"], env={**self.environment(), **live}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("classification=live_agent_sandbox_smoke_passed", done.stdout)


class FixedLeases(World):
    def test_the_same_id_is_the_same_lease(self):
        identity = f"cbx_{int(time.time() * 1000):012x}"[:16]
        lease = self.warm("fixed", "--lease-id", identity)
        self.assertEqual(lease["leaseID"], identity)
        again = self.warm("fixed", "--lease-id", identity)
        self.assertEqual(again["labels"]["claim_uid"], lease["labels"]["claim_uid"])
        # Another request under the same id.
        self.crabbox("warmup", "--lease-id", identity, "--slug", "fixed", "--ttl", "7m", code=2)
        self.crabbox("stop", identity)
        # Proved to be gone, not only about to be.
        self.assertIsNone(self.cluster.get(CLAIMS, lease["labels"]["claim"]))
        self.assertIsNone(self.cluster.get("pod", self.pod_of(lease)))
        self.crabbox("warmup", "--lease-id", identity, "--slug", "fixed", code=2)
        self.assertIsNone(self.cluster.get(CLAIMS, lease["labels"]["claim"]))

    def test_a_missing_one_is_kept(self):
        identity = f"cbx_{int(time.time() * 1000) + 1:012x}"[:16]
        lease = self.warm("fixed", "--lease-id", identity)
        self.cluster.kubectl("delete", CLAIMS, lease["labels"]["claim"])
        self.extra["CRABBOX_AGENT_SANDBOX_FORGET_MISSING"] = "true"
        self.run_on(identity, "--no-sync", "--", "true", code=4)
        self.assertIn(identity, self.leases())

    def test_malformed_ids_are_refused(self):
        for identity in ("cbx_12", "asbx_0123456789ab", "cbx_0123456789AB", "cbx_0123456789abc"):
            self.crabbox("warmup", "--lease-id", identity, code=2)
        self.assert_clean()


class Readiness(World):
    def test_a_pod_that_ends_stops_the_wait(self):
        self.pool = "ending-pool"
        template = self.cluster.get(f"sandboxtemplates.{EXTENSIONS}", "linux-pool")["spec"]["podTemplate"]["spec"]
        # It is never ready, not even for the moment that it runs.
        containers = [{**template["containers"][0], "command": ["sh", "-c", "exit 7"], "readinessProbe": {"exec": {"command": ["false"]}}}]
        self.cluster.make_pool(self.pool, restartPolicy="Never", containers=containers)
        began = time.monotonic()
        ran = self.crabbox("run", "--no-sync", "--", "true", code=4)
        # Both timeouts are 180 s.
        self.assertLess(time.monotonic() - began, 90)
        self.assertRegex(ran.err, "PodFailed|Failed")
        self.assert_clean()

    def test_a_pod_that_never_starts_is_a_timeout(self):
        self.pool = "imageless-pool"
        template = self.cluster.get(f"sandboxtemplates.{EXTENSIONS}", "linux-pool")["spec"]["podTemplate"]["spec"]
        self.cluster.make_pool(self.pool, containers=[{**template["containers"][0], "image": "localhost/nosuch:1"}])
        self.extra.update({"CRABBOX_AGENT_SANDBOX_SANDBOX_READY_TIMEOUT": "5s", "CRABBOX_AGENT_SANDBOX_POD_READY_TIMEOUT": "5s"})
        ran = self.crabbox("run", "--slug", "imageless", "--no-sync", "--", "true", code=5)
        self.assertRegex(ran.err, "(?i)not ready|timed out|timeout")
        self.assertEqual(self.claims_of("imageless"), [])
        self.assert_clean()

    def test_a_claim_that_takes_long_is_watched_where_that_is_allowed(self):
        self.pool = "watched-pool"
        template = self.cluster.get(f"sandboxtemplates.{EXTENSIONS}", "linux-pool")["spec"]["podTemplate"]["spec"]
        self.cluster.make_pool(self.pool, containers=[{**template["containers"][0], "image": "localhost/nosuch:1"}])
        self.kubeconfig = self.cluster.grant("may-watch", [*RIGHTS, ("watch", CLAIMS)])
        self.extra["CRABBOX_AGENT_SANDBOX_SANDBOX_READY_TIMEOUT"] = "10s"
        calls, said = self.dir / "calls", self.dir / "said"
        self.wrap_kubectl(f'printf "%s\\n" "$words" >>{calls}\n'
                          f'case $words in *" --watch "*) exec {self.cluster.kubectl_program} "$@" 2>>{said};; esac')
        ran = self.crabbox("run", "--slug", "watched", "--no-sync", "--", "true", code=5)
        self.assert_says(ran, "class=sandbox_ready_timeout")
        watches = [call for call in calls.read_text().splitlines() if " --watch " in call]
        self.assertTrue(watches, calls.read_text())
        self.assertIn(" get ", watches[0])
        # The API server has allowed it.
        self.assertNotIn("forbidden", said.read_text().lower())
        self.assertEqual(self.claims_of("watched"), [])
        self.assert_clean()
