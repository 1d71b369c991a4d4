//! The settings of a running daemon: read again whenever the file changes.

use std::sync::Arc;

use sbx_api::SettingsState;
use sbx_engine::error::chain;
use sbx_engine::state::StateError;
use sbx_engine::state::settings::{Overrides, Settings};
use sbx_engine::{Engine, StateDir};

#[derive(Debug, Clone)]
pub struct LiveSettings {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: StateDir,
    /// Of the environment that the daemon was started with.
    overrides: Overrides,
    engine: Engine,
}

/// What holds, by the file and the environment.
pub(crate) fn read(state: &StateDir, overrides: &Overrides) -> Result<Settings, StateError> {
    Ok(Settings::new(&state.settings_values()?, overrides)?)
}

impl LiveSettings {
    pub fn new(state: StateDir, overrides: Overrides, engine: Engine) -> Self {
        Self {
            inner: Arc::new(Inner {
                state,
                overrides,
                engine,
            }),
        }
    }

    /// Follows the file as it is now. What cannot be used changes nothing.
    pub fn reload(&self) -> Result<SettingsState, StateError> {
        let inner = &self.inner;
        let settings = read(&inner.state, &inner.overrides)?;
        let restart_needed = inner.engine.change_settings(settings);
        Ok(SettingsState {
            environment: inner.overrides.clone(),
            restart_needed: restart_needed.into_iter().map(str::to_owned).collect(),
        })
    }

    /// The same for an edit by hand, whose author is not there to be told.
    pub(crate) fn reload_edited(&self) {
        match self.reload() {
            Ok(_) => tracing::info!("settings read again"),
            Err(error) => {
                tracing::warn!(error = chain(&error), "the settings stay what they were");
            }
        }
    }
}
