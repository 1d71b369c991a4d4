use std::process::Command;

use proptest::prelude::*;

use super::*;

const STRICT: Rules<'_> = Rules {
    shell: &["sh", "-lc"],
    assignments: Assignments::Strict,
    host_paths: true,
};
const LOOSE: Rules<'_> = Rules {
    shell: &["bash", "-lc"],
    assignments: Assignments::Loose,
    host_paths: false,
};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn argv(given: &[&str], shell: Shell, rules: Rules<'_>) -> Vec<String> {
    built(given, shell, rules).argv()
}

fn built(given: &[&str], shell: Shell, rules: Rules<'_>) -> RemoteCommand {
    let is_program = |path: &str| path == "./my tool";
    RemoteCommand::build(&words(given), shell, rules, &is_program).unwrap()
}

#[test]
fn plain_words_run_as_they_are() {
    for given in [
        &["true"][..],
        &["echo", "a b", "$HOME", "*", "it's", ""],
        &["echo", "a&&b", "x;y", "2>file"],
        &["find", ".", "-exec", "rm", "{}", ";"],
        &["./my tool"],
        &["env", "A=1"],
        &["--flag=1"],
        &[""],
    ] {
        assert_eq!(argv(given, Shell::Auto, STRICT), words(given));
    }
}

#[test]
fn a_word_with_a_scripts_characters_is_a_script() {
    for script in [
        "a b", "a\tb", "a\rb", "a\nb", "a&", "a|b", "a;", "a<b", "a>b", "*", "$A", "`a`", "(a",
        "a)", "A=1",
    ] {
        assert_eq!(
            argv(&[script], Shell::Auto, STRICT),
            words(&["sh", "-lc", script])
        );
    }
}

#[test]
fn the_flag_joins_the_words() {
    assert_eq!(
        argv(&["echo", "$HOME", "&&", "ls"], Shell::Asked, LOOSE),
        words(&["bash", "-lc", "echo $HOME && ls"])
    );
}

#[test]
fn operators_and_leading_assignments_stay_and_the_rest_is_quoted() {
    for (given, script) in [
        (&["a", "&&", "b c"][..], "'a' && 'b c'"),
        (&["A=1 2", "B=", "cmd", "C=3"], "A='1 2' B='' 'cmd' 'C=3'"),
        (
            &["A=1", "x", "|", "B=2", "y", ">", "f g", "Z=1"],
            "A='1' 'x' | B='2' 'y' '>' 'f g' 'Z=1'",
        ),
        (&["A=1", "grep", ">", "notes"], "A='1' 'grep' '>' 'notes'"),
        (
            &["a", ";", "b", "||", "c", "2>", "it's"],
            r"'a' ; 'b' || 'c' '2>' 'it'\''s'",
        ),
        (
            &["cd", "d", "&&", "find", "-exec", "ls", "{}", ";"],
            "'cd' 'd' && 'find' '-exec' 'ls' '{}' ';'",
        ),
        (
            &["a", "&&", "B=1", "c", "||", "D=2", "e", ";", "F=3", "g"],
            "'a' && B='1' 'c' || D='2' 'e' ; F='3' 'g'",
        ),
    ] {
        assert_eq!(
            argv(given, Shell::Auto, STRICT),
            words(&["sh", "-lc", script])
        );
    }
}

/// `grep '>' notes.txt` emptied the file.
#[test]
fn redirection_words_are_arguments() {
    for redirection in [">", ">>", "<", "2>", "2>>"] {
        let given = &["grep", redirection, "notes.txt"];
        assert_eq!(argv(given, Shell::Auto, STRICT), words(given));
        assert_eq!(argv(given, Shell::Auto, LOOSE), words(given));
    }
}

#[test]
fn both_flags_win() {
    for given in [
        &["a", "&&", "b"][..],
        &["A=1", "b"],
        &["a b"],
        &["A=1"],
        &["a", "b"],
    ] {
        assert_eq!(argv(given, Shell::Refused, STRICT), words(given));
        assert_eq!(
            argv(given, Shell::Asked, STRICT),
            words(&["sh", "-lc", &given.join(" ")])
        );
    }
    // An existing program too.
    assert_eq!(
        argv(&["./my tool"], Shell::Asked, STRICT),
        words(&["sh", "-lc", "./my tool"])
    );
}

#[test]
fn a_path_counts_only_where_it_means_the_same_file() {
    assert_eq!(
        argv(&["./my tool"], Shell::Auto, LOOSE),
        words(&["bash", "-lc", "./my tool"])
    );
    assert_eq!(
        argv(&["./no tool"], Shell::Auto, STRICT),
        words(&["sh", "-lc", "./no tool"])
    );
}

