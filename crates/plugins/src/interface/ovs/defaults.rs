//! The file with defaults for every network: keys of the plugin's configuration that a network does
//! not set itself.

use std::path::Path;

use cni::code;
use cni_plugin::Call;
use serde_json::{Map, Value};

use crate::shared::failure::Failure;

/// The default places of the file, the same as the reference's.
const PLACES: [&str; 2] =
    ["/etc/kubernetes/cni/net.d/ovs.d/ovs.conf", "/etc/cni/net.d/ovs.d/ovs.conf"];

/// Keys that define the network; a file cannot set them.
const OWN: [&str; 4] = ["cniversion", "name", "type", "prevresult"];

/// Returns the call's configuration with the file's keys merged under it.
///
/// # Errors
/// Code 6 when the file is not a JSON object; code 7 when the configuration names one that cannot
/// be read.
pub(super) fn document(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    let Some((path, defaults)) = read(call)? else { return Ok(call.document().to_vec()) };
    let defaults: Map<String, Value> = serde_json::from_slice(&defaults).map_err(|error| {
        let error = cni::json::explain(&defaults, &error);
        Failure::new(code::DECODE_FAILURE, format!("failed to load {path}: {error}"))
    })?;
    let mut document: Map<String, Value> =
        serde_json::from_slice(call.document()).map_err(|error| {
            let error = cni::json::explain(call.document(), &error);
            Failure::new(code::DECODE_FAILURE, format!("failed to load netconf: {error}"))
        })?;
    for (key, value) in defaults {
        let same = |other: &String| other.eq_ignore_ascii_case(&key);
        if !OWN.contains(&key.to_lowercase().as_str()) && !document.keys().any(same) {
            document.insert(key, value);
        }
    }
    Ok(Value::Object(document).to_string().into_bytes())
}

fn read(call: &Call<'_>) -> Result<Option<(String, Vec<u8>)>, Failure> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct OnlyConfigurationPath {
        configuration_path: String,
    }
    let only: OnlyConfigurationPath = call.read_config()?;
    let path = only.configuration_path;
    if path.is_empty() {
        // A file that exists and cannot be read counts as missing.
        let there = PLACES.iter().find_map(|path| {
            let bytes = state::read_optional(Path::new(path)).ok().flatten()?;
            Some(((*path).to_owned(), bytes))
        });
        return Ok(there);
    }
    let unreadable = |why: String| {
        Failure::new(
            code::INVALID_CONFIG,
            format!("failed to read configuration_path {path:?}: {why}"),
        )
    };
    match state::read_optional(Path::new(&path)) {
        Ok(Some(bytes)) => Ok(Some((path, bytes))),
        Ok(None) => Err(unreadable("there is no such file".to_owned())),
        Err(error) => Err(unreadable(error.to_string())),
    }
}
