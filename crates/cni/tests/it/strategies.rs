//! Random results and JSON texts that a program may write.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netwright_cni::{AddResult, Dns, Interface, IpConfig, Route};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    // An IPv4 address written as IPv6 is read as IPv4, so the strategy makes it one.
    let v6 = any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical());
    let sparse = (0_u128..4, 0_u32..128)
        .prop_map(|(bits, shift)| IpAddr::V6(Ipv6Addr::from_bits(bits << shift)).to_canonical());
    prop_oneof![v4, v6, sparse]
}

fn network() -> impl Strategy<Value = IpNet> {
    (address(), 0_u8..=128).prop_map(|(address, prefix)| {
        let prefix = if address.is_ipv4() { prefix % 33 } else { prefix };
        IpNet::new(address, prefix).unwrap()
    })
}

fn interface() -> impl Strategy<Value = Interface> {
    let text = any::<String>;
    (text(), text(), any::<u32>(), text(), text(), text()).prop_map(
        |(name, mac, mtu, sandbox, socket_path, pci_id)| Interface {
            name,
            mac,
            mtu,
            sandbox,
            socket_path,
            pci_id,
        },
    )
}

fn ip() -> impl Strategy<Value = IpConfig> {
    (network(), option::of(address()), option::of(0_usize..1 << 40))
        .prop_map(|(address, gateway, interface)| IpConfig { address, gateway, interface })
}

pub(crate) fn route() -> impl Strategy<Value = Route> {
    let positive = || option::of(1_u32..);
    let attributes =
        (positive(), positive(), positive(), option::of(any::<u32>()), option::of(any::<u8>()));
    (network(), option::of(address()), attributes).prop_map(
        |(dst, gw, (mtu, advmss, priority, table, scope))| Route {
            dst,
            gw,
            mtu,
            advmss,
            priority,
            table,
            scope,
            drops: None,
        },
    )
}

fn dns() -> impl Strategy<Value = Dns> {
    let words = || vec(any::<String>(), 0..3);
    (words(), any::<String>(), words(), words()).prop_map(
        |(nameservers, domain, search, options)| Dns { nameservers, domain, search, options },
    )
}

pub(crate) fn result() -> impl Strategy<Value = AddResult> {
    (vec(interface(), 0..4), vec(ip(), 0..4), vec(route(), 0..4), dns())
        .prop_map(|(interfaces, ips, routes, dns)| AddResult { interfaces, ips, routes, dns })
}

/// A JSON value in unusual spelling: odd numbers, escapes, white space.
pub(crate) fn json_value() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        Just("1152921504606846977".to_owned()),
        Just("1e400".to_owned()),
        Just("-0".to_owned()),
        Just("0.10".to_owned()),
        Just("9".repeat(60)),
        any::<i64>().prop_map(|n| n.to_string()),
    ];
    let string = prop_oneof![
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just(r#""\u0041\ud800\/<>&""#.to_owned()),
    ];
    let leaf = prop_oneof![number, string, Just("true".to_owned()), Just("null".to_owned())];
    leaf.prop_recursive(4, 30, 4, |inner| {
        let list = vec(inner.clone(), 0..4).prop_map(|items| format!("[ {}\n]", items.join(" ,")));
        let object = vec(("[a-cA-C]{1,2}", inner), 0..4).prop_map(|entries| {
            let entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("\"{key}\"\t:{value}")).collect();
            format!("{{{} }}", entries.join(", "))
        });
        prop_oneof![list, object]
    })
}

/// The entries of an object; a plugin's configuration knows none of its keys, in any case.
pub(crate) fn entries() -> impl Strategy<Value = Vec<(String, String)>> {
    vec(("x[a-zA-Z0-9 \\\\\"]{0,5}", json_value()), 0..6)
}
