use std::fs::File;
use std::io::{Read, Write};

use sbx_proto::frame::{Decoder, MAX_REPLY};
use sbx_proto::stream::window;

use super::*;

const ALL: PollFlags = PollFlags::empty();

fn framed() -> (Streams, File, File, File) {
    let (mut streams, [input, out, err]) =
        Streams::pipes(FramedStdin::Stream, FramedStderr::Stream).unwrap();
    streams.start();
    (streams, input.into(), out.into(), err.into())
}

fn frames(bytes: &[u8]) -> Vec<Frame<String>> {
    let mut decoder = Decoder::new(MAX_REPLY);
    decoder.push(bytes);
    std::iter::from_fn(|| decoder.take_frame().unwrap()).collect()
}

fn data(stream: Stream, bytes: &[u8]) -> Frame<String> {
    Frame::Data(stream, bytes.to_vec())
}

#[test]
fn output_comes_in_frames_and_ends() {
    let (mut streams, _input, mut stdout, stderr) = framed();
    let mut out = Vec::new();
    stdout.write_all(b"some").unwrap();
    streams.ready(Stream::Stdout, ALL, &mut out);
    // Nothing more is there, and that is not the end.
    streams.ready(Stream::Stdout, ALL, &mut out);
    drop(stderr);
    streams.ready(Stream::Stderr, ALL, &mut out);
    let expected = [data(Stream::Stdout, b"some"), Frame::End(Stream::Stderr)];
    assert_eq!(frames(&out), expected);
    assert!(!streams.is_done());
}

#[test]
fn nothing_is_read_without_credit_or_room() {
    let (mut streams, _input, mut stdout, _stderr) = framed();
    let size = window(Stream::Stdout) as usize;
    let mut read = 0;
    while read < size {
        let written = stdout.write(&[0; 4096]).unwrap();
        let mut out = Vec::new();
        streams.ready(Stream::Stdout, ALL, &mut out);
        read += written;
        assert_eq!(out.len(), written + 4);
    }
    stdout.write_all(b"more").unwrap();
    let polled = |streams: &Streams, room| {
        let all: Vec<_> = streams.interests(room).map(|(it, _, _)| it).collect();
        all
    };
    assert_eq!(polled(&streams, true), [Stream::Stderr, Stream::Stdin]);
    assert_eq!(polled(&streams, false), [Stream::Stdin]);
    let mut out = Vec::new();
    streams.ready(Stream::Stdout, ALL, &mut out);
    assert!(out.is_empty(), "to read nothing is not the end");
    let credit: Frame<String> = Frame::Credit(Stream::Stdout, 2);
    streams.frame(credit, &mut out).unwrap();
    streams.ready(Stream::Stdout, ALL, &mut out);
    assert_eq!(frames(&out), [data(Stream::Stdout, b"mo")]);
}

#[test]
fn after_the_end_only_what_the_command_wrote_is_sent() {
    let (mut streams, _input, mut stdout, _stderr) = framed();
    stdout.write_all(b"of the command").unwrap();
    let mut out = Vec::new();
    streams.command_ended(&mut out);
    stdout.write_all(b" and of another process").unwrap();
    while streams.pump(&mut out) {}
    let expected = [
        Frame::End(Stream::Stderr),
        data(Stream::Stdout, b"of the command"),
        Frame::End(Stream::Stdout),
    ];
    assert_eq!(frames(&out), expected);
    assert!(streams.is_done());
    assert!(stdout.write_all(b"x").is_err(), "its reader has gone");
}

#[test]
fn input_is_kept_within_its_window_and_ends() {
    let (mut streams, mut input, _stdout, _stderr) = framed();
    let size = window(Stream::Stdin) as usize;
    let mut out = Vec::new();
    let mut sent = 0;
    // As much as the pipe takes, which earns credit, and a window.
    while streams
        .frame(data(Stream::Stdin, &[7; 4096]), &mut out)
        .is_ok()
    {
        sent += 4096;
        assert!(sent <= size * 3, "there is an end");
    }
    assert!(streams.stdin.pending.len() <= size);
    let mut received = vec![0; sent];
    let mut count = 0;
    while count < sent {
        count += input.read(&mut received[count..]).unwrap();
        streams.ready(Stream::Stdin, PollFlags::OUT, &mut out);
    }
    assert!(received.iter().all(|byte| *byte == 7));
    let end: Frame<String> = Frame::End(Stream::Stdin);
    streams.frame(end, &mut out).unwrap();
    assert_eq!(input.read(&mut received).unwrap(), 0);
}

#[test]
fn a_command_that_closes_its_stdin_is_told_of() {
    let (mut streams, input, _stdout, _stderr) = framed();
    drop(input);
    let mut out = Vec::new();
    streams.ready(Stream::Stdin, PollFlags::ERR, &mut out);
    assert_eq!(frames(&out), [Frame::Close(Stream::Stdin)]);
    assert!(streams.interests(true).all(|(it, _, _)| it.is_output()));
    // What was under way is dropped.
    streams
        .frame(data(Stream::Stdin, b"late"), &mut out)
        .unwrap();
}
