use std::os::unix::fs::PermissionsExt;

use sbx_proto::plan::Mappers;

use super::*;

#[test]
fn root_inside_cannot_enter_what_is_closed_to_others() {
    let temp = tempfile::tempdir().unwrap();
    let meta = |mode| {
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(mode)).unwrap();
        fs::metadata(temp.path()).unwrap()
    };
    let own = Facts {
        uid: meta(0o700).uid(),
        gid: meta(0o700).gid(),
        ..Facts::default()
    };
    let other_group = Facts {
        gid: own.gid + 1,
        ..own.clone()
    };
    assert!(!is_closed_to_root(&meta(0o2770), &own));
    assert!(is_closed_to_root(&meta(0o2770), &other_group));
    assert!(!is_closed_to_root(&meta(0o2775), &other_group));
}

#[test]
fn a_shell_of_newgrp_gets_a_warning() {
    let span = Span {
        first: 100_000,
        count: ids::RANGE,
    };
    let warning = |other_group| {
        let facts = Facts {
            uid: 1001,
            subuid: vec![span],
            subgid: vec![span],
            map_tools: Some(Mappers {
                uid: "/usr/bin/newuidmap".into(),
                gid: "/usr/bin/newgidmap".into(),
            }),
            other_group,
            ..Facts::default()
        };
        let wanted = Some(ModeOverride::Single);
        Namespace::new(facts, Helper::new().unwrap(), wanted).group_warning()
    };
    assert_eq!(warning(false), None);
    assert!(warning(true).unwrap().contains(OTHER_GROUP_REMEDY));
}
