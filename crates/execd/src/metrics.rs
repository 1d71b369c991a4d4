//! `GET /metrics` and `/metrics/watch`: processor and memory use of the machine, from `/proc`.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use execd_proto::command::Metrics;

use crate::reply::now_millis;

const SAMPLE_DELAY: Duration = Duration::from_millis(100);
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn read() -> Json<Metrics> {
    Json(sample(SAMPLE_DELAY).await)
}

/// One JSON object a second, each with one line feed.
pub(crate) async fn watch() -> Response {
    let lines = futures_util::stream::unfold((), |()| async {
        let metrics = sample(WATCH_INTERVAL).await;
        let mut line = serde_json::to_vec(&metrics).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, std::io::Error>(Bytes::from(line)), ()))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream")];
    (headers, Body::from_stream(lines)).into_response()
}

/// Processor use is the share of busy ticks between two readings.
async fn sample(delay: Duration) -> Metrics {
    let before = cpu_ticks();
    tokio::time::sleep(delay).await;
    let after = cpu_ticks();
    let total = after.total.saturating_sub(before.total);
    let idle = after.idle.saturating_sub(before.idle);
    let busy = total.saturating_sub(idle);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = kib(&memory, "MemAvailable:");
    let memory_total = kib(&memory, "MemTotal:");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Metrics {
        cpu_count: to_f64(u64::try_from(cpus).unwrap_or(1)),
        cpu_used_pct: if total == 0 {
            0.0
        } else {
            100.0 * to_f64(busy) / to_f64(total)
        },
        mem_total_mib: to_f64(memory_total) / 1024.0,
        mem_used_mib: to_f64(memory_total.saturating_sub(available)) / 1024.0,
        timestamp: now_millis(),
    }
}

struct Ticks {
    total: u64,
    idle: u64,
}

fn cpu_ticks() -> Ticks {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    Ticks {
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
        total: fields.iter().take(8).sum(),
        idle: fields.iter().skip(3).take(2).sum(),
    }
}

fn kib(meminfo: &str, key: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Exact up to 2^53, far above any number of ticks or KiB.
#[expect(
    clippy::cast_precision_loss,
    reason = "metrics are floating-point on the wire"
)]
fn to_f64(value: u64) -> f64 {
    value as f64
}
