//! What the policy is asked, for tests that count it. Each test is a thread of its own.

use std::cell::RefCell;
use std::net::IpAddr;

use sbx_policy::{Protocol, Target};

thread_local! {
    static ASKED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn record(target: &Target, address: Option<IpAddr>, protocol: Protocol) {
    let question = match address {
        None => format!("{target} {protocol:?}"),
        Some(address) => format!("{target} at {address} {protocol:?}"),
    };
    ASKED.with_borrow_mut(|asked| asked.push(question));
}

/// Everything that was asked since the last call, in order.
pub(crate) fn take() -> Vec<String> {
    ASKED.take()
}
