//! Shell scripts for the sandbox. They need a POSIX shell and what every image has: mkdir, mkfifo, mv, rm, cat, sleep, tar.
//!
//! The daemon's own events are lines, which lose bytes. So two processes copy a command's output from pipes to two files in
//! a private directory, which are downloaded by ranges while it runs. The daemon's stream carries only our marks and the
//! exit status.

/// What the script says about itself: a line with this prefix and the nonce.
pub(super) const MARK: &str = "crabbox:";

/// A directory of one command, below the place for temporary files.
pub(super) fn directory(nonce: &str) -> String {
    format!("/tmp/.crabbox-{nonce}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Null,
    /// Pieces that are uploaded one by one, see [`super::stdin`].
    Fed,
}

/// One word, for any shell.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn words(argv: &[String]) -> String {
    let quoted: Vec<_> = argv.iter().map(|word| quote(word)).collect();
    quoted.join(" ")
}

/// The command with its output in files. Its exit status is the script's. What the script sets before the command starts
/// has a name that the command's own environment does not use: it would change the value there.
///
/// Its stdout and stderr are pipes: a command that opens `/dev/stdout` or `/dev/stderr` again would truncate a file, or
/// overwrite it from its beginning.
pub(super) fn exact(argv: &[String], nonce: &str, input: Input) -> String {
    let dir = quote(&directory(nonce));
    let command = words(argv);
    let (pipe, start, from, stop) = match input {
        Input::Null => ("", String::new(), "/dev/null", ""),
        Input::Fed => (
            " \"$crabbox_d/in\"",
            format!(
                "{SEND_INPUT}\nsend_input >\"$crabbox_d/in\" 2>/dev/null &\nset -- \"$@\" \"$!\"\n"
            ),
            "\"$crabbox_d/in\"",
            "kill \"$3\" 2>/dev/null\n",
        ),
    };
    let lines = match input {
        Input::Null => format!("echo '{MARK}{nonce} lines'\nexec {command} </dev/null"),
        Input::Fed => format!("echo '{MARK}{nonce} no-input'\nexit 125"),
    };
    format!(
        "crabbox_d={dir}\n\
         if {{ command -v cat && mkdir -m 700 \"$crabbox_d\" && true >\"$crabbox_d/out\" && true >\"$crabbox_d/err\" &&\n\
         mkfifo \"$crabbox_d/out.pipe\" \"$crabbox_d/err.pipe\" \"$crabbox_d/pause\"{pipe}; }} >/dev/null 2>&1; then\n\
         echo '{MARK}{nonce} exact'\n\
         {COPY_OUTPUT}\n\
         if [ -n \"$BASH_VERSION\" ]; then set -m; fi\n\
         copy out &\nset -- \"$!\"\n\
         copy err &\nset -- \"$1\" \"$!\"\n\
         set +m\n\
         {start}( exec {command} ) >\"$crabbox_d/out.pipe\" 2>\"$crabbox_d/err.pipe\" <{from}\n\
         c=$?\n\
         {stop}await_copy out \"$1\"\no=$l\n\
         await_copy err \"$2\"\n\
         echo \"{MARK}{nonce} end $o$l\"\n\
         exit \"$c\"\n\
         else\n{lines}\nfi"
    )
}

