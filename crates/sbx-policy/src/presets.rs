//! The three starting points of a policy. Their rules come with the program and are not stored, so that an upgrade
//! brings a better list; what the user adds is kept apart and stays.
//!
//! `deny-all` is the absence of allows. It is listed as `default-deny-all`, a deny without resources: a deny of
//! `**` would beat every rule that the user adds later.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pattern::{Pattern, PatternError};
use crate::rule::{Decision, Origin, Rule, Scope, Traffic};

const BALANCED: &str = include_str!("presets/balanced.txt");
const DEFAULT_PORT: &str = "443";

/// [`BALANCED`], which is asked for with every start of a sandbox and every change of the rules.
static READ: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    sections(BALANCED)
        .map(|(name, lines)| {
            // A line that cannot be read allows nothing; a test reads them all.
            let resources = lines.filter_map(|line| expand(line).ok()).flatten();
            rule(name, Decision::Allow, resources.collect())
        })
        .collect()
});

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    AllowAll,
    Balanced,
    DenyAll,
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("unknown preset `{0}`: expected `allow-all`, `balanced` or `deny-all`")]
pub struct UnknownPreset(String);

/// The rules of a preset. Names and ids are the same and stable: scripts and logs refer to them.
pub fn preset(preset: Preset) -> Vec<Rule> {
    match preset {
        Preset::AllowAll => vec![rule(
            "default-allow-all",
            Decision::Allow,
            vec![Pattern::everything()],
        )],
        Preset::Balanced => READ.clone(),
        Preset::DenyAll => vec![rule("default-deny-all", Decision::Deny, Vec::new())],
    }
}

/// Why a rule of a preset is there: what stands above it in the data.
pub fn preset_reason(rule: &str) -> Option<String> {
    let lines: Vec<&str> = BALANCED.lines().collect();
    let heading = format!("[{rule}]");
    let at = lines.iter().position(|line| **line == heading)?;
    let above = lines.iter().take(at).rev();
    let mut comment: Vec<&str> = above.map_while(|line| line.strip_prefix("# ")).collect();
    comment.reverse();
    (!comment.is_empty()).then(|| comment.join(" "))
}

impl Preset {
    pub const ALL: [Self; 3] = [Self::AllowAll, Self::Balanced, Self::DenyAll];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllowAll => "allow-all",
            Self::Balanced => "balanced",
            Self::DenyAll => "deny-all",
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        let mut all = Self::ALL.into_iter();
        all.find(|preset| preset.as_str() == text)
            .ok_or_else(|| UnknownPreset(text.to_owned()))
    }
}

fn rule(name: &str, decision: Decision, resources: Vec<Pattern>) -> Rule {
    Rule {
        id: name.to_owned(),
        name: name.to_owned(),
        policy: Scope::Global.policy().to_owned(),
        scope: Scope::Global,
        decision,
        resources,
        origin: Origin::Preset,
        traffic: Traffic::Any,
        allow_private: false,
        expires: None,
        expired: false,
        editable: false,
        created: None,
    }
}

fn sections(data: &str) -> impl Iterator<Item = (&str, impl Iterator<Item = &str>)> {
    data.split("\n[")
        .skip(1)
        .filter_map(|section| section.split_once("]\n"))
        .map(|(name, body)| {
            let lines = body.lines().map(str::trim);
            (
                name,
                lines.filter(|line| !line.is_empty() && !line.starts_with('#')),
            )
        })
}

