//! What `doctor` did not look at, or could not ask, is told as that: neither as sound nor as broken.

use serde_json::{Value, json};
use testkit::{Place as _, require};

use super::situations::node::{Node, findings};
use crate::support::{CommandOutput, Scratch, call_in};

/// A network whose main plugin is `flannel`, which asks `bridge`. flanneld has made no tunnel, so
/// its containers have the uplink's MTU.
fn flannel(node: &Node) {
    node.lab.sh("mkdir -p /run/flannel && printf 'FLANNEL_NETWORK=10.97.0.0/16\\n\
         FLANNEL_SUBNET=10.97.5.1/24\\nFLANNEL_MTU=1500\\nFLANNEL_IPMASQ=false\\n' \
         >/run/flannel/subnet.env; mkdir -p /etc/netns/c3; \
         cp /etc/netns/c1/resolv.conf /etc/netns/c3/resolv.conf");
    let plugin = json!({
        "type": "flannel",
        "delegate": { "isDefaultGateway": true, "ipMasq": true, "bridge": "flan0" },
    });
    let list = json!({ "cniVersion": "1.0.0", "name": "flan", "plugins": [plugin] });
    node.network("50-flan", &list.to_string());
    call_in(&node.lab, &["add", "flan", "c3", "--container-id", "c3"]).succeeded();
}

fn ids(said: &CommandOutput) -> Vec<String> {
    findings(said).iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn unexamined(said: &CommandOutput) -> Vec<Value> {
    said.json()["notExamined"].as_array().unwrap().clone()
}

/// A container that `flannel` connects is examined as one that `bridge` does.
#[test]
fn the_name_of_the_main_plugin_decides_nothing() {
    require!("root", "program:nft");
    let node = Node::new("doctor-flannel");
    flannel(&node);
    let sound = node.doctor(&["c3"]);
    assert_eq!((sound.code, ids(&sound)), (0, Vec::new()), "{sound:#?}");
    let text = call_in(&node.lab, &["doctor", "c3"]).stdout;
    for way in ["gateway", "outside", "names"] {
        let line = text.lines().find(|line| line.contains(way)).unwrap();
        assert!(line.trim_start().starts_with(['+', '✔']), "{text}");
    }
    let (done, said) = node.run(
        "nft 'add table ip other; add chain ip other f { type filter hook forward priority 0; }; \
         add rule ip other f ip saddr 10.97.5.0/24 oifname up0 drop'",
    );
    assert!(done, "{said}");
    let said = node.doctor(&[]).failed(1);
    let first = &findings(&said)[0];
    assert_eq!((&first["id"], &first["hits"]), (&json!("forward-dropped"), &json!(["c3"])));
}

/// ADD of a container was refused, and it was undone.
#[test]
fn a_container_that_is_attached_nowhere_is_not_called_sound() {
    require!("root");
    let node = Node::new("doctor-refused-add");
    // Another container has the port.
    let add = ["add", "mynet", "c4", "--container-id", "c4", "--publish", "8080:80"];
    let said = call_in(&node.lab, &add);
    assert_ne!(said.code, 0, "{said:#?}");
    let said = node.doctor(&["c4"]).failed(3);
    assert_eq!(ids(&said), ["not-attached"], "{said:#?}");
    let text = call_in(&node.lab, &["doctor", "c4"]).failed(3).stdout;
    assert!(!text.contains('✔') && !text.contains("all as they"), "{text}");
}

/// What was not sent has not shown anything.
#[test]
fn without_probes_no_way_is_called_sound() {
    require!("root");
    let node = Node::new("doctor-unsent");
    let text = call_in(&node.lab, &["doctor", "--no-probe"]).succeeded().stdout;
    assert!(!text.contains("all as they should be"), "{text}");
    assert!(text.contains("? not examined: the way beyond this node by IPv4"), "{text}");
    let text = call_in(&node.lab, &["doctor", "c1", "--no-probe"]).succeeded().stdout;
    for way in ["gateway", "outside", "names", "published"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(way)).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains('?')), "{way}: {text}");
    }
    // With them every way is, and nothing is left.
    let said = node.doctor(&[]).succeeded();
    assert_eq!(unexamined(&said), [Value::Null; 0]);
}

