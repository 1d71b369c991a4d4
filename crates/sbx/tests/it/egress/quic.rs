//! HTTP/3 by a client of its own: QUIC is UDP, which does not leave a sandbox, whatever the rules say.

use super::{NO_PROXY, Way, host_has, sandbox};
use crate::ModeTest;
use crate::harness::{Ran, World, eventually};

pub(super) const TESTS: &[ModeTest] = &[("quic::reaches_no_server", reaches_no_server)];

fn reaches_no_server(world: &'static World) {
    let found = ["gtlsclient", "gtlsserver"].map(host_has);
    if found.contains(&false) {
        return;
    }
    let sandbox = sandbox(world, "quic");
    let get = |host: &str| {
        let authority = match host.contains(':') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        format!(
            "made=$(mktemp -d); cd \"$made\"; timeout 20 gtlsclient -q --handshake-timeout=3s --timeout=5s \
             --exit-on-all-streams-close --download=. {host} 443 https://{authority}/h3.txt; \
             cat h3.txt; rm -r \"$made\""
        )
    };
    // It is there for those who are outside.
    for host in ["origin.test", "198.51.100.7"] {
        eventually(&format!("{host} speaks QUIC"), || {
            let mut outside = world.command("sh");
            let outside = outside.args(["-c", &get(host)]);
            let said = Ran::from(outside.output().unwrap());
            (said.out == "by QUIC\n").then_some(())
        });
    }
    sandbox.allow("**");
    sandbox.allow("origin.test:443,198.51.100.0/24,203.0.113.0/24,2001:db8::/32");
    assert_eq!(
        sandbox
            .curl(Way::Transparent, "https://origin.test/hello")
            .ok(),
        "hello"
    );
    let script = ["origin.test", "198.51.100.7", "203.0.113.1", "2001:db8::1"].map(|host| {
        // At once: none hears an answer, and each waits for one.
        format!("({}) &\n", get(host))
    });
    let script = format!("{NO_PROXY}; {} wait", script.concat());
    for user in ["agent", "root"] {
        let said = sandbox.exec_with(&["-u", user], ["sh", "-c", &script]);
        assert_eq!(said.out, "", "{user}");
        let waited = said.err.matches("ERR_HANDSHAKE_TIMEOUT").count();
        assert_eq!(waited, 4, "{user}: {}", said.err);
    }
}
