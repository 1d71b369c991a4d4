use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

use super::*;

/// "Inside" is this very network.
struct Here;

impl Inside for Here {
    fn sockets(&self, kind: SocketKind, count: u8) -> io::Result<Vec<OwnedFd>> {
        let (family, transport) = match kind {
            SocketKind::Tcp4 => (AddressFamily::INET, SocketType::STREAM),
            SocketKind::Tcp6 => (AddressFamily::INET6, SocketType::STREAM),
            SocketKind::Udp4 => (AddressFamily::INET, SocketType::DGRAM),
            SocketKind::Udp6 => (AddressFamily::INET6, SocketType::DGRAM),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || Ok(socket_with(family, transport, flags, None)?);
        (0..count).map(|_| socket()).collect()
    }
}

/// Two ports lead to the server at `port`.
fn published(port: u16) -> (Published<u8>, SocketAddr, SocketAddr) {
    let budget = Arc::new(ConnectionBudget::new(4096));
    let published = Published::start("ab", Arc::new(Here), 64, budget).unwrap();
    let target = Target {
        port,
        prefer_v6: false,
    };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    let addresses = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    published.open(1, HostSocket::Tcp(tcp), target);
    published.open(2, HostSocket::Udp(udp), target);
    (published, addresses.0, addresses.1)
}

fn port_of(server: &TcpListener) -> u16 {
    server.local_addr().unwrap().port()
}

#[test]
fn a_half_closed_connection_is_answered() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_published, address, _) = published(port_of(&server));
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&[7; 300_000]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    let mut question = Vec::new();
    accepted.read_to_end(&mut question).unwrap();
    assert_eq!(question.len(), 300_000);
    accepted.write_all(b"answer").unwrap();
    drop(accepted);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
}

#[test]
fn a_server_that_has_said_all_still_receives() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_published, address, _) = published(port_of(&server));
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"a").unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    accepted.write_all(b"bye").unwrap();
    accepted.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "bye");
    // Only now, and more than any buffer on the way holds.
    let received = std::thread::spawn(move || {
        let mut all = Vec::new();
        accepted.read_to_end(&mut all).map(|_| all.len()).unwrap()
    });
    client.write_all(&vec![7; 32 << 20]).unwrap();
    drop(client);
    assert_eq!(received.join().unwrap(), 1 + (32 << 20));
}

#[test]
fn a_server_that_leaves_ends_a_client_that_sends() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_published, address, _) = published(port_of(&server));
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&[7; 4096]).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    accepted.read_exact(&mut [0; 16]).unwrap();
    drop(accepted);
    // It would be blocked for ever if the connection were kept: nothing reads.
    client
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let error = loop {
        if let Err(error) = client.write(&[7; 65_536]) {
            break error;
        }
    };
    let expected = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    assert!(expected.contains(&error.kind()), "{error}");
}

#[test]
fn a_server_comes_and_goes() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port_of(&server);
    drop(server);
    let (_published, address, _) = published(port);
    let fails = || {
        let mut client = TcpStream::connect(address).unwrap();
        client.read(&mut [0]).unwrap_err().kind()
    };
    assert_eq!(fails(), io::ErrorKind::ConnectionReset);
    let server = TcpListener::bind(("::1", port)).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    accepted.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    drop((server, accepted));
    assert_eq!(fails(), io::ErrorKind::ConnectionReset);
}

#[test]
fn closing_cuts_connections_and_frees_the_port() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (published, address, udp) = published(port_of(&server));
    let mut client = TcpStream::connect(address).unwrap();
    let _accepted = server.accept().unwrap();
    published.close(vec![1]);
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    TcpListener::bind(address).unwrap();
    assert!(
        UdpSocket::bind(udp).is_err(),
        "the other port is not closed"
    );
    drop(published);
    UdpSocket::bind(udp).unwrap();
}

#[test]
fn datagrams_go_to_the_server_and_answers_to_their_client() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (_published, _, address) = published(server.local_addr().unwrap().port());
    let clients = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    for (client, byte) in clients.iter().zip(1..) {
        client.send_to(&[byte], address).unwrap();
    }
    let mut buffer = [0; 16];
    for _ in &clients {
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        let answer = buffer[..length].repeat(2);
        server.send_to(&answer, from).unwrap();
    }
    for (client, byte) in clients.iter().zip(1..) {
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&[byte, byte][..], address));
    }
}

/// The addresses after the loopback are a sandbox's own; `ports::datagrams_find_their_server` tries those.
#[test]
fn a_server_of_datagrams_is_found_where_it_listens() {
    let server = UdpSocket::bind("[::1]:0").unwrap();
    let (_published, _, address) = published(server.local_addr().unwrap().port());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for socket in [&server, &client] {
        let timeout = Some(Duration::from_secs(60));
        socket.set_read_timeout(timeout).unwrap();
    }
    let mut buffer = [0; 16];
    for question in [b"one", b"two"] {
        client.send_to(question, address).unwrap();
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..length], from).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&question[..], address));
    }
}

/// A server that answers no connection, and more clients of it than a sandbox may have.
#[test]
fn clients_that_reset_their_connections_keep_nobody_out() {
    let full = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    bind(&full, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&full, 0).unwrap();
    let full = TcpListener::from(full);
    let address = full.local_addr().unwrap();
    let waits = Duration::from_millis(100);
    let queued: Vec<_> = std::iter::from_fn(|| TcpStream::connect_timeout(&address, waits).ok())
        .take(16)
        .collect();
    assert!(queued.len() < 16, "its queue takes everything");
    let (published, address, _) = published(address.port());
    for _ in 0..100 {
        let client = TcpStream::connect(address).unwrap();
        set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    }
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let other = tcp.local_addr().unwrap();
    let target = Target {
        port: port_of(&server),
        prefer_v6: false,
    };
    published.open(3, HostSocket::Tcp(tcp), target);
    let mut client = TcpStream::connect(other).unwrap();
    // Less than a connection to the first server may take.
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    std::thread::spawn(move || server.accept().unwrap().0.write_all(b"x").unwrap());
    client.read_exact(&mut [0]).unwrap();
}

/// As many as a sandbox may have, and more, from addresses that are never seen again.
#[test]
fn a_flood_of_datagrams_keeps_nobody_out() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let tcp = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let (_published, tcp_address, address) = published(port);
    server
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let made_up: Vec<_> = (0..300)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(&[0; 1000], address).unwrap();
            // It has arrived: none of them is lost by being too many at once.
            server.recv_from(&mut [0; 1000]).unwrap();
            client
        })
        .collect();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    client.send_to(b"real", address).unwrap();
    let mut buffer = [0; 16];
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"real");
    server.send_to(b"answer", from).unwrap();
    assert_eq!(client.recv_from(&mut buffer).unwrap(), (6, address));
    // The other port of the same sandbox.
    let mut stream = TcpStream::connect(tcp_address).unwrap();
    tcp.accept().unwrap().0.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    drop(made_up);
}

#[test]
fn more_connections_than_are_served_at_once_wait() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_published, address, _) = published(port_of(&server));
    let echo = std::thread::spawn(move || {
        let mut served = 0;
        while served < 150 {
            let (mut stream, _) = server.accept().unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                stream.write_all(&byte).unwrap();
            });
            served += 1;
        }
    });
    let clients: Vec<_> = (0..150)
        .map(|_| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"x").unwrap();
            client
        })
        .collect();
    for mut client in clients {
        client.read_exact(&mut [0]).unwrap();
    }
    echo.join().unwrap();
}
