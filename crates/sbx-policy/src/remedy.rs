//! What to type when something is denied that should not be.

use sbx_proto::shell::quoted;

use crate::builtin_names::{HOST_ALIAS, is_host_alias};
use crate::pattern::Pattern;
use crate::proxy_config::{BLOCK_CIDR, OlderPattern};
use crate::rule::{Decision, Origin, Rule, Scope, Traffic};
use crate::target::Target;
use crate::verdict::{Kind, RuleRef, Verdict};

const UNREADABLE: &str = "policy-unreadable";

/// What holds where rules cannot be read: nothing is allowed. Sandboxes see it, so it says nothing about the host;
/// the command that [`remedy`] has for it does.
pub fn unreadable() -> Rule {
    Rule {
        id: UNREADABLE.to_owned(),
        name: "the network rules cannot be read, so nothing is allowed".to_owned(),
        policy: Scope::Global.policy().to_owned(),
        scope: Scope::Global,
        decision: Decision::Deny,
        resources: vec![Pattern::everything()],
        origin: Origin::Local,
        traffic: Traffic::Any,
        allow_private: false,
        expires: None,
        expired: false,
        editable: false,
        created: None,
    }
}

/// The command that changes the verdict, where there is one; else one that says more about it. What it allows, it
/// allows in `scope`.
pub fn remedy(scope: &Scope, target: &Target, verdict: &Verdict) -> Option<String> {
    let option = scope.option();
    let allow = |what: &str| Some(format!("sbx policy allow network{option} {}", quoted(what)));
    match verdict.kind {
        Kind::Allowed | Kind::Malformed | Kind::RecordType => None,
        Kind::Explicit => {
            let rule = verdict.rule.as_ref()?;
            let undo = undo(scope, rule);
            // The settings' own words both take back a block and allow.
            let both = undo.changes && rule.origin != Origin::ProxyConfig;
            match &verdict.opens {
                Some(opens) if both => Some(format!(
                    "{} && {}",
                    undo.command,
                    allow(&opens.to_string())?
                )),
                Some(_) | None => Some(undo.command),
            }
        }
        Kind::Loopback => Some(format!(
            "sbx policy check network{option} {}:{}",
            HOST_ALIAS, target.port
        )),
        Kind::Implicit | Kind::Address if is_host_alias(&target.host) => {
            allow(&format!("localhost:{}", target.port))
        }
        // Not the name: its owner may lead it elsewhere tomorrow. And a reader of the address sees what it is.
        Kind::Implicit | Kind::Address => match &verdict.opens {
            Some(address) => allow(&address.to_string()),
            None => allow(&target.to_string()),
        },
    }
}

struct Undo {
    command: String,
    /// Else it only says more.
    changes: bool,
}

/// Takes back what the rule says about this resource, and nothing else that it says.
fn undo(scope: &Scope, rule: &RuleRef) -> Undo {
    let changing = |command| Undo {
        command,
        changes: true,
    };
    let telling = |command| Undo {
        command,
        changes: false,
    };
    if rule.id == UNREADABLE {
        // It names the file and the place in it, and says how to go on.
        let whose = match scope {
            Scope::Sandbox(name) => format!(" {name}"),
            Scope::Global | Scope::Repo(_) => scope.option(),
        };
        return telling(format!("sbx policy ls{whose}"));
    }
    let resource = quoted(&rule.resource.to_string());
    match (rule.origin, &rule.scope) {
        (Origin::Local | Origin::Scoped, scope) => changing(format!(
            "sbx policy rm network{} --resource {resource}",
            scope.option()
        )),
        (Origin::ProxyConfig, Scope::Sandbox(name)) => {
            let older = quoted(&OlderPattern::from(rule.resource.clone()).to_string());
            let flag = if rule.id.ends_with(BLOCK_CIDR) {
                "--allow-cidr"
            } else {
                "--allow-host"
            };
            changing(format!("sbx network proxy {name} {flag} {older}"))
        }
        (Origin::Preset | Origin::Kit | Origin::ProxyConfig, _) => {
            telling(format!("sbx policy inspect {}", quoted(&rule.id)))
        }
    }
}
