//! The list of nodes in a file.

use netwright_routing::file;
use netwright_routing::{IpFamily, mac_of_tunnel};

use crate::support::{net, settings};

const THREE: &str = r#"
[[node]]
name = "a"
prefixes = ["10.244.1.0/24"]
underlay = ["192.0.2.1"]

[[node]]
name = "b"
prefixes = ["10.244.2.0/24", "fd00:244:0:2::/64"]
underlay = ["192.0.2.2", "2001:db8::2"]
mtu = 9000
zone = "west"
"#;

#[test]
fn three_machines_need_names_prefixes_and_addresses() {
    let seen = file::read(THREE, &settings()).unwrap();
    let names: Vec<&str> = seen.iter().map(|seen| seen.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let b = seen[1].node.as_ref().unwrap();
    assert_eq!(b.prefixes, [net("10.244.2.0/24"), net("fd00:244:0:2::/64")]);
    assert_eq!((b.mtu, b.zone.as_deref()), (Some(9000), Some("west")));
    let vxlan = b.offers.vxlan.unwrap();
    // This is the address that node b itself gives to its tunnel.
    assert_eq!(vxlan.mac4, Some(mac_of_tunnel("b", IpFamily::V4)));
    let a = seen[0].node.as_ref().unwrap();
    assert_eq!(a.offers.vxlan.unwrap().mac6, None);
    assert!(a.created < b.created, "of two that want the same, the first has it");
}

#[test]
fn earlier_prefixes_are_listed_beside_the_new_ones() {
    let list = |kept: &str| {
        let text = format!("{THREE}kept = {kept}\n");
        file::read(&text, &settings()).unwrap().pop().unwrap().node
    };
    assert_eq!(list(r#"["10.244.9.0/24"]"#).unwrap().kept, [net("10.244.9.0/24")]);
    // A prefix that the node has again is no longer a former one.
    assert_eq!(list(r#"["10.244.2.0/24"]"#).unwrap().kept, []);
    let wrong = list(r#"["10.244.9.1/24"]"#).unwrap_err().to_string();
    assert!(wrong.starts_with("refused: kept[0]: 10.244.9.1/24 has bits set"), "{wrong}");
}

/// One parser reads entries of the usual form, another one entries with a comment. Both give the
/// same result, whatever is wrong with the entry.
#[test]
fn the_usual_form_makes_no_difference() {
    let right =
        (r#""a""#, r#"["10.244.1.0/24", "fd00:244:0:1::/64"]"#, r#"["192.0.2.1", "2001:db8::1"]"#);
    let (name, prefixes, underlay) = right;
    let many = |count: u8| {
        let all: Vec<String> = (0..count).map(|n| format!("\"10.245.{n}.0/24\"")).collect();
        format!("[{}]", all.join(", "))
    };
    let (most, too_many) = (many(64), many(65));
    let mut wrong = 0;
    for (name, prefixes, underlay) in [
        right,
        (name, r#"["10.244.1.0/24",]"#, r#"[ "192.0.2.1" ]"#),
        (name, most.as_str(), underlay),
        (name, too_many.as_str(), underlay),
        (r#""a b""#, prefixes, underlay),
        (r#""""#, prefixes, underlay),
        (name, "[]", underlay),
        (name, r#"["10.244.1.1/24"]"#, underlay),
        (name, r#"["10.244.1.0/24", "10.244.0.0/16"]"#, underlay),
        (name, r#"["10.244.1.0"]"#, underlay),
        (name, prefixes, "[]"),
        (name, prefixes, r#"["192.0.2.1", "192.0.2.2"]"#),
        (name, prefixes, r#"["127.0.0.1"]"#),
        (name, prefixes, r#"["192.0.2.1", "2001:db8::1", "192.0.2.2"]"#),
    ] {
        let read = |end: &str| {
            let entry =
                format!("name = {name}\nprefixes = {prefixes}\nunderlay = {underlay}{end}\n");
            let other = THREE.replace("\"a\"", "\"c\"");
            file::read(&format!("[[node]]\n{entry}{other}"), &settings()).unwrap()
        };
        let seen = read("");
        assert_eq!(seen, read(" # a comment"), "{name} {prefixes} {underlay}");
        wrong += usize::from(seen[0].node.is_err());
    }
    assert_eq!(wrong, 11);
}
