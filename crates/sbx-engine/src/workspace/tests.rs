use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;

/// A temporary directory in which `state` is a state directory and `project` a project.
fn place() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(temp.path()).unwrap();
    fs::create_dir_all(root.join("home/state/vm")).unwrap();
    fs::create_dir_all(root.join("home/project/sub")).unwrap();
    fs::create_dir_all(root.join("home/state-of-art")).unwrap();
    (temp, root)
}

fn resolved(root: &Path, paths: &[&str]) -> Result<Vec<String>, String> {
    let requests: Vec<_> = paths
        .iter()
        .map(|path| {
            let (path, readonly) = match path.strip_suffix(":ro") {
                Some(path) => (path, true),
                None => (*path, false),
            };
            let path = root.join(path).to_string_lossy().into_owned();
            WorkspaceRequest {
                path,
                given: None,
                target: None,
                readonly,
            }
        })
        .collect();
    let shown = |path: &Path| {
        path.strip_prefix(root)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    match resolve(&requests, &root.join("home/state"), &[]) {
        Ok(found) => Ok(found.iter().map(|w| shown(w.path.as_path())).collect()),
        Err(e) => Err(format!("{e:?}")
            .split(['(', ' '])
            .next()
            .unwrap()
            .to_owned()),
    }
}

#[test]
fn ordinary_workspaces() {
    let (_temp, root) = place();
    File::create(&root, "home/notes");
    symlink(root.join("home/project"), root.join("link")).unwrap();
    for (given, expected) in [
        (vec!["home/project"], vec!["home/project"]),
        (vec!["link"], vec!["home/project"]),
        (vec!["home/state-of-art"], vec!["home/state-of-art"]),
        (
            vec!["home/project/sub", "home/project:ro", "home/notes:ro"],
            vec!["home/project/sub", "home/project", "home/notes"],
        ),
    ] {
        let expected: Vec<_> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(resolved(&root, &given), Ok(expected));
    }
}

#[test]
fn the_name_by_which_links_lead_to_a_workspace_is_kept() {
    let (_temp, root) = place();
    let home = root.join("home");
    symlink("project", home.join("link")).unwrap();
    symlink(&home, root.join("house")).unwrap();
    let kept = |to: &str, name: &str| {
        let request = given(&home.join(to), &root.join(name));
        let resolved = resolve(&[request], &home.join("state"), &[]).unwrap();
        let again = resolve_again(&resolved, &home.join("state")).unwrap();
        assert_eq!(again.workspaces, resolved);
        let name = resolved[0].given.as_ref().map(OsBytes::as_path);
        name.map(|name| {
            name.strip_prefix(&root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
    };
    assert_eq!(kept("project", "home/link").unwrap(), "home/link");
    assert_eq!(kept("project", "house/./link/").unwrap(), "house/link");
    assert_eq!(
        kept("project/sub", "home/link/sub").unwrap(),
        "home/link/sub"
    );
    // As the file system has it, not as text: `link/..` is the parent of `project`.
    assert_eq!(kept("project", "house/link/../link").unwrap(), "home/link");
    for plain in ["home/project", "home/./project", "home/link/../project"] {
        assert_eq!(kept("project", plain), None, "{plain}");
    }
}

#[test]
fn refused_workspaces() {
    let (_temp, root) = place();
    File::create(&root, "home/notes");
    symlink(root.join("home/state"), root.join("link")).unwrap();
    let _socket = UnixListener::bind(root.join("home/sock")).unwrap();
    for (given, expected) in [
        (vec!["home/gone"], "Missing"),
        (vec!["home/notes"], "WritableFile"),
        (vec!["home/project", "home/notes"], "WritableFile"),
        (vec!["home/project", "home/sock:ro"], "Special"),
        (vec!["home/project", "home/project/../project:ro"], "Twice"),
        (vec!["home/state"], "State"),
        (vec!["home/state/vm"], "State"),
        (vec!["home"], "State"),
        (vec!["link"], "State"),
        (vec!["/"], "Root"),
        (vec!["/usr"], "System"),
        (vec!["/tmp"], "System"),
        (vec!["/proc/self"], "Kernel"),
        (vec!["home/project", "/dev/null:ro"], "Kernel"),
    ] {
        assert_eq!(
            resolved(&root, &given),
            Err(expected.to_owned()),
            "{given:?}"
        );
    }
}

/// They are typed as they stand.
#[test]
fn hints_are_for_a_shell() {
    let path = PathBuf::from("/it's");
    let closed = WorkspaceError::Closed {
        path: path.clone(),
        what: "enter",
        own: true,
    };
    for (error, hint) in [
        (
            WorkspaceError::Missing(path.clone()),
            r"mkdir -p '/it'\''s'",
        ),
        (WorkspaceError::WritableFile(path), r"'/it'\''s:ro'"),
        (closed, r"chmod u+rwX '/it'\''s'"),
    ] {
        assert_eq!(error.hint().as_deref(), Some(hint));
    }
}

#[test]
fn a_state_directory_behind_a_symlink_is_still_the_state_directory() {
    let (_temp, root) = place();
    symlink(root.join("home/state"), root.join("alias")).unwrap();
    let request = WorkspaceRequest {
        path: root.join("home").to_string_lossy().into_owned(),
        given: None,
        target: None,
        readonly: false,
    };
    assert!(matches!(
        resolve(&[request], &root.join("alias"), &[]),
        Err(WorkspaceError::State { .. })
    ));
}

#[test]
fn the_state_of_another_daemon_is_not_shown() {
    let (_temp, root) = place();
    let other = root.join("home/project/sub/other");
    crate::state::StateDir::locate(&root, Some(&other))
        .unwrap()
        .claim()
        .unwrap();
    let inside = resolved(&root, &["home/project/sub/other/vm"]);
    assert_eq!(inside, Err("OtherState".to_owned()));
    let request = WorkspaceRequest {
        path: root.join("home/project").to_str().unwrap().to_owned(),
        given: None,
        target: None,
        readonly: false,
    };
    let resolved = || {
        resolve(
            std::slice::from_ref(&request),
            &root.join("home/state"),
            &[],
        )
    };
    let refused = resolved().unwrap_err();
    let hint = refused.hint().unwrap();
    assert!(
        matches!(&refused, WorkspaceError::OtherState { state, .. } if *state == other),
        "{refused}"
    );
    assert!(hint.contains("sub/other/.sbx-owner"), "{hint}");
    // Deeper than the look goes: one that is known is found all the same.
    let deep = root.join("home/project/sub/a/b");
    fs::create_dir_all(&deep).unwrap();
    let other = {
        fs::rename(&other, deep.join("other")).unwrap();
        deep.join("other")
    };
    let workspaces = resolved().unwrap();
    assert!(keep_clear_of(&workspaces, &root.join("home/state")).is_ok());
    let shown = keep_clear_of(&workspaces, &other);
    assert!(matches!(shown, Err(WorkspaceError::State { .. })));
}

fn given(path: &Path, as_given: &Path) -> WorkspaceRequest {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    WorkspaceRequest {
        path: text(path),
        given: Some(text(as_given)),
        target: None,
        readonly: false,
    }
}

#[test]
fn a_link_that_a_sandbox_can_make_does_not_choose_a_workspace() {
    let (_temp, root) = place();
    let home = root.join("home");
    fs::create_dir(home.join("other")).unwrap();
    symlink(home.join("other"), home.join("project/out")).unwrap();
    symlink("sub", home.join("project/in")).unwrap();
    symlink(home.join("project/out"), home.join("through")).unwrap();
    symlink("other", home.join("own")).unwrap();
    let others = [Writable {
        sandbox: SandboxName::parse("agent-box").unwrap(),
        path: home.join("project"),
        node: None,
    }];
    let resolved = |to: &str, name: &str| {
        let request = given(&home.join(to), &home.join(name));
        resolve(&[request], &home.join("state"), &others).map(drop)
    };
    for name in ["project/out", "through", "project/sub/../out"] {
        match resolved("other", name) {
            Err(WorkspaceError::Planted {
                link, sandbox, to, ..
            }) => {
                assert_eq!(link, home.join("project/out"), "{name}");
                assert_eq!((sandbox.as_str(), to), ("agent-box", home.join("other")));
            }
            result => panic!("{name}: {result:?}"),
        }
    }
    resolved("project/sub", "project/in").unwrap();
    resolved("other", "own").unwrap();
    resolved("other", "other").unwrap();
    assert!(matches!(
        resolved("state-of-art", "own"),
        Err(WorkspaceError::Moved(_))
    ));
}

#[test]
fn secrets_are_shared_by_their_real_path_only() {
    let (_temp, root) = place();
    let keys = root.join("home/.ssh");
    fs::create_dir(&keys).unwrap();
    symlink(&keys, root.join("keys")).unwrap();
    let resolved = |as_given: &Path| {
        resolve(&[given(&keys, as_given)], &root.join("home/state"), &[]).map(drop)
    };
    for as_given in [root.join("keys"), keys.join("."), keys.join("../.ssh")] {
        assert!(
            matches!(resolved(&as_given), Err(WorkspaceError::Private(path)) if path == keys),
            "{as_given:?}"
        );
    }
    resolved(&keys).unwrap();
    resolved(&keys.join("")).unwrap();
}

#[test]
fn what_was_replaced_is_told_and_a_read_only_directory_in_a_writable_one_refused() {
    let (_temp, root) = place();
    let state = root.join("home/state");
    let project = root.join("home/project");
    File::create(&root, "home/project/file");
    let request = |path: &Path, readonly| WorkspaceRequest {
        path: path.to_str().unwrap().to_owned(),
        given: None,
        target: None,
        readonly,
    };
    let requests = [
        request(&project, false),
        request(&project.join("sub"), true),
        request(&project.join("file"), true),
        request(&root.join("home/state-of-art"), true),
    ];
    let recorded = resolve(&requests, &state, &[]).unwrap();
    let again = |recorded: &[WorkspaceRecord]| resolve_again(recorded, &state);
    let found = again(&recorded).unwrap();
    assert_eq!(
        (found.workspaces, found.warnings.len()),
        (recorded.clone(), 0)
    );
    // The old one stays: its number cannot be given to the new one.
    let replace = |path: &Path, make: &dyn Fn()| {
        fs::rename(path, path.with_extension("old")).unwrap();
        make();
    };
    replace(&project.join("file"), &|| {
        File::create(&root, "home/project/file");
    });
    let art = root.join("home/state-of-art");
    replace(&art, &|| fs::create_dir(&art).unwrap());
    let found = again(&recorded).unwrap();
    assert_eq!(found.warnings.len(), 2, "{:?}", found.warnings);
    // Told once.
    assert_eq!(again(&found.workspaces).unwrap().warnings.len(), 0);
    let sub = project.join("sub");
    replace(&sub, &|| fs::create_dir(&sub).unwrap());
    assert!(matches!(again(&recorded), Err(WorkspaceError::Replaced(path)) if path == sub));
    let mut unknown = recorded;
    for workspace in &mut unknown {
        workspace.identity = None;
    }
    assert_eq!(again(&unknown).unwrap().warnings.len(), 0);
    // The user's own directory, cloned again.
    let found = again(&unknown).unwrap();
    replace(&project, &|| {
        fs::create_dir(&project).unwrap();
        for name in ["sub", "file"] {
            fs::rename(project.with_extension("old").join(name), project.join(name)).unwrap();
        }
    });
    assert_eq!(again(&found.workspaces).unwrap().warnings.len(), 1);
    fs::remove_file(project.join("file")).unwrap();
    let gone = again(&found.workspaces).unwrap_err();
    assert!(
        matches!(&gone, WorkspaceError::FileGone(path) if *path == project.join("file")),
        "{gone}"
    );
}

#[test]
fn what_another_user_owns_is_not_swapped_from_inside() {
    let workspace = |path: &str, readonly, kind, uid, gid| WorkspaceRecord {
        path: path.into(),
        given: None,
        target: None,
        masked: Vec::new(),
        masked_absent: Vec::new(),
        readonly,
        added: false,
        pending: None,
        kind,
        uid,
        gid,
        identity: None,
    };
    let (dir, file) = (WorkspaceKind::Directory, WorkspaceKind::File);
    let all = [
        workspace("/q", false, dir, 1, 1),
        workspace("/r", true, dir, 1, 1),
    ];
    for (now, expected) in [
        (workspace("/q/d/i", false, dir, 1, 1), false),
        (workspace("/q/d/i", false, dir, 2, 1), true),
        (workspace("/q/d/i", false, dir, 1, 2), true),
        (workspace("/q/d/i", true, dir, 1, 1), true),
        (workspace("/q/d/f", true, file, 1, 1), false),
        (workspace("/q/d/f", true, file, 2, 2), true),
        // Only the user can replace these.
        (workspace("/q", false, dir, 1, 1), false),
        (workspace("/r/i", false, dir, 2, 2), false),
        (workspace("/qq", true, dir, 2, 2), false),
    ] {
        assert_eq!(gains_by_swap(&now, &all, &[]), expected, "{now:?}");
    }
    // By whichever name it was given.
    let mounts = sbx_sys::mountinfo::parse(
        b"1 0 254:0 / / rw - ext4 x rw\n2 1 254:0 /q /bound rw - ext4 x rw\n",
    );
    let given = workspace("/bound/d/i", false, dir, 2, 1);
    assert!(gains_by_swap(&given, &all, &mounts));
    assert!(!gains_by_swap(&given, &all, &[]));
}

#[test]
fn a_read_only_path_through_a_link_that_can_be_changed_protects_nothing() {
    let (_temp, root) = place();
    let home = root.join("home");
    fs::create_dir(home.join("other")).unwrap();
    symlink("sub", home.join("project/in")).unwrap();
    symlink("project/sub", home.join("own")).unwrap();
    let others = [Writable {
        sandbox: SandboxName::parse("agent-box").unwrap(),
        path: home.join("project"),
        node: None,
    }];
    let resolved = |first: &str, name: &str, others: &[Writable]| {
        let mut read_only = given(&home.join("project/sub"), &home.join(name));
        read_only.readonly = true;
        let first = given(&home.join(first), &home.join(first));
        resolve(&[first, read_only], &home.join("state"), others).map(drop)
    };
    for (first, others) in [
        ("project", &[][..]),
        ("other", &others),
        ("project", &others),
    ] {
        let refused = resolved(first, "project/in", others).unwrap_err();
        assert!(
            matches!(&refused, WorkspaceError::ReadOnlyLink { link, .. } if *link == home.join("project/in")),
            "{refused}"
        );
        let hint = refused.hint().unwrap();
        assert!(hint.contains("project/sub"), "{hint}");
        resolved(first, "project/sub", others).unwrap();
        // The user's own link lies where no program inside can change it.
        resolved(first, "own", others).unwrap();
    }
    resolved("other", "project/in", &[]).unwrap();
}

#[test]
fn parents_are_mounted_before_children() {
    let workspace = |path: &str| WorkspaceRecord {
        path: path.into(),
        given: None,
        target: None,
        masked: Vec::new(),
        masked_absent: Vec::new(),
        readonly: false,
        added: false,
        pending: None,
        kind: WorkspaceKind::Directory,
        uid: 0,
        gid: 0,
        identity: None,
    };
    let all = [workspace("/a/b/c"), workspace("/z"), workspace("/a/b")];
    let order: Vec<_> = in_mount_order(&all)
        .into_iter()
        .map(|w| w.path.as_path())
        .collect();
    assert_eq!(
        order,
        [Path::new("/z"), Path::new("/a/b"), Path::new("/a/b/c")]
    );
}

struct File;

impl File {
    fn create(root: &Path, path: &str) {
        fs::File::create(root.join(path)).unwrap();
    }
}
