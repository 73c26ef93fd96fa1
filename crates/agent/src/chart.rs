//! What the Helm chart (`deploy/chart`) has of the lists here: what each service may do, and which
//! values there are. `docker` is not part of it: it mounts namespaces that must outlive it, which a
//! container cannot.
//!
//! A runtime confines a container as its manifest says and makes `/proc/sys` read-only, but plugins
//! set sysctls in pods. So no service is privileged: with `--confine` it makes `/proc/sys/net`
//! writable in its own mounts, by the CAP_SYS_ADMIN that it has to enter namespaces, and then
//! confines itself. `routing` has no CAP_SYS_ADMIN: the node's folder is mounted for it, and
//! `NETWRIGHT_SYSCTL_DIR` names it. A kubelet notifies no process of a changed file, so with
//! `--follow` a service reads its files every two seconds.
//!
//! The configuration is a projected volume: `netwrightd` does not read one that others can write.
//! The kinds are in `crds/`, so that no `helm uninstall` deletes what people have defined. `mode:
//! remove` detaches no running pod: it waits until no service there would restore something, and
//! names the nodes that are left.

use serde_json::{Map, Value, json};

use crate::keys;
use crate::rights::{Files, HostView, RIGHTS, Rights};
use crate::schema;

/// Returns the services that run as containers of a cluster.
fn services() -> impl Iterator<Item = &'static Rights> {
    RIGHTS.iter().filter(|rights| matches!(rights.files, Files::Only { .. }))
}

/// Returns what each service may do, as YAML (`files/rights.yaml`).
#[must_use]
pub fn rights() -> String {
    let mut text = String::from(
        "# What each service may do, made from crates/agent/src/rights.rs. A test compares them.\n",
    );
    for rights in services() {
        let Files::Only { runtime, state, more } = rights.files else { continue };
        let runtime = runtime.iter().map(|folder| format!("/run/{folder}"));
        let state = state.iter().map(|folder| format!("/var/lib/{folder}"));
        let more = more.iter().map(|folder| (*folder).to_owned());
        let folders: Vec<String> = runtime.chain(state).chain(more).collect();
        text.push_str(&format!(
            "{}:\n  capabilities: [{}]\n  seesContainers: {}\n  devices: [{}]\n  folders: [{}]\n",
            rights.service,
            rights.capabilities.join(", "),
            rights.sees == HostView::Containers,
            rights.devices.join(", "),
            folders.join(", "),
        ));
    }
    text
}

/// Returns the schema of the chart's values (`values.schema.json`). Older versions of Helm know no
/// newer draft than the seventh.
#[must_use]
pub fn values_schema() -> Value {
    let mut config = schema::schema();
    if let Some(tables) = config["properties"].as_object_mut() {
        let is_here = |table: &str| services().any(|rights| rights.service == table);
        tables.retain(|table, _| is_here(table) || !keys::services().any(|one| one == table));
    }
    let by_service = |of: &Value, about: &str| {
        let properties: Map<String, Value> =
            services().map(|rights| (rights.service.to_owned(), of.clone())).collect();
        json!({"type": "object", "description": about, "properties": properties, "additionalProperties": false})
    };
    let path = |about: &str| json!({"type": "string", "pattern": "^/", "description": about});
    let object = |about: &str, properties: Value| json!({"type": "object", "description": about, "properties": properties, "additionalProperties": false});
    let text = |about: &str| json!({"type": "string", "description": about});
    let paths = json!({"type": "array", "items": {"type": "string", "pattern": "^/"}});
    let mut values = object(
        "The values of the chart",
        json!({
            "mode": {
                "enum": ["run", "remove"],
                "description": "run: the nodes have what config enables; remove: each node is turned back to what it was",
            },
            "config": {
                "type": "object",
                "description": "the configuration of netwrightd, key by key as in netwrightd.toml",
                "properties": config["properties"],
                "required": ["multinet"],
                "additionalProperties": false,
            },
            "files": {
                "type": "object",
                "description": "further files beside netwrightd.toml in /etc/netwright",
                "propertyNames": {"pattern": "^[-._a-zA-Z0-9]+$", "not": {"const": "netwrightd.toml"}},
                "additionalProperties": {"type": "string"},
            },
            "secrets": by_service(
                &json!({"type": "string"}),
                "by service, a Secret whose files it finds in /etc/netwright-secret",
            ),
            "mounts": by_service(&paths, "by service, further folders of the node that it needs"),
            "image": object("the image of the two executables", json!({
                "repository": text("where it is"),
                "tag": text("which one; the chart's appVersion if it is empty"),
                "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
                "pullSecrets": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "the names of Secrets for its registry",
                },
            })),
            "node": object("where things are on the nodes", json!({
                "plugins": path("the folder in which the runtime looks for plugins"),
                "configurations": path("the folder in which the runtime looks for networks"),
                "devices": path("the folder of the kubelet's record of devices"),
            })),
            "policies": {
                "type": "boolean",
                "description": "whether ValidatingAdmissionPolicies limit the daemon to its own node, and to its annotations and labels",
            },
            "tun": {"type": "boolean", "description": "whether the services may use /dev/net/tun"},
            "maxUnavailable": {
                "type": ["string", "integer"],
                "description": "how many nodes, or which share of them, may be updated at once",
            },
            "resources": by_service(&json!({"type": "object"}), "by service, its resources"),
            "remove": object("how the nodes are turned back", json!({
                "network": text("the network that pods are to have afterwards, if it is not the cluster-network"),
                "open": {"type": "boolean", "description": "whether pods that run lose their network policies at once"},
                "onUninstall": {"type": "boolean", "description": "whether helm uninstall turns the nodes back first"},
                "timeout": {"type": "string", "pattern": "^[0-9]+(s|m|h)$", "description": "how long helm uninstall waits for the nodes at most"},
            })),
            // What Helm itself passes to every chart.
            "global": {"type": "object"},
        }),
    );
    values["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_chart_has_the_rights_and_the_keys() {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart/netwright");
        let mut schema = serde_json::to_string_pretty(&values_schema()).unwrap();
        schema.push('\n');
        for (file, want) in [("files/rights.yaml", rights()), ("values.schema.json", schema)] {
            let path = chart.join(file);
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                fs::write(&path, &want).unwrap();
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                text == want,
                "{file} is not current; UPDATE_EXPECT=1 cargo test -p netwright-agent writes it anew"
            );
        }
    }
}
