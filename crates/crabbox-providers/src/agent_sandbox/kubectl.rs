//! The `kubectl` program at work, and what its errors mean.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crabbox_core::process::{
    Cancel, Captured, Limits, Output, OutputComplete, ProcessError, Stdin, Tool, Whose,
};
use crabbox_core::provider::HostContext;
use crabbox_core::redact::Redactor;
use crabbox_core::{Code, Failure, search_path};

use super::objects::{CLAIM_GROUP, CORE_GROUP, ClaimObject, Seen, VERSION, parse_claim};
use super::settings::{Config, KUBECONFIG};

/// For one request. The API server is asked to keep to less.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
const SERVER_TIMEOUT: &str = "--request-timeout=20s";
/// How the line begins that kubectl adds to the output of a command that failed.
pub(super) const COMMAND_ENDED: &str = "command terminated with exit code ";
const INSTALL: &str = "install kubectl, or set agentSandbox.kubectl to its absolute path";

#[derive(Debug)]
pub(super) struct Kubectl {
    program: PathBuf,
    /// The cluster: kubeconfig and context.
    cluster: Vec<OsString>,
    /// KUBECONFIG, where that says which kubeconfig.
    variable: Option<OsString>,
    pub(super) namespace: String,
    redactor: Redactor,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// There is no such object.
    NotFound,
    AlreadyExists,
    /// The object is there, with another UID.
    Conflict,
    /// The server does not have this API.
    NotServed,
    /// The server refused it: nothing was changed.
    Refused,
    /// The cluster could not be reached, or did not answer.
    Unknown,
}

/// A request that failed.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) answer: Answer,
    pub(super) failure: Box<Failure>,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        *refusal.failure
    }
}

impl Kubectl {
    /// A bare name is looked up in absolute entries of PATH that are no checkout.
    pub(super) fn find(config: &Config, host: &HostContext) -> Result<Self, Failure> {
        let program = if config.kubectl.contains('/') {
            PathBuf::from(&config.kubectl)
        } else {
            let name = OsStr::new(&config.kubectl);
            search_path::find(name, &host.path, &host.checkouts).map_err(|missing| {
                let message = match missing.in_checkout {
                    Some(path) => format!(
                        "kubectl not found: `{}` lies in a checkout and is not used",
                        path.display()
                    ),
                    None => format!(
                        "kubectl not found: no executable {:?} in PATH",
                        config.kubectl
                    ),
                };
                Failure::new(Code::ProviderMissing, message).hint(INSTALL)
            })?
        };
        let mut cluster = Vec::new();
        if let Some(path) = &config.kubeconfig {
            let mut flag = OsString::from("--kubeconfig=");
            flag.push(path);
            cluster.push(flag);
        }
        cluster.push(format!("--context={}", config.context).into());
        Ok(Self {
            program,
            cluster,
            variable: match config.kubeconfig {
                Some(_) => None,
                None => config.variable.clone(),
            },
            namespace: config.namespace.clone(),
            redactor: Redactor::default(),
        })
    }

    pub(super) fn program(&self) -> &std::path::Path {
        &self.program
    }

    /// The verb comes first: errors show it.
    pub(super) fn tool<A: Into<OsString>>(&self, words: impl IntoIterator<Item = A>) -> Tool {
        let mut words = words.into_iter().map(Into::into);
        let verb = words.next();
        let tool = Tool::new(&self.program)
            .args(verb)
            .args(self.cluster.clone())
            .args(words);
        match &self.variable {
            Some(variable) => tool.env(KUBECONFIG, variable),
            None => tool,
        }
    }

    /// Several objects in one call; what is not found is left out. That something is left out proves nothing: kubectl leaves
    /// out also what belongs to an API that the server does not serve.
    pub(super) fn get(&self, objects: &[String], cancel: &Cancel) -> Result<Seen, Refusal> {
        let words = ["get".to_owned()]
            .into_iter()
            .chain(objects.iter().cloned());
        let flags = [
            format!("--namespace={}", self.namespace),
            "--ignore-not-found=true".to_owned(),
            "--output=json".to_owned(),
            SERVER_TIMEOUT.to_owned(),
        ];
        let said = self.succeed(self.tool(words.chain(flags)), cancel)?;
        Seen::parse(&said.stdout).map_err(unknown)
    }

    /// One SandboxClaim; `None` only where the server says that this very one does not exist.
    pub(super) fn get_claim(
        &self,
        name: &str,
        cancel: &Cancel,
    ) -> Result<Option<ClaimObject>, Refusal> {
        match self.get_one(&claim_object(name), "--output=json", cancel)? {
            Some(printed) => parse_claim(&printed).map(Some).map_err(unknown),
            None => Ok(None),
        }
    }

