//! A node changes from the reference plugins to ours and back while containers run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::{AddResult, NetworkList};
use cni_invoke::Exec;
use cni_runtime::{Attachment, Runtime};
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Container, Lab, Place, Snapshot};

use crate::support::{call_in, command_in, said, wait_for_addresses};

/// Where Debian puts the reference plugins.
const GO: &str = "/usr/lib/cni";

/// The executable under test.
const NETWRIGHT: &str = env!("CARGO_BIN_EXE_netwright");

/// The list that podman writes for a network, with both families, in the newest version that
/// Debian's plugins speak.
const LIST: &str = r#"{
  "cniVersion": "1.0.0", "name": "interop",
  "plugins": [
    {"type": "bridge", "bridge": "itp0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.91.0.0/24"}], [{"subnet": "fd91::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"},
    {"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}
  ]
}"#;

/// A host with our plugins installed that already routes, so that no plugin has to record the
/// earlier setting.
fn lab(name: &str) -> Lab {
    let lab = Lab::new(name);
    lab.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    lab.sh(&format!("{NETWRIGHT} install --no-config --bin-dir /opt/cni/bin"));
    lab
}

fn ours() -> &'static str {
    "/opt/cni/bin"
}

fn runtime(bin: &str) -> Runtime<'static> {
    Runtime::new([bin], Arc::new(Exec::new(std::env::vars_os())))
}

fn attachment(container: &Container) -> Attachment {
    Attachment::new(
        container.name().parse().unwrap(),
        "eth0".parse().unwrap(),
        container.netns().to_str().unwrap(),
    )
    .with_capabilities_json(
        r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#,
    )
    .unwrap()
}

fn attach(lab: &Lab, bin: &str, container: &Container) -> AddResult {
    lab.enter(|| {
        let list = NetworkList::parse(LIST.as_bytes()).unwrap();
        let added = runtime(bin).add_list(&list, &attachment(container), None);
        added.unwrap_or_else(|error| panic!("attach with {bin}: {error}")).result
    })
}

fn try_detach(lab: &Lab, bin: &str, container: &Container) -> Result<(), String> {
    lab.enter(|| {
        let list = NetworkList::parse(LIST.as_bytes()).unwrap();
        let deleted = runtime(bin).del_list(&list, &attachment(container), None);
        deleted.map(drop).map_err(|error| error.to_string())
    })
}

#[track_caller]
fn detach(lab: &Lab, bin: &str, container: &Container) {
    try_detach(lab, bin, container).unwrap_or_else(|error| panic!("detach with {bin}: {error}"));
}

/// Detaches with Go what ours attached.
///
/// Debian's bridge 1.1.1 mistakes iptables 1.8.9's message for a chain that does not exist, and
/// never did, for a failure, after it has deleted the link and released the addresses. Every
/// runtime repeats a DEL that failed, and the repeated one succeeds.
#[track_caller]
fn detach_with_go_what_ours_attached(lab: &Lab, container: &Container) {
    if let Err(error) = try_detach(lab, GO, container) {
        assert!(error.contains("does not exist"), "{error}");
        detach(lab, GO, container);
    }
}

/// Attaches and detaches once with each, so that what the reference leaves for ever exists before.
fn warm_up(lab: &Lab) {
    // Ours locks iptables only where the reference has made rules.
    for (attaches, detaches) in [(ours(), ours()), (GO, GO), (GO, ours())] {
        let container = lab.container("warm");
        attach(lab, attaches, &container);
        wait_for_addresses(lab);
        detach(lab, detaches, &container);
    }
}

/// The next address differs, and so does host-local's file of the last one.
const ROUND_ROBIN: &str = "last_reserved_ip";

fn serves(lab: &Lab, container: &Container, result: &AddResult) {
    for ip in &result.ips {
        assert_pings(lab, &ip.address.addr().to_string());
    }
    let _server = Server::tcp(container, "0.0.0.0:80", "web");
    assert_tcp(lab, "127.0.0.1:8080");
}

/// The differences from `before`, once the kernel has noticed that a bridge no longer has ports.
fn differences(lab: &Lab, before: &Snapshot) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let mut lines = before.diff(&Snapshot::take(lab));
        lines.retain(|line| !line.contains(ROUND_ROBIN));
        if lines.is_empty() || deadline < Instant::now() {
            return lines;
        }
    }
}

