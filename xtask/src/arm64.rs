//! The executables for arm64, run by emulation.
//!
//! A release builds them for Rust's own target for musl. Where that target is not available, a full
//! run builds them for GNU systems, with Debian's compiler and C library. They show that our code
//! compiles and runs there, and are not released. The compiler is the one that Debian 12 has for
//! its browsers; Debian has its standard library for every architecture. It is unpacked below
//! cargo's target directory and not installed, because the administrator chooses `/usr/bin/rustc`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ci::{Extent, ONLY_FULL, Report};
use crate::executable::{NETWRIGHT, NETWRIGHTD, SHIPPED};
use crate::musl::{BETWEEN, CROSS_COMPILER, LinkSettings, RUSTFLAGS};
use crate::run::{Program, exists, quiet, target_dir};
use crate::{deb, reference, release};

/// The target of releases.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-musl";

/// The target for which Debian has a standard library.
const DEBIANS: &str = "aarch64-unknown-linux-gnu";

/// Debian's compiler, and its standard library, a package for each architecture.
const COMPILER: &str = "rustc-web";
const LIBRARY: &str = "libstd-rust-web-dev";

/// The program that runs executables for arm64 (Debian: `qemu-user-static`).
const EMULATOR: &str = "qemu-aarch64-static";

/// How long the unoptimised executables may take to be built.
const DEADLINE: Duration = Duration::from_secs(2700);

/// The step's name in the list of skipped steps.
const NAME: &str = "arm64::emulated";

/// Attaches a container by the plugin `ptp`, has a packet answered, and detaches it: all of it in
/// namespaces that end with the script. The kernel does not start programs for arm64, so scripts
/// stand for the plugins, and the emulated `ptp` starts one of them. The emulator passes on netlink
/// messages about links, but not about packet filters, so `ptp` gets no masquerade; DEL, which looks
/// for rules, may still fail for that.
const ATTACH: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir /run/cni
ip link set lo up
before=$(ip -o link)
ip netns add web
for plugin in ptp host-local; do
    printf '#!/bin/sh\nexec %s -0 %s "%s"\n' "$2" "$plugin" "$1" >"/run/cni/$plugin"
    chmod 755 "/run/cni/$plugin"
done
call() {
    CNI_COMMAND=$1 CNI_CONTAINERID=web CNI_NETNS=/run/netns/web CNI_IFNAME=eth0 CNI_PATH=/run/cni \
        NETWRIGHT_STATE_DIR=/run/state /run/cni/ptp <<'E'
{"cniVersion":"1.0.0","name":"n","type":"ptp",
 "ipam":{"type":"host-local","dataDir":"/run/ipam","ranges":[[{"subnet":"192.0.2.0/24"}]]}}
E
}
call ADD
ip netns exec web ping -c 1 -W 5 192.0.2.1
echo attached
call DEL
test "$(ip -o link)" = "$before"
"#;

/// With `--full` builds the executables and runs them, unless a draft of a release does that
/// ([`release::draft`]).
pub(crate) fn check(extent: Extent) -> Result<Report, String> {
    if extent == Extent::EveryChange {
        return Ok(Report::skipped(NAME, ONLY_FULL));
    }
    if cfg!(target_arch = "aarch64") || LinkSettings::cross(TARGET).is_ok() {
        return Ok(Report::check("a draft of a release has them".to_owned()));
    }
    for program in [EMULATOR, CROSS_COMPILER] {
        if !exists(program) {
            return Ok(Report::skipped(NAME, &format!("no program {program}")));
        }
    }
    let Some(compiler) = compiler()? else {
        return Ok(Report::skipped(NAME, "this Debian has no compiler for it"));
    };
    let built = build(&compiler)?;
    let version = release::version()?;
    let daemon = built.join(NETWRIGHTD.name).display().to_string();
    let said = Program::new(EMULATOR).arg(&daemon).arg("--version").output()?;
    if !said.contains(&version) {
        return Err(format!("{daemon} --version said: {said}"));
    }
    let shown = emulated(&built.join(NETWRIGHT.name), &version)?;
    Ok(Report::check(format!("{DEBIANS}, by Debian's compiler: {shown}")))
}

