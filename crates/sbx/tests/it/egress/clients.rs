//! Clients that people use, as they come.

use std::path::Path;
use std::process::Command;

use super::{WAYS, Way, blocked, host_has, sandbox};
use crate::ModeTest;
use crate::harness::{Sandbox, World};

pub(super) const TESTS: &[ModeTest] = &[
    ("clients::curl", curl),
    ("clients::wget", wget),
    ("clients::git", git),
    ("clients::python", python),
    ("clients::node", node),
    ("clients::undici", undici),
];

fn curl(world: &'static World) {
    let sandbox = sandbox(world, "curl");
    sandbox.allow("origin.test,www.origin.test");
    for way in WAYS {
        let curl = |args: &str| sandbox.curl(way, args).ok();
        for scheme in ["http", "https"] {
            let url = |path: &str| format!("{scheme}://origin.test/{path}");
            // Two on one connection.
            let twice = curl(&format!(
                "-w '%{{num_connects}}\\n' {} {}",
                url("hello"),
                url("hello")
            ));
            assert_eq!(twice, "hello\n1\nhello\n0");
            let chunked = curl(&format!("-D heads {}; cat heads", url("chunked")));
            assert!(
                chunked.starts_with("hello world") && chunked.contains("X-Sum: 11"),
                "{chunked}"
            );
            let head = curl(&format!("-I {}", url("anything")));
            assert!(head.contains("Content-Length: 12345"), "{head}");
            assert_eq!(curl(&url("close")), "until the end");
            let expects = curl(&format!(
                "-v -H 'Expect: 100-continue' -d body {} 2>&1",
                url("post")
            ));
            assert!(expects.contains("< HTTP/1.1 100 Continue"), "{expects}");
            assert!(
                expects.contains(
                    "\n4 230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5"
                ),
                "{expects}"
            );
            let posted = curl(&format!(
                "-H 'Transfer-Encoding: chunked' -T all.pem {} -o sent; sha256sum <all.pem; cat sent",
                url("put")
            ));
            let lines: Vec<&str> = posted.lines().collect();
            let sum = lines[0].split(' ').next();
            assert_eq!(sum, lines[1].split(' ').nth(1), "{posted}");
            assert_eq!(
                curl(&format!(
                    "-w '%{{http_code}}' -o /dev/null {}",
                    url("missing")
                )),
                "404"
            );
        }
        // What the origin sees is what the client said, and nothing of the proxy's.
        let echoed = curl("-H 'X-Own: value' -A agent http://origin.test/echo?a=b%20c");
        assert!(echoed.contains("\"path\": \"/echo?a=b%20c\""), "{echoed}");
        assert!(
            echoed.contains("[\"X-Own\", \"value\"]")
                && echoed.contains("[\"Host\", \"origin.test\"]"),
            "{echoed}"
        );
        for other in ["Proxy-", "Via", "Forwarded"] {
            assert!(!echoed.contains(other), "{echoed}");
        }
        if host_has("node") {
            let second = curl("--http2 https://www.origin.test:8443/");
            assert_eq!(second, "HTTP 2.0", "{way:?}");
        }
    }
    // By SOCKS5, with names resolved on either side.
    for scheme in ["socks5h", "socks5"] {
        let proxy = format!("-x {scheme}://gateway.docker.internal:3128 --noproxy ''");
        let said = sandbox.curl(Way::Forward, &format!("{proxy} https://origin.test/hello"));
        assert_eq!(said.ok(), "hello", "{scheme}");
        sandbox
            .curl(Way::Forward, &format!("{proxy} https://other.test/hello"))
            .fails(97);
    }
}

fn wget(world: &'static World) {
    if !host_has("wget") {
        return;
    }
    let sandbox = sandbox(world, "wget");
    sandbox.allow("origin.test");
    for way in WAYS {
        for scheme in ["http", "https"] {
            let get = |host: &str| {
                sandbox.by(
                    way,
                    &format!(
                        "wget -qO- -T 30 -t 1 --ca-certificate=all.pem {scheme}://{host}/hello"
                    ),
                )
            };
            assert_eq!(get("origin.test").ok(), "hello", "{way:?}");
            let denied = match way {
                Way::Forward => 8,
                Way::Transparent => 4,
            };
            get("other.test").fails(denied);
        }
    }
}

