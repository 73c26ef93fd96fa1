//! The programs of Debian's unstable release that tests use, or compare ours with: the Go plugins
//! and the Docker Engine. Those of the stable release are installed. Those of the unstable release
//! are unpacked below cargo's target directory, like NetworkManager.

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

/// The keyring of every supported release has the keys that sign this one.
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
        let (_, mirror) = archive("Debian").or_else(|_| {
            Program::new("apt-get update --quiet").logged("reference-machine", quiet)?;
            archive("Debian")
        })?;
        let source = format!("[signed-by={KEYRING}] {mirror} unstable main");
        let options = updated(&dir.join("apt"), &source)?;
        if !plugins.is_dir() {
            deb::unpack(&[PACKAGE], &options, &plugins)?;
        }
        if !engine.is_dir() {
            engine::unpack(&options, &engine)?;
        }
        // The lists are ten times as large as the packages for which they were needed.
        let _ = fs::remove_dir_all(dir.join("apt"));
    }
    for package in NETWORK_MANAGER {
        let into = dir.join("network-manager").join(package);
        if !into.is_dir() {
            deb::unpack(&[package], &["--option=APT::Sandbox::User=root".to_owned()], &into)?;
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

/// Makes the root of a Debian of this machine's release, unless that was done before. It has no
/// more than it needs to boot, and the programs that show links and packet filters. Returns where
/// it is.
pub(crate) fn empty_debian() -> Result<String, String> {
    if !exists("mmdebstrap") {
        return Ok("no mmdebstrap: no empty Debian".to_owned());
    }
    let into = target_dir().join(DIRECTORY).join("empty-debian");
    if !into.is_dir() {
        let new = into.with_extension("new");
        let _ = fs::remove_dir_all(&new);
        let (suite, mirror) = archive("Debian")?;
        println!("  mmdebstrap {suite}");
        let line = "mmdebstrap --quiet --mode=root --format=directory --variant=minbase \
                    --include=dbus,iproute2,nftables,systemd-sysv";
        Program::new(line)
            .arg(&suite)
            .arg(new.display().to_string())
            .arg(format!("deb [signed-by={KEYRING}] {mirror} {suite} main"))
            .logged("reference-empty", quiet)?;
        fs::rename(&new, &into).map_err(|error| format!("rename {}: {error}", new.display()))?;
    }
    Ok(format!("an empty Debian is in {}", into.display()))
}

/// Returns apt-get's options for folders of our own, with the lists of the security updates of this
/// machine's release, for some architectures; none if this machine takes no such updates.
pub(crate) fn security_updates(
    dir: &Path,
    architectures: &str,
) -> Result<Option<Vec<String>>, String> {
    if !exists("apt-get") {
        return Ok(None);
    }
    let Ok((suite, mirror)) = archive("Debian-Security") else { return Ok(None) };
    let source = format!("[arch={architectures} signed-by={KEYRING}] {mirror} {suite} main");
    updated(dir, &source).map(Some)
}

/// Returns the suite and the mirror of an archive of Debian's, from which this machine takes packages.
fn archive(label: &str) -> Result<(String, String), String> {
    let targets = Program::new("apt-get indextargets --format")
        .arg("$(ORIGIN) $(LABEL) $(COMPONENT) $(RELEASE) $(REPO_URI)")
        .arg("Created-By: Packages")
        .output()?;
    let prefix = format!("Debian {label} main ");
    let found = targets.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(' '));
    // A release's own name comes before that of its updates.
    let (suite, mirror) = found.min().ok_or_else(|| format!("apt knows no mirror of {label}"))?;
    Ok((suite.to_owned(), mirror.to_owned()))
}

/// Returns apt-get's options for folders of our own, so that the machine's lists and sources do not
/// change. Lets apt-get fetch the lists of a source into them.
fn updated(dir: &Path, source: &str) -> Result<Vec<String>, String> {
    let options = private(dir, source)?;
    let update = options.iter().fold(Program::new("apt-get update --quiet"), Program::arg);
    update.logged("reference-update", quiet)?;
    Ok(options)
}

fn private(dir: &Path, source: &str) -> Result<Vec<String>, String> {
    let make = |path: &Path| {
        fs::create_dir_all(path).map_err(|error| format!("create {}: {error}", path.display()))
    };
    make(&dir.join("lists/partial"))?;
    make(&dir.join("cache/archives/partial"))?;
    let sources = dir.join("own.list");
    let line = format!("deb {source}\n");
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
        // apt's own user may have no access to our folder.
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .map(|option| format!("--option={option}"))
    .collect())
}
