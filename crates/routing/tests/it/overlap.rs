//! What is refused before anything is programmed.

use netwright_routing::overlap::{HostPrefix, find};

use crate::support::net;

#[test]
fn a_range_that_the_host_uses_is_named_with_the_link() {
    let host = |link: &str, prefix| HostPrefix { link: link.into(), prefix: net(prefix) };
    let hosts = [
        host("eth0", "0.0.0.0/0"),
        host("eth0", "10.42.0.7/23"),
        host("docker0", "172.17.0.1/16"),
        host("wg0", "10.0.0.0/8"),
        host("eth0", "2001:db8::7/64"),
    ];
    let found = find(&[net("10.42.0.0/16"), net("fd00::/48")], &hosts);
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "pod range 10.42.0.0/16 overlaps eth0's 10.42.0.7/23: nothing was programmed; choose \
             another range, or set allow-overlap",
            "pod range 10.42.0.0/16 overlaps wg0's 10.0.0.0/8: nothing was programmed; choose \
             another range, or set allow-overlap",
        ]
    );
}
