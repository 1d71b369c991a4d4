//! The command line by itself: what it prints, refuses and leaves alone when no daemon runs, and what it makes
//! of a daemon and an init that misbehave.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed"
)]

mod diagnose;
mod fake;
mod programs;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use tempfile::TempDir;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 17] = [
        (
            "reading_without_a_daemon_creates_nothing",
            reading_without_a_daemon_creates_nothing,
        ),
        ("version_without_a_daemon", version_without_a_daemon),
        ("help_and_bare_sbx", help_and_bare_sbx),
        ("unknown_and_later_commands", unknown_and_later_commands),
        ("later_flags", later_flags),
        ("agents_and_paths", agents_and_paths),
        (
            "a_working_directory_that_is_gone",
            a_working_directory_that_is_gone,
        ),
        ("bad_env_files", bad_env_files),
        (
            "a_wrong_line_has_a_status_too",
            a_wrong_line_has_a_status_too,
        ),
        ("removal_is_never_silent", removal_is_never_silent),
        ("json_errors", json_errors),
        ("completions", completions),
        ("manual_pages", manual_pages),
        (
            "foreign_directories_are_left_alone",
            foreign_directories_are_left_alone,
        ),
        (
            "unreachable_places_have_a_hint",
            unreachable_places_have_a_hint,
        ),
        ("a_reader_that_goes_away", a_reader_that_goes_away),
        (
            "daemon_commands_without_a_daemon",
            daemon_commands_without_a_daemon,
        ),
    ];
    let own = tests.into_iter().map(|(name, test)| trial(name, test));
    let others = [diagnose::TESTS, fake::TESTS, programs::TESTS].concat();
    own.chain(others.into_iter().map(|(name, test)| trial(name, test)))
        .collect()
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(format!("cli::{name}"), move || {
        test();
        Ok(())
    })
}

/// An empty home.
struct Home(TempDir);

struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sbx"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    fn sbx<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        let output = self.command(args).output().unwrap();
        Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// A line of words without spaces in them.
    fn line(&self, line: &str) -> Said {
        self.sbx(line.split(' '))
    }

    /// Fails with this code and exactly this on stderr.
    #[track_caller]
    fn fails(&self, line: &str, code: i32, err: &str) {
        let said = self.line(line);
        assert_eq!(
            (said.code, said.err.as_str(), said.out.as_str()),
            (code, err, ""),
            "{line}"
        );
    }

    fn is_untouched(&self) -> bool {
        fs::read_dir(self.path()).unwrap().next().is_none()
    }
}

fn reading_without_a_daemon_creates_nothing() {
    let home = Home::new();
    let said = home.line("ls --json");
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (0, "{\n  \"sandboxes\": []\n}\n", "")
    );
    let said = home.line("ls");
    assert_eq!(said.out, "No sandboxes found.\n");
    assert_eq!(said.err, "hint: sbx run shell\n");
    assert_eq!(home.line("ls -q").out, "");
    home.fails(
        "inspect absent",
        1,
        "hint: sbx ls\nerror: no sandbox named `absent`\n",
    );
    home.fails(
        "logs absent",
        1,
        "hint: sbx ls\nerror: no sandbox named `absent`\n",
    );
    for line in ["rm absent", "rm --force absent"] {
        home.fails(line, 1, "hint: sbx ls\nerror: sandbox 'absent' not found\n");
    }
    for line in [
        "version",
        "daemon status",
        "diagnose",
        "--help",
        "create --help",
        "completion bash",
    ] {
        home.line(line);
    }
    assert!(home.is_untouched());
}

fn version_without_a_daemon() {
    let home = Home::new();
    let version = env!("CARGO_PKG_VERSION");
    let said = home.line("version");
    assert_eq!(
        said.out,
        format!(
            "client: v{version} (contract 0.31.3 0.39)\nserver: unavailable\ncontract: 0.31.3 0.39\n"
        )
    );
    let json: serde_json::Value = serde_json::from_str(&home.line("version --json").out).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"client": version, "server": null, "contract": "0.31.3 0.39"})
    );
}

