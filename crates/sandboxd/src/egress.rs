//! Egress of the sandboxes: for each one that runs, its sockets, its authority and its policy meet here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use sbx_engine::SandboxName;
use sbx_engine::error::chain;
use sbx_engine::machine::egress::{Certificate, Egress, Listeners};
use sbx_engine::policy::PolicyBook;
use sbx_engine::policy::own_addresses::own_addresses;
use sbx_engine::state::{Durability, SandboxDir, StateDir, make_private_dirs, write_atomic};
use sbx_policy::{Policy, Scope, unreadable};
use sbx_proxy::ca::{self, Authority};
use sbx_proxy::limits::{self, ConnectionBudget};
use sbx_proxy::{
    Bypass, Gate, Lookup, Proxy, RuleTime, Settings, Sockets, system_dial, system_lookup,
};
use tokio::sync::watch;

use crate::reload::PolicyReload;
use crate::rule_files::RuleFiles;

/// As the seed layout has it; the key lies beside it and is never shown to the sandbox.
const CA_DIR: &str = "proxy_cacerts";
const CA_FILE: &str = "proxy-ca.crt";
const KEY_FILE: &str = "proxy-ca.key";
/// The name of the authority, which is part of every certificate that it signs.
const LABEL_FILE: &str = "proxy-ca.name";

/// The certificate of a sandbox's authority, which lies there from create on.
pub(crate) fn certificate_path(sandbox: &SandboxDir) -> PathBuf {
    sandbox.path().join(CA_DIR).join(CA_FILE)
}

/// The egress proxies of all running sandboxes.
pub struct EgressProxies {
    state: StateDir,
    book: Arc<PolicyBook>,
    max_connections: usize,
    budget: Arc<ConnectionBudget>,
    /// None where the kernel gives none: then only what the API changes is noticed at once.
    files: Option<Arc<RuleFiles>>,
    /// For what is asked about sandboxes that do not run.
    lookup: Lookup,
    attached: Mutex<BTreeMap<SandboxName, Attached>>,
    /// How often the rules changed. Counted with `attached` locked.
    reloads: AtomicU64,
}

struct Attached {
    /// Dropped first: with it, open connections are broken off.
    policy: watch::Sender<Policy>,
    /// Dropped without the lock: it waits for its thread.
    proxy: Proxy,
}

impl fmt::Debug for EgressProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressProxies").finish_non_exhaustive()
    }
}

impl EgressProxies {
    /// `descriptors` is how many this process may have.
    pub fn new(state: StateDir, book: Arc<PolicyBook>, descriptors: u64) -> io::Result<Self> {
        let files = RuleFiles::new()
            .and_then(|files| files.watch(state.root()).map(|()| Arc::new(files)))
            .inspect_err(|error| tracing::warn!(%error, "edits of the rules' files go unnoticed"))
            .ok();
        Ok(Self {
            state,
            book,
            files,
            max_connections: limits::per_sandbox(descriptors),
            budget: Arc::new(ConnectionBudget::new(descriptors)),
            lookup: system_lookup()?,
            attached: Mutex::default(),
            reloads: AtomicU64::new(0),
        })
    }

    /// What the descriptors of this process allow of connections of all sandboxes together, in and out.
    pub(crate) fn budget(&self) -> Arc<ConnectionBudget> {
        Arc::clone(&self.budget)
    }

    /// Cuts every connection and puts its end on record. Nothing goes out any more.
    pub(crate) fn close(&self) {
        let attached = std::mem::take(&mut *self.attached());
        // Dropped without the lock: it waits for their threads.
        drop(attached);
    }

    /// The files in which people may edit rules.
    pub(crate) fn files(&self) -> Option<Arc<RuleFiles>> {
        self.files.clone()
    }

    /// What the older settings of a sandbox say, whenever it matters. Settings that cannot be read open nothing.
    fn bypass(&self, sandbox: &SandboxName) -> Bypass {
        let (book, sandbox) = (Arc::clone(&self.book), sandbox.clone());
        Arc::new(move |host| match book.proxy_config(&sandbox) {
            Ok(config) => config.is_some_and(|config| config.bypasses(host)),
            Err(_) => true,
        })
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<SandboxName, Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, sandbox: &SandboxName, listeners: Listeners) -> io::Result<Attached> {
        let dir = self.state.sandbox(sandbox).path().join(CA_DIR);
        let label = read(&dir.join(LABEL_FILE))?;
        let key = read(&dir.join(KEY_FILE))?;
        let authority = Authority::load(label.trim(), &key, Timestamp::now())
            .map_err(|error| damaged(&dir.join(KEY_FILE), &chain(&error)))?;
        let (sender, policy) = watch::channel(compiled(&self.book, &of(sandbox)));
        let settings = Settings {
            sandbox: sandbox.to_string(),
            log_dir: self.state.network_log(),
            authority,
            local_addresses: Arc::new(own_addresses),
            lookup: system_lookup()?,
            rule_time: rule_time(&self.book),
            dial: system_dial(),
            max_connections: self.max_connections,
            budget: Arc::clone(&self.budget),
            bypass: self.bypass(sandbox),
        };
        let sockets = Sockets {
            tcp: listeners.tcp,
            dns_udp: listeners.dns_udp,
            dns_tcp: listeners.dns_tcp,
        };
        Ok(Attached {
            policy: sender,
            proxy: Proxy::start(settings, policy, sockets)?,
        })
    }
}

impl Egress for EgressProxies {
    fn authority(&self, id: &str, dir: &SandboxDir) -> Result<Certificate, String> {
        certificate(&dir.path().join(CA_DIR), id)
            .map_err(|error| format!("cannot make its certificate authority: {}", chain(&error)))
    }

