//! The dialect for a few machines and nothing else: a file with a list of nodes.
//!
//! ```toml
//! [[node]]
//! name = "a"
//! prefixes = ["10.244.1.0/24"]
//! underlay = ["192.0.2.1"]
//! ```

use crate::cluster::Seen;
use crate::settings::Settings;

/// Reads the list. All its nodes are [`Seen`], each with what is wrong with it.
///
/// The file is the same on every machine, so it has this node too.
///
/// # Errors
/// Why the file as a whole cannot be read, with the place: then nothing of it counts.
pub fn read(text: &str, settings: &Settings) -> Result<Vec<Seen>, String> {
    todo!()
}
