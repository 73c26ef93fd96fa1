//! Invalid annotations and definitions, and the sentence that refuses each.

use std::collections::BTreeMap;

use expect_test::expect;
use netwright_npwg::annotation::{DEFAULT_NETWORK, NETWORKS, PodRequest};
use netwright_npwg::definition::Definition;

/// A pod's annotation, and the error that its author reads.
fn refused(key: &str, annotations: &[&str]) -> String {
    let mut text = String::new();
    for annotation in annotations {
        let annotations = BTreeMap::from([(key.to_owned(), (*annotation).to_owned())]);
        let error = PodRequest::read(&annotations, "default", "kube-system", "eth0").unwrap_err();
        let prefix = format!("annotation {key}: ");
        let sentence = error.to_string();
        let sentence = sentence.strip_prefix(&prefix).expect("it says which annotation");
        text.push_str(&format!("{annotation}\n    {sentence}\n"));
    }
    text
}

#[test]
fn names_that_are_none() {
    let found = refused(
        NETWORKS,
        &[
            "net-a,,net-b",
            "net-a,",
            "a/b/c",
            "net@x@y",
            "net@",
            "/net",
            "ns/",
            "Net-A",
            "net_a",
            "-net",
            "net.a",
            "net a",
            "NS/net",
            "net@averyveryverylongname",
            "net@a/b",
            "net@a b",
            "net@..",
            "a@x0,b@x0",
            "a@eth0",
        ],
    );
    expect![[r#"
        net-a,,net-b
            network 2 has no name: there is a comma too many
        net-a,
            network 2 has no name: there is a comma too many
        a/b/c
            network 1, "a/b/c", is not [namespace/]name[@interface]
        net@x@y
            network 1, "net@x@y", is not [namespace/]name[@interface]
        net@
            network 1, "net@", is not [namespace/]name[@interface]
        /net
            network 1, "/net", is not [namespace/]name[@interface]
        ns/
            network 1, "ns/", is not [namespace/]name[@interface]
        Net-A
            network 1 ("Net-A"): "name": "Net-A" cannot be the name of an object: small letters, digits and inner hyphens
        net_a
            network 1 ("net_a"): "name": "net_a" cannot be the name of an object: small letters, digits and inner hyphens
        -net
            network 1 ("-net"): "name": "-net" cannot be the name of an object: small letters, digits and inner hyphens
        net.a
            network 1 ("net.a"): "name": "net.a" cannot be the name of an object: small letters, digits and inner hyphens
        net a
            network 1 ("net a"): "name": "net a" cannot be the name of an object: small letters, digits and inner hyphens
        NS/net
            network 1 ("net"): "namespace": "NS" cannot be the name of an object: small letters, digits and inner hyphens
        net@averyveryverylongname
            network 1 ("net"): "interface": "averyveryverylongname" cannot be the name of an interface: should be less than 16 characters
        net@a/b
            network 1, "net@a/b", is not [namespace/]name[@interface]
        net@a b
            network 1 ("net"): "interface": "a b" cannot be the name of an interface: contains / or : or whitespace characters
        net@..
            network 1 ("net"): "interface": ".." cannot be the name of an interface: is . or ..
        a@x0,b@x0
            networks 1 and 2 both ask for interface x0
        a@eth0
            network 1 asks for interface eth0, which is the default network's
    "#]].assert_eq(&found);
}

#[test]
fn json_that_is_no_list_of_networks() {
    let found = refused(
        NETWORKS,
        &[
            r#"[{"name": "a"}"#,
            r#"{"name": "a"}"#,
            r#""net-a""#,
            r#"["net-a"]"#,
            r#"[null]"#,
            r#"[{}]"#,
            r#"[{"name": "a"}, {"name": ""}]"#,
            r#"[{"name": 5}]"#,
            r#"[{"name": "ns/a"}]"#,
            r#"[{"name": "A"}]"#,
            r#"[{"name": "a", "namespace": "n.s"}]"#,
            r#"[{"name": "a", "interface": 7}]"#,
            r#"[{"name": "a", "interface": "0123456789abcdef"}]"#,
            r#"[{"name": "a", "ips": "10.0.0.1"}]"#,
            r#"[{"name": "a", "ips": []}]"#,
            r#"[{"name": "a", "ips": ["10.0.0.256"]}]"#,
            r#"[{"name": "a", "ips": ["10.0.0.1/33"]}]"#,
            r#"[{"name": "a", "ips": ["10.0.0.1", "10.0.0.1/24"]}]"#,
            r#"[{"name": "a", "mac": "02:00:00:00:00"}]"#,
            r#"[{"name": "a", "mac": "02:00:00:00:00:gg"}]"#,
            r#"[{"name": "a", "mac": "01:00:5e:00:00:01"}]"#,
            r#"[{"name": "a", "mac": "00:00:00:00:00:00"}]"#,
            r#"[{"name": "a", "infiniband-guid": "02:00:00:00:00:01"}]"#,
            r#"[{"name": "a", "cni-args": ["x"]}]"#,
            r#"[{"name": "a", "portMappings": {"hostPort": 80}}]"#,
            r#"[{"name": "a", "portMappings": [{"hostPort": 80}]}]"#,
            r#"[{"name": "a", "portMappings": [{"hostPort": 65536, "containerPort": 80}]}]"#,
            r#"[{"name": "a", "portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]}]"#,
            r#"[{"name": "a", "portMappings": [{"hostPort": 80, "containerPort": 80, "hostIP": "here"}]}]"#,
            r#"[{"name": "a", "bandwidth": {"ingressRate": "10M"}}]"#,
            r#"[{"name": "a", "bandwidth": {"egressRate": -1}}]"#,
            r#"[{"name": "a", "default-route": "10.0.0.1"}]"#,
            r#"[{"name": "a", "default-route": ["10.0.0.0/8"]}]"#,
            r#"[{"name": "a", "default-route": ["0.0.0.0"]}]"#,
            r#"[{"name": "a", "default-route": ["10.0.0.1", "fd00::1", "10.0.0.2"]}]"#,
            r#"[{"name": "a", "default-route": ["10.0.0.1"]}, {"name": "b"}, {"name": "c", "default-route": []}]"#,
            r#"[{"name": "a", "ips": ["10.0.0.1"], "ipam-claim-reference": "c"}]"#,
            r#"[{"name": "a", "ipam-claim-reference": "C"}]"#,
            r#"[{"name": "a", "interface": "x0"}, {"name": "b", "interface": "x0"}]"#,
        ],
    );
    expect![[r#"
        [{"name": "a"}
            neither a list of names nor JSON: it ends before it is complete at line 1 column 14
        {"name": "a"}
            JSON, but not a list: write [ and ] around it
        "net-a"
            JSON, but not a list: write [ and ] around it
        ["net-a"]
            network 1 is not an object: write {"name": …}
        [null]
            network 1 is not an object: write {"name": …}
        [{}]
            network 1: needs "name": that of a NetworkAttachmentDefinition
        [{"name": "a"}, {"name": ""}]
            network 2: needs "name": that of a NetworkAttachmentDefinition
        [{"name": 5}]
            network 1: "name" must be a text, not 5
        [{"name": "ns/a"}]
            network 1 ("ns/a"): "name" holds a slash: the namespace has a key of its own, "namespace"
        [{"name": "A"}]
            network 1 ("A"): "name": "A" cannot be the name of an object: small letters, digits and inner hyphens
        [{"name": "a", "namespace": "n.s"}]
            network 1 ("a"): "namespace": "n.s" cannot be the name of an object: small letters, digits and inner hyphens
        [{"name": "a", "interface": 7}]
            network 1 ("a"): "interface" must be a text, not 7
        [{"name": "a", "interface": "0123456789abcdef"}]
            network 1 ("a"): "interface": "0123456789abcdef" cannot be the name of an interface: should be less than 16 characters
        [{"name": "a", "ips": "10.0.0.1"}]
            network 1 ("a"): "ips" must be a list of texts, not "10.0.0.1"
        [{"name": "a", "ips": []}]
            network 1 ("a"): "ips" is an empty list: leave it out
        [{"name": "a", "ips": ["10.0.0.256"]}]
            network 1 ("a"): "ips": "10.0.0.256" is neither an address nor an address with a prefix length
        [{"name": "a", "ips": ["10.0.0.1/33"]}]
            network 1 ("a"): "ips": "10.0.0.1/33" is neither an address nor an address with a prefix length
        [{"name": "a", "ips": ["10.0.0.1", "10.0.0.1/24"]}]
            network 1 ("a"): "ips": 10.0.0.1 is there twice
        [{"name": "a", "mac": "02:00:00:00:00"}]
            network 1 ("a"): "mac": "02:00:00:00:00" is not a hardware address of 6 bytes, or of 20 for InfiniBand, in hexadecimal
        [{"name": "a", "mac": "02:00:00:00:00:gg"}]
            network 1 ("a"): "mac": "02:00:00:00:00:gg" is not a hardware address of 6 bytes, or of 20 for InfiniBand, in hexadecimal
        [{"name": "a", "mac": "01:00:5e:00:00:01"}]
            network 1 ("a"): "mac": "01:00:5e:00:00:01" cannot be an interface's own: it is zero, or a group's
        [{"name": "a", "mac": "00:00:00:00:00:00"}]
            network 1 ("a"): "mac": "00:00:00:00:00:00" cannot be an interface's own: it is zero, or a group's
        [{"name": "a", "infiniband-guid": "02:00:00:00:00:01"}]
            network 1 ("a"): "infiniband-guid": "02:00:00:00:00:01" is not a GUID of 8 bytes in hexadecimal
        [{"name": "a", "cni-args": ["x"]}]
            network 1 ("a"): "cni-args" must be an object, not ["x"]
        [{"name": "a", "portMappings": {"hostPort": 80}}]
            network 1 ("a"): "portMappings" must be a list of objects with "hostPort" and "containerPort", not {"hostPort": 80}
        [{"name": "a", "portMappings": [{"hostPort": 80}]}]
            network 1 ("a"): "portMappings": "containerPort" must be 1 to 65535, not 0
        [{"name": "a", "portMappings": [{"hostPort": 65536, "containerPort": 80}]}]
            network 1 ("a"): "portMappings": "hostPort" must be 1 to 65535, not 65536
        [{"name": "a", "portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]}]
            network 1 ("a"): "portMappings": "protocol" must be tcp, udp or sctp, not "icmp"
        [{"name": "a", "portMappings": [{"hostPort": 80, "containerPort": 80, "hostIP": "here"}]}]
            network 1 ("a"): "portMappings": "hostIP": "here" is not an address
        [{"name": "a", "bandwidth": {"ingressRate": "10M"}}]
            network 1 ("a"): "bandwidth" must be an object of whole numbers, not {"ingressRate": "10M"}
        [{"name": "a", "bandwidth": {"egressRate": -1}}]
            network 1 ("a"): "bandwidth" must be an object of whole numbers, not {"egressRate": -1}
        [{"name": "a", "default-route": "10.0.0.1"}]
            network 1 ("a"): "default-route" must be a list of addresses, not "10.0.0.1"
        [{"name": "a", "default-route": ["10.0.0.0/8"]}]
            network 1 ("a"): "default-route": "10.0.0.0/8" is not the address of a gateway
        [{"name": "a", "default-route": ["0.0.0.0"]}]
            network 1 ("a"): "default-route": "0.0.0.0" is not the address of a gateway
        [{"name": "a", "default-route": ["10.0.0.1", "fd00::1", "10.0.0.2"]}]
            network 1 ("a"): "default-route": 10.0.0.1 and 10.0.0.2 are of one family: a default route leads through one gateway
        [{"name": "a", "default-route": ["10.0.0.1"]}, {"name": "b"}, {"name": "c", "default-route": []}]
            networks 1 and 3 both ask for the default route: it can be on one network only
        [{"name": "a", "ips": ["10.0.0.1"], "ipam-claim-reference": "c"}]
            network 1 ("a"): "ips" and "ipam-claim-reference" exclude each other: the claim has the addresses
        [{"name": "a", "ipam-claim-reference": "C"}]
            network 1 ("a"): "ipam-claim-reference": "C" cannot be the name of an object: small letters, digits and inner hyphens
        [{"name": "a", "interface": "x0"}, {"name": "b", "interface": "x0"}]
            networks 1 and 2 both ask for interface x0
    "#]].assert_eq(&found);
}

#[test]
fn default_networks_that_are_not_one() {
    let found =
        refused(DEFAULT_NETWORK, &["", "a,b", "[]", r#"[{"name": "a"}, {"name": "b"}]"#, "a/b/c"]);
    expect![[r#"

            names 0 networks, must name one
        a,b
            names 2 networks, must name one
        []
            names 0 networks, must name one
        [{"name": "a"}, {"name": "b"}]
            names 2 networks, must name one
        a/b/c
            network 1, "a/b/c", is not [namespace/]name[@interface]
    "#]]
    .assert_eq(&found);
}

#[test]
fn more_networks_than_anybody_attaches() {
    let many = vec!["a"; 300].join(",");
    let annotations = BTreeMap::from([(NETWORKS.to_owned(), many)]);
    let error = PodRequest::read(&annotations, "default", "kube-system", "eth0").unwrap_err();
    expect!["annotation k8s.v1.cni.cncf.io/networks: 300 networks, more than 256"]
        .assert_eq(&error.to_string());
}

#[test]
fn definitions_that_define_nothing() {
    let mut found = String::new();
    for (name, config) in [
        ("Net", "{}"),
        ("net", "{"),
        ("net", "tea"),
        ("net", "[]"),
        ("net", "null"),
        ("net", "{}"),
        ("net", r#"{"type": ""}"#),
        ("net", r#"{"type": 5}"#),
        ("net", r#"{"type": "../../bin/sh"}"#),
        ("net", r#"{"type": "bridge", "plugins": []}"#),
        ("net", r#"{"plugins": []}"#),
        ("net", r#"{"plugins": {}}"#),
        ("net", r#"{"plugins": ["bridge"]}"#),
        ("net", r#"{"plugins": [{"bridge": "br0"}]}"#),
        ("net", r#"{"plugins": [{"type": "bridge", "capabilities": ["ips"]}]}"#),
        ("net", r#"{"plugins": [{"type": "bridge", "ipam": "host-local"}]}"#),
        ("net", r#"{"name": 5, "plugins": [{"type": "bridge"}]}"#),
        ("net", r#"{"name": "a b", "type": "bridge"}"#),
        ("net", r#"{"cniVersion": 1, "type": "bridge"}"#),
        ("net", r#"{"cniVersions": "1.0.0", "plugins": [{"type": "bridge"}]}"#),
        ("net", r#"{"type": "multus"}"#),
        ("net", r#"{"plugins": [{"type": "tuning"}, {"type": "netwright-multi"}]}"#),
    ] {
        let attaches = |name: &str| ["netwright-multi", "multus"].contains(&name);
        let error = Definition::of(name, Some(config), &attaches).unwrap_err();
        found.push_str(&format!("{name}: {config}\n    {error}\n"));
    }
    expect![[r#"
        Net: {}
            "name": "Net" cannot be the name of an object: small letters, digits and inner hyphens
        net: {
            spec.config is not a JSON object: it ends before it is complete at line 1 column 1
        net: tea
            spec.config is not a JSON object: tea is not a value of JSON: a text needs quotation marks at line 1 column 1
        net: []
            spec.config is not a JSON object: found a list, wanted an object
        net: null
            spec.config names no plugin: it needs "type", or "plugins" with several
        net: {}
            spec.config names no plugin: it needs "type", or "plugins" with several
        net: {"type": ""}
            spec.config names no plugin: it needs "type", or "plugins" with several
        net: {"type": 5}
            spec.config: type: found 5, wanted a string at line 1 column 9
        net: {"type": "../../bin/sh"}
            spec.config: invalid plugin name: ../../bin/sh
        net: {"type": "bridge", "plugins": []}
            spec.config has both "type" and "plugins": put the first into the list of the second
        net: {"plugins": []}
            spec.config: no plugins in list
        net: {"plugins": {}}
            spec.config: "plugins" is an object, it must be a list
        net: {"plugins": ["bridge"]}
            spec.config: plugins[0]: found "bridge", wanted an object
        net: {"plugins": [{"bridge": "br0"}]}
            spec.config: plugins[0]: missing 'type'
        net: {"plugins": [{"type": "bridge", "capabilities": ["ips"]}]}
            spec.config: plugins[0]: capabilities: found a list, wanted an object at line 1 column 48
        net: {"plugins": [{"type": "bridge", "ipam": "host-local"}]}
            spec.config: plugins[0]: ipam: found "host-local", wanted an object at line 1 column 40
        net: {"name": 5, "plugins": [{"type": "bridge"}]}
            spec.config: "name" is a number, it must be a string
        net: {"name": "a b", "type": "bridge"}
            spec.config: invalid characters found in network name: "a b"
        net: {"cniVersion": 1, "type": "bridge"}
            spec.config: cniVersion: found 1, wanted a string at line 1 column 15
        net: {"cniVersions": "1.0.0", "plugins": [{"type": "bridge"}]}
            spec.config: "cniVersions" is a string, it must be a list of strings
        net: {"type": "multus"}
            spec.config calls "multus", which would attach the pod's networks again
        net: {"plugins": [{"type": "tuning"}, {"type": "netwright-multi"}]}
            spec.config calls "netwright-multi", which would attach the pod's networks again
    "#]].assert_eq(&found);
}
