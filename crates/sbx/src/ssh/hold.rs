//! What keeps a sandbox up for as long as an SSH connection lasts, also one with forwards only: a command of init's own
//! program that does nothing. To auto-stop and `rm` it is an open session as any other.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sbx_engine::state::socket::is_unserved;
use sbx_proto::OsBytes;
use sbx_proto::exec::{Exec, FailKind, FramedStderr, FramedStdin, Request, Stdio};
use sbx_proto::tool;

use crate::attach::{self, Broken};
use crate::client::Client;
use crate::context::Context;
use crate::env::Transport;
use crate::failure::{Failure, Kind, engine};
use crate::init::{self, Event, Init, Terminal, harmless};

#[derive(Debug)]
pub(super) struct Hold {
    init: Init,
    /// Of the sandbox's init, relative to the state directory.
    pub(super) socket: String,
}

impl Hold {
    /// Starts the sandbox when it is not running.
    pub(super) fn take(
        context: &Context,
        client: &Client<'_>,
        name: &str,
    ) -> Result<Self, Failure> {
        let request = Request::Exec(Box::new(Exec {
            argv: vec![OsBytes::from(tool::PROGRAM), OsBytes::from(tool::HOLD)],
            own_program: true,
            env: Vec::new(),
            user: None,
            workdir: None,
            stdio: Stdio::Framed {
                stdin: FramedStdin::Stream,
                stderr: FramedStderr::Stdout,
            },
        }));
        attach::up(context, client, name, |socket| {
            let mut init = open(client, socket, &request, Terminal::None)?;
            wait_for_start(&mut init)?;
            Ok(Self {
                init,
                socket: socket.to_owned(),
            })
        })
    }

    /// Whether the sandbox still runs, by what has arrived.
    pub(super) fn is_up(&mut self) -> bool {
        match self.init.receive() {
            Ok(true) => loop {
                match self.init.next() {
                    Ok(None) => return true,
                    Ok(Some(Event::Exited { .. } | Event::Failed { .. })) | Err(_) => return false,
                    Ok(Some(_)) => {}
                }
            },
            Ok(false) | Err(_) => false,
        }
    }
}

impl AsFd for Hold {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.init.as_fd()
    }
}

/// A connection to init that has been sent the request.
pub(super) fn open(
    client: &Client<'_>,
    socket: &str,
    request: &Request,
    terminal: Terminal,
) -> Result<Init, Broken> {
    let opening = init::opening(request).map_err(engine("cannot write the request"))?;
    let init = match Init::connect(client.state(), socket, terminal, Transport::Frames) {
        Ok(init) => init,
        Err(error) if is_unserved(&error) => return Err(Broken::BeforeStart),
        Err(error) => return Err(engine("cannot reach the sandbox's init")(error).into()),
    };
    match init.open(&opening, &[]) {
        Ok(()) => Ok(init),
        Err(error) if attach::gone(&error) => Err(Broken::BeforeStart),
        Err(error) => Err(engine("cannot ask the sandbox's init")(error).into()),
    }
}

fn wait_for_start(init: &mut Init) -> Result<(), Broken> {
    loop {
        let mut polled = [PollFd::new(&*init, PollFlags::IN)];
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(engine("cannot wait for the sandbox")(error.into()).into()),
        }
        let open = init.receive()?;
        while let Some(event) = init.next()? {
            match event {
                Event::Started { .. } => return Ok(()),
                Event::Failed {
                    kind: FailKind::Stopping,
                    ..
                } => return Err(Broken::BeforeStart),
                Event::Failed { message, .. } => {
                    return Err(Failure::new(Kind::Engine, harmless(&message)).into());
                }
                _ => {}
            }
        }
        if !open {
            return Err(Broken::BeforeStart);
        }
    }
}
