//! Where bodies end, and that they move as they come.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::origin::{answers, ok, say};
use super::world::{Client, World, exactly, rest, soon};

const LARGE: usize = 50 << 20;

fn request(method: &str, headers: &str) -> String {
    format!("{method} http://one.test/ HTTP/1.1\r\nHost: one.test\r\n{headers}\r\n")
}

/// The connection still works.
async fn goes_on(mut client: Client, mut origin: TcpStream) {
    client.send(request("GET", "")).await;
    answers(&mut origin, &mut client, "more").await;
}

#[tokio::test]
async fn chunks_and_trailers_pass_untouched() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world
        .request(request(
            "POST",
            "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n",
        ))
        .await;
    let chunks = "5;ext=1\r\nhello\r\n1\r\n \r\n0\r\nX-Sum: 12\r\n\r\n";
    for byte in chunks.as_bytes().chunks(3) {
        client.send(byte).await;
    }
    assert_eq!(exactly(&mut origin, chunks.len()).await, chunks);
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    say(&mut origin, &answer).await;
    client.hears(&answer).await;
    goes_on(client, origin).await;
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_for_the_body() {
    let world = World::new(&["allow one.test"]).await;
    let expecting = request("PUT", "Expect: 100-continue\r\nContent-Length: 4\r\n");
    let (mut client, mut origin) = world.request(&expecting).await;
    let go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    say(&mut origin, go_on).await;
    client.hears(go_on).await;
    client.send("body").await;
    assert_eq!(exactly(&mut origin, 4).await, "body");
    say(
        &mut origin,
        format!("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n{}", ok("")),
    )
    .await;
    assert!(
        client
            .until("Length: 0\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 103 ")
    );
    goes_on(client, origin).await;
    // One that is not wanted is not sent, and then it is unknown where the next request begins.
    let (mut client, mut origin) = world.request(&expecting).await;
    say(&mut origin, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(
        client.rest().await,
        "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n"
    );
    assert_eq!(rest(&mut origin).await, "");
}

#[tokio::test]
async fn responses_without_a_body() {
    let world = World::new(&["allow one.test"]).await;
    for (method, response) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n",
        ),
    ] {
        let (mut client, mut origin) = world.request(request(method, "")).await;
        say(&mut origin, response).await;
        client.hears(response).await;
        goes_on(client, origin).await;
    }
}

#[tokio::test]
async fn a_response_that_ends_with_its_connection() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.request(request("GET", "")).await;
    let response = "HTTP/1.1 200 OK\r\n\r\nuntil the end";
    say(&mut origin, response).await;
    client.hears(response).await;
    drop(origin);
    assert_eq!(client.rest().await, "");
    // When it breaks instead, the client must not take that for the end.
    let (mut client, mut origin) = world.request(request("GET", "")).await;
    say(&mut origin, response).await;
    client.hears(response).await;
    rustix::net::sockopt::set_socket_linger(&origin, Some(Duration::ZERO)).unwrap();
    drop(origin);
    client.is_reset().await;
    client.leave().await;
    assert!(
        world
            .last_error()
            .starts_with("the origin closed the connection early")
    );
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world
        .request(request("GET", "Accept: text/event-stream\r\n"))
        .await;
    let begin = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
    say(
        &mut origin,
        format!("{begin}Transfer-Encoding: chunked\r\n\r\n"),
    )
    .await;
    client.until("chunked\r\n\r\n").await;
    for n in 0..20 {
        let event = format!("data: {n}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        say(&mut origin, &chunk).await;
        client.hears(&chunk).await;
    }
    say(&mut origin, "0\r\n\r\n").await;
    client.hears("0\r\n\r\n").await;
    goes_on(client, origin).await;
}

#[tokio::test]
async fn an_answer_before_the_whole_question() {
    let world = World::new(&["allow one.test"]).await;
    let large = request("POST", &format!("Content-Length: {LARGE}\r\n"));
    let (mut client, mut origin) = world.request(&large).await;
    client.send(vec![b'x'; 1 << 20]).await;
    let no = "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";
    say(&mut origin, no).await;
    let mut got = Vec::new();
    // For the origin it is over.
    let _ = soon(origin.read_to_end(&mut got)).await;
    // The client says more, as many do before they read: it is not cut off for it, and it does not reach the origin.
    let more = "GET http://one.test/smuggled HTTP/1.1\r\nHost: one.test\r\n\r\n";
    for _ in 0..50 {
        client.send(more.repeat(20)).await;
        tokio::task::yield_now().await;
    }
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.rest().await, no);
    assert!(!String::from_utf8_lossy(&got).contains("smuggled"));
    client.leave().await;
    assert_eq!(world.lines().len(), 1);
}

