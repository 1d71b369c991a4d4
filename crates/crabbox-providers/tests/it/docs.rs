//! The tables of settings in the docs are the ones that the programs use.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crabbox_core::settings::{CORE, Setting, reference};
use crabbox_providers::specs;

const BEGIN: &str = "<!-- settings:begin -->";
const END: &str = "<!-- settings:end -->";

#[test]
fn the_tables_of_settings_are_up_to_date() {
    assert_table("configuration.md", CORE);
    for spec in specs() {
        assert_table(&format!("providers/{}.md", spec.name), spec.table.settings);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the caller of the test chooses to update the file"
)]
fn assert_table(page: &str, settings: &[Setting]) {
    let path = docs().join(page);
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    let now = with_table(&checked_in, &reference(settings));
    assert!(now.is_some(), "docs/{page} has no `{BEGIN}` and `{END}`");
    let now = now.unwrap_or_default();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let written = File::create(&path).and_then(|mut file| file.write_all(now.as_bytes()));
        assert!(written.is_ok(), "docs/{page}: {written:?}");
        return;
    }
    assert!(
        checked_in == now,
        "docs/{page} is out of date: UPDATE_DOCS=1 cargo test -p crabbox-providers tables_of_settings"
    );
}

/// The page with this table between its marks.
fn with_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}
