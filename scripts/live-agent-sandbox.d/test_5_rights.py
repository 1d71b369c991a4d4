"""Each right that the provider asks for, taken away: what is said names it, and nothing is left."""
from harness import CLAIMS, RIGHTS, World


class Rights(World):
    def without(self, verb, resource):
        account = f"no-{verb}-{resource.partition('.')[0].replace('/', '-')}"
        return self.cluster.grant(account, [right for right in RIGHTS if right != (verb, resource)])

    def denied(self, verb, resource):
        short = resource.partition(".")[0]
        self.kubeconfig = self.without(verb, resource)
        report = self.crabbox("doctor", "--json", code=1)
        denied = [check for check in report.json()["checks"] if check["status"] == "failed"]
        self.assertTrue(denied, report.out)
        for check in denied:
            self.assertIn(f"RBAC denied: {verb} {short}", str(check))
        if (verb, resource) == ("list", "pods"):
            # Only where neither annotation nor name leads to the pod; both lead to it here.
            return
        if short == "sandboxwarmpools":
            # For doctor alone: a claim on a pool that is not there fails by itself.
            return
        slug = f"no-{verb}-{short.replace('/', '-')}"
        ran = self.crabbox("run", "--slug", slug, "--no-sync", "--", "echo", "must not run", code=5)
        self.assertNotIn("must not run", ran.out)
        self.assert_says(ran, f"RBAC denied: {verb} {short}")
        if (verb, resource) == ("get", CLAIMS):
            # What cannot be proved to be ours is not deleted, and not forgotten.
            self.assertEqual(len(self.leases()), len(self.claims_of(slug)))
            return self.assert_says(ran, "crabbox stop")
        self.assertEqual(self.claims_of(slug), [])
        self.assertEqual(self.leases(), [], ran.err)

    def test_smoke_create_pods_exec(self):
        self.denied("create", "pods/exec")

    def test_a_run_without_delete(self):
        """The command has run; that its sandbox is still there makes the run fail."""
        self.kubeconfig = self.without("delete", CLAIMS)
        ran = self.crabbox("run", "--slug", "stuck", "--no-sync", "--", "echo", "ran", code=1)
        self.assertEqual(ran.out, "ran\n")
        self.assert_says(ran, "RBAC denied: delete sandboxclaims")
        (lease,) = self.leases()
        claim = self.local(lease)["labels"]["claim"]
        self.assertIsNotNone(self.cluster.get(CLAIMS, claim))
        self.assert_says(self.crabbox("stop", lease, code=5), "RBAC denied: delete sandboxclaims")
        # The same scope: the administrator gives the right to the same account.
        self.cluster.grant("no-delete-sandboxclaims", RIGHTS)
        self.crabbox("stop", lease)
        self.assert_gone(claim)
        self.assert_clean()


def case(verb, resource):
    return lambda self: self.denied(verb, resource)


for verb, resource in RIGHTS:
    name = f"test_{verb}_{resource.partition('.')[0].replace('/', '_')}"
    if (verb, resource) not in (("create", "pods/exec"), ("delete", CLAIMS)):
        setattr(Rights, name, case(verb, resource))
