//! `/etc/hosts`, which libc does not find absolute names in: it compares them with their last dot.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;

use sbx_policy::{DomainName, Host};

const PATH: &str = "/etc/hosts";
/// No hosts file that is kept by hand is larger; lists of blocked names are.
const MAX_SIZE: u64 = 16 << 20;

/// The addresses of a name, in the order of the file. One that cannot be read has none.
pub(crate) fn addresses(name: &DomainName) -> Vec<IpAddr> {
    let mut bytes = Vec::new();
    let read = File::open(PATH).and_then(|file| file.take(MAX_SIZE).read_to_end(&mut bytes));
    match read {
        Ok(_) => find(&String::from_utf8_lossy(&bytes), name),
        Err(_) => Vec::new(),
    }
}

fn find(text: &str, name: &DomainName) -> Vec<IpAddr> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(line));
    let found = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.any(|word| is_same(word, name)).then_some(address)
    });
    found.collect()
}

fn is_same(word: &str, name: &DomainName) -> bool {
    // Cheap first: the file may have very many lines.
    word.len().abs_diff(name.as_str().len()) <= 1
        && Host::parse(word).is_ok_and(|host| host.as_name() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_as_libc_reads_them() {
        let text = "# db.test is elsewhere: 192.0.2.9 db.test\n\
                    192.0.2.1\tdb.test  alias.test # also not.test\n\
                    2001:db8::1 DB.test.\n\
                    no-address db.test\n\
                    192.0.2.2 other.db.test db.test.corp\n\
                    192.0.2.3 secret";
        let found = |name: &str| -> Vec<String> {
            let found = find(text, &DomainName::parse(name).unwrap());
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(found("db.test"), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(found("alias.test"), ["192.0.2.1"]);
        assert_eq!(found("secret"), ["192.0.2.3"]);
        for absent in ["not.test", "test", "db", "elsewhere", "db.test.corp.test"] {
            assert_eq!(found(absent), [""; 0], "{absent}");
        }
    }
}
