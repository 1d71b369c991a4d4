//! The server against a client that is written here, for what the OpenSSH of the machine may not have (ML-KEM) or does
//! only after gigabytes (new keys). The real client is in `crates/sbx/tests/it/ssh.rs`.

use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::kem::{Ciphertext, DecapsulationKey, ML_KEM_768};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519 as VERIFY, UnparsedPublicKey as Verifier};

use super::*;
use crate::cipher::{Cipher, Suite};
use crate::packet::{Inbound, Outbound};
use crate::{Start, Terminal};

const VERSION: &str = "SSH-2.0-test";

struct Client {
    server: Server,
    inbound: Inbound,
    outbound: Outbound,
    server_version: Vec<u8>,
    session: Option<Vec<u8>>,
}

impl Client {
    fn connect(method: &str) -> Self {
        let key = HostKey::from_seed(&[3; 32]).unwrap();
        let mut client = Self {
            server: Server::new(key),
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            server_version: Vec::new(),
            session: None,
        };
        client
            .server
            .receive(format!("{VERSION}\r\n").as_bytes())
            .unwrap();
        client.hear();
        client.server_version = client.inbound.line(255).unwrap().unwrap();
        let ours = client.inbound.next().unwrap().unwrap().0;
        client.exchange_keys(method, Some(ours));
        client
    }

    fn hear(&mut self) {
        let bytes = std::mem::take(self.server.out().unwrap());
        self.inbound.push(&bytes);
    }

    fn say(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        self.outbound.push(payload, &mut bytes).unwrap();
        let said = self.server.receive(&bytes);
        self.hear();
        said
    }

    fn next(&mut self) -> Vec<u8> {
        self.inbound.next().unwrap().unwrap().0
    }

    fn exchange_keys(&mut self, method: &str, server_kexinit: Option<Vec<u8>>) {
        let kexinit = kexinit(method, false);
        self.say(&kexinit).unwrap();
        let server_kexinit = server_kexinit.unwrap_or_else(|| self.next());
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).unwrap();
        let public = private.compute_public_key().unwrap();
        let kem = DecapsulationKey::generate(&ML_KEM_768).unwrap();
        let hybrid = method.starts_with("mlkem");
        let mut init = Vec::new();
        if hybrid {
            let key = kem.encapsulation_key().unwrap();
            init.extend_from_slice(key.key_bytes().unwrap().as_ref());
        }
        init.extend_from_slice(public.as_ref());
        let message = Writer::message(message::KEX_ECDH_INIT).string(&init);
        self.say(&message.finish()).unwrap();
        let reply = self.next();
        let mut reader = Reader::new(&reply);
        reader.byte().unwrap();
        let (host_key, theirs) = (reader.string().unwrap(), reader.string().unwrap());
        let mut signature = Reader::new(reader.string().unwrap());
        let (ciphertext, curve) = theirs.split_at(theirs.len() - 32);
        let curve = UnparsedPublicKey::new(&X25519, curve);
        let agreed = |secret: &[u8]| Ok(secret.to_vec());
        let secret = agree_ephemeral(private, curve, Error::KeyExchange, agreed).unwrap();
        let secret = if hybrid {
            let quantum = kem.decapsulate(Ciphertext::from(ciphertext)).unwrap();
            let both = [quantum.as_ref(), &secret].concat();
            Writer::default().string(digest(&SHA256, &both)).finish()
        } else {
            assert!(ciphertext.is_empty());
            Writer::default().mpint(&secret).finish()
        };
        let hashed = Writer::default()
            .string(VERSION)
            .string(&self.server_version)
            .string(&kexinit)
            .string(&server_kexinit)
            .string(host_key)
            .string(&init)
            .string(theirs)
            .raw(&secret)
            .finish();
        let hash = digest(&SHA256, &hashed);
        let mut key = Reader::new(host_key);
        assert_eq!(key.text(), Ok("ssh-ed25519"));
        assert_eq!(signature.text(), Ok("ssh-ed25519"));
        Verifier::new(&VERIFY, key.string().unwrap())
            .verify(hash.as_ref(), signature.string().unwrap())
            .unwrap();
        assert_eq!(self.next(), [message::NEWKEYS]);
        self.say(&[message::NEWKEYS]).unwrap();
        let session = self
            .session
            .get_or_insert_with(|| hash.as_ref().to_vec())
            .clone();
        let derive = |letter: u8| {
            let hashed = [&secret, hash.as_ref(), &[letter], &session].concat();
            digest(&SHA256, &hashed).as_ref().to_vec()
        };
        let cipher =
            |nonce, key| Cipher::new(Suite::Aes128Gcm, &derive(key), &derive(nonce)).unwrap();
        self.outbound.set_cipher(cipher(b'A', b'C'));
        self.inbound.set_cipher(cipher(b'B', b'D'));
    }

    fn log_in(&mut self) {
        let service = Writer::message(message::SERVICE_REQUEST).string("ssh-userauth");
        self.say(&service.finish()).unwrap();
        assert_eq!(self.next()[0], message::SERVICE_ACCEPT);
        self.say(&user("password")).unwrap();
        assert_eq!(self.next()[0], message::USERAUTH_FAILURE);
        self.say(&user("none")).unwrap();
        assert_eq!(self.next(), [message::USERAUTH_SUCCESS]);
        assert_eq!(self.server.next_event(), Some(Event::User("me".into())));
    }
}

