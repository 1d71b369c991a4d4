//! What is never worth sending, or never to be sent.

/// Caches, dependencies and what a tool keeps for itself.
pub(super) const CERTAIN: [&str; 22] = [
    ".git",
    "._*",
    "node_modules",
    ".ignored",
    ".turbo",
    ".next",
    ".vite",
    ".parcel-cache",
    ".rollup.cache",
    ".cache",
    ".tmp",
    ".local",
    ".swiftpm",
    ".pnpm-store",
    ".npm",
    ".yarn/cache",
    ".venv",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".gradle",
];

/// What a build makes in most repositories, and a source directory in some.
pub(super) const AMBIGUOUS: [&str; 8] = [
    "dist",
    "dist-runtime",
    "coverage",
    "playwright-report",
    "test-results",
    ".build",
    "apps/*/.build",
    "target",
];

/// Below `.crabbox`: environment files, logs and the like of our own. No rule brings them back.
const PROTECTED: [&str; 5] = ["env", "scripts", "logs", "captures", "runs"];

/// All of them as patterns, for people to look at.
pub fn built_in() -> impl Iterator<Item = String> {
    let usual = CERTAIN.into_iter().chain(AMBIGUOUS).map(str::to_owned);
    usual.chain(PROTECTED.map(|name| format!(".crabbox/{name}")))
}

/// Whether the path is one of ours, in any case: on some file systems `.CRABBOX/Env` is the same file.
pub(super) fn is_protected(path: &[u8]) -> bool {
    let mut parts = path.split(|&byte| byte == b'/');
    let (Some(first), Some(second)) = (parts.next(), parts.next()) else {
        return false;
    };
    // Nearly every path ends here.
    first.starts_with(b".") && folded(first) == ".crabbox" && PROTECTED.contains(&&*folded(second))
}

/// Upper case first: `ſ` and the Kelvin sign are cases of `s` and `k`.
fn folded(part: &[u8]) -> String {
    String::from_utf8_lossy(part).to_uppercase().to_lowercase()
}
