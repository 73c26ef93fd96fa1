use kernel::netns::within;
use kernel::sysctl::{Sysctl, SysctlError};

use crate::guard::{fresh_netns, in_netns, sh};

#[test]
fn a_parameter_belongs_to_its_namespace() {
    in_netns(|| {
        let forward = Sysctl::parse("net.ipv4.ip_forward").unwrap();
        let other = fresh_netns();
        let before = forward.read().unwrap();
        let wanted = if before == "0" { "1" } else { "0" };
        assert_eq!(forward.write_if_different(wanted).unwrap(), Some(before.clone()));
        assert_eq!(forward.write_if_different(wanted).unwrap(), None);
        assert_eq!(forward.read().unwrap(), wanted);
        assert_eq!(sh("cat /proc/sys/net/ipv4/ip_forward").trim(), wanted);
        assert_eq!(within(&other, || forward.read().unwrap()).unwrap(), before);
    });
}

#[test]
fn names_of_links_may_have_dots() {
    in_netns(|| {
        sh("ip link add eth0.10 type veth peer name eth1.10");
        let arp_notify = Sysctl::of_link("net/ipv4/conf", "eth0.10", "arp_notify").unwrap();
        assert_eq!(arp_notify.write_if_different("1").unwrap().as_deref(), Some("0"));
        let with_dots = Sysctl::parse("net.ipv4.conf.eth0/10.arp_notify").unwrap();
        assert_eq!(with_dots.read().unwrap(), "1");
        let gone = Sysctl::of_link("net/ipv4/conf", "nothing", "arp_notify").unwrap();
        assert!(gone.read().unwrap_err().is_missing());
        let error = gone.write("1").unwrap_err();
        assert!(error.is_missing());
        assert_eq!(error.to_string(), r#"write "1" to sysctl net/ipv4/conf/nothing/arp_notify"#);
        let refused = Sysctl::parse("net.ipv4.ip_forward").unwrap().write("words").unwrap_err();
        assert!(matches!(refused, SysctlError::Write { .. }) && !refused.is_missing());
    });
}

#[test]
fn several_numbers() {
    in_netns(|| {
        let range = Sysctl::parse("net.ipv4.ip_local_port_range").unwrap();
        range.write("2000 3000").unwrap();
        assert_eq!(range.write_if_different("2000 3000").unwrap(), None, "the kernel writes a tab");
    });
}
