//! What a rule lets through, in the words of the programs that make rules.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::filter::{Comparison, Connection, Header, Meta, Step};

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
}

/// What one part of a rule asks of a packet.
#[derive(Debug, Clone, Copy)]
enum Condition<'m> {
    /// The link by which it came.
    In(&'m str),
    /// The link by which it leaves.
    Out(&'m str),
    From(IpNet),
    To(IpNet),
    Port(PortOf),
    /// It belongs to a connection that was let through.
    Answers,
    /// Its destination was translated.
    Translated,
    /// It asks for a hardware address by IPv6, or answers.
    Neighbours,
    Arp,
    ArpFrom(IpNet),
    ArpTo(IpNet),
}

impl<'m> Match<'m> {
    /// Says whether only connection tracking knows it.
    pub(super) fn is_of_tracking(&self) -> bool {
        matches!(self, Match::Answers | Match::AnswersTo(_) | Match::AnswersFrom(_))
    }

    /// Returns what a rule asks for it, in the order in which that is written. `leaves`: the rule
    /// sees what leaves the namespace.
    fn conditions(&self, links: &Links<'m>, leaves: bool) -> Vec<Condition<'m>> {
        use Condition::{Answers, From, In, Out, To, Translated};
        let receiver = |protocol, port| Condition::Port(PortOf::Receiver(protocol, port));
        let on = |[iif, oif]: [Option<&'m str>; 2], rest: &[Condition<'m>]| {
            let links = iif.map(In).into_iter().chain(oif.map(Out));
            links.chain(rest.iter().copied()).collect()
        };
        let (out, back) = ([links.near, links.far], [links.far, links.near]);
        match *self {
            Match::From(net) => on(out, &[From(*net)]),
            Match::To(net) => vec![To(*net)],
            Match::Within(net) => vec![From(*net), To(*net)],
            Match::Flow(net, to, protocol, port) => {
                on(out, &[From(*net), To(IpNet::from(to)), receiver(protocol, port)])
            }
            Match::Arp => vec![Condition::Arp],
            Match::ArpFrom(net) => vec![Condition::ArpFrom(net)],
            Match::ArpTo(net) => vec![Condition::ArpTo(net)],
            Match::Packet(Fields { from, to, port }) => {
                let ends = from.map(From).into_iter().chain(to.map(To));
                ends.chain(port.map(Condition::Port)).collect()
            }
            Match::Machine(to, protocol, port) => {
                vec![To(IpNet::from(to)), receiver(protocol, port)]
            }
            Match::Answers => vec![Answers],
            Match::AnswersTo(net) => on(back, &[To(*net), Answers]),
            Match::AnswersFrom(net) => vec![From(*net), Answers],
            Match::Published(to, protocol, port) => {
                vec![To(IpNet::from(to)), receiver(protocol, port), Translated]
            }
            Match::Neighbours => vec![Condition::Neighbours],
            Match::Loopback if leaves => vec![Out("lo")],
            Match::Loopback => vec![In("lo")],
            Match::Port(None, protocol, port) => vec![receiver(protocol, port)],
            Match::Port(Some(net), protocol, port) => vec![From(*net), receiver(protocol, port)],
        }
    }
}

/// Writes a subnet of one address as that address.
fn short(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

/// Returns a protocol, the word for the end that has a port, and the port.
fn port_words(port: PortOf) -> (&'static str, &'static str, u16) {
    match port {
        PortOf::Sender(protocol, port) => (protocol, "sport", port),
        PortOf::Receiver(protocol, port) => (protocol, "dport", port),
    }
}

/// What a rule lets through, where it is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleMatch<'m> {
    pub(super) what: Match<'m>,
    pub(super) links: Links<'m>,
    /// The rule sees what leaves the namespace.
    pub(super) leaves: bool,
    pub(super) is_ipv4: bool,
}

impl RuleMatch<'_> {
    fn words(&self, word: impl Fn(&Condition<'_>) -> String) -> String {
        let all = self.what.conditions(&self.links, self.leaves);
        all.iter().map(word).collect::<Vec<String>>().join(" ")
    }

    /// Returns it as iptables has it.
    pub(super) fn iptables(&self) -> String {
        self.words(|one| match one {
            Condition::In(link) => format!("-i {link}"),
            Condition::Out(link) => format!("-o {link}"),
            Condition::From(net) => format!("-s {}", short(net)),
            Condition::To(net) => format!("-d {}", short(net)),
            Condition::Port(port) => {
                let (protocol, side, port) = port_words(*port);
                format!("-p {protocol} --{side} {port}")
            }
            Condition::Answers => "-m conntrack --ctstate ESTABLISHED,RELATED".to_owned(),
            Condition::Translated => "-m conntrack --ctstate DNAT".to_owned(),
            Condition::Neighbours => "-p ipv6-icmp".to_owned(),
            Condition::Arp | Condition::ArpFrom(_) | Condition::ArpTo(_) => "-p arp".to_owned(),
        })
    }

    /// Returns it as nft has it.
    pub(super) fn nft(&self) -> String {
        let ip = if self.is_ipv4 { "ip" } else { "ip6" };
        self.words(|one| match one {
            Condition::In(link) => format!("iifname {link}"),
            Condition::Out(link) => format!("oifname {link}"),
            Condition::From(net) => format!("{ip} saddr {}", short(net)),
            Condition::To(net) => format!("{ip} daddr {}", short(net)),
            Condition::Port(port) => {
                let (protocol, side, port) = port_words(*port);
                format!("{protocol} {side} {port}")
            }
            Condition::Answers => "ct state established,related".to_owned(),
            Condition::Translated => "ct status dnat".to_owned(),
            Condition::Neighbours => {
                "icmpv6 type '{ nd-neighbor-solicit, nd-neighbor-advert }'".to_owned()
            }
            Condition::Arp => "ether type arp".to_owned(),
            Condition::ArpFrom(net) => format!("arp saddr ip {}", short(net)),
            Condition::ArpTo(net) => format!("arp daddr ip {}", short(net)),
        })
    }

    /// Returns it as ebtables has it (`man 8 ebtables-nft`).
    pub(super) fn ebtables(&self) -> String {
        let (kind, ip) = if self.is_ipv4 { ("-p IPv4", "ip") } else { ("-p IPv6", "ip6") };
        let words = self.words(|one| match one {
            Condition::From(net) => format!("--{ip}-src {}", short(net)),
            Condition::To(net) => format!("--{ip}-dst {}", short(net)),
            Condition::Port(port) => {
                let (protocol, side, port) = port_words(*port);
                format!("--{ip}-proto {protocol} --{ip}-{side} {port}")
            }
            Condition::Arp => "-p ARP".to_owned(),
            Condition::ArpFrom(net) => format!("-p ARP --arp-ip-src {}", short(net)),
            Condition::ArpTo(net) => format!("-p ARP --arp-ip-dst {}", short(net)),
            // Solicitations and advertisements (RFC 4861 §4.3, §4.4).
            _ => "--ip6-proto ipv6-icmp --ip6-icmp-type 135:136".to_owned(),
        });
        match self.what {
            Match::Arp | Match::ArpFrom(_) | Match::ArpTo(_) => words,
            _ => format!("{kind} {words}"),
        }
    }

    /// Returns it as arptables has it (`man 8 arptables-nft`).
    pub(super) fn arptables(&self) -> String {
        self.words(|one| match one {
            Condition::ArpTo(net) => format!("-d {}", short(net)),
            Condition::ArpFrom(net) => format!("-s {}", short(net)),
            _ => String::new(),
        })
    }

    /// Returns the expressions of the rule in nftables that asks for it.
    pub(super) fn steps(&self) -> Vec<Step> {
        let all = self.what.conditions(&self.links, self.leaves);
        all.iter().flat_map(|one| self.steps_of(one)).collect()
    }

    fn steps_of(&self, one: &Condition<'_>) -> Vec<Step> {
        // Where the addresses lie in the header (RFC 791 §3.1, RFC 8200 §3, RFC 826).
        let [from, to] = if self.is_ipv4 { [12, 16] } else { [8, 24] };
        let kind = if self.is_ipv4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        match one {
            Condition::In(link) => vec![meta(Meta::IifName), equal(padded(link))],
            Condition::Out(link) => vec![meta(Meta::OifName), equal(padded(link))],
            Condition::From(net) => [ethertype(kind), in_net(from, net)].concat(),
            Condition::To(net) => [ethertype(kind), in_net(to, net)].concat(),
            Condition::Port(port) => {
                let (protocol, side, port) = port_words(*port);
                let offset = if side == "sport" { 0 } else { 2 };
                let number = if protocol == "tcp" { TCP } else { UDP };
                let load = Step::Payload { base: Header::Transport, offset, len: 2, to: 0 };
                vec![
                    meta(Meta::L4Proto),
                    equal(vec![number]),
                    load,
                    equal(port.to_be_bytes().into()),
                ]
            }
            // linux include/uapi/linux/netfilter/nf_conntrack_common.h: the states established and
            // related, and `IPS_DST_NAT`.
            Condition::Answers => has_bits(Connection::State, 6),
            Condition::Translated => has_bits(Connection::Status, 1 << 5),
            Condition::Neighbours => vec![
                meta(Meta::L4Proto),
                equal(vec![ICMPV6]),
                Step::Payload { base: Header::Transport, offset: 0, len: 1, to: 0 },
                Step::Range { invert: false, from: 0, first: vec![135], last: vec![136] },
            ],
            Condition::Arp => ethertype(ETHERTYPE_ARP),
            Condition::ArpFrom(net) => [ethertype(ETHERTYPE_ARP), in_net(14, net)].concat(),
            Condition::ArpTo(net) => [ethertype(ETHERTYPE_ARP), in_net(24, net)].concat(),
        }
    }
}

/// IANA's numbers of protocols, and of types of Ethernet's frames.
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

fn meta(key: Meta) -> Step {
    Step::Meta { key, to: 0 }
}

fn equal(with: Vec<u8>) -> Step {
    Step::Compare { op: Comparison::Equal, from: 0, with }
}

fn ethertype(kind: u16) -> Vec<Step> {
    vec![meta(Meta::Protocol), equal(kind.to_be_bytes().into())]
}

/// The name of a link as a register has it (IFNAMSIZ).
fn padded(link: &str) -> Vec<u8> {
    let mut bytes = link.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

/// Asks whether the address at an offset is in a subnet.
fn in_net(offset: u32, net: &IpNet) -> Vec<Step> {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mask = bytes(net.netmask());
    let len = if mask.len() == 4 { 4 } else { 16 };
    let xor = vec![0; mask.len()];
    vec![
        Step::Payload { base: Header::Network, offset, len, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask, xor },
        equal(bytes(net.network())),
    ]
}

fn has_bits(key: Connection, bits: u32) -> Vec<Step> {
    vec![
        Step::Connection { key, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: bits.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Step::Compare { op: Comparison::NotEqual, from: 0, with: vec![0; 4] },
    ]
}
