//! The block of `sbx setup ssh` in `~/.ssh/config`. Everything else in the file stays as it is, byte for byte.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sbx_engine::state::{Durability, make_private_dirs, write_atomic};

use super::Alias;
use crate::failure::{Failure, Kind};

const BEGIN: &str = "# BEGIN sbx (managed by `sbx setup ssh`)";
const END: &str = "# END sbx";
const STATE: &str = "# state directory: ";
const FILE: &str = "config";

/// What the block depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) alias: &'a Alias,
    pub(crate) program: &'a Path,
    /// The state directory, and whether it is only found by SBX_HOME.
    pub(crate) state: &'a Path,
    pub(crate) sbx_home: Option<&'a Path>,
}

impl Block<'_> {
    /// It comes first, as the first value of an option counts. `Match all` at its end gives what follows back to all hosts.
    pub(crate) fn text(&self) -> Result<String, Failure> {
        let program = quoted(self.program)?;
        let state = quoted(self.state)?;
        let command = match self.sbx_home {
            None => program,
            Some(home) => {
                let home = quoted(home)?;
                let home = home.trim_matches('"');
                format!("/usr/bin/env \"SBX_HOME={home}\" {program}")
            }
        };
        let alias = match self.alias.is_default() {
            true => String::new(),
            false => format!("--alias \"{}\" ", self.alias.pattern()),
        };
        Ok([
            BEGIN,
            &format!("{STATE}{}", state.trim_matches('"')),
            &format!("Host {}", self.alias.pattern()),
            "    User _default_user_",
            &format!("    ProxyCommand {command} ssh proxy {alias}%n"),
            "    IdentityAgent none",
            "    IdentityFile /dev/null",
            "    IdentitiesOnly yes",
            "    ControlMaster no",
            "    UserKnownHostsFile ~/.ssh/sbx_known_hosts",
            &format!("    KnownHostsCommand {command} ssh known-hosts %H"),
            "    StrictHostKeyChecking yes",
            "Match all",
            END,
            "",
        ]
        .join("\n"))
    }
}

/// In quotes, as ssh and the shell that it starts read it. Paths with characters that mean something to one of them are
/// refused.
fn quoted(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| {
        let special = |c: char| c.is_control() || matches!(c, '"' | '\\' | '$' | '`' | '!' | '%');
        text.starts_with('/') && !text.contains(special)
    });
    let text = text.ok_or_else(|| {
        let shown = path.to_string_lossy();
        let message = format!("ssh cannot start a program by `{}`", shown.escape_debug());
        Failure::new(Kind::BadRequest, message)
            .hint("use a path of letters, digits and common punctuation")
    })?;
    Ok(format!("\"{text}\""))
}

/// Where the block begins and ends; `None` without one.
fn find(config: &str) -> Result<Option<std::ops::Range<usize>>, Failure> {
    let mut begin = None;
    let mut place = 0;
    for line in config.split_inclusive('\n') {
        let start = place;
        place += line.len();
        match (line.trim_end(), begin) {
            (BEGIN, None) => begin = Some(start),
            (END, Some(begin)) => return Ok(Some(begin..place)),
            (BEGIN, Some(_)) => break,
            _ => {}
        }
    }
    match begin {
        None => Ok(None),
        Some(_) => Err(Failure::failed(format!(
            "the block of sbx in ~/.ssh/config has no line `{END}`"
        ))
        .hint(format!("remove the lines from `{BEGIN}` on yourself"))),
    }
}

/// With this block instead of the one that is there, or before everything else.
fn with_block(config: &str, block: &str) -> Result<String, Failure> {
    Ok(match find(config)? {
        None => format!("{block}{config}"),
        Some(range) => {
            let mut config = config.to_owned();
            config.replace_range(range, block);
            config
        }
    })
}

/// Without the block; `None` when there is none, or none of this state directory.
fn without_block(config: &str, state: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(range) = find(config)? else {
        return Ok(None);
    };
    let block = config.get(range.clone()).unwrap_or_default();
    let said = block.lines().find_map(|line| line.strip_prefix(STATE));
    if state.is_some_and(|state| said.map(Path::new) != Some(state)) {
        return Ok(None);
    }
    let mut config = config.to_owned();
    config.replace_range(range, "");
    Ok(Some(config))
}

/// `~/.ssh/config` of the user.
#[derive(Debug)]
pub(crate) struct Config {
    dir: PathBuf,
}

