//! Hosts whose FORWARD chain drops packets that no rule accepts: Docker's, ufw's.
//!
//! An accept in our table cannot overrule their drop. The `firewall` plugin adds the accept where
//! they provide for it; without that plugin ADD warns that the packets will be dropped.

use testkit::traffic::{Server, assert_no_ping, assert_no_tcp, assert_pings, assert_tcp};
use testkit::{Container, Lab, Place, Snapshot, require};

use crate::system::{NETWRIGHT, address_of, assert_nothing_left};

/// The rules of dockerd 20.10 (Debian 12) in table filter once it runs, from `iptables-save`;
/// `docker0` may be down. Newer ones do the same for IPv6.
const DOCKER_FILTER: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
";

/// The same for table nat.
const DOCKER_NAT: &str = "*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
";

/// The relevant rules of an enabled ufw with its default policy for routed packets. The family's
/// chains begin with `ufw` or `ufw6`.
fn ufw(prefix: &str) -> String {
    let chains =
        ["before-forward", "after-forward", "reject-forward", "track-forward", "user-forward"];
    let declared: String =
        chains.iter().map(|name| format!(":{prefix}-{name} - [0:0]\n")).collect();
    let jumps: String =
        chains[..4].iter().map(|name| format!("-A FORWARD -j {prefix}-{name}\n")).collect();
    format!(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n{declared}{jumps}\
         -A {prefix}-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         -A {prefix}-before-forward -j {prefix}-user-forward\nCOMMIT\n"
    )
}

fn restore(lab: &Lab, program: &str, rules: &str) {
    lab.sh(&format!("{program} <<'X'\n{rules}X"));
}

/// The rules of a running dockerd; `legacy` is `-legacy` or nothing.
pub(crate) fn dockerd(lab: &Lab, legacy: &str) {
    lab.sh("sysctl -qw net.ipv4.ip_forward=1");
    restore(lab, &format!("iptables{legacy}-restore"), DOCKER_FILTER);
    restore(lab, &format!("iptables{legacy}-restore --noflush"), DOCKER_NAT);
    restore(lab, &format!("ip6tables{legacy}-restore"), DOCKER_FILTER);
}

/// The rules of an enabled ufw.
pub(crate) fn ufw_enable(lab: &Lab) {
    restore(lab, "iptables-restore", &ufw("ufw"));
    restore(lab, "ip6tables-restore", &ufw("ufw6"));
}

