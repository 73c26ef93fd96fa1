//! The meaning of annotations.

use std::collections::BTreeMap;

use cni::IfName;
use netwright_npwg::Selection;
use netwright_npwg::annotation::{self, PodRequest};

fn names(text: &str) -> Vec<String> {
    let read = annotation::parse(text, "pod-ns").unwrap();
    let name = |network: &Selection| match &network.interface {
        Some(ifname) => format!("{}@{ifname}", network.full_name()),
        None => network.full_name(),
    };
    read.iter().map(name).collect()
}

fn one(text: &str) -> Selection {
    let mut read = annotation::parse(&format!("[{text}]"), "pod-ns").unwrap();
    assert_eq!(read.len(), 1);
    read.remove(0)
}

fn pod(annotations: &[(&str, &str)]) -> PodRequest {
    let annotations: BTreeMap<String, String> =
        annotations.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    PodRequest::read(&annotations, "pod-ns", "kube-system", "eth0").unwrap()
}

#[test]
fn names_with_namespace_and_interface() {
    assert_eq!(names("net-a"), ["pod-ns/net-a"]);
    assert_eq!(
        names(" net-a , other-ns/net-b@vx0,net-a@Data0 "),
        ["pod-ns/net-a", "other-ns/net-b@vx0", "pod-ns/net-a@Data0"]
    );
}

#[test]
fn blank_is_no_network() {
    assert_eq!(names(""), [""; 0]);
    assert_eq!(names("  \n"), [""; 0]);
    assert_eq!(names("[]"), [""; 0]);
}

#[test]
fn the_standards_example_of_names() {
    assert_eq!(
        names("net-a,net-b,other-ns/net-c"),
        ["pod-ns/net-a", "pod-ns/net-b", "other-ns/net-c"]
    );
}

#[test]
fn the_standards_example_of_json() {
    let text = r#"[
        {"name":"net-a"},
        {
          "name":"net-b",
          "ips": ["1.2.3.4"],
          "mac": "aa:bb:cc:dd:ee:ff"
        },
        {
          "name":"net-c",
          "namespace":"other-ns"
        }
      ]"#;
    assert_eq!(names(text), ["pod-ns/net-a", "pod-ns/net-b", "other-ns/net-c"]);
    let read = annotation::parse(text, "pod-ns").unwrap();
    assert_eq!(read[1].ips, ["1.2.3.4"]);
    assert_eq!(read[1].mac.as_deref(), Some("aa:bb:cc:dd:ee:ff"));
}

#[test]
fn the_same_network_twice_is_two_attachments() {
    assert_eq!(names("net-a,net-a"), ["pod-ns/net-a", "pod-ns/net-a"]);
}