impl Config {
    pub(crate) fn of(home: &Path) -> Self {
        Self {
            dir: home.join(".ssh"),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Whether anything was changed.
    pub(crate) fn install(&self, block: &str) -> Result<bool, Failure> {
        let before = self.read()?;
        let after = with_block(before.as_deref().unwrap_or_default(), block)?;
        if before.as_deref() == Some(&*after) {
            return Ok(false);
        }
        make_private_dirs(&self.dir).map_err(|error| self.failed(&error))?;
        self.write(&after)?;
        Ok(true)
    }

    /// Whether there was one; with a state directory only its own.
    pub(crate) fn remove(&self, state: Option<&Path>) -> Result<bool, Failure> {
        let Some(before) = self.read()? else {
            return Ok(false);
        };
        let Some(after) = without_block(&before, state)? else {
            return Ok(false);
        };
        self.write(&after)?;
        Ok(true)
    }

    /// `None` without a file.
    fn read(&self) -> Result<Option<String>, Failure> {
        for path in [self.dir.clone(), self.path()] {
            match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(self.failed(&error)),
                Ok(stat) => {
                    let own = stat.uid() == rustix::process::geteuid().as_raw();
                    let kind = stat.is_file() || (stat.is_dir() && path == self.dir);
                    if !own || !kind {
                        let reason = if own {
                            "a link, or not a regular file"
                        } else {
                            "not yours"
                        };
                        let message = format!("`{}` is {reason}", path.display());
                        return Err(Failure::failed(message)
                            .hint("add the block yourself: sbx setup ssh --print"));
                    }
                }
            }
        }
        let bytes = fs::read(self.path()).map_err(|error| self.failed(&error))?;
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| self.failed(&io::Error::other("it is not UTF-8")))
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        write_atomic(&self.dir, FILE, text.as_bytes(), Durability::Now)
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::failed(format!("cannot change {}: {error}", self.path().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(program: &str) -> Result<String, Failure> {
        let alias = Alias::parse("*.sbx").unwrap();
        Block {
            alias: &alias,
            program: Path::new(program),
            state: Path::new("/home/u/.docker/sandboxes"),
            sbx_home: None,
        }
        .text()
    }

    #[test]
    fn the_block() {
        let expected = "\
# BEGIN sbx (managed by `sbx setup ssh`)
# state directory: /home/u/.docker/sandboxes
Host *.sbx
    User _default_user_
    ProxyCommand \"/opt/my tools/sbx\" ssh proxy %n
    IdentityAgent none
    IdentityFile /dev/null
    IdentitiesOnly yes
    ControlMaster no
    UserKnownHostsFile ~/.ssh/sbx_known_hosts
    KnownHostsCommand \"/opt/my tools/sbx\" ssh known-hosts %H
    StrictHostKeyChecking yes
Match all
# END sbx
";
        assert_eq!(block("/opt/my tools/sbx").unwrap(), expected);
        for bad in [
            "sbx",
            "/a\"b",
            "/a$HOME",
            "/a%h",
            "/a\nHost *",
            "/a`b`",
            "/a\\b",
        ] {
            assert!(block(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_another_place_and_under_another_name() {
        let alias = Alias::parse("box-*").unwrap();
        let text = Block {
            alias: &alias,
            program: Path::new("/sbx"),
            state: Path::new("/s"),
            sbx_home: Some(Path::new("/s")),
        };
        let text = text.text().unwrap();
        assert!(text.contains(
            "ProxyCommand /usr/bin/env \"SBX_HOME=/s\" \"/sbx\" ssh proxy --alias \"box-*\" %n\n"
        ));
        assert!(text.contains("Host box-*\n"));
    }

    #[test]
    fn the_rest_stays_byte_for_byte() {
        let (one, two) = (block("/one").unwrap(), block("/two").unwrap());
        for config in [
            "",
            "Host a\n  User b",
            "\n\n# x\r\nHost *\r\n",
            "ForwardAgent yes\n",
        ] {
            let with = with_block(config, &one).unwrap();
            assert_eq!(with_block(&with, &one).unwrap(), with, "again");
            let other = with_block(&with, &two).unwrap();
            assert_eq!(other, format!("{two}{config}"));
            assert_eq!(
                without_block(&other, None).unwrap().as_deref(),
                Some(config)
            );
        }
        // Where the user has moved it to, it stays.
        let moved = format!("Host a\n{one}Host b\n");
        assert_eq!(
            with_block(&moved, &two).unwrap(),
            format!("Host a\n{two}Host b\n")
        );
        assert_eq!(without_block("Host a\n", None).unwrap(), None);
        let state = |path: &str| without_block(&one, Some(Path::new(path))).unwrap();
        assert_eq!(state("/home/u/.docker/sandboxes").as_deref(), Some(""));
        assert_eq!(state("/another"), None);
    }

    #[test]
    fn a_damaged_block_is_left_alone() {
        let one = block("/one").unwrap();
        let cut = one.replace(END, "");
        assert!(with_block(&cut, &one).is_err());
        assert!(without_block(&format!("{cut}{one}"), None).is_err());
    }
}
