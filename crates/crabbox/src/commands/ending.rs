//! How the end of a run is told.

use crabbox_core::Failure;
use crabbox_core::lifecycle::Outcome;
use crabbox_core::provider::Spec;

use crate::app::App;
use crate::ui::Verbosity;
use crate::ui::table::took;

/// A command's own exit code is ours.
pub(super) fn exit(app: &App<'_>, spec: &Spec, outcome: Outcome) -> Result<u8, Failure> {
    let code = outcome.ended.clone()?;
    let exit = u8::try_from(code).unwrap_or(1);
    if app.ui.verbosity() == Verbosity::Brief {
        tell_kept(app, &outcome);
        for hint in &outcome.hints {
            app.ui.say(&format!("hint: {hint}"));
        }
        app.ui.say(&last_line(exit, outcome.timing.end_to_end_ms));
    } else if exit != 0 {
        let line = format!("{} run exited {code}", spec.name);
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
fn tell_kept(app: &App<'_>, outcome: &Outcome) {
    let session = outcome.session.as_ref();
    let Some(session) = session.filter(|session| session.kept && !session.reused) else {
        return;
    };
    let name = session.slug.as_ref().unwrap_or(&session.lease_id);
    let stop = &session.cleanup_command;
    app.ui.say(&format!(
        "kept {name}: crabbox run --id {name} -- COMMAND; {stop}"
    ));
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
