//! What the suite tests: the plugins of a folder, and what kind of plugin a configuration shows one
//! to be.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::case::Kind;
use crate::runner::SuiteError;

/// Executables that are installed beside plugins and are not plugins.
const NO_PLUGINS: [&str; 4] = ["netwright", "netwrightd", "cnitool", "."];

/// Lists the plugins of a folder, and the folders to which its links lead.
pub(crate) fn plugins_in(dir: &Path) -> Result<(Vec<String>, Vec<PathBuf>), SuiteError> {
    let failed = |source| SuiteError::Folder { dir: dir.to_owned(), source };
    let (mut plugins, mut behind) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let executable = fs::metadata(entry.path())
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if !executable || name.starts_with('.') || NO_PLUGINS.contains(&name.as_str()) {
            continue;
        }
        if let Ok(target) = fs::canonicalize(entry.path())
            && let Some(folder) = target.parent()
            && folder != dir
        {
            behind.push(folder.to_owned());
        }
        plugins.push(name);
    }
    plugins.sort_unstable();
    behind.sort_unstable();
    behind.dedup();
    Ok((plugins, behind))
}

/// Finds a plugin's object in a network list, or in the configuration of a single plugin, and the
/// kind that it shows the plugin to be.
pub(crate) fn plugin_object(config: &Value, plugin: &str) -> Option<(Value, Kind)> {
    let of = |object: &Value, first: bool| {
        if object["ipam"]["type"] == plugin {
            return Some((object.clone(), Kind::Ipam));
        }
        let kind = if first { Kind::Interface } else { Kind::Chained };
        (object["type"] == plugin).then(|| (object.clone(), kind))
    };
    let (mut object, kind) = match config["plugins"].as_array() {
        Some(list) => list.iter().enumerate().find_map(|(at, object)| of(object, at == 0))?,
        None => of(config, true)?,
    };
    for key in ["cniVersion", "name"] {
        object.as_object_mut()?.remove(key);
    }
    Some((object, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_shows_what_a_plugin_is() {
        let list = json!({ "cniVersion": "1.1.0", "name": "n", "plugins": [
            { "type": "first", "ipam": { "type": "addresses" }, "name": "x" },
            { "type": "second", "x": 1 },
        ] });
        let (object, kind) = plugin_object(&list, "second").unwrap();
        assert_eq!((object, kind), (json!({ "type": "second", "x": 1 }), Kind::Chained));
        assert_eq!(plugin_object(&list, "first").unwrap().1, Kind::Interface);
        assert_eq!(plugin_object(&list, "addresses").unwrap().1, Kind::Ipam);
        assert!(plugin_object(&list, "third").is_none());
        let single = json!({ "name": "n", "type": "only" });
        assert_eq!(plugin_object(&single, "only").unwrap().0, json!({ "type": "only" }));
    }

    #[test]
    fn only_executables_are_plugins() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("b", 0o755), ("a", 0o755), ("text", 0o644), ("netwright", 0o755)] {
            let file = dir.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(plugins_in(dir.path()).unwrap().0, ["a", "b"]);
    }
}
