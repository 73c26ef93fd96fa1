//! The table plugin × verb × address family: tests that every plugin has, with names the table is
//! made from.
//!
//! `cargo xtask ci` searches the results of its run for `<plugin>::…matrix_<verb>_<family>`
//! (`vm_matrix_…` in the virtual machine; `-` in a plugin's name is `_`) and fails if a combination
//! of plugin, verb and family is missing. A [`Subject`] has what is particular to a plugin, and
//! [`tests!`](crate::support::matrix::tests) makes the fifteen tests from it:
//!
//! ```ignore
//! use crate::support::matrix::{self, Family, Subject};
//!
//! const SUBJECT: Subject = Subject {
//!     plugin: "macvlan",
//!     host: |node, _| { node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up"); },
//!     config: |node, _, family| json!({ "master": "p0", "ipam": matrix::ipam(node, family) }),
//!     holds: |_, c1, _| c1.try_sh("ip -d link show eth0 | grep -q macvlan").status.success(),
//!     damage: |_, c1, _| { c1.sh("ip link del eth0"); },
//!     unready: Some(|_, _| json!({ "master": "missing" })),
//! };
//! matrix::tests!(SUBJECT);            // or: matrix::vm_tests!(SUBJECT, "ipvlan");
//! ```

use std::time::{Duration, Instant};

use cni::AttachmentKey;
use serde_json::{Value, json};
use state::Index;
use testkit::{Container, ModuleRequests, Place, Snapshot};

use super::{Node, Picture, Run};

/// How long the kernel may take to remove a deleted namespace.
const GONE: Duration = Duration::from_secs(20);

/// The longest pause between two looks at whether it has.
const PAUSE: Duration = Duration::from_millis(500);

/// Which addresses a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
    Dual,
}

impl Family {
    pub(crate) fn has_v4(self) -> bool {
        self != Family::V6
    }

    pub(crate) fn has_v6(self) -> bool {
        self != Family::V4
    }

    /// Picks the values of this family: `pick(for IPv4, for IPv6)`.
    pub(crate) fn pick<T>(self, v4: T, v6: T) -> Vec<T> {
        let v4 = self.has_v4().then_some(v4);
        let v6 = self.has_v6().then_some(v6);
        v4.into_iter().chain(v6).collect()
    }
}

/// What is particular to one plugin.
pub(crate) struct Subject {
    pub(crate) plugin: &'static str,
    /// Makes on the host, once, what the plugin expects there.
    pub(crate) host: fn(&Node, Family),
    /// Prepares a container and returns the configuration's keys for it: [`ipam`], or `prevResult`
    /// ([`attached`]), …
    pub(crate) config: fn(&Node, &Container, Family) -> Value,
    /// Whether what ADD makes exists: true after ADD, false before it and after DEL.
    pub(crate) holds: fn(&Node, &Container, Family) -> bool,
    /// Damages what ADD made, so that CHECK must fail.
    pub(crate) damage: fn(&Node, &Container, Family),
    /// Makes the plugin unable to serve, and returns keys for the configuration; STATUS must then
    /// fail with 50 or 51. `None` if nothing can be missing.
    pub(crate) unready: Option<fn(&Node, Family) -> Value>,
}

/// The `ipam` object of `host-local` with a subnet and a default route for each family.
pub(crate) fn ipam(node: &Node, family: Family) -> Value {
    let ranges =
        family.pick(json!([{ "subnet": "10.1.0.0/24" }]), json!([{ "subnet": "fd00:1::/64" }]));
    let routes = family.pick(json!({ "dst": "0.0.0.0/0" }), json!({ "dst": "::/0" }));
    json!({ "type": "host-local", "dataDir": node.dir("ipam"), "ranges": ranges, "routes": routes })
}