/// The origin answers and closes at once while the client is still talking: what follows is not a request.
#[tokio::test]
async fn a_body_that_was_not_read_is_not_taken_for_a_request() {
    let world = World::new(&["allow one.test", "allow two.test"]).await;
    let large = request("POST", &format!("Content-Length: {LARGE}\r\n"));
    let (mut client, mut origin) = world.request(&large).await;
    say(&mut origin, ok("done")).await;
    rustix::net::sockopt::set_socket_linger(&origin, Some(Duration::ZERO)).unwrap();
    drop(origin);
    let inner = "GET http://two.test/smuggled HTTP/1.1\r\nHost: two.test\r\n\r\n";
    // Writing fails once the proxy has had enough.
    while client
        .stream
        .write_all(inner.repeat(500).as_bytes())
        .await
        .is_ok()
    {
        if client
            .stream
            .try_read(&mut [0; 4096])
            .is_ok_and(|read| read == 0)
        {
            break;
        }
    }
    client.leave().await;
    assert_eq!(world.dialled(), ["192.0.2.1:80".parse().unwrap()]);
    assert_eq!(world.lines().len(), 1);
}

#[tokio::test]
async fn a_body_that_is_cut_short_is_not_completed() {
    let world = World::new(&["allow one.test"]).await;
    for framing in ["Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n"] {
        let (mut client, mut origin) = world.request(request("POST", framing)).await;
        client.send("5\r\nab").await;
        assert_eq!(exactly(&mut origin, 5).await, "5\r\nab");
        client.stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut origin).await, "");
        client.leave().await;
        assert!(world.last_error().starts_with("the client left"));
    }
}

#[tokio::test]
async fn large_bodies_in_both_directions() {
    let world = World::new(&["allow one.test"]).await;
    let large = request("POST", &format!("Content-Length: {LARGE}\r\n"));
    let (mut client, mut origin) = world.request(&large).await;
    let piece: Vec<u8> = (0..1 << 20).map(|n: usize| (n % 251) as u8).collect();
    let piece = piece.as_slice();
    let upload = async {
        for _ in 0..LARGE / piece.len() {
            client.send(piece).await;
        }
    };
    let download = async {
        let mut got = vec![0; piece.len()];
        for _ in 0..LARGE / piece.len() {
            origin.read_exact(&mut got).await.unwrap();
            assert!(got == piece);
        }
    };
    tokio::join!(upload, download);
    say(
        &mut origin,
        format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"),
    )
    .await;
    client.until("\r\n\r\n").await;
    let upload = async {
        for _ in 0..LARGE / piece.len() {
            say(&mut origin, piece).await;
        }
    };
    let mut got = vec![0; piece.len()];
    let download = async {
        for _ in 0..LARGE / piece.len() {
            client.stream.read_exact(&mut got).await.unwrap();
            assert!(got == piece);
        }
    };
    tokio::join!(upload, download);
    client.leave().await;
    let line = world.last_line();
    assert!(line.sent > LARGE as u64 && line.received > LARGE as u64);
}

/// How much one side can say before the other reads. The clock stands still for as long as anything moves.
async fn taken(speaker: &mut TcpStream) -> usize {
    let (mut taken, piece) = (0, vec![b'x'; 64 << 10]);
    tokio::time::pause();
    while let Ok(written) =
        tokio::time::timeout(Duration::from_secs(1), speaker.write(&piece)).await
    {
        taken += written.unwrap();
        assert!(taken < LARGE, "it is all taken");
    }
    tokio::time::resume();
    taken
}

#[tokio::test]
async fn a_slow_reader_limits_what_is_read_ahead() {
    let world = World::new(&["allow one.test"]).await;
    let (mut client, mut origin) = world.request(request("GET", "")).await;
    say(
        &mut origin,
        format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"),
    )
    .await;
    client.until("\r\n\r\n").await;
    // Sockets have buffers, of some megabytes each.
    let before = taken(&mut origin).await;
    for _ in 0..1000 {
        client.hears("x").await;
    }
    assert!(taken(&mut origin).await < (1 << 20), "after {before}");
    // The same with a tunnel, in the other direction.
    let (mut client, _origin) = world.tunnel("one.test").await;
    taken(&mut client.stream).await;
}

#[tokio::test]
async fn chunks_that_make_no_sense_are_refused() {
    let world = World::new(&["allow one.test"]).await;
    for bad in [
        "zz\r\n",
        "5\nhello\n0\n\n",
        "-1\r\n",
        "5\r\nhelloX",
        "ffffffffffffffffff\r\n",
        "0\r\nX\r\n\r\n",
    ] {
        let (mut client, mut origin) = world
            .request(request("POST", "Transfer-Encoding: chunked\r\n"))
            .await;
        client.send("2\r\nok\r\n").await;
        assert_eq!(exactly(&mut origin, 7).await, "2\r\nok\r\n");
        client.send(bad).await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{bad:?}: {answer}");
        assert_eq!(rest(&mut origin).await, "", "{bad:?}");
        client.leave().await;
        let error = world.last_error();
        assert!(error.contains("invalid request body"), "{error}");
    }
}
