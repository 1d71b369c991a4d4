"""The repository in the sandbox: first and later syncs, what goes wrong in the middle."""
import json, os, re, time

from harness import EXTENSIONS, World


class Sync(World):
    def listing(self):
        """What is in the workdir."""
        ran = self.run_on("sync", "--no-sync", "--", "sh", "-c", "find . -mindepth 1 | LC_ALL=C sort")
        return ran.out.split("\n")[:-1]

    def inside(self, script):
        return self.cluster.inside(self.pod, script)

    def warm_up(self, *flags):
        self.lease = self.warm("sync", *flags)
        self.pod = self.pod_of(self.lease)

    def test_smoke_files_arrive_as_they_are(self):
        self.warm_up()
        self.write("bin/tool", "#!/bin/sh\necho tool\n", 0o755)
        self.write("data/bytes", bytes(range(256)))
        self.write("with space/ä'\"$x", "odd")
        self.write("empty", "")
        self.write("-dash", "dash")
        os.symlink("../README", self.repo / "data/link")
        os.symlink("nowhere", self.repo / "dangling")
        ran = self.run_on("sync", "--", "sh", "-c", "bin/tool; od -An -tx1 data/bytes | tr -d ' \\n'; echo; cat 'with space'/*; echo; "
                          "readlink data/link dangling; cat data/link ./-dash; wc -c <empty")
        self.assertEqual(ran.out, f"tool\n{bytes(range(256)).hex()}\nodd\n../README\nnowhere\nhello\ndash0\n")
        self.assertNotIn("./.git", self.listing())

    def test_smoke_a_later_sync_replaces(self):
        self.warm_up()
        self.run_on("sync", "--sync-only")
        self.inside(f"cd {self.workdir} && touch stale && mkdir stale-dir && touch stale-dir/x .hidden-stale")
        (self.repo / "src/main.c").unlink()
        self.write("README", "changed\n")
        self.write("fresh", "fresh\n")
        self.assertEqual(self.run_on("sync", "--", "cat", "README", "fresh").out, "changed\nfresh\n")
        self.assertEqual(self.listing(), ["./README", "./fresh"])

    def test_without_delete_what_is_there_stays(self):
        self.warm_up()
        self.run_on("sync", "--sync-only")
        self.inside(f"touch {self.workdir}/stale")
        self.extra["CRABBOX_SYNC_DELETE"] = "false"
        self.write("README", "changed\n")
        self.assertEqual(self.run_on("sync", "--", "cat", "README").out, "changed\n")
        self.assertIn("./stale", self.listing())

    def test_no_sync_touches_nothing(self):
        self.warm_up()
        self.inside(f"mkdir -p {self.workdir} && touch {self.workdir}/mine")
        self.run_on("sync", "--no-sync", "--", "true")
        self.assertEqual(self.listing(), ["./mine"])

    def test_an_unchanged_repository_is_not_sent_again(self):
        for number in range(400):
            self.write(f"many/{number}", os.urandom(10_000))
        self.age()
        self.warm_up()
        first = self.sent("--sync-only")
        # Known without a look, as long as no command has run there.
        self.assertEqual(self.sent("--sync-only"), 0)
        self.run_on("sync", "--no-sync", "--", "true")
        second = self.sent("--sync-only")
        self.assertGreater(first, 4_000_000)
        self.assertLess(second, first / 20)
        self.write("many/7", "changed")
        third = self.sent("--sync-only")
        self.assertLess(third, first / 20)
        self.assertEqual(self.inside(f"cat {self.workdir}/many/7"), "changed")
        self.assertGreater(self.sent("--sync-only", "--full-resync"), 4_000_000)

    def age(self):
        """What was changed in the second of a sync is sent again by the next one."""
        for path in self.repo.rglob("*"):
            if path.is_file() and ".git" not in path.relative_to(self.repo).parts:
                os.utime(path, (time.time() - 60,) * 2)

    def sent(self, *flags):
        """How many bytes went through kubectl."""
        total = self.dir / "sent"
        total.write_text("")
        self.wrap_kubectl(f'case $words in *" exec "*) (tee >(wc -c >>{total}) | real "$@"; exit "${{PIPESTATUS[1]}}"); exit $?;; esac')
        self.run_on("sync", *flags)
        del self.extra["CRABBOX_AGENT_SANDBOX_KUBECTL"]
        time.sleep(0.2)  # `wc` may be a moment behind.
        return sum(map(int, total.read_text().split()))

    def test_what_changed_there_is_seen(self):
        self.warm_up()
        self.run_on("sync", "--", "sh", "-c", "echo longer than before >README; rm src/main.c")
        self.assertEqual(self.run_on("sync", "--", "cat", "README", "src/main.c").out, "hello\nint main;\n")

    def test_full_resync_sees_what_size_and_time_do_not_show(self):
        self.age()
        self.warm_up()
        self.run_on("sync", "--sync-only")
        self.run_on("sync", "--no-sync", "--", "sh", "-c", "touch -r README /tmp/time && printf 'HELLO\\n' >README && touch -r /tmp/time README")
        self.assertEqual(self.run_on("sync", "--", "cat", "README").out, "HELLO\n")
        self.assertEqual(self.run_on("sync", "--full-resync", "--", "cat", "README").out, "hello\n")

    def test_kinds_of_files_change(self):
        self.warm_up()
        self.run_on("sync", "--sync-only")
        (self.repo / "README").unlink()
        self.write("README/now/a/directory", "deep")
        (self.repo / "src/main.c").unlink()
        (self.repo / "src").rmdir()
        os.symlink("README", self.repo / "src")
        self.assertEqual(self.run_on("sync", "--", "sh", "-c", "cat README/now/a/directory; readlink src").out, "deepREADME\n")
        self.write("mode", "x", 0o644)
        self.run_on("sync", "--sync-only")
        (self.repo / "mode").chmod(0o755)
        self.assertEqual(self.run_on("sync", "--", "stat", "-c", "%a", "mode").out, "755\n")

    def test_links_in_the_workdir_lead_nowhere(self):
        """What a command left there must not make a sync write elsewhere."""
        self.warm_up()
        self.run_on("sync", "--", "sh", "-c", "mkdir -p /tmp/victim && rm -r src && ln -s /tmp/victim src")
        self.run_on("sync", "--", "cat", "src/main.c")
        self.assertEqual(self.inside("ls /tmp/victim"), "")

    def test_guardrails_hold_before_anything_is_created(self):
        self.extra["CRABBOX_SYNC_FAIL_FILES"] = "2"
        calls = self.dir / "calls"
        self.wrap_kubectl(f'echo "$words" >>{calls}')
        self.crabbox("run", "--", "true", code=6)
        self.assertNotIn(" create ", calls.read_text() if calls.exists() else "")
        self.assert_clean()

    def test_timing_has_the_phases(self):
        self.warm_up()
        ran = self.run_on("sync", "--timing-json", "--", "true")
        timing = json.loads(next(line for line in reversed(ran.err.splitlines()) if line.startswith("{")))
        self.assertEqual(timing["exitCode"], 0)
        self.assertIn("syncPhases", timing)


