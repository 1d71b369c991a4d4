use std::net::TcpStream;

use execd_proto::pty::{Control, Notice, Output, TAKEN_OVER, encode_input};
use serde_json::json;
use tungstenite::{Message, WebSocket};

use crate::daemon::Daemon;

struct Client {
    socket: WebSocket<TcpStream>,
    /// Stdout that [`Client::wait_for`] has received and not passed yet.
    seen: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Received {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Replay(u64, Vec<u8>),
    Notice(Notice),
    Closed(u16),
}

impl Client {
    fn new(socket: WebSocket<TcpStream>) -> Self {
        let seen = String::new();
        Self { socket, seen }
    }

    fn connect(daemon: &Daemon, id: &str, query: &str) -> Self {
        Self::try_connect(daemon, id, query).unwrap()
    }

    fn try_connect(daemon: &Daemon, id: &str, query: &str) -> Result<Self, String> {
        let url = format!("ws://{}/pty/{id}/ws{query}", daemon.address);
        tungstenite::client(url, daemon.connect())
            .map(|(socket, _)| Self::new(socket))
            .map_err(|error| error.to_string())
    }

    fn receive(&mut self) -> Received {
        loop {
            match self.socket.read().unwrap() {
                Message::Binary(bytes) => {
                    return match Output::decode(&bytes).unwrap() {
                        Output::Stdout(bytes) => Received::Stdout(bytes.to_vec()),
                        Output::Stderr(bytes) => Received::Stderr(bytes.to_vec()),
                        Output::Replay { offset, bytes } => {
                            Received::Replay(offset, bytes.to_vec())
                        }
                    };
                }
                Message::Text(text) => {
                    return Received::Notice(serde_json::from_str(&text).unwrap());
                }
                Message::Close(frame) => return Received::Closed(frame.unwrap().code.into()),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    fn input(&mut self, bytes: &[u8]) {
        self.socket
            .send(Message::Binary(encode_input(bytes).into()))
            .unwrap();
    }

    fn control(&mut self, control: &Control) {
        let text = serde_json::to_string(control).unwrap();
        self.socket.send(Message::Text(text.into())).unwrap();
    }

    /// Stdout, stderr and the exit code.
    fn read_to_end(&mut self) -> (Vec<u8>, Vec<u8>, i32) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.receive() {
                Received::Stdout(bytes) | Received::Replay(_, bytes) => stdout.extend(bytes),
                Received::Stderr(bytes) => stderr.extend(bytes),
                Received::Notice(Notice::Exit { exit_code }) => return (stdout, stderr, exit_code),
                Received::Notice(_) => {}
                Received::Closed(code) => unreachable!("closed with {code}"),
            }
        }
    }

    /// Reads until stdout contains `text`, and passes it. What follows it in the same message is kept.
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            if let Received::Stdout(bytes) | Received::Replay(_, bytes) = self.receive() {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}

fn session(daemon: &Daemon, body: &serde_json::Value) -> String {
    let created = daemon.post("/pty", body);
    assert_eq!(created.status, 201);
    created.json()["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn pipes_are_byte_exact_and_keep_streams_apart() {
    let daemon = Daemon::start();
    let input: Vec<u8> = (0..2_500_000_u32).flat_map(u32::to_le_bytes).collect();
    let id = session(&daemon, &json!({"command": "cat; echo bad >&2; exit 7"}));
    let mut client = Client::connect(&daemon, &id, "?pty=0");
    let mut sender = Client::new(WebSocket::from_raw_socket(
        client.socket.get_ref().try_clone().unwrap(),
        tungstenite::protocol::Role::Client,
        None,
    ));
    let (stdout, stderr, code) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for chunk in input.chunks(50_000) {
                sender.input(chunk);
            }
            sender.input(b"");
        });
        client.read_to_end()
    });
    assert!(stdout == input, "{} of {} bytes", stdout.len(), input.len());
    assert_eq!((stderr.as_slice(), code), (&b"bad\n"[..], 7));
}

#[test]
fn a_websocket_passes_the_proxy() {
    let (daemon, behind) = (Daemon::start(), Daemon::start());
    let id = session(&behind, &json!({"command": "read x; echo got $x; exit 4"}));
    let port = behind.address.rsplit(':').next().unwrap();
    let url = format!("ws://{}/proxy/{port}/pty/{id}/ws?pty=0", daemon.address);
    let (socket, _) = tungstenite::client(url, daemon.connect()).unwrap();
    let mut client = Client::new(socket);
    client.input(b"line\n");
    let ended = client.read_to_end();
    assert_eq!(ended, (b"got line\n".to_vec(), Vec::new(), 4));
    assert_eq!(client.receive(), Received::Closed(1000));
}

#[test]
fn terminals_have_a_size_and_signals() {
    let daemon = Daemon::start();
    let id = session(&daemon, &json!({"cwd": "/usr"}));
    let mut client = Client::connect(&daemon, &id, "");
    client.control(&Control::Resize {
        cols: 123,
        rows: 45,
    });
    client.input(b"stty size; tty; pwd\n");
    client.wait_for("45 123");
    client.wait_for("/dev/pts/");
    // Ctrl-C goes to the foreground process group, which is the command's once it prints.
    client.input(b"sh -c 'echo ready$((1+1)); exec sleep 1000'\n");
    client.wait_for("ready2");
    client.input(b"\x03");
    client.input(b"exit 9\n");
    assert_eq!(client.read_to_end().2, 9);
    assert_eq!(client.receive(), Received::Closed(1000));
    assert_eq!(daemon.get(&format!("/pty/{id}")).json()["running"], false);
}

#[test]
fn one_client_at_a_time_and_replay() {
    let daemon = Daemon::start();
    let id = session(&daemon, &json!({"command": "echo first; read x; echo $x"}));
    let mut first = Client::connect(&daemon, &id, "?pty=0");
    first.wait_for("first");
    let refused = Client::try_connect(&daemon, &id, "?pty=0").err().unwrap();
    assert!(refused.contains("409"), "{refused}");
    let mut second = Client::connect(&daemon, &id, "?pty=0&since=2&takeover=1");
    assert_eq!(first.receive(), Received::Closed(TAKEN_OVER));
    assert!(matches!(
        second.receive(),
        Received::Notice(Notice::Connected { .. })
    ));
    assert_eq!(second.receive(), Received::Replay(2, b"rst\n".to_vec()));
    second.input(b"second\n");
    assert_eq!(second.read_to_end(), (b"second\n".to_vec(), Vec::new(), 0));
}

#[test]
fn signals_and_deletion_end_a_session() {
    let daemon = Daemon::start();
    let id = session(&daemon, &json!({"command": "echo up; sleep 1000"}));
    let mut client = Client::connect(&daemon, &id, "?pty=0");
    client.wait_for("up");
    client.control(&Control::Signal {
        signal: "SIGTERM".into(),
    });
    assert_eq!(client.read_to_end().2, 143);
    let id = session(&daemon, &json!({"command": "echo up; sleep 1000"}));
    let mut client = Client::connect(&daemon, &id, "");
    client.wait_for("up");
    assert_eq!(
        daemon
            .request("DELETE", &format!("/pty/{id}"), "", b"")
            .status,
        200
    );
    assert_ne!(client.read_to_end().2, 0);
    assert_eq!(daemon.get(&format!("/pty/{id}")).status, 404);
}
