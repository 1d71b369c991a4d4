//! Published ports of a sandbox: bound on the host before it starts, served while it runs, bound again by the next daemon.
//!
//! A socket is bound here, where an error reaches the caller; the daemon's [`Ingress`](crate::machine::ingress::Ingress)
//! serves it. The record keeps what is published, also while the sandbox does not run.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use sbx_api::{PortChange, PortChanges, PortMapping, Transport};
use sbx_proto::shell::quoted;
use thiserror::Error;

use super::entry::Entry;
use crate::engine::{Engine, Shared};
use crate::error::{EngineError, chain};
use crate::machine::ingress::HostSocket;
use crate::machine::inside::Inside;
use crate::sandbox::name::SandboxName;
use crate::sandbox::ports::{
    PortRecord, PortSpecError, PublishSpec, UnpublishSpec, publish_text, together,
};
use crate::threads::spawn;

/// The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// How often another free port is tried where two addresses need the same one.
const EPHEMERAL_TRIES: usize = 16;
/// Ports that an earlier daemon had and that another program has by now: when they are tried again.
const RETRY_DELAYS: &[u64] = &[1, 1, 2, 5, 10, 30, 60, 300, 900, 3600];

#[derive(Debug, Error)]
pub enum PortError {
    #[error(transparent)]
    Spec(#[from] PortSpecError),
    #[error("port {address} is in use by another program on this machine")]
    InUse {
        address: SocketAddr,
        hint: Option<String>,
    },
    #[error("port {address} is published by sandbox `{sandbox}`")]
    Taken {
        address: SocketAddr,
        sandbox: SandboxName,
    },
    #[error(
        "port {0} is privileged: this user may not listen below the limit of `net.ipv4.ip_unprivileged_port_start`"
    )]
    Privileged(SocketAddr),
    #[error("{0} is not an address of this machine")]
    NotHere(IpAddr),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("sandbox `{sandbox}` has no published port that matches {spec:?}")]
    NotPublished { sandbox: SandboxName, spec: String },
    #[error("sandbox `{0}` stopped")]
    Stopped(SandboxName),
    #[error("cannot serve the port: {0}")]
    Serve(String),
}

/// A record and its socket.
type Bound = (PortRecord, HostSocket);

impl PortError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Spec(_) => Some(PortSpecError::hint().to_owned()),
            Self::InUse { hint, .. } => hint.clone(),
            Self::Taken { address, sandbox } => {
                let port = address.port();
                Some(format!(
                    "sbx ports {sandbox} --unpublish {port}, or choose another port"
                ))
            }
            Self::Privileged(address) => {
                let port = u32::from(address.port()) + 8000;
                Some(format!(
                    "use a port from 1024 on, such as {port}; or have root set `net.ipv4.ip_unprivileged_port_start`"
                ))
            }
            Self::NotPublished { sandbox, .. } => Some(format!("sbx ports {sandbox}")),
            Self::Stopped(sandbox) => Some(format!("sbx run --name {sandbox}")),
            Self::NotHere(_) | Self::Listen { .. } | Self::Serve(_) => None,
        }
    }
}

impl Engine {
    /// Unpublishes, then publishes; when anything fails, nothing has changed.
    pub fn change_ports(
        &self,
        name: &str,
        change: &PortChange,
    ) -> Result<PortChanges, EngineError> {
        let publish = parse_all(&change.publish, PublishSpec::parse)?;
        let unpublish = parse_all(&change.unpublish, UnpublishSpec::parse)?;
        let shared = &self.shared;
        let entry = shared.entry(name)?;
        let _operation = entry.operate();
        shared.still_there(&entry)?;
        let starts = !publish.is_empty() && !entry.use_now(shared.settings().auto_stop);
        let mut kept = entry.record().ports;
        let mut gone: Vec<PortRecord> = Vec::new();
        for (spec, text) in unpublish.iter().zip(&change.unpublish) {
            let found = spec.select(&kept);
            if found.is_empty() {
                let (sandbox, spec) = (entry.name.clone(), text.clone());
                return Err(PortError::NotPublished { sandbox, spec }.into());
            }
            kept.retain(|port| !found.contains(port));
            gone.extend(found);
        }
        if starts {
            return shared.start_with_ports(&entry, kept, &gone, &publish);
        }
        let bound = shared.bind_new(&entry, &publish, &gone)?;
        shared.apply(&entry, kept, &gone, bound)
    }
}

