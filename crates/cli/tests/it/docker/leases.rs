//! Addresses from DHCP for Docker's containers: the daemon renews a lease where Docker has put the
//! interface.

use std::fs;

use serde_json::json;
use testkit::real::{Docker, Engine};
use testkit::traffic::assert_pings;
use testkit::{Lab, Place, RunningProgram, require, wait_until};

use super::journals::{create_endpoint, done, of_endpoint};
use super::life::needs_docker;
use super::support::{Driver, write_network};
use crate::system::{address_of, install, netwrightd};

const LEASED: &str = r#"{"cniVersion": "1.0.0", "name": "leased", "plugins": [
    {"type": "bridge", "bridge": "br0", "ipam": {"type": "dhcp"}}]}"#;

/// A host with a DHCP server on the bridge `br0`, and the daemon. Leases are renewed after three
/// seconds.
struct LeaseHost {
    lab: Lab,
    _server: RunningProgram,
    _daemon: RunningProgram,
}

impl LeaseHost {
    fn new(name: &str) -> Self {
        let lab = Lab::with_processes(name);
        install(&lab);
        write_network(&lab, "leased", LEASED);
        lab.sh("ip link add br0 address 02:00:00:00:00:01 type bridge && ip link set br0 up && \
             ip link add k0 type veth peer name k1 && ip link set k0 master br0 up && \
             ip link set k1 up && ip addr add 192.0.2.1/24 dev br0 && mkdir -p /run/cni");
        let [config, leases, log] =
            ["dnsmasq.conf", "leases", "dnsmasq.log"].map(|name| lab.dir().join(name));
        fs::write(&config, format!(
            "interface=br0\nbind-interfaces\nexcept-interface=lo\nport=0\nno-ping\nlog-dhcp\ndhcp-authoritative\n\
             dhcp-range=192.0.2.100,192.0.2.150,255.255.255.0,2m\ndhcp-option=option:router,192.0.2.1\n\
             dhcp-option-force=option:T1,3\ndhcp-leasefile={}\nlog-facility={}\nuser=root\npid-file=\n",
            leases.display(),
            log.display(),
        ))
        .unwrap();
        let server = lab.start("dnsmasq", &["-k", "-C", config.to_str().unwrap()]);
        let daemon = lab.start(netwrightd().to_str().unwrap(), &["dhcp"]);
        let leasing = LeaseHost { lab, _server: server, _daemon: daemon };
        wait_until("dnsmasq to start", || 1 <= leasing.logged("DHCP, IP range"));
        wait_until("the daemon to listen", || {
            leasing.lab.try_sh("test -S /run/cni/dhcp.sock").status.success()
        });
        leasing
    }

    /// How often the server's log has these words.
    fn logged(&self, words: &str) -> usize {
        let log = fs::read_to_string(self.lab.dir().join("dnsmasq.log"));
        log.unwrap_or_default().matches(words).count()
    }

    /// Waits until the lease is renewed twice, which must happen from the container.
    fn assert_renewed(&self, sandbox: &str) {
        let before = self.logged("DHCPACK(br0)");
        wait_until("two renewals", || before + 2 <= self.logged("DHCPACK(br0)"));
        assert_eq!(self.logged("DHCPDISCOVER(br0)"), 1, "it was never lost");
        assert_eq!(self.logged("DHCPRELEASE(br0)"), 0);
        let kept = self.lab.sh("cat /var/lib/netwright/dhcp/leases/*");
        assert!(kept.contains(sandbox), "{kept}");
    }

    fn assert_given_back(&self) {
        wait_until("the lease to be given back", || {
            self.logged("DHCPRELEASE(br0)") == 1
                && self.lab.sh("ls /var/lib/netwright/dhcp/leases").is_empty()
        });
    }
}

#[test]
fn a_lease_is_renewed_where_docker_has_put_the_interface() {
    require!("root", "program:dnsmasq");
    let leasing = LeaseHost::new("docker-lease");
    let lab = &leasing.lab;
    lab.enter(|| {
        let _driver = Driver::start(lab);
        let network = json!({
            "NetworkID": "one",
            "Options": {"com.docker.network.generic": {"conflist": "leased"}},
            "IPv4Data": [{"AddressSpace": "null", "Pool": "0.0.0.0/0"}],
            "IPv6Data": [],
        });
        done("NetworkDriver.CreateNetwork", &network);
        let made = create_endpoint("one", "e1", "").unwrap();
        let address = made["Interface"]["Address"].as_str().unwrap();
        let c1 = lab.container("c1");
        let mut join = of_endpoint("one", "e1");
        join["SandboxKey"] = json!("/run/netns/c1");
        let joined = done("NetworkDriver.Join", &join);
        let link = joined["InterfaceName"]["SrcName"].as_str().unwrap();
        lab.sh(&format!("ip link set {link} netns c1 name eth1"));
        c1.sh(&format!("ip addr add {address} dev eth1 && ip link set eth1 up"));
        leasing.assert_renewed("/run/netns/c1");
        assert_pings(&c1, "192.0.2.1");
        done("NetworkDriver.Leave", &of_endpoint("one", "e1"));
        done("NetworkDriver.DeleteEndpoint", &of_endpoint("one", "e1"));
        leasing.assert_given_back();
    });
}

/// The same with a real engine, which says where the namespace is.
#[test]
fn a_containers_lease_is_renewed() {
    require!("full", "program:dnsmasq");
    needs_docker!();
    renewed(Engine::Installed);
}

pub(super) fn renewed(engine: Engine) {
    let leasing = LeaseHost::new("docker-leased");
    let lab = &leasing.lab;
    let _driver = Driver::start(lab);
    let docker = Docker::of(lab, engine, &[]);
    docker.create_network("--opt conflist=leased --ipam-driver null leased");
    let web = docker.start_container("web", &["--network", "leased"]);
    let sandbox = docker.inspect("web")["NetworkSettings"]["SandboxKey"].clone();
    let address = address_of(&web, "eth0", "inet").to_string();
    leasing.assert_renewed(sandbox.as_str().unwrap());
    assert_eq!(address_of(&web, "eth0", "inet").to_string(), address);
    assert_pings(&web, "192.0.2.1");
    drop(web);
    docker.remove(&["web"]);
    leasing.assert_given_back();
    docker.run(&["network", "rm", "leased"]);
}
