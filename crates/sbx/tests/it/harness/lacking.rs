//! What this machine does not have to test with. A test does what it can; one that could not do everything is no
//! success: it counts as skipped, with the reasons.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Completion, Trial};

use super::SYSTEM_PATH;

thread_local! {
    /// Of the test that runs on this thread.
    static LACKING: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Something could not be tried, and why.
pub fn blocked(reason: impl Into<String>) {
    let reason = reason.into();
    LACKING.with_borrow_mut(|lacking| {
        if !lacking.contains(&reason) {
            lacking.push(reason);
        }
    });
}

/// Whether the host, and therefore every sandbox, has a program in its system directories; where it has not, the
/// test is [`blocked`].
pub fn host_has(program: &str) -> bool {
    let found = SYSTEM_PATH
        .split(':')
        .any(|dir| Path::new(dir).join(program).exists());
    if !found {
        blocked(format!("the host has no `{program}`"));
    }
    found
}

/// The same of a module of the host's Python.
pub fn python_has(module: &str) -> bool {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", &format!("import {module}")]);
    let found = python.output().is_ok_and(|said| said.status.success());
    if !found {
        blocked(format!("the host's Python has no `{module}`"));
    }
    found
}

/// A test on a thread of its own for as long as it takes.
pub fn trial(name: String, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name.clone(), move || {
        // Of one that failed here before.
        LACKING.take();
        test();
        let lacking = LACKING.take();
        if lacking.is_empty() {
            return Ok(Completion::Completed);
        }
        let reasons = lacking.join("; ");
        eprintln!("environment_blocked: {name}: {reasons}");
        Ok(Completion::ignored_with(reasons))
    })
}

pub fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next().unwrap_or(0), next().unwrap_or(0)) >= (major, minor)
}
