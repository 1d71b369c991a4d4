//! The checked-in description of the API is the one that the routes give.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the caller of the test chooses to update the file"
)]
fn the_description_is_up_to_date() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/sandboxd.openapi.json");
    let mut now = serde_json::to_string_pretty(&sandboxd::openapi()).unwrap();
    now.push('\n');
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(&path)
            .unwrap()
            .write_all(now.as_bytes())
            .unwrap();
    }
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        checked_in == now,
        "out of date: UPDATE_OPENAPI=1 cargo test -p sandboxd openapi"
    );
}
