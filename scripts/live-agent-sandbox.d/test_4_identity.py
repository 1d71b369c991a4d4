"""What happens to a lease behind our back: it is seen before source or values are sent."""
import json, time

from harness import CLAIMS, SANDBOXES, World


class Identity(World):
    def setUp(self):
        super().setUp()
        self.extra["MY_TOKEN"] = "secret-value"
        self.lease = self.warm("mine")
        self.claim, self.pod = self.lease["labels"]["claim"], self.pod_of(self.lease)

    def refused(self, *texts, code):
        """Neither files nor values reach any pod: kubectl is never called for an exec."""
        calls = self.dir / "execs"
        calls.unlink(missing_ok=True)
        self.wrap_kubectl(f'case $words in *" exec "*) echo "$words" >>{calls}; (tee -a {calls} | real "$@"; exit "${{PIPESTATUS[1]}}"); exit $?;; esac')
        ran = self.run_on("mine", "--allow-env", "MY_TOKEN", "--", "echo", "must not run", code=code)
        del self.extra["CRABBOX_AGENT_SANDBOX_KUBECTL"]
        self.assertNotIn("must not run", ran.out)
        self.assert_says(ran, *texts)
        sent = calls.read_bytes() if calls.exists() else b""
        self.assertEqual(sent, b"")
        return ran

    def replace_claim(self):
        """Another object of the same name, labels and annotations."""
        claim = self.cluster.get(CLAIMS, self.claim)
        self.cluster.kubectl("delete", CLAIMS, self.claim)
        about = {key: claim["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
        self.cluster.apply({"apiVersion": claim["apiVersion"], "kind": "SandboxClaim", "metadata": about, "spec": claim["spec"]})
        return self.wait_for(lambda: self.cluster.get(CLAIMS, self.claim), "the other claim")

    def test_smoke_the_claim_is_deleted(self):
        self.cluster.kubectl("delete", CLAIMS, self.claim)
        self.refused("missing", code=4)
        self.assertEqual(self.leases(), [self.lease["leaseID"]])
        began = time.monotonic()
        self.crabbox("status", "--id", "mine", "--wait", "--wait-timeout", "2m", code=4)
        self.assertLess(time.monotonic() - began, 60)
        listed = self.crabbox("list", "--json").json()
        self.assertEqual([one["status"] for one in listed], ["missing-or-inaccessible"])
        self.crabbox("stop", "mine", code=4)
        self.assertEqual(self.leases(), [self.lease["leaseID"]])
        self.crabbox("stop", "--agent-sandbox-forget-missing", "mine")
        self.assert_clean()

    def test_forget_missing_runs_nothing(self):
        self.cluster.kubectl("delete", CLAIMS, self.claim)
        self.extra["CRABBOX_AGENT_SANDBOX_FORGET_MISSING"] = "true"
        self.refused(code=4)
        self.assert_clean()

    def test_cleanup_says_that_the_claim_is_missing(self):
        self.cluster.kubectl("delete", CLAIMS, self.claim)
        for flags in (["--dry-run"], []):
            swept = self.crabbox("cleanup", *flags)
            self.assertIn("missing-or-inaccessible", swept.out + swept.err)
        self.assertEqual(self.leases(), [self.lease["leaseID"]])

    def test_the_claim_is_replaced(self):
        other = self.replace_claim()["metadata"]["uid"]
        self.refused(code=4)
        self.crabbox("stop", "mine", code=4)
        self.edit_local(self.lease["leaseID"], lambda claim: claim.update(lastUsedAt="2020-01-01T00:00:00Z"))
        for flags in (["--dry-run"], []):
            swept = self.end(self.start("cleanup", *flags))
            self.assertNotIn("would delete", swept.out + swept.err)
        self.assertEqual(self.cluster.get(CLAIMS, self.claim)["metadata"]["uid"], other)
        self.cluster.kubectl("delete", CLAIMS, self.claim, "--wait=false")

    def test_the_uid_in_our_own_record_is_wrong(self):
        def edit(claim):
            claim["labels"]["claim_uid"] = "00000000-0000-0000-0000-000000000000"
        self.edit_local(self.lease["leaseID"], edit)
        self.refused(code=4)
        self.crabbox("stop", "mine", code=4)
        self.assertIsNotNone(self.cluster.get(CLAIMS, self.claim))

    def test_labels_and_annotations_are_changed(self):
        for change in ({"labels": {"crabbox.dev/lease-id": "asbx_000000000000"}}, {"labels": {"crabbox.dev/provider": "other"}},
                       {"annotations": {"crabbox.dev/provider-scope": "0" * 64}}):
            with self.subTest(change):
                before = self.cluster.get(CLAIMS, self.claim)["metadata"]
                self.cluster.patch(CLAIMS, self.claim, {"metadata": change})
                self.refused(code=4)
                self.crabbox("stop", "mine", code=4)
                ((kind, values),) = change.items()
                self.cluster.patch(CLAIMS, self.claim, {"metadata": {kind: {key: before[kind][key] for key in values}}})
        self.run_on("mine", "--no-sync", "--", "true")

    def test_the_claim_points_elsewhere(self):
        self.cluster.patch(CLAIMS, self.claim, {"spec": {"warmPoolRef": {"name": "cold-pool"}}})
        self.refused(code=4)
        self.crabbox("stop", "mine", code=4)

    def test_the_claim_lives_longer(self):
        self.cluster.patch(CLAIMS, self.claim, {"spec": {"lifecycle": {"shutdownTime": "2199-01-01T00:00:00Z"}}})
        self.refused(code=4)
        self.crabbox("stop", "mine", code=4)

    def test_the_claim_deletes_itself(self):
        self.cluster.patch(CLAIMS, self.claim, {"spec": {"lifecycle": {"shutdownPolicy": "Delete"}}})
        self.refused(code=4)

    def test_the_sandbox_is_swapped(self):
        sandbox = self.lease["labels"]["sandbox"]
        self.cluster.kubectl("delete", SANDBOXES, sandbox, "--wait=false")
        def swapped():
            status = self.cluster.get(CLAIMS, self.claim).get("status", {})
            return status.get("sandbox", {}).get("name") not in (None, sandbox) and ready(status)
        self.wait_for(swapped, "the other Sandbox")
        self.refused(code=4)
        self.crabbox("stop", "mine")
        self.assert_clean()

    def test_the_pod_is_replaced(self):
        before = self.cluster.get("pod", self.pod)["metadata"]["uid"]
        self.cluster.kubectl("delete", "pod", self.pod)
        def replaced():
            pod = self.cluster.get("pod", self.pod)
            return pod and pod["metadata"]["uid"] != before and ready(pod["status"])
        self.wait_for(replaced, "the other pod")
        self.refused(code=4)
        self.crabbox("stop", "mine")

    def test_the_container_is_restarted(self):
        def state():
            return self.cluster.get("pod", self.pod)["status"]["containerStatuses"][0]
        before = state()["containerID"]
        self.cluster.inside(self.pod, "kill -TERM 1 2>/dev/null; kill -KILL -1", check=False)
        # Process 1 ignores what it has no handler for; its container is ended from outside then.
        if not self.restarted_within(5, state, before):
            self.end_container(before)
        self.wait_for(lambda: state()["containerID"] != before and state()["ready"], "the other container")
        self.refused(code=4)
        self.crabbox("stop", "mine")

    def restarted_within(self, seconds, state, before):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if state()["containerID"] != before:
                return True
            time.sleep(0.2)
        return False

    def end_container(self, identity):
        """Its process 1, found by its cgroup."""
        import os, pathlib
        short = identity.rpartition("/")[2]
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if short in (process / "cgroup").read_text():
                    os.kill(int(process.name), 9)
            except OSError:
                pass

    def test_a_terminating_pod_is_not_used(self):
        self.extra["CRABBOX_AGENT_SANDBOX_POD_READY_TIMEOUT"] = "3s"
        self.cluster.patch("pod", self.pod, {"metadata": {"finalizers": ["crabbox.dev/hold"]}})
        try:
            self.cluster.kubectl("delete", "pod", self.pod, "--wait=false")
            self.refused("will not be ready", code=4)
        finally:
            self.cluster.patch("pod", self.pod, {"metadata": {"finalizers": None}})
        self.crabbox("stop", "mine")


class Expiry(World):
    def expired(self, lease):
        """The controller has ended the Sandbox and kept the claim."""
        def over():
            claim = self.cluster.get(CLAIMS, lease["labels"]["claim"])
            return any(one.get("reason") == "ClaimExpired" for one in claim["status"].get("conditions", []))
        self.wait_for(over, "the expiry")

    def test_an_expired_lease_runs_nothing_and_is_removed(self):
        lease = self.warm("short", "--ttl", "12s")
        self.expired(lease)
        status = self.end(self.start("status", "--id", "short", "--json"))
        self.assertIn("expired", status.out)
        self.assertIsNotNone(self.cluster.get(CLAIMS, lease["labels"]["claim"]))
        ran = self.run_on("short", "--no-sync", "--", "echo", "must not run", code=4)
        self.assertNotIn("must not run", ran.out)
        self.assert_says(ran, "expir")
        self.assert_gone(lease["labels"]["claim"])
        self.assert_clean()

    def test_cleanup_removes_what_is_expired_or_idle(self):
        expired, idle, busy = self.warm("old", "--ttl", "12s"), self.warm("idle"), self.warm("busy")
        self.expired(expired)
        self.edit_local(idle["leaseID"], lambda claim: claim.update(lastUsedAt="2020-01-01T00:00:00Z"))
        preview = self.crabbox("cleanup", "--dry-run")
        self.assertEqual((preview.out + preview.err).count("would delete"), 2)
        self.assertEqual(len(self.leases()), 3)
        self.crabbox("cleanup")
        self.assertEqual(self.leases(), [busy["leaseID"]])
        self.assert_gone(expired["labels"]["claim"])
        self.assert_gone(idle["labels"]["claim"])
        self.crabbox("stop", "busy")

    def test_the_time_ends_in_a_command(self):
        ran = self.crabbox("run", "--ttl", "15s", "--no-sync", "--", "sh", "-c", "sleep 60; echo must not be reached", code=4)
        self.assertNotIn("must not be reached", ran.out)
        self.assert_says(ran, "has expired")
        self.assertNotIn("command terminated", ran.err)
        self.assert_clean()


def ready(status):
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
