//! Makes the files of a template. Runs with the ids that the files shall have: as root of the user namespace
//! in subordinate mode, as the caller otherwise.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::process::geteuid;
use sbx_proto::OsBytes;
use sbx_proto::plan::Mode;

use super::access_rules::AccessRules;
use super::copy::{Take, copy_tree, make_dir, make_link, write_file};
use super::error::At as _;
use super::spec::{Spec, TopKind};
use super::{TemplateError, caches, etc, layers, scripts, var};
use crate::threads::{at_once, lock};
use sbx_proto::inside::AGENT;

/// Below a template's directory: the lowest layer of `/`.
pub(super) const ROOT: &str = "root";
/// Below a template's directory: one layer per top-level directory of the host.
pub(super) const LAYERS: &str = "layers";
/// Below a template's directory: a list of what the caller keeps from others in the system directories.
pub(super) const PRIVATE: &str = "private.json";

/// Below `/usr`: where the certificate of a sandbox's authority is put.
const CERTIFICATES: &str = "local/share/ca-certificates";

/// Builds what `spec_json` (made by [`super::ensure`]) asks for in the empty directory `dir`.
pub fn build(dir: &Path, spec_json: &str) -> Result<(), TemplateError> {
    let spec: Spec = serde_json::from_str(spec_json).map_err(TemplateError::Spec)?;
    // Neither part has anything of the other, and both mostly wait for the kernel.
    let done = Mutex::new(Vec::new());
    let parts: [Part; 2] = [root_layer, upper_layers];
    at_once(&parts, |part| {
        let result = part(dir, &spec);
        lock(&done).push(result);
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().collect()
}

type Part = fn(&Path, &Spec) -> Result<(), TemplateError>;

fn root_layer(dir: &Path, spec: &Spec) -> Result<(), TemplateError> {
    let root = dir.join(ROOT);
    mount_points(&root, spec)?;
    etc::fill(&spec.host, &root.join("etc"), spec.mode)?;
    var::fill(&spec.host, &root.join("var"))?;
    home(&root)
}

/// Of the host's top-level directories.
fn upper_layers(dir: &Path, spec: &Spec) -> Result<(), TemplateError> {
    let layers = dir.join(LAYERS);
    make_dir(&layers, 0o755)?;
    let mounts = spec.mounts();
    let rules = AccessRules::new(spec);
    let mut private = BTreeSet::new();
    for top in spec.dirs() {
        let (host, layer) = (spec.host.join(top), layers.join(top));
        private.extend(layers::skeleton(&host, &layer, &rules)?);
        if top == "usr" && rules.mirrors() {
            layers::owned(&host, &layer, &mounts, &rules)?;
        }
    }
    let private: Vec<OsBytes> = private.iter().map(|path| path.as_path().into()).collect();
    let private = serde_json::to_string(&private).map_err(TemplateError::Spec)?;
    write_file(&dir.join(PRIVATE), &private, 0o644)?;
    programs(spec, &layers)
}

fn mount_points(root: &Path, spec: &Spec) -> Result<(), TemplateError> {
    make_dir(root, 0o755)?;
    for dir in [
        "dev", "home", "media", "mnt", "opt", "proc", "run", "srv", "sys", "usr",
    ] {
        make_dir(&root.join(dir), 0o755)?;
    }
    // Not 700 as elsewhere: a workspace or tool chain may lie below it.
    make_dir(&root.join("root"), 0o755)?;
    make_dir(&root.join("tmp"), 0o1777)?;
    for top in &spec.tops {
        let path = root.join(&top.name);
        match &top.kind {
            TopKind::Link(to) => {
                if path.is_dir() {
                    std::fs::remove_dir(&path).at("replace", &path)?;
                }
                make_link(&path, to)?;
            }
            TopKind::Dir | TopKind::Closed => make_dir(&path, 0o755)?,
        }
    }
    Ok(())
}

fn home(root: &Path) -> Result<(), TemplateError> {
    let home = root.join("home/agent");
    let skel = root.join("etc/skel");
    let rule = |_: &Path| Take::AsIs;
    copy_tree(&skel, &home, Path::new(""), &rule)?;
    copy_tree(&skel, &root.join("root"), Path::new(""), &rule)?;
    for dir in [
        "",
        ".cache",
        ".config",
        ".local",
        ".local/bin",
        ".local/share",
    ] {
        make_dir(&home.join(dir), 0o755)?;
    }
    for cache in caches::targets() {
        make_dir(&home.join(cache), 0o755)?;
    }
    // `npm install -g` as the agent, who does not own /usr.
    write_file(&home.join(".npmrc"), "prefix=/home/agent/.local\n", 0o644)?;
    if geteuid().is_root() {
        give_to_agent(&home)?;
        give_to_agent(&root.join("etc/sandbox-persistent.sh"))?;
    }
    Ok(())
}

fn give_to_agent(path: &Path) -> Result<(), TemplateError> {
    std::os::unix::fs::lchown(path, Some(AGENT), Some(AGENT)).at("set the owner of", path)?;
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).at("list", path)? {
            give_to_agent(&entry.at("list", path)?.path())?;
        }
    }
    Ok(())
}

/// Our own programs, in the layer of `/usr`.
fn programs(spec: &Spec, layers: &Path) -> Result<(), TemplateError> {
    let (host, layer) = (spec.host.join("usr"), layers.join("usr"));
    if !spec.dirs().any(|top| top == "usr") {
        return Ok(());
    }
    let install = |dir: &str, name: &str, text: &str| {
        layers::mirror_all(&host, &layer, Path::new(dir))?;
        write_file(&layer.join(dir).join(name), text, 0o755)
    };
    let has_dpkg = host.join("bin/dpkg").exists();
    match spec.mode {
        Mode::Root | Mode::Subordinate => {
            if has_dpkg && !host.join("sbin/policy-rc.d").exists() {
                install("sbin", "policy-rc.d", scripts::POLICY_RC)?;
            }
            if has_dpkg {
                install("local/sbin", "dpkg-deb", scripts::DPKG_DEB)?;
            }
        }
        Mode::Single => {
            for name in ["apt", "apt-get", "dpkg"] {
                if host.join("bin").join(name).exists() {
                    install("local/sbin", name, scripts::NO_PACKAGES)?;
                }
            }
            layers::own(&host, &layer, Path::new(CERTIFICATES))?;
        }
    }
    Ok(())
}
