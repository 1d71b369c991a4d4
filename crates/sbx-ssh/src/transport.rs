//! The transport (RFC 4253): versions, key exchanges, and the packets of the layers above.

use std::collections::VecDeque;

use sbx_proto::rfc4251::Writer;

use crate::kex::{self, Agreed, Direction, Keys, Transcript};
use crate::packet::{Inbound, Outbound};
use crate::{Error, HostKey, message};

/// RFC 4253 section 4.2.
const MAX_VERSION_LINE: usize = 255;
const SERVER_VERSION: &str = concat!("SSH-2.0-sbx_", env!("CARGO_PKG_VERSION"));

/// What is waited for.
#[derive(Debug)]
enum Stage {
    Version,
    /// The client's KEXINIT; ours has been sent.
    KexInit {
        ours: Vec<u8>,
    },
    /// Its public key.
    KexEcdh {
        ours: Vec<u8>,
        theirs: Vec<u8>,
        agreed: Agreed,
    },
    /// That it uses the new keys too.
    NewKeys {
        keys: Keys,
        agreed: Agreed,
    },
    /// Messages of the layers above.
    Open,
}

#[derive(Debug)]
pub(crate) struct Transport {
    key: HostKey,
    inbound: Inbound,
    outbound: Outbound,
    stage: Stage,
    client_version: Vec<u8>,
    /// The hash of the first key exchange.
    session: Option<Vec<u8>>,
    strict: bool,
    /// The client uses keys.
    secured: bool,
    /// Ignore the next packet.
    skip: bool,
    /// Messages that wait for the end of a key exchange.
    held: VecDeque<Vec<u8>>,
    out: Vec<u8>,
}

impl Transport {
    pub(crate) fn new(key: HostKey) -> Self {
        Self {
            key,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            stage: Stage::Version,
            client_version: Vec::new(),
            session: None,
            strict: false,
            secured: false,
            skip: false,
            held: VecDeque::new(),
            out: format!("{SERVER_VERSION}\r\n").into_bytes(),
        }
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.inbound.push(bytes);
    }

    /// Bytes for the client.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// What has not been taken from [`Self::out`], and what is still to be encrypted.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len() + self.held.iter().map(Vec::len).sum::<usize>()
    }

    /// What has not been taken from [`Self::out`].
    pub(crate) fn encrypted(&self) -> usize {
        self.out.len()
    }

    /// The next message of the layers above.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if matches!(self.stage, Stage::Version) && !self.read_version()? {
            return Ok(None);
        }
        while let Some((payload, number)) = self.inbound.next()? {
            if std::mem::take(&mut self.skip) {
                continue;
            }
            if let Some(payload) = self.message(payload, number)? {
                return Ok(Some(payload));
            }
        }
        Ok(None)
    }

    /// A message of the layers above. None is sent during a key exchange.
    pub(crate) fn send(&mut self, payload: Vec<u8>) -> Result<(), Error> {
        match self.stage {
            Stage::Open => self.outbound.push(&payload, &mut self.out),
            _ => {
                self.held.push_back(payload);
                Ok(())
            }
        }
    }

    fn read_version(&mut self) -> Result<bool, Error> {
        let Some(line) = self.inbound.line(MAX_VERSION_LINE)? else {
            return Ok(false);
        };
        if !line.starts_with(b"SSH-2.0-") && !line.starts_with(b"SSH-1.99-") {
            return Err(Error::Version);
        }
        self.client_version = line;
        let ours = self.send_kexinit()?;
        self.stage = Stage::KexInit { ours };
        Ok(true)
    }

    fn send_kexinit(&mut self) -> Result<Vec<u8>, Error> {
        let ours = kex::offer()?;
        self.outbound.push(&ours, &mut self.out)?;
        Ok(ours)
    }

    fn message(&mut self, payload: Vec<u8>, number: u32) -> Result<Option<Vec<u8>>, Error> {
        let kind = payload.first().copied().unwrap_or_default();
        match kind {
            message::DISCONNECT => return Err(Error::Disconnected),
            // Before the first keys they could have been put in on the way.
            message::IGNORE | message::DEBUG | message::UNIMPLEMENTED
                if self.secured || !self.strict =>
            {
                return Ok(None);
            }
            message::EXT_INFO if self.secured => return Ok(None),
            _ => {}
        }
        match (std::mem::replace(&mut self.stage, Stage::Open), kind) {
            (Stage::KexInit { ours }, message::KEXINIT) => self.negotiate(ours, payload, number)?,
            (Stage::Open, message::KEXINIT) => {
                let ours = self.send_kexinit()?;
                self.negotiate(ours, payload, number)?;
            }
            (
                Stage::KexEcdh {
                    ours,
                    theirs,
                    agreed,
                },
                message::KEX_ECDH_INIT,
            ) => self.exchange(&payload, &ours, &theirs, agreed)?,
            (Stage::NewKeys { keys, agreed }, message::NEWKEYS) => self.use_keys(&keys, agreed)?,
            (Stage::Open, kind) if kind >= message::USERAUTH_REQUEST => return Ok(Some(payload)),
            (Stage::Open, message::SERVICE_REQUEST) => return Ok(Some(payload)),
            (Stage::Open, kind) if kind > message::KEX_ECDH_REPLY => {
                let answer = Writer::message(message::UNIMPLEMENTED).u32(number);
                self.send(answer.finish())?;
            }
            (_, kind) => return Err(Error::Unexpected(kind)),
        }
        Ok(None)
    }

    fn negotiate(&mut self, ours: Vec<u8>, theirs: Vec<u8>, number: u32) -> Result<(), Error> {
        let agreed = kex::agree(&theirs)?;
        if self.session.is_none() {
            self.strict = agreed.strict;
            if self.strict && number != 0 {
                return Err(Error::Unexpected(message::KEXINIT));
            }
        }
        self.skip = agreed.skip_guess;
        self.stage = Stage::KexEcdh {
            ours,
            theirs,
            agreed,
        };
        Ok(())
    }

    fn exchange(
        &mut self,
        init: &[u8],
        ours: &[u8],
        theirs: &[u8],
        agreed: Agreed,
    ) -> Result<(), Error> {
        let transcript = Transcript {
            client_version: &self.client_version,
            server_version: SERVER_VERSION.as_bytes(),
            client_kexinit: theirs,
            server_kexinit: ours,
        };
        let keys = Keys::exchange(agreed.method, init, transcript, &self.key)?;
        let session = self.session.get_or_insert_with(|| keys.hash.clone());
        let cipher = keys.cipher(agreed.to_client, Direction::ToClient, session)?;
        self.outbound.push(&keys.reply, &mut self.out)?;
        self.outbound.push(&[message::NEWKEYS], &mut self.out)?;
        self.outbound.set_cipher(cipher);
        self.stage = Stage::NewKeys { keys, agreed };
        Ok(())
    }

    fn use_keys(&mut self, keys: &Keys, agreed: Agreed) -> Result<(), Error> {
        let session = self.session.as_deref().unwrap_or_default();
        let cipher = keys.cipher(agreed.to_server, Direction::ToServer, session)?;
        self.inbound.set_cipher(cipher);
        self.secured = true;
        if self.strict {
            self.inbound.reset_sequence();
        }
        while let Some(payload) = self.held.pop_front() {
            self.outbound.push(&payload, &mut self.out)?;
        }
        Ok(())
    }
}
