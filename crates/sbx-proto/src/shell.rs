//! Words of commands that people are told to type, and of scripts.

/// As one word of a shell, whatever it holds.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("a.test:443,b.test"), "a.test:443,b.test");
        assert_eq!(quoted("*.a"), "'*.a'");
        assert_eq!(quoted("[2001:db8::7]:80"), "'[2001:db8::7]:80'");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
        assert_eq!(quoted(""), "''");
    }
}