#[test]
fn every_key() {
    let read = one(r#"{
            "name": "net-a", "namespace": "other", "interface": "data0",
            "ips": ["10.1.1.11/24", "2001:db8::5"],
            "mac": "C2-B0-57-49-47-F1",
            "infiniband-guid": "c2:11:22:33:44:55:66:77",
            "cni-args": {"vrf": "red", "deep": {"er": [1]}},
            "portMappings": [
                {"hostPort": 8080, "containerPort": 80},
                {"hostPort": 53, "containerPort": 5353, "protocol": "UDP", "hostIP": "192.0.2.1"}
            ],
            "bandwidth": {"ingressRate": 2048, "ingressBurst": 1600, "egressRate": 4096, "egressBurst": 1600},
            "default-route": ["192.0.2.1", "2001:db8::1"],
            "deviceID": "0000:03:02.1"
        }"#);
    assert_eq!(read.full_name(), "other/net-a");
    assert_eq!(read.interface.as_ref().map(IfName::as_str), Some("data0"));
    assert_eq!(read.default_route.as_ref().unwrap().len(), 2);
    assert_eq!(read.device_id.as_deref(), Some("0000:03:02.1"));
    assert_eq!(read.unknown_keys, [""; 0]);
    assert_eq!(read.cni_args.as_ref().unwrap().to_vec(), br#"{"vrf":"red","deep":{"er": [1]}}"#);
    expect_test::expect![[r#"{"ips":["10.1.1.11/24","2001:db8::5"],"mac":"c2:b0:57:49:47:f1","portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"}],"bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":1600},"infinibandGUID":"c2:11:22:33:44:55:66:77"}"#]]
        .assert_eq(&format!("{:?}", read.runtime_config()));
    assert_eq!(read.args()["IP"], "10.1.1.11/24,2001:db8::5");
    assert_eq!(read.args()["MAC"], "c2:b0:57:49:47:f1");
}

#[test]
fn a_hardware_address_of_infiniband() {
    let text = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22";
    let read = one(&format!(r#"{{"name": "ib", "mac": "{text}"}}"#));
    assert_eq!(read.mac.as_deref(), Some(text));
}

#[test]
fn keys_are_read_as_go_reads_them() {
    let read =
        one(r#"{"Name": "net-a", "INTERFACE": "x0", "mac": null, "ips": null, "namespace": ""}"#);
    assert_eq!((read.full_name().as_str(), read.mac), ("pod-ns/net-a", None));
    assert_eq!(read.interface.unwrap().as_str(), "x0");
}

#[test]
fn the_older_key_for_the_interface_counts_where_the_newer_is_absent() {
    let read = one(r#"{"name": "net-a", "interfaceRequest": "old0"}"#);
    assert_eq!(read.interface.unwrap().as_str(), "old0");
    let read = one(r#"{"name": "net-a", "interfaceRequest": "old0", "interface": "new0"}"#);
    assert_eq!(read.interface.unwrap().as_str(), "new0");
}

#[test]
fn keys_that_nobody_reads_are_told() {
    let read = one(r#"{"name": "net-a", "interfaces": "x0", "org.example.colour": 3}"#);
    assert_eq!(read.unknown_keys, ["interfaces", "org.example.colour"]);
}

#[test]
fn no_default_route_is_not_the_same_as_none_asked_for() {
    assert_eq!(one(r#"{"name": "net-a"}"#).default_route, None);
    assert_eq!(one(r#"{"name": "net-a", "default-route": []}"#).default_route, Some(vec![]));
}

#[test]
fn a_claim_of_addresses() {
    let read = one(r#"{"name": "net-a", "ipam-claim-reference": "vm-1.net-a"}"#);
    assert_eq!(read.ipam_claim.as_deref(), Some("vm-1.net-a"));
}

#[test]
fn interfaces_without_a_name_are_numbered_by_their_place() {
    let name = |text: &str| IfName::new(text).unwrap();
    let named = |asked: &[Option<IfName>], taken: &str| {
        let given = annotation::interface_names(asked, |name| name == taken);
        given.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(named(&[None, Some(name("data0")), None], ""), ["net1", "data0", "net3"]);
    // The chosen name is neither one that another element requests, nor an existing one.
    assert_eq!(named(&[None, Some(name("net1")), None], ""), ["net2", "net1", "net3"]);
    assert_eq!(named(&[None, None], "net1"), ["net2", "net3"]);
}

#[test]
fn the_default_network_of_a_pod() {
    let asked = pod(&[(annotation::DEFAULT_NETWORK, "flat"), (annotation::NETWORKS, "net-a")]);
    // A name without a namespace is not in the pod's.
    assert_eq!(asked.default.unwrap().full_name(), "kube-system/flat");
    assert_eq!(asked.networks[0].full_name(), "pod-ns/net-a");
    let asked = pod(&[(
        annotation::DEFAULT_NETWORK,
        r#"[{"name": "flat", "namespace": "ns", "ips": ["192.0.2.7"]}]"#,
    )]);
    let default = asked.default.unwrap();
    assert_eq!((default.full_name().as_str(), default.ips[0].as_str()), ("ns/flat", "192.0.2.7"));
}

#[test]
fn annotations_from_before_the_standard() {
    let legacy =
        r#"[{"name": "flannel-conf"}, {"name": "sriov-conf", "interfaceRequest": "east0"}]"#;
    for key in annotation::LEGACY_NETWORKS {
        let asked = pod(&[(key, legacy)]);
        let names: Vec<_> = asked.networks.iter().map(Selection::full_name).collect();
        assert_eq!(names, ["pod-ns/flannel-conf", "pod-ns/sriov-conf"], "{key}");
    }
    // The standard's key wins if there are both.
    let asked = pod(&[("networks", legacy), (annotation::NETWORKS, "net-a")]);
    assert_eq!(asked.networks.len(), 1);
    // Other programs use that key too.
    assert_eq!(pod(&[("networks", "blue,green")]), PodRequest::default());
    assert_eq!(pod(&[("networks", r#"{"colour": "blue"}"#)]), PodRequest::default());
}

#[test]
fn a_pod_without_annotations_has_the_clusters_network_alone() {
    assert_eq!(pod(&[]), PodRequest::default());
}
