//! Host ports as the reference's iptables backend makes them.
//!
//! ```text
//! PREROUTING, OUTPUT    addrtype LOCAL             -> CNI-HOSTPORT-DNAT
//! CNI-HOSTPORT-DNAT     protocol, ports, conditions -> CNI-DN-<21 hex>, one for each container and network
//! CNI-DN-…              first, ours alone: loopback addresses from elsewhere go no further;
//!                       for each port: SETMARK what must be masqueraded, then DNAT
//! POSTROUTING           first                      -> CNI-HOSTPORT-MASQ, which masquerades what is marked
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::AttachmentKey;
use cni::owner::sha512_hex;
use ipnet::IpNet;
use net::IpFamily;
use serde::{Deserialize, Serialize};
use state::Index;

use super::text::target;
use super::{ChangeError, IptablesError, ObservedTable, Restore, Tool, host, quote};
use crate::element::Protocol;
use crate::hostport::{Forward, Snat};

const TABLE: &str = "nat";
const DNAT: &str = "CNI-HOSTPORT-DNAT";
const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// How many hexadecimal digits a chain's name contains.
const DIGITS: usize = 21;
/// How many ports fit into one rule (iptables-extensions(8) `multiport`).
const PORTS: usize = 15;
/// How long a comment may be (linux/netfilter/xt_comment.h `XT_MAX_COMMENT_LEN`, with the closing
/// NUL).
const COMMENT_MAX: usize = 255;

/// What the backend must set up for an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredHostports {
    /// The container's addresses with their prefix lengths, one per family.
    pub addresses: Vec<IpNet>,
    /// The ports.
    pub forwards: Vec<Forward>,
    /// What is masqueraded.
    pub snat: Snat,
    /// The bit of the mark.
    pub mark_bit: u8,
    /// The chain that sets the mark, instead of our own.
    pub set_mark_chain: Option<String>,
    /// Arguments of the rules that lead to the container's chain, IPv4.
    pub conditions4: Vec<String>,
    /// The same for IPv6.
    pub conditions6: Vec<String>,
    /// Whether the container's chain restricts ports at loopback addresses to the host. The
    /// reference's chain does not.
    pub guarded: bool,
}

/// Returns the chain's name. The interface is not in it.
#[must_use]
pub fn chain_name(key: &AttachmentKey) -> String {
    format!("CNI-DN-{}", sha512_hex(format!("{}{}", key.network, key.container_id), DIGITS))
}

/// Returns the name that older releases used for the chain that masquerades.
#[must_use]
pub fn old_snat_chain_name(key: &AttachmentKey) -> String {
    chain_name(key).replacen("DN", "SN", 1)
}

/// Forwards ports. Replaces what an earlier call for the same container and network made.
///
/// # Errors
/// [`ChangeError`]; the families done before keep their rules.
pub fn add(
    index: &Index,
    key: &AttachmentKey,
    wanted: &DesiredHostports,
) -> Result<(), ChangeError> {
    let _lock = super::lock(index)?;
    for address in &wanted.addresses {
        let tool = Tool::host(IpFamily::of(address.addr()));
        tool.change(TABLE, |observed, restore| plan(key, wanted, *address, observed, restore))?;
    }
    Ok(())
}

/// Removes a container's chain and the rules that lead to it, in both families.
///
/// **Idempotence**: what is gone already, or a family without iptables, is success.
///
/// # Errors
/// The first [`IptablesError`]; the other family is tried all the same.
pub fn remove(key: &AttachmentKey, legacy: bool) -> Result<(), IptablesError> {
    let mut outcome = Ok(());
    for family in IpFamily::ALL {
        let done = Tool { family, legacy }.change(TABLE, |observed, restore| {
            restore.delete_chain(observed, &chain_name(key));
            restore.delete_chain(observed, &old_snat_chain_name(key));
        });
        match done {
            Err(error) if !error.is_missing() && outcome.is_ok() => outcome = Err(error),
            _ => {}
        }
    }
    outcome
}

/// Describes what is missing; returns nothing when all is well.
///
/// # Errors
/// [`IptablesError`].
pub fn check(key: &AttachmentKey, wanted: &DesiredHostports) -> Result<Vec<String>, IptablesError> {
    let mut missing = Vec::new();
    for address in &wanted.addresses {
        let observed = Tool::host(IpFamily::of(address.addr())).observe(TABLE)?;
        let mut whole = shared_rules(wanted);
        whole.extend(own_rules(key, wanted, *address));
        for Rule { chain, text, .. } in whole {
            let there = match ports_of(&text) {
                // iptables prints the arguments of conditions in its own order.
                Some(ports) => observed
                    .rules(&chain)
                    .iter()
                    .any(|rule| target(rule) == target(&text) && ports_of(rule) == Some(ports)),
                None => observed.has_rule(&chain, &text),
            };
            if !there {
                missing.push(format!("missing: -A {chain} {text}"));
            }
        }
    }
    Ok(missing)
}

