//! Whether the engine hands on what is in `exec --env-file`, shown by an example: there are versions that take the
//! file and ignore it.

use std::collections::BTreeMap;
use std::path::Path;

use crabbox_core::claims::random_hex;
use crabbox_core::env::{EnvFile, env_file_bytes};
use crabbox_core::process::{Cancel, End};
use crabbox_core::{Code, Failure};

use super::argv::{self, Attach};
use super::client::Client;
use super::creator::absent;

const EXAMPLE: &str = "CRABBOX_EXAMPLE";

/// `state` is where the file lies meanwhile.
pub(super) fn prove(
    client: &Client,
    state: &Path,
    name: &str,
    called: &str,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let value = random_hex(8)?;
    let example = BTreeMap::from([(EXAMPLE.to_owned(), value.clone())]);
    let file = EnvFile::create(state, &env_file_bytes(&example))?;
    let attach = Attach {
        all_keys: false,
        stdin: false,
        terminal: false,
    };
    let command = ["printenv", EXAMPLE].map(str::to_owned);
    let argv = argv::exec(name, Path::new("/"), file.path(), None, attach, &command);
    let said = client.look(argv, cancel)?;
    match classify(said.end, &said.stdout, &value) {
        Shown::Arrives => Ok(()),
        Shown::Another => Err(ignored()),
        // Also what an engine says that cannot find the sandbox.
        Shown::Unset => match client.find(name, cancel)? {
            None => Err(absent(name, called)),
            Some(_) => Err(Failure {
                causes: client.failure(&said).causes,
                ..ignored()
            }),
        },
        Shown::Nothing => match client.find(name, cancel) {
            Ok(None) => Err(absent(name, called)),
            Ok(Some(_)) | Err(_) => Err(unclear(client.failure(&said))),
        },
    }
}

/// What the example shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Arrives,
    /// The command found another value than it was given.
    Another,
    /// The command found none, if it ran at all.
    Unset,
    /// There was no such command, or the engine failed.
    Nothing,
}

/// `printenv` exits with 1 and prints nothing where a variable is not set.
fn classify(end: End, stdout: &[u8], value: &str) -> Shown {
    let found = stdout.trim_ascii();
    match end {
        End::Exited(0) if found == value.as_bytes() => Shown::Arrives,
        End::Exited(0) => Shown::Another,
        End::Exited(1) if found.is_empty() => Shown::Unset,
        End::Exited(_) | End::Signaled(_) => Shown::Nothing,
    }
}

fn ignored() -> Failure {
    Failure::new(
        Code::Provider,
        "this sbx ignores `exec --env-file`, so no variable would reach the command; it was not run",
    )
    .hint("use another version of sbx (0.37.0 is known for it), or forward no variables")
}

fn unclear(mut failure: Failure) -> Failure {
    let what = "cannot show that variables reach the command, so it was not run".to_owned();
    let ended = std::mem::replace(&mut failure.message, what);
    failure.causes.insert(0, ended);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_command_itself_found_counts() {
        for (end, stdout, shown) in [
            (End::Exited(0), "0123abcd\n", Shown::Arrives),
            (End::Exited(0), "0123abcd\r\n", Shown::Arrives),
            (End::Exited(0), "another\n", Shown::Another),
            (End::Exited(0), "", Shown::Another),
            (End::Exited(1), "", Shown::Unset),
            (End::Exited(1), "no such sandbox\n", Shown::Nothing),
            (End::Exited(125), "", Shown::Nothing),
            (End::Exited(126), "", Shown::Nothing),
            (End::Exited(127), "", Shown::Nothing),
            (End::Exited(125), "0123abcd\n", Shown::Nothing),
            (End::Signaled(9), "", Shown::Nothing),
        ] {
            assert_eq!(
                classify(end, stdout.as_bytes(), "0123abcd"),
                shown,
                "{end:?} {stdout:?}"
            );
        }
    }
}