    /// A SandboxClaim and what is below it, in one call. A claim that this leaves out is asked for alone.
    pub(super) fn get_with_claim(
        &self,
        name: &str,
        below: &[String],
        cancel: &Cancel,
    ) -> Result<Seen, Refusal> {
        let mut seen = match below {
            [] => Seen::default(),
            below => {
                let mut objects = vec![claim_object(name)];
                objects.extend_from_slice(below);
                self.get(&objects, cancel)?
            }
        };
        if seen.claim(name).is_none() {
            seen.claims.extend(self.get_claim(name, cancel)?);
        }
        Ok(seen)
    }

    /// What is printed of one object, of any kind; `None` where the server says that it does not exist.
    fn get_one(
        &self,
        object: &str,
        output: &str,
        cancel: &Cancel,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let tool = self.tool([
            "get".to_owned(),
            object.to_owned(),
            format!("--namespace={}", self.namespace),
            output.to_owned(),
            SERVER_TIMEOUT.to_owned(),
        ]);
        match self.succeed(tool, cancel) {
            Ok(said) => Ok(Some(said.stdout)),
            Err(refusal) if refusal.answer == Answer::NotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Waits until a claim is no longer the one of this version; at most `limit`. False where watching is not allowed.
    pub(super) fn watch_claim(
        &self,
        name: &str,
        version: &str,
        limit: Duration,
        cancel: &Cancel,
    ) -> bool {
        let tool = self.tool([
            "get".to_owned(),
            claim_object(name),
            format!("--namespace={}", self.namespace),
            "--watch".to_owned(),
            "--output=jsonpath={.metadata.resourceVersion}{\"\\n\"}".to_owned(),
        ]);
        let enough = OutputComplete::new(cancel);
        let lines = ChangeDetector {
            known: version.as_bytes().to_vec(),
            enough: enough.clone(),
            line: Vec::new(),
        };
        let limits = Limits {
            grace: Duration::from_millis(200),
            ..Limits::within(limit)
        };
        let streamed = tool.stream_until(
            Output::To(Box::new(lines)),
            Output::Null,
            &limits,
            cancel,
            &enough,
        );
        match streamed {
            Ok(streamed) => enough.is_set() || streamed.end.success(),
            Err(ProcessError::TimedOut { .. }) => true,
            Err(_) => false,
        }
    }

    /// The UID of an object of any kind, if there is one.
    pub(super) fn uid(&self, object: &str, cancel: &Cancel) -> Result<Option<String>, Refusal> {
        let printed = self.get_one(object, "--output=jsonpath={.metadata.uid}", cancel)?;
        let uid = |printed: Vec<u8>| String::from_utf8_lossy(&printed).trim().to_owned();
        Ok(printed.map(uid).filter(|uid| !uid.is_empty()))
    }

    /// Whether there is an object, of any kind.
    pub(super) fn exists(&self, object: &str, cancel: &Cancel) -> Result<bool, Refusal> {
        let printed = self.get_one(object, "--output=name", cancel)?;
        Ok(printed.is_some())
    }

    pub(super) fn select_pods(&self, selector: &str, cancel: &Cancel) -> Result<Seen, Refusal> {
        let tool = self.tool([
            "get".to_owned(),
            "pods".to_owned(),
            format!("--namespace={}", self.namespace),
            format!("--selector={selector}"),
            "--output=json".to_owned(),
            SERVER_TIMEOUT.to_owned(),
        ]);
        let said = self.succeed(tool, cancel)?;
        Seen::parse(&said.stdout).map_err(unknown)
    }

    pub(super) fn get_raw(&self, path: &str, cancel: &Cancel) -> Result<Vec<u8>, Refusal> {
        let tool = self.tool(["get", "--raw", path, SERVER_TIMEOUT]);
        Ok(self.succeed(tool, cancel)?.stdout)
    }

    /// `create --raw` or `delete --raw` with a body.
    pub(super) fn send_raw(
        &self,
        verb: &str,
        path: &str,
        body: Vec<u8>,
        cancel: &Cancel,
    ) -> Result<Vec<u8>, Refusal> {
        let tool = self
            .tool([verb, "--raw", path, "--filename=-", SERVER_TIMEOUT])
            .stdin(Stdin::Bytes(body));
        Ok(self.succeed(tool, cancel)?.stdout)
    }

    /// Objects that the server only answers and does not keep.
    pub(super) fn review(&self, body: Vec<u8>, cancel: &Cancel) -> Result<Vec<u8>, Refusal> {
        let tool = self
            .tool([
                "create",
                "--filename=-",
                "--output=json",
                "--validate=false",
                SERVER_TIMEOUT,
            ])
            .stdin(Stdin::Bytes(body));
        Ok(self.succeed(tool, cancel)?.stdout)
    }

    fn succeed(&self, tool: Tool, cancel: &Cancel) -> Result<Captured, Refusal> {
        let said = tool
            .capture(&Limits::within(REQUEST_TIMEOUT), cancel)
            .map_err(|error| unknown(self.explain(error.into_failure(Whose::Provider))))?;
        match said.end.success() {
            true => Ok(said),
            false => Err(self.refusal(&said)),
        }
    }

    pub(super) fn explain(&self, failure: Failure) -> Failure {
        match failure.code {
            Code::ProviderMissing => failure.hint(INSTALL),
            _ => failure,
        }
    }

    fn refusal(&self, said: &Captured) -> Refusal {
        let words = said.said(&self.redactor).unwrap_or_default();
        let answer = classify(&words);
        let mut failure = said.failure(&self.redactor);
        failure.causes = last_own_line(&words).into_iter().collect();
        if let Some(denied) = denied(&words) {
            failure = Failure {
                code: Code::Denied,
                message: format!("agent-sandbox RBAC denied: {denied}"),
                hints: vec![format!(
                    "ask the cluster's operator for {denied} in namespace {}",
                    self.namespace
                )],
                ..failure
            };
        }
        if no_context(&words) {
            failure.hints.push(
                "`kubectl config get-contexts` lists the contexts of the kubeconfig; --agent-sandbox-context chooses one".to_owned(),
            );
        }
        Refusal {
            answer,
            failure: Box::new(failure),
        }
    }

    /// What kubectl said on its own, for a failure of a command that it ran.
    pub(super) fn said(&self, words: &[u8]) -> Option<String> {
        last_own_line(&self.redactor.clean(&String::from_utf8_lossy(words)))
    }

    pub(super) fn denied(&self, words: &str) -> Option<String> {
        denied(words)
    }
}

/// Ends a watch at the first line that is not the known version: the first line is the object as it is, each other one a change.
struct ChangeDetector {
    known: Vec<u8>,
    enough: OutputComplete,
    line: Vec<u8>,
}

impl io::Write for ChangeDetector {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            match byte {
                b'\n' => {
                    if self.line != self.known {
                        self.enough.set();
                    }
                    self.line.clear();
                }
                byte if self.line.len() < 64 => self.line.push(byte),
                _ => {}
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unknown(failure: Failure) -> Refusal {
    Refusal {
        answer: Answer::Unknown,
        failure: Box::new(failure),
    }
}

/// Commands differ in how they say it.
fn no_context(words: &str) -> bool {
    let named = words.contains("error: context ") && words.contains(" does not exist");
    named || words.contains("context was not found for specified context")
}

/// By kubectl's own words. Only the server's refusal of this very object is more than "unknown".
fn classify(words: &str) -> Answer {
    let says = |text: &str| words.contains(text);
    // The API itself is missing, which says nothing about an object.
    if says("could not find the requested resource") || says("doesn't have a resource type") {
        return Answer::NotServed;
    }
    if says("Error from server (NotFound)") && says("\" not found") {
        return Answer::NotFound;
    }
    if says("Error from server (AlreadyExists)") {
        return Answer::AlreadyExists;
    }
    if says("Error from server (Conflict)") {
        return Answer::Conflict;
    }
    let refused = [
        "Error from server (Forbidden)",
        "Error from server (Unauthorized)",
        "Error from server (BadRequest)",
        "Error from server (Invalid)",
        "Error from server (NotFound)",
        " is invalid: ",
        "You must be logged in to the server",
        "error: context ",
        "context was not found for specified context",
        "unable to recognize",
        "no matches for kind",
        "no such host",
        "connection refused",
        "was refused",
        "x509:",
        "error validating",
    ];
    match refused.iter().any(|text| says(text)) {
        true => Answer::Refused,
        false => Answer::Unknown,
    }
}

/// `get sandboxclaims (extensions.agents.x-k8s.io)`, of a request that RBAC forbids.
fn denied(words: &str) -> Option<String> {
    let (_, rest) = words.split_once(" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let group = rest
        .split_once("in API group \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("", |(group, _)| group);
    Some(match group {
        "" => format!("{verb} {resource}"),
        group => format!("{verb} {resource} ({group})"),
    })
}

/// The last line that is neither a trace of the client library nor about the exit code of our own script.
fn last_own_line(words: &str) -> Option<String> {
    let is_trace = |line: &&str| {
        let mut chars = line.chars();
        let letter = chars.next().is_some_and(|c| matches!(c, 'E' | 'W' | 'I'));
        letter && chars.take(4).filter(char::is_ascii_digit).count() == 4
    };
    let is_told = |line: &&str| !line.is_empty() && !line.starts_with(COMMAND_ENDED);
    let mut lines = words.lines().map(str::trim).filter(is_told);
    let own: Vec<&str> = lines.clone().filter(|line| !is_trace(line)).collect();
    match own.as_slice() {
        [] => lines.next_back().map(str::to_owned),
        [.., last] => Some((*last).to_owned()),
    }
}

/// What kubectl calls the objects: with the version, so that an older one is never taken.
pub(super) fn claim_object(name: &str) -> String {
    format!("sandboxclaims.{VERSION}.{CLAIM_GROUP}/{name}")
}

pub(super) fn sandbox_object(name: &str) -> String {
    format!("sandboxes.{VERSION}.{CORE_GROUP}/{name}")
}

pub(super) fn pool_object(name: &str) -> String {
    format!("sandboxwarmpools.{VERSION}.{CLAIM_GROUP}/{name}")
}

pub(super) fn pod_object(name: &str) -> String {
    format!("pods/{name}")
}

pub(super) fn claims_path(namespace: &str) -> String {
    format!("/apis/{CLAIM_GROUP}/{VERSION}/namespaces/{namespace}/sandboxclaims")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_found_is_about_the_object_itself_only() {
        for (words, answer) in [
            (
                "Error from server (NotFound): sandboxclaims.extensions.agents.x-k8s.io \"rbac\" not found",
                Answer::NotFound,
            ),
            (
                "Error from server (NotFound): the server could not find the requested resource",
                Answer::NotServed,
            ),
            (
                "error: the server doesn't have a resource type \"sandboxclaims\"",
                Answer::NotServed,
            ),
            (
                "Error from server (AlreadyExists): sandboxclaims.extensions.agents.x-k8s.io \"rbdup\" already exists",
                Answer::AlreadyExists,
            ),
            (
                "Error from server (Conflict): Operation cannot be fulfilled on SandboxClaim: the UID in the precondition (x) does not match",
                Answer::Conflict,
            ),
            (
                "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?",
                Answer::Refused,
            ),
            (
                "Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority",
                Answer::Refused,
            ),
            // The request was sent: the word alone proves nothing about it.
            (
                "error: http2: client connection lost while the certificate was rotated",
                Answer::Unknown,
            ),
            (
                "Error from server (InternalError): Internal error occurred: failed calling webhook \"certificate.example\": context deadline exceeded",
                Answer::Unknown,
            ),
            ("net/http: TLS handshake timeout", Answer::Unknown),
            ("unexpected EOF", Answer::Unknown),
            ("", Answer::Unknown),
        ] {
            assert_eq!(classify(words), answer, "{words}");
        }
    }

    #[test]
    fn a_context_that_is_missing_is_told_in_two_ways() {
        for words in [
            "error: context \"c\" does not exist",
            "Error in configuration: context was not found for specified context: c",
        ] {
            assert!(no_context(words));
            assert_eq!(classify(words), Answer::Refused);
        }
        assert!(!no_context("error: namespace \"c\" does not exist"));
    }

    #[test]
    fn a_denial_names_the_verb() {
        for (words, said) in [
            (
                "Error from server (Forbidden): sandboxclaims.extensions.agents.x-k8s.io is forbidden: User \"u\" cannot create resource \"sandboxclaims\" in API group \"extensions.agents.x-k8s.io\" in the namespace \"sandboxes\"",
                "create sandboxclaims (extensions.agents.x-k8s.io)",
            ),
            (
                "error: unable to upgrade connection: pods \"p\" is forbidden: User \"u\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"sandboxes\"",
                "create pods/exec",
            ),
        ] {
            assert_eq!(denied(words).as_deref(), Some(said));
        }
        assert_eq!(denied("connection refused"), None);
    }

    #[test]
    fn traces_of_the_library_are_left_out() {
        let words = "E1117 12:35:50.633687    8229 memcache.go:381] \"Couldn't get\"\nerror: You must be logged in\n";
        assert_eq!(
            last_own_line(words).as_deref(),
            Some("error: You must be logged in")
        );
        assert_eq!(last_own_line("\n"), None);
    }
}
