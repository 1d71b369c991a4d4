//! What the shell in the container is told. Nothing of the user's is on a command line: the loader reads a script of a
//! known length from stdin, byte by byte, so that what follows is left for the command.
//!
//! The end of a command is proved by a marker with a nonce at the end of both streams: `kubectl exec` succeeds also when
//! the API server or the node dies under it.

use std::collections::BTreeMap;

use crabbox_core::sync::delta::shell_quote;
use sha2::{Digest as _, Sha256};

/// What the loader says where it is in another pod than it should be.
pub(super) const WRONG_POD: &str = "crabbox: this is another pod";

/// Where a container shows which pod it is in: its `/etc/hosts` is a file of the kubelet, in a directory named by the pod.
const MOUNTS: &str = "/proc/self/mountinfo";

/// How the command gets its stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Null,
    /// In frames: a line with the length, and so many bytes; length 0 is its end.
    Frames,
}

/// What markers begin with: a byte that output hardly ever has, so that nothing is held back for it.
const MARK: char = '\u{1e}';

/// The marker of a command in its output.
pub(super) fn marker(nonce: &str) -> String {
    format!("{MARK}{nonce}")
}

/// The argument of `sh -c`. Where the container shows which pod it is in, another one is refused before anything is read.
pub(super) fn loader(pod_uid: &str, length: usize) -> String {
    loader_of(MOUNTS, pod_uid, length)
}

fn loader_of(mounts: &str, pod_uid: &str, length: usize) -> String {
    format!(
        "m=; while read -r l; do case $l in */pods/{pod_uid}/etc-hosts\\ /etc/hosts\\ *) m=; break ;; \
         */pods/*/etc-hosts\\ /etc/hosts\\ *) m=1 ;; esac; done <{mounts}; \
         if [ \"$m\" ]; then echo '{WRONG_POD}' >&2; cat >/dev/null; exit 1; fi; \
         eval \"$(dd bs=1 count={length} 2>/dev/null)\""
    )
}

/// A command with its variables, in its directory.
pub(super) struct CommandScript<'a> {
    pub(super) nonce: &'a str,
    pub(super) workdir: &'a str,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) argv: &'a [String],
}

impl CommandScript<'_> {
    /// Runs it, and ends it when stdin ends: then the connection is gone, or crabbox is. TERM first, KILL after 2 s.
    pub(super) fn with_watchdog(&self, input: Input) -> Vec<u8> {
        let mut script = self.beginning();
        // The shell's own words about processes that end go nowhere; the command has stderr by way of descriptor 4.
        script.extend_from_slice(b"printf '%s\\n' \"$N+\" >&2\nexec 4>&2 2>/dev/null\n");
        script.extend_from_slice(
            b"die() { kill -s TERM -- \"-$$\"; sleep 2; kill -s KILL -- \"-$$\"; }\n",
        );
        script.extend_from_slice(match input {
            Input::Null => NULL_INPUT.as_bytes(),
            Input::Frames => FRAMES_INPUT.as_bytes(),
        });
        script
    }

    /// For a terminal: the end is written to a file in `dir`, since a terminal has only one stream.
    pub(super) fn for_terminal(&self, dir: &str) -> Vec<u8> {
        let mut script = self.beginning();
        script.extend_from_slice(b"D=");
        script.extend(shell_quote(dir.as_bytes()));
        script.push(b'\n');
        script.extend_from_slice(TERMINAL.as_bytes());
        script
    }

    fn beginning(&self) -> Vec<u8> {
        let mut script = format!("N='{}'\nW=", marker(self.nonce)).into_bytes();
        script.extend(shell_quote(self.workdir.as_bytes()));
        script.extend_from_slice(b"\n");
        script.extend_from_slice(
            b"mkdir -p -- \"$W\" && cd -- \"$W\" || { printf '%s\\n' \"$N=\" >&2; cat >/dev/null; exit 1; }\n",
        );
        for (name, value) in self.env {
            script.extend_from_slice(format!("export {name}=").as_bytes());
            script.extend(shell_quote(value.as_bytes()));
            script.push(b'\n');
        }
        script.extend_from_slice(b"command_() { ");
        if let Some(run_id) = self.env.get("CRABBOX_RUN_ID") {
            let tag = tag(run_id);
            let limit = format!("ulimit -w {tag} 2>/dev/null || ulimit -x {tag} 2>/dev/null; ");
            script.extend_from_slice(limit.as_bytes());
        }
        script.extend_from_slice(b"exec");
        for word in self.argv {
            script.push(b' ');
            script.extend(shell_quote(word.as_bytes()));
        }
        script.extend_from_slice(b"; }\n");
        script
    }
}

