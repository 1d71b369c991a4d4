//! What went out and what was refused: one line of JSON per decision, in three files per sandbox.
//!
//! Files per sandbox, so that a noisy one can rotate away only its own evidence; three of them, so that it
//! cannot rotate away what it was allowed by what costs it nothing: asking for what it is denied, and asking for
//! names, which are answered from memory. What a file has no more room for is merged by target and kept ([`merge`]), so
//! that repeats push out nothing. Lines are written by the thread that made the decision, before it goes on: none is queued, none is lost. A
//! connection is written down before its first byte and again when it ends, under one id.

mod merge;
mod ring;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use sbx_policy::Kind;
use serde::{Deserialize, Serialize, Serializer};

pub use merge::joined;
use ring::{Ring, generations};

/// Of refusals, while they cannot be written.
const MAX_UNWRITTEN: usize = 1 << 20;
const SUFFIX: &str = ".jsonl";
/// Begins the error of a connection that was broken off from here.
const CUT: &str = "cut: ";

/// How a request came to be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entrance {
    Connect,
    Http,
    Transparent,
    Socks5,
    Dns,
}

/// The way it took: the word of the `PROXY` column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The proxy answered or forwarded it itself.
    Forward,
    /// A tunnel that the client asked for.
    ForwardBypass,
    /// HTTP or TLS of a program that knows nothing of a proxy.
    Transparent,
    /// Any other TCP.
    Network,
    Dns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It begins, or goes on; a later line has the same id.
    Open,
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When it was decided.
    #[serde(serialize_with = "write_time")]
    pub time: Timestamp,
    pub sandbox: String,
    /// Unique together with the sandbox and the time.
    pub id: u64,
    pub entrance: Entrance,
    pub proxy: Via,
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address that was dialled, or that was the reason of a denial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    pub verdict: Outcome,
    /// What kind of denial it is; lines of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_kind: Option<Kind>,
    /// The id of the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<String>,
    pub reason: String,
    pub sent: u64,
    pub received: u64,
    pub duration_ms: u64,
    pub phase: Phase,
    /// What went wrong after it was allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of a line that stands for several, when the first was; `time` is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Timestamp>,
    /// How many it stands for.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u64,
}

fn once() -> u64 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_once(count: &u64) -> bool {
    *count == 1
}

impl Line {
    /// Why the connection was broken off from here, if it was.
    pub fn cut(&self) -> Option<&str> {
        self.error.as_deref()?.strip_prefix(CUT)
    }
}

/// With all of its digits: then lines are in the order of time when they are sorted as text.
pub fn time_text(time: Timestamp) -> String {
    format!("{time:.9}")
}

fn write_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time_text(*time))
}

/// The lines of a sandbox that push each other out, and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Connections and requests that were allowed.
    Allowed,
    /// Names that were looked up.
    Lookups,
    /// Whatever was denied.
    Denied,
}

impl Part {
    pub const ALL: [Self; 3] = [Self::Allowed, Self::Lookups, Self::Denied];

    fn of(line: &Line) -> Self {
        match (line.verdict, line.entrance) {
            (Outcome::Deny, _) => Self::Denied,
            (Outcome::Allow, Entrance::Dns) => Self::Lookups,
            (
                Outcome::Allow,
                Entrance::Connect | Entrance::Http | Entrance::Transparent | Entrance::Socks5,
            ) => Self::Allowed,
        }
    }

    /// Behind the name of the sandbox, which has no underscore.
    fn mark(self) -> &'static str {
        match self {
            Self::Allowed => "",
            Self::Lookups => "_dns",
            Self::Denied => "_denied",
        }
    }
}

/// Where these lines of a sandbox are.
pub fn file(dir: &Path, sandbox: &str, part: Part) -> PathBuf {
    dir.join(format!("{sandbox}{}{SUFFIX}", part.mark()))
}

/// The files with these lines, oldest first, whether they exist or not.
pub fn files(dir: &Path, sandbox: &str, part: Part) -> Vec<PathBuf> {
    generations(&file(dir, sandbox, part))
}

