//! The host key of all sandboxes of one state directory: a file that only its owner can read, made when it is first needed.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::OFlags;
use sbx_engine::StateDir;
use sbx_engine::state::private;
use sbx_ssh::HostKey;

use crate::failure::{Failure, Kind};

const SEED: usize = HostKey::SEED;

/// The key, which is made if there is none.
pub(crate) fn load_or_make(state: &StateDir) -> Result<HostKey, Failure> {
    let path = state.ssh_host_key();
    let failed = |error: io::Error| {
        let failure = Failure::new(
            Kind::Engine,
            format!("cannot use the host key {}: {error}", path.display()),
        );
        match error.kind() {
            io::ErrorKind::StorageFull => failure,
            _ => failure.hint("remove the file; the next connection makes a new one"),
        }
    };
    let seed = match read(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(state).and_then(|()| read(state)).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    HostKey::from_seed(&seed).map_err(|error| failed(io::Error::other(error)))
}

fn read(state: &StateDir) -> io::Result<[u8; SEED]> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .read(true)
        .custom_flags(flags)
        .open(state.ssh_host_key())?;
    let stat = file.metadata()?;
    if stat.uid() != rustix::process::geteuid().as_raw() || stat.mode() & 0o077 != 0 {
        return Err(io::Error::other("it is not its owner's alone"));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(&mut file, 200), &mut text)?;
    decode(text.trim()).ok_or_else(|| io::Error::other("it is damaged"))
}

/// The first of several processes makes it: a name is linked once.
fn make(state: &StateDir) -> io::Result<()> {
    let seed = HostKey::generate().map_err(io::Error::other)?;
    let text: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let unique = format!(".ssh-host-key.{}.0.tmp", std::process::id());
    let temporary = state.root().join(unique);
    let mut file = private().create_new(true).open(&temporary)?;
    let made = file
        .write_all(format!("{text}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&temporary, state.ssh_host_key()));
    fs::remove_file(&temporary)?;
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn decode(text: &str) -> Option<[u8; SEED]> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits?;
    let bytes: Option<Vec<u8>> = digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => u8::try_from(high * 16 + low).ok(),
            _ => None,
        })
        .collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal() {
        assert_eq!(decode(&"0f".repeat(32)), Some([15; 32]));
        for bad in ["", "0", "zz", &"0f".repeat(31), &"0f".repeat(33)] {
            assert_eq!(decode(bad), None);
        }
    }
}
