use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use crate::Code;
use crate::claims::Creator;

const RESERVED: Reserved<'_> = Reserved {
    run_id: "run_0123456789ab",
    lease_id: "x_lease",
    slug: "blue-crab",
};

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn flags(flags: &[&str]) -> AllowList {
    AllowList::resolve(&AllowSources {
        variable: Some(""),
        flags: &strings(flags),
        ..AllowSources::default()
    })
    .unwrap()
}

fn map<T: From<&'static str> + Ord>(vars: &[(&'static str, &'static str)]) -> BTreeMap<T, T> {
    vars.iter()
        .map(|&(name, value)| (name.into(), value.into()))
        .collect()
}

fn select(local: &[(&'static str, &'static str)], allow: &AllowList, never: &[&str]) -> Forwarded {
    Forwarded::select(&Request {
        local: &map::<OsString>(local),
        allow,
        files: &[],
        literals: &BTreeMap::new(),
        never,
        reserved: RESERVED,
    })
    .unwrap()
}

#[test]
fn names_are_replaced_and_appended_by_rank() {
    let config = strings(&["FROM_CONFIG", " A , B ,,"]);
    let (profile, flags) = (strings(&["FROM_PROFILE"]), strings(&["FLAG,F2", "CI"]));
    let all = AllowSources {
        config: None,
        variable: None,
        profile: &profile,
        flags: &flags,
    };
    let names = |sources: &AllowSources<'_>| {
        let list = AllowList::resolve(sources).unwrap();
        list.patterns().join(" ")
    };
    assert_eq!(names(&all), "CI NODE_OPTIONS FROM_PROFILE FLAG F2");
    let with_config = AllowSources {
        config: Some(&config),
        ..all
    };
    assert_eq!(
        names(&with_config),
        "FROM_CONFIG A B FROM_PROFILE FLAG F2 CI"
    );
    // The variable also keeps the profile's additions out.
    let with_variable = AllowSources {
        variable: Some("V1,V2_*"),
        ..with_config
    };
    assert_eq!(names(&with_variable), "V1 V2_* FLAG F2 CI");
    let nothing = AllowSources {
        variable: Some(""),
        flags: &[],
        ..with_config
    };
    assert_eq!(names(&nothing), "");
}

#[test]
fn a_star_at_the_end_is_a_prefix_and_alone_it_is_ignored() {
    let list = flags(&["NPM_*", "*", "EXACT"]);
    assert_eq!(list.ignored, ["--allow-env"]);
    for (name, allowed) in [
        ("NPM_TOKEN", true),
        ("NPM_", true),
        ("NPM", false),
        ("EXACT", true),
        ("EXACTLY", false),
        ("HOME", false),
        ("NPM_a.b", false),
    ] {
        assert_eq!(list.allows(name), allowed, "{name}");
    }
    for bad in ["A-B", "1A", "A*B", "**", "*A", "A=1", "BASH_FUNC_x%%"] {
        let sources = AllowSources {
            flags: &strings(&[bad]),
            ..AllowSources::default()
        };
        assert_eq!(
            AllowList::resolve(&sources).unwrap_err().code,
            Code::Usage,
            "{bad}"
        );
        let config = strings(&[bad]);
        let sources = AllowSources {
            config: Some(&config),
            ..AllowSources::default()
        };
        assert_eq!(
            AllowList::resolve(&sources).unwrap_err().code,
            Code::Config,
            "{bad}"
        );
    }
}

#[test]
fn later_sources_win_and_reserved_names_always_do() {
    let local = map::<OsString>(&[
        ("A", "local"),
        ("B", "local"),
        ("C", "local"),
        ("HOME", "/home"),
        ("CRABBOX_SLUG", "forged"),
    ]);
    let files = [
        ProfileFile::parse(b"B=one\nC=one\nD=one\nUNLISTED=one\n"),
        ProfileFile::parse(b"C=two\nCRABBOX_RUN_ID=forged\n"),
    ];
    let literals = map::<String>(&[
        ("D", "literal"),
        ("E", "literal"),
        ("CRABBOX_LEASE_ID", "x"),
    ]);
    let forwarded = Forwarded::select(&Request {
        local: &local,
        allow: &flags(&["A,B,C,D,ABSENT,CRABBOX_*"]),
        files: &files,
        literals: &literals,
        never: &[],
        reserved: RESERVED,
    })
    .unwrap();
    let expected = map::<String>(&[
        ("A", "local"),
        ("B", "one"),
        ("C", "two"),
        ("CRABBOX_LEASE_ID", "x_lease"),
        ("CRABBOX_RUN_ID", "run_0123456789ab"),
        ("CRABBOX_SLUG", "blue-crab"),
        ("D", "literal"),
        ("E", "literal"),
    ]);
    assert_eq!(forwarded.vars(), &expected);
}

