//! What this machine can do, and skipping a test that needs more.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::reference::{Release, empty_debian, engine_root, kubernetes, network_manager};
use crate::share;

/// Set in the virtual machine, where a missing kernel feature is a failure.
pub const VM_VARIABLE: &str = "NETWRIGHT_VM";

/// Set when soaks and large counts are run too.
pub const FULL_VARIABLE: &str = "NETWRIGHT_FULL";

/// Set to ask tests for the virtual machine whether they would be skipped there because
/// [`FULL_VARIABLE`] is not set. They answer, and do nothing else.
pub const ASKED_VARIABLE: &str = "NETWRIGHT_ASKED";

/// The part of a test's name that marks it for the virtual machine.
pub const VM_MARK: &str = "vm_";

/// Skips the test when something it needs is missing: prints `SKIP name: reason` on stderr and
/// returns.
///
/// | argument | condition |
/// |---|---|
/// | `"root"` | the test runs as root |
/// | `"program:NAME"` | an executable NAME is in `PATH` |
/// | `"file:PATH"` | PATH exists |
/// | `"go-plugins"` | the Go plugins of both releases are installed or unpacked ([`reference`](crate::reference)) |
/// | `"newest-engine"` | Debian unstable's Docker Engine is there ([`real::Engine`](crate::real::Engine)) |
/// | `"helm"` | Helm and kubectl are there ([`chart`](crate::chart)) |
/// | `"network-manager"` | Debian's NetworkManager is there ([`reference::network_manager`](crate::reference::network_manager)) |
/// | `"empty-debian"` | a Debian that has no more than it needs to boot is there ([`reference::empty_debian`](crate::reference::empty_debian)) |
/// | `"legacy-tables"` | `iptables-legacy` works, whose first call loads the kernel's modules |
/// | `"ptrace"` | programs can be traced as [`fault`](crate::fault) does it |
/// | `"full"` | everything is run: `cargo xtask ci --full` |
/// | `"round:1/3"` | everything is run, and the round is such that it leaves 1 if divided by 3 ([`share`]): for measurements of size. In the virtual machine, as `"full"` |
/// | `"vm-full"` | this is not the virtual machine, or everything is run: for tests that this machine's kernel can run too |
/// | `"bridge-vlan-filtering"`, `"vlan"`, `"dummy"`, … | the kernel has it, see [`KERNEL`] |
///
/// A test that needs a kernel feature must have `vm_` in its name: such tests run once more in the
/// virtual machine (`cargo xtask vm`), where a missing kernel feature fails the test.
///
/// ```no_run
/// fn vm_trunk_ports_carry_their_vlans() {
///     testkit::require!("root", "bridge-vlan-filtering");
///     // …
/// }
/// ```
#[macro_export]
macro_rules! require {
    ($($feature:expr),+ $(,)?) => {{
        $crate::feature::assert_not_moved(env!("CARGO_MANIFEST_DIR"));
        fn here() {}
        let test = $crate::feature::test_name(::std::any::type_name_of_val(&here));
        if $crate::feature::skip(test, &[$($feature),+]) {
            return;
        }
    }};
}

