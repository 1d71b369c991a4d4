//! Published ports: sockets on the host, and the servers inside that they lead to.

use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use sbx_api::{PortMapping, Transport};

use crate::machine::inside::Inside;
use crate::sandbox::name::SandboxName;

/// A bound socket on the host.
#[derive(Debug)]
pub enum HostSocket {
    /// Listens.
    Tcp(TcpListener),
    Udp(UdpSocket),
}

/// Serves the published ports of all sandboxes.
pub trait Ingress: Debug + Send + Sync {
    /// From now on what comes to the sockets goes to the sandbox's ports, in addition to those that are served already.
    fn serve(
        &self,
        sandbox: &SandboxName,
        inside: Arc<Inside>,
        ports: Vec<(PortMapping, HostSocket)>,
    ) -> Result<(), String>;

    /// The sockets of these are closed when this returns, and their connections cut.
    fn close(&self, sandbox: &SandboxName, ports: &[PortMapping]);

    /// The sandbox is gone: all of its ports are closed when this returns.
    fn detach(&self, sandbox: &SandboxName);
}

/// Nothing is accepted: connections wait for ever.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIngress;

impl Ingress for NoIngress {
    fn serve(
        &self,
        _: &SandboxName,
        _: Arc<Inside>,
        _: Vec<(PortMapping, HostSocket)>,
    ) -> Result<(), String> {
        Ok(())
    }

    fn close(&self, _: &SandboxName, _: &[PortMapping]) {}

    fn detach(&self, _: &SandboxName) {}
}

/// The host's end of a mapping, which no other mapping on this machine can have.
pub fn host_end(mapping: &PortMapping) -> (Transport, SocketAddr) {
    let address = SocketAddr::new(mapping.host_ip, mapping.host_port);
    (mapping.protocol.transport(), address)
}