fn help_and_bare_sbx() {
    let home = Home::new();
    let bare = home.sbx::<&str>([]);
    assert_eq!(bare.code, 0);
    for command in [
        "run", "create", "exec", "ls", "inspect", "logs", "stop", "rm", "diagnose", "daemon",
    ] {
        assert!(
            bare.out.contains(&format!("\n  {command} ")),
            "{command}: {}",
            bare.out
        );
    }
    let help = home.line("exec --help");
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    assert!(
        help.out
            .contains("sbx exec [OPTIONS] SANDBOX COMMAND [ARG...]"),
        "{}",
        help.out
    );
    assert!(!help.out.contains("privileged"));
    assert!(
        help.out.starts_with("Run a command in a sandbox\n"),
        "{}",
        help.out
    );
    assert_eq!(home.line("help run").code, 0);
    assert_eq!(home.line("create").code, 2);
    assert_eq!(home.line("ls --frob").code, 2);
    assert_eq!(home.line("--debug run --frob").code, 125);
    // What only the commands themselves find out.
    for line in ["exec box", "exec box --", "exec -d box", "run"] {
        let said = home.line(line);
        assert_eq!(said.code, 125, "{line}: {}", said.err);
        assert!(said.err.contains(" needed") || said.err.contains("no COMMAND"));
    }
    assert!(home.is_untouched());
}

fn unknown_and_later_commands() {
    let home = Home::new();
    home.fails(
        "frobnicate",
        2,
        "hint: sbx --help\nerror: unknown command `frobnicate`\n",
    );
    home.fails(
        "creat",
        2,
        "hint: did you mean `sbx create`?\nerror: unknown command `creat`\n",
    );
    let later =
        |command: &str| format!("error: `sbx {command}` is not supported by this version of sbx\n");
    home.fails("secret ls", 1, &later("secret"));
    home.fails("help skills", 1, &later("skills"));
    let login = home.line("login");
    assert_eq!(login.code, 0);
    assert!(login.err.contains("No account is needed"));
    assert!(home.is_untouched());
}

fn later_flags() {
    let home = Home::new();
    for flags in ["--clone", "--kit k", "--mcp m", "--pull always", "--gpu"] {
        let said = home.line(&format!("create {flags} shell ."));
        assert_eq!(said.code, 1, "{flags}");
        assert!(
            said.err.contains("is not supported by this version of sbx"),
            "{flags}: {}",
            said.err
        );
    }
    home.fails(
        "template load image.tar",
        1,
        "hint: make one from a sandbox: sbx template save SANDBOX TAG\nerror: cannot load `image.tar`: this version of sbx makes no templates of images\n",
    );
    home.fails(
        "save -o image.tar box my-template:v1",
        1,
        "hint: leave it out: the template is stored on this machine\nerror: `--output` writes an image, which this version of sbx does not support\n",
    );
    let none = home.line("template ls");
    assert_eq!(
        (none.code, none.err.as_str()),
        (0, "No template images found\n")
    );
    let branch = home.line("create --branch x shell .");
    assert_eq!(branch.code, 1);
    assert!(
        branch.err.contains("no longer supported") && branch.err.contains("--clone"),
        "{}",
        branch.err
    );
    assert_eq!(home.line("run --clone shell").code, 125);
    assert!(home.is_untouched());
}

