//! The Helm chart of `deploy/chart`, rendered by Helm itself, which `cargo xtask setup` fetches with
//! kubectl. A test that uses it needs `require!("helm")`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::reference::kubernetes;

/// The namespace for which `deploy/kubernetes` is rendered.
const NAMESPACE: &str = "kube-system";

/// The files of `deploy/kubernetes`, each with the parts of the chart that it contains.
const PLAIN: [(&str, &[&str]); 5] = [
    ("1-definitions.yaml", &["crds/definitions.yaml"]),
    ("2-rights.yaml", &["templates/rights.yaml"]),
    ("3-daemon.yaml", &["templates/configuration.yaml", "templates/daemon.yaml"]),
    ("4-policy.yaml", &["templates/policy.yaml"]),
    ("5-addresses.yaml", &["crds/addresses.yaml", "templates/addresses.yaml"]),
];

/// The first line of each file.
const MADE: &str = "# Made from deploy/chart: cargo xtask chart renders it again.\n";

/// The comment that Helm prints before the objects of each file of the chart.
const SOURCE: &str = "# Source: netwright/";

/// Returns the chart's folder.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart/netwright")
}

/// Returns the folder of the plain YAML.
#[must_use]
pub fn plain_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// Runs Helm or kubectl; returns what it prints.
///
/// # Errors
/// What it prints when it fails.
///
/// # Panics
/// When it cannot be run.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(kubernetes(program));
    // Neither program reads the user's own configuration.
    command.args(arguments).env("HOME", "/nonexistent").env_remove("KUBECONFIG");
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{}{}", text(&output.stdout), text(&output.stderr))),
    }
}

/// Renders the chart with these values, written as `--set` takes them.
///
/// # Errors
/// Why Helm refuses them.
pub fn render(values: &[&str]) -> Result<String, String> {
    render_with(&["--no-hooks"], values)
}

/// Returns the objects that Helm makes before it uninstalls the chart.
///
/// # Errors
/// As [`render`].
pub fn before_uninstall(values: &[&str]) -> Result<Vec<Value>, String> {
    let mut all = objects(&render_with(&[], values)?);
    all.retain(|one| one["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete");
    Ok(all)
}

/// Does the same for an upgrade of a release whose cluster cannot be asked.
///
/// # Errors
/// As [`render`].
pub fn render_upgrade(values: &[&str]) -> Result<String, String> {
    render_with(&["--no-hooks", "--is-upgrade"], values)
}

fn render_with(flags: &[&str], values: &[&str]) -> Result<String, String> {
    let folder = folder().display().to_string();
    let mut arguments =
        vec!["template", "netwright", &folder, "--namespace", NAMESPACE, "--include-crds"];
    arguments.extend(flags);
    arguments.extend(values.iter().flat_map(|value| ["--set", *value]));
    run("helm", &arguments)
}

/// Reads the objects in what was rendered.
///
/// # Panics
/// When it is not YAML.
#[must_use]
pub fn objects(rendered: &str) -> Vec<Value> {
    let read: Result<Vec<Value>, _> = serde_saphyr::from_multiple(rendered);
    let read = read.unwrap_or_else(|error| panic!("{error}: {rendered}"));
    read.into_iter().filter(|object| !object.is_null()).collect()
}

/// Returns the files of plain YAML that a rendering makes, by their names.
#[must_use]
pub fn plain(rendered: &str) -> Vec<(&'static str, String)> {
    let mut parts: Vec<(&str, &str)> = Vec::new();
    let mut source = "";
    for part in rendered.split("---\n").filter(|part| !part.trim().is_empty()) {
        // Helm prints a file of definitions as it is, with several objects below one comment.
        let (from, body) = match part.strip_prefix(SOURCE) {
            Some(rest) => rest.split_once('\n').unwrap_or((rest, "")),
            None => (source, part),
        };
        source = from;
        parts.push((from, body));
    }
    let file = |(name, sources): &(&'static str, &[&str])| {
        let of = |source: &str| {
            let found = parts.iter().filter(move |(from, _)| *from == source);
            found.map(|(_, body)| body.trim_end().to_owned()).collect::<Vec<_>>()
        };
        let bodies: Vec<String> = sources.iter().flat_map(|source| of(source)).collect();
        (*name, format!("{MADE}{}\n", bodies.join("\n---\n")))
    };
    PLAIN.iter().map(file).collect()
}
