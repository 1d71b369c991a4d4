//! A file as `ls -l` shows it: what `sftp` prints, and nothing but people read. Owners are numbers.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::{FileType, Stat};

pub(crate) fn line(name: &[u8], stat: &Stat) -> Vec<u8> {
    let time = Timestamp::from_second(stat.st_mtime).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = time
        .to_zoned(TimeZone::UTC)
        .strftime("%b %e %Y")
        .to_string();
    let facts = format!(
        "{} {:>4} {:<8} {:<8} {:>8} {time} ",
        mode(stat.st_mode),
        stat.st_nlink,
        stat.st_uid,
        stat.st_gid,
        stat.st_size,
    );
    [facts.as_bytes(), name].concat()
}

fn mode(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_ls_shows_them() {
        for (bits, text) in [
            (0o100_644, "-rw-r--r--"),
            (0o041_777, "drwxrwxrwt"),
            (0o104_755, "-rwsr-xr-x"),
            (0o102_644, "-rw-r-Sr--"),
            (0o120_777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode(bits), text);
        }
    }
}
