//! Shell scripts for the sandbox. They need a POSIX shell and what every image has: mkdir, mv, rm, cat, sleep, tar.
//!
//! The daemon's own events are lines, which lose bytes. So a command writes its output to two files in a private directory,
//! which are downloaded by ranges while it runs. The daemon's stream carries only our marks and the exit status.

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

/// The command with its output in files. Its exit status is the script's.
pub(super) fn exact(argv: &[String], nonce: &str, input: Input) -> String {
    let dir = quote(&directory(nonce));
    let command = words(argv);
    let (prepare, start, from, stop) = match input {
        Input::Null => ("", String::new(), "/dev/null", ""),
        Input::Fed => (
            " && mkfifo \"$d/in\"",
            format!("{FEED}\nfeed >\"$d/in\" 2>/dev/null &\nf=$!\n"),
            "\"$d/in\"",
            "kill \"$f\" 2>/dev/null\n",
        ),
    };
    let lines = match input {
        Input::Null => format!("echo '{MARK}{nonce} lines'\nexec {command} </dev/null"),
        Input::Fed => format!("echo '{MARK}{nonce} no-input'\nexit 125"),
    };
    format!(
        "d={dir}\n\
         if (umask 077 && mkdir \"$d\" && : >\"$d/out\" && : >\"$d/err\"{prepare}) 2>/dev/null; then\n\
         echo '{MARK}{nonce} exact'\n\
         {start}( exec {command} ) >\"$d/out\" 2>\"$d/err\" <{from}\n\
         c=$?\n\
         {stop}o=-; e=-\n\
         if [ -s \"$d/out\" ]; then o=o; elif [ ! -f \"$d/out\" ]; then o=x; fi\n\
         if [ -s \"$d/err\" ]; then e=e; elif [ ! -f \"$d/err\" ]; then e=x; fi\n\
         echo \"{MARK}{nonce} end $o$e\"\n\
         exit \"$c\"\n\
         else\n{lines}\nfi"
    )
}

/// Passes the pieces of input on, in order, until the end is marked. A piece is removed only when the next one is there:
/// until then the daemon may not be done with it.
const FEED: &str = "\
feed() {
n=0
p=
while :; do
if [ -e \"$d/in.$n.ok\" ]; then
if [ -n \"$p\" ]; then rm -f \"$d/in.$p\" \"$d/in.$p.ok\"; fi
cat \"$d/in.$n\" || return
p=$n
n=$((n + 1))
elif [ -e \"$d/in.$n.end\" ]; then
return
else
sleep 0.02 2>/dev/null || sleep 1
fi
done
}";

/// What the command of a terminal session is. Its variables come from a file, so that no process shows them as arguments;
/// the exit status comes in the output itself, because the daemon's own notice may overtake the last output.
pub(super) fn terminal(argv: &[String], nonce: &str) -> String {
    let dir = quote(&directory(nonce));
    let command = words(argv);
    format!(
        "d={dir}; . \"$d/env\"; rm -rf \"$d\"; ( exec {command} ); c=$?; printf '\\033]{MARK}{nonce};%s\\007' \"$c\"; sleep 5; exit \"$c\""
    )
}

/// A file that a shell reads to set variables.
pub(super) fn env_file(env: &std::collections::BTreeMap<String, String>) -> String {
    let line = |(name, value): (&String, &String)| format!("export {name}={}\n", quote(value));
    env.iter().map(line).collect()
}

/// Ends every process that has the variable of the run, and prints those that are still there. A process that is in the
/// middle of fork(2) or execve(2) may not be seen, so that only two looks without one in a row mean that there is none.
/// One grep looks at all of them where it can (`-z`): a process for each takes seconds on a busy machine.
pub(super) fn end_survivors(run_id: &str) -> String {
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
         elif [ \"$none\" = 1 ]; then exit 0\n\
         else none=1; fi\n\
         sleep 0.1 2>/dev/null || sleep 1\n\
         done\n\
         scan"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// With a directory of its own in place of `/tmp`.
    fn run(script: &str, dir: &std::path::Path) -> (i32, String) {
        let script = script.replace("/tmp/", &format!("{}/", dir.display()));
        let done = Command::new("sh").args(["-c", &script]).output().unwrap();
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status.code().unwrap_or(-1), out)
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
            (7, "crabbox:n1 exact\ncrabbox:n1 end oe\n")
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
    fn what_a_run_left_is_ended_and_nothing_else() {
        let mark = format!("run_{}_{:p}", std::process::id(), &0);
        let sleep = |id: &str| {
            let mut sleep = Command::new("sleep");
            sleep.arg("300").env("CRABBOX_RUN_ID", id).spawn().unwrap()
        };
        let (mut mine, mut other) = (sleep(&mark), sleep(&format!("{mark}0")));
        let script = end_survivors(&mark);
        let done = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
        assert!(!mine.wait().unwrap().success());
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
