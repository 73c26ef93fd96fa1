//! `dhcp`, against dnsmasq and kea.

use serde_json::json;
use testkit::{Place, traffic};

use crate::rig::{Rig, address, wait_for};

const ROUTER: &str = "dhcp-option=option:router,192.0.2.1";

#[test]
fn add_gives_a_lease_and_del_gives_it_back() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-lease");
    let server = rig.dnsmasq(&format!(
        "{ROUTER}\ndhcp-option=option:dns-server,192.0.2.53\ndomain=example.org\ndhcp-option=option:mtu,1400\n\
         dhcp-option=option:domain-search,a.example.org,b.example.org"
    ));
    let _daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    let leased = address(&added);
    assert_eq!(server.leased(), [leased.clone()]);
    assert_eq!(added["ips"][0]["gateway"], "192.0.2.1");
    assert_eq!(added["routes"], json!([{ "dst": "0.0.0.0/0", "gw": "192.0.2.1", "mtu": 1400 }]));
    assert_eq!(
        added["dns"],
        json!({ "nameservers": ["192.0.2.53"], "domain": "example.org", "search": ["a.example.org", "b.example.org"] })
    );
    traffic::assert_pings(&c1, "192.0.2.1");
    rig.bridge("CHECK").to(&c1).prev(&added).call().silent();
    rig.bridge("DEL").to(&c1).prev(&added).call().silent();
    wait_for("the lease to be given back", || server.leased().is_empty());
    rig.bridge("DEL").to(&c1).prev(&added).call().silent();
    assert!(rig.kept().is_empty());
    assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
}
