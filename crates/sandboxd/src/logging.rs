//! The daemon's log: one JSON object per line with `time`, `level`, `msg`, `version`, and what the event says.

use std::sync::{Mutex, PoisonError};

use sbx_api::{LogLevels, VERSION};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::logfile::LogFile;

/// Events of the way out carry this target, and have a level of their own.
const PROXY: &str = "proxy";
pub(crate) const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];
const DEFAULT: &str = "info";

/// How much is logged; can be changed while the daemon runs.
#[derive(Debug)]
pub struct Levels {
    current: Mutex<LogLevels>,
    handle: reload::Handle<Targets, Registry>,
}

impl Levels {
    /// Makes `log` the log of this process.
    pub(crate) fn install(level: Option<&str>, log: LogFile) -> Self {
        let (levels, filter) = Self::new(level);
        let lines = Lines {
            file: Mutex::new(log),
        };
        let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
        // Only a second daemon in one process (tests) has a log already.
        drop(subscriber.try_init());
        levels
    }

    /// Levels that no log follows, for tests of the API.
    pub fn detached() -> Self {
        Self::new(None).0
    }

    fn new(level: Option<&str>) -> (Self, reload::Layer<Targets, Registry>) {
        let level = level.unwrap_or(DEFAULT);
        let current = LogLevels {
            general: level.to_owned(),
            proxy: level.to_owned(),
        };
        let (filter, handle) = reload::Layer::new(targets(&current));
        let levels = Self {
            current: Mutex::new(current),
            handle,
        };
        (levels, filter)
    }

    pub fn get(&self) -> LogLevels {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// An error for an invalid level.
    pub fn set(&self, levels: LogLevels) -> Result<(), String> {
        for level in [&levels.general, &levels.proxy] {
            if !LEVELS.contains(&level.as_str()) {
                return Err(format!(
                    "invalid log level `{level}`; use one of {}",
                    LEVELS.join(", ")
                ));
            }
        }
        // The subscriber is gone only in tests without a log.
        drop(self.handle.reload(targets(&levels)));
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = levels;
        Ok(())
    }
}

fn targets(levels: &LogLevels) -> Targets {
    let parse = |level: &str| level.parse().unwrap_or(LevelFilter::INFO);
    // Only our own events: what libraries log is for their developers.
    let general = parse(&levels.general);
    Targets::new()
        .with_default(LevelFilter::WARN.min(general))
        .with_target("sandboxd", general)
        .with_target("sbx_engine", general)
        .with_target(PROXY, parse(&levels.proxy))
}

struct Lines {
    file: Mutex<LogFile>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut line = Map::new();
        line.insert("time".into(), json!(jiff::Timestamp::now()));
        line.insert("level".into(), level.into());
        line.insert("msg".into(), fields.message.into());
        line.insert("version".into(), VERSION.into());
        line.extend(fields.others);
        let mut text = Value::Object(line).to_string();
        text.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // There is nowhere to say that the log cannot be written.
        drop(file.append(text.as_bytes()));
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), &value) {
            ("message", Value::String(text)) => self.message.clone_from(text),
            (name, _) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}
