//! The plugin `cnm` and a foreign network driver: OVN's, from Debian's package `ovn-docker`, on
//! OVN's logical switches.
//!
//! Open vSwitch forwards in user space here, so that no kernel module is needed. The driver listens
//! on a TCP port, which its file in `/etc/docker/plugins` names; it knows IPv4 only, and deletes
//! the interface in `Leave`.

use std::time::{Duration, Instant};

use testkit::traffic::assert_pings;
use testkit::{Lab, Place, Snapshot, TIMEOUT};

use crate::support::call_in;
use crate::system::{address_of, assert_only_left, install};

const NETWORK: &str = r#"{
  "cniVersion": "1.1.0", "name": "logical",
  "plugins": [
    {"type": "cnm", "driver": "openvswitch",
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.74.0.0/24"}]]}}
  ]
}"#;

/// Databases, the switch, and OVN's translators between them. Everything ends with the lab.
const START: &str = r"
set -e
export OVS_RUNDIR=/run/openvswitch OVS_LOGDIR=/run/openvswitch OVS_DBDIR=/run/openvswitch OVS_SYSCONFDIR=/run/openvswitch
export OVN_RUNDIR=/run/ovn OVN_LOGDIR=/run/ovn OVN_DBDIR=/run/ovn
mkdir -p /run/openvswitch /run/ovn
ovsdb-tool create /run/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /run/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach --no-chdir
for which in nb sb; do
    ovsdb-tool create /run/ovn/$which.db /usr/share/ovn/ovn-$which.ovsschema
    ovsdb-server /run/ovn/$which.db --remote=punix:/run/ovn/ovn${which}_db.sock --unixctl=/run/ovn/$which.ctl \
        --pidfile=/run/ovn/$which.pid --detach --no-chdir
done
ovs-vsctl --no-wait init
ovs-vswitchd unix:/run/openvswitch/db.sock --pidfile --detach --no-chdir --disable-system
ovs-vsctl --timeout=20 add-br br-int -- set bridge br-int datapath_type=netdev fail-mode=secure \
    -- set open_vswitch . external_ids:system-id=lab external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=127.0.0.1 \
    external_ids:ovn-bridge-datapath-type=netdev \
    external_ids:ovn-nb=unix:/run/ovn/ovnnb_db.sock external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock
ovn-northd --ovnnb-db=unix:/run/ovn/ovnnb_db.sock --ovnsb-db=unix:/run/ovn/ovnsb_db.sock --pidfile --detach --no-chdir
ovn-controller unix:/run/openvswitch/db.sock --pidfile --detach --no-chdir
";

/// Debian's driver was not written for Python 3: it treats the output of programs as text, which
/// Python 3 gives only on request. The test runs it unchanged but for that.
const LAUNCH: &str = r#"
import functools, runpy, subprocess, sys
subprocess.Popen = functools.partial(subprocess.Popen, text=True)
sys.argv = ["/usr/bin/ovn-docker-overlay-driver"]
runpy.run_path(sys.argv[0], run_name="__main__")
"#;

fn nbctl(lab: &Lab, what: &str) -> String {
    lab.sh(&format!("ovn-nbctl --timeout=60 --db=unix:/run/ovn/ovnnb_db.sock {what}"))
}

/// Attaches a container. The driver gives Open vSwitch five seconds for a port, which is not enough
/// on a busy machine.
fn add(lab: &Lab, container: &str) {
    for _ in 0..3 {
        let said = call_in(lab, &["add", "logical", container]);
        if said.code == 0 || !said.stderr.contains("--timeout=5") {
            said.succeeded();
            return;
        }
    }
    call_in(lab, &["add", "logical", container]).succeeded();
}

#[test]
fn containers_reach_each_other_on_a_logical_switch() {
    testkit::require!(
        "root",
        "program:ovn-docker-overlay-driver",
        "program:ovn-northd",
        "program:ovn-controller",
        "program:ovs-vswitchd",
        "file:/usr/lib/python3/dist-packages/flask/__init__.py"
    );
    let lab = Lab::with_processes("ovn");
    install(&lab);
    lab.sh("mkdir -p /etc/cni/net.d /etc/docker/plugins");
    std::fs::write(lab.path("/etc/cni/net.d/logical.conflist"), NETWORK).unwrap();
    lab.sh(START);
    let driver = lab.start("/usr/bin/python3", &["-c", LAUNCH]);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = call_in(&lab, &["status", "logical"]);
        if status.code == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "the driver does not answer: {status:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = Snapshot::take(&lab);

    let (c1, c2) = (lab.container("c1"), lab.container("c2"));
    add(&lab, "c1");
    add(&lab, "c2");
    // Waits until the switch forwards: northd and the controller follow the request.
    for port in nbctl(&lab, "--bare --columns=name list logical_switch_port").split_whitespace() {
        nbctl(&lab, &format!("wait-until logical_switch_port {port} up=true"));
    }
    nbctl(&lab, "--wait=hv sync");
    let switches = nbctl(&lab, "show");
    assert_eq!(switches.matches("switch ").count(), 1, "{switches}");
    assert_eq!(switches.matches("port ").count(), 2, "{switches}");
    let (one, two) = (address_of(&c1, "eth0", "inet"), address_of(&c2, "eth0", "inet"));
    assert_pings(&c1, &two.to_string());
    assert_pings(&c2, &one.to_string());
    let mac = c1.sh("ip -o link show eth0 | sed 's/.*ether //; s/ .*//'");
    assert!(switches.contains(&format!("{} {one}", mac.trim())), "{mac} {switches}");
    call_in(&lab, &["check", "logical", "c1"]).succeeded();

    call_in(&lab, &["del", "logical", "c1"]).succeeded();
    // The driver refuses a container that it no longer knows.
    call_in(&lab, &["del", "logical", "c1"]).succeeded();
    assert_eq!(nbctl(&lab, "show").matches("port ").count(), 1);
    // GC collects a container that went without a DEL.
    drop(c2);
    call_in(&lab, &["gc"]).succeeded();
    assert_eq!(nbctl(&lab, "show"), "");
    drop(c1);
    let databases = ["files: /run/openvswitch/", "files: /run/ovn/"];
    let folders = [
        "files: /var/lib/cni is new",
        "files: /var/lib/cni/results is new",
        "files: /var/lib/netwright is new",
    ];
    assert_only_left(&lab, &before, &[&databases[..], &folders].concat());
    drop(driver);
}
