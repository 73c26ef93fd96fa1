//! `netwright routes probe` finds what is wrong between nodes.

use testkit::Place as _;

use super::Fabric;

#[test]
fn vm_a_probe_finds_what_is_wrong_between_nodes() {
    testkit::require!("root", "vxlan", "vm-full", "program:nft");
    let mut fabric = Fabric::new("routing-probe", &[1, 1]);
    fabric.start();
    fabric.assert_all_reach_all();
    let (sound, said) = fabric.probe(0, &[]);
    assert!(sound, "{said}");
    assert_eq!(said.matches("  sound\n").count(), 2, "{said}");
    for line in ["b     vxlan   10.244.2.0", "b     vxlan6  fd00:244:2::", "1450", "1430"] {
        assert!(said.contains(line), "{said}");
    }
    let (sound, said) = fabric.probe(0, &["b", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(sound && rows[0]["probe"]["udp"] == true, "{said}");
    let (sound, said) = fabric.probe(0, &["nobody"]);
    assert!(!sound && said.contains("there is no path to a node \"nobody\""), "{said}");

    // A link in between has a smaller MTU. A router may fragment a tunnel's packets over IPv4 for
    // it.
    let n2 = |mtu: u32| fabric.lab.sh(&format!("ip link set n2 mtu {mtu}"));
    n2(1400);
    let (sound, said) = fabric.probe(0, &[]);
    assert!(!sound && said.contains("1430 bytes are said to fit, and 13"), "{said}");
    n2(1500);
    // The network drops UDP, but no answers to echo requests.
    let far = &fabric.nodes[1].host;
    far.sh("nft 'table inet t { chain c { type filter hook input priority 0; udp dport 33434 drop; }; }'");
    let (sound, said) = fabric.probe(0, &[]);
    assert!(!sound && said.contains("a packet filter may drop it"), "{said}");
    // Checksums are wrong, as behind some network cards: packets with a checksum are dropped.
    far.sh("nft delete table inet t");
    far.sh("nft 'table ip t { chain c { type filter hook input priority 0; udp dport 33434 udp checksum != 0 drop; }; }'");
    let (sound, said) = fabric.probe(0, &[]);
    assert!(!sound && said.contains("tx-checksum-ip-generic off"), "{said}");
    far.sh("nft delete table ip t");
    // The network drops the tunnels' packets.
    fabric.lab.sh("nft 'table inet t { chain c { type filter hook forward priority 0; udp dport 8472 drop; }; }'");
    let (sound, said) = fabric.probe(0, &[]);
    assert!(!sound && said.contains("nothing by the tunnel"), "{said}");
    assert!(said.contains("2 of 2 paths have a fault"), "{said}");
    // It does not drop those to another port.
    fabric.flags = ["--vxlan-port", "8473"].map(str::to_owned).to_vec();
    for node in 0..2 {
        assert_eq!(fabric.nodes[node].service.take().unwrap().stop(), Some(0));
        fabric.start_on(node);
    }
    fabric.assert_all_reach_all();
    let (sound, said) = fabric.probe(0, &[]);
    assert!(sound, "{said}");
}
