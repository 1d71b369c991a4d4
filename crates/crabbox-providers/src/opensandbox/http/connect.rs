//! Connections: TCP, a tunnel through a proxy, TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::HttpError;
use super::proxy::{Proxies, Proxy, is_local_name};
use crate::opensandbox::url::{Origin, Scheme};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TUNNEL_ANSWER: usize = 16 << 10;

pub(super) struct Connector {
    proxies: Proxies,
    /// Reading the trust store takes milliseconds: only https pays for it.
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

pub(in crate::opensandbox) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connector {
    pub(super) fn new(proxies: Proxies) -> Self {
        Self {
            proxies,
            tls: OnceLock::new(),
        }
    }

    pub(super) async fn connect(&self, origin: &Origin) -> Result<Stream, HttpError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect_now(origin)).await;
        connected.unwrap_or_else(|_| {
            Err(HttpError::Connect {
                to: origin.authority(),
                cause: format!("no connection within {CONNECT_TIMEOUT:?}"),
                down: true,
            })
        })
    }

    async fn connect_now(&self, origin: &Origin) -> Result<Stream, HttpError> {
        let proxy = self
            .proxies
            .for_origin(origin)
            .map_err(HttpError::Refused)?;
        let stream = match &proxy {
            Some(proxy) => tunnel(proxy, origin).await?,
            None => dial(&origin.host, origin.port).await?,
        };
        // Requests are small and wait for their answers.
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        match origin.scheme {
            Scheme::Http => Ok(Stream::Plain(stream)),
            Scheme::Https => self.encrypt(stream, origin).await,
        }
    }

    async fn encrypt(&self, stream: TcpStream, origin: &Origin) -> Result<Stream, HttpError> {
        let failed = |cause: String| HttpError::Tls {
            to: origin.authority(),
            cause,
        };
        let config = self.tls.get_or_init(trusted).clone().map_err(failed)?;
        let name = ServerName::try_from(origin.host.clone())
            .map_err(|_| failed("invalid server name".to_owned()))?;
        let stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

/// With the certificates that this machine trusts.
fn trusted() -> Result<Arc<ClientConfig>, String> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added == 0 {
        let cause = loaded.errors.first().map(ToString::to_string);
        return Err(format!(
            "this machine has no trusted certificates: {}",
            cause.unwrap_or_else(|| "the store is empty".to_owned())
        ));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, HttpError> {
    // A resolver may say anything about a name that means this machine.
    let addresses = match (is_local_name(host), host.parse::<IpAddr>()) {
        (true, _) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        (false, Ok(address)) => vec![address],
        (false, Err(_)) => resolve(host, port).await?,
    };
    let mut last = io::Error::other("the name has no address");
    for address in addresses {
        match TcpStream::connect((address, port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(HttpError::Connect {
        to: format!("{host}:{port}"),
        down: is_down(&last),
        cause: last.to_string(),
    })
}

/// Ends a connection whose other side is gone without a word after about 45 s (tcp(7)). No more than that: data that is sent
/// and not taken may wait for a slow disk of the sandbox.
fn keep_alive(stream: &TcpStream) {
    // Where one of them is refused, the limits of the requests are left.
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(15));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 6);
    let _ = sockopt::set_socket_keepalive(stream, true);
}

async fn resolve(host: &str, port: u16) -> Result<Vec<IpAddr>, HttpError> {
    let found = tokio::net::lookup_host((host, port)).await;
    match found {
        Ok(addresses) => Ok(addresses.map(|address| address.ip()).collect()),
        Err(error) => Err(HttpError::Connect {
            to: format!("{host}:{port}"),
            cause: error.to_string(),
            down: false,
        }),
    }
}

fn is_down(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::TimedOut
            | Kind::BrokenPipe
    )
}

/// A connection through the proxy (RFC 9110, section 9.3.6).
async fn tunnel(proxy: &Proxy, origin: &Origin) -> Result<TcpStream, HttpError> {
    let failed = |cause: String| HttpError::Connect {
        to: format!("{} through the proxy {}", origin.authority(), proxy.host),
        cause,
        down: false,
    };
    let mut stream = dial(&proxy.host, proxy.port).await?;
    let target = format!("{}:{}", origin.host, origin.port);
    let target = match origin.host.contains(':') {
        true => format!("[{}]:{}", origin.host, origin.port),
        false => target,
    };
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(credentials) = &proxy.credentials {
        let encoded = BASE64.encode(credentials);
        request.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
    }
    request.push_str("\r\n");
    let said = async {
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Byte by byte: what follows the answer belongs to TLS.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() > MAX_TUNNEL_ANSWER {
                return Err(io::Error::other("the proxy's answer is too long"));
            }
            answer.push(stream.read_u8().await?);
        }
        Ok(answer)
    };
    let answer = said
        .await
        .map_err(|error: io::Error| failed(error.to_string()))?;
    let line = answer
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    match line.split(' ').nth(1) {
        Some(code) if code.starts_with('2') && code.len() == 3 => Ok(stream),
        _ => Err(failed(format!("it answered {line:?}"))),
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_connection_asks_whether_the_other_side_is_there() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let origin = Origin {
                scheme: Scheme::Http,
                host: "127.0.0.1".to_owned(),
                port: listener.local_addr().unwrap().port(),
            };
            let connector = Connector::new(Proxies::from(&BTreeMap::new()));
            let Ok(Stream::Plain(stream)) = connector.connect(&origin).await else {
                panic!("no connection");
            };
            assert!(sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&stream).unwrap().as_secs(), 15);
        });
    }
}
