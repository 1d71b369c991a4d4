//! What init's own program does inside when it is asked to: the inner ends of `sbx cp` and of SSH.

/// The name that it is executed by, and the first word after it.
pub const PROGRAM: &str = "sbx-init";
/// `pack [-L] PATH`: a tar stream of it on stdout.
pub const PACK: &str = "pack";
/// `unpack KIND BASE PATH`: the tar stream on stdin goes there.
pub const UNPACK: &str = "unpack";
/// Links in what is packed are followed.
pub const FOLLOW: &str = "-L";
/// What is unpacked.
pub const DIRECTORY: &str = "directory";
pub const FILE: &str = "file";
pub const ARCHIVE: &str = "archive";
/// `sftp`: an SFTP server on stdin and stdout.
pub const SFTP: &str = "sftp";
/// `hold`: runs until the end of its stdin. A sandbox in which it runs is in use.
pub const HOLD: &str = "hold";
/// What a line on stderr begins with that says why it failed; other lines are for the user as they are.
pub const ERROR: &str = "error: ";
