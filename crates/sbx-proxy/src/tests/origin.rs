//! The other end.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::world::{Client, rest, soon, until};

/// The next request head.
pub(super) async fn head(origin: &mut TcpStream) -> String {
    until(origin, "\r\n\r\n").await
}

pub(super) async fn say(origin: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    soon(origin.write_all(bytes.as_ref())).await.unwrap();
}

/// A whole response on a connection that stays.
pub(super) fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// It hears the next request and answers, which the client hears.
pub(super) async fn answers(origin: &mut TcpStream, client: &mut Client, body: &str) {
    head(origin).await;
    say(origin, ok(body)).await;
    client.hears(&ok(body)).await;
}

/// Nothing (more) arrived, and nothing will.
pub(super) async fn hears_nothing(mut origin: TcpStream) {
    assert_eq!(rest(&mut origin).await, "");
}
