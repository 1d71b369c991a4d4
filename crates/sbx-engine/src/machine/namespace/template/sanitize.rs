//! Takes credentials out of configuration that others may read: proxies and package indexes are often
//! written as `https://user:password@host`.

/// Text without user names and passwords in its URLs. `ssh://git@host` stays: it holds no secret.
pub(super) fn urls(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let authority = after
            .find(|c: char| c == '/' || c == '"' || c == '\'' || c == '>' || c.is_whitespace())
            .and_then(|end| after.get(..end))
            .unwrap_or(after);
        // The last `@`: a password may hold another.
        let user = authority.rfind('@').and_then(|end| authority.get(..end));
        rest = match user {
            Some(user)
                if user.contains(':')
                    || before.ends_with("http://")
                    || before.ends_with("https://") =>
            {
                after.get(user.len() + 1..).unwrap_or_default()
            }
            Some(_) | None => after,
        };
    }
    out.push_str(rest);
    Some(out)
}

/// As [`urls`], and no line whose key speaks of a secret.
pub(super) fn settings(text: &str) -> Option<String> {
    let kept: String = text
        .split_inclusive('\n')
        .filter(|line| !names_secret(line))
        .collect();
    urls(&kept)
}

/// A git configuration without credential sections, extra headers and rewritten URLs with passwords.
pub(super) fn git(text: &str) -> Option<String> {
    let mut keep = true;
    let mut kept = String::new();
    for line in text.split_inclusive('\n') {
        let word = line.trim_start().to_ascii_lowercase();
        if word.starts_with('[') {
            keep = !word.starts_with("[credential");
        }
        if keep && !word.starts_with("extraheader") && !word.starts_with("helper") {
            kept.push_str(line);
        }
    }
    settings(&kept)
}

/// A document that is left out as a whole when it holds a password.
pub(super) fn xml(text: &str) -> Option<String> {
    let secret = ["<password>", "<passphrase>", "<privatekey>", "<token>"];
    let lower = text.to_ascii_lowercase();
    if secret.iter().any(|tag| lower.contains(tag)) {
        return None;
    }
    urls(text)
}

/// Certificates, never with their keys.
pub(super) fn certificates(text: &str) -> Option<String> {
    (!text.contains("PRIVATE KEY-----")).then(|| text.to_owned())
}

fn names_secret(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
    let key = line
        .split(['=', ' ', '\t'])
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    if key.starts_with(['#', ';', '[']) {
        return false;
    }
    [
        "password", "passwd", "secret", "token", "_auth", "api_key", "apikey",
    ]
    .iter()
    .any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_their_user_and_password() {
        let cases = [
            (
                "index-url = https://bob:pw@x.org/simple",
                "index-url = https://x.org/simple",
            ),
            (
                "deb [a=b] https://tok@x/ s main\nok",
                "deb [a=b] https://x/ s main\nok",
            ),
            ("http://a:p@ss@h:80", "http://h:80"),
            ("ssh://git@github.com/x", "ssh://git@github.com/x"),
            ("ftp://a:b@h \"https://c@d\"", "ftp://h \"https://d\""),
            ("see https://x.org/a@b", "see https://x.org/a@b"),
        ];
        for (from, to) in cases {
            assert_eq!(urls(from).as_deref(), Some(to));
        }
    }

    #[test]
    fn secret_keys_and_sections_are_dropped() {
        assert_eq!(
            settings("//r/:_authToken=abc\nregistry=https://r/\n# password=x\npassword = y\nexport A_TOKEN=1\n").as_deref(),
            Some("registry=https://r/\n# password=x\n")
        );
        assert_eq!(
            git("[credential \"x\"]\n\thelper = store\n[user]\n\tname = A\n[http]\n\textraHeader = B\n").as_deref(),
            Some("[user]\n\tname = A\n[http]\n")
        );
        assert_eq!(xml("<server><password>x</password></server>"), None);
        assert_eq!(certificates("-----BEGIN RSA PRIVATE KEY-----"), None);
    }
}