#[test]
fn attached_by_go_and_detached_by_ours() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-go-ours");
    warm_up(&lab);
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    let result = attach(&lab, GO, &c1);
    serves(&lab, &c1, &result);
    detach(&lab, ours(), &c1);
    drop(c1);
    assert_eq!(differences(&lab, &before), [""; 0]);
}

#[test]
fn attached_by_ours_and_detached_by_go_then_collected() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-ours-go");
    lab.sh(&format!(
        "mkdir -p /etc/cni/net.d && cat > /etc/cni/net.d/interop.conflist <<'X'\n{LIST}\nX"
    ));
    warm_up(&lab);
    lab.sh(&format!("CNI_PATH={} {NETWRIGHT} gc --all", ours()));
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    let result = attach(&lab, ours(), &c1);
    serves(&lab, &c1, &result);
    detach_with_go_what_ours_attached(&lab, &c1);
    drop(c1);
    lab.sh(&format!("CNI_PATH={} {NETWRIGHT} gc --all", ours()));
    assert_eq!(differences(&lab, &before), [""; 0]);
}

/// Another package has put its chained plugins in the place of ours since ADD: their DEL leaves the
/// port that ours published, and the next container would get it with the address.
#[test]
fn what_go_took_the_place_of_goes_with_the_interface() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-mixed");
    lab.sh(&format!(
        "mkdir /opt/mixed && cp -a {GO}/* /opt/mixed && cp -a {0}/bridge {0}/host-local /opt/mixed",
        ours()
    ));
    warm_up(&lab);
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    let result = attach(&lab, ours(), &c1);
    serves(&lab, &c1, &result);
    detach(&lab, "/opt/mixed", &c1);
    drop(c1);
    assert_eq!(differences(&lab, &before), [""; 0]);
}

/// What ours recorded, ours check, restore and remove, whichever plugins `CNI_PATH` names.
#[test]
fn commands_with_the_path_of_go_know_what_ours_made() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-path");
    std::fs::create_dir_all(lab.path("/etc/cni/net.d")).unwrap();
    std::fs::write(lab.path("/etc/cni/net.d/10-interop.conflist"), LIST).unwrap();
    warm_up(&lab);
    let before = Snapshot::take(&lab);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "interop", "c1", "-p", "8080:80"]).succeeded();
    let with_go = |args: &[&str]| {
        let mut command = command_in(&lab, args);
        command.env("CNI_PATH", GO);
        said(command)
    };
    with_go(&["check", "interop", "c1"]).succeeded();
    lab.sh("nft flush map inet netwright hostports4");
    let checked = with_go(&["check", "interop", "c1"]);
    assert!(checked.code != 0 && checked.stderr.contains("8080"), "{checked:?}");
    with_go(&["repair"]).succeeded();
    with_go(&["check", "interop", "c1"]).succeeded();
    with_go(&["del", "interop", "c1"]).succeeded();
    drop(c1);
    assert_eq!(differences(&lab, &before), [""; 0]);
}

#[test]
fn both_on_one_bridge_reach_each_other() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-both");
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    let theirs = attach(&lab, GO, &c1);
    let ours_result = lab.enter(|| {
        let list = NetworkList::parse(LIST.as_bytes()).unwrap();
        let mut attachment = attachment(&c2);
        attachment.capability_args.clear();
        runtime(ours()).add_list(&list, &attachment, None).unwrap().result
    });
    for (from, to) in [(&c1, &ours_result), (&c2, &theirs)] {
        for ip in &to.ips {
            assert_pings(from, &ip.address.addr().to_string());
        }
    }
    // The other's DEL collects each.
    detach_with_go_what_ours_attached(&lab, &c2);
    detach(&lab, ours(), &c1);
}

/// Whose containers the last published port of ours leaves on a bridge: Go's `portmap` switched
/// `route_localnet` on too, and its port at 127.0.0.1 stands on that.
#[test]
fn a_port_that_go_publishes_outlives_the_last_of_ours() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-localnet");
    let list = NetworkList::parse(LIST.as_bytes()).unwrap();
    let first = lab.container("first");
    let attachment = Attachment::new(
        "first".parse().unwrap(),
        "eth0".parse().unwrap(),
        first.netns().to_str().unwrap(),
    )
    .with_capabilities_json(
        r#"{"portMappings":[{"hostPort":8081,"containerPort":80,"protocol":"tcp"}]}"#,
    )
    .unwrap();
    lab.enter(|| runtime(ours()).add_list(&list, &attachment, None).unwrap());
    let c1 = lab.container("c1");
    let result = attach(&lab, GO, &c1);
    lab.enter(|| runtime(ours()).del_list(&list, &attachment, None).unwrap());
    serves(&lab, &c1, &result);
    detach(&lab, GO, &c1);
}

