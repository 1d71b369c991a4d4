//! `sudo` inside a sandbox: the agent may always become root there, so there is no password.
//!
//! The engine installs this program setuid root in the sandbox's upper layer. It supports the options that scripts use and
//! refuses the others by name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use sbx_proto::inside::ROOT_WAS_USED;
use sbx_sys::credentials::{self, Credentials};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const USAGE: &str = "usage: sudo [-u user] [-nEHis] [NAME=value ...] command";
const ALLOWED: &str = "agent may run any command as any user, without a password";

#[derive(Debug, Default, PartialEq, Eq)]
struct Invocation {
    user: Option<String>,
    login: bool,
    shell: bool,
    keep_env: bool,
    set_home: bool,
    /// `-v`, `-k`, `-K`: they manage cached passwords, so there is nothing to do.
    no_op: bool,
    /// Text to print instead of running a command.
    printed: Option<&'static str>,
    assignments: Vec<(OsString, OsString)>,
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    match parse(std::env::args_os().skip(1)).and_then(|invocation| run(&invocation)) {
        Ok(code) => code,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn complain(message: &str) {
    use std::io::Write;
    // stderr may be closed.
    let _ = writeln!(std::io::stderr(), "sudo: {message}");
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Invocation, String> {
    let mut invocation = Invocation::default();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--") => {
                invocation.command = args.collect();
                break;
            }
            Some("--user") => invocation.user = Some(value(args.next(), "--user")?),
            Some("--prompt") => drop(value(args.next(), "--prompt")?),
            Some(text) if text.starts_with("--") => long_option(&mut invocation, text)?,
            Some(text) if text.starts_with('-') && text.len() > 1 => {
                short_options(&mut invocation, text, &mut args)?;
            }
            _ => match split_assignment(&arg) {
                Some(pair) => invocation.assignments.push(pair),
                None => {
                    invocation.command.push(arg);
                    invocation.command.extend(args);
                    break;
                }
            },
        }
    }
    Ok(invocation)
}

fn value(arg: Option<OsString>, option: &str) -> Result<String, String> {
    arg.and_then(|arg| arg.into_string().ok())
        .ok_or_else(|| format!("`{option}` needs a value"))
}

fn long_option(invocation: &mut Invocation, text: &str) -> Result<(), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    match (name, value) {
        ("--user", Some(user)) => invocation.user = Some(user.to_owned()),
        ("--preserve-env", _) => invocation.keep_env = true,
        ("--set-home", None) => invocation.set_home = true,
        ("--login", None) => invocation.login = true,
        ("--shell", None) => invocation.shell = true,
        // There is no password prompt.
        ("--non-interactive", None) | ("--prompt", Some(_)) => {}
        ("--validate" | "--reset-timestamp" | "--remove-timestamp", None) => {
            invocation.no_op = true;
        }
        ("--list", None) => invocation.printed = Some(ALLOWED),
        ("--help", None) => invocation.printed = Some(USAGE),
        ("--group" | "--host", _) => return Err(not_offered(name)),
        _ => return Err(format!("unknown option `{text}`")),
    }
    Ok(())
}

/// Several in one word: `-nE`. One that takes a value is the last of them, and the rest of the word is its
/// value, or the next word where there is no rest: `-iu agent`, `-uroot`.
fn short_options(
    invocation: &mut Invocation,
    text: &str,
    args: &mut impl Iterator<Item = OsString>,
) -> Result<(), String> {
    let mut letters = text.trim_start_matches('-').chars();
    while let Some(letter) = letters.next() {
        match letter {
            'n' | 'S' | 'A' | 'b' | 'P' => {}
            'E' => invocation.keep_env = true,
            'H' => invocation.set_home = true,
            'i' => invocation.login = true,
            's' => invocation.shell = true,
            'k' | 'K' | 'v' => invocation.no_op = true,
            'l' => invocation.printed = Some(ALLOWED),
            'u' | 'p' => {
                let rest = letters.as_str();
                let value = if rest.is_empty() {
                    value(args.next(), &format!("-{letter}"))?
                } else {
                    rest.to_owned()
                };
                if letter == 'u' {
                    invocation.user = Some(value);
                }
                return Ok(());
            }
            'g' | 'C' | 'h' => return Err(not_offered(&format!("-{letter}"))),
            other => return Err(format!("unknown option `-{other}`")),
        }
    }
    Ok(())
}

fn not_offered(option: &str) -> String {
    format!("`{option}` is not supported in a sandbox")
}

/// `NAME=value` before the command.
fn split_assignment(arg: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = arg.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let (name, value) = bytes.split_at(at);
    let is_name = !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    is_name.then(|| {
        let value = value.get(1..).unwrap_or_default();
        (
            OsStr::from_bytes(name).to_owned(),
            OsStr::from_bytes(value).to_owned(),
        )
    })
}

