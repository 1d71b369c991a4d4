//! Key exchange: what both sides can do (RFC 4253 section 7), the shared secret (RFC 8731, and its hybrid with ML-KEM of
//! draft-ietf-sshm-mlkem-hybrid-kex), and the keys that come of it.

use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::kem::{EncapsulationKey, ML_KEM_768};
use aws_lc_rs::rand::{self, SystemRandom};
use sbx_proto::rfc4251::{Reader, Writer};

use crate::Error;
use crate::cipher::{Cipher, Suite};
use crate::host_key::{ED25519, HostKey};
use crate::message;

const X25519_LENGTH: usize = 32;
/// The length of an ML-KEM-768 encapsulation key (FIPS 203).
const ML_KEM_LENGTH: usize = 1184;

/// Sequence numbers begin again with new keys, and nothing but the key exchange is taken before the first: OpenSSH's answer
/// to prefix truncation (CVE-2023-48795).
const STRICT_CLIENT: &str = "kex-strict-c-v00@openssh.com";
const STRICT_SERVER: &str = "kex-strict-s-v00@openssh.com";

/// Not used: AES-GCM needs none. A client must find one that it knows all the same.
const MACS: &str = "hmac-sha2-256-etm@openssh.com,hmac-sha2-256";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    MlKem768X25519,
    Curve25519,
}

impl Method {
    const NAMES: [(&'static str, Self); 3] = [
        ("mlkem768x25519-sha256", Self::MlKem768X25519),
        ("curve25519-sha256", Self::Curve25519),
        ("curve25519-sha256@libssh.org", Self::Curve25519),
    ];

    fn of_name(name: &str) -> Option<Self> {
        let mut known = Self::NAMES.into_iter();
        known.find(|(known, _)| *known == name).map(|it| it.1)
    }
}

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) method: Method,
    pub(crate) to_server: Suite,
    pub(crate) to_client: Suite,
    pub(crate) strict: bool,
    /// The client has guessed the method, and wrongly: its next packet is to be ignored.
    pub(crate) skip_guess: bool,
}

/// This side's KEXINIT.
pub(crate) fn offer() -> Result<Vec<u8>, Error> {
    let mut cookie = [0; 16];
    rand::fill(&mut cookie)?;
    let methods: Vec<&str> = Method::NAMES.iter().map(|(name, _)| *name).collect();
    let methods = format!("{},{STRICT_SERVER}", methods.join(","));
    let suites: Vec<&str> = Suite::ALL.into_iter().map(Suite::name).collect();
    let suites = suites.join(",");
    Ok(Writer::message(message::KEXINIT)
        .raw(&cookie)
        .string(methods)
        .string(ED25519)
        .string(&suites)
        .string(&suites)
        .string(MACS)
        .string(MACS)
        .string("none")
        .string("none")
        .string("")
        .string("")
        .boolean(false)
        .u32(0)
        .finish())
}

/// The client's first choice of what both can do.
pub(crate) fn agree(kexinit: &[u8]) -> Result<Agreed, Error> {
    let mut reader = Reader::new(kexinit);
    reader.byte()?;
    reader.take(16)?;
    let methods = reader.name_list()?;
    let host_keys = reader.name_list()?;
    let to_server = reader.name_list()?;
    let to_client = reader.name_list()?;
    let _macs = (reader.name_list()?, reader.name_list()?);
    let compressions = [reader.name_list()?, reader.name_list()?];
    let _languages = (reader.name_list()?, reader.name_list()?);
    let guessed = reader.boolean()?;
    let suite = |names: &[&str]| {
        let mut known = names.iter().filter_map(|name| Suite::of_name(name));
        known.next().ok_or(Error::NoCommon("cipher"))
    };
    let mut known = methods.iter().filter_map(|name| Method::of_name(name));
    let method = known.next().ok_or(Error::NoCommon("key exchange method"))?;
    if !host_keys.contains(&ED25519) {
        return Err(Error::NoCommon("host key algorithm"));
    }
    if !compressions.iter().all(|names| names.contains(&"none")) {
        return Err(Error::NoCommon("compression"));
    }
    let right = methods.first() == Method::NAMES.first().map(|(name, _)| name)
        && host_keys.first() == Some(&ED25519);
    Ok(Agreed {
        method,
        to_server: suite(&to_server)?,
        to_client: suite(&to_client)?,
        strict: methods.contains(&STRICT_CLIENT),
        skip_guess: guessed && !right,
    })
}

