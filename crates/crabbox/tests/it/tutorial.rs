//! Every command of docs/tutorial.md, run as it stands there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bundled_engine::Own;
use crate::world::{python, write};

/// A line of the tutorial, and what it promises.
#[derive(Debug)]
struct Line {
    command: String,
    prints: Option<String>,
    exit: Option<i32>,
}

fn lines(text: &str) -> Vec<Line> {
    let mut inside = false;
    let mut all = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside && !line.is_empty() {
            let (command, promise) = match line.rsplit_once(" # ") {
                Some((command, promise)) => (command.trim_end(), promise.trim()),
                None => (line, ""),
            };
            all.push(Line {
                command: command.to_owned(),
                prints: promise.strip_prefix("→ ").map(str::to_owned),
                exit: promise
                    .strip_prefix("exit ")
                    .map(|code| code.parse().unwrap()),
            });
        }
    }
    all
}

#[test]
fn every_command_of_the_tutorial_does_what_it_says() {
    let Some(own) = Own::new() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/tutorial.md")).unwrap();
    let all = lines(&text);
    assert!(all.len() > 25, "{all:?}");
    let script: String = all
        .iter()
        .enumerate()
        .map(|(number, line)| {
            let Line { command, .. } = line;
            format!("{command}\necho \"@@ {number} $?\"\n")
        })
        .collect();
    let programs = Path::new(env!("CARGO_BIN_EXE_crabbox")).parent().unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &format!("exec 2>&1\n{script}")]);
    own.prepare(&mut bash);
    bash.env(
        "PATH",
        format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display()),
    );
    bash.stdin(std::process::Stdio::null());
    let said = bash.output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut rest = said.as_str();
    for (number, line) in all.iter().enumerate() {
        let mark = format!("@@ {number} ");
        let (shown, after) = rest
            .split_once(&mark)
            .unwrap_or_else(|| panic!("{line:?} did not end: {said}"));
        let (code, after) = after.split_once('\n').unwrap();
        rest = after;
        let code: i32 = code.parse().unwrap();
        match (&line.prints, line.exit) {
            (_, Some(wanted)) => assert_eq!(code, wanted, "{line:?}: {shown}"),
            (Some(text), None) => assert!(shown.contains(text), "{line:?}: {shown}"),
            (None, None) => assert_eq!(code, 0, "{line:?}: {shown}"),
        }
    }
    own.is_clean();
}

/// With stand-ins for the programs: what is tested is that the script draws what they show.
#[test]
fn the_picture_of_a_terminal_can_be_drawn() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["crabbox", "sbx", "sandboxd", "sbx-init", "sbx-sudo"] {
        let program = dir.path().join(name);
        write(&program, "#!/bin/sh\ntest -t 1 && echo \"<$1>\"\n");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let picture = dir.path().join("picture.svg");
    let drawn = Command::new(python())
        .arg(root.join("scripts/terminal-picture"))
        .args([dir.path(), &picture])
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{drawn:?}");
    let svg = fs::read_to_string(&picture).unwrap();
    let committed = fs::read_to_string(root.join("docs/terminal.svg")).unwrap();
    let commands = |svg: &str| svg.matches(">$ crabbox ").count();
    assert!(svg.contains(">&lt;run&gt;</text>"), "{svg}");
    assert_eq!(commands(&svg), commands(&committed), "draw it again");
}

/// The lines of a picture, without what differs from one machine to another: numbers, the width of columns, and what is
/// said where it takes long.
fn drawn(picture: &str) -> Vec<String> {
    let lines = picture
        .lines()
        .filter_map(|line| line.strip_prefix("<text ")?.split_once('>'));
    let texts = lines.map(|(_, text)| text.trim_end_matches("</text>"));
    let stable = texts.filter(|text| !text.ends_with("..."));
    stable
        .map(|text| {
            let words = text.split_whitespace();
            let numberless = words.map(|word| {
                let parts = word.split(|c: char| c.is_ascii_digit() || c == '.');
                parts.filter(|part| !part.is_empty()).collect::<String>()
            });
            numberless.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn the_picture_of_a_session_is_what_its_script_draws() {
    let Some(own) = Own::new() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = own.world.path("picture.svg");
    let programs = Path::new(env!("CARGO_BIN_EXE_crabbox")).parent().unwrap();
    let mut script = Command::new(python());
    script.arg(root.join("scripts/terminal-picture"));
    let said = script.arg(programs).arg(&output).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let kept = fs::read_to_string(root.join("docs/terminal.svg")).unwrap();
    assert_eq!(drawn(&fs::read_to_string(&output).unwrap()), drawn(&kept));
}