fn agents_and_paths() {
    let home = Home::new();
    home.fails(
        "create claude .",
        1,
        "hint: sbx run shell\nerror: agent `claude` is not supported by this version of sbx\n",
    );
    let unknown = home.line("create clod .");
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.starts_with("hint: supported agents: shell"));
    assert!(unknown.err.ends_with("\nerror: unknown agent `clod`\n"));
    home.fails(
        "exec absent true",
        125,
        "hint: sbx ls\nerror: no sandbox named `absent`\n",
    );
    let unnamed = home.line("run --name absent");
    assert_eq!(unnamed.code, 125);
    assert!(home.is_untouched());
    let unknown = home.line("run clod");
    assert_eq!(unknown.code, 125);
    assert!(unknown.err.ends_with("error: unknown agent `clod`\n"));
    assert!(home.is_untouched());
    home.fails(
        "create shell /no/such",
        1,
        "hint: mkdir -p /no/such\nerror: workspace `/no/such` does not exist\n",
    );
    home.fails(
        "create shell . /no/such:ro",
        1,
        "hint: mkdir -p /no/such\nerror: workspace `/no/such` does not exist\n",
    );
    home.fails(
        "create shell .:rw",
        1,
        "hint: remove `:rw`: workspaces are writable by default\n\
         error: workspace `.:rw` does not exist\n",
    );
    home.fails(
        "create shell .:mnt",
        1,
        "hint: use an absolute path inside: SRC:/DST\n\
         error: workspace `.:mnt` does not exist\n",
    );
    home.fails(
        "create --name a_b shell .",
        1,
        "hint: try `a-b`\n\
         error: sandbox name `a_b` contains '_'; letters, digits, `.` and `-` are allowed (ASCII)\n",
    );
    assert!(home.is_untouched());
}

fn a_working_directory_that_is_gone() {
    let home = Home::new();
    for line in ["run shell", "create shell .", "create shell ./below:ro"] {
        let script = format!("mkdir gone && cd gone && rmdir ../gone && exec \"$0\" {line}");
        let mut shell = Command::new("sh");
        let said = said_alone(
            shell
                .args(["-c", &script, env!("CARGO_BIN_EXE_sbx")])
                .env("PATH", "/usr/bin:/bin")
                .current_dir(home.path()),
            &home,
        );
        let code = if line.starts_with("run") { 125 } else { 1 };
        let err = "hint: cd\n\
                   error: the working directory no longer exists\n";
        assert_eq!(said, (Some(code), String::new(), err.to_owned()), "{line}");
    }
    assert!(home.is_untouched());
}

fn bad_env_files() {
    let home = Home::new();
    let file = home.path().join("env");
    write(&file, "GOOD=1\n# comment\nNOT GOOD=2\n");
    let path = file.display();
    let bad = format!("error: {path}:3: variable name `NOT GOOD` contains whitespace\n");
    home.fails(&format!("exec --env-file {path} box true"), 125, &bad);
    home.fails(
        "exec -e =x box true",
        125,
        "error: missing variable name in `--env =x`\n",
    );
    home.fails(
        "exec --env-file missing box true",
        125,
        "error: cannot read environment file `missing`: No such file or directory (os error 2)\n",
    );
    assert!(!home.path().join(".docker").exists());
}

