//! Frames of an exec connection: messages, and the streams of a command where descriptors cannot be passed.

use std::fmt::Debug;

use sbx_proto::exec::{Reply, Request};
use sbx_proto::frame::{Decoder, FrameError, MAX_REPLY, MAX_REQUEST, encode};
use sbx_proto::stream::{
    Frame, MAX_DATA, Receiver, Sender, Stream, Violation, push_close, push_credit, push_data,
    push_end, window,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::prefixes::lengths;

/// Frames are the same in whatever pieces they arrive, and written again they read the same. Whatever they say, no side
/// holds more than one window of a stream.
pub fn fuzz_exec_frames(data: &[u8]) {
    check_messages::<Request>(data);
    check_messages::<Reply>(data);
}

fn check_messages<M>(data: &[u8])
where
    M: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let whole = decode::<M>(MAX_REPLY, &[data]);
    for length in lengths(data) {
        let (first, second) = data.split_at_checked(length).unwrap_or((data, &[]));
        let parts = decode::<M>(MAX_REPLY, &[first, second]);
        assert_eq!(parts, whole, "cut after {length} bytes");
    }
    let (frames, _) = whole;
    let mut written = Vec::new();
    for frame in &frames {
        check_size(frame);
        write(&mut written, frame);
    }
    check_credit(&frames);
    // JSON may be longer when it is written again, so the larger limit holds here.
    assert_eq!(decode::<M>(MAX_REQUEST, &[&written]), (frames, None));
}

/// All whole frames, and the error that ended the connection, if one did.
fn decode<M: DeserializeOwned>(
    max: usize,
    pieces: &[&[u8]],
) -> (Vec<Frame<M>>, Option<FrameError>) {
    let (mut decoder, mut frames) = (Decoder::new(max), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.take_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fn check_size<M>(frame: &Frame<M>) {
    if let Frame::Data(_, bytes) = frame {
        assert!((1..=MAX_DATA).contains(&bytes.len()));
    }
}

fn write<M: Serialize>(out: &mut Vec<u8>, frame: &Frame<M>) {
    match frame {
        Frame::Message(message) => {
            let bytes = encode(message);
            assert!(bytes.is_ok(), "a message that was read cannot be written");
            out.extend(bytes.unwrap_or_default());
        }
        Frame::Data(stream, bytes) => push_data(out, *stream, bytes),
        Frame::End(stream) => push_end(out, *stream),
        Frame::Credit(stream, credit) => push_credit(out, *stream, *credit),
        Frame::Close(stream) => push_close(out, *stream),
    }
}

/// Both sides of each stream, told by the same frames: none lets the other take or hold more than a window.
fn check_credit<M>(frames: &[Frame<M>]) {
    for stream in [Stream::Stdin, Stream::Stdout, Stream::Stderr] {
        let (mut sender, mut receiver) = (Sender::new(stream), Receiver::new(stream));
        let window = window(stream) as usize;
        let mut waiting = 0;
        for frame in frames {
            match frame {
                Frame::Data(of, bytes) if *of == stream => {
                    let taken = receiver.received(bytes.len());
                    assert_eq!(taken == Err(Violation::AfterEnd), receiver.has_ended());
                    if taken.is_ok() {
                        waiting += bytes.len();
                        sender.sent(bytes.len());
                    }
                }
                // Here a grant also stands for a reader that took everything.
                Frame::Credit(of, credit) if *of == stream => {
                    let before = sender.credit();
                    let granted = sender.grant(*credit);
                    assert_eq!(granted.is_ok(), before + *credit as usize <= window);
                    receiver.delivered(std::mem::take(&mut waiting));
                }
                Frame::End(of) if *of == stream => {
                    let ended = receiver.has_ended();
                    assert_eq!(receiver.end().is_err(), ended);
                }
                Frame::Message(_)
                | Frame::Data(..)
                | Frame::Credit(..)
                | Frame::End(_)
                | Frame::Close(_) => {}
            }
            assert!(waiting <= window && sender.credit() <= window);
        }
    }
}
