//! A container of a Kubernetes manifest, as a kubelet passes it to a runtime.
//!
//! Other contents of a manifest are refused, so that nothing in it is ignored unnoticed.
//! `resources` are skipped: executables that are built for tests are larger. Probes are kept for
//! [`Containerd::probe`](super::Containerd::probe).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::proto::Message;

/// The folder of the manifests.
const FOLDER: &str = "../../deploy/kubernetes";

/// Reads all objects of the manifests in `deploy/kubernetes`, in the order of the files' names.
///
/// # Panics
/// When a file cannot be read or is not YAML.
#[must_use]
pub fn manifests() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let entries = fs::read_dir(folder).expect("deploy/kubernetes can be read");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry can be read").file_name())
        .map(|name| name.into_string().expect("a file's name is UTF-8"))
        .filter(|name| Path::new(name).extension().is_some_and(|it| it == "yaml"))
        // It names the others.
        .filter(|name| name != "kustomization.yaml")
        .collect();
    names.sort();
    names.iter().flat_map(|name| manifest_file(name)).collect()
}

/// Reads every object of one file in `deploy/kubernetes`.
///
/// # Panics
/// As [`manifests`].
#[must_use]
pub fn manifest_file(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER).join(name);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let read: Result<Vec<Value>, _> = serde_saphyr::from_multiple(&text);
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `NamespaceMode` of CRI v1: a container's own namespace, and the host's.
pub(super) const CONTAINER: u64 = 1;
pub(super) const NODE: u64 = 2;

/// A container of a pod's template, read for CRI.
#[derive(Debug, Clone)]
pub struct Manifest {
    pub(super) name: String,
    pub(super) config: Message,
    /// Paths of the host that the kubelet creates.
    pub(super) to_make: Vec<String>,
    /// The commands of its probes, by kind.
    pub(super) probes: BTreeMap<String, Vec<String>>,
}

/// What a kubelet hides and protects in the `/proc` and `/sys` of a container that is not privileged
/// (Kubernetes, pkg/securitycontext/util.go).
const MASKED: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

impl Manifest {
    /// Reads a container of a pod's `spec`. `node` is the value of `spec.nodeName`; `volumes` are
    /// the folders, by volume name, that the kubelet makes for volumes other than `hostPath`.
    ///
    /// # Panics
    /// When it contains something that is not understood here.
    #[must_use]
    pub fn read(
        spec: &Value,
        container: &Value,
        node: &str,
        volumes: &BTreeMap<&str, PathBuf>,
    ) -> Self {
        let name = text(&container["name"]);
        let image = Message::default().text(1, &text(&container["image"]));
        let metadata = Message::default().text(1, &name);
        let mut config = Message::default().message(1, &metadata).message(2, &image);
        let mut to_make = Vec::new();
        let mut probes = BTreeMap::new();
        let mut security = Value::Null;
        for (key, value) in object(container) {
            match key.as_str() {
                "name" | "image" | "imagePullPolicy" | "resources" => {}
                "readinessProbe" | "livenessProbe" => {
                    probes.insert(key.clone(), list(&value["exec"]["command"]).map(text).collect());
                }
                "command" => {
                    config = list(value).fold(config, |all, word| all.text(3, &text(word)));
                }
                "args" => config = list(value).fold(config, |all, word| all.text(4, &text(word))),
                "env" => {
                    for one in list(value) {
                        let value = match one.pointer("/valueFrom/fieldRef/fieldPath") {
                            None => text(&one["value"]),
                            Some(field) if field == "spec.nodeName" => node.to_owned(),
                            Some(field) => panic!("{name}: the field {field} is not known here"),
                        };
                        config = config.entry(6, &text(&one["name"]), &value);
                    }
                }
                "volumeMounts" => {
                    for mount in list(value) {
                        let all = list(&spec["volumes"]);
                        let mut mounted = all.filter(|one| one["name"] == mount["name"]);
                        let volume = mounted.next().unwrap_or_else(|| panic!("{name}: no {mount}"));
                        if volume["hostPath"].is_null() {
                            let path = volumes.get(text(&volume["name"]).as_str());
                            let path = path.unwrap_or_else(|| panic!("{name}: {volume}"));
                            let path = path.display().to_string();
                            config = config.message(7, &mounted_at(mount, &path));
                            continue;
                        }
                        let path = text(&volume["hostPath"]["path"]);
                        match volume["hostPath"]["type"].as_str() {
                            Some("DirectoryOrCreate") => to_make.push(path.clone()),
                            Some("Directory" | "File") => {}
                            other => panic!("{name}: a hostPath of type {other:?}"),
                        }
                        config = config.message(7, &mounted_at(mount, &path));
                    }
                }
                "securityContext" => security = value.clone(),
                other => panic!("{name}: the key {other} is not known here"),
            }
        }
        let pids = if spec["hostPID"] == true { NODE } else { CONTAINER };
        let linux = Message::default().message(2, &context(&name, &security, pids));
        Manifest { name, config: config.message(15, &linux), to_make, probes }
    }
}

/// `Mount` of CRI v1.
fn mounted_at(mount: &Value, path: &str) -> Message {
    let known = ["name", "mountPath", "readOnly", "mountPropagation"];
    assert!(object(mount).all(|(key, _)| known.contains(&key.as_str())), "{mount}");
    let propagation = match mount["mountPropagation"].as_str() {
        None | Some("None") => 0,
        Some("HostToContainer") => 1,
        Some("Bidirectional") => 2,
        Some(other) => panic!("mountPropagation {other}"),
    };
    Message::default()
        .text(1, &text(&mount["mountPath"]))
        .text(2, path)
        .number(3, (mount["readOnly"] == true).into())
        .number(5, propagation)
}

/// `LinuxContainerSecurityContext` of CRI v1.
fn context(name: &str, security: &Value, pids: u64) -> Message {
    let namespaces = Message::default().number(1, NODE).number(2, pids);
    let mut context = Message::default().message(3, &namespaces);
    let mut seccomp = 1;
    for (key, value) in object(security) {
        match key.as_str() {
            "readOnlyRootFilesystem" => context = context.number(7, (*value == true).into()),
            "allowPrivilegeEscalation" => context = context.number(11, (*value == false).into()),
            "privileged" => context = context.number(2, (*value == true).into()),
            "runAsUser" => {
                let user = value.as_u64().unwrap_or_else(|| panic!("{name}: {value} is no user"));
                context = context.message(5, &Message::default().number(1, user));
            }
            "capabilities" => {
                let mut all = Message::default();
                all = list(&value["add"]).fold(all, |all, one| all.text(1, &text(one)));
                all = list(&value["drop"]).fold(all, |all, one| all.text(2, &text(one)));
                context = context.message(1, &all);
            }
            "seccompProfile" => {
                assert_eq!(value["type"], "RuntimeDefault", "{name}: {value}");
                seccomp = 0;
            }
            "appArmorProfile" => {
                assert_eq!(value["type"], "Unconfined", "{name}: {value}");
                context = context.message(16, &Message::default().number(1, 1));
            }
            "seLinuxOptions" => {
                let options = Message::default().text(3, &text(&value["type"]));
                context = context.message(4, &options);
            }
            other => panic!("{name}: the key {other} of securityContext is not known here"),
        }
    }
    if security["privileged"] != true {
        context = MASKED.iter().fold(context, |context, path| context.text(13, path));
        context = READ_ONLY.iter().fold(context, |context, path| context.text(14, path));
    }
    context.message(15, &Message::default().number(1, seccomp))
}

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}