/// `.example.org` is that domain and everything below it, on port 443 unless the line has a port.
fn expand(line: &str) -> Result<Vec<Pattern>, PatternError> {
    let Some(suffix) = line.strip_prefix('.') else {
        return Ok(vec![line.parse()?]);
    };
    let (domain, port) = suffix.split_once(':').unwrap_or((suffix, DEFAULT_PORT));
    Ok(vec![
        format!("{domain}:{port}").parse()?,
        format!("**.{domain}:{port}").parse()?,
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_is_read_and_has_a_port() {
        for (name, lines) in sections(BALANCED) {
            let mut seen = BTreeSet::new();
            for line in lines {
                assert!(seen.insert(line), "{name}: {line} twice");
                for pattern in expand(line).unwrap() {
                    assert!(pattern.port().is_some(), "{name}: {line} has no port");
                    assert!(!pattern.is_everything() && !pattern.is_address(), "{line}");
                }
            }
        }
    }

    #[test]
    fn the_groups_have_their_names() {
        let names: Vec<String> = preset(Preset::Balanced)
            .into_iter()
            .map(|rule| rule.name)
            .collect();
        assert_eq!(
            names,
            [
                "default-ai-services",
                "default-package-managers",
                "default-code-and-containers",
                "default-cloud-infrastructure",
                "default-os-packages",
                "default-cert-validation",
            ]
        );
    }

    #[test]
    fn every_group_has_a_reason() {
        for rule in preset(Preset::Balanced) {
            let reason = preset_reason(&rule.id).expect(&rule.id);
            assert!(reason.ends_with('.') && !reason.contains('#'), "{reason}");
        }
        let expected = "Revocation lists and OCSP, which clients ask while they verify a certificate. Plain HTTP by \
                        design: the answers carry signatures.";
        let reason = preset_reason("default-cert-validation");
        assert_eq!(reason.as_deref(), Some(expected));
        assert_eq!(preset_reason("default-allow-all"), None);
    }

    #[test]
    fn a_dot_in_front_means_the_domain_and_everything_below() {
        let shown = |line| -> Vec<String> {
            let patterns = expand(line).unwrap();
            patterns.iter().map(Pattern::to_string).collect()
        };
        assert_eq!(
            shown(".example.org"),
            ["example.org:443", "**.example.org:443"]
        );
        assert_eq!(
            shown(".example.org:80"),
            ["example.org:80", "**.example.org:80"]
        );
        assert_eq!(shown("a*.example.org:80"), ["a*.example.org:80"]);
    }

    #[test]
    fn the_services_of_every_region_are_open() {
        for region in [
            "us-east-1",
            "us-gov-west-1",
            "eu-central-1",
            "ap-southeast-2",
            "ca-west-1",
            "mx-central-1",
        ] {
            for text in [
                format!("sts.{region}.amazonaws.com"),
                format!("bedrock-runtime.{region}.amazonaws.com"),
            ] {
                let target = crate::Target::parse_loose(&text).unwrap();
                let rules = preset(Preset::Balanced);
                let mut resources = rules.iter().flat_map(|rule| &rule.resources);
                assert!(
                    resources.any(|resource| resource.matches(&target)),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn object_stores_stay_closed() {
        let forbidden = [
            "bucket.s3.amazonaws.com:443",
            "bucket.s3.eu-west-1.amazonaws.com:443",
            "sts.s3.amazonaws.com:443",
            "sts.s3-us-west-2.amazonaws.com:443",
            "q.s3-website-us-east-1.amazonaws.com:443",
            "bedrock-runtime.s3-eu-west-1.amazonaws.com:443",
            "storage.googleapis.com:443",
            "account.blob.core.windows.net:443",
            "bucket.account.r2.cloudflarestorage.com:443",
            "bucket.storage.googleapis.com:443",
            "bucket.nyc3.digitaloceanspaces.com:443",
            "id.execute-api.us-east-1.amazonaws.com:443",
            "ec2-192-0-2-1.us-west-2.compute.amazonaws.com:443",
            "sts.us-west-2.elb.amazonaws.com:443",
            "d111111abcdef8.cloudfront.net:443",
            "site.azureedge.net:443",
            "app.azurewebsites.net:443",
            "app.vercel.app:443",
            "app.netlify.app:443",
            "app.web.app:443",
            "app.pages.dev:443",
            "app.workers.dev:443",
            "app.hf.space:443",
            "user.github.io:443",
            "user.gitlab.io:443",
        ];
        for text in forbidden {
            let target = crate::Target::parse_loose(text).unwrap();
            for rule in preset(Preset::Balanced) {
                assert!(!rule.resources.iter().any(|r| r.matches(&target)), "{text}");
            }
        }
    }

    /// Where anybody can store something without an account, or with one that costs nothing: what the list says that it
    /// leaves out.
    #[test]
    fn what_stores_for_anybody_is_not_in_the_list() {
        let forbidden = [
            "paste.ubuntu.com:443",
            "paste.ubuntu.com:80",
            "pastebin.ubuntu.com:443",
            "pastebin.canonical.com:443",
            "paste.opensuse.org:443",
            "paste.fedoraproject.org:443",
            "paste.centos.org:443",
            "paste.apache.org:443",
            "paste.debian.net:443",
            "play.golang.org:443",
            "go.dev:443",
            "play.rust-lang.org:443",
            "play.haskell.org:443",
            "paste.haskell.org:443",
            "play.kotlinlang.org:443",
            "scastie.scala-lang.org:443",
            "esm.sh:443",
            "dash.deno.com:443",
            "scans.gradle.com:443",
            "project.sourceforge.net:443",
            "www.googleapis.com:443",
            "storage.googleapis.com:443",
            "accelerate.prisma.io:443",
            "console.prisma.io:443",
        ];
        let needed = [
            "binaries.prisma.sh:443",
            "proxy.golang.org:443",
            "static.rust-lang.org:443",
            "hackage.haskell.org:443",
            "repo.maven.apache.org:443",
            "archive.ubuntu.com:80",
            "de.archive.ubuntu.com:80",
            "security.ubuntu.com:443",
            "mirrors.fedoraproject.org:443",
            "mirrorlist.centos.org:80",
            "download.opensuse.org:443",
            "netix.dl.sourceforge.net:443",
        ];
        let rules = preset(Preset::Balanced);
        let is_open = |text: &str| {
            let target = crate::Target::parse_loose(text).unwrap();
            let mut resources = rules.iter().flat_map(|rule| &rule.resources);
            resources.any(|resource| resource.matches(&target))
        };
        for text in forbidden {
            assert!(!is_open(text), "{text}");
        }
        for text in needed {
            assert!(is_open(text), "{text}");
        }
        // No host is called like a place to paste or to play.
        for resource in rules.iter().flat_map(|rule| &rule.resources) {
            let text = resource.to_string();
            let label = text.split('.').next().unwrap();
            let bad = ["paste", "pastebin", "play", "playground", "gist"];
            assert!(!bad.contains(&label), "{text}");
        }
        for group in [
            "default-ai-services",
            "default-package-managers",
            "default-code-and-containers",
            "default-os-packages",
        ] {
            let risk = preset_reason(group).unwrap();
            assert!(risk.contains("Residual risk"), "{risk}");
        }
    }

    /// What stands in front of a provider's domain where everybody can store or publish something.
    const STORES: &[&str] = &[
        "s3",
        "s3-us-west-2",
        "s3-fips",
        "s3-accelerate",
        "s3-website-us-east-1",
        "s3-accesspoint",
        "s3express-use1-az4",
        "s3-object-lambda",
        "execute-api",
        "lambda-url",
        "storage",
        "storage-download",
        "storage-upload",
        "commondatastorage",
        "firebasestorage",
        "blob",
        "dfs",
        "file",
        "web",
        "azurewebsites",
        "r2",
    ];

    /// Domains below which such a place is reached when one of [`STORES`] is among the labels.
    const PROVIDERS: &[&str] = &[
        "amazonaws.com",
        "on.aws",
        "googleapis.com",
        "core.windows.net",
        "azureedge.net",
        "azure.com",
        "cloudfront.net",
        "cloudflarestorage.com",
    ];

    fn is_store(name: &str) -> bool {
        PROVIDERS.iter().any(|provider| {
            let in_front = name
                .strip_suffix(provider)
                .and_then(|rest| rest.strip_suffix('.'));
            in_front.is_some_and(|labels| labels.split('.').any(|l| STORES.contains(&l)))
        })
    }

    /// A bucket may be called like a service: no label that a pattern leaves open may be a place for buckets.
    #[test]
    fn no_open_label_is_an_object_store() {
        let mut tried = 0;
        for rule in preset(Preset::Balanced) {
            for pattern in &rule.resources {
                let text = pattern.to_string();
                let (hosts, _) = text.split_once(':').unwrap();
                let labels: Vec<&str> = hosts.split('.').collect();
                let open = |label: &&str| label.contains('*') && **label != *"**";
                let Some(at) = labels.iter().position(open) else {
                    continue;
                };
                for store in STORES {
                    for filled in [(*store).to_owned(), labels[at].replace('*', store)] {
                        let mut name = labels.clone();
                        name[at] = &filled;
                        let name = name.join(".");
                        let host = crate::Host::parse(&name).unwrap();
                        let opens = pattern.matches_host(&host);
                        assert!(!(opens && is_store(&name)), "{text} opens {name}");
                        tried += 1;
                    }
                }
            }
        }
        assert!(tried > 100, "{tried}");
    }
}