impl Shared {
    /// Starts a stopped sandbox with other ports than it had: one that is taken by now must not keep it from starting.
    fn start_with_ports(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        kept: Vec<PortRecord>,
        gone: &[PortRecord],
        specs: &[PublishSpec],
    ) -> Result<PortChanges, EngineError> {
        self.make_startable(entry)?;
        let before = entry.record().ports;
        let new = specs.iter().flat_map(PublishSpec::records);
        entry.state().record.ports = kept.iter().cloned().chain(new).collect();
        if let Err(error) = self.boot(entry, None) {
            if let Err(error) = entry.update(|state| state.record.ports = before) {
                tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
            }
            return Err(error);
        }
        let after = entry.record().ports;
        let mut known = kept;
        let is_new = |port: &&PortRecord| match known.iter().position(|it| it.continues_as(port)) {
            Some(place) => {
                known.remove(place);
                false
            }
            None => true,
        };
        Ok(PortChanges {
            published: after
                .iter()
                .filter(is_new)
                .map(PortRecord::mapping)
                .collect(),
            unpublished: gone.iter().map(PortRecord::mapping).collect(),
            ports: after.iter().map(PortRecord::mapping).collect(),
        })
    }

    /// Says, where a stored port is taken, how the sandbox is started without it.
    pub(crate) fn with_port_hint(entry: &Entry, error: EngineError) -> EngineError {
        let EngineError::Port(PortError::InUse { address, .. }) = error else {
            return error;
        };
        let ports = mappings(&entry.record().ports);
        let group = together(&ports).find(|group| group.iter().any(|port| port.host() == address));
        let hint = group.map(|group| {
            let taken = group.iter().map(|port| {
                let text = format!("{}:{}/{}", port.host(), port.sandbox_port, port.protocol);
                format!("--unpublish {}", quoted(&text))
            });
            let taken = taken.collect::<Vec<_>>().join(" ");
            let free = quoted(&publish_text(group, None));
            format!("sbx ports {} {taken} --publish {free}", entry.name)
        });
        PortError::InUse { address, hint }.into()
    }

    /// Sockets for what is to be published in addition. What is unpublished by the same request may be published again,
    /// elsewhere.
    fn bind_new(
        &self,
        entry: &Entry,
        specs: &[PublishSpec],
        gone: &[PortRecord],
    ) -> Result<Vec<Bound>, EngineError> {
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        if entry.state().live.is_none() {
            return Err(PortError::Stopped(entry.name.clone()).into());
        }
        let mappings: Vec<_> = gone.iter().map(PortRecord::mapping).collect();
        self.config.ingress.close(&entry.name, &mappings);
        let bound = specs
            .iter()
            .map(|spec| self.bind_together(&spec.records()))
            .collect::<Result<Vec<_>, _>>();
        match bound {
            Ok(bound) => Ok(bound.into_iter().flatten().collect()),
            Err(error) => {
                self.restore_some(entry, gone.to_vec());
                Err(error.into())
            }
        }
    }

    fn apply(
        &self,
        entry: &Entry,
        kept: Vec<PortRecord>,
        gone: &[PortRecord],
        bound: Vec<Bound>,
    ) -> Result<PortChanges, EngineError> {
        let published: Vec<_> = bound.iter().map(|(port, _)| port.mapping()).collect();
        let unpublished: Vec<_> = gone.iter().map(PortRecord::mapping).collect();
        let before = entry.record().ports;
        let mut after = kept;
        after.extend(bound.iter().map(|(port, _)| port.clone()));
        let ports = after.iter().map(PortRecord::mapping).collect();
        if let Err(error) = entry.update(|state| state.record.ports = after) {
            // What is not on the disk is not published: the caller is told that nothing has changed.
            entry.state().record.ports = before;
            if !bound.is_empty() {
                self.restore_some(entry, gone.to_vec());
            }
            return Err(error.into());
        }
        self.config.ingress.close(&entry.name, &unpublished);
        if let Err(error) = self.serve_ports(entry, bound) {
            // What was published before is what the next start publishes.
            if let Err(error) = entry.update(|state| state.record.ports = before) {
                tracing::error!(sandbox = %entry.name, error = chain(&error), "cannot write the record");
            }
            return Err(error);
        }
        Ok(PortChanges {
            published,
            unpublished,
            ports,
        })
    }

