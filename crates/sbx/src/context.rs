//! What every command gets: the caller's environment, the output and the state directory.

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
