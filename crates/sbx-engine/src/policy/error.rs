//! Why the rules could not be read or changed, with the code and the hint that a client shows.

use std::io;
use std::path::{Path, PathBuf};

use sbx_api::ErrorCode;
use sbx_policy::{
    BadScope, Pattern, PatternError, ProxyConfigError, Scope, StoreError, UnknownPreset,
};
use sbx_proto::shell::quoted;
use thiserror::Error;

use crate::sandbox::name::NameError;
use crate::sandbox::record::RecordError;
use crate::state::{StateError, full_disk_hint};

#[derive(Debug, Error)]
pub enum PolicyBookError {
    #[error("cannot use `{path}`")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the network policy in `{path}` cannot be read, so nothing is allowed")]
    Damaged {
        path: PathBuf,
        #[source]
        source: Box<StoreError>,
    },
    #[error("the network settings in `{path}` cannot be read, so nothing is allowed")]
    DamagedProxyConfig {
        path: PathBuf,
        #[source]
        source: ProxyConfigError,
    },
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Store(Box<StoreError>),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    ProxyConfig(#[from] ProxyConfigError),
    #[error(transparent)]
    Preset(#[from] UnknownPreset),
    #[error(transparent)]
    Scope(#[from] BadScope),
    #[error("a rule is for a sandbox or for a repository, not for both")]
    TwoScopes,
    #[error(transparent)]
    Record(Box<RecordError>),
    #[error("a rule that allows `{resource}` would have no effect: {why}")]
    Idle {
        resource: Pattern,
        why: &'static str,
        /// What was meant.
        meant: Option<String>,
    },
    #[error("invalid rule duration: {0} seconds")]
    Duration(u64),
}

impl From<RecordError> for PolicyBookError {
    fn from(error: RecordError) -> Self {
        Self::Record(Box::new(error))
    }
}

impl From<StoreError> for PolicyBookError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl PolicyBookError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Name(_)
            | Self::Pattern(_)
            | Self::Preset(_)
            | Self::Scope(_)
            | Self::TwoScopes
            | Self::Duration(_)
            | Self::Idle { .. }
            | Self::ProxyConfig(
                ProxyConfigError::Mode(_) | ProxyConfigError::NotAnAddress { .. },
            ) => ErrorCode::BadRequest,
            Self::Store(error) => store_code(error),
            Self::Io { .. }
            | Self::Damaged { .. }
            | Self::DamagedProxyConfig { .. }
            | Self::State(_)
            | Self::Record(_)
            | Self::ProxyConfig(ProxyConfigError::Json(_) | ProxyConfigError::Write(_)) => {
                ErrorCode::Engine
            }
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Damaged { .. } => {
                Some("repair it, or start again with `sbx policy reset`".into())
            }
            Self::DamagedProxyConfig { path, .. } => {
                Some(format!("repair or remove `{}`", path.display()))
            }
            Self::State(error) => error.hint().map(str::to_owned),
            Self::Store(error) => store_hint(error),
            Self::Idle { meant, .. } => (meant.as_ref()).map(|meant| format!("write `{meant}`")),
            Self::Io { path, source } => Some(io_hint(path, source)),
            Self::Name(_)
            | Self::Pattern(_)
            | Self::ProxyConfig(_)
            | Self::Preset(_)
            | Self::Scope(_)
            | Self::TwoScopes
            | Self::Record(_)
            | Self::Duration(_) => None,
        }
    }
}

/// The rules in it are worth more than the space that they take.
fn io_hint(path: &Path, source: &io::Error) -> String {
    let full = full_disk_hint(source).map(str::to_owned);
    full.unwrap_or_else(|| {
        let path = path.display();
        format!("put a plain file that you may read and write at `{path}`, or remove it")
    })
}

fn store_code(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::AlreadyInitialized(_)
        | StoreError::Conflict { .. }
        | StoreError::ReadOnly { .. } => ErrorCode::Conflict,
        StoreError::NoSuchRule(_) | StoreError::NoSuchResource { .. } => ErrorCode::NotFound,
        StoreError::NothingToRemove
        | StoreError::NoResources(_)
        | StoreError::PrivateWildcard(_)
        | StoreError::PrivateDeny
        | StoreError::NameNotId { .. }
        | StoreError::OtherScope { .. } => ErrorCode::BadRequest,
        StoreError::Json(_)
        | StoreError::Write(_)
        | StoreError::Version(_)
        | StoreError::DuplicateId(_) => ErrorCode::Engine,
    }
}

/// The command that was meant, or the one that helps.
fn store_hint(error: &StoreError) -> Option<String> {
    let removal =
        |scope: &Scope, id: &str| format!("sbx policy rm network{} --id {id}", scope.option());
    match error {
        StoreError::AlreadyInitialized(_) => Some("sbx policy reset".into()),
        // Not the rule: it may say more than that.
        StoreError::Conflict {
            scope, resource, ..
        } => {
            let resource = quoted(&resource.to_string());
            let option = scope.option();
            Some(format!(
                "sbx policy rm network{option} --resource {resource}"
            ))
        }
        StoreError::NameNotId { id, scope, .. } | StoreError::OtherScope { id, scope } => {
            Some(removal(scope, id))
        }
        StoreError::NoSuchRule(_)
        | StoreError::NoSuchResource { .. }
        | StoreError::NothingToRemove => Some("sbx policy ls --wide".into()),
        StoreError::ReadOnly { id, .. } => Some(format!("sbx policy inspect {id}")),
        StoreError::Json(_)
        | StoreError::Write(_)
        | StoreError::Version(_)
        | StoreError::DuplicateId(_)
        | StoreError::PrivateWildcard(_)
        | StoreError::PrivateDeny
        | StoreError::NoResources(_) => None,
    }
}
