//! What of the system directories a sandbox does not see, although programs with the caller's id could read it: the
//! home, the state directory, what other sandboxes work on, and what the caller closed to others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::layout::{HostBind, OverlayDir};
use super::secrets::outermost;
use super::spec::is_system;

/// Without it no program runs.
const NEEDED: &str = "/usr";

/// Canonical paths of the host, below the system directories or such a directory itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hidden(BTreeSet<PathBuf>);

/// What cannot be hidden by a layer, because the directory is not an overlay.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Covers {
    /// Directories that an empty one is put on.
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) files: BTreeSet<PathBuf>,
}

/// What the host says.
pub(super) struct Facts<'a> {
    /// Whether it is a directory; `None` where nothing is.
    pub(super) is_dir: &'a dyn Fn(&Path) -> Option<bool>,
    /// Whether it belongs to the caller, who is the agent inside.
    pub(super) callers: &'a dyn Fn(&Path) -> bool,
    /// The sandbox's own workspaces, which are mounted on top.
    pub(super) workspaces: &'a [PathBuf],
}

impl Hidden {
    pub(super) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let needed = Path::new(NEEDED);
        let paths = paths.into_iter();
        let paths = paths.filter(|path| is_system(path) && path != needed);
        Self(outermost(paths.collect()))
    }

    pub(super) fn covers(&self, path: &Path) -> bool {
        self.0.iter().any(|hidden| path.starts_with(hidden))
    }

    pub(super) fn add(&mut self, paths: BTreeSet<PathBuf>) {
        self.0.extend(paths);
        self.0 = outermost(std::mem::take(&mut self.0));
    }

    /// Takes it out of the system directories.
    pub(super) fn apply(
        &self,
        overlays: &mut Vec<OverlayDir>,
        binds: &mut Vec<HostBind>,
        facts: &Facts<'_>,
    ) -> (Covers, Vec<String>) {
        let mut warnings = Vec::new();
        let mut gone = |target: &Path| {
            let covered = self.covers(target);
            if covered {
                warnings.push(format!(
                    "`{}` is not shown inside: it belongs to a workspace, the home or the state directory",
                    target.display()
                ));
            }
            covered
        };
        overlays.retain(|overlay| !gone(&overlay.target));
        binds.retain(|bind| !gone(&bind.target));
        for overlay in overlays {
            let below = self
                .0
                .iter()
                .filter_map(|path| path.strip_prefix(&overlay.target).ok());
            overlay.hidden.extend(below.map(Path::to_owned));
            let hidden = overlay.hidden.iter();
            // Each is looked at once: many lie in one directory.
            let on_the_way: BTreeSet<_> =
                hidden.flat_map(|path| path.ancestors().skip(1)).collect();
            let agents = on_the_way
                .into_iter()
                .filter(|dir| (facts.callers)(&overlay.target.join(dir)));
            overlay.agents = agents.map(Path::to_owned).collect();
        }
        let mut covers = Covers::default();
        for path in &self.0 {
            let own = |workspace: &PathBuf| path.starts_with(workspace);
            if facts.workspaces.iter().any(own)
                || !binds.iter().any(|bind| path.starts_with(&bind.target))
            {
                continue;
            }
            match (facts.is_dir)(path) {
                Some(true) => covers.dirs.insert(path.clone()),
                Some(false) => covers.files.insert(path.clone()),
                None => continue,
            };
        }
        (covers, warnings)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use sbx_api::MountKind;

    use super::*;

    #[test]
    fn a_layer_hides_or_a_mount_covers() {
        let overlay = |target: &str| OverlayDir {
            target: target.into(),
            lowers: vec![target.into()],
            dir: "d".into(),
            as_owner: None,
            hidden: BTreeSet::new(),
            agents: BTreeSet::new(),
        };
        let bind = |target: &str| HostBind {
            source: target.into(),
            target: target.into(),
            kind: MountKind::Template,
            layered: false,
            hidden: BTreeSet::new(),
        };
        let paths = [
            "/opt/x/home",
            "/opt/x/home/ws",
            "/opt/mounted",
            "/lib64",
            "/usr",
            "/usr/key",
            "/usr/dir",
            "/usr/none",
            "/usr/ws",
            "/home/u",
        ];
        let hidden = Hidden::new(paths.map(PathBuf::from));
        assert!(hidden.covers(Path::new("/opt/x/home/.cargo/bin")));
        assert!(!hidden.covers(Path::new("/opt/x/homes")) && !hidden.covers(Path::new("/home/u")));
        let mut overlays = vec![overlay("/opt"), overlay("/lib64")];
        let mut binds = vec![bind("/usr"), bind("/opt/mounted"), bind("/opt/other")];
        let is_dir = |path: &Path| match path.to_str()? {
            "/usr/key" => Some(false),
            "/usr/dir" | "/usr/ws" => Some(true),
            _ => None,
        };
        let asked = RefCell::new(Vec::new());
        let facts = Facts {
            is_dir: &is_dir,
            callers: &|path| {
                asked.borrow_mut().push(path.to_owned());
                path == Path::new("/opt/x")
            },
            workspaces: &["/usr/ws".into()],
        };
        let (covers, warnings) = hidden.apply(&mut overlays, &mut binds, &facts);
        let [opt] = overlays.as_slice() else {
            panic!("one overlay expected");
        };
        assert_eq!(*asked.borrow(), ["/opt/", "/opt/x"].map(PathBuf::from));
        let expected = ["mounted", "x/home"].map(PathBuf::from);
        assert_eq!(opt.hidden, BTreeSet::from(expected));
        assert_eq!(opt.agents, BTreeSet::from(["x".into()]));
        assert_eq!(binds, [bind("/usr"), bind("/opt/other")]);
        assert_eq!(covers.dirs, BTreeSet::from(["/usr/dir".into()]));
        assert_eq!(covers.files, BTreeSet::from(["/usr/key".into()]));
        assert_eq!(warnings.len(), 2);
    }
}
