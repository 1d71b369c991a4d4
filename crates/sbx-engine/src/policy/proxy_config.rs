//! The older surface: `proxy-config.json` of a sandbox, and the file that new ones get a copy of.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sbx_api::policy::ProxyConfigChange;
use sbx_policy::{Edit, OlderPattern, Pattern, ProxyConfig};

use super::{Links, PolicyBook, PolicyBookError, read};
use crate::sandbox::name::SandboxName;
use crate::state::{Durability, write_atomic, write_new};
use crate::threads::lock;

const PROXY_CONFIG: &str = "proxy-config.json";

/// `~/.sandboxd/proxy-config.json`, or in the directory that `SBX_HOME` names.
pub fn default_proxy_config(home: &Path, sbx_home: Option<&Path>) -> PathBuf {
    match sbx_home {
        Some(root) => root.join(PROXY_CONFIG),
        None => home.join(".sandboxd").join(PROXY_CONFIG),
    }
}

impl PolicyBook {
    /// The older file of a sandbox, if it has one.
    pub fn proxy_config(&self, name: &SandboxName) -> Result<Option<ProxyConfig>, PolicyBookError> {
        read_proxy_config(&self.proxy_config_path(name), Links::Refused)
    }

    /// Makes the default file, which changes nothing as long as its user does not edit it. One that is there, whatever it
    /// is, stays as it is. Its directory is made too, the home directory above that is not.
    pub fn make_default_proxy_config(&self) -> Result<(), PolicyBookError> {
        let path = &self.default_proxy_config;
        let (Some(dir), Ok(_)) = (path.parent(), path.strip_prefix("/")) else {
            return Ok(());
        };
        if fs::symlink_metadata(path).is_ok() {
            return Ok(());
        }
        let text = ProxyConfig::default().to_json()?;
        let made = match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => write_new(dir, PROXY_CONFIG, text.as_bytes()),
        };
        made.map_err(|source| PolicyBookError::Io {
            path: path.clone(),
            source,
        })
    }

    pub(super) fn proxy_config_path(&self, name: &SandboxName) -> PathBuf {
        self.state.sandbox(name).path().join(PROXY_CONFIG)
    }

    /// Applies the options of `network proxy`, all or none; a sandbox without the file gets one.
    pub fn change_proxy_config(
        &self,
        name: &SandboxName,
        change: &ProxyConfigChange,
    ) -> Result<ProxyConfig, PolicyBookError> {
        let edits = edits(change)?;
        let _writing = lock(&self.writing);
        let mut config = self.proxy_config(name)?.unwrap_or_default();
        for edit in edits {
            config.edit(edit)?;
        }
        self.write_proxy_config(name, &config)?;
        Ok(config)
    }

    pub(super) fn write_proxy_config(
        &self,
        name: &SandboxName,
        config: &ProxyConfig,
    ) -> Result<(), PolicyBookError> {
        let text = config.to_json()?;
        let dir = self.state.sandbox(name);
        write_atomic(dir.path(), PROXY_CONFIG, text.as_bytes(), Durability::Now).map_err(|source| {
            PolicyBookError::Io {
                path: dir.path().join(PROXY_CONFIG),
                source,
            }
        })
    }
}

fn edits(change: &ProxyConfigChange) -> Result<Vec<Edit>, PolicyBookError> {
    let mut edits = Vec::new();
    if let Some(policy) = &change.policy {
        edits.push(Edit::Policy(policy.parse()?));
    }
    type Make = fn(OlderPattern) -> Edit;
    let lists: [(&[String], Make); 6] = [
        (&change.allow_host, Edit::AllowHost),
        (&change.block_host, Edit::BlockHost),
        (&change.bypass_host, Edit::BypassHost),
        (&change.allow_cidr, Edit::AllowCidr),
        (&change.block_cidr, Edit::BlockCidr),
        (&change.bypass_cidr, Edit::BypassCidr),
    ];
    for (texts, edit) in lists {
        for text in texts {
            Pattern::check_typed(text)?;
            edits.push(edit(text.parse()?));
        }
    }
    Ok(edits)
}

pub(super) fn read_proxy_config(
    path: &Path,
    links: Links,
) -> Result<Option<ProxyConfig>, PolicyBookError> {
    let Some(text) = read(path, links)? else {
        return Ok(None);
    };
    ProxyConfig::parse(&text)
        .map(Some)
        .map_err(|source| PolicyBookError::DamagedProxyConfig {
            path: path.to_path_buf(),
            source,
        })
}
