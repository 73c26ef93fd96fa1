//! A document with its version and a sum: what was damaged on the disk is never read as something
//! else.
//!
//! ```json
//! {"version":1,"sum":"…","known":…}
//! ```

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// How many letters a sum has: two for each of 32 bytes.
const SUM: usize = 64;

#[derive(Deserialize)]
struct Envelope<'a> {
    version: u32,
    sum: String,
    #[serde(borrow)]
    known: &'a RawValue,
}

/// Writes what is known, in one buffer: what is known of thousands of nodes has megabytes.
pub(crate) fn write(version: u32, known: &impl Serialize) -> String {
    let mut document = format!("{{\"version\":{version},\"sum\":\"").into_bytes();
    let at = document.len();
    // The sum follows from what comes behind it.
    document.extend_from_slice(&[b'0'; SUM]);
    document.extend_from_slice(b"\",\"known\":");
    let begin = document.len();
    serde_json::to_writer(&mut document, known).expect("our types serialise to JSON");
    let found = sum(&document[begin..]);
    document[at..at + SUM].copy_from_slice(found.as_bytes());
    document.push(b'}');
    String::from_utf8(document).expect("JSON is UTF-8")
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
    let words = |error: serde_json::Error| cni::json::plain(&error.to_string());
    let outer: Envelope<'_> = serde_json::from_slice(document).map_err(words)?;
    if outer.version != version {
        return Err(format!("it has version {}", outer.version));
    }
    if outer.sum != sum(outer.known.get().as_bytes()) {
        return Err("its sum is wrong".to_owned());
    }
    serde_json::from_str(outer.known.get()).map_err(words)
}

fn sum(known: &[u8]) -> String {
    Sha256::digest(known).iter().map(|byte| format!("{byte:02x}")).collect()
}
