//! HPACK (RFC 7541) for the first head of a connection: no earlier one has left anything in the table then. What the
//! head itself puts there, and refers to, is passed over.

/// The fields that a denial needs; none where they are missing or malformed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) method: Option<String>,
    pub(super) accept: Option<String>,
}

const METHOD_GET: usize = 2;
const METHOD_POST: usize = 3;
const ACCEPT: usize = 19;

/// Reads a whole header block, if it is one.
pub(super) fn read(mut block: &[u8]) -> Option<Fields> {
    let mut fields = Fields::default();
    while let Some(first) = block.first() {
        let (literal, prefix) = match first {
            0x80.. => (false, 7),
            0x40.. => (true, 6),
            // A new size of the table.
            0x20.. => {
                (_, block) = integer(block, 5)?;
                continue;
            }
            _ => (true, 4),
        };
        let (index, rest) = integer(block, prefix)?;
        block = rest;
        if !literal {
            match index {
                0 => return None,
                METHOD_GET => fields.set(b":method", || Some("GET".into())),
                METHOD_POST => fields.set(b":method", || Some("POST".into())),
                _ => {}
            }
            continue;
        }
        let name = match index {
            0 => {
                let (name, rest) = string(block)?;
                block = rest;
                name.text().unwrap_or_default().into_bytes()
            }
            METHOD_GET | METHOD_POST => b":method".to_vec(),
            ACCEPT => b"accept".to_vec(),
            _ => Vec::new(),
        };
        let (value, rest) = string(block)?;
        block = rest;
        fields.set(&name, || value.text());
    }
    Some(fields)
}

impl Fields {
    /// The first of several counts.
    fn set(&mut self, name: &[u8], value: impl FnOnce() -> Option<String>) {
        let field = match name {
            b":method" => &mut self.method,
            b"accept" => &mut self.accept,
            _ => return,
        };
        if field.is_none() {
            *field = value();
        }
    }
}

/// An integer whose first `prefix` bits are in the first byte, and what follows it.
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some((value, rest));
    }
    // Nothing here is longer than a head, so three more bytes suffice.
    for shift in [0, 7, 14] {
        let (byte, after) = rest.split_first()?;
        rest = after;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

struct Text<'a> {
    packed: bool,
    bytes: &'a [u8],
}

fn string(bytes: &[u8]) -> Option<(Text<'_>, &[u8])> {
    let packed = bytes.first()? & 0x80 != 0;
    let (length, rest) = integer(bytes, 7)?;
    let (bytes, rest) = rest.split_at_checked(length)?;
    Some((Text { packed, bytes }, rest))
}

impl Text<'_> {
    fn text(&self) -> Option<String> {
        let bytes = match self.packed {
            true => unpack(self.bytes)?,
            false => self.bytes.to_vec(),
        };
        String::from_utf8(bytes).ok()
    }
}

/// The printable characters by the length of their code. Codes of one length are consecutive, and each length begins
/// where the one before it ended (RFC 7541, appendix B); longer ones are for what no field that matters has.
const CODES: &[(u32, &[u8])] = &[
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

/// Undoes the Huffman code of a string.
fn unpack(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // The bits that are no character yet.
    let (mut code, mut length) = (0u32, 0u32);
    for bit in bytes
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |n| byte >> n & 1))
    {
        code = code << 1 | u32::from(bit);
        length += 1;
        if let Some(character) = character(code, length) {
            text.push(character);
            (code, length) = (0, 0);
        } else if length > 15 {
            return None;
        }
    }
    // The rest of the last byte is all ones.
    let padding = length < 8 && code == (1 << length) - 1;
    padding.then_some(text)
}

fn character(code: u32, length: u32) -> Option<u8> {
    let mut first = 0u32;
    let mut before = 0;
    for (bits, characters) in CODES {
        first <<= bits - before;
        before = *bits;
        if *bits == length {
            let slot = usize::try_from(code.checked_sub(first)?).ok()?;
            return characters.get(slot).copied();
        }
        first += u32::try_from(characters.len()).ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|b| *b != b' ').collect();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// RFC 7541, appendix C.
    #[test]
    fn the_examples_of_the_specification() {
        for (packed, text) in [
            ("f1e3 c2e5 f23a 6ba0 ab90 f4ff", "www.example.com"),
            ("a8eb 1064 9cbf", "no-cache"),
            ("25a8 49e9 5ba9 7d7f", "custom-key"),
            ("25a8 49e9 5bb8 e8b4 bf", "custom-value"),
            ("6402", "302"),
            (
                "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            (
                "9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3",
                "https://www.example.com",
            ),
        ] {
            let unpacked = unpack(&hex(packed)).map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(unpacked.as_deref(), Some(text));
        }
        let get = Fields {
            method: Some("GET".into()),
            accept: None,
        };
        for block in [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        ] {
            assert_eq!(read(&hex(block)).as_ref(), Some(&get));
        }
    }

    #[test]
    fn fields_that_matter() {
        let json = Fields {
            method: Some("HEAD".into()),
            accept: Some("application/json".into()),
        };
        // As a literal with and without a known name, with and without a place in the table.
        for accept in [
            "5310",
            "0f0410",
            "1f0410",
            "4006616363657074 10",
            "0006616363657074 10",
        ] {
            let mut block = hex("3fe11f 4204 48454144");
            block.extend(hex(accept));
            block.extend(b"application/json");
            block.extend(hex("be"));
            assert_eq!(read(&block).as_ref(), Some(&json), "{accept}");
        }
        // Packed, and the first one counts.
        let block = hex("538b 1d75d0620d263d4c7441ea 5303 2a2f2a 83");
        let packed = Fields {
            method: Some("POST".into()),
            accept: Some("application/json".into()),
        };
        assert_eq!(read(&block), Some(packed));
    }

    #[test]
    fn no_header_blocks() {
        for block in [
            "80",
            "82 41",
            "41 85 61",
            "7f",
            "7f ffffffff 00",
            "53 7f ff",
            "00 01",
        ] {
            assert_eq!(read(&hex(block)), None, "{block}");
        }
        // What has no text is only not known.
        for block in ["53 01 ff", "53 81 00", "53 84 ffffffff", "53 83 fffff0"] {
            assert_eq!(read(&hex(block)), Some(Fields::default()), "{block}");
        }
    }
}
