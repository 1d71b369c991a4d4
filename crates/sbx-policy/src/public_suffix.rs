//! Who owns a name. Below a public suffix (`co.uk`) and below a suffix of a hosting company (`github.io`) each name has
//! another owner; the Public Suffix List has both (<https://publicsuffix.org>, its ICANN and its private part).

use psl::Psl as _;

/// Hosts of different owners that the list has in part only: each service and region below them is a suffix of its own.
const SHARED: [&str; 6] = [
    "amazonaws.com",
    "azureedge.net",
    "core.windows.net",
    "digitaloceanspaces.com",
    "googleapis.com",
    "googleusercontent.com",
];

/// The domain that one owner has, `example.co.uk` for `a.b.example.co.uk`; none for a name that is itself a suffix below
/// which names have other owners.
pub fn registrable_domain(name: &str) -> Option<&str> {
    let domain = psl::List.domain(name.as_bytes())?;
    std::str::from_utf8(domain.as_bytes()).ok()
}

/// The parent of a name, if all names beside it belong to its owner, as far as we can tell.
pub(crate) fn parent_of_one_owner(name: &str) -> Option<&str> {
    let (_, parent) = name.split_once('.')?;
    let shared = SHARED.iter().any(|shared| {
        let head = parent.strip_suffix(shared);
        head.is_some_and(|head| head.is_empty() || head.ends_with('.'))
    });
    let domain = registrable_domain(name)?;
    (!shared && domain.len() <= parent.len()).then_some(parent)
}