/// The keys that interrupt go to every process of the foreground group, also to this shell, which has to outlive the command.
/// A signal with a handler is reset for the command; an ignored one would stay ignored. A hang-up ends both.
const TERMINAL: &str = r#"rm -f -- "$D/run"
echo $$ >"$D/pid"
trap : INT QUIT
exec 4>&2 2>/dev/null
( exec 2>&4 4>&-; command_ )
r=$?
echo "$r" >"$D/end"
exit 0
"#;

const NULL_INPUT: &str = r#"exec 3<&0 </dev/null
( trap '' TERM INT HUP; exec >/dev/null 4>&-; read -r x <&3; die ) &
w=$!
exec 3<&-
( exec 2>&4 4>&-; command_ )
r=$?
kill -s KILL "$w"
printf '%s' "$N"
printf '%s\n' "$N=$r" >&4
exit 0
"#;

/// The reader of frames is the watchdog too. It tells its process id first: the command's own shell ends it.
const FRAMES_INPUT: &str = r#"exec 3<&0 </dev/null
b=
if dd bs=1 count=0 iflag=fullblock </dev/null >/dev/null 2>&1; then b=y; fi
frames() {
  trap '' TERM INT HUP
  exec 4>&-
  read -r p x </proc/self/stat
  printf '%s\n' "$p"
  while read -r n <&3; do
    case $n in
      0) exec >/dev/null ;;
      *)
        if [ "$b" ]; then dd bs="$n" count=1 iflag=fullblock <&3 2>/dev/null
        else dd bs=1 count="$n" <&3 2>/dev/null; fi || { exec >/dev/null; cat <&3 >/dev/null; break; }
        ;;
    esac
  done
  exec >/dev/null
  die
}
frames | (
  read -r w
  exec 3<&-
  ( exec 2>&4 4>&-; command_ )
  r=$?
  kill -s KILL "$w"
  printf '%s' "$N"
  printf '%s\n' "$N=$r" >&4
)
exit 0
"#;

/// The resource limit by which processes of a run are known when they have cleared their environment, or belong to another
/// user: a number of its own for file locks, which the kernel does not count. Processes inherit it, and everybody can read
/// it. dash and busybox call it `ulimit -w`, bash `-x`.
fn tag(run_id: &str) -> u64 {
    let digest = Sha256::digest(run_id.as_bytes());
    let number = digest
        .iter()
        .take(6)
        .fold(0, |number, byte| number << 8 | u64::from(*byte));
    number | 1 << 47
}

/// Ends what is left of a command, by the variable or the limit that its processes have, and says which could not be.
pub(super) fn reap(nonce: &str, run_id: &str) -> Vec<u8> {
    let mut script = format!("N={nonce}\nT={}\nR=", tag(run_id)).into_bytes();
    script.extend(shell_quote(format!("CRABBOX_RUN_ID={run_id}").as_bytes()));
    script.extend_from_slice(REAP.as_bytes());
    script
}

