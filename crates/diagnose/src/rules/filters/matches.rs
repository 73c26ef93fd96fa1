//! What a rule lets through, in the words of the programs that make rules.

use std::net::IpAddr;

use ipnet::IpNet;

/// What is to be let through.
#[derive(Debug, Clone, Copy)]
pub(super) enum Match<'n> {
    From(&'n IpNet),
    To(&'n IpNet),
    /// Between containers.
    Within(&'n IpNet),
    /// Questions for hardware addresses, by IPv4.
    Arp,
    /// Those of these machines.
    ArpFrom(IpNet),
    /// The answers to them.
    ArpTo(IpNet),
    /// To one port of one machine, from whoever sends.
    Machine(IpAddr, &'static str, u16),
    /// From a subnet to one port of one machine.
    Flow(&'n IpNet, IpAddr, &'static str, u16),
    /// Packets of which only the addresses and a port are asked for.
    Packet(Fields),
    Answers,
    /// What answers containers.
    AnswersTo(&'n IpNet),
    /// What containers answer.
    AnswersFrom(&'n IpNet),
    /// What the node has sent on to a port of a container.
    Published(IpAddr, &'static str, u16),
    Neighbours,
    Loopback,
    /// What a container sends.
    Sender(IpAddr),
    /// To a port, as protocol and number; from a subnet, if it is not the container's own filter.
    Port(Option<&'n IpNet>, &'static str, u16),
}

/// The links by which packets of containers come to the node and leave it, where a filter sees them
/// and they are the same for all containers of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Links<'s> {
    /// Towards the containers.
    pub(super) near: Option<&'s str>,
    /// Towards other machines.
    pub(super) far: Option<&'s str>,
}

/// What a packet has that needs no connection tracking.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    pub(super) from: Option<IpNet>,
    pub(super) to: Option<IpNet>,
    pub(super) port: Option<PortOf>,
}

/// The protocol and the port of one of the ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum PortOf {
    Sender(&'static str, u16),
    Receiver(&'static str, u16),
}

impl Fields {
    /// Returns those of the packets that answer.
    pub(super) fn answer(self) -> Self {
        let port = self.port.map(|port| match port {
            PortOf::Sender(protocol, port) => PortOf::Receiver(protocol, port),
            PortOf::Receiver(protocol, port) => PortOf::Sender(protocol, port),
        });
        Fields { from: self.to, to: self.from, port }
    }

    /// Writes them with the words for the addresses of sender and receiver, and with a port.
    fn words(&self, [from, to]: [&str; 2], with: impl Fn(&str, &str, u16) -> String) -> String {
        let address =
            |word: &str, net: Option<IpNet>| net.map(|net| format!("{word} {}", short(&net)));
        let port = self.port.map(|port| match port {
            PortOf::Sender(protocol, port) => with(protocol, "sport", port),
            PortOf::Receiver(protocol, port) => with(protocol, "dport", port),
        });
        let words = [address(from, self.from), address(to, self.to), port];
        words.into_iter().flatten().collect::<Vec<String>>().join(" ")
    }
}

/// Writes a subnet of one address as that address.
fn short(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

impl Match<'_> {
    /// Says whether only connection tracking knows it.
    pub(super) fn is_of_tracking(&self) -> bool {
        matches!(self, Match::Answers | Match::AnswersTo(_) | Match::AnswersFrom(_))
    }
}

/// Returns a match as iptables has it.
pub(super) fn iptables(what: &Match<'_>, links: &Links<'_>, leaves: bool) -> String {
    let on = |iif: Option<&str>, oif: Option<&str>| {
        let iif = iif.map(|link| format!("-i {link} ")).unwrap_or_default();
        iif + &oif.map(|link| format!("-o {link} ")).unwrap_or_default()
    };
    let (out, back) = (on(links.near, links.far), on(links.far, links.near));
    const ANSWERS: &str = "-m conntrack --ctstate ESTABLISHED,RELATED";
    match what {
        Match::From(net) => format!("{out}-s {net}"),
        Match::To(net) => format!("-d {net}"),
        Match::Within(net) => format!("-s {net} -d {net}"),
        Match::Flow(net, to, protocol, port) => {
            format!("{out}-s {net} -d {to} -p {protocol} --dport {port}")
        }
        Match::Arp | Match::ArpFrom(_) | Match::ArpTo(_) => "-p arp".to_owned(),
        Match::Packet(fields) => fields
            .words(["-s", "-d"], |protocol, side, port| format!("-p {protocol} --{side} {port}")),
        Match::Machine(to, protocol, port) => format!("-d {to} -p {protocol} --dport {port}"),
        Match::Answers => ANSWERS.to_owned(),
        Match::AnswersTo(net) => format!("{back}-d {net} {ANSWERS}"),
        Match::AnswersFrom(net) => format!("-s {net} {ANSWERS}"),
        Match::Published(to, protocol, port) => {
            format!("-d {to} -p {protocol} --dport {port} -m conntrack --ctstate DNAT")
        }
        Match::Neighbours => "-p ipv6-icmp".to_owned(),
        Match::Loopback if leaves => "-o lo".to_owned(),
        Match::Loopback => "-i lo".to_owned(),
        Match::Sender(address) => format!("-s {address}"),
        Match::Port(None, protocol, port) => format!("-p {protocol} --dport {port}"),
        Match::Port(Some(net), protocol, port) => {
            format!("-s {net} -p {protocol} --dport {port}")
        }
    }
}

/// Returns a match as nft has it.
pub(super) fn nft(what: &Match<'_>, links: &Links<'_>, leaves: bool, is_ipv4: bool) -> String {
    let ip = if is_ipv4 { "ip" } else { "ip6" };
    let on = |iif: Option<&str>, oif: Option<&str>| {
        let iif = iif.map(|link| format!("iifname {link} ")).unwrap_or_default();
        iif + &oif.map(|link| format!("oifname {link} ")).unwrap_or_default()
    };
    let (out, back) = (on(links.near, links.far), on(links.far, links.near));
    const ANSWERS: &str = "ct state established,related";
    match what {
        Match::From(net) => format!("{out}{ip} saddr {net}"),
        Match::To(net) => format!("{ip} daddr {net}"),
        Match::Within(net) => format!("{ip} saddr {net} {ip} daddr {net}"),
        Match::Flow(net, to, protocol, port) => {
            format!("{out}{ip} saddr {net} {ip} daddr {to} {protocol} dport {port}")
        }
        Match::Arp => "ether type arp".to_owned(),
        Match::ArpFrom(net) => format!("arp saddr ip {}", short(net)),
        Match::ArpTo(net) => format!("arp daddr ip {}", short(net)),
        Match::Packet(fields) => {
            let [from, to] = [format!("{ip} saddr"), format!("{ip} daddr")];
            fields.words([&from, &to], |protocol, side, port| format!("{protocol} {side} {port}"))
        }
        Match::Machine(to, protocol, port) => format!("{ip} daddr {to} {protocol} dport {port}"),
        Match::Answers => ANSWERS.to_owned(),
        Match::AnswersTo(net) => format!("{back}{ip} daddr {net} {ANSWERS}"),
        Match::AnswersFrom(net) => format!("{ip} saddr {net} {ANSWERS}"),
        Match::Published(to, protocol, port) => {
            format!("{ip} daddr {to} {protocol} dport {port} ct status dnat")
        }
        Match::Neighbours => "icmpv6 type '{ nd-neighbor-solicit, nd-neighbor-advert }'".to_owned(),
        Match::Loopback if leaves => "oifname lo".to_owned(),
        Match::Loopback => "iifname lo".to_owned(),
        Match::Sender(address) => format!("{ip} saddr {address}"),
        Match::Port(None, protocol, port) => format!("{protocol} dport {port}"),
        Match::Port(Some(net), protocol, port) => {
            format!("{ip} saddr {net} {protocol} dport {port}")
        }
    }
}

/// Returns a match of frames as ebtables has it (`man 8 ebtables-nft`).
pub(super) fn ebtables(what: &Match<'_>, is_ipv4: bool) -> String {
    let (kind, ip) = if is_ipv4 { ("-p IPv4", "ip") } else { ("-p IPv6", "ip6") };
    let [from, to] = [format!("--{ip}-src"), format!("--{ip}-dst")];
    match what {
        Match::Arp => "-p ARP".to_owned(),
        Match::ArpFrom(net) => format!("-p ARP --arp-ip-src {}", short(net)),
        Match::ArpTo(net) => format!("-p ARP --arp-ip-dst {}", short(net)),
        Match::Within(net) => format!("{kind} {from} {net} {to} {net}"),
        Match::Packet(fields) => {
            let words = fields.words([&from, &to], |protocol, side, port| {
                format!("--{ip}-proto {protocol} --{ip}-{side} {port}")
            });
            format!("{kind} {words}")
        }
        // Solicitations and advertisements (RFC 4861 §4.3, §4.4).
        _ => format!("{kind} --ip6-proto ipv6-icmp --ip6-icmp-type 135:136"),
    }
}

/// Returns a match of ARP as arptables has it (`man 8 arptables-nft`).
pub(super) fn arptables(what: &Match<'_>) -> String {
    match what {
        Match::ArpTo(net) => format!("-d {}", short(net)),
        Match::ArpFrom(net) => format!("-s {}", short(net)),
        _ => String::new(),
    }
}