fn run(invocation: &Invocation) -> Result<ExitCode, String> {
    use std::io::Write;
    if let Some(text) = invocation.printed {
        return match writeln!(std::io::stdout(), "{text}") {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(format!("cannot write to stdout: {error}")),
        };
    }
    let root = Credentials {
        uid: 0,
        gid: 0,
        groups: vec![0],
    };
    credentials::become_user(&root, true).map_err(|error| {
        format!("cannot become root: this sandbox runs with a single user id: {error}")
    })?;
    // Marks that files of root may need a hand-over; if it cannot be written, that happens when the sandbox stops.
    let _ = std::fs::File::create(ROOT_WAS_USED);
    let target = account(invocation.user.as_deref().unwrap_or("root"))?;
    let shell = invocation.login || invocation.shell;
    if invocation.command.is_empty() && !shell {
        if invocation.no_op {
            return Ok(ExitCode::SUCCESS);
        }
        return Err(format!("missing command\n{USAGE}"));
    }
    let mut command = if shell {
        let mut command = Command::new(&target.shell);
        if invocation.login {
            command.arg("-l").current_dir(&target.home);
        }
        if !invocation.command.is_empty() {
            let words: Vec<_> = invocation.command.iter().map(|word| quote(word)).collect();
            command.arg("-c").arg(words.join(OsStr::new(" ")));
        }
        command
    } else {
        let mut words = invocation.command.iter();
        let mut command = Command::new(words.next().ok_or("missing command")?);
        command.args(words);
        command
    };
    environment(&mut command, invocation, &target);
    credentials::become_user(&target.credentials, true)
        .map_err(|error| format!("cannot switch to the user: {error}"))?;
    let error = command.exec();
    complain(&format!("{}: {error}", command.get_program().display()));
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    Ok(ExitCode::from(if missing { 127 } else { 126 }))
}

/// The environment is kept (tool chains, proxies): root here needs no protection from the agent. Only the variables that
/// name the user change.
#[expect(
    clippy::disallowed_methods,
    reason = "the command gets the environment of its caller"
)]
fn environment(command: &mut Command, invocation: &Invocation, target: &Account) {
    if !invocation.keep_env || invocation.set_home || invocation.login {
        command.env("HOME", &target.home);
    }
    command
        .env("USER", &target.name)
        .env("LOGNAME", &target.name)
        .env("SHELL", &target.shell);
    command
        .env("SUDO_USER", "agent")
        .env("SUDO_UID", "1000")
        .env("SUDO_GID", "1000");
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PATH);
    }
    command.envs(
        invocation
            .assignments
            .iter()
            .map(|(name, value)| (name, value)),
    );
}

fn quote(word: &OsStr) -> OsString {
    let mut quoted = OsString::from("'");
    for (index, part) in word.as_bytes().split(|byte| *byte == b'\'').enumerate() {
        if index > 0 {
            quoted.push("'\\''");
        }
        quoted.push(OsStr::from_bytes(part));
    }
    quoted.push("'");
    quoted
}

struct Account {
    name: String,
    home: String,
    shell: String,
    credentials: Credentials,
}

fn account(user: &str) -> Result<Account, String> {
    let wanted = user.strip_prefix('#').unwrap_or(user);
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields.as_slice() else {
            return None;
        };
        if *name != wanted && *uid != wanted {
            return None;
        }
        let gid = gid.parse().ok()?;
        Some(Account {
            name: (*name).to_owned(),
            home: (*home).to_owned(),
            shell: if shell.is_empty() {
                "/bin/sh".to_owned()
            } else {
                (*shell).to_owned()
            },
            credentials: Credentials {
                uid: uid.parse().ok()?,
                gid,
                groups: vec![gid],
            },
        })
    });
    found.ok_or_else(|| format!("unknown user `{user}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Invocation, String> {
        parse(args.iter().map(OsString::from))
    }

    #[test]
    fn the_options_that_scripts_use() {
        let invocation = parsed(&["-nE", "-u", "www", "A=b=c", "env", "-i", "X=1"]).unwrap();
        assert_eq!(
            invocation,
            Invocation {
                user: Some("www".into()),
                keep_env: true,
                assignments: vec![("A".into(), "b=c".into())],
                command: ["env", "-i", "X=1"].map(OsString::from).to_vec(),
                ..Invocation::default()
            }
        );
        assert!(parsed(&["-i"]).unwrap().login);
        assert_eq!(parsed(&["--", "-x"]).unwrap().command, ["-x"]);
        assert!(parsed(&["-Z", "true"]).is_err());
    }

    #[test]
    fn options_in_one_word() {
        let login = |user: &str| Invocation {
            user: Some(user.into()),
            login: true,
            command: vec!["id".into()],
            ..Invocation::default()
        };
        assert_eq!(parsed(&["-iu", "agent", "id"]), Ok(login("agent")));
        assert_eq!(parsed(&["-niuroot", "id"]), Ok(login("root")));
        // What follows `-u` is its value, whatever it looks like.
        assert_eq!(parsed(&["-iun", "id"]), Ok(login("n")));
        assert_eq!(parsed(&["--login", "--user=www", "id"]), Ok(login("www")));
        assert_eq!(parsed(&["-nu", "www", "-i", "id"]), Ok(login("www")));
        // Ansible passes a prompt of its own.
        for prompt in [
            &["-H", "-S", "-n", "-p", "[sudo] password: ", "-u", "www"][..],
            &["-Hnpx", "-uwww"],
            &["--prompt=x", "-Huwww"],
            &["--prompt", "x", "-Huwww"],
        ] {
            let expected = Invocation {
                user: Some("www".into()),
                set_home: true,
                command: vec!["id".into()],
                ..Invocation::default()
            };
            assert_eq!(parsed(&[prompt, &["id"]].concat()), Ok(expected));
        }
        for wrong in [
            "-p",
            "--prompt",
            "-u",
            "-iu",
            "--user",
            "-ng",
            "-ig",
            "--group=x",
            "-nZ",
        ] {
            assert!(parsed(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quote(OsStr::new("it's")), "'it'\\''s'");
    }
}
