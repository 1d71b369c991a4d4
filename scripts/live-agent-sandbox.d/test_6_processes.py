"""Several crabbox processes on one lease."""
import signal, time

from harness import CLAIMS, World


class Processes(World):
    def test_smoke_stop_waits_for_the_command(self):
        lease = self.warm("shared")
        child = self.start("run", "--id", "shared", "--no-sync", "--", "sh", "-c", "touch /tmp/began; until [ -e /tmp/go ]; do sleep 0.1; done; echo done")
        pod = self.pod_of(lease)
        self.wait_for(lambda: self.cluster.inside(pod, "ls /tmp/began 2>/dev/null || true"), "the command")
        stop = self.start("stop", "shared")
        time.sleep(2)
        self.assertIsNone(stop.poll())
        claim = self.cluster.get(CLAIMS, lease["labels"]["claim"])
        self.assertNotIn("deletionTimestamp", claim["metadata"])
        self.cluster.inside(pod, "touch /tmp/go")
        self.assertEqual(self.end(child).out, "done\n")
        self.assertEqual(self.end(stop).code, 0)
        self.assert_gone(lease["labels"]["claim"])
        self.assert_clean()

    def test_two_runs_at_once(self):
        self.warm("shared")
        children = [self.start("run", "--id", "shared", "--", "sh", "-c", f"cat README; exit {code}") for code in (3, 4)]
        for code, child in zip((3, 4), children):
            ran = self.end(child)
            self.assertEqual((ran.code, ran.out), (code, "hello\n"), ran.err)
        self.crabbox("stop", "shared")

    def test_two_stops_at_once(self):
        lease = self.warm("shared")
        codes = sorted(self.end(child).code for child in [self.start("stop", "shared") for _ in range(2)])
        self.assertEqual(codes[0], 0)
        self.assertIn(codes[1], (0, 4))
        self.assert_gone(lease["labels"]["claim"])
        self.assert_clean()

    def test_a_run_that_waited_for_a_stop(self):
        """It looks again, and does not use what is gone."""
        self.warm("shared")
        stop, run = self.start("stop", "shared"), self.start("run", "--id", "shared", "--no-sync", "--", "echo", "ran")
        ended, ran = self.end(stop), self.end(run)
        self.assertEqual(ended.code, 0, ended.err)
        self.assertIn((ran.code, ran.out), ((0, "ran\n"), (4, "")), ran.err)

    def test_one_slug_for_two(self):
        codes = sorted(self.end(child).code for child in [self.start("warmup", "--slug", "same") for _ in range(2)])
        self.assertEqual(codes, [0, 2])
        self.assertEqual(len(self.leases()), 1)
        self.assertEqual(len(self.claims_of("same")), 1)
        self.crabbox("stop", "same")

    def test_a_creator_that_is_killed(self):
        """Its sandbox is swept by a later run, or kept under its lease: never forgotten."""
        self.pool = "cold-pool"
        child = self.start("warmup", "--slug", "killed")
        self.wait_for(lambda: any("killed" in name for name in self.cluster.names(CLAIMS)), "the claim")
        child.send_signal(signal.SIGKILL)
        child.communicate()
        self.assertEqual(len(self.leases()), 1)
        (lease,) = self.leases()
        name = next(name for name in self.cluster.names(CLAIMS) if "killed" in name)
        ended = self.end(self.start("stop", lease))
        if ended.code != 0:
            self.crabbox("run", "--no-sync", "--", "true")
        self.assert_gone(name)
        self.assert_clean()
