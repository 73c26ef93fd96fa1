//! The service `dhcp`, with a real server.

use std::fs;

use serde_json::{Value, json};
use testkit::{Lab, Place, traffic, wait_until};

use super::{Host, call};

const UNIT: &str = "netwrightd@dhcp.service";

/// Calls a plugin as a runtime does.
#[track_caller]
fn bridge(lab: &Lab, verb: &str, prev: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "dhcp", "families": ["v4", "v6"] },
    });
    if !prev.is_null() {
        config["prevResult"] = prev.clone();
    }
    call(lab, "bridge", verb, &[], &config)
}

#[test]
fn leases_are_kept_within_the_unit() {
    testkit::require!("root", "program:dnsmasq", "file:/lib/systemd/systemd");
    let lab = &Lab::with_systemd("unit-dhcp");
    let host = Host::new(lab);
    lab.sh(
        "ip link add br0 address 02:00:00:00:00:01 type bridge && ip link set br0 up && \
         ip link add k0 type veth peer name k1 && ip link set k0 master br0 up && ip link set k1 up && \
         ip addr add 192.0.2.1/24 dev br0 && ip addr add 2001:db8::1/64 dev br0 nodad",
    );
    let log = lab.dir().join("dnsmasq.log");
    let config = lab.dir().join("dnsmasq.conf");
    let leases = lab.dir().join("leases");
    fs::write(&config, format!(
        "interface=br0\nbind-interfaces\nexcept-interface=lo\nport=0\nno-ping\nlog-dhcp\ndhcp-authoritative\n\
         dhcp-range=192.0.2.100,192.0.2.150,255.255.255.0,2m\ndhcp-range=2001:db8::100,2001:db8::1ff,64,2m\n\
         dhcp-option=option:router,192.0.2.1\ndhcp-option-force=option:T1,3\n\
         dhcp-leasefile={}\nlog-facility={}\nuser=root\npid-file=\n",
        leases.display(),
        log.display(),
    ))
    .unwrap();
    let logged = |words: &str| fs::read_to_string(&log).unwrap_or_default().matches(words).count();
    let _server = lab.start("dnsmasq", &["-k", "-C", config.to_str().unwrap()]);
    wait_until("dnsmasq to start", || 1 <= logged("DHCPv6, IP range"));

    // The first request starts it.
    host.systemctl("start netwrightd@dhcp.socket");
    let c1 = lab.container("c1");
    let added = bridge(lab, "ADD", &Value::Null);
    assert_eq!(added["ips"].as_array().unwrap().len(), 2, "{added}");
    traffic::assert_pings(&c1, "192.0.2.1");
    let renewed = |times: usize| {
        let before = logged("DHCPACK(br0)");
        wait_until("a renewal", || before + times <= logged("DHCPACK(br0)"));
    };
    renewed(2);
    // It reads its record again.
    host.systemctl(&format!("restart {UNIT}"));
    renewed(1);
    host.systemctl(&format!("kill --signal KILL {UNIT}"));
    renewed(1);
    bridge(lab, "CHECK", &added);
    assert_eq!(logged("DHCPDISCOVER(br0)"), 1, "it was never lost");
    host.assert_confined(UNIT);
    bridge(lab, "DEL", &added);
    wait_until("the leases to be given back", || {
        logged("DHCPRELEASE(br0)") == 2 && lab.sh("ls /var/lib/netwright/dhcp/leases").is_empty()
    });
    host.assert_confined(UNIT);
}
