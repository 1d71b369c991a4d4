//! What to type when something is denied that should not be.

use crate::rule::{Origin, Scope};
use crate::special::{HOST_ALIAS, is_host_alias};
use crate::target::Target;
use crate::verdict::{Kind, Verdict};

/// The command that changes the verdict, where there is one.
pub fn remedy(sandbox: Option<&str>, target: &Target, verdict: &Verdict) -> Option<String> {
    let scope = sandbox.map_or(String::new(), |name| format!(" --sandbox {name}"));
    let allow = |what: &str| Some(format!("sbx policy allow network{scope} {what}"));
    match verdict.kind {
        Kind::Allowed | Kind::Malformed => None,
        Kind::Explicit => {
            let rule = verdict.rule.as_ref()?;
            Some(match (rule.origin, &rule.scope) {
                (Origin::Local | Origin::Scoped, Scope::Global) => {
                    format!("sbx policy rm network --id {}", rule.id)
                }
                (Origin::Local | Origin::Scoped, Scope::Sandbox(name)) => {
                    format!("sbx policy rm network --sandbox {name} --id {}", rule.id)
                }
                (Origin::Preset | Origin::Kit | Origin::ProxyConfig, _) => {
                    format!("sbx policy inspect {}", rule.id)
                }
            })
        }
        Kind::Loopback => Some(format!(
            "sbx policy check network{scope} {}:{}",
            HOST_ALIAS, target.port
        )),
        Kind::Implicit | Kind::Address if is_host_alias(&target.host) => {
            allow(&format!("localhost:{}", target.port))
        }
        Kind::Implicit | Kind::Address => allow(&target.to_string()),
    }
}