/// Kernel features by name, each with an `ip` or `tc` command that works where the feature exists.
///
/// They run in a namespace of their own with a veth pair `p0`, `p1`.
pub const KERNEL: &[(&str, &str)] = &[
    ("bridge-vlan-filtering", "ip link add t0 type bridge vlan_filtering 1"),
    ("vlan", "ip link add link p0 name t0 type vlan id 7"),
    ("dummy", "ip link add t0 type dummy"),
    ("ipvlan", "ip link add link p0 name t0 type ipvlan mode l2"),
    ("macvlan", "ip link add link p0 name t0 type macvlan mode bridge"),
    ("vrf", "ip link add t0 type vrf table 10"),
    ("ifb", "ip link add t0 type ifb"),
    ("bond", "ip link add t0 type bond"),
    ("vxlan", "ip link add t0 type vxlan id 1 dev p0 dstport 4789"),
    ("geneve", "ip link add t0 type geneve id 1 remote 192.0.2.1"),
    (
        "openvswitch",
        "$(cat /proc/sys/kernel/modprobe) openvswitch; test -d /sys/module/openvswitch",
    ),
    ("module-requests", "test -d /sys/kernel/tracing/events/module/module_request"),
    (
        "sctp-conntrack",
        "$(cat /proc/sys/kernel/modprobe) nf_conntrack; \
         test -e /proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established",
    ),
    ("wireguard", "ip link add t0 type wireguard"),
    ("tun", "ip tuntap add t0 mode tap"),
    ("tbf", "tc qdisc add dev p0 root tbf rate 8mbit burst 16k latency 25ms"),
    ("sch_ingress", "tc qdisc add dev p0 ingress"),
    ("clsact", "tc qdisc add dev p0 clsact"),
    ("htb", "tc qdisc add dev p0 root handle 1: htb"),
    ("sch_prio", "tc qdisc add dev p0 root handle 1: prio"),
    (
        "cls_bpf",
        "tc qdisc add dev p0 clsact && tc filter add dev p0 ingress bpf da bytecode '1,6 0 0 0,'",
    ),
    (
        "cls_u32",
        "tc qdisc add dev p0 ingress && tc filter add dev p0 parent ffff: protocol all u32 match u32 0 0 action ok",
    ),
    (
        "cls_matchall",
        "tc qdisc add dev p0 ingress && tc filter add dev p0 parent ffff: protocol all matchall action ok",
    ),
    (
        "act_mirred",
        "tc qdisc add dev p0 ingress && tc filter add dev p0 parent ffff: protocol all matchall action mirred egress redirect dev p1",
    ),
    (
        "police",
        "tc qdisc add dev p0 ingress && tc filter add dev p0 parent ffff: protocol all prio 49 basic police rate 8kbit burst 10k drop",
    ),
    // Only in the virtual machine: on any other machine the devices are in use.
    ("spare-nic", "test -n \"$NETWRIGHT_VM\" && ls -d /sys/bus/virtio/drivers/virtio_net/virtio*"),
    // Also only in the virtual machine, whose sysctls are set as Docker, Kubernetes and systemd set
    // them.
    ("configured-machine", "test -n \"$NETWRIGHT_VM\""),
    // The virtual machine loads it before the first test: it adds sysctls to every namespace.
    ("ip_vs", "test -e /proc/net/ip_vs"),
    ("fq_codel", "tc qdisc add dev p0 root fq_codel"),
    ("netem", "tc qdisc add dev p0 root netem delay 1ms"),
    (
        "br_netfilter",
        "ip link add t0 type bridge && test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
    ),
];

/// Where the virtual machine notes which features its kernel has. No lab has a `/tmp` of its own.
const NOTED: &str = "/tmp/netwright-features";

/// Whether a feature exists; the answer for kernel features is cached for the process's lifetime,
/// in the virtual machine for the machine's.
///
/// # Panics
/// When the feature's name is not known.
#[must_use]
pub fn available(feature: &str) -> bool {
    if feature == "root" {
        return rustix::process::geteuid().is_root();
    }
    if feature == "full" {
        return env::var_os(FULL_VARIABLE).is_some();
    }
    if let Some(place) = feature.strip_prefix(ROUND) {
        // `cargo xtask` chooses what the virtual machine runs in a round.
        let is_chosen = env::var_os(VM_VARIABLE).is_some() || share::is_of_this_round(place);
        return is_chosen && available("full");
    }
    if feature == "vm-full" {
        return env::var_os(VM_VARIABLE).is_none() || available("full");
    }
    if feature == "ptrace" {
        return crate::fault::available();
    }
    if feature == "legacy-tables" {
        return quiet("unshare", &["--net", "iptables-legacy", "-S"]);
    }
    if feature == "go-plugins" {
        let releases = [Release::Installed, Release::Unstable];
        return releases.into_iter().all(|release| release.plugin("bridge").is_some());
    }
    if feature == "newest-engine" {
        return engine_root().join("usr/sbin/dockerd").is_file();
    }
    if feature == "helm" {
        return ["helm", "kubectl"].into_iter().all(|program| kubernetes(program).is_file());
    }
    if feature == "network-manager" {
        return network_manager().is_some();
    }
    if feature == "empty-debian" {
        return empty_debian().is_some();
    }
    if let Some(program) = feature.strip_prefix("program:") {
        return find_program(program).is_some();
    }
    if let Some(file) = feature.strip_prefix("file:") {
        return Path::new(file).exists();
    }
    static KNOWN: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(feature.to_owned()).or_insert_with(|| match env::var_os(VM_VARIABLE) {
        Some(_) => noted(feature),
        None => probe(feature),
    })
}