    fn attach(&self, sandbox: &SandboxName, listeners: Listeners) -> Result<(), String> {
        let dir = self.state.sandbox(sandbox);
        if let Some(files) = &self.files
            && let Err(error) = files.watch(dir.path())
        {
            tracing::warn!(%sandbox, %error, "edits of its proxy-config.json go unnoticed");
        }
        let before = self.reloads.load(Ordering::SeqCst);
        let new = self.serve(sandbox, listeners).map_err(|e| chain(&e))?;
        let mut attached = self.attached();
        // Its rules changed while it was being made. Those of the others are up to date in any case.
        if self.reloads.load(Ordering::SeqCst) != before {
            new.policy.send_replace(compiled(&self.book, &of(sandbox)));
        }
        attached.insert(sandbox.clone(), new);
        Ok(())
    }

    fn detach(&self, sandbox: &SandboxName) {
        let attached = self.attached().remove(sandbox);
        drop(attached);
    }
}

impl PolicyReload for EgressProxies {
    fn reload(&self) {
        let attached = self.attached();
        self.reloads.fetch_add(1, Ordering::SeqCst);
        for (name, attached) in attached.iter() {
            let policy = compiled(&self.book, &of(name));
            attached.policy.send_replace(policy);
        }
    }

    fn end_rules(&self) -> Option<Duration> {
        self.book.end_rules().unwrap_or_else(|error| {
            let error = chain(&error);
            tracing::warn!(error, "which rules have ended is not written down");
            None
        })
    }

    fn gate(&self, scope: &Scope) -> Arc<Gate> {
        let running = match scope {
            Scope::Sandbox(name) => SandboxName::parse(name).ok().and_then(|name| {
                let attached = self.attached();
                attached.get(&name).map(|one| one.proxy.gate())
            }),
            Scope::Global | Scope::Repo(_) => None,
        };
        let idle = || idle_gate(&self.book, scope, Arc::clone(&self.lookup));
        running.unwrap_or_else(|| Arc::new(idle()))
    }
}

/// By the rules as they are now, without a sandbox behind it.
pub(crate) fn idle_gate(book: &PolicyBook, scope: &Scope, lookup: Lookup) -> Gate {
    let (_sender, policy) = watch::channel(compiled(book, scope));
    let time = rule_time(book);
    Gate::new(policy, Arc::new(own_addresses), lookup, time)
}

fn rule_time(book: &PolicyBook) -> RuleTime {
    let clock = book.clock();
    Arc::new(move || clock.now())
}

fn of(sandbox: &SandboxName) -> Scope {
    Scope::Sandbox(sandbox.to_string())
}

fn compiled(book: &PolicyBook, scope: &Scope) -> Policy {
    book.policy_for(scope).unwrap_or_else(|error| {
        let error = chain(&error);
        tracing::error!(
            %scope,
            error,
            "the network policy cannot be read; nothing is let out"
        );
        Policy::compile([unreadable()])
    })
}

/// The certificate of the authority in `dir`, which is made when there is none.
fn certificate(dir: &Path, id: &str) -> io::Result<Certificate> {
    let pem = match read(&dir.join(CA_FILE)) {
        Ok(pem) => pem,
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(dir, id)?,
        Err(error) => return Err(error),
    };
    Ok(Certificate {
        base64: STANDARD.encode(&pem),
        pem,
    })
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), damaged(path, &error.to_string())))
}

/// A part of an authority that does not do.
fn damaged(path: &Path, why: &str) -> io::Error {
    let dir = path.parent().unwrap_or(path);
    io::Error::other(format!(
        "`{}` cannot be used ({why}); remove `{}`, and the next start makes a new authority",
        path.display(),
        dir.display()
    ))
}

/// The certificate last: where there is one, there is a key.
fn make(dir: &Path, id: &str) -> io::Result<String> {
    let label = id.split('-').next().unwrap_or(id);
    let made = ca::create(label, Timestamp::now()).map_err(io::Error::other)?;
    make_private_dirs(dir)?;
    write_atomic(dir, LABEL_FILE, label.as_bytes(), Durability::Soon)?;
    write_atomic(dir, KEY_FILE, made.key_pem.as_bytes(), Durability::Soon)?;
    write_atomic(
        dir,
        CA_FILE,
        made.certificate_pem.as_bytes(),
        Durability::Soon,
    )?;
    Ok(made.certificate_pem)
}

#[cfg(test)]
mod tests {
    use sbx_engine::machine::egress::Redirect;

    use super::*;

    #[test]
    fn a_new_sandbox_leaves_the_rules_of_the_others_alone() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::locate(home.path(), None).unwrap();
        let book = Arc::new(PolicyBook::new(&state, home.path().join("none")));
        make_private_dirs(state.root()).unwrap();
        let proxies = EgressProxies::new(state.clone(), book, 1024).unwrap();
        let attach = |name: &str| {
            let name = SandboxName::parse(name).unwrap();
            let dir = state.sandbox(&name);
            make_private_dirs(dir.path()).unwrap();
            proxies.authority("id", &dir).unwrap();
            let listeners = Listeners {
                redirect: Redirect::Ports,
                tcp: Vec::new(),
                dns_udp: Vec::new(),
                dns_tcp: Vec::new(),
            };
            proxies.attach(&name, listeners).unwrap();
            let attached = proxies.attached();
            attached.get(&name).unwrap().policy.subscribe()
        };
        let first = attach("first");
        let second = attach("second");
        assert!(!first.has_changed().unwrap(), "compiled again");
        proxies.reload();
        assert!(first.has_changed().unwrap() && second.has_changed().unwrap());
    }
}
