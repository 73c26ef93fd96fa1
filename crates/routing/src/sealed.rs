//! A document with its version and a sum: what was damaged on the disk is never read as something
//! else.
//!
//! ```json
//! {"version":1,"sum":"…","known":…}
//! ```

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

#[derive(Serialize, Deserialize)]
struct Outer<'a> {
    version: u32,
    sum: String,
    #[serde(borrow)]
    known: Cow<'a, RawValue>,
}

/// Writes what is known.
pub(crate) fn write(version: u32, known: &impl Serialize) -> String {
    let known = serde_json::value::to_raw_value(known).expect("our types serialise to JSON");
    let outer = Outer { version, sum: sum(&known), known: Cow::Owned(known) };
    serde_json::to_string(&outer).expect("our types serialise to JSON")
}

/// Reads what [`write()`] has written with that version.
///
/// # Errors
/// If anything at all is wrong, nothing is taken: why, in a sentence about the document.
pub(crate) fn read<T: DeserializeOwned>(
    document: &[u8],
    version: u32,
    longest: usize,
) -> Result<T, String> {
    if longest < document.len() {
        return Err(format!("it has {} bytes", document.len()));
    }
    let outer: Outer<'_> = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    if outer.version != version {
        return Err(format!("it has version {}", outer.version));
    }
    if outer.sum != sum(&outer.known) {
        return Err("its sum is wrong".to_owned());
    }
    serde_json::from_str(outer.known.get()).map_err(|error| error.to_string())
}

fn sum(known: &RawValue) -> String {
    Sha256::digest(known.get()).iter().map(|byte| format!("{byte:02x}")).collect()
}