/// What the exchange hash covers besides the keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transcript<'a> {
    pub(crate) client_version: &'a [u8],
    pub(crate) server_version: &'a [u8],
    pub(crate) client_kexinit: &'a [u8],
    pub(crate) server_kexinit: &'a [u8],
}

/// The outcome of a key exchange.
#[derive(Debug)]
pub(crate) struct Keys {
    /// For the client: the proof of the host key.
    pub(crate) reply: Vec<u8>,
    pub(crate) hash: Vec<u8>,
    /// The shared secret as it is hashed.
    secret: Vec<u8>,
}

impl Keys {
    /// From the client's KEX_ECDH_INIT.
    pub(crate) fn exchange(
        method: Method,
        init: &[u8],
        transcript: Transcript<'_>,
        host_key: &HostKey,
    ) -> Result<Self, Error> {
        let mut reader = Reader::new(init);
        reader.byte()?;
        let client = reader.string()?;
        let (server, secret) = match method {
            Method::Curve25519 => {
                let (public, secret) = x25519(client)?;
                (public, Writer::default().mpint(&secret).finish())
            }
            Method::MlKem768X25519 => {
                let (kem, curve) = client
                    .split_at_checked(ML_KEM_LENGTH)
                    .ok_or(Error::KeyExchange)?;
                let (ciphertext, quantum) = encapsulate(kem)?;
                let (public, classic) = x25519(curve)?;
                let both = digest(&SHA256, &[quantum, classic].concat());
                let server = [ciphertext, public].concat();
                (server, Writer::default().string(both).finish())
            }
        };
        let public = host_key.public_blob();
        let hashed = Writer::default()
            .string(transcript.client_version)
            .string(transcript.server_version)
            .string(transcript.client_kexinit)
            .string(transcript.server_kexinit)
            .string(&public)
            .string(client)
            .string(&server)
            .raw(&secret)
            .finish();
        let hash = digest(&SHA256, &hashed).as_ref().to_vec();
        let reply = Writer::message(message::KEX_ECDH_REPLY)
            .string(&public)
            .string(&server)
            .string(host_key.sign(&hash))
            .finish();
        Ok(Self {
            reply,
            hash,
            secret,
        })
    }

    /// The cipher of one direction, by the letters of RFC 4253 section 7.2.
    pub(crate) fn cipher(
        &self,
        suite: Suite,
        direction: Direction,
        session: &[u8],
    ) -> Result<Cipher, Error> {
        let derive = |letter: u8| {
            let hashed = [&self.secret[..], &self.hash, &[letter], session].concat();
            digest(&SHA256, &hashed)
        };
        let (nonce, key) = match direction {
            Direction::ToServer => (b'A', b'C'),
            Direction::ToClient => (b'B', b'D'),
        };
        Cipher::new(suite, derive(key).as_ref(), derive(nonce).as_ref())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// This side's public key and the secret that it shares with the client's.
fn x25519(client: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> {
    if client.len() != X25519_LENGTH {
        return Err(Error::KeyExchange);
    }
    let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new())?;
    let public = private.compute_public_key()?.as_ref().to_vec();
    let client = UnparsedPublicKey::new(&X25519, client);
    // A key of small order is refused there, as RFC 8731 demands.
    let secret = agree_ephemeral(private, client, Error::KeyExchange, |secret| {
        Ok(secret.to_vec())
    })?;
    Ok((public, secret))
}

fn encapsulate(key: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let key = EncapsulationKey::new(&ML_KEM_768, key).map_err(|_| Error::KeyExchange)?;
    let (ciphertext, secret) = key.encapsulate().map_err(|_| Error::KeyExchange)?;
    Ok((ciphertext.as_ref().to_vec(), secret.as_ref().to_vec()))
}