fn a_wrong_line_has_a_status_too() {
    let home = Home::new();
    let file = home.path().join("sf");
    for line in [
        "exec --status-file sf --bad box true",
        "exec --status-file=sf",
        "exec --status-file=sf box",
    ] {
        write(&file, "stale\n");
        assert_eq!(home.line(line).code, 125, "{line}");
        let status = fs::read_to_string(&file).unwrap();
        assert!(
            status.starts_with(r#"{"by":"engine","code":125,"message":"#),
            "{line}: {status}"
        );
    }
    // Behind what is wrong it may be a word of the command.
    write(&file, "kept\n");
    assert_eq!(home.line("exec --bad box sh --status-file sf").code, 125);
    assert_eq!(home.line("exec --status-file sf --help").code, 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept\n");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

fn removal_is_never_silent() {
    let home = Home::new();
    home.fails(
        "rm absent",
        1,
        "hint: sbx ls\nerror: sandbox 'absent' not found\n",
    );
    home.fails(
        "stop absent",
        1,
        "hint: sbx ls\nerror: no sandbox named `absent`\n",
    );
    let all = home.line("rm --all --force");
    assert_eq!((all.code, all.err.as_str()), (0, "No sandboxes found.\n"));
    assert!(home.is_untouched(), "nothing to remove needs no daemon");
}

fn json_errors() {
    let home = Home::new();
    let said = home.line("inspect --json absent");
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(
        error,
        serde_json::json!({"error": {
            "code": "not_found", "message": "no sandbox named `absent`", "hint": "sbx ls"
        }})
    );
}

fn manual_pages() {
    let home = Home::new();
    let all = home.line("man").out;
    assert!(all.contains(".TH sbx 1") && all.contains("exec"), "{all}");
    let one = home.line("man exec").out;
    assert!(
        one.contains(".TH sbx-exec 1") && one.contains("env\\-file"),
        "{one}"
    );
    let nested = home.line("man policy allow network").out;
    assert!(
        nested.contains(".TH sbx-policy-allow-network 1"),
        "{nested}"
    );
    assert_eq!(home.line("man nothing").code, 2);
    assert_eq!(home.line("man policy nothing").code, 2);
}

fn completions() {
    let home = Home::new();
    for shell in ["bash", "fish", "powershell", "zsh"] {
        let said = home.line(&format!("completion {shell}"));
        assert_eq!(said.code, 0);
        assert!(said.out.contains("diagnose"), "{shell}");
    }
    let described = home.line("completion fish").out;
    let plain = home.line("completion fish --no-descriptions").out;
    assert!(described.contains("List sandboxes") && !plain.contains("List sandboxes"));
}

fn foreign_directories_are_left_alone() {
    let home = Home::new();
    let state = home.path().join(".docker/sandboxes");
    fs::create_dir_all(&state).unwrap();
    write(&state.join("theirs.db"), "x");
    let named = |line: &str| {
        let mut command = home.command(line.split(' '));
        command.env("SBX_HOME", &state).output().unwrap()
    };
    let output = named("create --name box shell .");
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(
        err.contains("did not make") && err.contains("hint: set SBX_HOME"),
        "{err}"
    );
    assert_eq!(named("ls --json").status.code(), Some(0));
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
}

fn unreachable_places_have_a_hint() {
    let home = Home::new();
    let file = home.path().join("file");
    write(&file, "");
    for line in ["ls", "daemon status", "daemon start -d", "exec box true"] {
        let output = home
            .command(line.split(' '))
            .env("SBX_HOME", &file)
            .output()
            .unwrap();
        assert_ne!(output.status.code(), Some(0));
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(
            err.starts_with("hint: set SBX_HOME to ")
                && err.lines().last().unwrap().contains("Not a directory"),
            "{line}: {err}"
        );
    }
}

fn a_reader_that_goes_away() {
    let home = Home::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = home
        .command(["completion", "bash"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(141), &b""[..])
    );
}

fn daemon_commands_without_a_daemon() {
    let home = Home::new();
    let json: serde_json::Value =
        serde_json::from_str(&home.line("daemon status --json").out).unwrap();
    let state = home.path().join(".docker/sandboxes");
    assert_eq!(
        json,
        serde_json::json!({
            "status": "stopped", "socket": state.join("sandboxd.sock"), "logs": state.join("sandboxd.log")
        })
    );
    let stop = home.line("daemon stop");
    assert_eq!(
        (stop.code, stop.err.as_str()),
        (0, "sandboxd is not running\n")
    );
    home.fails(
        "daemon log-level",
        1,
        "hint: sbx daemon start -d\nerror: sandboxd is not running\n",
    );
    let said = home.line("daemon log-level --json");
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(
        (said.code, &error["error"]["code"]),
        (1, &"no_daemon".into())
    );
    assert_eq!(home.line("daemon log-level --json set all info").code, 2);
    assert!(home.is_untouched());
}

/// What a program says that has nothing of ours but a home: code, stdout, stderr.
fn said_alone(command: &mut Command, home: &Home) -> (Option<i32>, String, String) {
    let kept: Vec<_> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    let output = command
        .env_clear()
        .envs(kept)
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn write(path: &Path, text: &str) {
    std::io::Write::write_all(&mut fs::File::create(path).unwrap(), text.as_bytes()).unwrap();
}
