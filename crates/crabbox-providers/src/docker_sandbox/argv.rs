//! The command lines of the contract with `sbx`. Pure: what is on them can be seen in a test.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crabbox_core::provider::{CopyEnd, CopyRequest, PortsRequest};
use jiff::Timestamp;

use super::settings::Config;

/// A command line that grows word by word.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Argv(Vec<OsString>);

impl Argv {
    fn of(words: &[&str]) -> Self {
        Self(words.iter().map(OsString::from).collect())
    }

    fn word(mut self, word: impl Into<OsString>) -> Self {
        self.0.push(word.into());
        self
    }

    fn option(self, flag: &str, value: impl Into<OsString>) -> Self {
        self.word(flag).word(value)
    }

    fn options(self, flag: &str, values: &[String]) -> Self {
        values
            .iter()
            .fold(self, |argv, value| argv.option(flag, value))
    }

    pub(super) fn into_words(self) -> Vec<OsString> {
        self.0
    }
}

/// What only our own engine is told about a new sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OwnFlags {
    /// How long it stays up without a command.
    pub(super) idle_timeout: Duration,
    /// Whether a person waits.
    pub(super) progress: bool,
    /// What tools download or compile is kept for the next sandbox of this repository.
    pub(super) cache: bool,
    /// Whether it goes when it stops, and nothing of its own need be on the disk.
    pub(super) one_shot: bool,
}

pub(super) fn create(name: &str, config: &Config, own: Option<OwnFlags>, root: &Path) -> Argv {
    let mut argv = Argv::of(&["create", "--name", name]);
    if let Some(own) = own {
        if !own.idle_timeout.is_zero() {
            let seconds = own.idle_timeout.as_secs().max(1);
            argv = argv.option("--idle-timeout", format!("{seconds}s"));
        }
        for (flag, wanted) in [
            ("--progress", own.progress),
            ("--cache", own.cache),
            ("--rm", own.one_shot),
            ("--git-write", config.git_write),
        ] {
            if wanted {
                argv = argv.word(flag);
            }
        }
        if !config.preferred_limits.is_empty() {
            argv = argv.option("--prefer-limits", config.preferred_limits.join(","));
        }
    }
    if !config.template.is_empty() {
        argv = argv.option("--template", &config.template);
    }
    if config.cpus > 0 {
        argv = argv.option("--cpus", config.cpus.to_string());
    }
    if !config.memory.is_empty() {
        argv = argv.option("--memory", &config.memory);
    }
    argv = argv
        .options("--mcp", &config.mcp)
        .options("--kit", &config.kit);
    if config.clone {
        argv = argv.word("--clone");
    }
    argv = argv.word(&config.agent).word(root.as_os_str());
    config
        .extra_workspaces
        .iter()
        .fold(argv, |argv, extra| argv.word(extra))
}

/// How a command is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attach {
    pub(super) stdin: bool,
    pub(super) terminal: bool,
    /// Whether no keys leave the terminal: what is typed is the command's.
    pub(super) all_keys: bool,
}

pub(super) fn exec(
    name: &str,
    workdir: &Path,
    env_file: &Path,
    status_file: Option<&Path>,
    attach: Attach,
    command: &[String],
) -> Argv {
    let mut argv = Argv::of(&["exec"]);
    if attach.stdin {
        argv = argv.word("-i");
    }
    if attach.terminal {
        argv = argv.word("-t");
    }
    if attach.terminal && attach.all_keys {
        argv = argv.option("--detach-keys", "none");
    }
    argv = argv
        .option("--workdir", workdir)
        .option("--env-file", env_file);
    if let Some(status_file) = status_file {
        argv = argv.option("--status-file", status_file);
    }
    command
        .iter()
        .fold(argv.word(name), |argv, word| argv.word(word))
}

/// What was denied since then, as rules that would allow it.
pub(super) fn denials(name: &str, since: Timestamp) -> Argv {
    Argv::of(&["policy", "suggest", name, "--json"]).option("--since", since.to_string())
}

pub(super) fn list_caches() -> Argv {
    Argv::of(&["cache", "ls", "--json"])
}

/// Of one repository, or all.
pub(super) fn clear_caches(workspace: Option<&Path>) -> Argv {
    let argv = Argv::of(&["cache", "clear", "--json"]);
    match workspace {
        Some(path) => argv.word("--").word(path.as_os_str()),
        None => argv,
    }
}

pub(super) fn remove(name: &str) -> Argv {
    Argv::of(&["rm", "--force", name])
}

pub(super) fn version() -> Argv {
    Argv::of(&["version"])
}

pub(super) fn list() -> Argv {
    Argv::of(&["ls", "--json"])
}

pub(super) fn diagnose() -> Argv {
    Argv::of(&["diagnose", "--output", "json"])
}