/// What a container's old life left in our tables is removed; what its new life has is the Go
/// plugins', though network, container ID and interface are the same.
#[test]
fn a_container_that_lives_again_keeps_what_go_made() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-again");
    lab.sh(&format!(
        "mkdir -p /etc/cni/net.d && cat > /etc/cni/net.d/interop.conflist <<'X'\n{LIST}\nX"
    ));
    let kept = "find /var/lib/cni -type f ! -name '*last*' | sort; iptables-save | grep CNI-DN";
    for command in
        ["gc", "gc --all", "CNI_PATH gc --all", "uninstall --wait --bin-dir /opt/cni/bin"]
    {
        let old = lab.container("c1");
        attach(&lab, ours(), &old);
        detach_with_go_what_ours_attached(&lab, &old);
        drop(old);
        let new = lab.container("c1");
        let result = attach(&lab, GO, &new);
        assert_ne!(lab.sh("find /run/netwright/owners -type f"), "", "{command}: our records");
        let before = lab.sh(kept);
        let (path, args) = match command.strip_prefix("CNI_PATH ") {
            Some(args) => (format!("CNI_PATH={GO} "), args),
            None => (String::new(), command),
        };
        let said = lab.sh(&format!("{path}{NETWRIGHT} {args} 2>&1"));
        assert_eq!(lab.sh(kept), before, "{command}: {said}");
        let left = "find /run/netwright/owners -type f 2>/dev/null; nft list ruleset | grep 'inet netwright' || true";
        assert_eq!(lab.sh(left), "", "{command}: {said}");
        let stays = format!(
            "interop/c1/eth0: other plugins have attached it again, as far as can be seen: their rules \
             stay, and /var/lib/cni/results/interop-c1-eth0, /var/lib/cni/networks/interop/{}",
            result.ips[0].address.addr()
        );
        assert!(said.contains(&stays), "{command}: {said}");
        serves(&lab, &new, &result);
        detach(&lab, GO, &new);
    }
}

/// What the Go plugins attached is sound for CHECK, repair and doctor as long as it is as they left
/// it. What differs is told, with what helps: no repair restores it.
#[test]
fn what_go_attached_is_told_as_that() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let lab = lab("interop-go-told");
    std::fs::create_dir_all(lab.path("/etc/cni/net.d")).unwrap();
    std::fs::write(lab.path("/etc/cni/net.d/10-interop.conflist"), LIST).unwrap();
    let c1 = lab.container("c1");
    let result = attach(&lab, GO, &c1);
    serves(&lab, &c1, &result);
    call_in(&lab, &["check", "interop", "c1", "--container-id", c1.name()]).succeeded();
    call_in(&lab, &["repair", "--dry-run"]).succeeded();
    let looked = call_in(&lab, &["doctor"]).stdout;
    assert!(!looked.contains("attachment-differs"), "{looked}");
    lab.sh("iptables -t nat -F");
    let words = "other plugins attached it, and a repair restores only what Netwright's made";
    let said = call_in(&lab, &["repair"]);
    assert!(said.code != 0 && said.stdout.contains(words), "{said:?}");
    let looked = call_in(&lab, &["doctor"]).stdout;
    assert!(looked.contains("attachment-differs") && looked.contains(words), "{looked}");
    assert!(!looked.contains("netwright repair"), "{looked}");
}

/// The same of a pair of the Go plugins.
#[test]
fn a_pair_that_go_attached_is_sound() {
    testkit::require!("root", "file:/usr/lib/cni/ptp");
    let lab = lab("interop-go-pair");
    let list = r#"{"cniVersion": "1.0.0", "name": "pair", "plugins": [
        {"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local",
         "ranges": [[{"subnet": "10.92.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}"#;
    std::fs::create_dir_all(lab.path("/etc/cni/net.d")).unwrap();
    std::fs::write(lab.path("/etc/cni/net.d/10-pair.conflist"), list).unwrap();
    let c1 = lab.container("c1");
    lab.enter(|| {
        let list = NetworkList::parse(list.as_bytes()).unwrap();
        runtime(GO).add_list(&list, &attachment(&c1), None).map(drop).unwrap();
    });
    call_in(&lab, &["check", "pair", "c1", "--container-id", c1.name()]).succeeded();
    call_in(&lab, &["repair", "--dry-run"]).succeeded();
}