/// Returns the ports of a rule that leads to a container's chain.
fn ports_of(rule: &str) -> Option<&str> {
    rule.split_once("--dports ").and_then(|(_, rest)| rest.split(' ').next())
}

struct Rule {
    chain: String,
    text: String,
    first: bool,
}

fn plan(
    key: &AttachmentKey,
    wanted: &DesiredHostports,
    address: IpNet,
    observed: &ObservedTable,
    restore: &mut Restore,
) {
    let own = own_rules(key, wanted, address);
    if own.is_empty() {
        restore.delete_chain(observed, &chain_name(key));
        return;
    }
    let shared = shared_rules(wanted);
    for rule in &shared {
        if !matches!(rule.chain.as_str(), "PREROUTING" | "OUTPUT" | "POSTROUTING") {
            restore.ensure_chain(observed, &rule.chain);
        }
    }
    restore.ensure_chain(observed, DNAT);
    for rule in &shared {
        if rule.first {
            restore.ensure_first(observed, &rule.chain, &rule.text);
        } else {
            restore.ensure_last(observed, &rule.chain, &rule.text);
        }
    }
    // Rules of an earlier ADD, perhaps to another address, must not stay ahead of ours.
    let chain = chain_name(key);
    restore.reset_chain(&chain);
    restore.delete_rules(observed, DNAT, |rule| target(rule) == Some(&chain));
    for rule in &own {
        restore.append(&rule.chain, &rule.text);
    }
}

fn shared_rules(wanted: &DesiredHostports) -> Vec<Rule> {
    let rule = |chain: &str, text: String| Rule { chain: chain.to_owned(), text, first: false };
    let local = format!("-m addrtype --dst-type LOCAL -j {DNAT}");
    let mut rules = vec![rule("PREROUTING", local.clone()), rule("OUTPUT", local)];
    if wanted.snat == Snat::No || wanted.set_mark_chain.is_some() {
        return rules;
    }
    let mark = format!("{0:#x}/{0:#x}", 1_u32 << wanted.mark_bit);
    rules.push(rule(
        SETMARK,
        format!("-m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark {mark}"),
    ));
    rules.push(rule(MASQUERADE, format!("-m mark --mark {mark} -j MASQUERADE")));
    rules.push(Rule {
        first: true,
        ..rule(
            "POSTROUTING",
            format!("-m comment --comment \"CNI portfwd requiring masquerade\" -j {MASQUERADE}"),
        )
    });
    rules
}

fn own_rules(key: &AttachmentKey, wanted: &DesiredHostports, address: IpNet) -> Vec<Rule> {
    let chain = chain_name(key);
    let mut ports: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    let mut rules = Vec::new();
    if wanted.guarded && !wanted.forwards.is_empty() {
        for text in guards(address) {
            rules.push(Rule { chain: chain.clone(), text, first: false });
        }
    }
    for (at, forward) in wanted.forwards.iter().enumerate() {
        if wanted.forwards[..at].contains(forward) {
            continue;
        }
        // The reference lists every port in both families; a packet that finds no rule for it goes
        // on.
        let listed = ports.entry(forward.protocol.name()).or_default();
        if !listed.contains(&forward.host_port) {
            listed.push(forward.host_port);
        }
        if forward.host_ip.is_some_and(|at| at.is_ipv4() != address.addr().is_ipv4()) {
            continue;
        }
        rules.extend(forward_rules(forward, wanted, address).map(|text| Rule {
            chain: chain.clone(),
            text,
            first: false,
        }));
    }
    let comment = quote(&comment(key));
    let conditions =
        if address.addr().is_ipv4() { &wanted.conditions4 } else { &wanted.conditions6 };
    let conditions: String = conditions.iter().map(|word| format!(" {word}")).collect();
    let mut all = Vec::new();
    for (protocol, ports) in &ports {
        for chunk in ports.chunks(PORTS) {
            let list: Vec<String> = chunk.iter().map(ToString::to_string).collect();
            let text = format!(
                "-p {protocol} -m comment --comment {comment} -m multiport --dports {}{conditions} -j {chain}",
                list.join(",")
            );
            all.push(Rule { chain: DNAT.to_owned(), text, first: false });
        }
    }
    all.append(&mut rules);
    all
}