    /// Sockets for all published ports of a sandbox that is about to start; its record gets the ports that they have.
    pub(crate) fn bind_ports(&self, entry: &Entry) -> Result<Vec<Bound>, EngineError> {
        let wanted = entry.record().ports;
        let mut bound = Vec::new();
        let mut rest = wanted.as_slice();
        while let Some(first) = rest.first() {
            let together = rest
                .iter()
                .take_while(|port| is_with(first, port))
                .count()
                .max(1);
            let (group, others) = rest.split_at_checked(together).unwrap_or((rest, &[]));
            bound.extend(self.bind_together(group)?);
            rest = others;
        }
        Ok(bound)
    }

    /// For those that are bound, after the sandbox's network is served.
    pub(crate) fn serve_ports(&self, entry: &Entry, bound: Vec<Bound>) -> Result<(), EngineError> {
        if bound.is_empty() {
            return Ok(());
        }
        let inside = Arc::new(Inside::new(entry.dir.path(), &entry.record().id));
        let ports = bound
            .into_iter()
            .map(|(port, socket)| (port.mapping(), socket));
        let served = self
            .config
            .ingress
            .serve(&entry.name, inside, ports.collect());
        served.map_err(|reason| PortError::Serve(reason).into())
    }

    /// Publishes again what an earlier daemon had published. What another program has by now is tried again later.
    pub(crate) fn restore_ports(self: &Arc<Self>, entry: &Arc<Entry>) {
        let left = self.restore_some(entry, entry.record().ports);
        if left.is_empty() {
            return;
        }
        let (shared, entry) = (Arc::clone(self), Arc::clone(entry));
        let id = entry.record().init;
        spawn("ports", move || {
            let mut left = left;
            for seconds in RETRY_DELAYS {
                std::thread::sleep(Duration::from_secs(*seconds));
                let _operation = entry.operate();
                let record = entry.record();
                // Another machine runs by now, which has its ports, or none does.
                if entry.state().live.is_none() || record.init != id {
                    return;
                }
                left.retain(|port| record.ports.contains(port));
                left = shared.restore_some(&entry, left);
                if left.is_empty() {
                    return;
                }
            }
        });
    }

    /// Returns those that cannot be had now.
    fn restore_some(&self, entry: &Entry, ports: Vec<PortRecord>) -> Vec<PortRecord> {
        let mut left = Vec::new();
        for port in ports {
            // The same port as before: its users know that one.
            let bound = bind_at(&port, port.host_port);
            let served = bound
                .map_err(EngineError::from)
                .and_then(|socket| self.serve_ports(entry, vec![(port.clone(), socket)]));
            if let Err(error) = served
                && !port.optional
            {
                let error = chain(&error);
                tracing::warn!(sandbox = %entry.name, port = %port.mapping(), error, "cannot publish again yet");
                left.push(port);
            }
        }
        left
    }

