"""Commands: exit codes, streams, environment, terminals, and their ends."""
import hashlib, os, pty, random, re, select, signal, subprocess, termios, time

from harness import EVENT_TIMEOUT, World

HUNDRED_MEGABYTES = 100_000_000


class Commands(World):
    """All of them on one lease."""

    def setUp(self):
        super().setUp()
        self.lease = self.warm("exec")
        self.pod = self.pod_of(self.lease)

    def command(self, *words, **options):
        return self.run_on("exec", "--no-sync", *words, **options)

    def script(self, text, **options):
        return self.command("--", "sh", "-c", text, **options)

    def processes(self, marker):
        """Those in the container whose arguments have the marker."""
        said = self.cluster.inside(self.pod, f"ps -eo pid,args | grep '[{marker[0]}]{marker[1:]}' || true")
        return [line for line in said.splitlines() if "kubectl" not in line and "grep" not in line]

    def test_smoke_exit_codes_are_those_of_the_command(self):
        for code in (0, 1, 2, 7, 125, 126, 127, 130, 137, 255):
            ran = self.script(f"exit {code}", code=code)
            self.assertNotIn("command terminated with exit code", ran.err)

    def test_commands_that_cannot_start(self):
        self.assert_says(self.command("--", "nosuch-program", code=127), "nosuch-program")
        self.command("--", "/etc/passwd", code=126)
        self.script("kill -9 $$", code=137)
        self.script("kill -TERM $$", code=143)

    def test_smoke_streams_are_apart(self):
        ran = self.script("printf 'out\\000\\377'; printf 'err' >&2; exit 4", code=4)
        self.assertEqual(ran.bytes, b"out\0\xff")
        self.assertTrue(any(line == "err" or line.startswith("err") for line in ran.err.splitlines()), ran.err)

    def test_output_that_does_not_end_with_a_newline_is_left_alone(self):
        self.assertEqual(self.script("printf a").bytes, b"a")
        self.assertEqual(self.script("true").bytes, b"")

    def test_hundred_megabytes_out(self):
        ran = self.script(f"head -c {HUNDRED_MEGABYTES} /dev/urandom | tee /tmp/sent; sha256sum /tmp/sent >&2; "
                          f"head -c 1000000 /dev/zero | tr '\\0' e >&2; echo >&2", timeout=300)
        self.assertEqual(len(ran.bytes), HUNDRED_MEGABYTES)
        self.assertIn(hashlib.sha256(ran.bytes).hexdigest(), ran.err)
        self.assertIn("e" * 1_000_000, ran.err)

    def test_hundred_megabytes_in(self):
        given = random.Random(1).randbytes(HUNDRED_MEGABYTES)
        ran = self.script("sha256sum; echo end", given=given, timeout=300)
        self.assertIn(hashlib.sha256(given).hexdigest(), ran.out)
        self.assertTrue(ran.out.endswith("end\n"))

    def test_hundred_megabytes_there_and_back(self):
        given = random.Random(2).randbytes(HUNDRED_MEGABYTES)
        ran = self.command("--", "cat", given=given, timeout=300)
        self.assertTrue(ran.bytes == given, f"{len(ran.bytes)} bytes")

    def test_smoke_stdin_is_closed_at_its_end(self):
        self.assertEqual(self.command("--", "cat", given=b"a\0b\xff\nno newline").bytes, b"a\0b\xff\nno newline")
        self.assertEqual(self.command("--", "cat", given=b"").bytes, b"")
        self.assertEqual(self.command("--", "wc", "-c").out.strip(), "0")

    def test_stdin_that_is_not_read_does_not_hang(self):
        given = bytes(20_000_000)
        self.assertEqual(self.command("--", "true", given=given).code, 0)
        self.script("exit 9", code=9, given=given)
        self.assertEqual(self.script("head -c 3", given=b"abcdef" + given).out, "abc")

    def test_input_is_not_swallowed_by_a_shell(self):
        self.assertEqual(self.script("read first; echo \"[$first]\"; cat", given=b"one\ntwo\nthree\n").out, "[one]\ntwo\nthree\n")

    def test_arguments_are_byte_exact(self):
        words = ["a b", "'", '"', "$HOME", "`id`", "\\", "*", "", "ä", "new\nline", "--flag", "a;b"]
        ran = self.command("--", "printf", "%s|", *words)
        self.assertEqual(ran.out, "".join(f"{word}|" for word in words))

    def test_values_are_forwarded_and_on_no_command_line(self):
        value = "se'cret \"$x\" `y` \\ ä"
        self.extra["MY_TOKEN"] = value
        log = self.dir / "calls"
        self.wrap_kubectl(f'printf "%s\\n" "$*" >>{log}')
        ran = self.command("--allow-env", "MY_TOKEN", "--", "sh", "-c",
                           "printf %s \"$MY_TOKEN\"; cat /proc/*/cmdline | tr '\\0' ' ' | grep -c \"se'cret\" >&2")
        self.assertEqual(ran.out, value)
        self.assertNotIn("cret", log.read_text())

    def test_the_users_shell_is_bash(self):
        self.assertEqual(self.command("--shell", "--", "echo ${BASH_VERSION:+bash}; shopt -q login_shell && echo login").out, "bash\nlogin\n")

    def test_the_directory_is_the_workdir(self):
        self.assertEqual(self.command("--", "pwd").out, f"{self.workdir}\n")

    def in_terminal(self, script, code, *steps):
        """Waits for each text, and does then what belongs to it with the terminal. What was shown."""
        master, slave = pty.openpty()
        termios.tcsetwinsize(master, (30, 100))
        # With a controlling terminal, which tells of each new size.
        child = subprocess.Popen(["setsid", "--ctty", os.environ["CRABBOX_BIN"], "run", "--id", "exec", "--no-sync", "-t", "--",
                                  "sh", "-c", script], cwd=self.repo, env={**self.environment(), "TERM": "xterm"}, stdin=slave,
                                 stdout=slave, stderr=slave)
        os.close(slave)
        self.terminal_child = child
        try:
            seen = b""
            for text, act in steps:
                seen = self.read_until(master, text, seen)
                act(master)
            while data := self.read_more(master):
                seen += data
            self.assertEqual(child.wait(EVENT_TIMEOUT), code, seen)
            self.assertNotIn(b"terminated with exit code", seen)
            return seen
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            os.close(master)

    def test_a_terminal(self):
        seen = self.in_terminal("tty; stty size; read line; echo got:$line; exit 6", 6,
                                (b"30 100", lambda master: os.write(master, b"typed\n")))
        self.assertIn(b"/dev/", seen)
        self.assertIn(b"got:typed", seen)

    def test_smoke_control_c_in_a_terminal(self):
        interrupt = lambda master: os.write(master, b"\x03")
        self.in_terminal("echo ready; exec sleep 98765", 130, (b"ready", interrupt))
        self.assertEqual(self.processes("sleep 98765"), [])
        # A command that handles it goes on.
        seen = self.in_terminal("trap 'echo caught; n=1' INT; echo ready; while [ -z \"$n\" ]; do sleep 0.1; done; echo goes on; exit 7", 7,
                                (b"ready", interrupt))
        self.assertIn(b"goes on", seen)

    def test_the_timeout_of_a_command_in_a_terminal_ends_it(self):
        self.extra["CRABBOX_AGENT_SANDBOX_EXEC_TIMEOUT_SECS"] = "5"
        seen = self.in_terminal("echo ready; sleep 98766; true", 5, (b"ready", lambda master: None))
        self.assertIn(b"did not end within 5s", seen)
        self.wait_for(lambda: not self.processes("sleep 98766"), "the command ends", 20)

    def test_a_crabbox_that_is_terminated_ends_what_runs_in_its_terminal(self):
        terminate = lambda master: self.terminal_child.send_signal(signal.SIGTERM)
        self.in_terminal("echo ready; sleep 98767; true", 143, (b"ready", terminate))
        self.wait_for(lambda: not self.processes("sleep 98767"), "the command ends", 20)

    def test_a_terminal_is_resized(self):
        resize = lambda master: termios.tcsetwinsize(master, (41, 123))
        self.in_terminal("trap 'stty size' WINCH; echo ready; until [ \"$(stty size)\" = '41 123' ]; do sleep 0.1; done; exit 0", 0,
                         (b"ready", resize))

    def read_until(self, master, wanted, seen=b""):
        end = time.monotonic() + EVENT_TIMEOUT
        while wanted not in seen:
            data = self.read_more(master, end)
            self.assertTrue(data, f"ended after {seen}")
            seen += data
        return seen

    def read_more(self, master, end=None):
        """What the terminal shows next; nothing where it has ended."""
        left = (end or time.monotonic() + EVENT_TIMEOUT) - time.monotonic()
        self.assertTrue(select.select([master], [], [], max(0, left))[0], "the terminal shows nothing")
        try:
            return os.read(master, 4096)
        except OSError:
            return b""

    def test_smoke_control_c_ends_what_runs_there(self):
        child = self.start("run", "--id", "exec", "--no-sync", "--", "sh", "-c", "sleep 98761 & (trap '' TERM INT; sleep 98761) & sleep 98761; wait")
        self.wait_for(lambda: len(self.processes("sleep 98761")) >= 3, "the commands start")
        child.send_signal(signal.SIGINT)
        self.assertEqual(self.end(child, timeout=60).code, 130)
        self.wait_for(lambda: not self.processes("sleep 98761"), "the commands end", 20)

    def test_a_killed_crabbox_ends_what_runs_there(self):
        child = self.start("run", "--id", "exec", "--no-sync", "--", "sh", "-c", "sleep 98762; true")
        self.wait_for(lambda: self.processes("sleep 98762"), "the command starts")
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        self.wait_for(lambda: not self.processes("sleep 98762"), "the command ends", 30)

    def test_the_timeout_of_a_command_ends_it(self):
        self.extra["CRABBOX_AGENT_SANDBOX_EXEC_TIMEOUT_SECS"] = "3"
        ran = self.script("echo before; sleep 98763; true", code=5)
        self.assertEqual(ran.out, "before\n")
        self.assertRegex(ran.err, "(?i)timed out|timeout|deadline")
        self.wait_for(lambda: not self.processes("sleep 98763"), "the command ends", 20)

    def test_a_command_that_leaves_its_group_is_ended(self):
        child = self.start("run", "--id", "exec", "--no-sync", "--", "sh", "-c", "setsid sh -c 'trap \"\" TERM; sleep 98764; true' & sleep 98764; wait")
        self.wait_for(lambda: len(self.processes("sleep 98764")) >= 2, "the commands start")
        child.send_signal(signal.SIGINT)
        ran = self.end(child, timeout=60)
        self.assertEqual(ran.code, 130, ran.err)
        self.assertEqual(self.processes("sleep 98764"), [])
        self.assertNotIn("still run", ran.err)
