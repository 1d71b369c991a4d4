//! Values that no error may show: the key, and what the server says to send with requests to a sandbox.

use std::sync::{Mutex, PoisonError};

use crabbox_core::Failure;
use crabbox_core::redact::Redactor;

#[derive(Default)]
pub(super) struct Secrets {
    values: Mutex<Vec<String>>,
}

impl Secrets {
    pub(super) fn add(&self, values: impl IntoIterator<Item = String>) {
        let mut known = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        for value in values {
            if !known.contains(&value) {
                known.push(value);
            }
        }
    }

    pub(super) fn text(&self, text: &str) -> String {
        self.redactor().clean(text).into_owned()
    }

    /// A failure that can be shown.
    pub(super) fn clean(&self, failure: Failure) -> Failure {
        let redactor = self.redactor();
        let clean = |text: &String| redactor.clean(text).into_owned();
        Failure {
            message: clean(&failure.message),
            causes: failure.causes.iter().map(clean).collect(),
            also: failure.also.iter().map(clean).collect(),
            hints: failure.hints.iter().map(clean).collect(),
            ..failure
        }
    }

    fn redactor(&self) -> Redactor {
        let known = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        Redactor::new(known.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crabbox_core::Code;

    #[test]
    fn every_part_of_a_failure_is_cleaned() {
        let secrets = Secrets::default();
        secrets.add(["s3cr3t-key".to_owned(), "tok en".to_owned()]);
        let failure = Failure::new(Code::Provider, "with s3cr3t-key")
            .because(&Failure::usage("and tok en"))
            .and(&Failure::usage("also s3cr3t-key"))
            .hint("try s3cr3t-key");
        let shown = format!("{:?}", secrets.clean(failure));
        assert!(
            !shown.contains("s3cr3t") && !shown.contains("tok en"),
            "{shown}"
        );
    }
}
