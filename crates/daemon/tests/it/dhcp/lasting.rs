//! Leases over time: renewed, kept, lost, changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use testkit::{Place, traffic};

use crate::rig::{LeaseTimes, Rig, address, wait_for};

/// Which lease is damaged, and how.
type Damage = (&'static str, fn(&Path, &[u8]));

const SHORT: LeaseTimes = LeaseTimes { valid_s: 60, t1_s: 2, t2_s: 50, router: "192.0.2.1" };

#[test]
fn a_short_lease_is_renewed_at_t1() {
    testkit::require!("root", "program:kea-dhcp4");
    let rig = Rig::new("dhcp-renew");
    let kea = rig.kea(SHORT);
    let daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    assert_eq!(kea.logged("DHCP4_LEASE_ALLOC"), 1);
    wait_for("two renewals", || 3 <= kea.logged("DHCP4_LEASE_ALLOC"));
    // The daemon holds no socket open while it awaits no answer, and it has renewed the lease
    // without a broadcast.
    assert_eq!(daemon.log().matches("kind=DHCPDISCOVER").count(), 1);
    rig.bridge("CHECK").to(&c1).prev(&added).call().silent();
    traffic::assert_pings(&c1, "192.0.2.1");
    rig.bridge("DEL").to(&c1).prev(&added).call().silent();
    wait_for("the lease to be given back", || kea.logged("DHCP4_RELEASE ") == 1);
}

#[test]
fn a_restarted_server_goes_on_with_the_lease() {
    testkit::require!("root", "program:dnsmasq");
    let rig = Rig::new("dhcp-server");
    let mut server =
        rig.dnsmasq("dhcp-option=option:router,192.0.2.1\ndhcp-option-force=option:T1,3");
    let _daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    rig.restart(&mut server);
    let renewed = server.logged("DHCPACK(br0)");
    wait_for("a renewal", || renewed < server.logged("DHCPACK(br0)"));
    // dnsmasq logs a lease first, and writes its file later.
    wait_for("it to be written down", || server.leased() == [address(&added)]);
    rig.bridge("CHECK").to(&c1).prev(&added).call().silent();
}

#[test]
fn a_lease_survives_the_daemon() {
    testkit::require!("root", "program:kea-dhcp4");
    let rig = Rig::new("dhcp-kill");
    let kea = rig.kea(SHORT);
    let daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    daemon.kill();
    // The container keeps working.
    traffic::assert_pings(&c1, "192.0.2.1");
    let renewals = kea.logged("DHCP4_LEASE_ALLOC");
    let daemon = rig.daemon();
    rig.bridge("CHECK").to(&c1).prev(&added).call().silent();
    assert_eq!(rig.bridge("ADD").to(&c1).call().error().code, 106, "the interface is there");
    wait_for("the lease to be renewed", || renewals + 2 <= kea.logged("DHCP4_LEASE_ALLOC"));
    assert_eq!(daemon.log().matches("kind=DHCPDISCOVER").count(), 1, "it was never lost");
    assert_eq!(daemon.stop(), Some(0));
    let _daemon = rig.daemon();
    rig.bridge("CHECK").to(&c1).prev(&added).call().silent();
    rig.bridge("DEL").to(&c1).prev(&added).call().silent();
    wait_for("the lease to be given back", || kea.logged("DHCP4_RELEASE ") == 1);
    assert!(rig.kept().is_empty());
}

#[test]
fn whatever_became_of_a_lease_on_the_disk_the_others_last_and_its_container_goes() {
    testkit::require!("root", "program:kea-dhcp4");
    let rig = Rig::new("dhcp-damage");
    let kea = rig.kea(SHORT);
    let daemon = rig.daemon();
    let file_of = |id: &str| {
        let leases = rig.state.join("leases");
        let all = fs::read_dir(leases).unwrap().map(|entry| entry.unwrap().path());
        // A daemon that was killed while it wrote has left an unfinished copy.
        let mut all = all.filter(|file| file.extension().is_some_and(|end| end == "json"));
        all.find(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(id))).unwrap()
    };
    let damages: [Damage; 7] = [
        ("cut", |file, bytes| fs::write(file, &bytes[..bytes.len() / 2]).unwrap()),
        ("emptied", |file, _| fs::write(file, "").unwrap()),
        ("overwritten", |file, _| fs::write(file, [0xff; 300]).unwrap()),
        ("of-another", |file, bytes| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            fs::write(file, text.replace("of-another", "somebody-else")).unwrap();
        }),
        ("a-folder", |file, _| {
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
        }),
        ("a-link", |file, _| {
            fs::remove_file(file).unwrap();
            symlink("/dev/zero", file).unwrap();
        }),
        ("deleted", |file, _| fs::remove_file(file).unwrap()),
    ];
    let whole = rig.node.container("whole");
    let kept = rig.bridge("ADD").to(&whole).call().ok();
    let attached: Vec<_> = damages
        .iter()
        .map(|(how, _)| {
            let container = rig.node.container(how);
            let result = rig.bridge("ADD").to(&container).call().ok();
            (container, result)
        })
        .collect();
    daemon.kill();
    let files = damages.map(|(how, damage)| {
        let file = file_of(how);
        let bytes = fs::read(&file).unwrap();
        damage(&file, &bytes);
        file
    });
    let renewals = kea.logged("DHCP4_LEASE_ALLOC");
    let daemon = rig.daemon();
    wait_for("the one that is whole to be renewed", || renewals < kea.logged("DHCP4_LEASE_ALLOC"));
    rig.bridge("CHECK").to(&whole).prev(&kept).call().silent();
    for ((container, result), (how, _)) in attached.iter().zip(&damages) {
        // No daemon renews a lease without a record: CHECK reports that.
        rig.bridge("CHECK").to(container).prev(result).call().error();
        rig.bridge("DEL").to(container).prev(result).call().silent();
        assert!(container.sh("ip -o link").lines().count() == 1, "{how}");
    }
    rig.bridge("DEL").to(&whole).prev(&kept).call().silent();
    wait_for("the lease to be given back", || 1 <= kea.logged("DHCP4_RELEASE "));
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    let left: Vec<_> = files.iter().filter(|file| file.symlink_metadata().is_ok()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// When the lease is lost, the reference sets the link down. Ours removes the address, and keeps
/// asking for one.
#[test]
fn a_lease_that_ends_takes_its_address_along_and_is_asked_for_again() {
    testkit::require!("root", "program:kea-dhcp4");
    let rig = Rig::new("dhcp-expiry");
    let lasting = LeaseTimes { valid_s: 6, t1_s: 2, t2_s: 4, router: "192.0.2.1" };
    let mut kea = rig.kea(lasting);
    let _daemon = rig.daemon_with(&["-timeout=500ms", "-resendmax=1s"]);
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    kea.stop();
    let has = |what: &str| c1.sh("ip -o -4 addr show dev eth0; ip -4 route").contains(what);
    wait_for("the address to go", || !has("192.0.2."));
    assert!(c1.sh("ip -o link show dev eth0").contains("UP"), "the link stays up");
    rig.dhcp("CHECK").to(&c1).prev(&added).call().fails(104, "no lease");
    rig.restart_kea(&mut kea, lasting);
    wait_for("an address", || has("default via 192.0.2.1") && has("inet 192.0.2."));
    wait_for("traffic", || c1.try_sh("ping -c1 -W1 192.0.2.1").status.success());
}

#[test]
fn what_a_renewal_changes_is_changed() {
    testkit::require!("root", "program:kea-dhcp4");
    let rig = Rig::new("dhcp-change");
    rig.node.sh("ip addr add 192.0.2.2/24 dev br0");
    let mut kea = rig.kea(SHORT);
    let _daemon = rig.daemon();
    let c1 = rig.node.container("c1");
    let added = rig.bridge("ADD").to(&c1).call().ok();
    rig.restart_kea(&mut kea, LeaseTimes { router: "192.0.2.2", ..SHORT });
    let routes = || c1.sh("ip -4 route show default");
    wait_for("another default route", || routes().contains("via 192.0.2.2"));
    assert_eq!(routes().lines().count(), 1, "{}", routes());
    rig.dhcp("CHECK").to(&c1).prev(&added).call().fails(104, "the lease's gateway is 192.0.2.2");
    assert!(c1.sh("ip -o -4 addr show dev eth0").contains(&address(&added)));
}
