//! Versions that do not match: each runtime with plugins of one release at ADD and of another at
//! DEL, as on a node that is upgraded, or downgraded, while containers run.

use std::path::PathBuf;

use testkit::real::{Containerd, Pod, Podman};
use testkit::reference::Release;
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot, Visit, feature, require};

use crate::support::wait_for_addresses;
use crate::system::{NETWRIGHT, address_of, at, gateway_of, install, left};

/// A list that all the releases know: podman's for a network, with shaping.
const LIST: &str = r#"{
  "cniVersion": "VERSION", "name": "skew",
  "plugins": [
    {"type": "bridge", "bridge": "skew0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "capabilities": {"ips": true},
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.90.0.0/24"}], [{"subnet": "fd90::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"},
    {"type": "tuning", "mtu": 1400}
  ]
}"#;

/// A set of plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plugins {
    Ours,
    /// Debian's Go plugins.
    Go(Release),
}

use Plugins::{Go, Ours};
use Release::{Installed, Unstable};

/// Every pairing of plugins at ADD and at DEL that includes ours.
const WITH_OURS: [[Plugins; 2]; 5] = [
    [Ours, Ours],
    [Go(Installed), Ours],
    [Ours, Go(Installed)],
    [Go(Unstable), Ours],
    [Ours, Go(Unstable)],
];

/// The pairings that do not include ours, for our runtime.
const WITHOUT_OURS: [[Plugins; 2]; 4] = [
    [Go(Installed), Go(Installed)],
    [Go(Unstable), Go(Unstable)],
    [Go(Installed), Go(Unstable)],
    [Go(Unstable), Go(Installed)],
];

impl Plugins {
    fn directory(self) -> String {
        let dir = match self {
            Ours => PathBuf::from("/opt/cni/bin"),
            Go(release) => release.directory(),
        };
        dir.to_str().unwrap().to_owned()
    }
}

/// A runtime and its one container, `web`, whose port 80 is published at 8080.
trait Runtime {
    /// Makes the runtime use these plugins.
    fn use_plugins(&mut self, plugins: Plugins);
    /// Makes the container.
    fn attach(&mut self) -> Visit;
    /// Removes the container, and returns the plugins' error.
    fn detach(&mut self) -> Result<(), String>;
}

/// A lab with our plugins that already routes, since the reference's plugins leave forwarding on.
fn lab(name: &str) -> Lab {
    let lab = Lab::with_processes(name);
    lab.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    install(&lab);
    lab
}

fn list(version: &str) -> String {
    LIST.replace("VERSION", version)
}

/// Attaches with one set of plugins and detaches with the other, for each pair. Only what the
/// runtime itself leaves may remain.
fn table(lab: &Lab, runtime: &mut dyn Runtime, pairs: &[[Plugins; 2]], leaves: &[&str]) {
    // What the reference's plugins leave for ever, their chains, exists before.
    for plugins in [Go(Installed), Go(Unstable), Ours] {
        if !pairs.iter().any(|pair| pair.contains(&plugins)) {
            continue;
        }
        runtime.use_plugins(plugins);
        drop(runtime.attach());
        wait_for_addresses(lab);
        runtime.detach().unwrap();
    }
    collect(lab);
    let before = Snapshot::take(lab);
    for [first, second] in pairs {
        let pair = format!("attached with {first:?}, detached with {second:?}");
        runtime.use_plugins(*first);
        let web = runtime.attach();
        serves(lab, &web);
        runtime.use_plugins(*second);
        // A running container keeps working under the other plugins.
        serves(lab, &web);
        drop(web);
        let mut detached = runtime.detach();
        if let Err(why) = &detached
            && *first == Ours
            && *second != Ours
            && why.contains("does not exist")
        {
            // Both releases' bridge mistakes iptables 1.8.9's message for a chain that does not
            // exist, and never did, for a failure, after it has deleted the link and released the
            // addresses. Every runtime repeats a DEL that failed, and the repeated one succeeds.
            detached = runtime.detach();
        }
        assert_eq!(detached, Ok(()), "{pair}");
        // Our GC collects what the reference cannot know of.
        if *first == Ours && *second != Ours {
            collect(lab);
        }
        assert_eq!(left(lab, &before, leaves), [""; 0], "{pair}");
    }
}

fn collect(lab: &Lab) {
    lab.sh(&format!("CNI_PATH=/opt/cni/bin {NETWRIGHT} gc --all"));
}

/// The container has its addresses and its published port.
fn serves(lab: &Lab, web: &Visit) {
    for family in ["inet", "inet6"] {
        assert_pings(lab, &address_of(web, "eth0", family).to_string());
    }
    let _server = Server::tcp(web, "[::]:80", "web");
    assert_eq!(assert_tcp(lab, "127.0.0.1:8080").server, "web");
    assert_eq!(assert_tcp(lab, &at(gateway_of(web, "-4"), 8080)).server, "web");
}

/// What libcni's cache leaves.
const LIBCNI: [&str; 2] = ["files: /var/lib/cni is new", "files: /var/lib/cni/results is new"];

