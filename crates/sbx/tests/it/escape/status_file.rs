//! A status file in a workspace: what programs inside do with names there is no part of what it says.

use std::fs;

use super::run;
use crate::ModeTest;
use crate::harness::World;

pub(crate) const TESTS: &[ModeTest] = &[("a_status_file_in_a_workspace_is_not_forged", forged)];

fn forged(world: &'static World) {
    let sandbox = world.sandbox("status");
    let precious = world.home().join(world.name("precious"));
    world.write(&precious, "mine");
    let forgeries = [
        r#"echo '{"by":"command","code":0}' > "$f""#.to_owned(),
        format!(r#"ln -s '{}' "$f""#, precious.display()),
        "true".to_owned(),
    ];
    for forgery in forgeries {
        let script = format!(
            r#"for f in .[!.]* * ; do [ -e "$f" ] || continue; rm "$f"; {forgery}; done; exit 7"#
        );
        let status = sandbox.path("status");
        let mut command = world.sbx(["exec", "--status-file"]);
        command
            .arg(&status)
            .args([&sandbox.name, "sh", "-c", &script]);
        let ran = run(&mut command, b"");
        assert_eq!(ran.code, 7, "{ran:?}");
        assert!(!status.is_symlink());
        let said = fs::read_to_string(&status).unwrap();
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let expected = serde_json::json!({"by": "command", "code": 7, "denied": false});
        assert_eq!(told, expected, "{forgery}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
        fs::remove_file(&status).unwrap();
    }
}
