"""Parts of the cluster that stop, and start again, in the middle of create, exec and delete."""
import os, threading, time

from harness import CLAIMS, World


class Faults(World):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.heal)

    def heal(self):
        for part in ("apiserver", "manager", "scheduler", "kubelet", "controller"):
            self.cluster.change("start", part)
        self.wait_for(self.cluster.answers, "the API server")
        self.wait_for(self.cluster.node_answers, "the node")

    def change(self, how, part):
        self.cluster.change(how, part)

    def command(self, slug="faults"):
        """A command that has begun."""
        lease = self.warm(slug)
        child = self.start("run", "--id", slug, "--no-sync", "--", "sh", "-c", "touch /tmp/began; sleep 98771; true")
        self.wait_for(lambda: self.cluster.inside(self.pod_of(lease), "ls /tmp/began 2>/dev/null || true"), "the command")
        return lease, child

    def at_the_call(self, verb, during, answered=True):
        """The kubectl of this verb: its request is answered, then `during` happens, and the answer is lost or not."""
        script = " ".join([*self.cluster.script, *during])
        result = 'cat "$state/answer"; exit "$code"' if answered else "exit 1"
        self.wrap_kubectl(f'''case $words in *" {verb} "*)
  if [ ! -e "$state/done" ]; then
    touch "$state/done"
    real "$@" >"$state/answer"; code=$?
    {script} >&2
    {result}
  fi;; esac''')

    # Create.

    def test_the_answer_of_create_is_lost(self):
        """Accepted by the API server, which then ends, and comes back."""
        self.at_the_call("create", ("kill", "apiserver"), answered=False)
        healer = threading.Thread(target=self.heal_soon)
        child = self.start("run", "--slug", "lost", "--no-sync", "--", "echo", "ran")
        self.wait_for(lambda: (self.dir / "done").exists(), "the create")
        healer.start()
        ran = self.end(child, timeout=240)
        healer.join()
        if ran.code == 0:
            self.assertEqual(ran.out, "ran\n")
            self.assert_clean()
        else:
            # What may be there is recorded, and the record leads to it.
            self.assertEqual(len(self.leases()), 1, ran.err)
            self.assert_says(ran, "crabbox stop")
            self.crabbox("stop", self.leases()[0])
            self.assert_clean()
        for name in self.cluster.names(CLAIMS):
            if "lost" in name:
                self.assert_gone(name)

    def heal_soon(self):
        time.sleep(2)
        self.change("start", "apiserver")

    def test_create_is_answered_twice(self):
        """A create whose answer is lost finds its own claim, and not one more."""
        self.wrap_kubectl('''case $words in *" create "*)
  if [ ! -e "$state/done" ]; then touch "$state/done"; real "$@" >/dev/null; echo "error: http2: client connection lost" >&2; exit 1; fi;; esac''')
        ran = self.crabbox("run", "--slug", "twice", "--no-sync", "--", "echo", "ran")
        self.assertEqual(ran.out, "ran\n")
        self.assert_clean()

    def test_no_api_server_at_create(self):
        self.change("kill", "apiserver")
        ran = self.crabbox("run", "--slug", "none", "--no-sync", "--", "echo", "must not run", code=1)
        self.assertNotIn("must not run", ran.out)
        self.assertRegex(ran.err, "(?i)refused|connect|unreachable")
        self.heal()
        for lease in self.leases():
            self.end(self.start("stop", lease))
        self.assertFalse([name for name in self.cluster.names(CLAIMS) if "crabbox-none-" in name])

    def test_the_api_server_ends_while_waiting(self):
        # Without a kubelet the wait lasts until the server is gone.
        self.change("kill", "kubelet")
        self.pool = "cold-pool"
        child = self.start("run", "--slug", "waits", "--no-sync", "--", "echo", "ran")
        self.wait_for(lambda: any("waits" in name for name in self.cluster.names(CLAIMS)), "the claim")
        self.change("kill", "apiserver")
        self.heal()
        ran = self.end(child, timeout=240)
        self.assertEqual((ran.code, ran.out), (0, "ran\n"), ran.err)
        self.assert_clean()

    def test_the_kubelet_is_away_while_waiting(self):
        self.change("kill", "kubelet")
        self.pool = "cold-pool"
        child = self.start("run", "--slug", "kubeless", "--no-sync", "--", "echo", "ran")
        self.wait_for(lambda: any("kubeless" in name for name in self.cluster.names(CLAIMS)), "the claim")
        time.sleep(2)
        self.heal()
        ran = self.end(child, timeout=240)
        self.assertEqual((ran.code, ran.out), (0, "ran\n"), ran.err)
        self.assert_clean()

    # Exec.

    def lost(self, part):
        lease, child = self.command()
        self.change("kill", part)
        ran = self.end(child, timeout=180)
        # kubectl says 0 and nothing else.
        self.assertNotEqual(ran.code, 0, ran.err)
        self.assertRegex(ran.err, "(?i)lost|connection|proved|unknown")
        self.heal()
        return lease

    def test_smoke_the_api_server_ends_in_a_command(self):
        lease = self.lost("apiserver")
        self.wait_for(lambda: "98771" not in self.cluster.inside(self.pod_of(lease), "ps -eo args"), "the end of the command", 60)
        self.assertEqual(self.run_on("faults", "--no-sync", "--", "echo", "again").out, "again\n")
        self.crabbox("stop", "faults")
        self.assert_clean()

    def test_the_kubelet_ends_in_a_command(self):
        lease = self.lost("kubelet")
        # A kubelet that has just started does not know its pods at once.
        self.wait_for(lambda: self.cluster.inside(self.pod_of(lease), "echo yes", check=False), "the pod")
        self.assertEqual(self.run_on("faults", "--no-sync", "--", "echo", "again").out, "again\n")
        self.crabbox("stop", "faults")
        self.assert_clean()

    def test_the_node_ends_in_a_command(self):
        """All containers with it. What starts afterwards is another container."""
        self.lost("node")
        self.run_on("faults", "--no-sync", "--", "echo", "must not run", code=None)
        self.crabbox("stop", "faults")
        self.assert_clean()

    def test_the_api_server_ends_in_a_sync(self):
        pod = self.pod_of(self.warm("faults"))
        self.run_on("faults", "--sync-only")
        # Nothing that a compression could make short.
        self.write("large", os.urandom(300_000_000))
        self.write("README", "changed\n")
        child = self.start("run", "--id", "faults", "--full-resync", "--", "echo", "must not run")
        staged = f"ls -d {self.workdir}/.crabbox-sync-* 2>/dev/null || true"
        self.wait_for(lambda: self.cluster.inside(pod, staged), "the staging directory")
        self.change("kill", "apiserver")
        ran = self.end(child, timeout=240)
        self.assertNotEqual(ran.code, 0)
        self.assertNotIn("must not run", ran.out)
        self.heal()
        seen = self.run_on("faults", "--no-sync", "--", "cat", "README").out
        self.assertIn(seen, ("hello\n", "changed\n"))
        (self.repo / "large").unlink()
        self.assertEqual(self.run_on("faults", "--", "cat", "README").out, "changed\n")
        self.crabbox("stop", "faults")

    # Delete.

    def test_no_api_server_at_delete(self):
        lease = self.warm("faults")
        self.change("kill", "apiserver")
        self.crabbox("stop", "faults", code=1, timeout=180)
        self.assertEqual(self.leases(), [lease["leaseID"]])
        self.heal()
        self.crabbox("stop", "faults")
        self.assert_gone(lease["labels"]["claim"])
        self.assert_clean()

    def test_the_answer_of_delete_is_lost(self):
        lease = self.warm("faults")
        self.at_the_call("delete", ("kill", "apiserver"), answered=False)
        child = self.start("stop", "faults")
        self.wait_for(lambda: (self.dir / "done").exists(), "the delete")
        ran = self.end(child, timeout=180)
        self.heal()
        if ran.code != 0:
            # That it is missing proves nothing by itself.
            self.assertEqual(self.leases(), [lease["leaseID"]])
            self.extra["CRABBOX_AGENT_SANDBOX_FORGET_MISSING"] = "true"
            self.crabbox("stop", "faults")
        self.assert_gone(lease["labels"]["claim"])
        self.assert_clean()

    def test_the_api_server_ends_before_the_release(self):
        """The command has succeeded; that the sandbox may still be there makes the run fail, and is recorded."""
        self.at_the_call("exec", ("kill", "apiserver"))
        ran = self.crabbox("run", "--slug", "release", "--no-sync", "--", "echo", "ran", code=None, timeout=240)
        self.assertEqual(len(self.leases()), 1, ran.err)
        self.assert_says(ran, "crabbox stop")
        self.heal()
        self.crabbox("stop", self.leases()[0])
        self.assert_clean()

    def test_the_kubelet_is_away_at_delete(self):
        lease = self.warm("faults")
        self.change("kill", "kubelet")
        self.crabbox("stop", "faults")
        self.assert_gone(lease["labels"]["claim"])
        self.heal()
        self.wait_for(lambda: self.cluster.get("pod", self.pod_of(lease)) is None, "the end of the pod")
        self.assert_clean()