#[test]
fn bug_10_reserved_names_carry_the_resolved_lease() {
    let forwarded = select(&[], &flags(&[]), &[]);
    let expected = map::<String>(&[
        ("CRABBOX_LEASE_ID", "x_lease"),
        ("CRABBOX_RUN_ID", "run_0123456789ab"),
        ("CRABBOX_SLUG", "blue-crab"),
    ]);
    assert_eq!(forwarded.vars(), &expected);
    // A lease that is not resolved yet cannot be passed by mistake.
    let unresolved = Forwarded::select(&Request {
        local: &BTreeMap::new(),
        allow: &flags(&[]),
        files: &[],
        literals: &BTreeMap::new(),
        never: &[],
        reserved: Reserved {
            lease_id: "",
            ..RESERVED
        },
    });
    assert_eq!(unresolved.unwrap_err().code, Code::Local);
}

#[test]
fn gap_the_providers_own_credentials_are_never_forwarded() {
    let local = [("THE_API_KEY", "k"), ("THE_TOKEN", "t"), ("OTHER", "o")];
    let allow = flags(&["THE_API_KEY,THE_*,OTHER"]);
    let files = [ProfileFile::parse(b"THE_API_KEY=from-file\n")];
    let literals = map::<String>(&[("THE_TOKEN", "literal")]);
    let forwarded = Forwarded::select(&Request {
        local: &map::<OsString>(&local),
        allow: &allow,
        files: &files,
        literals: &literals,
        never: &["THE_API_KEY", "THE_TOK*"],
        reserved: RESERVED,
    })
    .unwrap();
    assert!(!forwarded.vars().keys().any(|name| name.starts_with("THE_")));
    assert_eq!(forwarded.withheld, ["THE_API_KEY", "THE_TOKEN"]);
    assert_eq!(
        forwarded.summary("p"),
        "env forwarding provider=p behavior=forwarded vars=OTHER=set withheld=THE_API_KEY,THE_TOKEN"
    );
}

#[test]
fn values_that_cannot_be_passed_are_refused_by_name() {
    let fails = |value: OsString| {
        let local = BTreeMap::from([("BAD".into(), value)]);
        let failure = Forwarded::select(&Request {
            local: &local,
            allow: &flags(&["BAD"]),
            files: &[],
            literals: &BTreeMap::new(),
            never: &[],
            reserved: RESERVED,
        })
        .unwrap_err();
        assert_eq!(failure.code, Code::Config);
        assert!(failure.message.contains("`BAD`"));
        assert!(!failure.message.contains("hunter2"));
    };
    for value in ["hunter2\nx", "hunter2\r", "hunter2\0"] {
        fails(value.into());
    }
    fails(OsString::from_vec(b"hunter2\xff".to_vec()));
    // Not allowed, not looked at.
    select(&[("BAD", "a\nb")], &flags(&["GOOD"]), &[]);
}

#[test]
fn the_summary_says_what_is_set_and_never_a_value() {
    let local = [
        ("A", "x"),
        ("B", ""),
        ("TOKEN_X", "0123456789abcdefgh"),
        ("db_password", ""),
    ];
    let forwarded = select(&local, &flags(&["A,B,TOKEN_X,db_*"]), &[]);
    assert_eq!(
        forwarded.summary("p"),
        "env forwarding provider=p behavior=forwarded vars=A=set,B=empty,\
         TOKEN_X=set len=18 secret=true,db_password=empty len=0 secret=true"
    );
    assert_eq!(
        select(&[], &flags(&[]), &[]).summary("p"),
        "env forwarding provider=p behavior=forwarded vars=none"
    );
    assert!(!format!("{forwarded:?}").contains("0123456789"));
    let secrets: Vec<&str> = forwarded.secrets().collect();
    assert_eq!(secrets, ["0123456789abcdefgh", ""]);
}

