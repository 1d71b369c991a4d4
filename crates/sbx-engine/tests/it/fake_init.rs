//! A process that stands for an init, and a thread that speaks for it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use sbx_engine::state::EXEC_SOCKET;
use sbx_engine::state::socket::bind_unix;
use sbx_proto::PROTOCOL;
use sbx_proto::exec::{ListenerKind, Listeners, Redirect, Reply, Request};
use sbx_proto::frame::{Decoder, MAX_REQUEST, encode};

/// What the fake does once it has been greeted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Says that this many commands run, and ends when it is told to.
    Honest { running: u32 },
    /// Says that a command runs, and hears nothing of an end.
    Deaf,
    /// Says that nothing runs, and knows better when it is to end for that.
    Secretive,
    /// Says so, and then sends what the protocol does not allow.
    Garbage,
    /// Gives files for listeners.
    FalseListeners,
    /// Says that it is another sandbox.
    Impostor,
    /// As an honest one with a command, in this version alone.
    Speaks(u32),
}

pub(crate) struct FakeInit {
    process: Child,
    /// What the fake was asked for.
    pub(crate) requests: Receiver<Request>,
}

impl FakeInit {
    pub(crate) fn start(dir: &Path, id: &str, manner: Manner) -> Self {
        let process = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .expect("sleep is installed");
        let listener = bind_unix(dir, EXEC_SOCKET).unwrap();
        let (sender, requests) = channel();
        let (id, pid) = (id.to_owned(), process.id());
        std::thread::spawn(move || serve(&listener, &id, pid, manner, &sender));
        Self { process, requests }
    }

    pub(crate) fn lives(&mut self) -> bool {
        // An error: it has been waited for, by the engine.
        self.process.try_wait().is_ok_and(|ended| ended.is_none())
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }
}

impl Drop for FakeInit {
    fn drop(&mut self) {
        // It may have been killed, and waited for, by the engine.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn serve(listener: &UnixListener, id: &str, pid: u32, manner: Manner, seen: &Sender<Request>) {
    while let Ok((stream, _)) = listener.accept() {
        talk(stream, id, pid, manner, seen);
    }
}

fn talk(mut stream: UnixStream, id: &str, pid: u32, manner: Manner, seen: &Sender<Request>) {
    let sandbox = match manner {
        Manner::Honest { .. }
        | Manner::Deaf
        | Manner::Secretive
        | Manner::Garbage
        | Manner::FalseListeners
        | Manner::Speaks(_) => id.to_owned(),
        Manner::Impostor => "another".to_owned(),
    };
    let mut protocol = PROTOCOL;
    let mut refused = false;
    if let Manner::Speaks(version) = manner {
        refused = greeting(&mut stream) != Some(version);
        protocol = version;
    }
    let mut say = |reply: &Reply| drop(stream.write_all(&encode(reply).unwrap()));
    say(&Reply::Hello { protocol, sandbox });
    if refused {
        return;
    }
    match manner {
        Manner::Honest { running } => say(&Reply::Commands { running }),
        Manner::Secretive => say(&Reply::Commands { running: 0 }),
        Manner::Deaf | Manner::Garbage | Manner::FalseListeners | Manner::Speaks(_) => {
            say(&Reply::Commands { running: 1 })
        }
        Manner::Impostor => {}
    }
    let mut decoder = Decoder::new(MAX_REQUEST);
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        decoder.push(buffer.get(..count).unwrap());
        while let Some(request) = decoder.take::<Request>().unwrap() {
            if request == Request::Listeners {
                give_listeners(&stream, manner);
                if manner == Manner::Garbage {
                    drop(stream.write_all(&encode(&Reply::Started { id: 7 }).unwrap()));
                }
                continue;
            }
            let Request::Shutdown { if_idle, .. } = request else {
                drop(seen.send(request));
                continue;
            };
            if manner == Manner::Deaf {
                drop(seen.send(request));
                continue;
            }
            let busy = match manner {
                Manner::Honest { running } => running > 0,
                Manner::Deaf | Manner::Secretive | Manner::Speaks(_) => true,
                Manner::Garbage | Manner::FalseListeners | Manner::Impostor => false,
            };
            if if_idle && busy {
                drop(stream.write_all(&encode(&Reply::Busy).unwrap()));
                drop(seen.send(request));
            } else {
                drop(stream.write_all(&encode(&Reply::HandedOver).unwrap()));
                let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                drop(seen.send(request));
                return;
            }
        }
    }
}

/// The version that the client greets in.
fn greeting(stream: &mut UnixStream) -> Option<u32> {
    let mut decoder = Decoder::new(MAX_REQUEST);
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        decoder.push(buffer.get(..count).unwrap());
        if let Some(Request::Hello { protocol, .. }) = decoder.take().unwrap() {
            return Some(protocol);
        }
    }
    None
}

fn give_listeners(stream: &UnixStream, manner: Manner) {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let reply = Reply::Listeners(Listeners {
        redirect: Redirect::Nft,
        sockets: vec![ListenerKind::Tcp4, ListenerKind::DnsUdp4],
    });
    let file = File::open("/dev/null").unwrap();
    let fds = match manner {
        Manner::FalseListeners => [file.as_fd(), udp.as_fd()],
        Manner::Honest { .. }
        | Manner::Deaf
        | Manner::Secretive
        | Manner::Garbage
        | Manner::Speaks(_)
        | Manner::Impostor => [tcp.as_fd(), udp.as_fd()],
    };
    drop(sbx_sys::fdpass::send_with_fds(
        stream,
        &encode(&reply).unwrap(),
        &fds,
    ));
}
