//! The services that look after attachments: repair restores what is changed, collection removes
//! what is left behind.

mod collect;
mod confined;
mod damaged;
mod dockers;
mod flows;
mod network_manager;
mod ovs;
mod silent;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use cni::NetworkList;
use cni_invoke::{Exec, MixedExecutor};
use cni_runtime::{Attachment, Cache, Runtime};
use plugins::Builtins;
use serde_json::{Value, json};
use testkit::{Container, Place, Snapshot};

use crate::rig::{Daemon, wait_for};
use crate::support::Node;

/// A node whose containers a runtime attaches, with its cache.
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) cache: PathBuf,
    runtime: Runtime<'static>,
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        let node = Node::new(name);
        let cache = node.dir("cache");
        let builtins = Builtins { roots: node.roots.clone(), build: "test" };
        let exec = Exec::new(std::env::vars_os());
        let mixed = MixedExecutor::new(builtins, exec).unwrap();
        let runtime = Runtime::new([node.bin()], Arc::new(mixed)).with_cache(Cache::new(&cache));
        Host { node, cache, runtime }
    }

    /// A bridge with everything that depends on it.
    pub(crate) fn list(&self, port: u16) -> NetworkList {
        let ipam = json!({
            "type": "host-local", "dataDir": self.node.dir("ipam"),
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        });
        let ports = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
        let list = json!({ "cniVersion": "1.1.0", "name": "n", "plugins": [
            { "type": "bridge", "isDefaultGateway": true, "ipMasq": true, "ipam": ipam },
            { "type": "portmap", "runtimeConfig": { "portMappings": ports } },
            { "type": "firewall", "ingressPolicy": "same-bridge" },
            { "type": "tuning", "dataDir": self.node.dir("tuning"),
              "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } },
        ]});
        NetworkList::parse(&serde_json::to_vec(&list).unwrap()).unwrap()
    }

    pub(crate) fn attachment(container: &Container) -> Attachment {
        let id = container.name().parse().unwrap();
        Attachment::new(id, "eth0".parse().unwrap(), container.netns().to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn add(&self, container: &Container, list: &NetworkList) -> Value {
        let attachment = Host::attachment(container);
        let added = self.node.lab.enter(|| self.runtime.add_list(list, &attachment, None));
        let result = added.unwrap_or_else(|error| panic!("{error}")).result;
        serde_json::from_slice(&result.write(cni::Version::CURRENT).unwrap()).unwrap()
    }

    #[track_caller]
    pub(crate) fn del(&self, container: &Container, list: &NetworkList) {
        let attachment = Host::attachment(container);
        let deleted = self.node.lab.enter(|| self.runtime.del_list(list, &attachment, None));
        deleted.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Starts a service, which calls this test's plugins in its own process.
    pub(crate) fn daemon(&self, service: &str, flags: &[&str]) -> Daemon {
        let mut command = self.node.lab.command(env!("CARGO_BIN_EXE_netwrightd"));
        self.flags(&mut command, service, flags);
        Daemon::start(command, &self.node.lab.dir().join(format!("{service}.log")))
    }

    /// Adds a service's arguments and environment.
    pub(crate) fn flags(&self, command: &mut std::process::Command, service: &str, flags: &[&str]) {
        self.flags_in(self.node.bin().to_str().unwrap(), command, service, flags);
    }

    /// Does the same with another folder of plugins.
    pub(crate) fn flags_in(
        &self,
        path: &str,
        command: &mut std::process::Command,
        service: &str,
        flags: &[&str],
    ) {
        let own = std::env::current_exe().unwrap();
        command
            .args([service, "--cache", self.cache.to_str().unwrap()])
            .args(["--path", path])
            .args(["--netwright", own.to_str().unwrap()])
            .args(flags)
            .env("NETWRIGHT_RUN_DIR", &self.node.roots.run)
            .env("NETWRIGHT_STATE_DIR", &self.node.roots.lib);
    }
}

/// What our plugins made without being installed is not known to those in the folders: only ours
/// repair and remove it.
#[test]
fn what_ours_recorded_is_kept_by_ours() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let host = Host::new("repair-recorded");
    let lab = &host.node.lab;
    let daemon = |service: &str, flags: &[&str]| {
        let mut command = lab.command(env!("CARGO_BIN_EXE_netwrightd"));
        host.flags_in("/usr/lib/cni", &mut command, service, flags);
        Daemon::start(command, &lab.dir().join(format!("{service}.log")))
    };
    let sound = lab.container("sound");
    host.add(&sound, &host.list(8081));
    let before = Snapshot::take(lab);
    let c1 = lab.container("c1");
    host.add(&c1, &host.list(8082));
    let repair = daemon("repair", &[]);
    ready(&repair);
    c1.sh("ip route del default");
    wait_for("the route", || c1.sh("ip route").contains("default via 10.1.0.1"));
    assert_eq!(repair.stop(), Some(0));
    drop(c1);
    let collect = daemon("collect", &["--grace", "0", "--once", "--act"]);
    collect.ended();
    before.assert_same(&Snapshot::take(lab));
    host.del(&sound, &host.list(8081));
}

/// Waits until `netwrightd repair` has had its first look.
fn ready(daemon: &Daemon) {
    wait_for("the service to be ready", || daemon.log().contains("ready"));
}

/// Returns once `netwrightd repair` has looked at everything since the call: twice, as a look may
/// be running already.
fn after_looks(sound: &Container) {
    for _ in 0..2 {
        sound.sh("ip route del default");
        wait_for("a look", || sound.sh("ip route").contains("default via 10.1.0.1"));
    }
}

/// Each look has every plugin checked, and that may have its address plugin checked. The latter
/// logged a line each time: thousands a minute on a node with many pods.
#[test]
fn a_look_that_finds_nothing_logs_nothing() {
    testkit::require!("root");
    let host = Host::new("repair-silent-look");
    let (c1, list) = (host.node.container("c1"), host.list(8080));
    host.add(&c1, &list);
    // Without its record the plugin only checks, as inside of another plugin.
    let owners = host.node.roots.run.join("owners");
    host.node.sh(&format!("cp -r {0} {0}.kept && rm {0}/*/bridge.json", owners.display()));
    let daemon = host.daemon("repair", &["--interval", "100ms"]);
    let done = || -> Vec<String> {
        daemon.log().lines().filter(|line| line.contains(" done")).map(str::to_owned).collect()
    };
    wait_for("some looks", || 20 < done().len());
    let said: Vec<String> = done().into_iter().filter(|line| !line.contains("DEBUG")).collect();
    assert!(said.is_empty(), "{said:#?}");
    drop(daemon);
    host.node.sh(&format!("rm -r {0} && mv {0}.kept {0}", owners.display()));
    host.del(&c1, &list);
}
