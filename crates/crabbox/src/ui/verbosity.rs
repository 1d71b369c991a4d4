//! How much is said on stderr.

/// How much is said besides failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Nothing (`-q`).
    Quiet,
    /// For a person at a terminal: one line when it takes long, one at the end, warnings.
    Brief,
    /// The `key=value` lines that programs parse.
    Full,
}

/// What decides it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// `--json` or `--timing-json`: the reader is a program.
    pub(crate) machine: bool,
}

impl Verbosity {
    pub(crate) fn choose(wanted: Wanted, stderr_is_terminal: bool) -> Self {
        match wanted {
            Wanted { quiet: true, .. } => Self::Quiet,
            Wanted { verbose: true, .. } | Wanted { machine: true, .. } => Self::Full,
            Wanted { .. } if stderr_is_terminal => Self::Brief,
            Wanted { .. } => Self::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_person_at_a_terminal_gets_the_short_form() {
        let plain = Wanted::default();
        assert_eq!(Verbosity::choose(plain, true), Verbosity::Brief);
        assert_eq!(Verbosity::choose(plain, false), Verbosity::Full);
        let (quiet, verbose, machine) = (true, true, true);
        for terminal in [true, false] {
            let choose = |wanted| Verbosity::choose(wanted, terminal);
            assert_eq!(choose(Wanted { verbose, ..plain }), Verbosity::Full);
            assert_eq!(choose(Wanted { machine, ..plain }), Verbosity::Full);
            assert_eq!(choose(Wanted { quiet, ..plain }), Verbosity::Quiet);
        }
    }
}