fn kexinit(method: &str, guess: bool) -> Vec<u8> {
    Writer::message(message::KEXINIT)
        .raw(&[0; 16])
        .string(format!("unknown,{method},kex-strict-c-v00@openssh.com"))
        .string("ssh-ed25519")
        .string("chacha20-poly1305@openssh.com,aes128-gcm@openssh.com")
        .string("aes128-gcm@openssh.com")
        .string("hmac-sha2-256")
        .string("hmac-sha2-256")
        .string("none")
        .string("none,zlib@openssh.com")
        .string("")
        .string("")
        .boolean(guess)
        .u32(0)
        .finish()
}

fn user(method: &str) -> Vec<u8> {
    Writer::message(message::USERAUTH_REQUEST)
        .string("me")
        .string("ssh-connection")
        .string(method)
        .finish()
}

fn session() -> Vec<u8> {
    Writer::message(message::CHANNEL_OPEN)
        .string("session")
        .u32(0)
        .u32(1 << 20)
        .u32(1 << 15)
        .finish()
}

#[test]
fn a_connection_and_new_keys_in_the_middle_of_it() {
    for method in ["curve25519-sha256", "mlkem768x25519-sha256"] {
        let mut client = Client::connect(method);
        client.log_in();
        client.say(&session()).unwrap();
        assert_eq!(client.next()[0], message::CHANNEL_OPEN_CONFIRMATION);
        let shell = Writer::message(message::CHANNEL_REQUEST)
            .u32(0)
            .string("shell")
            .boolean(false);
        client.say(&shell.finish()).unwrap();
        let Some(Event::Start {
            channel,
            start,
            terminal,
            ..
        }) = client.server.next_event()
        else {
            panic!("nothing was started");
        };
        assert_eq!((start, terminal), (Start::Shell, None::<Terminal>));
        assert_eq!(client.server.send(channel, Output::Data, b"before"), 6);
        client.hear();
        assert!(client.next().ends_with(b"before"));

        // What is sent during an exchange waits for its end.
        client
            .say(&kexinit("nothing-in-common", false))
            .unwrap_err();
        let mut client = Client::connect(method);
        client.log_in();
        client.say(&session()).unwrap();
        client.next();
        client.exchange_keys(method, None);
        client.say(&[session(), vec![]].concat()).unwrap();
        assert_eq!(client.next()[0], message::CHANNEL_OPEN_CONFIRMATION);
        client.say(&[message::DISCONNECT, 0]).unwrap_err();
    }
}

#[test]
fn nothing_but_the_key_exchange_comes_first() {
    for early in [
        session(),
        user("none"),
        vec![message::IGNORE],
        vec![message::NEWKEYS],
        kexinit("curve25519-sha256", false),
    ] {
        let key = HostKey::from_seed(&[3; 32]).unwrap();
        let mut server = Server::new(key);
        let mut outbound = Outbound::default();
        let mut bytes = format!("{VERSION}\r\n").into_bytes();
        let first = kexinit("curve25519-sha256", false);
        outbound.push(&first, &mut bytes).unwrap();
        outbound.push(&early, &mut bytes).unwrap();
        let error = server.receive(&bytes).unwrap_err();
        assert!(matches!(error, Error::Unexpected(_)), "{error}");
    }
}

#[test]
fn no_channel_without_a_user() {
    let mut client = Client::connect("curve25519-sha256");
    let error = client.say(&session()).unwrap_err();
    assert_eq!(error, Error::Unexpected(message::CHANNEL_OPEN));
    assert_eq!(client.next()[0], message::DISCONNECT);
}

#[test]
fn keys_that_prove_nothing_are_refused() {
    for public in [vec![0; 32], vec![1; 31], Vec::new()] {
        let key = HostKey::from_seed(&[3; 32]).unwrap();
        let mut server = Server::new(key);
        let mut outbound = Outbound::default();
        let mut bytes = format!("{VERSION}\n").into_bytes();
        let first = kexinit("curve25519-sha256", false);
        outbound.push(&first, &mut bytes).unwrap();
        let init = Writer::message(message::KEX_ECDH_INIT).string(public);
        outbound.push(&init.finish(), &mut bytes).unwrap();
        assert_eq!(server.receive(&bytes), Err(Error::KeyExchange));
    }
}

#[test]
fn a_wrong_guess_is_skipped() {
    let key = HostKey::from_seed(&[3; 32]).unwrap();
    let mut server = Server::new(key);
    let mut outbound = Outbound::default();
    let mut bytes = format!("{VERSION}\r\n").into_bytes();
    let first = kexinit("curve25519-sha256", true);
    outbound.push(&first, &mut bytes).unwrap();
    outbound
        .push(&[message::KEX_ECDH_INIT, 1, 2], &mut bytes)
        .unwrap();
    server.receive(&bytes).unwrap();
}

#[test]
fn other_protocols_than_ssh_are_refused() {
    let hello = || Server::new(HostKey::from_seed(&[3; 32]).unwrap());
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-1.5-x\n", &[b'x'; 300]] {
        assert_eq!(hello().receive(bytes), Err(Error::Version));
    }
}
