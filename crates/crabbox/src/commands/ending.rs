//! How the end of a run is told.

use crabbox_core::Failure;
use crabbox_core::lifecycle::Outcome;
use crabbox_core::provider::Provider;

use crate::app::App;
use crate::ui::Verbosity;
use crate::ui::table::took;

/// A command's own exit code is ours.
pub(super) fn exit(
    app: &App<'_>,
    provider: &dyn Provider,
    outcome: Outcome,
) -> Result<u8, Failure> {
    let is_brief = app.ui.verbosity() == Verbosity::Brief;
    if is_brief {
        tell_kept(app, provider, &outcome);
    }
    let code = outcome.ended.clone()?;
    let exit = u8::try_from(code).unwrap_or(1);
    if is_brief {
        for hint in &outcome.hints {
            app.ui.say(&format!("hint: {hint}"));
        }
        app.ui.say(&last_line(exit, outcome.timing.end_to_end_ms));
    } else if exit != 0 {
        let line = format!("{} run exited {code}", provider.spec().name);
        app.ui.command_exit(&line, exit, outcome.hints);
    }
    Ok(exit)
}

fn last_line(exit: u8, ms: u64) -> String {
    let mark = match exit {
        0 => '✓',
        _ => '✗',
    };
    format!("{mark} {}  exit {exit}", took(ms))
}

/// The name of a new lease that stays, which was not told before.
fn tell_kept(app: &App<'_>, provider: &dyn Provider, outcome: &Outcome) {
    let session = outcome.session.as_ref();
    let Some(session) = session.filter(|session| session.kept && !session.reused) else {
        return;
    };
    let name = session.slug.as_ref().unwrap_or(&session.lease_id);
    app.ui
        .say(&format!("kept {name}\n{}", next_steps(provider, name)));
}

/// What can be done with a lease that stays. Its claim says which provider has it.
pub(super) fn next_steps(provider: &dyn Provider, name: &str) -> String {
    let command = |verb: &str| {
        let full = provider.command(verb);
        match full == format!("crabbox {verb} --provider {}", provider.spec().name) {
            true => format!("crabbox {verb}"),
            false => full,
        }
    };
    let (run, stop) = (command("run"), command("stop"));
    format!("  run in it: {run} --id {name} -- COMMAND\n  remove it: {stop} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_tells_how_long_it_took_and_how_it_ended() {
        assert_eq!(last_line(0, 1549), "✓ 1.5s  exit 0");
        assert_eq!(last_line(7, 61_000), "✗ 1m01s  exit 7");
    }
}