/// Whose lines a file of this name has: `NAME.jsonl`, `NAME_denied.jsonl.3`.
pub fn sandbox_of(file: &str) -> Option<&str> {
    let current = match file.rsplit_once('.') {
        Some((rest, number)) if number.parse::<u32>().is_ok() => rest,
        _ => file,
    };
    let name = current.strip_suffix(SUFFIX)?;
    let marks = [Part::Denied, Part::Lookups].map(Part::mark);
    let unmarked = marks.iter().find_map(|mark| name.strip_suffix(mark));
    Some(unmarked.unwrap_or(name))
}

#[derive(Debug)]
pub struct Audit {
    sandbox: String,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    allowed: Ring,
    lookups: Ring,
    denied: Ring,
    /// Refusals beyond what is kept of those that cannot be written.
    lost: u64,
}

impl Audit {
    pub fn new(dir: &Path, sandbox: &str) -> Self {
        let ring = |part| Ring::new(file(dir, sandbox, part));
        Self {
            sandbox: sandbox.to_owned(),
            next: AtomicU64::new(1),
            state: Mutex::new(State {
                allowed: ring(Part::Allowed),
                lookups: ring(Part::Lookups),
                denied: ring(Part::Denied),
                lost: 0,
            }),
        }
    }

    pub fn sandbox(&self) -> &str {
        &self.sandbox
    }

    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether everything so far is on record. What cannot be recorded must not happen.
    pub fn is_healthy(&self) -> bool {
        let mut state = self.state();
        let rings = [&state.allowed, &state.lookups, &state.denied];
        rings.into_iter().all(Ring::is_ready) || self.flush(&mut state).is_ok()
    }

    /// True when it is on record; else it is kept, and nothing may go out.
    pub fn write(&self, line: &Line) -> bool {
        let mut state = self.state();
        let ring = match Part::of(line) {
            Part::Allowed => &mut state.allowed,
            Part::Lookups => &mut state.lookups,
            Part::Denied => &mut state.denied,
        };
        // Only what was let out before is kept without bound: it was not much, and nothing follows it.
        if line.verdict == Outcome::Deny && ring.unwritten.len() > MAX_UNWRITTEN {
            state.lost += 1;
            return false;
        }
        // Serialising plain data to memory does not fail.
        if serde_json::to_writer(&mut ring.unwritten, line).is_ok() {
            ring.unwritten.push(b'\n');
        }
        let written = match line.verdict {
            Outcome::Allow => ring.flush(),
            Outcome::Deny => self.flush(&mut state),
        };
        if let Err(error) = &written {
            tracing::error!(sandbox = self.sandbox, %error, "cannot write the network log; nothing is let out until it can be");
        }
        written.is_ok()
    }

