//! What every command is given: the caller's environment, the way to print, the place of the state.

use sbx_engine::StateDir;

use crate::env::Env;
use crate::failure::Failure;
use crate::ui::Ui;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) env: Env,
    pub(crate) ui: Ui,
}

impl Context {
    pub(crate) fn state(&self) -> Result<StateDir, Failure> {
        self.env.state_dir()
    }
}