/// Asserts that a container on the embedded network has traffic both ways, and leaves nothing.
fn passes(lab: &Lab) {
    let outside = lab.outside();
    let _server = Server::tcp(&outside, "[::]:7000", "outside");
    let before = Snapshot::take(lab);
    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    for (container, options) in [(&c1, "--publish 8080:80"), (&c2, "")] {
        let output =
            lab.try_sh(&format!("{NETWRIGHT} add netwright {} {options}", container.name()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "", "there is nothing to warn about");
    }
    reaches(&c1);
    reaches(&c2);
    let _web = Server::tcp(&c1, "[::]:80", "web");
    for address in ["198.51.100.1:8080", "[2001:db8:ffff::1]:8080"] {
        assert_eq!(assert_tcp(&outside, address).server, "web", "a new connection from outside");
        assert_eq!(assert_tcp(&c2, address).server, "web");
        assert_eq!(assert_tcp(&c1, address).server, "web", "to itself");
    }
    assert_tcp(lab, "127.0.0.1:8080");
    assert_pings(&c2, &address_of(&c1, "eth0", "inet").to_string());

    lab.sh(&format!("{NETWRIGHT} del netwright c1"));
    reaches(&c2);
    let others = lab.sh("iptables-save; ip6tables-save; iptables-legacy-save 2>/dev/null || true");
    assert!(!others.contains("10.63.0.2"), "the first's rules stayed: {others}");
    lab.sh(&format!("{NETWRIGHT} del netwright c2"));
    drop((c1, c2));
    assert_nothing_left(&before, lab);
}

fn reaches(container: &Container) {
    assert_eq!(assert_tcp(container, "198.51.100.2:7000").seen.ip().to_string(), "198.51.100.1");
    assert_eq!(
        assert_tcp(container, "[2001:db8:ffff::2]:7000").seen.ip().to_string(),
        "2001:db8:ffff::1"
    );
}

#[test]
fn through_dockers_policy() {
    require!("root", "program:iptables-restore");
    let lab = Lab::new("docker-forward");
    dockerd(&lab, "");
    passes(&lab);
}

#[test]
fn through_dockers_policy_in_legacy_iptables() {
    require!("root", "legacy-tables");
    let lab = Lab::new("docker-legacy");
    dockerd(&lab, "-legacy");
    passes(&lab);
}

/// After `iptables -F FORWARD`, what Docker's chain accepts counts for nothing: CHECK, `doctor` and
/// `repair` agree.
#[test]
fn a_chain_to_which_nothing_leads_does_not_count() {
    require!("root", "program:iptables-restore");
    let lab = Lab::new("docker-flushed");
    dockerd(&lab, "");
    let outside = lab.outside();
    let _server = Server::tcp(&outside, "[::]:7000", "outside");
    let c1 = lab.container("c1");
    c1.sh("ip link set lo up");
    lab.sh(&format!("{NETWRIGHT} add netwright c1"));
    reaches(&c1);
    lab.sh("iptables -F FORWARD; ip6tables -F FORWARD");
    assert_no_tcp(&c1, "198.51.100.2:7000");
    let says = |command: &str| {
        let output = lab.try_sh(&format!("{NETWRIGHT} {command}"));
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    let (is_sound, said) = says("check netwright c1");
    assert!(!is_sound && said.contains("-A FORWARD -s 10.63.0.2/32"), "{said}");
    let (is_sound, said) = says("doctor c1");
    let is_named = said.contains("attachment-differs") && said.contains("netwright repair");
    assert!(!is_sound && is_named, "{said}");
    assert!(says("repair c1").0);
    reaches(&c1);
    assert!(says("check netwright c1").0);
    let (is_sound, said) = says("doctor c1");
    assert!(is_sound, "{said}");
}

#[test]
fn through_ufws_policy() {
    require!("root", "program:iptables-restore");
    let lab = Lab::new("ufw-forward");
    ufw_enable(&lab);
    passes(&lab);
}

/// With a bridge alone no plugin adds an accept; ADD says so, and so does STATUS.
#[test]
fn without_the_firewall_plugin_it_is_said() {
    require!("root", "program:iptables-restore");
    let bare = r#"{"cniVersion": "1.1.0", "name": "bare", "plugins": [
        {"type": "bridge", "bridge": "br-bare", "isDefaultGateway": true, "ipMasq": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.64.0.0/24"}]]}}]}"#;
    for (name, drop_forwarded) in
        [("docker-bare", (|lab| dockerd(lab, "")) as fn(&Lab)), ("ufw-bare", ufw_enable)]
    {
        let lab = Lab::new(name);
        let outside = lab.outside();
        lab.sh(&format!(
            "mkdir -p /etc/cni/net.d; cat > /etc/cni/net.d/bare.conflist <<'X'\n{bare}\nX"
        ));
        let c1 = lab.container("c1");
        let add = format!("{NETWRIGHT} add bare c1");
        let output = lab.try_sh(&add);
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        assert_pings(&c1, "198.51.100.2");
        lab.sh(&format!("{NETWRIGHT} del bare c1"));

        drop_forwarded(&lab);
        let output = lab.try_sh(&add);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.contains("FORWARD") && said.contains("firewall"), "{name}: {said:?}");
        assert_pings(&c1, "10.64.0.1");
        assert_no_ping(&c1, "198.51.100.2");
        let _server = Server::tcp(&outside, "0.0.0.0:7000", "outside");
        assert_no_tcp(&c1, "198.51.100.2:7000");
        let output = lab.try_sh(&format!("{NETWRIGHT} status bare"));
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.contains("FORWARD"), "{name}: status: {said}");
    }
}
