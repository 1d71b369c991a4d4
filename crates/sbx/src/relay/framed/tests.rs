use std::os::fd::AsFd;

use rustix::pipe::{PipeFlags, pipe_with};
use sbx_proto::frame::{Decoder, MAX_REPLY};
use sbx_proto::stream::{Frame, window};

use super::*;
use crate::relay::Wait;

fn frames(bytes: &[u8]) -> Vec<Frame<String>> {
    let mut decoder = Decoder::new(MAX_REPLY);
    decoder.push(bytes);
    std::iter::from_fn(|| decoder.take_frame().unwrap()).collect()
}

#[test]
fn an_unread_output_is_kept_and_more_than_a_window_is_a_violation() {
    let (reader, caller) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let caller: &'static _ = Box::leak(Box::new(caller));
    let mut output = Output::from_frames(Stream::Stdout, caller.as_fd());
    let size = window(Stream::Stdout) as usize;
    // The caller's pipe takes some of it, which is less than half a window: no credit comes of that.
    output.receive(&vec![1; size]).unwrap();
    assert!(output.take_frames().is_empty());
    assert_eq!(output.receive(b"x"), Err(Violation::BeyondCredit));
    output.end().unwrap();
    assert_eq!(output.wait(), Wait::Writable);
    let (mut read, mut bytes) = (0, vec![0; size]);
    while output.wait() != Wait::Done {
        read += rustix::io::read(&reader, &mut bytes[..]).unwrap();
        output.advance();
    }
    read += rustix::io::read(&reader, &mut bytes[..]).unwrap_or(0);
    assert_eq!(read, size);
}

#[test]
fn a_reader_that_has_gone_closes_the_stream_once() {
    let (reader, caller) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let caller: &'static _ = Box::leak(Box::new(caller));
    let mut output = Output::from_frames(Stream::Stderr, caller.as_fd());
    drop(reader);
    output.receive(b"lost").unwrap();
    assert_eq!(
        frames(&output.take_frames()),
        [Frame::Close(Stream::Stderr)]
    );
    assert_eq!((output.wait(), output.lost()), (Wait::Done, None));
    output.receive(b"under way").unwrap();
    assert!(output.take_frames().is_empty());
}

#[test]
fn input_waits_for_credit_and_then_ends() {
    let (source, feed) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let source: &'static _ = Box::leak(Box::new(source));
    let mut input = Input::to_frames(source.as_fd());
    let size = window(Stream::Stdin) as usize;
    let mut sent = 0;
    while input.source().is_some() {
        rustix::io::write(&feed, &[3; 5000]).unwrap();
        input.source_ready();
        for frame in frames(&input.take_frames()) {
            let Frame::Data(Stream::Stdin, bytes) = frame else {
                panic!("{frame:?}");
            };
            sent += bytes.len();
        }
    }
    assert_eq!(sent, size, "all the credit");
    drop(feed);
    assert!(input.grant(u32::MAX).is_err());
    input.grant(5000).unwrap();
    input.source_ready();
    let last = frames(&input.take_frames());
    assert_eq!(last.last(), Some(&Frame::End(Stream::Stdin)));
    assert!(input.source().is_none());
}