    fn flush(&self, state: &mut State) -> io::Result<()> {
        state.allowed.flush()?;
        state.lookups.flush()?;
        state.denied.flush()?;
        if state.lost > 0 {
            tracing::warn!(
                sandbox = self.sandbox,
                lost = state.lost,
                "refusals are not on record: there were too many while the network log could not be written"
            );
            state.lost = 0;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::ring::{FULL, KEPT};
    use super::*;

    /// Of what was allowed.
    fn file(dir: &Path, sandbox: &str) -> PathBuf {
        super::file(dir, sandbox, Part::Allowed)
    }

    fn line(audit: &Audit) -> Line {
        Line {
            id: audit.next_id(),
            ..line_to("example.org")
        }
    }

    pub(super) fn line_to(host: &str) -> Line {
        Line {
            time: Timestamp::UNIX_EPOCH,
            sandbox: "one".into(),
            id: 0,
            entrance: Entrance::Connect,
            proxy: Via::ForwardBypass,
            host: host.into(),
            port: Some(443),
            address: "192.0.2.1:443".parse().ok(),
            verdict: Outcome::Allow,
            deny_kind: None,
            rule: Some("r1".into()),
            rule_name: None,
            reason: "x".repeat(1000),
            sent: 1,
            received: 2,
            duration_ms: 3,
            phase: Phase::Closed,
            error: None,
            first: None,
            count: 1,
        }
    }

    fn read(path: &Path) -> Vec<Line> {
        fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn lines_are_appended_rotated_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("log");
        for _ in 0..2 {
            let audit = Audit::new(&dir, "one");
            audit.write(&line(&audit));
        }
        let audit = Audit::new(&dir, "one");
        assert_eq!(read(&file(&dir, "one")).len(), 2);
        let mode = fs::metadata(file(&dir, "one"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        for _ in 0..(FULL / 1000 + 10) {
            audit.write(&line(&audit));
        }
        let shown = files(&dir, "one", Part::Allowed);
        assert_eq!(shown.len(), KEPT as usize + 1);
        let total: usize = shown.iter().map(|path| read(path).len()).sum();
        assert_eq!(total as u64, 2 + FULL / 1000 + 10);
        assert!(!read(&dir.join("one.jsonl.1")).is_empty());
    }

    #[test]
    fn times_are_ordered_as_text() {
        let temp = tempfile::tempdir().unwrap();
        let audit = Audit::new(temp.path(), "one");
        let times = [
            "2026-01-29T10:15:25Z",
            "2026-01-29T10:15:25.000000001Z",
            "2026-01-29T10:15:25.1Z",
            "2026-01-29T10:15:25.12Z",
        ];
        for time in times {
            let time = time.parse().unwrap();
            audit.write(&Line {
                time,
                ..line(&audit)
            });
        }
        let text = fs::read_to_string(file(temp.path(), "one")).unwrap();
        let mut sorted: Vec<&str> = text.lines().collect();
        sorted.sort_unstable();
        assert_eq!(sorted, text.lines().collect::<Vec<_>>());
        let read: Vec<Timestamp> = read(&file(temp.path(), "one"))
            .iter()
            .map(|line| line.time)
            .collect();
        assert_eq!(read, times.map(|time| time.parse::<Timestamp>().unwrap()));
    }

    #[test]
    fn what_cannot_be_written_is_kept_and_said() {
        let temp = tempfile::tempdir().unwrap();
        let blocked = temp.path().join("log");
        File::create(&blocked).unwrap();
        let audit = Audit::new(&blocked, "one");
        assert!(!audit.is_healthy());
        audit.write(&line(&audit));
        assert!(!audit.is_healthy());
        fs::remove_file(&blocked).unwrap();
        assert!(audit.is_healthy());
        assert_eq!(read(&file(&blocked, "one")).len(), 1);
    }

    #[test]
    fn a_log_that_is_removed_is_begun_again() {
        let temp = tempfile::tempdir().unwrap();
        let audit = Audit::new(temp.path(), "one");
        audit.write(&line(&audit));
        fs::remove_file(file(temp.path(), "one")).unwrap();
        audit.write(&line(&audit));
        assert_eq!(read(&file(temp.path(), "one")).len(), 1);
        fs::remove_file(file(temp.path(), "one")).unwrap();
        assert!(audit.is_healthy());
        assert!(file(temp.path(), "one").exists());
    }

    #[test]
    fn nothing_begins_again_where_the_whole_state_was_removed() {
        let temp = tempfile::tempdir().unwrap();
        let state = temp.path().join("state");
        let dir = state.join("log/network");
        fs::create_dir(&state).unwrap();
        let audit = Audit::new(&dir, "one");
        assert!(audit.write(&line(&audit)));
        fs::remove_dir_all(state.join("log")).unwrap();
        assert!(audit.write(&line(&audit)));
        fs::remove_dir_all(&state).unwrap();
        assert!(!audit.write(&line(&audit)));
        assert!(!state.exists());
    }

    #[test]
    fn refusals_that_cannot_be_written_have_an_end() {
        let temp = tempfile::tempdir().unwrap();
        let blocked = temp.path().join("log");
        File::create(&blocked).unwrap();
        let audit = Audit::new(&blocked, "one");
        let mut refusal = line(&audit);
        refusal.verdict = Outcome::Deny;
        for _ in 0..3000 {
            audit.write(&refusal);
        }
        // What was let out is never forgotten.
        audit.write(&line(&audit));
        let kept = audit.state().denied.unwritten.len();
        assert!(
            (MAX_UNWRITTEN..MAX_UNWRITTEN + 5000).contains(&kept),
            "{kept}"
        );
        fs::remove_file(&blocked).unwrap();
        assert!(audit.is_healthy());
        assert_eq!(read(&file(&blocked, "one")).len(), 1);
        let denied = read(&super::file(&blocked, "one", Part::Denied));
        assert!(denied.len() > 500, "{}", denied.len());
    }

    #[test]
    fn the_log_cannot_be_washed_out() {
        for verdict in [Outcome::Allow, Outcome::Deny] {
            let temp = tempfile::tempdir().unwrap();
            let audit = Audit::new(temp.path(), "one");
            let at = |second, host: &str| Line {
                time: Timestamp::from_second(second).unwrap(),
                id: audit.next_id(),
                verdict,
                ..line_to(host)
            };
            audit.write(&at(1, "evil.test"));
            let mut repeated = at(2, "example.org");
            repeated.reason = "x".repeat(64 << 10);
            let repeats = 2 * u64::from(KEPT + 1) * FULL / (64 << 10);
            for second in 0..repeats {
                repeated.time = Timestamp::from_second(2 + second as i64).unwrap();
                repeated.id = audit.next_id();
                audit.write(&repeated);
            }
            let part = Part::of(&repeated);
            let paths = files(temp.path(), "one", part);
            let lines: Vec<Line> = paths.iter().flat_map(|path| read(path)).collect();
            let of = |host: &'static str| lines.iter().filter(move |line| line.host == host);
            assert_eq!(of("evil.test").count(), 1);
            assert_eq!(
                of("example.org").map(|line| line.count).sum::<u64>(),
                repeats
            );
            let merged = of("example.org").next().unwrap();
            assert_eq!(merged.first, Some(Timestamp::from_second(2).unwrap()));
            let size: u64 = paths
                .iter()
                .filter_map(|p| fs::metadata(p).ok())
                .map(|m| m.len())
                .sum();
            assert!(size <= (u64::from(KEPT) + 1) * FULL, "{size}");
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&paths[0]).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert!(paths.iter().all(|path| sandbox_of(
                path.file_name().unwrap().to_str().unwrap()
            ) == Some("one")));
        }
    }

    #[test]
    fn what_costs_nothing_pushes_out_nothing_that_was_allowed() {
        for part in [Part::Denied, Part::Lookups] {
            let temp = tempfile::tempdir().unwrap();
            let audit = Audit::new(temp.path(), "one");
            audit.write(&line(&audit));
            let mut cheap = line(&audit);
            match part {
                Part::Denied => cheap.verdict = Outcome::Deny,
                Part::Lookups | Part::Allowed => cheap.entrance = Entrance::Dns,
            }
            cheap.reason = "x".repeat(64 << 10);
            for _ in 0..(u64::from(KEPT + 1) * FULL / (64 << 10)) {
                audit.write(&cheap);
            }
            assert_eq!(read(&file(temp.path(), "one")).len(), 1);
            let files = files(temp.path(), "one", part);
            assert!(files.iter().all(|path| path.exists()), "{files:?}");
        }
    }

    #[test]
    fn files_belong_to_sandboxes() {
        for (file, sandbox) in [
            ("ab.jsonl", Some("ab")),
            ("ab.jsonl.4", Some("ab")),
            ("ab_denied.jsonl", Some("ab")),
            ("ab_dns.jsonl.1", Some("ab")),
            ("ab_denied.jsonl.2", Some("ab")),
            ("a.b.jsonl", Some("a.b")),
            ("ab.jsonl.1.jsonl", Some("ab.jsonl.1")),
            ("ab.json", None),
            ("ab.1", None),
        ] {
            assert_eq!(sandbox_of(file), sandbox, "{file}");
        }
    }
}
