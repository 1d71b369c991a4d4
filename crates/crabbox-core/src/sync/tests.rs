//! Listing, planning and packing of real trees.

mod archive;
mod hostile;
mod manifest;
mod plan;
mod walk;

use super::*;
use crate::Failure;
use crate::git::tests::Checkout;

fn list_with(checkout: &Checkout, exclude: &[&str]) -> Result<Manifest, Failure> {
    let exclude: Vec<String> = exclude.iter().map(|text| (*text).to_owned()).collect();
    let repository = checkout.discover();
    let rules = Rules::load(repository.root(), &exclude, &[])?;
    list(&checkout.root, Some(&repository), Source::Git, &rules)
}

fn listed(checkout: &Checkout) -> Manifest {
    list_with(checkout, &[]).unwrap()
}

fn paths(manifest: &Manifest) -> Vec<String> {
    let entries = manifest.entries.iter();
    entries.map(|entry| entry.path.to_string()).collect()
}

fn fifo(path: &std::path::Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}