/// Writes rules that keep packets from elsewhere to the host's loopback addresses from being
/// translated. Packets from the host itself leave by `lo` when this chain sees them. The rules are
/// in the container's own chain, the only one that the reference's plugins do not share.
///
/// Packets from the host's ::1 are not translated either: no answer would reach it, so the
/// connection is refused at once.
fn guards(address: IpNet) -> Vec<String> {
    let guard = |loopback| format!("-d {loopback} ! -i lo ! -o lo -j RETURN");
    match address.addr() {
        IpAddr::V4(_) => vec![guard("127.0.0.0/8")],
        IpAddr::V6(_) => vec![guard("::1/128"), "-s ::1/128 -j RETURN".to_owned()],
    }
}

fn forward_rules(
    forward: &Forward,
    wanted: &DesiredHostports,
    address: IpNet,
) -> impl Iterator<Item = String> + use<> {
    let protocol = match forward.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let destination = match forward.host_ip.filter(|at| !at.is_unspecified()) {
        Some(at) => format!("-d {} ", host(at)),
        None => String::new(),
    };
    let port = forward.host_port;
    let matching = format!("{destination}-p {protocol} -m {protocol} --dport {port}");
    let mark = wanted.set_mark_chain.as_deref().unwrap_or(SETMARK);
    let mut rules = Vec::new();
    match wanted.snat {
        Snat::No => {}
        Snat::All => rules.push(format!("{matching} -j {mark}")),
        Snat::Needed => {
            rules.push(format!("-s {} {matching} -j {mark}", address.trunc()));
            if address.addr().is_ipv4() {
                rules.push(format!("-s 127.0.0.1/32 {matching} -j {mark}"));
            }
        }
    }
    let to = match address.addr() {
        IpAddr::V4(at) => format!("{at}:{}", forward.container_port),
        IpAddr::V6(at) => format!("[{at}]:{}", forward.container_port),
    };
    rules.push(format!("{matching} -j DNAT --to-destination {to}"));
    rules.into_iter()
}