/// Attaches a container to bridge `cni0` by hand, and returns the result of a bridge plugin: a
/// `prevResult`.
///
/// Container `cN` has 10.1.0.(N+2) and fd00:1::(N+2); its host end is `vcN`.
pub(crate) fn attached(node: &Node, container: &Container, family: Family) -> Value {
    let name = container.name();
    let last = 2 + name.trim_start_matches('c').parse::<u8>().unwrap();
    let addresses = family.pick(
        (format!("10.1.0.{last}/24"), "10.1.0.1", "10.1.0.1/24"),
        (format!("fd00:1::{last}/64"), "fd00:1::1", "fd00:1::1/64"),
    );
    let (mut outside, mut inside, mut ips) = (String::new(), String::new(), Vec::new());
    for (address, gateway, on_bridge) in addresses {
        outside += &format!("addr replace {on_bridge} dev cni0 nodad\n");
        inside += &format!("addr add {address} dev eth0 nodad\nroute add default via {gateway}\n");
        ips.push(json!({ "interface": 2, "address": address, "gateway": gateway }));
    }
    // This starts few programs, because most tests of the table do it, more than once.
    node.sh(&format!(
        "
test -e /sys/class/net/cni0 || ip -batch - <<END || exit
link add cni0 address 02:00:00:00:01:01 type bridge
link set cni0 addrgenmode none
link set cni0 up
END
ip -batch - <<END
link add v{name} address 02:00:00:00:02:0{last} type veth peer name eth0 netns {name}
link set v{name} addrgenmode none
link set v{name} master cni0 up
{outside}END
"
    ));
    container.sh(&format!(
        "
ip -batch - <<END
link set lo up
link set eth0 addrgenmode none address 02:00:00:00:03:0{last}
link set eth0 up
{inside}END
"
    ));
    let routes = family.pick(json!({ "dst": "0.0.0.0/0" }), json!({ "dst": "::/0" }));
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "cni0", "mac": "02:00:00:00:01:01" },
            { "name": format!("v{name}"), "mac": format!("02:00:00:00:02:0{last}") },
            { "name": "eth0", "mac": format!("02:00:00:00:03:0{last}"), "sandbox": container.netns() },
        ],
        "ips": ips,
        "routes": routes,
    })
}

/// A host on which one container was attached and detached, so that the objects which a network's
/// first container leaves for the next one exist.
pub(crate) fn warm(subject: &Subject, name: &str, family: Family) -> Node {
    warmed(Node::new(&format!("{}-{name}", subject.plugin)), subject, family)
}

fn warmed(node: Node, subject: &Subject, family: Family) -> Node {
    (subject.host)(&node, family);
    let c0 = node.container("c0");
    let keys = (subject.config)(&node, &c0, family);
    let result = run(subject, &node, "ADD", &c0, &keys).call().ok();
    run(subject, &node, "DEL", &c0, &keys).prev(&result).call().silent();
    // A DEL that finds no record searches further, under locks whose files stay.
    run(subject, &node, "DEL", &c0, &keys).call().silent();
    collect(subject, &node, &keys, &[]);
    // The kernel would delete the host end of `attached` with the namespace too, but later.
    node.sh("ip link del vc0 2>/dev/null || true");
    node
}

pub(crate) fn run<'n>(
    subject: &Subject,
    node: &'n Node,
    verb: &str,
    to: &Container,
    keys: &Value,
) -> Run<'n> {
    node.run(subject.plugin, verb).to(to).config(keys.clone())
}

/// A call for the network, not for a container: GC or STATUS.
fn of_network<'n>(subject: &Subject, node: &'n Node, verb: &str, keys: &Value) -> Run<'n> {
    node.run(subject.plugin, verb).config(keys.clone()).without("prevResult").of_network()
}

fn collect(subject: &Subject, node: &Node, keys: &Value, valid: &[(&str, &str)]) {
    of_network(subject, node, "GC", keys).valid(valid).call().silent();
}

