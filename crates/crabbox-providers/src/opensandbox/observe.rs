//! What became of sandboxes, all of them at once; and whether the server can be used.

use crabbox_core::Failure;
use crabbox_core::claims::Claim;
use crabbox_core::process::Cancel;
use crabbox_core::provider::{Check, Class, Health, Labels, Observed, Phase};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::api::{Api, Sandbox, Stage};
use super::execd::Execd;
use super::http::{HttpError, within};
use super::{EXPIRES, LIFECYCLE_TIMEOUT, OpenSandbox, PING_TIMEOUT, SANDBOX, SPEC, owned};

/// How many sandboxes are asked about at the same time.
const AT_ONCE: usize = 16;
const DOCTOR_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

impl OpenSandbox {
    /// One sandbox that cannot be looked at does not hide the others. Where none can, that is a failure.
    pub(super) fn observe_all(
        &self,
        claims: &[Claim],
        cancel: &Cancel,
    ) -> Result<Vec<Observed>, Failure> {
        let api = self.api()?;
        let mut looked: Vec<(usize, Result<Observed, HttpError>)> = api.http.block_on(async {
            let mut waiting = claims.iter().enumerate();
            let mut running = FuturesUnordered::new();
            let look = |(at, claim)| async move { (at, self.look(api, claim, cancel).await) };
            running.extend(waiting.by_ref().take(AT_ONCE).map(look));
            let mut done = Vec::with_capacity(claims.len());
            while let Some(one) = running.next().await {
                done.push(one);
                running.extend(waiting.next().map(look));
            }
            done
        });
        looked.sort_by_key(|(at, _)| *at);
        let failed = looked.iter().all(|(_, seen)| seen.is_err());
        let mut observed = Vec::with_capacity(looked.len());
        for (_, seen) in looked {
            match seen {
                Ok(one) => observed.push(one),
                Err(error) if failed => return Err(error.into_failure("look at sandboxes")),
                Err(error) => observed.push(unknown(
                    "unreachable",
                    &self.secrets.text(&error.to_string()),
                )),
            }
        }
        Ok(observed)
    }

    async fn look(&self, api: &Api, claim: &Claim, cancel: &Cancel) -> Result<Observed, HttpError> {
        let Some(id) = claim.sandbox() else {
            return Ok(unknown("creating", ""));
        };
        let sandbox = match within(LIFECYCLE_TIMEOUT, cancel, api.get(id)).await {
            Ok(sandbox) => sandbox,
            Err(error) if error.is_not_found() => {
                return Ok(Observed {
                    state: "missing-or-inaccessible".to_owned(),
                    phase: Phase::Absent,
                    labels: Labels::new(),
                });
            }
            Err(error) => return Err(error),
        };
        if owned(&sandbox, claim).is_err() {
            return Ok(unknown("ownership-mismatch", ""));
        }
        let healthy = match sandbox.stage() {
            Stage::Running => Some(self.health(api, id, cancel).await),
            Stage::Paused | Stage::Changing | Stage::Over => None,
        };
        Ok(self.seen(&sandbox, healthy))
    }

    async fn health(&self, api: &Api, id: &str, cancel: &Cancel) -> Result<(), HttpError> {
        let ping = async {
            let execd = Execd {
                http: &api.http,
                endpoint: std::sync::Arc::new(api.endpoint(id).await?),
                secrets: &self.secrets,
            };
            execd.ping().await
        };
        within(PING_TIMEOUT, cancel, ping).await
    }

    fn seen(&self, sandbox: &Sandbox, healthy: Option<Result<(), HttpError>>) -> Observed {
        let mut labels = Labels::from([(SANDBOX.to_owned(), sandbox.id.clone())]);
        if let Some(expires) = sandbox.expires_at {
            labels.insert(EXPIRES.to_owned(), expires.to_string());
        }
        let phase = match (sandbox.stage(), healthy) {
            (Stage::Running, Some(Ok(()))) => Phase::Ready,
            (Stage::Running, Some(Err(error))) => {
                let shown = self.secrets.text(&error.to_string());
                match error.is_pending() {
                    true => {
                        labels.insert("execd".to_owned(), shown);
                        Phase::NotYet
                    }
                    false => {
                        labels.insert("error".to_owned(), format!("execd: {shown}"));
                        Phase::Unknown
                    }
                }
            }
            (Stage::Over, _) => Phase::Over,
            (Stage::Running | Stage::Paused | Stage::Changing, _) => Phase::NotYet,
        };
        Observed {
            state: sandbox.state(),
            phase,
            labels,
        }
    }

    /// A read: that the key is accepted. How many leases there are is the caller's to know.
    pub(super) fn check(&self, leases: Option<usize>, cancel: &Cancel) -> Check {
        let probed = self.cleaned(|| {
            let api = self.api()?;
            api.http
                .wait(DOCTOR_TIMEOUT, cancel, api.probe())
                .map_err(|error| error.into_failure("probe"))
        });
        match probed {
            Ok(()) => {
                let leases = leases.map(|count| ("leases", count.to_string()));
                let facts = [
                    ("provider", SPEC.name),
                    ("timeout", "10s"),
                    ("auth", "ready"),
                    ("control_plane", "ready"),
                    ("inventory", "ready"),
                    ("api", "list"),
                    ("mutation", "false"),
                ];
                let facts = facts
                    .into_iter()
                    .map(|(key, value)| (key, value.to_owned()));
                let last = ("runtime", "unchecked".to_owned());
                let facts: Vec<_> = facts.chain(leases).chain([last]).collect();
                let said: Vec<_> = facts
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                let check = Check::new(Health::Ok, "provider", said.join(" "));
                facts
                    .into_iter()
                    .fold(check, |check, (key, value)| check.detail(key, value))
            }
            Err(failure) => {
                Check::of_failure(Health::Failed, "provider", &failure).class(Class::of(&failure))
            }
        }
    }
}

fn unknown(state: &str, why: &str) -> Observed {
    let mut labels = Labels::new();
    if !why.is_empty() {
        labels.insert("error".to_owned(), why.to_owned());
    }
    Observed {
        state: state.to_owned(),
        phase: Phase::Unknown,
        labels,
    }
}