    /// All addresses of one mapping, which have the same port.
    fn bind_together(&self, group: &[PortRecord]) -> Result<Vec<Bound>, PortError> {
        let ephemeral = group.iter().any(|port| port.ephemeral);
        let mut last = None;
        for attempt in 0..EPHEMERAL_TRIES {
            // At first the port that it had before, which may be known to its users.
            let had = group.first().map_or(0, |port| port.host_port);
            let port = if ephemeral && attempt > 0 { 0 } else { had };
            match bind_group(group, port) {
                Ok(bound) => return Ok(bound),
                Err(PortError::InUse { address, .. }) if ephemeral => last = Some(address),
                Err(PortError::InUse { address, .. }) => return Err(self.owner_of(address, group)),
                Err(error) => return Err(error),
            }
        }
        let none = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0);
        Err(PortError::InUse {
            address: last.unwrap_or(none),
            hint: None,
        })
    }

    fn owner_of(&self, address: SocketAddr, group: &[PortRecord]) -> PortError {
        let owner = self.entries().into_iter().find(|entry| {
            let state = entry.state();
            let ports = state.record.ports.iter();
            state.live.is_some() && ports.clone().any(|port| port.mapping().host() == address)
        });
        match owner {
            Some(owner) => PortError::Taken {
                address,
                sandbox: owner.name.clone(),
            },
            None => {
                let group: Vec<_> = group.iter().map(PortRecord::mapping).collect();
                let free = publish_text(&group, None);
                let hint = Some(format!(
                    "choose another port, or publish {free} for one that is free"
                ));
                PortError::InUse { address, hint }
            }
        }
    }
}

/// Whether both come from the same `tcp` or `udp`, so that they share a port.
fn is_with(first: &PortRecord, port: &PortRecord) -> bool {
    let same = |port: &PortRecord| {
        (
            port.host_port,
            port.sandbox_port,
            port.protocol,
            port.ephemeral,
        )
    };
    first == port || (port.optional && same(first) == same(port))
}

fn parse_all<T>(
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, PortSpecError>,
) -> Result<Vec<T>, PortError> {
    let parsed = texts.iter().map(|text| parse(text));
    Ok(parsed.collect::<Result<_, _>>()?)
}

/// What a new sandbox is to publish.
pub(crate) fn parse_publish(texts: &[String]) -> Result<Vec<PortRecord>, EngineError> {
    let specs = parse_all(texts, PublishSpec::parse)?;
    Ok(specs.iter().flat_map(PublishSpec::records).collect())
}

fn bind_group(group: &[PortRecord], port: u16) -> Result<Vec<Bound>, PortError> {
    let mut chosen = port;
    let mut bound = Vec::new();
    for record in group {
        let socket = match bind_at(record, chosen) {
            // A host without IPv6.
            Err(PortError::NotHere(_)) if record.optional => continue,
            other => other?,
        };
        chosen = socket.port().map_err(|source| PortError::Listen {
            address: record.mapping().host(),
            source,
        })?;
        let record = PortRecord {
            host_port: chosen,
            ..record.clone()
        };
        bound.push((record, socket));
    }
    Ok(bound)
}

fn bind_at(record: &PortRecord, port: u16) -> Result<HostSocket, PortError> {
    let address = SocketAddr::new(record.host_ip, port);
    open(record.protocol.transport(), address).map_err(|errno| match errno {
        Errno::ADDRINUSE => PortError::InUse {
            address,
            hint: None,
        },
        Errno::ACCESS if port < 1024 => PortError::Privileged(address),
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => PortError::NotHere(address.ip()),
        errno => PortError::Listen {
            address,
            source: errno.into(),
        },
    })
}

fn open(transport: Transport, address: SocketAddr) -> Result<HostSocket, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, kind, flags, None)?;
    if address.is_ipv6() {
        // `[::]` is IPv6 alone: the other family is published by its own address.
        set_ipv6_v6only(&socket, true)?;
    }
    Ok(match transport {
        Transport::Tcp => {
            // Connections of the daemon before may still be in TIME_WAIT.
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address)?;
            listen(&socket, BACKLOG)?;
            HostSocket::Tcp(TcpListener::from(socket))
        }
        Transport::Udp => {
            bind(&socket, &address)?;
            HostSocket::Udp(UdpSocket::from(socket))
        }
    })
}

impl HostSocket {
    fn port(&self) -> io::Result<u16> {
        let address = match self {
            Self::Tcp(socket) => socket.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        };
        address.map(|address| address.port())
    }
}

/// What is published, as the API shows it.
pub(crate) fn mappings(ports: &[PortRecord]) -> Vec<PortMapping> {
    let known = ports.iter().filter(|port| port.host_port != 0);
    known.map(PortRecord::mapping).collect()
}