/// What the caller named is tried, or it is told that it was not.
#[test]
fn what_the_caller_named_is_not_dropped() {
    require!("root");
    let node = Node::new("doctor-to");
    let to = ["--to", "203.0.113.2:80"];
    let with = |more: &[&str]| node.doctor(&[&to, more].concat());
    assert_eq!(ids(&with(&["c1", "--no-probe"]).failed(3)), ["not-asked"]);
    with(&["c1"]).succeeded();
    // A network that leads nowhere by intent.
    node.network(
        "60-alone",
        r#"{"cniVersion": "1.0.0", "name": "alone", "plugins": [
        {"type": "bridge", "bridge": "alone0", "isGateway": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.94.0.0/24"}]]}}]}"#,
    );
    call_in(&node.lab, &["add", "alone", "c3", "--container-id", "c3"]).succeeded();
    node.doctor(&["c3"]).succeeded();
    let said = with(&["c3"]).failed(1);
    assert_eq!(ids(&said), ["outside-silent"], "{said:#?}");
    node.doctor(&[]).succeeded();
}

/// A bundle has the answers to probes, so it shows elsewhere what they have shown.
#[test]
fn a_bundle_keeps_the_answers() {
    require!("root");
    let node = Node::new("doctor-answers");
    let (done, said) =
        node.run("ip netns exec outside ip route add blackhole 203.0.113.2; sysctl -qw net.ipv4.ip_forward=1");
    assert!(done, "{said}");
    let file = node.lab.dir().join("bundle.json");
    let path = file.to_str().unwrap();
    let here = node.doctor(&["--bundle", path, "--to", "203.0.113.2:80"]).failed(1);
    assert!(ids(&here).iter().any(|id| id == "nameserver-silent"), "{here:#?}");
    let scratch = Scratch::new();
    let there = ["doctor", "--from", path, "--output", "json"];
    let said = scratch.call(&[&there, &["--to", "203.0.113.2:80"][..]].concat()).failed(1);
    assert_eq!(said.json(), here.json());
    // Nobody has asked this.
    let said = scratch.call(&[&there, &["--to", "203.0.113.3:80"][..]].concat()).failed(1);
    assert!(ids(&said).iter().any(|id| id == "not-asked"), "{said:#?}");
}

/// A name is one that the container knows, and one that it does not know is no misuse.
#[test]
fn a_name_is_resolved_as_the_container_does() {
    require!("root");
    let node = Node::new("doctor-to-name");
    let said = node.doctor(&["c1", "--to", "no.such.name:80"]).failed(3);
    assert_eq!(ids(&said), ["not-asked"], "{said:#?}");
    let why = findings(&said)[0]["seen"].to_string();
    assert!(why.contains("name server 203.0.113.2 knows no address of it"), "{why}");
    node.doctor(&["c1", "--to", "203.0.113.2"]).failed(2);
}

/// What a finding explains is left out with it, and a misspelt ID leaves out nothing.
#[test]
fn what_is_ignored_takes_its_consequences_along() {
    require!("root");
    let node = Node::new("doctor-ignored-cause");
    let (done, said) = node.run("sysctl -qw net.ipv4.ip_forward=0");
    assert!(done, "{said}");
    assert_eq!(node.doctor(&[]).failed(1).json()["findings"][0]["id"], "forwarding-off");
    let said = node.doctor(&["--ignore", "forwarding-off"]).succeeded();
    assert_eq!(ids(&said), [""; 0]);
    let said = node.doctor(&["--ignore", "forwarding-of"]).failed(2);
    assert!(said.json()["msg"].as_str().unwrap().contains("forwarding-of"), "{said:#?}");
}

/// A person who asks by the name of a namespace reads that name.
#[test]
fn a_container_answers_under_the_name_that_was_asked() {
    require!("root");
    let node = Node::new("doctor-called");
    call_in(&node.lab, &["add", "mynet", "c3"]).succeeded();
    let text = call_in(&node.lab, &["doctor", "c3"]).succeeded().stdout;
    assert!(text.starts_with("c3   eth0 on mynet"), "{text}");
}