/// The reference cuts at 253 characters and adds three dots, one character more than fits; our
/// comment fits.
fn comment(key: &AttachmentKey) -> String {
    let whole = format!("dnat name: \"{}\" id: \"{}\"", key.network, key.container_id);
    if whole.len() <= COMMENT_MAX {
        return whole;
    }
    format!("{}...", &whole[..COMMENT_MAX - 3])
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn key() -> AttachmentKey {
        AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    fn wanted(forwards: Vec<Forward>) -> DesiredHostports {
        DesiredHostports {
            addresses: Vec::new(),
            forwards,
            snat: Snat::Needed,
            mark_bit: 13,
            set_mark_chain: None,
            conditions4: Vec::new(),
            conditions6: Vec::new(),
            guarded: false,
        }
    }

    fn forward(protocol: Protocol, host_port: u16, at: Option<&str>) -> Forward {
        let host_ip = at.map(|at| at.parse().unwrap());
        Forward { protocol, host_port, container_port: host_port % 1000, host_ip }
    }

    fn text(wanted: &DesiredHostports, address: &str) -> String {
        let mut restore = Restore::new(TABLE);
        plan(&key(), wanted, address.parse().unwrap(), &ObservedTable::default(), &mut restore);
        restore.text()
    }

    #[test]
    fn the_layout_is_the_references() {
        let mut forwards = vec![
            forward(Protocol::Tcp, 8080, None),
            forward(Protocol::Udp, 8081, Some("192.0.2.1")),
            forward(Protocol::Udp, 8082, Some("::")),
        ];
        expect![[r#"
            *nat
            :CNI-DN-9b00b9b7c2795a8a61a6e - [0:0]
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
            -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
            -I POSTROUTING 1 -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n\" id: \"c1\"" -m multiport --dports 8080 -j CNI-DN-9b00b9b7c2795a8a61a6e
            -A CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"n\" id: \"c1\"" -m multiport --dports 8081,8082 -j CNI-DN-9b00b9b7c2795a8a61a6e
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
            -A CNI-DN-9b00b9b7c2795a8a61a6e -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s 10.1.0.0/24 -d 192.0.2.1/32 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s 127.0.0.1/32 -d 192.0.2.1/32 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK
            -A CNI-DN-9b00b9b7c2795a8a61a6e -d 192.0.2.1/32 -p udp -m udp --dport 8081 -j DNAT --to-destination 10.1.0.2:81
            COMMIT
        "#]].assert_eq(&text(&wanted(forwards.clone()), "10.1.0.2/24"));
        forwards.truncate(1);
        expect![[r#"
            *nat
            :CNI-DN-9b00b9b7c2795a8a61a6e - [0:0]
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
            -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
            -I POSTROUTING 1 -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n\" id: \"c1\"" -m multiport --dports 8080 -j CNI-DN-9b00b9b7c2795a8a61a6e
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s fd00:1::/64 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
            -A CNI-DN-9b00b9b7c2795a8a61a6e -p tcp -m tcp --dport 8080 -j DNAT --to-destination [fd00:1::2]:80
            COMMIT
        "#]].assert_eq(&text(&wanted(forwards), "fd00:1::2/64"));
    }

    #[test]
    fn a_mapping_listed_twice_is_forwarded_once() {
        let mapping = forward(Protocol::Tcp, 8080, None);
        for address in ["10.1.0.2/24", "fd00:1::2/64"] {
            let once = text(&wanted(vec![mapping]), address);
            assert_eq!(text(&wanted(vec![mapping; 2]), address), once);
        }
    }

    #[test]
    fn options_change_what_is_marked() {
        let mut all = wanted(vec![forward(Protocol::Tcp, 8080, None)]);
        all.snat = Snat::All;
        all.mark_bit = 5;
        all.conditions4 = vec!["-d".into(), "192.0.2.0/24".into()];
        expect![[r#"
            *nat
            :CNI-DN-9b00b9b7c2795a8a61a6e - [0:0]
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x20/0x20
            -A CNI-HOSTPORT-MASQ -m mark --mark 0x20/0x20 -j MASQUERADE
            -I POSTROUTING 1 -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n\" id: \"c1\"" -m multiport --dports 8080 -d 192.0.2.0/24 -j CNI-DN-9b00b9b7c2795a8a61a6e
            -A CNI-DN-9b00b9b7c2795a8a61a6e -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
            -A CNI-DN-9b00b9b7c2795a8a61a6e -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
            COMMIT
        "#]].assert_eq(&text(&all, "10.1.0.2/24"));
        all.snat = Snat::Needed;
        all.set_mark_chain = Some("KUBE-MARK-MASQ".into());
        expect![[r#"
            *nat
            :CNI-DN-9b00b9b7c2795a8a61a6e - [0:0]
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n\" id: \"c1\"" -m multiport --dports 8080 -d 192.0.2.0/24 -j CNI-DN-9b00b9b7c2795a8a61a6e
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ
            -A CNI-DN-9b00b9b7c2795a8a61a6e -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ
            -A CNI-DN-9b00b9b7c2795a8a61a6e -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
            COMMIT
        "#]].assert_eq(&text(&all, "10.1.0.2/24"));
        all.snat = Snat::No;
        expect![[r#"
            *nat
            :CNI-DN-9b00b9b7c2795a8a61a6e - [0:0]
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
            -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n\" id: \"c1\"" -m multiport --dports 8080 -d 192.0.2.0/24 -j CNI-DN-9b00b9b7c2795a8a61a6e
            -A CNI-DN-9b00b9b7c2795a8a61a6e -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
            COMMIT
        "#]].assert_eq(&text(&all, "10.1.0.2/24"));
    }

    #[test]
    fn loopback_addresses_are_kept_to_the_host() {
        let mut wanted = wanted(vec![forward(Protocol::Tcp, 8080, None)]);
        wanted.guarded = true;
        for (address, rules) in [
            ("10.1.0.2/24", &["-d 127.0.0.0/8 ! -i lo ! -o lo -j RETURN"][..]),
            ("fd00:1::2/64", &["-d ::1/128 ! -i lo ! -o lo -j RETURN", "-s ::1/128 -j RETURN"][..]),
        ] {
            let text = text(&wanted, address);
            let own = format!("-A {} ", chain_name(&key()));
            let lines = text.lines().filter_map(|line| line.strip_prefix(&own));
            assert_eq!(lines.take(rules.len()).collect::<Vec<_>>(), rules, "{text}");
        }
        wanted.forwards.clear();
        assert!(!text(&wanted, "10.1.0.2/24").contains("-A "));
    }

    #[test]
    fn sixteen_ports_take_two_rules() {
        let forwards = (0..16).map(|port| forward(Protocol::Sctp, 9001 + port, None)).collect();
        let text = text(&wanted(forwards), "10.1.0.2/24");
        let entries: Vec<_> = text.lines().filter(|line| line.contains("multiport")).collect();
        assert_eq!(entries.len(), 2, "{text}");
        assert!(entries[1].contains("--dports 9016 "), "{text}");
    }

    #[test]
    fn comments_fit() {
        let mut key = key();
        key.container_id = "x".repeat(300).parse().unwrap();
        assert_eq!(comment(&key).len(), COMMENT_MAX);
    }
}