#[test]
fn profile_files_are_read_and_never_executed() {
    let text = "\u{feff}# comment\n\nA=1\r\n  export B='two words'  # why\nexport\tC=\"q\\\"b\\\\s\\n $X\"\n\
                D=\nE=bare#tag\nF=bare # comment\nexported=1\nG='a'\n\
                H=$(id)\nI='`id`'\nJ=two words\nK='open\nL='a'b\nM-N=1\nnot an assignment\nexport O\n";
    let file = ProfileFile::parse(text.as_bytes());
    let expected = [
        ("A", "1"),
        ("B", "two words"),
        ("C", "q\"b\\s\\n $X"),
        ("D", ""),
        ("E", "bare#tag"),
        ("F", "bare"),
        ("exported", "1"),
        ("G", "a"),
    ];
    assert_eq!(
        file.entries,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let skipped: Vec<String> = file.skipped.iter().map(ToString::to_string).collect();
    assert_eq!(
        skipped,
        [
            "line 11: `H`: command substitution is not supported",
            "line 12: `I`: command substitution is not supported",
            "line 13: `J`: several words without quotes",
            "line 14: `K`: missing closing quote",
            "line 15: `L`: unexpected text after the closing quote",
            "line 16: invalid variable name",
            "line 17: not an assignment",
            "line 18: not an assignment",
        ]
    );
}

#[test]
fn the_file_for_a_program_is_sorted_and_raw() {
    let vars = map::<String>(&[("B", " \"x\" # y "), ("A", "a=b"), ("C", "")]);
    assert_eq!(env_file_bytes(&vars), b"A=a=b\nB= \"x\" # y \nC=\n");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(state: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(state.join("env"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_file_is_private_and_gone_afterwards() {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("env")).unwrap();
    fs::set_permissions(state.path().join("env"), fs::Permissions::from_mode(0o755)).unwrap();
    let file = EnvFile::create(state.path(), b"A=1\n").unwrap();
    assert_eq!(fs::read(file.path()).unwrap(), b"A=1\n");
    assert_eq!(mode(file.path()), 0o600);
    assert_eq!(mode(&state.path().join("env")), 0o700);
    let me = Creator::current();
    let prefix = format!("{}-{}-", me.pid, me.start_time.unwrap());
    assert!(
        names(state.path())
            .iter()
            .all(|name| name.starts_with(&prefix))
    );
    // Ours stays while we live.
    assert_eq!(sweep(state.path()), []);
    assert!(file.path().exists());
    drop(file);
    assert_eq!(names(state.path()), [""; 0]);
}

#[test]
fn a_directory_that_is_a_link_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), state.path().join("env")).unwrap();
    let failure = EnvFile::create(state.path(), b"A=1\n").unwrap_err();
    assert_eq!(failure.code, Code::State);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn only_files_of_dead_processes_are_swept() {
    let state = tempfile::tempdir().unwrap();
    assert_eq!(sweep(state.path()), []);
    drop(EnvFile::create(state.path(), b"").unwrap());
    let put = |name: &str| {
        fs::File::create(state.path().join("env").join(name)).unwrap();
    };
    let me = Creator::current();
    let mut child = Command::new("/bin/sh")
        .args(["-c", "exec cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let alive = format!("{}-{}-aa.env", me.pid, me.start_time.unwrap());
    let reused = format!("{}-{}-bb.env", me.pid, me.start_time.unwrap() + 1);
    let child_file = format!("{}-1-cc.env", child.id());
    for name in [&alive, &reused, &child_file] {
        put(name);
    }
    put("4194399-5-dd.env");
    put("note.env");
    put("1-2-3-4.env");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(sweep(state.path()), []);
    let mut expected = vec!["1-2-3-4.env".to_owned(), alive, "note.env".to_owned()];
    expected.sort();
    assert_eq!(names(state.path()), expected);
}

proptest! {
    #[test]
    fn any_profile_file_is_parsed(bytes: Vec<u8>, text in "(export |[A-C]|=|'|\"|\\\\|\\$\\(|`| |\n|#){0,40}") {
        ProfileFile::parse(&bytes);
        for (name, value) in ProfileFile::parse(text.as_bytes()).entries {
            prop_assert!(crate::command::is_identifier(&name));
            prop_assert!(!value.contains("$(") && !value.contains('`') && !value.contains('\n'));
        }
    }
}
