//! Saved templates with namespaces: the upper layers of a sandbox's overlays, shared by the overlays of others.
//!
//! The files keep the ids that they had, in root mode those of the range of their sandbox, and never host root's; a mount
//! with an id map shows them as the ids of the sandbox that uses them.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use sbx_proto::plan::{CopyLayers, Mode, Task};

use super::isolation::mode_name;
use super::plan::{BUNDLES, of_one_sandbox};
use super::template::{HostLayout, SavedLayers};
use super::{Namespace, ids};
use crate::error::{EngineError, prepare_error};
use crate::machine::Template;
use crate::machine::egress::Certificate;
use crate::sandbox::record::Record;
use crate::saved::{Meta, SavedStore};
use crate::state::{SandboxDir, StateDir};

/// Layers of repositories of workspaces, see [`super::plan`].
const GIT_LAYERS: &str = "git-";

impl Namespace {
    pub(in crate::machine) fn copy_layers(
        &self,
        record: &Record,
        dir: &SandboxDir,
        to: &Path,
        authority: &Certificate,
    ) -> Result<u64, EngineError> {
        // Root of the user namespace copies.
        let base = ids::base(&record.ids);
        chown(to, base, base).map_err(|source| prepare_error(to, source))?;
        let disk = fs::symlink_metadata(dir.disk()).is_ok();
        let from = if disk { dir.disk() } else { dir.layers() };
        let task = CopyLayers {
            from: from.as_path().into(),
            disk,
            to: to.into(),
            skip: GIT_LAYERS.into(),
            omit: of_one_sandbox(record),
            certificate: authority.pem.clone(),
            bundles: BUNDLES.iter().map(|bundle| (*bundle).into()).collect(),
        };
        self.helper.copy_layers(&record.ids, task)?;
        let path = to.into();
        Ok(self.helper.measure(&record.ids, Task::Measure { path })?)
    }

    pub(in crate::machine) fn check_saved(&self, template: &Meta) -> Result<(), EngineError> {
        if template.ids.mode == self.mode {
            return Ok(());
        }
        Err(EngineError::TemplateMode {
            tag: template.tag.to_string(),
            saved: mode_name(template.ids.mode),
            here: mode_name(self.mode),
        })
    }

    /// Adds the layers of the saved template that a sandbox is made from.
    pub(super) fn add_saved(
        &self,
        state: &StateDir,
        record: &Record,
        layout: &mut HostLayout,
    ) -> Result<(), EngineError> {
        let Template::Saved { tag, id } = &record.template.name else {
            return Ok(());
        };
        let store = SavedStore::new(state);
        let stack = store.stack(id);
        let stack = stack.map_err(|source| EngineError::UnreadableTemplate {
            tag: tag.to_string(),
            source,
        })?;
        for template in &stack {
            let usable = match record.ids.mode {
                Mode::Root => template.ids.mode == Mode::Root,
                Mode::Subordinate | Mode::Single => template.ids == record.ids,
            };
            if !usable {
                return Err(EngineError::TemplateIds(tag.to_string()));
            }
        }
        if stack.first().and_then(|top| top.host.as_ref()) != Some(&layout.fingerprint) {
            layout.warnings.push(format!(
                "the host's files changed since template `{tag}` was saved; hint: save it again if something is missing"
            ));
        }
        layout.saved = (stack.into_iter())
            .map(|template| SavedLayers {
                layers: store.layers(&template.id),
                base: ids::base(&template.ids),
                dirs: template.dirs,
            })
            .collect();
        Ok(())
    }
}
