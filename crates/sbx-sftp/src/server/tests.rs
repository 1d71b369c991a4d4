use std::io::Cursor;

use sbx_proto::rfc4251::{Reader, Writer};

use super::*;

/// Answers to these messages, each with its kind.
fn talk(messages: &[Vec<u8>], home: &Path) -> Vec<Vec<u8>> {
    let mut input = Vec::new();
    for message in messages {
        input.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        input.extend(message);
    }
    let mut output = Vec::new();
    serve(Cursor::new(input), &mut output, home).unwrap();
    let mut reader = Reader::new(&output);
    let mut answers = Vec::new();
    while !reader.is_empty() {
        answers.push(reader.string().unwrap().to_vec());
    }
    answers
}

fn ask(kind: u8) -> Writer {
    Writer::message(kind).u32(7)
}

/// The code of a status.
fn status(answer: &[u8]) -> u32 {
    let mut reader = Reader::new(answer);
    assert_eq!((reader.byte(), reader.u32()), (Ok(101), Ok(7)));
    reader.u32().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_pipe_in_the_place_of_a_file_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let handle = 0_u32.to_be_bytes();
    let answers = talk(
        &[
            Writer::message(1).u32(3).finish(),
            ask(3).string(text(&pipe)).u32(1).u32(0).finish(),
            ask(5).string(handle).u64(0).u32(100).finish(),
        ],
        dir.path(),
    );
    assert_eq!(answers.len(), 3);
    assert_ne!(status(&answers[2]), 0);
}

#[test]
fn files_are_written_read_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| text(&dir.path().join(name)).to_owned();
    let handle = 0_u32.to_be_bytes();
    let answers = talk(
        &[
            Writer::message(1).u32(3).finish(),
            ask(3)
                .string(place("a"))
                .u32(0x1b)
                .u32(4)
                .u32(0o600)
                .finish(),
            ask(6).string(handle).u64(0).string("hello").finish(),
            ask(5).string(handle).u64(1).u32(100).finish(),
            ask(5).string(handle).u64(5).u32(100).finish(),
            ask(10).string(handle).u32(1).u64(2).finish(),
            ask(4).string(handle).finish(),
            ask(4).string(handle).finish(),
            ask(14).string(place("d")).u32(0).finish(),
            ask(18).string(place("a")).string(place("d/b")).finish(),
            ask(20).string("d/b").string(place("link")).finish(),
            // There is something already.
            ask(18).string(place("link")).string(place("d")).finish(),
            ask(200)
                .string("posix-rename@openssh.com")
                .string(place("link"))
                .string(place("d/b"))
                .finish(),
            ask(19).string(place("d/b")).finish(),
            ask(11).string(place("d")).finish(),
            ask(12).string(1_u32.to_be_bytes()).finish(),
            ask(12).string(1_u32.to_be_bytes()).finish(),
            ask(13).string(place("d/b")).finish(),
            ask(15).string(place("d")).finish(),
            ask(17).string(place("d")).finish(),
            ask(200).string("limits@openssh.com").finish(),
            ask(200).string("what@example.com").finish(),
        ],
        dir.path(),
    );
    assert_eq!(answers[0][0], 2);
    assert_eq!(answers[1], ask(102).string(handle).finish());
    assert_eq!(status(&answers[2]), 0);
    assert_eq!(answers[3], ask(103).string("ello").finish());
    assert_eq!(status(&answers[4]), 1);
    assert_eq!((status(&answers[5]), status(&answers[6])), (0, 0));
    assert_eq!(status(&answers[7]), 4, "closed twice");
    assert_eq!((status(&answers[8]), status(&answers[9])), (0, 0));
    assert_eq!((status(&answers[10]), status(&answers[11])), (0, 4));
    assert_eq!(status(&answers[12]), 0);
    assert!(answers[13].windows(3).any(|bytes| bytes == b"d/b"));
    assert_eq!(answers[15][0], 104);
    assert_eq!(status(&answers[16]), 1);
    assert_eq!((status(&answers[17]), status(&answers[18])), (0, 0));
    assert_eq!(status(&answers[19]), 2);
    assert_eq!((answers[20][0], status(&answers[21])), (201, 8));
}

#[test]
fn homes_and_paths() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().canonicalize().unwrap();
    let expand = |path: &str| {
        let request = ask(200).string("expand-path@openssh.com").string(path);
        talk(&[request.finish()], &home).remove(0)
    };
    let name = |answer: Vec<u8>| {
        let mut reader = Reader::new(&answer);
        assert_eq!(reader.byte(), Ok(104));
        reader.take(8).unwrap();
        reader.text().unwrap().to_owned()
    };
    assert_eq!(name(expand("~")), text(&home));
    assert_eq!(name(expand("~/new")), text(&home.join("new")));
    assert_eq!(name(expand("/")), "/");
    assert_eq!(status(&expand("~root")), 4);
    assert_eq!(status(&expand("/no/such/place")), 2);
}

#[test]
fn hostile_messages() {
    let home = Path::new("/");
    // A path that the kernel cannot take, a wrong handle, and one that is cut.
    let answers = talk(
        &[
            ask(7).string("a\0b").finish(),
            ask(5).string("12345").u64(0).u32(u32::MAX).finish(),
            ask(3).u32(u32::MAX).finish(),
            ask(99).finish(),
        ],
        home,
    );
    let codes: Vec<u32> = answers.iter().map(|answer| status(answer)).collect();
    assert_eq!(codes, [4, 4, 5, 8]);
    for bytes in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\0", b"\0\0\0\x02\x03\x00"] {
        let mut output = Vec::new();
        assert!(serve(Cursor::new(bytes), &mut output, home).is_err());
        assert!(output.is_empty());
    }
    // Nothing is left open behind the limit.
    let open: Vec<_> = (0..=MAX_HANDLES)
        .map(|_| ask(11).string("/").finish())
        .collect();
    let answers = talk(&open, home);
    assert_eq!(status(answers.last().unwrap()), 4);
}