/// Probes a feature in the virtual machine, once. There each test is a process of its own, and a
/// probe takes a third of a second.
fn noted(feature: &str) -> bool {
    let note = Path::new(NOTED).join(feature);
    let exists = note.exists() || probe(feature);
    if exists {
        // Without the note the next test probes again.
        let _ = fs::create_dir_all(NOTED).and_then(|()| fs::write(note, ""));
    }
    exists
}

/// Returns where a program is in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

fn is_kernel(feature: &str) -> bool {
    KERNEL.iter().any(|(name, _)| *name == feature)
}

fn probe(feature: &str) -> bool {
    let Some((_, script)) = KERNEL.iter().find(|(name, _)| *name == feature) else {
        panic!("no feature \"{feature}\" is known; the list is in testkit::feature");
    };
    let script = format!("ip link add p0 type veth peer name p1 && ip link set p0 up && {script}");
    quiet("unshare", &["--net", "--mount", "sh", "-c", &script])
}

/// Runs a program without its output and says whether it succeeded.
fn quiet(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// The test's path within its crate, from the type name of something in it. For
/// [`require!`](crate::require).
#[must_use]
pub fn test_name(inner: &'static str) -> &'static str {
    let test = inner.rsplit_once("::").map_or(inner, |(test, _)| test);
    let test = test.strip_suffix("::{{closure}}").unwrap_or(test);
    test.split_once("::").map_or(test, |(_, path)| path)
}

/// Fails a test whose checkout was moved or copied since it was built, for
/// [`require!`](crate::require). Cargo considers it built, but the compiled-in paths of documents
/// and executables lead to the old place. `cargo xtask` shows the checkout at one place.
///
/// # Panics
/// With instructions.
pub fn assert_not_moved(compiled: &str) {
    let now = env::var_os("CARGO_MANIFEST_DIR");
    if let Some(told) = moved(Path::new(compiled), now.as_ref().map(Path::new)) {
        panic!("{told}");
    }
}

/// Describes that a package was built at another path than it is now; only cargo knows the current
/// path.
fn moved(compiled: &Path, now: Option<&Path>) -> Option<String> {
    let real = |path: &Path| path.canonicalize().ok();
    let compiled_is = real(compiled);
    let is_here = compiled_is.is_some() && now.is_none_or(|now| real(now) == compiled_is);
    let now = now.map_or_else(|| "elsewhere".to_owned(), |now| format!("in {now:?}"));
    (!is_here).then(|| {
        format!(
            "these tests were built in {compiled:?} and run {now}: the checkout was moved or copied; \
             run `cargo clean`, or the tests by `cargo xtask only`"
        )
    })
}

/// Whether the test must be skipped; if so, prints that on stderr. For
/// [`require!`](crate::require).
///
/// # Panics
/// When a test without `vm_` in its name needs a kernel feature, and in the virtual machine when a
/// feature is missing.
#[must_use]
pub fn skip(test: &str, features: &[&str]) -> bool {
    let needs_vm = features.iter().find(|feature| is_kernel(feature));
    if let Some(feature) = needs_vm {
        assert!(
            test.contains(VM_MARK),
            "test {test} needs {feature}: give it a name with \"{VM_MARK}\" in it"
        );
    }
    if env::var_os(ASKED_VARIABLE).is_some() {
        if needs_full(features) {
            eprintln!("SKIP {test}: {ONLY_FULL}");
        }
        return true;
    }
    let Some(missing) = features.iter().find(|feature| !available(feature)) else { return false };
    assert!(
        env::var_os(VM_VARIABLE).is_none() || !is_kernel(missing),
        "test {test} needs {missing}, which the virtual machine's kernel should have"
    );
    let reason = match missing.split_once(':') {
        _ if is_of_full(missing) && !available("full") => ONLY_FULL.to_owned(),
        Some((_, place)) if missing.starts_with(ROUND) => {
            let round = place.split('/').next().unwrap_or_default();
            format!("in another round of --full (NETWRIGHT_ROUND={round} has it)")
        }
        Some((kind, name)) => format!("no {kind} {name}"),
        None if *missing == "root" => "needs root".to_owned(),
        None if *missing == "go-plugins" => "no Go plugins (cargo xtask setup)".to_owned(),
        None if *missing == "newest-engine" => {
            "no Docker Engine of Debian unstable (cargo xtask setup)".to_owned()
        }
        None if *missing == "helm" => "no Helm (cargo xtask setup)".to_owned(),
        None if *missing == "empty-debian" => {
            "no empty Debian (cargo xtask setup --full)".to_owned()
        }
        None if *missing == "legacy-tables" => "no iptables-legacy that works here".to_owned(),
        None if *missing == "ptrace" => "programs cannot be traced here".to_owned(),
        None => format!("the kernel has no {missing}"),
    };
    eprintln!("SKIP {test}: {reason}");
    true
}

/// The reason of a test that only a full run includes.
const ONLY_FULL: &str = "only with --full";

/// The beginning of a feature that a full run has in one of several rounds.
const ROUND: &str = "round:";

/// Whether a feature is that everything is run.
fn is_of_full(feature: &str) -> bool {
    ["full", "vm-full"].contains(&feature) || feature.starts_with(ROUND)
}

/// Whether, kernel features apart, a full run is the first thing that is missing in the virtual
/// machine. Only the machine can say which features its kernel has.
fn needs_full(features: &[&str]) -> bool {
    let is_full = |feature: &&str| is_of_full(feature) && !available("full");
    let mut others = features.iter().copied().filter(|feature| !is_kernel(feature));
    others.find(|feature| is_full(feature) || !available(feature)).is_some_and(|one| is_full(&one))
}

#[cfg(test)]
mod tests {
    use super::{Path, moved, needs_full, test_name};

    /// The probes themselves must be right: the kernel of every machine has some of these features.
    #[test]
    fn probes_find_what_every_kernel_here_has() {
        crate::require!("root");
        for feature in ["macvlan", "vxlan", "ifb", "tbf", "tun"] {
            assert!(super::available(feature), "{feature}");
        }
    }

    #[test]
    fn a_checkout_that_was_moved_is_told() {
        let (here, there) = (Path::new("/usr"), Path::new("/nonexistent/crate"));
        assert_eq!(moved(here, None), None);
        assert_eq!(moved(here, Some(Path::new("/usr/../usr"))), None);
        assert!(
            moved(there, None)
                .unwrap()
                .contains("built in \"/nonexistent/crate\" and run elsewhere")
        );
        assert!(
            moved(there, Some(here)).unwrap().contains("run in \"/usr\": the checkout was moved")
        );
        // A copy: the old place still exists.
        assert!(moved(Path::new("/etc"), Some(here)).is_some());
    }

    #[test]
    fn what_only_a_full_run_includes_is_known_before() {
        let is_full = super::available("full");
        for (features, expected) in [
            (&["file:/", "vlan", "vm-full"][..], true),
            (&["full", "vlan"][..], true),
            (&["vlan", "program:no-such-program", "full"][..], false),
            (&["vlan", "round:0/1"][..], true),
            (&["file:/", "vlan"][..], false),
        ] {
            assert_eq!(needs_full(features), expected && !is_full, "{features:?}");
        }
    }

    #[test]
    fn test_names_lose_crate_and_helper() {
        assert_eq!(test_name("it::bridge::vm_trunk::here"), "bridge::vm_trunk");
        assert_eq!(test_name("it::top::here"), "top");
    }
}
