//! `oci-hook`, with states that runc and crun really sent. [`crate::oci_runtimes`] has the runtimes
//! themselves.

use serde_json::json;
use testkit::{Lab, Place, Snapshot, traffic};

use crate::support::{CommandOutput, assert_as_before, command_in, said_with};

fn hook(lab: &Lab, args: &[&str], state: &serde_json::Value) -> CommandOutput {
    let mut words = vec!["oci-hook"];
    words.extend(args);
    said_with(command_in(lab, &words), state.to_string().as_bytes())
}

/// The state that runc 1.1.5 sends at createRuntime.
fn creating(pid: u32, annotations: &serde_json::Value) -> serde_json::Value {
    json!({"ociVersion": "1.0.2-dev", "id": "t-runc", "status": "creating", "pid": pid,
           "bundle": "/lab/oci/b", "annotations": annotations})
}

/// The state that crun 1.8.1 sends at poststop.
fn stopped() -> serde_json::Value {
    json!({"ociVersion": "1.0", "id": "t-runc", "pid": 0, "root": "rootfs", "bundle": "/b",
           "status": "stopped"})
}

#[test]
fn a_container_is_attached_at_creation_and_detached_at_its_end() {
    testkit::require!("root");
    let lab = Lab::new("cli-oci");
    let before = Snapshot::take(&lab);
    let mut c1 = lab.container("c1");
    let annotations = json!({"dev.netwright.networks": "netwright:ifname=net0,ip=10.63.7.7",
                             "dev.netwright.publish": "8080:80", "org.example": "x"});
    let said = hook(&lab, &["createRuntime"], &creating(c1.pid(), &annotations)).succeeded();
    assert_eq!(said.both(), "", "silence is success");
    assert!(c1.sh("ip -br address show net0").contains("10.63.7.7/16"));
    let server = traffic::Server::tcp(&c1, "10.63.7.7:80", "web");
    drop(traffic::assert_tcp(&lab, "10.63.0.1:8080"));
    drop(server);
    drop(c1);
    // The hook decides by the status, because the state has no stage; it knows only the ID.
    hook(&lab, &[], &stopped()).succeeded();
    hook(&lab, &["poststop"], &stopped()).succeeded();
    lab.sh("test -z \"$(ls /var/lib/cni/results)\"");
    lab.sh("test ! -e /var/lib/cni/networks/netwright/10.63.7.7");
    crate::support::call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

#[test]
fn a_container_without_annotations_is_left_alone() {
    testkit::require!("root");
    let lab = Lab::new("cli-oci-none");
    let mut c1 = lab.container("c1");
    hook(&lab, &["createRuntime"], &creating(c1.pid(), &json!({"a": "b"}))).succeeded();
    hook(&lab, &["prestart"], &json!({"id": "x", "pid": c1.pid()})).succeeded();
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    lab.sh("test ! -e /run/netwright && test ! -e /var/lib/cni");
}

/// With a mistyped annotation, a container once silently had no network.
#[test]
fn a_mistyped_annotation_is_refused() {
    testkit::require!("root");
    let lab = Lab::new("cli-oci-mistyped");
    let mut c1 = lab.container("c1");
    let pid = c1.pid();
    for (wrong, right) in [
        ("dev.netwright.network", "dev.netwright.networks"),
        ("dev.netwright.Networks", "dev.netwright.networks"),
        ("dev.netwright.ports", "dev.netwright.publish"),
        ("dev.netwrigth.publish", "dev.netwright.publish"),
    ] {
        let state = creating(pid, &json!({wrong: "netwright", "org.example/networks": "x"}));
        let said = hook(&lab, &["createRuntime"], &state).failed(1);
        assert!(said.stderr.contains(&format!("annotation {wrong} ")), "{said:#?}");
        assert!(said.stderr.contains(right), "{said:#?}");
    }
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    // At poststop the hook refuses nothing: every attachment must go.
    let mut stopped = stopped();
    stopped["annotations"] = json!({"dev.netwright.network": "netwright"});
    hook(&lab, &["poststop"], &stopped).succeeded();
}

/// The container does not start without the address that its annotation requests.
#[test]
fn an_address_that_no_plugin_takes_is_refused() {
    testkit::require!("root");
    let lab = Lab::new("cli-oci-asked");
    lab.sh("mkdir -p /etc/cni/net.d");
    let list = r#"{"cniVersion": "1.1.0", "name": "plain", "plugins": [{"type": "bridge", "bridge": "br1"}]}"#;
    std::fs::write(lab.path("/etc/cni/net.d/plain.conflist"), list).unwrap();
    let before = Snapshot::take(&lab);
    let mut c1 = lab.container("c1");
    let annotations = json!({"dev.netwright.networks": "netwright,plain:ip=10.4.0.9"});
    let said = hook(&lab, &["createRuntime"], &creating(c1.pid(), &annotations)).failed(1);
    let told = "network \"plain\": the address 10.4.0.9 was asked for, and none was given";
    assert!(said.stderr.contains(told), "{said:#?}");
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    drop(c1);
    crate::support::call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

#[test]
fn a_failed_attachment_takes_those_before_it_along() {
    testkit::require!("root");
    let lab = Lab::new("cli-oci-undo");
    lab.sh("mkdir -p /etc/cni/net.d");
    let bad = r#"{"cniVersion": "1.1.0", "name": "bad", "plugins": [
        {"type": "bridge", "bridge": "br1", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24",
         "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.4"}}]}"#;
    std::fs::write(lab.path("/etc/cni/net.d/bad.conflist"), bad).unwrap();
    let before = Snapshot::take(&lab);
    let mut c1 = lab.container("c1");
    let annotations = json!({"dev.netwright.networks": "netwright,bad"});
    let said = hook(&lab, &["createRuntime"], &creating(c1.pid(), &annotations)).failed(1);
    assert!(said.stderr.starts_with("error: "), "{said:#?}");
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    lab.sh("test -z \"$(ls /var/lib/cni/results)\"");
    drop(c1);
    crate::support::call_in(&lab, &["gc", "--all"]).succeeded();
    assert_as_before(&before, &lab);
}

#[test]
fn hostile_states_are_refused_before_anything_is_changed() {
    testkit::require!("root");
    let lab = Lab::new("cli-oci-hostile");
    let mut c1 = lab.container("c1");
    let pid = c1.pid();
    let networks = |text: &str| creating(pid, &json!({"dev.netwright.networks": text}));
    for state in [
        json!({"id": "../../x", "pid": pid, "annotations": {"dev.netwright.networks": "netwright"}}),
        json!({"id": "x", "annotations": {"dev.netwright.networks": "netwright"}}),
        json!({"id": "x", "pid": 4_194_305, "annotations": {"dev.netwright.networks": "netwright"}}),
        json!([]),
        networks("../../etc/passwd"),
        networks("netwright:ifname=a/b"),
        networks("netwright,netwright:ifname=eth0"),
        creating(pid, &json!({"dev.netwright.publish": "0:80"})),
        creating(1, &json!({"dev.netwright.networks": "netwright:ip=999"})),
    ] {
        let said = hook(&lab, &["createRuntime"], &state);
        assert_ne!(said.code, 0, "{state}");
        assert!(said.stderr.starts_with("error: "), "{state}: {said:#?}");
    }
    assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1");
    assert_eq!(lab.sh("ip -br link | wc -l").trim(), "1");
}