fn write(lab: &Lab, path: &str, text: &str) {
    std::fs::write(lab.path(path), text).unwrap();
}

/// `netwright add` and `netwright del`.
struct Netwright<'lab> {
    lab: &'lab Lab,
    plugins: Plugins,
    container: Option<testkit::Container>,
}

impl Runtime for Netwright<'_> {
    fn use_plugins(&mut self, plugins: Plugins) {
        self.plugins = plugins;
    }

    fn attach(&mut self) -> Visit {
        let container = self.lab.container("web");
        let path = self.plugins.directory();
        self.lab.sh(&format!("CNI_PATH={path} {NETWRIGHT} add skew web --publish 8080:80"));
        self.container = Some(container);
        self.lab.visit("/run/netns/web")
    }

    fn detach(&mut self) -> Result<(), String> {
        let path = self.plugins.directory();
        let said = self.lab.try_sh(&format!("CNI_PATH={path} {NETWRIGHT} del skew web"));
        if !said.status.success() {
            return Err(String::from_utf8_lossy(&said.stderr).into_owned());
        }
        self.container = None;
        Ok(())
    }
}

fn our_runtime(version: &str, pairs: &[[Plugins; 2]]) {
    let lab = lab("skew-netwright");
    lab.sh("mkdir -p /etc/cni/net.d");
    write(&lab, "/etc/cni/net.d/skew.conflist", &list(version));
    let mut runtime = Netwright { lab: &lab, plugins: Ours, container: None };
    table(&lab, &mut runtime, pairs, &LIBCNI);
}

/// The newest version that every release knows.
#[test]
fn our_runtime_with_every_pairing_of_plugins() {
    require!("root", "go-plugins");
    let others = if feature::available("full") { &WITHOUT_OURS[..] } else { &[] };
    our_runtime("1.0.0", &[&WITH_OURS[..], others].concat());
}

/// The newest version, which 1.1.1 does not know.
#[test]
fn our_runtime_with_plugins_of_the_newest_version() {
    require!("full");
    require!("root", "go-plugins");
    our_runtime("1.1.0", &[[Ours, Ours], [Go(Unstable), Ours], [Ours, Go(Unstable)]]);
}

struct PodmanRuntime<'lab>(Podman<'lab>);

impl Runtime for PodmanRuntime<'_> {
    fn use_plugins(&mut self, plugins: Plugins) {
        self.0.use_plugins(&plugins.directory());
    }

    fn attach(&mut self) -> Visit {
        self.0.start("web", &["--publish", "8080:80", "--network", "skew"])
    }

    fn detach(&mut self) -> Result<(), String> {
        // podman warns of a DEL that failed and goes on; what it does not remove would show.
        self.0.remove(&["web"]);
        Ok(())
    }
}

fn on_podman(version: &str, pairs: &[[Plugins; 2]]) {
    let lab = lab("skew-podman");
    let podman = Podman::new(&lab, "/opt/cni/bin");
    podman.write_network("skew", &list(version));
    table(&lab, &mut PodmanRuntime(podman), pairs, &Podman::LEAVES);
}

#[test]
fn podman_with_every_pairing_of_ours_and_others() {
    require!("full");
    require!("root", "go-plugins", "program:podman", "program:crun", "file:/usr/bin/busybox");
    on_podman("1.0.0", &WITH_OURS);
}

/// The version of the lists that podman writes itself.
#[test]
fn podman_with_every_pairing_in_its_own_version() {
    require!("full");
    require!("root", "go-plugins", "program:podman", "program:crun", "file:/usr/bin/busybox");
    on_podman("0.4.0", &WITH_OURS);
}

struct ContainerdRuntime<'lab> {
    containerd: Containerd<'lab>,
    pod: Option<String>,
}

impl Runtime for ContainerdRuntime<'_> {
    fn use_plugins(&mut self, plugins: Plugins) {
        self.containerd.use_plugins(&plugins.directory());
    }

    fn attach(&mut self) -> Visit {
        let id = self.containerd.run_pod(&Pod::new("web").tcp(8080, 80));
        let netns = self.containerd.netns(&id);
        self.pod = Some(id);
        netns
    }

    fn detach(&mut self) -> Result<(), String> {
        let id = self.pod.as_deref().unwrap();
        self.containerd.stop_pod(id)?;
        self.containerd.remove_pod(id)
    }
}

#[test]
fn containerd_with_every_pairing_of_ours_and_others() {
    require!(
        "root",
        "go-plugins",
        "program:containerd",
        "program:runc",
        "program:curl",
        "file:/usr/bin/busybox"
    );
    let lab = lab("skew-containerd");
    let containerd = Containerd::new(&lab, "/opt/cni/bin", &list("1.0.0"));
    let mut runtime = ContainerdRuntime { containerd, pod: None };
    // Each pod takes seconds: every run does what an upgrade and a downgrade do.
    let pairs = if feature::available("full") { &WITH_OURS[..] } else { &WITH_OURS[1..3] };
    table(&lab, &mut runtime, pairs, &Containerd::LEAVES);
}
