use proptest::prelude::*;

use super::*;
use crate::exec::Request;
use crate::frame::{Decoder, MAX_REPLY, encode};

fn any_stream() -> impl Strategy<Value = Stream> {
    prop::sample::select(vec![Stream::Stdin, Stream::Stdout, Stream::Stderr])
}

fn any_frame() -> impl Strategy<Value = Frame<String>> {
    prop_oneof![
        any::<String>().prop_map(Frame::Message),
        (any_stream(), prop::collection::vec(any::<u8>(), 1..3000))
            .prop_map(|(stream, bytes)| Frame::Data(stream, bytes)),
        any_stream().prop_map(Frame::End),
        (any_stream(), any::<u32>()).prop_map(|(stream, credit)| Frame::Credit(stream, credit)),
        any_stream().prop_map(Frame::Close),
    ]
}

fn push_frame(out: &mut Vec<u8>, frame: &Frame<String>) {
    match frame {
        Frame::Message(text) => out.extend(encode(text).unwrap()),
        Frame::Data(stream, bytes) => push_data(out, *stream, bytes),
        Frame::End(stream) => push_end(out, *stream),
        Frame::Credit(stream, credit) => push_credit(out, *stream, *credit),
        Frame::Close(stream) => push_close(out, *stream),
    }
}

proptest! {
    #[test]
    fn frames_survive_any_split(
        frames in prop::collection::vec(any_frame(), 0..20),
        cuts in prop::collection::vec(any::<u8>(), 1..50),
    ) {
        let mut wire = Vec::new();
        frames.iter().for_each(|frame| push_frame(&mut wire, frame));
        let mut decoder = Decoder::new(MAX_REPLY);
        let mut seen = Vec::new();
        let mut cuts = cuts.into_iter().cycle();
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            let step = usize::from(cuts.next().unwrap()).clamp(1, rest.len());
            let (now, later) = rest.split_at(step);
            decoder.push(now);
            rest = later;
            while let Some(frame) = decoder.take_frame::<String>().unwrap() {
                seen.push(frame);
            }
        }
        prop_assert_eq!(seen, frames);
    }

    #[test]
    fn hostile_bytes_are_an_error_or_incomplete(bytes: Vec<u8>, kind: u8, size in 0_u32..70_000) {
        // Any bytes, and any bytes behind a header that may be a good one.
        let header = (u32::from(kind) << 24 | size).to_le_bytes();
        for start in [&[][..], &header] {
            let mut decoder = Decoder::new(MAX_REPLY);
            decoder.push(start);
            decoder.push(&bytes);
            while let Ok(Some(frame)) = decoder.take_frame::<Request>() {
                if let Frame::Data(_, data) = frame {
                    prop_assert!((1..=MAX_DATA).contains(&data.len()));
                }
            }
        }
    }

    /// Whatever order things happen in: nothing comes beyond the credit, no more than a window is ever kept, and a stream
    /// whose receiver delivers everything does not stand still.
    #[test]
    fn both_sides_agree_about_credit(
        steps in prop::collection::vec((any::<bool>(), 1_usize..100_000), 1..200),
        stream in any_stream(),
    ) {
        let (mut sender, mut receiver) = (Sender::new(stream), Receiver::new(stream));
        let mut kept = 0;
        for (send, count) in steps {
            if send {
                let count = count.min(sender.credit());
                sender.sent(count);
                receiver.received(count).unwrap();
                kept += count;
                prop_assert!(kept <= window(stream) as usize);
            } else {
                let count = count.min(kept);
                kept -= count;
                if let Some(credit) = receiver.delivered(count) {
                    sender.grant(credit).unwrap();
                }
            }
        }
        if let Some(credit) = receiver.delivered(kept) {
            sender.grant(credit).unwrap();
        }
        prop_assert!(sender.credit() > 0, "everything was delivered");
    }
}

#[test]
fn a_frame_that_is_refused_is_not_collected_first() {
    for (kind, size) in [
        (0x10, 0),
        (0x10, MAX_DATA + 1),
        (0x13, 1),
        (0x20, 1),
        (0x30, 3),
        (0x30, 5),
        (0x40, 1),
        (0x50, 0),
        (0x01, 1),
        (0xff, 0),
    ] {
        let mut decoder = Decoder::new(MAX_REPLY);
        decoder.push(&header(kind, size).unwrap());
        let taken = decoder.take_frame::<String>();
        assert!(taken.is_err(), "{kind:#x} {size}: {taken:?}");
    }
    let mut decoder = Decoder::new(MAX_REPLY);
    decoder.push(&header(0, MAX_REPLY + 1).unwrap());
    assert!(decoder.take_frame::<String>().is_err());
}

#[test]
fn frames_of_streams_are_refused_where_only_messages_are_expected() {
    let mut bytes = Vec::new();
    push_data(&mut bytes, Stream::Stdout, b"x");
    let mut decoder = Decoder::new(crate::frame::MAX_REQUEST);
    decoder.push(&bytes);
    assert!(decoder.take::<String>().is_err());
}

#[test]
fn large_data_becomes_several_frames() {
    let bytes = vec![7; 2 * MAX_DATA + 1];
    let mut wire = Vec::new();
    push_data(&mut wire, Stream::Stdin, &bytes);
    let mut decoder = Decoder::new(MAX_REPLY);
    decoder.push(&wire);
    let mut lengths = Vec::new();
    while let Some(Frame::Data(_, data)) = decoder.take_frame::<String>().unwrap() {
        lengths.push(data.len());
    }
    assert_eq!(lengths, [MAX_DATA, MAX_DATA, 1]);
}

#[test]
fn a_peer_that_breaks_flow_control_is_refused() {
    let size = window(Stream::Stdout);
    let mut receiver = Receiver::new(Stream::Stdout);
    receiver.received(size as usize).unwrap();
    assert_eq!(receiver.received(1), Err(Violation::BeyondCredit));
    let mut receiver = Receiver::new(Stream::Stdout);
    receiver.end().unwrap();
    assert_eq!(receiver.received(1), Err(Violation::AfterEnd));
    assert_eq!(receiver.end(), Err(Violation::AfterEnd));
    assert_eq!(receiver.delivered(size as usize), None, "it sends no more");
    let mut sender = Sender::new(Stream::Stdout);
    assert_eq!(sender.grant(1), Err(Violation::TooMuchCredit));
    sender.sent(1);
    assert_eq!(sender.grant(u32::MAX), Err(Violation::TooMuchCredit));
    sender.grant(1).unwrap();
    sender.sent(usize::MAX);
    assert_eq!(sender.credit(), 0);
}