#[test]
fn only_an_operator_is_told() {
    let notice = |given: &[&str], shell| built(given, shell, STRICT).notice(&words(given));
    assert_eq!(
        notice(&["a", "|", "b"], Shell::Auto).unwrap(),
        "note: `|` makes the command a script for `sh -lc`; --no-shell passes it as an argument"
    );
    let redirected = notice(&["a", "&&", "b", ">", "c"], Shell::Auto).unwrap();
    assert!(
        redirected.ends_with("; `>` stays an argument unless --shell is given"),
        "{redirected}"
    );
    for (given, shell) in [
        (&["a", "|", "b"][..], Shell::Asked),
        (&["a", "|", "b"], Shell::Refused),
        (&["A=1", "b"], Shell::Auto),
        (&["a | b"], Shell::Auto),
        (&["find", ";"], Shell::Auto),
    ] {
        assert_eq!(notice(given, shell), None, "{given:?}");
    }
}

#[test]
fn the_provider_says_how_leniently_assignments_are_taken() {
    let given = &["a.b=1", "cmd"];
    assert_eq!(argv(given, Shell::Auto, STRICT), words(given));
    assert_eq!(
        argv(given, Shell::Auto, LOOSE),
        words(&["bash", "-lc", "'a.b=1' 'cmd'"])
    );
    // A lenient name never reaches the shell unquoted.
    assert_eq!(
        argv(&["$(id)=1", "cmd"], Shell::Auto, LOOSE),
        words(&["bash", "-lc", "'$(id)=1' 'cmd'"])
    );
    assert_eq!(
        argv(&["--a=1", "cmd"], Shell::Auto, LOOSE),
        words(&["--a=1", "cmd"])
    );
}

#[test]
fn no_command_is_a_usage_error() {
    let failure = RemoteCommand::build(&[], Shell::Asked, STRICT, &|_| false).unwrap_err();
    assert_eq!(failure.code, crate::Code::Usage);
}

#[test]
fn what_is_shown_is_quoted_only_where_needed_and_shows_control_characters() {
    assert_eq!(
        display(&["cargo", "test", "--a=b", "x y", "it's", "", "~"]),
        r"cargo test --a=b 'x y' 'it'\''s' '' '~'"
    );
    assert_eq!(
        display(&["\u{1b}[2Jx", "a\nb'c\\", "\u{7}1", "\u{202e}evil"]),
        r"$'\x1b[2Jx' $'a\nb\'c\\' $'\x071' $'\u202eevil'"
    );
}

/// What a program gets when this script is run by a real shell.
fn received(shell: &str, script: &str) -> Vec<String> {
    let output = Command::new(shell).arg("-c").arg(script).output().unwrap();
    assert!(output.status.success(), "{script:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut received: Vec<String> = text.split('\0').map(str::to_owned).collect();
    assert_eq!(received.pop().as_deref(), Some(""));
    received
}

fn through_the_shell(given: &[String]) -> Vec<String> {
    let mut all = words(&["X=1", "printf", r"%s\0"]);
    all.extend_from_slice(given);
    match RemoteCommand::build(&all, Shell::Auto, STRICT, &|_| false).unwrap() {
        RemoteCommand::Script { script, .. } => received("/bin/sh", &script),
        RemoteCommand::Argv(argv) => panic!("no script: {argv:?}"),
    }
}

#[test]
fn a_real_shell_gives_back_the_words() {
    for given in [
        &[
            "a b", "it's", "''", "\\", "\"", "$HOME", "`id`", "$(id)", "!!",
        ][..],
        &[
            "", " ", "\n", "\t\r\n", "*", "?", "[a]", "~", "#", "-n", "--",
        ],
        &[
            "a=b",
            "é€\u{1f980}",
            "\u{1}\u{7f}",
            "&",
            "a&&b",
            "()",
            "{a,b}",
        ],
    ] {
        assert_eq!(through_the_shell(&words(given)), words(given));
    }
}

#[test]
fn what_is_shown_can_be_pasted() {
    if Command::new("bash").arg("--version").output().is_err() {
        return;
    }
    let given = words(&[
        "a b",
        "it's",
        "\u{1b}[0m",
        "\n'\\",
        "\u{7}1",
        "",
        "~",
        "a=b",
    ]);
    let script = format!(r"printf '%s\0' {}", display(&given));
    assert_eq!(received("bash", &script), given);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_words_come_back_from_a_real_shell(
        given in proptest::collection::vec("[^\0]{0,12}", 1..6)
    ) {
        prop_assume!(!given.iter().any(|word| OPERATORS.contains(&word.as_str())));
        prop_assert_eq!(through_the_shell(&given), given);
    }
}

proptest! {
    #[test]
    fn nothing_unseen_is_shown(given in proptest::collection::vec(".{0,12}", 0..4)) {
        prop_assert!(!display(&given).chars().any(is_unseen));
    }
}