class Mounted(Sync):
    """The workdir is the mount point of a volume: it can be neither renamed nor replaced."""
    workdir = "/workspace"


class FailedSync(World):
    def setUp(self):
        super().setUp()
        self.lease = self.warm("sync")
        self.pod = self.pod_of(self.lease)
        self.run_on("sync", "--sync-only")
        self.write("README", "changed\n")
        self.write("zz-last", "last\n")

    def inside(self, script):
        return self.cluster.inside(self.pod, script)

    def assert_as_before(self):
        self.assertEqual(self.inside(f"cd {self.workdir} && cat README src/main.c && find . -mindepth 1 | LC_ALL=C sort"),
                         "hello\nint main;\n./README\n./src\n./src/main.c\n")

    def break_program(self, name, condition):
        """The program fails from now on where the condition, of shell, holds."""
        path = self.inside(f"command -v {name}").strip()
        self.inside(f"cat {path} >{path}.real && chmod 755 {path}.real && rm {path} && printf '%s\\n' '#!/bin/sh' "
                    f"'if {condition}; then echo {name}: injected failure >&2; exit 1; fi' 'exec {path}.real \"$@\"' >{path} && chmod 755 {path}")
        return lambda: self.inside(f"cat {path}.real >{path}; rm {path}.real")

    def fails_and_rolls_back(self, program, condition="true", flags=()):
        repair = self.break_program(program, condition)
        ran = self.run_on("sync", *flags, "--", "echo", "must not run", code=6)
        self.assertNotIn("must not run", ran.out)
        self.assert_says(ran, "sync failed", f"{program}: injected failure")
        repair()
        self.assert_as_before()
        self.assertEqual(self.run_on("sync", "--", "cat", "README", "zz-last").out, "changed\nlast\n")

    def test_smoke_the_replacement_fails(self):
        self.fails_and_rolls_back("mv")

    def test_the_replacement_fails_at_the_last_file(self):
        self.fails_and_rolls_back("mv", 'case "$*" in *zz-last*) true;; *) false;; esac')

    def test_the_replacement_of_everything_fails_at_the_last_file(self):
        self.fails_and_rolls_back("mv", 'case "$*" in *zz-last*) true;; *) false;; esac', ["--full-resync"])

    def test_the_backup_fails_halfway(self):
        """README is moved away already when the directory for the old main.c cannot be made."""
        self.write("src/main.c", "int changed;\n")
        self.fails_and_rolls_back("mkdir", 'case "$*" in */old/src) true;; *) false;; esac')

    def test_tar_fails(self):
        self.fails_and_rolls_back("tar", 'case "$1" in -x*) true;; *) false;; esac')

    def test_crabbox_is_killed_in_the_middle(self):
        """The next sync finds what it left, and the command never sees half of it."""
        self.write("large", os.urandom(30_000_000))
        child = self.start("run", "--id", "sync", "--sync-only")
        self.wait_for(lambda: self.inside(f"ls -A {self.workdir} | grep -c '^\\.crabbox' || true").strip() != "0" or child.poll() is not None,
                      "the staging directory")
        os.killpg(child.pid, 9)
        child.communicate()
        self.assertEqual(self.run_on("sync", "--", "sh", "-c", "cat README; wc -c <large; ls -A | grep -c '^\\.crabbox'", code=1).out,
                         "changed\n30000000\n0\n")


class FullVolume(World):
    """No injection: the volume is too small."""
    pool = "small-pool"
    workdir = "/workspace"

    def test_no_space_left(self):
        self.cluster.make_pool(self.pool, volumes=[{"name": "work", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}])
        self.warm("small")
        self.run_on("small", "--sync-only")
        self.write("large", os.urandom(16_000_000))
        self.run_on("small", "--", "echo", "must not run", code=None)
        ran = self.run_on("small", "--no-sync", "--", "sh", "-c", "cat README; ls -A")
        self.assertEqual(ran.out, "hello\nREADME\nsrc\n")
        (self.repo / "large").unlink()
        self.run_on("small", "--", "true")
        self.crabbox("stop", "small")
