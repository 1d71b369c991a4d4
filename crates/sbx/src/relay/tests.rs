use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::streams::{FOR_A_TERMINAL, open_anew};
use super::*;

#[test]
fn output_is_lost_to_a_disk_and_not_to_a_reader_that_has_gone() {
    let (file, terminal) = (FileType::RegularFile, FileType::CharacterDevice);
    for (error, stream, gone) in [
        (Errno::PIPE, FileType::Fifo, true),
        (Errno::CONNRESET, FileType::Socket, true),
        (Errno::IO, terminal, true),
        (Errno::IO, file, false),
        (Errno::NOSPC, file, false),
        (Errno::NOSPC, terminal, false),
    ] {
        let found = reader_has_gone(error, Some(stream));
        assert_eq!(found, gone, "{error:?} of {stream:?}");
    }
    assert!(!reader_has_gone(Errno::IO, None));
}

fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Who has a terminal, and the terminal.
fn terminal() -> (OwnedFd, &'static OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let reader = openpt(flags).unwrap();
    grantpt(&reader).unwrap();
    unlockpt(&reader).unwrap();
    let name = ptsname(&reader, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    (reader, kept(terminal))
}

#[test]
fn what_others_took_from_the_input_is_not_waited_for() {
    let (pipe, to_pipe) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (socket, to_socket) = std::os::unix::net::UnixStream::pair().unwrap();
    let (to_terminal, terminal) = terminal();
    let sources: [(BorrowedFd<'static>, OwnedFd, &[u8]); 3] = [
        (kept(pipe).as_fd(), to_pipe, b"later\n"),
        (kept(socket).as_fd(), to_socket.into(), b"later\n"),
        (terminal.as_fd(), to_terminal, b"later\n"),
    ];
    for (source, feed, text) in sources {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&write).unwrap();
        let mut input = Input::new(source, write);
        // It was polled as readable a moment ago.
        input.source_ready();
        assert!(input.source().is_some(), "that is not its end");
        rustix::io::write(&feed, text).unwrap();
        input.source_ready();
        let mut bytes = [0; 16];
        let count = rustix::io::read(&read, &mut bytes).unwrap();
        assert_eq!(&bytes[..count], text);
        let mode = rustix::fs::fcntl_getfl(source).unwrap();
        assert!(
            !mode.contains(OFlags::NONBLOCK),
            "the caller's is as it was"
        );
    }
}

#[test]
fn a_named_pipe_whose_writers_have_gone_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
    let open = |flags| rustix::fs::open(&path, flags, Mode::empty()).unwrap();
    let both = open(OFlags::RDWR | OFlags::CLOEXEC);
    let source = kept(open(OFlags::RDONLY | OFlags::CLOEXEC));
    drop(both);
    let (_read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    set_nonblocking(&write).unwrap();
    // Opened anew only after the last writer has gone.
    let mut input = Input::new(source.as_fd(), write);
    let polled = input.source().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(polled, PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
    input.source_ready();
    assert!(input.destination().is_none(), "the end is passed on");
}

#[test]
fn what_makes_terminals_is_not_opened_anew() {
    let (maker, _terminal) = terminal();
    assert!(open_anew(maker.as_fd(), OFlags::RDONLY).is_none());
}

#[test]
fn a_terminal_that_cannot_be_opened_again_is_not_waited_for() {
    use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};
    let (reader, terminal) = terminal();
    set_nonblocking(&reader).unwrap();
    let mut modes = tcgetattr(terminal).unwrap();
    // Each tab becomes eight bytes, each newline two.
    modes.output_modes |= OutputModes::OPOST | OutputModes::ONLCR | OutputModes::XTABS;
    tcsetattr(terminal, OptionalActions::Now, &modes).unwrap();
    for text in ["\t", "\n", "x", "\tx\n"] {
        let (to, piece) = (terminal.as_fd(), FOR_A_TERMINAL);
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&read).unwrap();
        let mut output = Output::from_pipe(read, to);
        output.to = Sink::Cautious { to, piece };
        let bytes = text.repeat(60_000 / text.len());
        rustix::io::write(&write, bytes.as_bytes()).unwrap();
        drop(write);
        let mut seen = 0;
        let mut bytes = [0; 1000];
        // Little is taken at a time, so that there is hardly ever room.
        while output.wait() != Wait::Done {
            output.advance();
            seen += rustix::io::read(&reader, &mut bytes).unwrap_or(0);
        }
        assert!(seen > 0 && output.broken.is_none(), "{text:?}: {seen}");
        rustix::termios::tcflush(terminal, rustix::termios::QueueSelector::IOFlush).unwrap();
    }
}