fn git(world: &'static World) {
    let sandbox = sandbox(world, "git");
    sandbox.allow("origin.test:80,origin.test:443");
    for way in WAYS {
        for scheme in ["http", "https"] {
            let clone = |host: &str| {
                sandbox.by(
                    way,
                    &format!(
                        "rm -rf clone; export GIT_SSL_CAINFO=$PWD/all.pem; \
                         git clone -q {scheme}://{host}/repo.git clone && cat clone/file"
                    ),
                )
            };
            assert_eq!(clone("origin.test").ok(), "content", "{way:?} {scheme}");
            let denied = clone("other.test").refused();
            let said = match way {
                Way::Forward => "403",
                Way::Transparent => "Could not resolve host",
            };
            assert!(denied.err.contains(said), "{}", denied.err);
        }
    }
}

fn python(world: &'static World) {
    let sandbox = sandbox(world, "python");
    sandbox.allow("origin.test");
    for way in WAYS {
        let said = sandbox.python(way, include_str!("clients.py"), &[]).ok();
        for library in ["urllib", "requests", "httpx"] {
            let lines: Vec<&str> = said
                .lines()
                .filter_map(|line| line.strip_prefix(library))
                .collect();
            if lines == [" missing"] {
                blocked(format!("the host's Python has no `{library}`"));
                continue;
            }
            let denied = match way {
                Way::Forward => [" http 403", " https 403"],
                Way::Transparent => [" http unreachable", " https unreachable"],
            };
            let expected = [" http hello", " https hello", denied[0], denied[1]];
            assert_eq!(lines, expected, "{way:?} {library}: {said}");
        }
    }
}

fn node(world: &'static World) {
    if !host_has("node") {
        return;
    }
    let sandbox = sandbox(world, "node");
    sandbox.allow("origin.test");
    let script = sandbox.path("clients.js");
    world.write(&script, include_str!("clients.js"));
    for way in WAYS {
        // `fetch` heeds the environment from version 24 on; before, it goes the other way by itself.
        let said = sandbox
            .by(
                way,
                "NODE_EXTRA_CA_CERTS=$PWD/all.pem node --no-warnings clients.js",
            )
            .ok();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "fetch http hello",
                "fetch https hello",
                "raw http hello",
                "raw https hello"
            ],
            "{said}"
        );
        for line in &lines[4..] {
            assert!(
                line.ends_with(" 403") || line.ends_with(" unreachable"),
                "{said}"
            );
        }
        assert_eq!(lines.len(), 8, "{said}");
    }
}

/// Packages of Debian's node.
const SYSTEM_MODULES: &str = "/usr/share/nodejs";

fn undici(world: &'static World) {
    if !host_has("node") {
        return;
    }
    let sandbox = sandbox(world, "undici");
    sandbox.allow("origin.test");
    world.write(&sandbox.path("undici.js"), include_str!("undici.js"));
    // From the registry that the machine names, into the workspace; this version is content with every node.
    let mut npm = Command::new("npm");
    // Where nothing answers, it is not tried again for minutes.
    npm.args(["--fetch-retries=0", "--fetch-timeout=60000"])
        .args(["install", "--no-audit", "--no-fund", "--prefix"])
        .arg(sandbox.path("npm"))
        .arg("undici@6");
    match npm.output() {
        Ok(said) if said.status.success() => undici_of(&sandbox, "$PWD/npm/node_modules"),
        Ok(_) | Err(_) => blocked("npm cannot install `undici` here"),
    }
    // An older one, which names the proxy and not the host in the `Host` of its CONNECT.
    if Path::new(SYSTEM_MODULES).join("undici").exists() {
        undici_of(&sandbox, SYSTEM_MODULES);
    } else {
        blocked("the host has no package `node-undici`");
    }
}

/// The one in that directory.
#[track_caller]
fn undici_of(sandbox: &Sandbox<'_>, modules: &str) {
    for way in WAYS {
        let ran = sandbox.by(
            way,
            &format!(
                "NODE_PATH={modules} NODE_EXTRA_CA_CERTS=$PWD/all.pem node --no-warnings undici.js"
            ),
        );
        let denied = match way {
            Way::Forward => "http 403\nhttps 403\n",
            Way::Transparent => "http unreachable\nhttps unreachable\n",
        };
        let expected = format!("http hello\nhttps hello\n{denied}");
        assert_eq!(ran.out, expected, "{way:?} {modules}: {}", ran.err);
    }
}
