//! `sbx ports`

use std::num::NonZeroU16;

use sbx_api::{PortChange, PortMapping, Started};
use sbx_engine::sandbox::ports::{PublishSpec, UnpublishSpec, publish_text, together};

use crate::client::{Absent, Client};
use crate::context::Context;
use crate::failure::{Failure, Kind};
use crate::{lookup, text};

/// List, publish or unpublish ports of a sandbox
///
/// A published port of this machine leads to a server in the sandbox, also to one that listens on the sandbox's own
/// loopback only. Without HOST_IP it can be reached from this machine alone; without HOST_PORT a free one is taken.
/// Ports stay published when the sandbox is stopped and started again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A PORT is [[HOST_IP:]HOST_PORT:]SANDBOX_PORT[/PROTOCOL]. PROTOCOL is tcp4 (the default), tcp6, tcp (both), \
                  udp4, udp6 or udp (both).\n\nExamples:\n  sbx ports dev --publish 8080:3000\n  \
                  sbx ports dev --publish 3000/tcp --publish 0.0.0.0:5353:53/udp4\n  sbx ports dev --unpublish 3000"
)]
pub(crate) struct Args {
    /// Name of a sandbox
    #[arg(value_name = "SANDBOX")]
    name: String,
    /// Publish a port (can be repeated); a stopped sandbox is started
    #[arg(long, value_name = "PORT")]
    publish: Vec<String>,
    /// Unpublish a port (can be repeated): HOST_PORT:SANDBOX_PORT, or one of the two
    #[arg(long, value_name = "PORT")]
    unpublish: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let ports = if args.publish.is_empty() && args.unpublish.is_empty() {
        let sandboxes = lookup::list(context)?;
        lookup::find(&sandboxes, &args.name)?.ports.clone()
    } else {
        change(context, args)?
    };
    if args.json {
        return context.ui.json(&ports);
    }
    if !args.publish.is_empty() || !args.unpublish.is_empty() {
        return Ok(());
    }
    if ports.is_empty() {
        let message = format!("Sandbox '{}' publishes no ports.", args.name);
        context.ui.note(message);
        let hint = format!("hint: sbx ports {} --publish 8080:3000", args.name);
        context.ui.note(hint);
        return Ok(());
    }
    context.ui.data(table(context, &ports))
}

fn change(context: &Context, args: &Args) -> Result<Vec<PortMapping>, Failure> {
    check_publish(&args.publish)?;
    for text in &args.unpublish {
        UnpublishSpec::parse(text)?;
    }
    let client = Client::new(context, Absent::Start)?;
    lookup::ensure_exists(context, &client, &args.name)?;
    let changes = with_other_ports(context, &args.publish, |publish| {
        let change = PortChange {
            publish: publish.to_vec(),
            unpublish: args.unpublish.clone(),
        };
        client.change_ports(&args.name, &change)
    })?;
    let unpublished = changes.unpublished.iter();
    let mut lines: Vec<String> = unpublished
        .map(|port| format!("Unpublished {}\n", arrow(port)))
        .collect();
    for port in &changes.published {
        lines.push(format!("Published {}\n", arrow(port)));
        warn_if_open(context, port);
    }
    if !args.json {
        context.ui.data(lines.concat())?;
    }
    Ok(changes.ports)
}

/// A mistake in one of them is found before anything is created or changed.
pub(crate) fn check_publish(texts: &[String]) -> Result<(), Failure> {
    for text in texts {
        PublishSpec::parse(text)?;
    }
    Ok(())
}

/// Starts a sandbox that may be running. Where a port that it publishes is in use by now, another one is asked for on a
/// terminal, and published in its place.
pub(crate) fn start_with_other_ports(
    context: &Context,
    client: &Client<'_>,
    name: &str,
) -> Result<Started, Failure> {
    let failure = match client.start(name) {
        Err(failure) if failure.kind == Kind::Conflict => failure,
        other => return other,
    };
    let Some(sandbox) = client.find(name)? else {
        return Err(failure);
    };
    let stored: Vec<_> = together(&sandbox.ports).collect();
    let before: Vec<_> = stored
        .iter()
        .map(|ports| publish_text(ports, ports.first().map(|port| port.host_port)))
        .collect();
    // The answer to the first attempt is known.
    let mut first = Some(failure);
    with_other_ports(context, &before, |wanted| {
        if let Some(failure) = first.take() {
            return Err(failure);
        }
        let mut change = PortChange {
            publish: Vec::new(),
            unpublish: Vec::new(),
        };
        for ((ports, before), wanted) in stored.iter().zip(&before).zip(wanted) {
            if before != wanted {
                change.publish.push(wanted.clone());
                change.unpublish.extend(ports.iter().map(unpublish_text));
            }
        }
        for port in &client.change_ports(name, &change)?.published {
            context.ui.note(format!("Published {}", arrow(port)));
            warn_if_open(context, port);
        }
        client.start(name)
    })
}