#[test]
fn a_terminal_that_has_hung_up_takes_nothing_and_loses_nothing() {
    let (reader, terminal) = terminal();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    set_nonblocking(&read).unwrap();
    let mut output = Output::from_pipe(read, terminal.as_fd());
    drop(reader);
    rustix::io::write(&write, b"from the command").unwrap();
    output.advance();
    assert_eq!((output.broken, output.lost()), (Some(Errno::IO), None));
}

#[test]
fn only_what_the_command_wrote_is_relayed_after_its_end() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    set_nonblocking(&read).unwrap();
    let null: &'static std::fs::File = Box::leak(Box::new(
        std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .unwrap(),
    ));
    let mut output = Output::from_pipe(read, null.as_fd());
    rustix::io::write(&write, b"from the command").unwrap();
    output.command_ended();
    assert_eq!(output.wait(), Wait::Done);
    let later = rustix::io::write(&write, b"from another writer");
    assert_eq!(later, Err(Errno::PIPE), "it has no reader any more");
}

#[test]
fn what_others_took_after_the_commands_end_is_not_waited_for() {
    let (reader, caller) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let caller: &'static OwnedFd = Box::leak(Box::new(caller));
    let make: [fn(OwnedFd, BorrowedFd<'static>) -> Output; 2] =
        [Output::from_pipe, Output::from_pipe_to_pipe];
    for (make, nonblocking) in make.into_iter().zip([true, false]) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        if nonblocking {
            set_nonblocking(&read).unwrap();
        }
        rustix::io::write(&write, b"left").unwrap();
        let mut output = make(read, caller.as_fd());
        let from = output.from.take().unwrap();
        // There was more when it was asked how much there is.
        output.take_out(&from, 100);
        assert_eq!(output.wait(), Wait::Done);
        let mut bytes = [0; 16];
        assert_eq!(rustix::io::read(&reader, &mut bytes).unwrap(), 4);
        assert_eq!(&bytes[..4], b"left");
    }
}

#[test]
fn from_pipe_to_pipe_nothing_waits_and_nothing_is_lost() {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (reader, caller) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let caller: &'static OwnedFd = Box::leak(Box::new(caller));
    let filled = rustix::io::write(caller, &vec![0; 64 << 10]).unwrap();
    let mut output = Output::from_pipe_to_pipe(read, caller.as_fd());
    rustix::io::write(&write, b"from the command").unwrap();
    assert_eq!(
        output.advance(),
        0,
        "the caller's pipe is full, and blocking"
    );
    assert_eq!(output.wait(), Wait::Writable);
    output.command_ended();
    assert_eq!(output.wait(), Wait::Writable);
    let mut drained = vec![0; filled + 100];
    assert_eq!(rustix::io::read(&reader, &mut drained[..]).unwrap(), filled);
    output.advance();
    assert_eq!(output.wait(), Wait::Done);
    let count = rustix::io::read(&reader, &mut drained[..]).unwrap();
    assert_eq!(&drained[..count], b"from the command");

    // A reader that has gone is known by the next write.
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut output = Output::from_pipe_to_pipe(read, caller.as_fd());
    drop(reader);
    rustix::io::write(&write, b"lost").unwrap();
    assert_eq!(output.advance(), 0);
    assert_eq!(output.broken, Some(Errno::PIPE));
    assert_eq!(output.wait(), Wait::Done);
}

#[test]
fn a_full_pipe_keeps_its_bytes_and_input_waits() {
    let (source, feed) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let source: &'static OwnedFd = Box::leak(Box::new(source));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    set_nonblocking(&write).unwrap();
    let filler = vec![0_u8; 64 << 10];
    let filled = rustix::io::write(&write, &filler).unwrap();
    let mut input = Input::new(source.as_fd(), write);
    rustix::io::write(&feed, b"kept").unwrap();
    input.source_ready();
    assert!(input.source().is_none());
    assert_eq!(input.destination().unwrap().1, Wait::Writable);

    let mut drained = vec![0_u8; filled];
    rustix::io::read(&read, drained.as_mut_slice()).unwrap();
    input.destination_ready();
    let mut kept = [0_u8; 16];
    assert_eq!(rustix::io::read(&read, &mut kept).unwrap(), 4);
    assert_eq!(&kept[..4], b"kept");

    drop(feed);
    input.source_ready();
    assert!(input.destination().is_none(), "the end is passed on");
}