const REAP: &str = r#"
left() {
  l=
  for d in /proc/[0-9]*; do
    case $(cat "$d/environ" "$d/limits" 2>/dev/null) in *"$R"* | *'file locks '*" $T "*) ;; *) continue ;; esac
    s=; read -r s 2>/dev/null <"$d/stat" || continue
    case ${s##*) } in Z*) ;; *) l="$l ${d#/proc/}" ;; esac
  done
}
i=0
left
while [ "$l" ] && [ "$i" -lt 4 ]; do sleep 1; i=$((i + 1)); left; done
if [ "$l" ]; then kill -s KILL $l 2>/dev/null; sleep 1; left; fi
printf '%s left%s\n' "$N" "$l"
cat >/dev/null
exit 0
"#;

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// In a session of its own, as the container's runtime makes one.
    fn shell(shell: &str, script: &[u8]) -> std::process::Child {
        let mut child = Command::new("setsid")
            .args([shell, "-c", &loader("no-such-pod", script.len())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(script).unwrap();
        child
    }

    fn script(dir: &std::path::Path, argv: &[&str], input: Input) -> Vec<u8> {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let env = BTreeMap::from([("ODD".to_owned(), "a'b\n$(c) \\".to_owned())]);
        CommandScript {
            nonce: "nonce",
            workdir: dir.join("new dir").to_str().unwrap(),
            env: &env,
            argv: &argv,
        }
        .with_watchdog(input)
    }

    /// Nothing of what follows is read as a script where the container says that it is in another pod.
    #[test]
    fn another_pod_runs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = dir.path().join("mountinfo");
        let line = |uid: &str| {
            format!(
                "620 600 8:1 /kubelet/pods/{uid}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda rw\n"
            )
        };
        let script = b"echo ran; cat >/dev/null";
        for (seen, runs) in [
            (line("mine"), true),
            (line("other"), false),
            (line("mine2"), false),
            (format!("{}{}", line("other"), line("mine")), true),
            // A container that does not show it.
            ("620 600 8:1 / / rw - ext4 /dev/sda rw\n".to_owned(), true),
        ] {
            let mut file = std::fs::File::create(&mounts).unwrap();
            file.write_all(seen.as_bytes()).unwrap();
            let loader = loader_of(mounts.to_str().unwrap(), "mine", script.len());
            for name in ["sh", "bash"] {
                let mut child = Command::new(name)
                    .args(["-c", &loader])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                child.stdin.take().unwrap().write_all(script).unwrap();
                let ended = child.wait_with_output().unwrap();
                let (out, err) = match runs {
                    true => ("ran\n".to_owned(), String::new()),
                    false => (String::new(), format!("{WRONG_POD}\n")),
                };
                assert_eq!(String::from_utf8_lossy(&ended.stdout), out, "{seen}");
                assert_eq!(String::from_utf8_lossy(&ended.stderr), err, "{seen}");
                assert_eq!(ended.status.success(), runs);
            }
        }
    }

    #[test]
    fn a_command_gets_its_words_variables_and_directory_and_its_end_is_proved() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["sh", "bash"] {
            for input in [Input::Null, Input::Frames] {
                let inner = "printf '%s|' \"$ODD\" \"$1\" \"$PWD\"; echo on stderr >&2; exit 7";
                let argv = ["sh", "-c", inner, "x", "one 'word'"];
                let mut child = shell(name, &script(dir.path(), &argv, input));
                let stdin = child.stdin.take();
                let (mut out, mut err) = (String::new(), String::new());
                child
                    .stdout
                    .take()
                    .unwrap()
                    .read_to_string(&mut out)
                    .unwrap();
                child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut err)
                    .unwrap();
                assert!(child.wait().unwrap().success());
                drop(stdin);
                let there = dir.path().join("new dir");
                let expected = format!("a'b\n$(c) \\|one 'word'|{}|\u{1e}nonce", there.display());
                assert_eq!(out, expected, "{name} {input:?}");
                let said = "\u{1e}nonce+\non stderr\n\u{1e}nonce=7\n";
                assert_eq!(err, said, "{name} {input:?}");
            }
        }
    }

    #[test]
    fn stdin_arrives_byte_for_byte_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..300_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for name in ["sh", "bash"] {
            let mut child = shell(name, &script(dir.path(), &["cat"], Input::Frames));
            let mut stdin = child.stdin.take().unwrap();
            let sent = bytes.clone();
            let writer = std::thread::spawn(move || {
                for chunk in sent.chunks(70_001) {
                    writeln!(stdin, "{}", chunk.len()).unwrap();
                    stdin.write_all(chunk).unwrap();
                }
                writeln!(stdin, "0").unwrap();
                stdin
            });
            let mut out = Vec::new();
            child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
            assert!(child.wait().unwrap().success());
            drop(writer.join().unwrap());
            let (body, marker) = out.split_at(out.len() - 6);
            assert_eq!(marker, b"\x1enonce");
            assert!(body == bytes, "{name}: {} bytes", body.len());
        }
    }

    #[test]
    fn a_command_that_ends_with_its_stdin_unread_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = shell("sh", &script(dir.path(), &["true"], Input::Frames));
        let stdin = child.stdin.take().unwrap();
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert!(err.contains("nonce=0\n"), "{err}");
        drop(stdin);
        child.wait().unwrap();
    }

    #[test]
    fn a_lost_connection_ends_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        for input in [Input::Null, Input::Frames] {
            let mark = format!("{}", 7_000_000 + std::process::id());
            // One that ignores TERM as well.
            let inner = format!("(trap '' TERM; sleep {mark}; sleep {mark}) & sleep {mark}");
            let mut child = shell("sh", &script(dir.path(), &["sh", "-c", &inner], input));
            let mut err = child.stderr.take().unwrap();
            let mut start = [0; 8];
            err.read_exact(&mut start).unwrap();
            assert_eq!(&start, b"\x1enonce+\n");
            let running = || {
                let said = Command::new("sh")
                    .args(["-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"])
                    .output()
                    .unwrap();
                String::from_utf8_lossy(&said.stdout).contains(&format!("sleep {mark} "))
            };
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !running() && std::time::Instant::now() < end {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            drop(child.stdin.take());
            while running() && std::time::Instant::now() < end {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            assert!(!running(), "{input:?}");
            drop(child.wait());
        }
    }

    #[test]
    fn remaining_processes_are_found_by_their_variable_and_ended() {
        let run = format!("run_{}", std::process::id());
        let mut stray = Command::new("setsid")
            .args(["sleep", "1000"])
            .env("CRABBOX_RUN_ID", &run)
            .spawn()
            .unwrap();
        let mut child = shell("sh", &reap("nonce", &run));
        let mut out = String::new();
        drop(child.stdin.take());
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        assert_eq!(out, "nonce left\n");
        child.wait().unwrap();
        assert!(!stray.wait().unwrap().success());
    }

    /// In another session, and without the variable: only the limit tells whose it is. Another run's is left alone.
    #[test]
    fn remaining_processes_without_the_variable_are_found_and_ended() {
        for name in ["sh", "bash"] {
            let dir = tempfile::tempdir().unwrap();
            let run = format!("run_{}_{name}", std::process::id());
            let env = BTreeMap::from([("CRABBOX_RUN_ID".to_owned(), run.clone())]);
            let inner = "setsid env -i sh -c 'echo $$; exec sleep 1000' & wait";
            let argv = ["sh", "-c", inner].map(str::to_owned);
            let script = CommandScript {
                nonce: "nonce",
                workdir: dir.path().to_str().unwrap(),
                env: &env,
                argv: &argv,
            };
            let mut child = shell(name, &script.with_watchdog(Input::Null));
            let mut line = String::new();
            let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
            out.read_line(&mut line).unwrap();
            let process = std::path::Path::new("/proc").join(line.trim());
            // The group goes with the connection, which that process has left.
            drop(child.stdin.take());
            child.wait().unwrap();
            let runs = || {
                let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
                let state = state
                    .rsplit(") ")
                    .next()
                    .and_then(|rest| rest.chars().next());
                state.is_some_and(|state| state != 'Z')
            };
            assert!(runs(), "{name}");
            let reaped = |run: &str| {
                let mut reaper = shell(name, &reap("nonce", run));
                drop(reaper.stdin.take());
                let ended = reaper.wait_with_output().unwrap();
                String::from_utf8_lossy(&ended.stdout).into_owned()
            };
            assert_eq!(reaped("run_other"), "nonce left\n");
            assert!(runs(), "{name}");
            assert_eq!(reaped(&run), "nonce left\n");
            assert!(!runs(), "{name}");
        }
    }
}
