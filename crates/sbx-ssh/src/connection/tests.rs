use super::*;

fn open(connection: &mut Connection, kind: &str, theirs: u32, window: u32) {
    let message = Writer::message(message::CHANNEL_OPEN)
        .string(kind)
        .u32(theirs)
        .u32(window)
        .u32(16);
    let message = match kind {
        "direct-tcpip" => message.string("localhost").u32(80).string("::1").u32(9),
        _ => message,
    };
    connection.message(&message.finish()).unwrap();
}

fn about(number: u8, channel: u32) -> Writer {
    Writer::message(number).u32(channel)
}

fn request(connection: &mut Connection, kind: &str, more: impl FnOnce(Writer) -> Writer) -> u8 {
    let message = about(message::CHANNEL_REQUEST, 0)
        .string(kind)
        .boolean(true);
    connection.message(&more(message).finish()).unwrap();
    connection.out.pop().unwrap()[0]
}

fn events(connection: &mut Connection) -> Vec<Event> {
    connection.events.drain(..).collect()
}

#[test]
fn a_session_with_everything() {
    let mut connection = Connection::default();
    open(&mut connection, "session", 5, 20);
    assert_eq!(
        connection.out.pop().unwrap()[0],
        message::CHANNEL_OPEN_CONFIRMATION
    );
    let pty = |message: Writer| {
        let message = message.string("xterm").u32(80).u32(24);
        message.u32(0).u32(0).string("")
    };
    assert_eq!(
        request(&mut connection, "pty-req", pty),
        message::CHANNEL_SUCCESS
    );
    let env = |message: Writer| message.string("LANG").string("C");
    assert_eq!(
        request(&mut connection, "env", env),
        message::CHANNEL_SUCCESS
    );
    for refused in ["auth-agent-req@openssh.com", "x11-req", "what"] {
        let answer = request(&mut connection, refused, |message| message);
        assert_eq!(answer, message::CHANNEL_FAILURE, "{refused}");
    }
    let other = |message: Writer| message.string("netconf");
    assert_eq!(
        request(&mut connection, "subsystem", other),
        message::CHANNEL_FAILURE
    );
    let exec = |message: Writer| message.string("ls");
    assert_eq!(
        request(&mut connection, "exec", exec),
        message::CHANNEL_SUCCESS
    );
    // One command for a session.
    assert_eq!(
        request(&mut connection, "exec", exec),
        message::CHANNEL_FAILURE
    );
    let data = about(message::CHANNEL_DATA, 0).string("in").finish();
    connection.message(&data).unwrap();
    let eof = about(message::CHANNEL_EOF, 0).finish();
    connection.message(&eof).unwrap();
    let id = ChannelId(0);
    assert_eq!(
        events(&mut connection),
        [
            Event::Start {
                channel: id,
                start: Start::Exec(b"ls".to_vec()),
                terminal: Some(Terminal {
                    kind: b"xterm".to_vec(),
                    rows: 24,
                    cols: 80
                }),
                variables: vec![(b"LANG".to_vec(), b"C".to_vec())],
            },
            Event::Data(id, b"in".to_vec()),
            Event::Eof(id),
        ]
    );
    assert!(connection.message(&data).is_err(), "after the end");

    // Not more than the window, and not more at once than the client takes.
    assert_eq!(connection.send(id, Output::Data, &[b'x'; 50]), 20);
    assert_eq!(connection.out.len(), 2);
    assert_eq!(connection.send(id, Output::Stderr, b"y"), 0);
    let adjust = about(message::CHANNEL_WINDOW_ADJUST, 0).u32(7).finish();
    connection.message(&adjust).unwrap();
    assert_eq!(connection.window(id), 7);
    connection.exit_status(id, 3);
    connection.eof(id);
    connection.close(id);
    connection.close(id);
    assert_eq!(connection.out.len(), 5);
    assert_eq!(connection.send(id, Output::Data, b"z"), 0);
    let close = about(message::CHANNEL_CLOSE, 0).finish();
    connection.message(&close).unwrap();
    assert_eq!(connection.out.len(), 5, "its end was told once");
    assert!(!connection.has_channels());
    assert_eq!(connection.message(&close), Err(Error::NoChannel));
}

#[test]
fn a_forward_is_asked_for() {
    let mut connection = Connection::default();
    open(&mut connection, "direct-tcpip", 1, 100);
    open(&mut connection, "direct-tcpip", 2, 100);
    assert_eq!(
        events(&mut connection)[0],
        Event::Forward {
            channel: ChannelId(0),
            host: "localhost".into(),
            port: 80
        }
    );
    assert!(connection.out.is_empty());
    let data = about(message::CHANNEL_DATA, 0).string("x").finish();
    assert!(connection.message(&data).is_err(), "before the answer");
    connection.accept(ChannelId(0));
    connection.message(&data).unwrap();
    connection.refuse(ChannelId(1), Refusal::Prohibited, "no");
    let kinds: Vec<u8> = connection.out.iter().map(|message| message[0]).collect();
    assert_eq!(
        kinds,
        [
            message::CHANNEL_OPEN_CONFIRMATION,
            message::CHANNEL_OPEN_FAILURE
        ]
    );
}

#[test]
fn windows_and_numbers_have_limits() {
    let mut connection = Connection::default();
    open(&mut connection, "session", 0, 0);
    let data = about(message::CHANNEL_DATA, 0);
    let data = data.string(vec![0; MAX_DATA]).finish();
    let times = WINDOW as usize / MAX_DATA;
    for _ in 0..times {
        connection.message(&data).unwrap();
    }
    assert_eq!(connection.message(&data), Err(Error::Window));
    connection.out.clear();
    connection.used(ChannelId(0), WINDOW as usize / 2);
    assert_eq!(connection.out[0][0], message::CHANNEL_WINDOW_ADJUST);
    connection.message(&data).unwrap();

    let mut connection = Connection::default();
    for number in 0..=MAX_CHANNELS {
        open(
            &mut connection,
            "session",
            u32::try_from(number).unwrap(),
            1,
        );
    }
    assert_eq!(
        connection.out.last().unwrap()[0],
        message::CHANNEL_OPEN_FAILURE
    );
    open(&mut Connection::default(), "x11", 0, 0);
}

#[test]
fn global_requests_are_refused_politely() {
    let mut connection = Connection::default();
    for (reply, answers) in [(true, 1), (false, 0)] {
        let message = Writer::message(message::GLOBAL_REQUEST)
            .string("keepalive@openssh.com")
            .boolean(reply);
        connection.message(&message.finish()).unwrap();
        assert_eq!(connection.out.drain(..).count(), answers);
    }
}

#[test]
fn commands_and_variables_that_no_program_can_have_are_refused() {
    for (kind, value) in [("exec", "a\0b"), ("env", "A=B"), ("env", "")] {
        let mut connection = Connection::default();
        open(&mut connection, "session", 0, 0);
        let answer = request(&mut connection, kind, |message| {
            message.string(value).string("")
        });
        assert_eq!(answer, message::CHANNEL_FAILURE, "{kind} {value:?}");
    }
}
