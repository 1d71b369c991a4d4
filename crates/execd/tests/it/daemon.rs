//! A daemon on a port of its own, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use execd_proto::decode::Decoder;
use execd_proto::event::{Ending, Event, Kind};

const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Daemon {
    process: Child,
    pub address: String,
    pub directory: tempfile::TempDir,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Daemon {
    pub fn start() -> Self {
        Self::with_token(None)
    }

    pub fn with_token(token: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_execd"));
        command
            .args(["--host", "127.0.0.1", "--port", "0"])
            .env("TMPDIR", directory.path())
            .env("EXECD_ENVS", directory.path().join("envs"))
            .env_remove("EXECD_ACCESS_TOKEN")
            .stdout(Stdio::piped());
        if let Some(token) = token {
            command.env("EXECD_ACCESS_TOKEN", token);
        }
        let mut process = command.spawn().unwrap();
        let mut address = String::new();
        let stdout = process.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut address).unwrap();
        Self {
            process,
            address: address.trim().to_owned(),
            directory,
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream
    }

    /// Sends a request and reads its answer to the end of the connection.
    pub fn request(&self, method: &str, target: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        self.send(&mut stream, method, target, headers, body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_off(end + 4);
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunk(&body) } else { body };
        Answer { status, head, body }
    }

    pub fn send(
        &self,
        stream: &mut TcpStream,
        method: &str,
        target: &str,
        headers: &str,
        body: &[u8],
    ) {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
    }

    pub fn get(&self, target: &str) -> Answer {
        self.request("GET", target, "", b"")
    }

    pub fn post(&self, target: &str, body: &serde_json::Value) -> Answer {
        let body = serde_json::to_vec(body).unwrap();
        self.request("POST", target, "content-type: application/json\r\n", &body)
    }

    /// The events of a command, which must be accepted.
    #[track_caller]
    pub fn events(&self, target: &str, body: &serde_json::Value) -> Vec<Event> {
        let answer = self.post(target, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut decoder = Decoder::default();
        let mut events = decoder.push(&answer.body).unwrap();
        events.extend(decoder.finish().unwrap());
        events
    }

    /// Stdout, stderr and the ending of a command.
    #[track_caller]
    pub fn run(&self, command: &str) -> (Vec<String>, Vec<String>, Ending) {
        let events = self.events("/command", &serde_json::json!({ "command": command }));
        summary(&events)
    }
}

#[track_caller]
pub fn summary(events: &[Event]) -> (Vec<String>, Vec<String>, Ending) {
    let texts = |kind: Kind| {
        let events = events.iter().filter(|event| event.kind == kind);
        events.map(|event| event.text.clone()).collect()
    };
    let ending = events.last().unwrap().ending().expect("a terminal event");
    (texts(Kind::Stdout), texts(Kind::Stderr), ending)
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        plain.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
    plain
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already; its status is of no interest.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
