//! Published ports of the sandboxes: for each one that has any, a thread that serves them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sbx_api::{PortMapping, Protocol, Transport};
use sbx_engine::SandboxName;
use sbx_engine::error::chain;
use sbx_engine::machine::ingress::{HostSocket, Ingress, host_end};
use sbx_engine::machine::inside::Inside;
use sbx_proto::exec::SocketKind;
use sbx_proxy::limits::{self, ConnectionBudget};
use sbx_proxy::published::{self, Published, Target};

type Ports = Published<(Transport, SocketAddr)>;

/// The published ports of all running sandboxes.
#[derive(Debug)]
pub(crate) struct PublishedPorts {
    max_connections: usize,
    budget: Arc<ConnectionBudget>,
    published: Mutex<BTreeMap<SandboxName, Arc<Ports>>>,
}

/// Sockets of a sandbox's network, for which its init is asked.
struct SandboxSockets(Arc<Inside>);

impl published::Inside for SandboxSockets {
    fn sockets(&self, kind: SocketKind, count: u8) -> io::Result<Vec<OwnedFd>> {
        let asked = self.0.sockets(kind, count);
        asked.map_err(|error| io::Error::other(chain(&error)))
    }
}

impl PublishedPorts {
    /// `descriptors` is how many this process may have.
    pub(crate) fn new(descriptors: u64, budget: Arc<ConnectionBudget>) -> Self {
        Self {
            max_connections: limits::published(descriptors),
            budget,
            published: Mutex::default(),
        }
    }

    /// Nothing comes in any more.
    pub(crate) fn close(&self) {
        let all = std::mem::take(&mut *self.published());
        // Dropped without the lock: it waits for their threads.
        drop(all);
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<SandboxName, Arc<Ports>>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, sandbox: &SandboxName, inside: Arc<Inside>) -> io::Result<Arc<Ports>> {
        let mut all = self.published();
        if let Some(ports) = all.get(sandbox) {
            return Ok(Arc::clone(ports));
        }
        let ports = Published::start(
            sandbox.as_str(),
            Arc::new(SandboxSockets(inside)),
            self.max_connections,
            Arc::clone(&self.budget),
        )?;
        let ports = Arc::new(ports);
        all.insert(sandbox.clone(), Arc::clone(&ports));
        Ok(ports)
    }
}

impl Ingress for PublishedPorts {
    fn serve(
        &self,
        sandbox: &SandboxName,
        inside: Arc<Inside>,
        ports: Vec<(PortMapping, HostSocket)>,
    ) -> Result<(), String> {
        let served = self.of(sandbox, inside).map_err(|error| chain(&error))?;
        for (mapping, socket) in ports {
            let socket = match socket {
                HostSocket::Tcp(socket) => published::HostSocket::Tcp(socket),
                HostSocket::Udp(socket) => published::HostSocket::Udp(socket),
            };
            let target = Target {
                port: mapping.sandbox_port,
                prefer_v6: matches!(mapping.protocol, Protocol::Tcp6 | Protocol::Udp6),
            };
            served.open(host_end(&mapping), socket, target);
        }
        Ok(())
    }

    fn close(&self, sandbox: &SandboxName, ports: &[PortMapping]) {
        let served = self.published().get(sandbox).cloned();
        if let Some(served) = served {
            served.close(ports.iter().map(host_end).collect());
        }
    }

    fn detach(&self, sandbox: &SandboxName) {
        let served = self.published().remove(sandbox);
        drop(served);
    }
}
