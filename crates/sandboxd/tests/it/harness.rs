//! A daemon in this process, and the least HTTP that talks to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use sandboxd::{ServeConfig, ServeError, VmHost, serve};
use sbx_api::{Caller, ErrorBody, VERSION, VERSION_HEADER};
use sbx_engine::StateDir;
use sbx_engine::state::SOCKET;
use sbx_engine::state::socket::connect_unix;

pub(crate) struct Daemon {
    pub(crate) state: StateDir,
    pub(crate) home: tempfile::TempDir,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::locate(home.path(), None).unwrap();
        let (ready, is_ready) = mpsc::channel();
        let served = state.clone();
        let thread = std::thread::spawn(move || {
            serve(ServeConfig {
                vm: vm_host(&served),
                state: served,
                path_dirs: Vec::new(),
                overrides: std::collections::BTreeMap::new(),
                log_level: None,
                default_proxy_config: "/nowhere".into(),
                makes_proxy_config: false,
                companions: None,
                on_ready: Box::new(move || ready.send(()).unwrap()),
            })
        });
        is_ready.recv().expect("the daemon did not start");
        Self {
            state,
            home,
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        connect_unix(self.state.root(), SOCKET).unwrap()
    }

    /// With our own version.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let version = format!("{VERSION_HEADER}: {VERSION}\r\n");
        self.call_with(method, path, &version, body)
    }

    pub(crate) fn call_with(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String) {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: sbx\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A body that is too large is refused before all of it is read.
        drop(stream.write_all(body.as_bytes()));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("no answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// The status and the error of a call that is refused.
    pub(crate) fn refused(&self, method: &str, path: &str, body: &str) -> (u16, ErrorBody) {
        let (status, body) = self.call(method, path, body);
        (status, serde_json::from_str(&body).expect(&body))
    }

    pub(crate) fn project(&self) -> String {
        let path = self.home.path().join("project");
        std::fs::create_dir_all(&path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn root(&self) -> &Path {
        self.state.root()
    }

    pub(crate) fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            let (status, _) =
                self.call("POST", "/v1/daemon/shutdown", r#"{"stop_sandboxes":true}"#);
            assert_eq!(status, 204);
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

pub(crate) fn vm_host(state: &StateDir) -> VmHost {
    VmHost {
        state: state.clone(),
        caller: Caller::default(),
        asset_dir: "/nowhere".into(),
    }
}
