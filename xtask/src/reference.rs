//! What we test with and compare with, from Debian's unstable release: the Go plugins and the
//! Docker Engine. Those of the stable release are installed; these are unpacked below cargo's
//! target directory, like NetworkManager.

use std::fs;
use std::path::Path;

use crate::deb;
use crate::engine;
use crate::run::{Program, exists, quiet, target_dir};

const PACKAGE: &str = "containernetworking-plugins";

/// NetworkManager and those of its dependencies that a server lacks, of the machine's own release.
/// They are unpacked, not installed, since the service would take over the machine's links
/// (`testkit::reference::network_manager`).
const NETWORK_MANAGER: [&str; 6] =
    ["network-manager", "libbluetooth3", "libmm-glib0", "libndp0", "libnewt0.52", "libteamdctl0"];

/// Where they are below cargo's target directory (`testkit::reference`).
const DIRECTORY: &str = "reference";

/// The keys of its signatures are in every supported release's keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Unpacks unstable's plugins and engine, unless that was done before, and returns where they are.
/// Delete `target/reference` to get newer ones.
pub(crate) fn unpacked() -> Result<String, String> {
    if !exists("apt-get") {
        let what = "no Debian system: no Go plugins and no Docker Engine of its unstable release";
        return Ok(what.to_owned());
    }
    let dir = target_dir().join(DIRECTORY);
    let plugins = dir.join("unstable");
    let engine = dir.join("engine");
    if !plugins.is_dir() || !engine.is_dir() {
        let mirror = mirror().or_else(|_| {
            Program::new("apt-get update --quiet").logged("reference-machine", quiet)?;
            mirror()
        })?;
        let options = private(&dir.join("apt"), &mirror)?;
        let mut update = Program::new("apt-get update --quiet");
        for option in &options {
            update = update.arg(option);
        }
        update.logged("reference-update", quiet)?;
        if !plugins.is_dir() {
            deb::unpack(PACKAGE, &options, &plugins)?;
        }
        if !engine.is_dir() {
            engine::unpack(&options, &engine)?;
        }
        // The lists are ten times as large as the packages they were needed for.
        let _ = fs::remove_dir_all(dir.join("apt"));
    }
    for package in NETWORK_MANAGER {
        let into = dir.join("network-manager").join(package);
        if !into.is_dir() {
            deb::unpack(package, &["--option=APT::Sandbox::User=root".to_owned()], &into)?;
        }
    }
    for file in [plugins.join("usr/lib/cni/bridge"), engine.join("usr/sbin/dockerd")] {
        if !file.is_file() {
            return Err(format!("{} is not there: delete {}", file.display(), dir.display()));
        }
    }
    Ok(format!(
        "Debian unstable's Go plugins are in {}, its Docker Engine in {}",
        plugins.display(),
        engine.display()
    ))
}

/// Returns the mirror that this machine gets Debian itself from.
fn mirror() -> Result<String, String> {
    let targets = Program::new("apt-get indextargets --format")
        .arg("$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)")
        .arg("Created-By: Packages")
        .output()?;
    let found = targets.lines().find_map(|line| line.strip_prefix("Debian Debian main "));
    found.map(str::to_owned).ok_or_else(|| "apt knows no mirror of Debian".to_owned())
}

/// Returns apt-get's options for folders of our own, so that the machine's lists and sources do not
/// change.
fn private(dir: &Path, mirror: &str) -> Result<Vec<String>, String> {
    let make = |path: &Path| {
        fs::create_dir_all(path).map_err(|error| format!("create {}: {error}", path.display()))
    };
    make(&dir.join("lists/partial"))?;
    make(&dir.join("cache/archives/partial"))?;
    let sources = dir.join("unstable.list");
    let line = format!("deb [signed-by={KEYRING}] {mirror} unstable main\n");
    fs::write(&sources, line).map_err(|error| format!("write {}: {error}", sources.display()))?;
    let at = |path: &str| dir.join(path).display().to_string();
    Ok([
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=-".to_owned(),
        "Dir::Etc::preferences=-".to_owned(),
        "Dir::Etc::preferencesparts=-".to_owned(),
        format!("Dir::State::lists={}", at("lists")),
        format!("Dir::Cache={}", at("cache")),
        "Acquire::Languages=none".to_owned(),
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false".to_owned(),
        // apt's own user may not be able to access our folder.
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .map(|option| format!("--option={option}"))
    .collect())
}
