//! The protocol rows: behaviour that all plugins have in common. Each test is named after its row.

mod checks;
mod config;
mod delegation;
mod results;
mod robustness;

use cni::Version;
use cni_plugin::Plugin;

/// Prints that a test needs plugins that are not in the table.
fn lacks(test: &str, needed: &[&str]) -> bool {
    let missing: Vec<_> =
        needed.iter().filter(|name| plugins::find(name).is_none()).copied().collect();
    if !missing.is_empty() {
        eprintln!("SKIP {test}: no plugin {}", missing.join(", "));
    }
    !missing.is_empty()
}

/// The plugins that can be called with a configuration of this version.
fn supporting(version: Version) -> impl Iterator<Item = &'static dyn Plugin> {
    plugins::all().iter().copied().filter(move |plugin| plugin.versions().contains(&version))
}