/// Runs `netwright` for arm64, which must print its version, and each of its plugins, which must
/// print the versions that it supports. Attaches a container if the emulator can do that. Returns
/// what was shown.
pub(crate) fn emulated(netwright: &Path, version: &str) -> Result<String, String> {
    if !exists(EMULATOR) {
        return Ok(format!("not run ({EMULATOR} is not installed)"));
    }
    let path = netwright.display().to_string();
    let said = Program::new(EMULATOR).arg(&path).arg("--version").output()?;
    if !said.contains(version) {
        return Err(format!("{path} --version said: {said}"));
    }
    let plugins = Program::new(EMULATOR).arg(&path).arg("--list").output()?;
    for plugin in plugins.lines() {
        // A plugin is called by its own name as the first word (`argv[0]`).
        let call = Program::new(EMULATOR).arg("-0").arg(plugin).arg(&path);
        let said = call.variable("CNI_COMMAND", "VERSION").output()?;
        if !said.contains("supportedVersions") {
            return Err(format!("{plugin} of {path} said: {said}"));
        }
    }
    let attach = Program::new("unshare --mount --net --propagation private sh -c").arg(ATTACH);
    let attached = attach.arg("sh").arg(&path).arg(EMULATOR).logged("arm64-attach", quiet);
    let attached = match attached {
        Ok(_) => "an ADD, a packet and a DEL are done",
        Err(failed) if failed.lines.iter().any(|line| line == "attached") => {
            "an ADD and a packet are done, and no DEL (arm64-attach.log says why)"
        }
        Err(_) => "no ADD (arm64-attach.log says why)",
    };
    Ok(format!("{} plugins answer by emulation; {attached}", plugins.lines().count()))
}

/// Builds the executables with a compiler of Debian, and returns the folder that has them.
fn build(compiler: &Path) -> Result<PathBuf, String> {
    let folder = target_dir().join("arm64/build");
    let linker = format!("linker={CROSS_COMPILER}");
    let flags = [
        "-C",
        "target-feature=+crt-static",
        "-C",
        "relocation-model=static",
        "-C",
        linker.as_str(),
    ];
    let line =
        format!("nice cargo build --locked --target {DEBIANS} --config profile.dev.debug=false");
    let program = SHIPPED.iter().fold(Program::new(&line), |program, shipped| {
        program.arg("--package").arg(shipped.package)
    });
    program
        .variable("RUSTC", compiler.display().to_string())
        .variable(RUSTFLAGS, flags.join(BETWEEN))
        .variable("CARGO_TARGET_DIR", folder.display().to_string())
        .deadline(DEADLINE)
        .logged("arm64", quiet)?;
    Ok(folder.join(DEBIANS).join("debug"))
}

/// Returns the path of Debian's compiler, and unpacks it unless that was done before; none if this
/// release of Debian does not have it.
fn compiler() -> Result<Option<PathBuf>, String> {
    let dir = target_dir().join("arm64");
    let root = dir.join("root");
    if !root.is_dir() {
        let apt = dir.join("apt");
        let Some(options) = reference::security_updates(&apt, "amd64,arm64")? else {
            return Ok(None);
        };
        let Some(packages) = packages(&options) else { return Ok(None) };
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        deb::unpack(&packages, &options, &root)?;
        let _ = fs::remove_dir_all(apt);
    }
    let script = dir.join("rustc");
    let usr = root.join("usr").display().to_string();
    let text = format!(
        "#!/bin/sh\n\
         LD_LIBRARY_PATH='{usr}/lib/x86_64-linux-gnu' exec '{usr}/bin/rustc' --sysroot '{usr}' \"$@\"\n"
    );
    let failed = |error: std::io::Error| format!("write {}: {error}", script.display());
    fs::write(&script, text).map_err(failed)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755)).map_err(failed)?;
    Program::at(&script).arg("--version").logged("arm64-compiler", quiet)?;
    Ok(Some(script))
}

/// Returns the packages with Debian's compiler, with the libraries that it is linked with, and with
/// its standard libraries for this machine and for arm64; none if apt does not know them.
fn packages(options: &[String]) -> Option<Vec<String>> {
    let needed = |package: &str, name: &str| -> Option<String> {
        let program = options.iter().fold(Program::new("apt-cache"), Program::arg);
        let said = program.arg("show").arg(package).output().ok()?;
        let depends = said.lines().find_map(|line| line.strip_prefix("Depends: "))?;
        let mut names = depends.split(", ").filter_map(|one| one.split(' ').next());
        names.find(|needed| needed.starts_with(name)).map(str::to_owned)
    };
    let shared = needed(LIBRARY, "libstd-rust-web-")?;
    let llvm = needed(&shared, "libllvm")?;
    let here = [COMPILER, LIBRARY, shared.as_str(), llvm.as_str()]
        .map(|package| format!("{package}:amd64"));
    let there = [LIBRARY, shared.as_str()].map(|package| format!("{package}:arm64"));
    Some(here.into_iter().chain(there).collect())
}