/// The one mapping and no other.
fn unpublish_text(port: &PortMapping) -> String {
    format!("{}:{}/{}", port.host(), port.sandbox_port, port.protocol)
}

/// Asks on a terminal for another port of the host where the one that was wanted is in use, as often as needed.
pub(crate) fn with_other_ports<T>(
    context: &Context,
    publish: &[String],
    mut attempt: impl FnMut(&[String]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut publish = publish.to_vec();
    loop {
        let failure = match attempt(&publish) {
            Err(failure) if failure.kind == Kind::Conflict => failure,
            other => return other,
        };
        let taken = publish
            .iter_mut()
            .find(|text| is_about(&failure.message, text));
        let Some(text) = taken else {
            return Err(failure);
        };
        let question = format!(
            "{}. Another port (Enter: any that is free)?",
            failure.message
        );
        let Some(answer) = context.ui.ask(&question) else {
            return Err(failure);
        };
        match with_host_port(text, &answer) {
            Some(other) => *text = other,
            None => context.ui.note("That is not a port."),
        }
    }
}

/// Whether the daemon's error is about the host's end of this port.
fn is_about(message: &str, publish: &str) -> bool {
    let Some((host, _)) = publish.rsplit_once(':') else {
        return false;
    };
    let port = host.rsplit_once(':').map_or(host, |(_, port)| port);
    let word = |word: &str| word.trim_end_matches(',').ends_with(&format!(":{port}"));
    message.split_whitespace().any(word)
}

/// The same port of the sandbox at another port of the host; at a free one without an answer.
fn with_host_port(publish: &str, answer: &str) -> Option<String> {
    let (host, inside) = publish.rsplit_once(':')?;
    let ip = host.rsplit_once(':').map(|(ip, _)| ip);
    let text = match (ip, answer) {
        (None, "") => inside.to_owned(),
        (None, port) => format!("{port}:{inside}"),
        (Some(ip), "") => format!("{ip}::{inside}"),
        (Some(ip), port) => format!("{ip}:{port}:{inside}"),
    };
    let valid = answer.is_empty() || answer.parse::<NonZeroU16>().is_ok();
    (valid && PublishSpec::parse(&text).is_ok()).then_some(text)
}

/// What other machines may reach is said.
pub(crate) fn warn_if_open(context: &Context, port: &PortMapping) {
    if !port.host_ip.is_loopback() {
        let host = port.host();
        let message = format!("{host} can be reached from other machines");
        context.ui.warning(message);
    }
}

fn arrow(port: &PortMapping) -> String {
    let (host, inside) = (port.host(), port.sandbox_port);
    format!("{host} -> {inside}/{}", port.protocol)
}

fn table(context: &Context, ports: &[PortMapping]) -> String {
    let header = ["HOST IP", "HOST PORT", "SANDBOX PORT", "PROTOCOL"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    rows.extend(ports.iter().map(|port| {
        vec![
            port.host_ip.to_string(),
            port.host_port.to_string(),
            port.sandbox_port.to_string(),
            port.protocol.to_string(),
        ]
    }));
    let mut lines = text::table(&rows);
    if let Some(header) = lines.first_mut() {
        *header = context.ui.heading(header);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_of_the_host() {
        let other = |text, answer| with_host_port(text, answer);
        assert_eq!(other("8080:80", "81"), Some("81:80".into()));
        assert_eq!(other("8080:80/tcp", ""), Some("80/tcp".into()));
        assert_eq!(
            other("127.0.0.1:8080:80", "81"),
            Some("127.0.0.1:81:80".into())
        );
        assert_eq!(
            other("[::1]:8080:80/tcp6", "81"),
            Some("[::1]:81:80/tcp6".into())
        );
        for bad in ["0", "x", "70000", "1:2", "-1"] {
            assert_eq!(other("8080:80", bad), None, "{bad}");
        }
    }

    #[test]
    fn the_port_that_an_error_is_about() {
        let message = "port 127.0.0.1:8080 is in use";
        assert!(is_about(message, "8080:80"));
        assert!(is_about(message, "127.0.0.1:8080:80/tcp"));
        for other in ["80", "80:8080", "808:1", "18080:80"] {
            assert!(!is_about(message, other), "{other}");
        }
    }
}