/// ADD makes what it should. The result and the container have the same addresses, all of the
/// family.
pub(crate) fn add(subject: &Subject, family: Family) {
    let node = warm(subject, "add", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    assert!(!(subject.holds)(&node, &c1, family), "it is there before ADD");
    let result = run(subject, &node, "ADD", &c1, &keys).call().ok();
    assert!((subject.holds)(&node, &c1, family), "ADD did not make it: {result}");
    let none = Vec::new();
    let ips = result["ips"].as_array().unwrap_or(&none);
    let address = |ip: &Value| ip["address"].as_str().unwrap().to_owned();
    for (has, colon, name) in [(family.has_v4(), false, "IPv4"), (family.has_v6(), true, "IPv6")] {
        let found = ips.iter().any(|ip| address(ip).contains(':') == colon);
        // lo always has addresses of both families.
        assert!(found == has || subject.plugin == "loopback", "{name} expected: {has}: {result}");
    }
    for ip in ips.iter().filter(|ip| ip["interface"].is_u64()) {
        let shown = c1.sh("ip -o addr show");
        assert!(shown.contains(&address(ip)), "{} is not in the container:\n{shown}", address(ip));
    }
}

/// DEL leaves nothing, needs neither prevResult nor namespace, and succeeds a second time.
pub(crate) fn del(subject: &Subject, family: Family) {
    let node = warm(subject, "del", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    let before = look(&node);
    let result = run(subject, &node, "ADD", &c1, &keys).call().ok();
    run(subject, &node, "DEL", &c1, &keys).prev(&result).call().silent();
    assert!(!(subject.holds)(&node, &c1, family), "it is there after DEL");
    assert_settles(&before, &node);
    assert_eq!(addresses(&node), "", "addresses are still reserved");
    run(subject, &node, "DEL", &c1, &keys).prev(&result).call().silent();
    run(subject, &node, "DEL", &c1, &keys).netns("").without("prevResult").call().silent();
}

/// CHECK succeeds after ADD, and fails after damage.
pub(crate) fn check(subject: &Subject, family: Family) {
    let node = warm(subject, "check", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    let result = run(subject, &node, "ADD", &c1, &keys).call().ok();
    run(subject, &node, "CHECK", &c1, &keys).prev(&result).call().silent();
    (subject.damage)(&node, &c1, family);
    let error = run(subject, &node, "CHECK", &c1, &keys).prev(&result).call().error();
    assert!(!error.msg.is_empty(), "{error:?}");
}

/// GC removes what a dead container left, and nothing of an existing one.
pub(crate) fn gc(subject: &Subject, family: Family) {
    let node = warm(subject, "gc", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    let result = run(subject, &node, "ADD", &c1, &keys).call().ok();
    let (before, reserved) = (look(&node), addresses(&node));
    let c2 = node.container("c2");
    let gone = (subject.config)(&node, &c2, family);
    run(subject, &node, "ADD", &c2, &gone).call().ok();
    drop(c2);
    collect(subject, &node, &keys, &[("c1", "eth0")]);
    assert_settles(&before, &node);
    assert_eq!(addresses(&node), reserved);
    collect(subject, &node, &keys, &[("c1", "eth0")]);
    assert!((subject.holds)(&node, &c1, family), "GC took what is in use");
    run(subject, &node, "CHECK", &c1, &keys).prev(&result).call().silent();
}

/// An ADD of the same attachment in another namespace is refused, and neither it nor the container
/// that lives changes. Once the first namespace is gone, it succeeds, and gets the same addresses.
pub(crate) fn second(subject: &Subject, family: Family) {
    // An address plugin has no namespace of its own, and `loopback` owns nothing.
    if ["cluster-ipam", "host-local", "loopback"].contains(&subject.plugin) {
        return;
    }
    let node = warm(subject, "second", family);
    let base = look(&node);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let (keys, other) =
        ((subject.config)(&node, &c1, family), (subject.config)(&node, &c2, family));
    let result = run(subject, &node, "ADD", &c1, &keys).call().ok();
    let (before, reserved) = (look(&node), addresses(&node));
    let pictures = [&c1, &c2].map(Picture::of);
    let again = || run(subject, &node, "ADD", &c2, &other).id("c1");
    let error = again().call().error();
    let names_it = error.msg.contains(c1.netns().to_str().unwrap());
    assert!(error.code == 106 && names_it, "{error:?}");
    for (container, picture) in [&c1, &c2].into_iter().zip(&pictures) {
        picture.assert_same(&Picture::of(container));
    }
    before.assert_same(&look(&node));
    assert_eq!(addresses(&node), reserved);
    assert!((subject.holds)(&node, &c1, family), "the container that lives has lost it");
    run(subject, &node, "CHECK", &c1, &keys).prev(&result).call().silent();
    // The undo of a runtime that does not know better.
    run(subject, &node, "DEL", &c2, &other)
        .id("c1")
        .config(json!({ cni::UNDO: true }))
        .call()
        .silent();
    assert!((subject.holds)(&node, &c1, family), "an undo has taken it from the one that lives");
    assert_eq!(addresses(&node), reserved);
    drop(c1);
    // A device that was lent is gone with the namespace.
    if subject.plugin == "host-device" {
        return;
    }
    let result = again().call().ok();
    assert_eq!(addresses(&node), reserved, "the container got another address");
    run(subject, &node, "CHECK", &c2, &other).id("c1").prev(&result).call().silent();
    run(subject, &node, "DEL", &c2, &other).id("c1").call().silent();
    assert_eq!(addresses(&node), "", "addresses are still reserved");
    drop(c2);
    node.sh("ip link del vc1 2>/dev/null; ip link del vc2 2>/dev/null; true");
    assert_settles(&base, &node);
}

/// Makes one path of each kind that leads to no namespace, and names the kind.
fn nowhere(node: &Node) -> Vec<(&'static str, String)> {
    let dir = node.dir("astray");
    let at = |name: &str| dir.join(name).display().to_string();
    node.sh(&format!("ln -s {0} {0}; touch {1}", at("loop"), at("file")));
    vec![
        ("ENOENT", at("nothing")),
        ("ENOTDIR", at("file/netns")),
        ("ELOOP", at("loop")),
        ("ENAMETOOLONG", at(&"x".repeat(300))),
        ("no namespace", at("file")),
        ("a device", "/dev/null".to_owned()),
        ("a folder", at("")),
    ]
}

/// DEL with a path that leads nowhere takes what ADD made and the addresses, while the container
/// lives on under another path; what was in it alone may stay.
pub(crate) fn astray(subject: &Subject, family: Family) {
    let node = warm(subject, "astray", family);
    let base = look(&node);
    let reserved = addresses(&node);
    for (number, (what, path)) in (1..).zip(nowhere(&node)) {
        let c1 = node.container(&format!("c{number}"));
        let keys = (subject.config)(&node, &c1, family);
        run(subject, &node, "ADD", &c1, &keys).call().ok();
        for _ in 0..2 {
            run(subject, &node, "DEL", &c1, &keys).netns(&path).call().silent();
        }
        assert_eq!(addresses(&node), reserved, "{what}");
        if keys.get("prevResult").is_none() {
            let left = c1.sh("ip -o link show | grep -v ' lo:' | wc -l");
            assert_eq!(left.trim(), "0", "{what}: its interface is still there");
        }
        drop(c1);
        node.sh(&format!("ip link del vc{number} 2>/dev/null || true"));
    }
    // Devices that were lent are home again.
    if subject.plugin != "host-device" {
        assert_settles(&base, &node);
    }
}

/// DEL of an attachment that was never made, by a path that leads to another container, leaves that
/// one as it is.
pub(crate) fn never_made(subject: &Subject, family: Family) {
    let node = warm(subject, "never-made", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    run(subject, &node, "ADD", &c1, &keys).call().ok();
    // `loopback` keeps no record, and is never a container's only network.
    if subject.plugin == "loopback" {
        node.run("bridge", "ADD").to(&c1).config(json!({ "bridge": "br0" })).call().ok();
    }
    // A link that was lent looks for duplicates of its address.
    c1.sh(
        "timeout 10 sh -c 'while ip -6 addr show tentative | grep -q inet6; do sleep 0.02; done'",
    );
    let before = Snapshot::of(&c1);
    run(subject, &node, "DEL", &c1, &keys).id("never-made").call().silent();
    before.assert_same(&Snapshot::of(&c1));
}

/// GC leaves an attachment whose ADD, DEL or repair is running, and reports that; afterwards it
/// removes it.
pub(crate) fn gc_alone(subject: &Subject, family: Family) {
    // An address plugin runs under its caller's lock, and `loopback` owns nothing.
    if ["cluster-ipam", "host-local", "loopback"].contains(&subject.plugin) {
        return;
    }
    let node = warm(subject, "gc-alone", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    let result = run(subject, &node, "ADD", &c1, &keys).call().ok();
    let (before, reserved) = (look(&node), addresses(&node));
    let index = Index::new(&node.roots);
    let key = AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let locks = (
        index.begin_attachment(&key, Duration::ZERO).unwrap(),
        index.begin_group(&key, Duration::ZERO).unwrap(),
    );
    let error = of_network(subject, &node, "GC", &keys).valid(&[]).call().error();
    // Each plugin of a chain reports it.
    let is_alone = subject.plugin != "chain";
    assert!(error.msg.contains("held by") && (!is_alone || error.code == 11), "{error:?}");
    assert!(
        (subject.holds)(&node, &c1, family),
        "GC removed an attachment that another call works on"
    );
    drop(locks);
    before.assert_same(&look(&node));
    assert_eq!(addresses(&node), reserved);
    run(subject, &node, "CHECK", &c1, &keys).prev(&result).call().silent();
    collect(subject, &node, &keys, &[]);
    assert_eq!(addresses(&node), "");
}

/// STATUS succeeds if ADD would, and fails with 50 or 51 if not.
pub(crate) fn status(subject: &Subject, family: Family) {
    let node = warm(subject, "status", family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    let status = |more| of_network(subject, &node, "STATUS", &keys).config(more).call();
    status(json!({})).silent();
    if let Some(unready) = subject.unready {
        let error = status(unready(&node, family)).error();
        assert!(error.code == 50 || error.code == 51, "{error:?}");
    }
}

/// Once the modules that the first container needs are loaded, no verb makes the kernel look for a
/// module: for each look the kernel starts a process or two, and the call waits for them.
pub(crate) fn asks_for_no_module(subject: &Subject, family: Family) {
    let node = Node::new(&format!("{}-modules", subject.plugin));
    // The plugin records what the kernel lacks only if something of ours exists, which is so after
    // a chain's first plugin.
    std::fs::create_dir_all(&node.roots.run).unwrap();
    let node = warmed(node, subject, family);
    let c1 = node.container("c1");
    let keys = (subject.config)(&node, &c1, family);
    let requests = ModuleRequests::new();
    let (result, asked) = requests.during(|| run(subject, &node, "ADD", &c1, &keys).call().ok());
    let mut all = vec![("ADD", asked)];
    for verb in ["CHECK", "DEL"] {
        let call = || run(subject, &node, verb, &c1, &keys).prev(&result).call().silent();
        all.push((verb, requests.during(call).1));
    }
    let status = || of_network(subject, &node, "STATUS", &keys).call().silent();
    all.push(("STATUS", requests.during(status).1));
    all.retain(|(_, asked)| !asked.is_empty());
    assert!(all.is_empty(), "{} has the kernel look for modules: {all:?}", subject.plugin);
}

/// A snapshot of everything on the host, and of the plugins' own files.
pub(crate) fn look(node: &Node) -> Snapshot {
    let own: Vec<String> =
        ["run", "lib"].map(|dir| node.lab.dir().join(dir).display().to_string()).into();
    let files: Vec<&str> =
        Snapshot::FILES.into_iter().chain(own.iter().map(String::as_str)).collect();
    Snapshot::with_files(&node.lab, &files)
}

/// Asserts that the host returns to its earlier state, once the kernel has removed deleted
/// namespaces.
#[track_caller]
pub(crate) fn assert_settles(before: &Snapshot, node: &Node) {
    let deadline = Instant::now() + GONE;
    loop {
        let began = Instant::now();
        let now = look(node);
        if before.diff(&now).is_empty() || deadline < began {
            before.assert_same(&now);
            return;
        }
        // A snapshot starts many programs, which must not keep the kernel from its work.
        std::thread::sleep(began.elapsed().clamp(Duration::from_millis(20), PAUSE));
    }
}

/// The reserved addresses in [`ipam`]'s folder.
pub(crate) fn addresses(node: &Node) -> String {
    node.sh(&format!(
        "ls {}/n 2>/dev/null | grep '^[0-9a-f]*[.:]' | sort || true",
        node.dir("ipam").display()
    ))
}

/// Makes a plugin's fifteen tests from its [`Subject`].
macro_rules! tests {
    ($subject:expr) => {
        $crate::support::matrix::tests!($subject; "root", "module-requests");
    };
    // The test of the kernel's looks for modules runs only with `--full`: other tests make the same
    // calls in every run.
    ($subject:expr, modules: full) => {
        $crate::support::matrix::tests!($subject; "root", "full", "module-requests");
    };
    ($subject:expr; $($modules:expr),+) => {
        $crate::support::matrix::each!($subject, "root";
            matrix_add_v4 add V4, matrix_add_v6 add V6, matrix_add_dual add Dual,
            matrix_del_v4 del V4, matrix_del_v6 del V6, matrix_del_dual del Dual,
            matrix_check_v4 check V4, matrix_check_v6 check V6, matrix_check_dual check Dual,
            matrix_gc_v4 gc V4, matrix_gc_v6 gc V6, matrix_gc_dual gc Dual,
            matrix_status_v4 status V4, matrix_status_v6 status V6, matrix_status_dual status Dual);
        $crate::support::matrix::each!($subject, "root";
            gc_leaves_alone_what_somebody_is_at gc_alone V4,
            an_add_in_another_namespace_leaves_the_first_alone second Dual,
            del_by_a_path_that_leads_nowhere_takes_everything astray Dual,
            del_of_what_was_never_made_changes_no_other_container never_made Dual);
        $crate::support::matrix::each!($subject, "root", "program:strace";
            an_add_killed_anywhere_leaves_nothing killed Dual);
        $crate::support::matrix::each!($subject, $($modules),+;
            vm_no_verb_asks_for_a_module asks_for_no_module V4);
    };
}

/// Makes a plugin's fifteen tests, for the virtual machine where this machine's kernel lacks one of
/// the features.
#[allow(unused_macros, reason = "used where this machine's kernel lacks something")]
macro_rules! vm_tests {
    ($subject:expr, $($feature:expr),+) => {
        $crate::support::matrix::each!($subject, "root", $($feature),+;
            vm_matrix_add_dual add Dual, vm_matrix_del_dual del Dual, vm_matrix_check_dual check Dual,
            vm_matrix_gc_dual gc Dual, vm_matrix_status_dual status Dual);
        $crate::support::matrix::each!($subject, "root", "full", $($feature),+;
            vm_matrix_add_v4 add V4, vm_matrix_add_v6 add V6, vm_matrix_del_v4 del V4, vm_matrix_del_v6 del V6,
            vm_matrix_check_v4 check V4, vm_matrix_check_v6 check V6, vm_matrix_gc_v4 gc V4, vm_matrix_gc_v6 gc V6,
            vm_matrix_status_v4 status V4, vm_matrix_status_v6 status V6,
            vm_gc_leaves_alone_what_somebody_is_at gc_alone V4,
            vm_del_by_a_path_that_leads_nowhere_takes_everything astray Dual,
            vm_del_of_what_was_never_made_changes_no_other_container never_made Dual);
        $crate::support::matrix::each!($subject, "root", "full", "program:strace", $($feature),+;
            vm_an_add_killed_anywhere_leaves_nothing killed Dual);
        $crate::support::matrix::each!($subject, "root", "module-requests", $($feature),+;
            vm_no_verb_asks_for_a_module asks_for_no_module V4);
    };
}

/// One test a line. A row of its own: `each!(SUBJECT, "root"; matrix_add_v4 add V4);`
macro_rules! each {
    (@ [$subject:expr] $features:tt $name:ident $verb:ident $family:ident $(, $($rest:tt)+)?) => {
        $crate::support::matrix::each!(# [$subject] $features $name $verb $family);
        $($crate::support::matrix::each!(@ [$subject] $features $($rest)+);)?
    };
    (# [$subject:expr] [$($feature:expr),+] $name:ident $verb:ident $family:ident) => {
        #[test]
        fn $name() {
            testkit::require!($($feature),+);
            $crate::support::matrix::$verb(
                &$subject,
                $crate::support::matrix::Family::$family,
            );
        }
    };
    ($subject:expr, $($feature:expr),+; $($name:ident $verb:ident $family:ident),+ $(,)?) => {
        $crate::support::matrix::each!(@ [$subject] [$($feature),+] $($name $verb $family),+);
    };
}

#[allow(unused_imports, reason = "used where this machine's kernel lacks something")]
pub(crate) use vm_tests;
pub(crate) use {each, tests};

pub(crate) use super::kill::killed;