pub(super) fn ports(name: &str, request: &PortsRequest) -> Argv {
    let mut argv = Argv::of(&["ports", name]);
    if request.json {
        argv = argv.word("--json");
    }
    argv.options("--publish", &request.publish)
        .options("--unpublish", &request.unpublish)
}

pub(super) fn copy(name: &str, request: &CopyRequest) -> Argv {
    let mut argv = Argv::of(&["cp"]);
    if request.follow_links {
        argv = argv.word("-L");
    }
    let end = |end: &CopyEnd| match end {
        CopyEnd::Here(path) => here(path),
        CopyEnd::Sandbox(path) => format!("{name}:{path}").into(),
    };
    argv.word(end(&request.from)).word(end(&request.to))
}

/// A local path that can be taken for nothing else: neither for a flag nor for a sandbox's.
fn here(path: &Path) -> OsString {
    let plain = path
        .to_str()
        .is_some_and(|text| !text.starts_with('-') && !text.contains(':'));
    if plain || path.is_absolute() {
        path.into()
    } else {
        Path::new(".").join(path).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::tests::config;
    use super::*;

    fn line(argv: Argv) -> String {
        let words: Vec<_> = argv
            .into_words()
            .iter()
            .map(|w| w.to_str().unwrap().to_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn a_plain_sandbox_needs_a_name_and_a_directory() {
        assert_eq!(
            line(create("n", &config(), None, Path::new("/r"))),
            "create --name n shell /r"
        );
    }

    #[test]
    fn our_own_engine_is_told_how_long_a_sandbox_stays_up() {
        let own = OwnFlags {
            idle_timeout: Duration::from_secs(1800),
            ..OwnFlags::default()
        };
        let root = Path::new("/r");
        assert_eq!(
            line(create("n", &config(), Some(own), root)),
            "create --name n --idle-timeout 1800s shell /r"
        );
        let all = OwnFlags {
            progress: true,
            cache: true,
            one_shot: true,
            ..own
        };
        assert_eq!(
            line(create("n", &config(), Some(all), root)),
            "create --name n --idle-timeout 1800s --progress --cache --rm shell /r"
        );
        let config = Config {
            cpus: 2,
            memory: "4g".into(),
            preferred_limits: vec!["cpus", "memory"],
            ..config()
        };
        assert_eq!(
            line(create("n", &config, Some(own), root)),
            "create --name n --idle-timeout 1800s --prefer-limits cpus,memory --cpus 2 --memory 4g shell /r"
        );
        assert_eq!(
            line(create("n", &config, None, root)),
            "create --name n --cpus 2 --memory 4g shell /r"
        );
    }

    #[test]
    fn every_setting_has_its_flag_in_the_contracts_order() {
        let all = Config {
            template: "t".into(),
            cpus: 4,
            memory: "8g".into(),
            clone: true,
            extra_workspaces: vec!["/a:ro".into(), "/b".into()],
            mcp: vec!["one".into(), "two".into()],
            kit: vec!["k".into()],
            ..config()
        };
        assert_eq!(
            line(create("n", &all, None, Path::new("/r"))),
            "create --name n --template t --cpus 4 --memory 8g --mcp one --mcp two --kit k --clone shell /r /a:ro /b"
        );
    }

    #[test]
    fn a_command_is_passed_as_it_is() {
        let attach = Attach {
            stdin: true,
            terminal: true,
            all_keys: true,
        };
        let words = ["sh", "-lc", "a b"].map(String::from);
        let argv = exec(
            "n",
            Path::new("/w"),
            Path::new("/e"),
            Some(Path::new("/s")),
            attach,
            &words,
        );
        assert_eq!(
            line(argv),
            "exec -i -t --detach-keys none --workdir /w --env-file /e --status-file /s n sh -lc a b"
        );
        let attach = Attach {
            stdin: false,
            terminal: false,
            all_keys: true,
        };
        let argv = exec(
            "n",
            Path::new("/w"),
            Path::new("/e"),
            None,
            attach,
            &words[..1],
        );
        assert_eq!(line(argv), "exec --workdir /w --env-file /e n sh");
    }

    #[test]
    fn ports_and_copies_name_the_real_sandbox() {
        let request = PortsRequest {
            publish: vec!["3000".into(), "8080:80".into()],
            unpublish: vec![],
            json: true,
        };
        assert_eq!(
            line(ports("n", &request)),
            "ports n --json --publish 3000 --publish 8080:80"
        );
        let request = CopyRequest {
            from: CopyEnd::Sandbox("/tmp/a:b".into()),
            to: CopyEnd::Here("-odd:name".into()),
            follow_links: true,
        };
        assert_eq!(line(copy("n", &request)), "cp -L n:/tmp/a:b ./-odd:name");
    }
}
