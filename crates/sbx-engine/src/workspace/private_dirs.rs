//! Directories of secrets and settings, by their names. A workspace in one has to be meant; a template shows nothing of
//! them.

use std::path::Path;

/// Never shown, nor anything below or behind them, wherever they lie: nothing but secrets and settings.
pub(crate) const PRIVATE: &[&str] = &[
    ".aws",
    ".azure",
    ".config",
    ".docker",
    ".gcloud",
    ".gnupg",
    ".gsutil",
    ".kube",
    ".minikube",
    ".mozilla",
    ".netrc",
    ".oci",
    ".password-store",
    ".pki",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    "keyrings",
];
/// What tools keep their programs in below one of [`PRIVATE`].
const TOOLS_IN_PRIVATE: &[&str] = &[
    ".config/composer/vendor",
    ".config/nvm",
    ".config/yarn/global",
    ".docker/bin",
];

/// Does it lie in a directory of secrets or settings?
pub(crate) fn is_private(path: &Path) -> bool {
    path.ancestors().any(|above| {
        let private = above
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| PRIVATE.contains(&name));
        let tool = || {
            let mut tools = TOOLS_IN_PRIVATE.iter().map(Path::new);
            tools.any(|tool| {
                let base = above.parent().unwrap_or(above);
                path.starts_with(base.join(tool))
            })
        };
        private && !tool()
    })
}