/// `copy` passes on one output. The pipe is opened by `cat` itself, so the command, which waits for that, starts when `cat`
/// is there. In bash it is started with job control, which gives it a process group of its own: what was written before the
/// command's group is killed is output too. `await_copy` waits until all that was written before the command's end is in
/// the file, and says in `l` what there is.
///
/// Processes that the command left may hold the pipe open, and the copy goes on for them. Then it is enough that it sleeps:
/// a copy that sleeps has emptied the pipe. It is looked at for a few seconds at most, because they may write without a
/// pause. Bash can pause without another process.
const COPY_OUTPUT: &str = "\
copy() {
trap '' HUP INT TERM
exec cat \"$crabbox_d/$1.pipe\" >\"$crabbox_d/$1\" 2>/dev/null
}
if [ -n \"$BASH_VERSION\" ]; then
pause() { read -r -t 0.002 a <>\"$crabbox_d/pause\"; n=$((n + 1)); }
else
pause() { sleep 0.01 2>/dev/null || sleep 1; n=$((n + 5)); }
fi
await_copy() {
l=-
n=0
q=0
if [ ! -e \"/proc/$$/stat\" ]; then sleep 1; n=1000; fi
while [ \"$n\" -lt 1000 ]; do
s=
{ read -r a b s r <\"/proc/$2/stat\"; } 2>/dev/null
case $s in
'' | Z | X)
wait \"$2\" || l=f
break
;;
S) q=$((q + 1)) ;;
*) q=0 ;;
esac
if [ \"$q\" -ge 3 ]; then break; fi
pause
done
if [ ! -f \"$crabbox_d/$1\" ]; then l=x
elif [ \"$l\" = f ]; then :
elif [ -s \"$crabbox_d/$1\" ]; then l=s
fi
}";

/// Passes the pieces of input on, in order, until the end is marked. A piece is removed only when the next one is there:
/// until then the daemon may not be done with it.
const SEND_INPUT: &str = "\
send_input() {
n=0
p=
while :; do
if [ -e \"$crabbox_d/in.$n.ok\" ]; then
if [ -n \"$p\" ]; then rm -f \"$crabbox_d/in.$p\" \"$crabbox_d/in.$p.ok\"; fi
cat \"$crabbox_d/in.$n\" || return
p=$n
n=$((n + 1))
elif [ -e \"$crabbox_d/in.$n.end\" ]; then
return
else
sleep 0.02 2>/dev/null || sleep 1
fi
done
}";

/// What the command of a terminal session is. Its variables come from a file, so that no process shows them as arguments;
/// the exit status comes in the output itself, because the daemon's own notice may overtake the last output. It sets the
/// terminal's first size (columns and rows) itself: the daemon starts it before it can be told of any.
pub(super) fn terminal(argv: &[String], nonce: &str, size: Option<(u16, u16)>) -> String {
    let dir = quote(&directory(nonce));
    let command = words(argv);
    let size = size.map_or_else(String::new, |(cols, rows)| {
        format!("stty rows {rows} cols {cols} 2>/dev/null; ")
    });
    format!(
        "{size}crabbox_d={dir}; . \"$crabbox_d/env\"; rm -rf \"$crabbox_d\"; ( exec {command} ); c=$?; printf '\\033]{MARK}{nonce};%s\\007' \"$c\"; sleep 5; exit \"$c\""
    )
}

/// A file that a shell reads to set variables.
pub(super) fn env_file(env: &std::collections::BTreeMap<String, String>) -> String {
    let line = |(name, value): (&String, &String)| format!("export {name}={}\n", quote(value));
    env.iter().map(line).collect()
}

/// What stands before the number of a process whose environment cannot be read.
pub(super) const UNREADABLE: char = '?';

/// Ends every process that has the variable of the run, and prints those that are still there. A process that is in the
/// middle of fork(2) or execve(2) may not be seen, so that only two looks without one in a row mean that there is none.
/// One grep looks at all of them where it can (`-z`): a process for each takes seconds on a busy machine.
///
/// Then it prints the processes of which it cannot tell, because of another user or setuid: those of the same control group
/// that started in the last `age` seconds, as long as the run has lasted. Zombies, and processes from outside, whose group
/// has no number here, are none.
pub(super) fn end_survivors(run_id: &str, age: u64) -> String {
    let mark = quote(&format!("CRABBOX_RUN_ID={run_id}"));
    format!(
        "m={mark}\n\
         if ! command -v tr >/dev/null || ! command -v grep >/dev/null; then exit 3; fi\n\
         if printf 'a\\0b' | grep -qzxF b 2>/dev/null; then\n\
         scan() {{ grep -slzxF -- \"$m\" /proc/[0-9]*/environ | while read -r p; do\n\
         p=${{p%/environ}}; echo \"${{p#/proc/}}\"; done; }}\n\
         else\n\
         scan() {{ for p in /proc/[0-9]*; do\n\
         if tr '\\0' '\\n' 2>/dev/null <\"$p/environ\" | grep -qxF \"$m\"; then echo \"${{p#/proc/}}\"; fi\n\
         done 2>/dev/null; }}\n\
         fi\n\
         none=0\n\
         for n in 1 2 3 4 5 6; do\n\
         s=$(scan)\n\
         if [ -n \"$s\" ]; then none=0; kill -KILL $s 2>/dev/null\n\
         elif [ \"$none\" = 1 ]; then break\n\
         else none=1; fi\n\
         sleep 0.1 2>/dev/null || sleep 1\n\
         done\n\
         scan\n\
         group() {{ g=; while read -r l; do g=$g$l,; done <\"$1/cgroup\"; }}\n\
         stat() {{ l=; read -r l <\"$1/stat\"; set -- ${{l##*) }}; c=$1 r=$3 t=${{20}}; }}\n\
         {{ group \"/proc/$$\"; own=$g; stat \"/proc/$$\"\n\
         first=$((t - 100 * {age}))\n\
         for p in /proc/[0-9]*; do\n\
         if true <\"$p/environ\"; then continue; fi\n\
         g= c= r= t=; group \"$p\"; stat \"$p\"\n\
         case $c in '' | Z | X) continue ;; esac\n\
         if [ \"$g\" = \"$own\" ] && [ \"$r\" != 0 ] && [ \"$t\" -ge \"$first\" ]; then echo \"{UNREADABLE}${{p#/proc/}}\"; fi\n\
         done; }} 2>/dev/null\n\
         exit 0"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// With a directory of its own in place of `/tmp`.
    fn run(script: &str, dir: &std::path::Path) -> (i32, String) {
        run_with("sh", script, dir)
    }

    fn run_with(shell: &str, script: &str, dir: &std::path::Path) -> (i32, String) {
        let script = script.replace("/tmp/", &format!("{}/", dir.display()));
        let mut command = Command::new(shell);
        // Names that the script could use itself.
        for name in ["a", "b", "c", "d", "e", "f", "l", "n", "o", "p", "q", "s"] {
            command.env(name, "kept");
        }
        let done = command.args(["-c", &script]).output().unwrap();
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status.code().unwrap_or(-1), out)
    }

    /// What a script for `sh` left: its exit status, its last line, and both files. With both kinds of shell.
    fn outputs(text: &str, check: impl Fn(i32, &str, &str, &str)) {
        for shell in ["sh", "bash"] {
            let dir = tempfile::tempdir().unwrap();
            let script = exact(&argv(&["sh", "-c", text]), "n", Input::Null);
            let (code, said) = run_with(shell, &script, dir.path());
            let read = |name: &str| {
                let bytes = std::fs::read(dir.path().join(".crabbox-n").join(name)).unwrap();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let last = said.lines().last().unwrap_or_default();
            check(code, last, &read("out"), &read("err"));
        }
    }

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn output_is_in_files_and_the_exit_status_is_the_commands() {
        let dir = tempfile::tempdir().unwrap();
        let words = argv(&[
            "sh",
            "-c",
            "printf 'a\\000b\\r'; echo \"$1\" >&2; exit 7",
            "x",
            "it's $HOME",
        ]);
        let (code, out) = run(&exact(&words, "n1", Input::Null), dir.path());
        assert_eq!(
            (code, out.as_str()),
            (7, "crabbox:n1 exact\ncrabbox:n1 end ss\n")
        );
        let read = |name: &str| std::fs::read(dir.path().join(".crabbox-n1").join(name)).unwrap();
        assert_eq!(read("out"), b"a\0b\r");
        assert_eq!(read("err"), b"it's $HOME\n");
        let (code, out) = run(&exact(&argv(&["true"]), "n2", Input::Null), dir.path());
        assert_eq!(
            (code, out.as_str()),
            (0, "crabbox:n2 exact\ncrabbox:n2 end --\n")
        );
        let remove = argv(&["rm", "-rf", "/tmp/.crabbox-n4"]);
        let (code, out) = run(&exact(&remove, "n4", Input::Null), dir.path());
        assert_eq!(
            (code, out.as_str()),
            (0, "crabbox:n4 exact\ncrabbox:n4 end xx\n")
        );
        let missing = run(&exact(&argv(&["/no/such"]), "n3", Input::Null), dir.path());
        assert_eq!(missing.0, 127);
    }

    #[test]
    fn output_that_is_opened_again_loses_nothing() {
        let text = "echo 1; echo a >&2; echo 2 >/dev/stdout; echo b >/dev/stderr; echo c >>/dev/stderr; \
                    echo 3 | tee /dev/stderr; echo 4 >/proc/self/fd/1; echo d >&2; echo $a$d$o";
        outputs(text, |code, last, out, err| {
            assert_eq!((code, last), (0, "crabbox:n end ss"));
            assert_eq!(out, "1\n2\n3\n4\nkeptkeptkept\n");
            assert_eq!(err, "a\nb\nc\n3\nd\n");
        });
    }

    #[test]
    fn a_process_that_holds_the_output_does_not_delay_the_end() {
        // It ends when its reader is gone.
        let held = "sleep 60 & echo $! >&2; head -c 300000 /dev/zero";
        outputs(held, |code, last, out, err| {
            end(err);
            assert_eq!((code, last, out.len()), (0, "crabbox:n end ss", 300_000));
        });
        let busy = "(while :; do echo more; done) & echo $! >&2; echo first";
        outputs(busy, |code, last, out, err| {
            end(err);
            assert_eq!((code, last), (0, "crabbox:n end ss"));
            assert!(out.lines().any(|line| line == "first"));
        });
    }

    /// The process of which the output is the number.
    fn end(pid: &str) {
        let mut kill = Command::new("kill");
        assert!(kill.args(["-9", pid.trim()]).status().unwrap().success());
    }

    #[test]
    fn output_that_cannot_be_copied_is_reported() {
        let text = "out=$(readlink /proc/$$/fd/1); out=${out%.pipe}; \
                    for p in /proc/[0-9]*; do \
                    if [ \"$(readlink $p/fd/1)\" = \"$out\" ]; then kill -9 ${p#/proc/}; fi; \
                    done; echo lost; exit 0";
        outputs(text, |_, last, out, _| {
            assert!(last.starts_with("crabbox:n end f"), "{last}");
            assert_eq!(out, "");
        });
    }

    #[test]
    fn output_before_a_signal_to_the_group_is_kept() {
        let told = "trap '' TERM; echo before; kill -TERM 0; echo after";
        let killed = "echo before; echo after; kill -KILL 0";
        for (shell, text) in [("sh", told), ("bash", told), ("bash", killed)] {
            let dir = tempfile::tempdir().unwrap();
            let script = exact(&argv(&["sh", "-c", text]), "n", Input::Null);
            let script = script.replace("/tmp/", &format!("{}/", dir.path().display()));
            let mut command = Command::new(shell);
            let mut command = std::os::unix::process::CommandExt::process_group(&mut command, 0);
            command = command.args(["-c", &script]);
            assert_eq!(command.output().unwrap().status.code(), None);
            let out = dir.path().join(".crabbox-n/out");
            while std::fs::read(&out).unwrap() != b"before\nafter\n" {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn without_a_place_for_files_output_goes_by_lines() {
        let words = argv(&["echo", "hello"]);
        let nowhere = std::path::Path::new("/dev/null");
        let (code, out) = run(&exact(&words, "n", Input::Null), nowhere);
        assert_eq!((code, out.as_str()), (0, "crabbox:n lines\nhello\n"));
        let (code, out) = run(&exact(&words, "n", Input::Fed), nowhere);
        assert_eq!((code, out.as_str()), (125, "crabbox:n no-input\n"));
    }

    #[test]
    fn input_arrives_in_pieces_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let script = exact(&argv(&["cat"]), "n", Input::Fed);
        let script = script.replace("/tmp/", &format!("{}/", dir.path().display()));
        let own = dir.path().join(".crabbox-n");
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while !own.join("in").exists() {
            std::thread::yield_now();
        }
        for (name, bytes) in [
            ("in.0", "one\n"),
            ("in.0.ok", ""),
            ("in.1", "two"),
            ("in.1.ok", ""),
        ] {
            let file = own.join(name);
            std::fs::File::create(file)
                .and_then(|mut file| std::io::Write::write_all(&mut file, bytes.as_bytes()))
                .unwrap();
        }
        std::fs::File::create(own.join("in.2.end")).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
        assert_eq!(std::fs::read(own.join("out")).unwrap(), b"one\ntwo");
    }

    #[test]
    fn a_command_that_does_not_read_its_input_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (code, _) = run(&exact(&argv(&["true"]), "n", Input::Fed), dir.path());
        assert_eq!(code, 0);
    }

    #[test]
    fn only_processes_of_the_run_are_ended() {
        let mark = format!("run_{}_{:p}", std::process::id(), &0);
        let sleep = |id: &str| {
            let mut sleep = Command::new("sleep");
            sleep.arg("300").env("CRABBOX_RUN_ID", id).spawn().unwrap()
        };
        let (mut mine, mut other) = (sleep(&mark), sleep(&format!("{mark}0")));
        for shell in ["sh", "bash"] {
            let script = end_survivors(&mark, 0);
            let done = Command::new(shell).args(["-c", &script]).output().unwrap();
            let said = String::from_utf8(done.stdout).unwrap();
            // On a machine with other users.
            let seen = said.lines().any(|line| !line.starts_with(UNREADABLE));
            assert!(done.status.success() && !seen, "{said}");
            assert_eq!(String::from_utf8_lossy(&done.stderr), "");
        }
        assert!(!mine.wait().unwrap().success());
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_whose_environment_cannot_be_read_is_not_overlooked() {
        use std::io::Read as _;
        use std::os::unix::process::CommandExt as _;

        // PR_SET_DUMPABLE, as a setuid program has it.
        let closed =
            "import ctypes; ctypes.CDLL(None).prctl(4, 0); print(end='.', flush=True); input()";
        let mut child = Command::new("python3")
            .args(["-c", closed])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut said)
            .unwrap();
        for shell in ["sh", "bash"] {
            for (age, expected) in [(3600, true), (0, false)] {
                let mut scan = Command::new(shell);
                scan.args(["-c", &end_survivors("no-such-run", age)]);
                if rustix::process::geteuid().is_root() {
                    scan.uid(65534).gid(65534);
                }
                let said = String::from_utf8(scan.output().unwrap().stdout).unwrap();
                let line = format!("{UNREADABLE}{}", child.id());
                assert_eq!(said.lines().any(|seen| seen == line), expected, "{said}");
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
