//! The records of `git status --porcelain=v2 -z`: which tracked paths differ from HEAD.

use std::collections::BTreeSet;

/// The paths, or None where the records are not understood.
pub fn parse_status(bytes: &[u8]) -> Option<BTreeSet<&[u8]>> {
    let body = match bytes.strip_suffix(b"\0") {
        Some(body) => body,
        None if bytes.is_empty() => return Some(BTreeSet::new()),
        None => return None,
    };
    let mut records = body.split(|&byte| byte == 0);
    let mut paths = BTreeSet::new();
    while let Some(record) = records.next() {
        // How many fields stand before the path, which may hold spaces.
        let fields = match record.first()? {
            b'1' => 8,
            b'2' => 9,
            b'u' => 10,
            b'?' | b'!' | b'#' => continue,
            _ => return None,
        };
        let path = record
            .splitn(fields + 1, |&byte| byte == b' ')
            .nth(fields)?;
        if path.is_empty() {
            return None;
        }
        paths.insert(path);
        if record.first() == Some(&b'2') {
            paths.insert(records.next()?);
        }
    }
    Some(paths)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_record() {
        let bytes = b"# branch.oid 12\x001 .M N... 100644 100644 100644 12 34 a b\n\0\
            2 R. N... 100644 100644 100644 12 34 R100 new\0old\0\
            u UU N... 100644 100644 100644 100644 1 2 3 both\0? new\0";
        let paths: Vec<&[u8]> = parse_status(bytes).unwrap().into_iter().collect();
        assert_eq!(paths, [&b"a b\n"[..], b"both", b"new", b"old"]);
        assert_eq!(parse_status(b""), Some(BTreeSet::new()));
    }

    #[test]
    fn damage_is_seen() {
        for bytes in [
            &b"1 .M"[..],
            b"1 .M\0",
            b"x\0",
            b"\0\0",
            b"2 R. N... 1 2 3 4 5 R1 new\0",
        ] {
            assert_eq!(parse_status(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do(bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(b' '), Just(b'1'), Just(b'2'), any::<u8>()], 0..60)) {
            let _ = parse_status(&bytes);
        }
    }
}
