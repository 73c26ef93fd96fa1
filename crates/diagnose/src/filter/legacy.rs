//! Tables of the older iptables, whose rules are text as `iptables-save` writes it.
//!
//! Matches that are not known here may hold or not.

use std::net::IpAddr;

use ipnet::IpNet;

use super::bits::Truth;
use super::ends::{Ends, NewDestination};
use super::foreign::ForeignKind;
use super::order::legacy_priority;
use super::packet::{Packet, Payload, State};
use super::place::{Call, Place};
use super::properties::type_of;
use super::queues::{QueueOutcome, queued};
use super::run::Run;
use crate::model::filter::LegacyTable;

/// How deep chains may call each other here.
const DEPTH: u8 = 16;

/// linux include/uapi/linux/rtnetlink.h `RTN_LOCAL`.
const RTN_LOCAL: u32 = 2;

/// Returns what may come of a packet in a chain that is built in.
pub(crate) fn base(run: &mut Run<'_>, table: &LegacyTable, chain: &str) -> Ends {
    let mut ends = Ends::default();
    let mut walk = Walk { table, base: chain, ends: &mut ends };
    let falls = walk.chain(run, chain, true, 0);
    let policy = table.policies.iter().find(|(name, _)| name == chain);
    if falls {
        match policy.map(|(_, policy)| policy.as_str()) {
            Some("DROP") => {
                let place = Place { says: "policy DROP".to_owned(), ..walk.place(run, chain) };
                ends.stop(place, None, true);
            }
            _ => ends.accepts = true,
        }
    }
    ends
}

struct Walk<'w> {
    table: &'w LegacyTable,
    base: &'w str,
    ends: &'w mut Ends,
}

impl Walk<'_> {
    /// Returns whether the packet may come back from the chain.
    fn chain(&mut self, run: &mut Run<'_>, chain: &str, sure: bool, depth: u8) -> bool {
        let table = self.table;
        let own = [family(table), table.name.as_str(), chain];
        let mut returns = false;
        let rules = table.rules.iter().filter_map(|rule| {
            let words = words(rule);
            let is_here = words.first()? == "-A" && words.get(1)? == chain;
            is_here.then_some((rule.as_str(), words))
        });
        let mut met = Vec::new();
        for (index, rule) in rules.map(Some).chain([None]).enumerate() {
            let added = run.added.iter().filter_map(|one| one.of_iptables(own, index));
            met.extend(added.map(|text| (index, text, words(text))));
            let rule = rule.filter(|_| !run.ignores(own, index));
            met.extend(rule.map(|(text, words)| (index, text, words)));
        }
        for (index, text, words) in met {
            let rule = Rule::of(run, words.get(2..).unwrap_or_default());
            let place = Place {
                rule: Some((index.saturating_add(1), 0)),
                says: text.to_owned(),
                ..self.place(run, chain)
            };
            let sure = sure && !returns && rule.holds == Truth::Yes;
            if rule.holds == Truth::No {
                continue;
            }
            let (on, may_return) = self.judge(run, &rule, place, sure, depth);
            returns |= may_return;
            if !on && rule.holds == Truth::Yes {
                return returns;
            }
        }
        true
    }

    /// Returns whether the next rule is asked, and whether the chain may be left for its caller.
    fn judge(
        &mut self,
        run: &mut Run<'_>,
        rule: &Rule,
        place: Place,
        sure: bool,
        depth: u8,
    ) -> (bool, bool) {
        let Some(target) = &rule.target else { return (true, false) };
        match target.as_str() {
            "ACCEPT" => self.ends.accepts = true,
            "DROP" => self.ends.stop(place, None, sure),
            "RETURN" => return (false, true),
            "QUEUE" | "NFQUEUE" => match queued(run.namespace, rule.queues, rule.bypass) {
                QueueOutcome::Judged => self.ends.doubt(place),
                QueueOutcome::Passes => self.ends.accepts = true,
                QueueOutcome::Dropped => self.ends.stop(place, None, sure),
            },
            name if self.has(name) && depth < DEPTH => {
                let call =
                    place.rule.map(|rule| Call { chain: place.chain, rule, says: place.says });
                let deeper = run.calls.len();
                run.calls.extend(call);
                let back = self.chain(run, name, sure, depth.saturating_add(1));
                run.calls.truncate(deeper);
                return if rule.goes { (false, back) } else { (back, false) };
            }
            name => match ForeignKind::of(name) {
                ForeignKind::Reject => {
                    let with = rule.reject_with.clone().unwrap_or_else(|| "an ICMP error".into());
                    self.ends.stop(place, Some(with), sure);
                }
                ForeignKind::Source => {
                    self.ends.source.get_or_insert((place, rule.new_source()));
                }
                ForeignKind::Destination => {
                    let new = rule.new_destination(name);
                    self.ends.choices.push((place.clone(), new.clone()));
                    self.ends.destinations.push((place, new));
                }
                ForeignKind::Effect | ForeignKind::Nothing => {
                    match name {
                        "CT" | "NOTRACK" => {
                            run.maybe_untracked = true;
                            let is_sure = sure && !self.ends.accepts;
                            if is_sure && (rule.notrack || name == "NOTRACK") {
                                run.untracked.get_or_insert(place);
                            }
                        }
                        "MARK" => {
                            let new = rule.mark.zip(run.packet.mark);
                            let new = new.map(|((value, mask), mark)| mark & !mask ^ value);
                            run.set_mark(self.ends, new, place, sure);
                        }
                        "CONNMARK" => run.packet.mark = None,
                        "TTL" | "HL" => {
                            let is_sure = sure && self.ends.is_open();
                            match rule.fewer {
                                Some(by) => run.lower_hops(place, Some(by), is_sure),
                                None => run.set_hops(place, rule.hops, is_sure),
                            }
                        }
                        _ => {}
                    }
                    return (true, false);
                }
                ForeignKind::Condition | ForeignKind::Judge => {
                    self.ends.doubt(place);
                    return (true, true);
                }
            },
        }
        (false, false)
    }

    fn has(&self, chain: &str) -> bool {
        self.table.chains.iter().any(|own| own == chain)
            || self.table.policies.iter().any(|(name, _)| name == chain)
            || self.table.rules.iter().any(|rule| {
                let mut words = rule.split_whitespace();
                matches!(words.next(), Some("-A" | "-N")) && words.next() == Some(chain)
            })
    }

    fn place(&self, run: &Run<'_>, chain: &str) -> Place {
        Place {
            family: family(self.table),
            legacy: true,
            table: self.table.name.clone(),
            hook: run.hook,
            base: self.base.to_owned(),
            priority: legacy_priority(&self.table.name, run.hook),
            chain: chain.to_owned(),
            rule: None,
            comment: None,
            says: String::new(),
            calls: run.calls.clone(),
        }
    }
}

/// The word for a table's family.
fn family(table: &LegacyTable) -> &'static str {
    if table.ipv4 { "iptables" } else { "ip6tables" }
}

/// A rule, as far as it could be understood.
struct Rule {
    holds: Truth,
    target: Option<String>,
    /// It does not come back from its target.
    goes: bool,
    reject_with: Option<String>,
    to: Option<String>,
    /// It takes the packet from connection tracking.
    notrack: bool,
    /// The first and the last of the queues of which one gets the packet.
    queues: [u16; 2],
    /// The packet passes if no program reads that.
    bypass: bool,
    /// The mark that it gives the packet, and the bits that it clears first.
    mark: Option<(u32, u32)>,
    /// How many hops it gives the packet.
    hops: Option<u8>,
    /// How many hops it takes from those of the packet.
    fewer: Option<u8>,
}

impl Rule {
    fn of(run: &Run<'_>, words: &[String]) -> Self {
        let mut rule = Rule {
            holds: Truth::Yes,
            target: None,
            goes: false,
            reject_with: None,
            to: None,
            notrack: false,
            queues: [0, 0],
            bypass: false,
            mark: None,
            hops: None,
            fewer: None,
        };
        let mut inverted = false;
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            if word == "!" {
                inverted = true;
                continue;
            }
            let mut values = Vec::new();
            while let Some(value) = words.next_if(|next| !next.starts_with('-') && *next != "!") {
                values.push(value);
            }
            let value = values.first().copied().unwrap_or_default();
            match word {
                "-j" | "-g" => {
                    rule.target = Some(value.to_owned());
                    rule.goes = word == "-g";
                }
                "--reject-with" => rule.reject_with = Some(value.to_owned()),
                "--to-destination" | "--to-source" => rule.to = Some(value.to_owned()),
                "--notrack" => rule.notrack = true,
                "--queue-num" | "--queue-balance" => rule.queues = queues(value),
                "--queue-bypass" => rule.bypass = true,
                "--set-xmark" => rule.mark = mark(value),
                "--ttl-set" | "--hl-set" => rule.hops = value.parse().ok(),
                "--ttl-dec" | "--hl-dec" => rule.fewer = value.parse().ok(),
                // After the target there are its settings, which do not decide whether it matches.
                _ if rule.target.is_some() => {}
                _ => rule.holds = rule.holds.and(matches(run, word, value).unless(inverted)),
            }
            inverted = false;
        }
        rule
    }

    /// Reads `--to-source`, if that is one address: of a range none is certain.
    fn new_source(&self) -> Option<IpAddr> {
        let to = self.to.as_deref()?;
        let end = to.parse::<std::net::SocketAddr>().map(|end| end.ip());
        end.or_else(|_| to.parse()).ok()
    }

    /// Reads `--to-destination`: an address with a port or without.
    fn new_destination(&self, target: &str) -> NewDestination {
        let Some(to) = self.to.as_deref().filter(|_| target == "DNAT") else {
            return NewDestination::Unknown;
        };
        if let Ok(end) = to.parse::<std::net::SocketAddr>() {
            return NewDestination::To(Some(end.ip()), Some(end.port()));
        }
        match to.parse() {
            Ok(address) => NewDestination::To(Some(address), None),
            Err(_) => NewDestination::Unknown,
        }
    }
}

fn matches(run: &Run<'_>, option: &str, value: &str) -> Truth {
    let packet = &run.packet;
    match option {
        "-s" => is_in(packet.range(true), value),
        "-d" => is_in(packet.range(false), value),
        "-i" => is_link(packet.iif.as_deref(), packet.other_than[0].as_deref(), value),
        "-o" => is_link(packet.oif.as_deref(), packet.other_than[1].as_deref(), value),
        "-p" => is_protocol(packet, value),
        "--dport" | "--dports" => is_port(packet, value, false),
        "--sport" | "--sports" => is_port(packet, value, true),
        "--icmp-type" | "--icmpv6-type" => is_message(packet, value),
        "--ctstate" | "--state" => is_state(run, value),
        "--mark" => is_mark(packet, value),
        "--dst-type" => is_type(run, packet.range(false), value),
        "--src-type" => is_type(run, packet.range(true), value),
        // A module is named before its settings, and a comment decides nothing.
        "-m" => match value {
            "tcp" | "udp" | "comment" | "conntrack" | "state" | "addrtype" | "multiport"
            | "icmp" | "icmp6" | "mark" => Truth::Yes,
            _ => Truth::Maybe,
        },
        "--comment" => Truth::Yes,
        _ => Truth::Maybe,
    }
}

fn is_in(range: IpNet, prefix: &str) -> Truth {
    let net = prefix.parse::<IpNet>().or_else(|_| prefix.parse::<IpAddr>().map(IpNet::from));
    match net {
        Ok(net) if net.contains(&range) => Truth::Yes,
        Ok(net) if range.contains(&net) => Truth::Maybe,
        Ok(_) => Truth::No,
        Err(_) => Truth::Maybe,
    }
}

/// A name that ends in `+` stands for all that begin so.
fn is_link(link: Option<&str>, other_than: Option<&[String]>, name: &str) -> Truth {
    if let Some(others) = other_than {
        let is_excluded = others.iter().any(|other| other == name);
        return if is_excluded { Truth::No } else { Truth::Maybe };
    }
    let link = link.unwrap_or_default();
    Truth::known(match name.strip_suffix('+') {
        Some(start) => link.starts_with(start),
        None => link == name,
    })
}

fn is_protocol(packet: &Packet, name: &str) -> Truth {
    let number = match name {
        "all" => return Truth::Yes,
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        "ipv6-icmp" | "icmpv6" => 58,
        other => match other.parse::<u8>() {
            Ok(0) => return Truth::Yes,
            Ok(number) => number,
            Err(_) => return Truth::Maybe,
        },
    };
    Truth::known(packet.protocol() == Some(number))
}

/// Reads `80`, `80:90` and lists of them.
fn is_port(packet: &Packet, list: &str, source: bool) -> Truth {
    let Some((from, to)) = packet.carries.ports() else { return Truth::No };
    let port = if source { from } else { to };
    list.split(',').fold(Truth::No, |holds, part| {
        let (first, last) = part.split_once(':').unwrap_or((part, part));
        let one = match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => port.is_in(first, last),
            _ => Truth::Maybe,
        };
        holds.or(one)
    })
}

/// Reads `7` and `7:10`; what cannot be read stands for all queues.
fn queues(value: &str) -> [u16; 2] {
    let (first, last) = value.split_once(':').unwrap_or((value, value));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => [first, last],
        _ => [0, u16::MAX],
    }
}

/// Reads the type of a message of ICMP, `3`, and perhaps its code, `3/4`; those that are tried have
/// the code 0.
fn is_message(packet: &Packet, value: &str) -> Truth {
    let Payload::Icmp { kind } = packet.carries else { return Truth::No };
    let (number, code) = value.split_once('/').unwrap_or((value, "0"));
    if number == "any" {
        return Truth::Yes;
    }
    let is_it = |number: u8| Truth::known(number == kind && code == "0");
    number.parse().map_or(Truth::Maybe, is_it)
}

fn is_state(run: &Run<'_>, list: &str) -> Truth {
    if run.maybe_untracked || run.packet.iif.as_deref() == Some("lo") {
        return Truth::Maybe;
    }
    let packet = &run.packet;
    let has = |state: &str| match state {
        "NEW" => Truth::known(packet.state == State::New),
        "ESTABLISHED" => Truth::known(matches!(packet.state, State::Answer | State::Further)),
        "UNTRACKED" => Truth::known(packet.state == State::Untracked),
        "RELATED" | "INVALID" => Truth::No,
        "DNAT" => packet.destination_translated.map_or(Truth::Maybe, Truth::known),
        "SNAT" => packet.source_translated.map_or(Truth::Maybe, Truth::known),
        _ => Truth::Maybe,
    };
    list.split(',').fold(Truth::No, |holds, state| holds.or(has(state)))
}

fn is_mark(packet: &Packet, text: &str) -> Truth {
    match (packet.mark, mark(text)) {
        (Some(mark), Some((value, mask))) => Truth::known(mark & mask == value),
        _ => Truth::Maybe,
    }
}

/// Reads a mark and its mask: `0x1` and `0x1/0xff`.
fn mark(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    number(value).zip(number(mask))
}

fn is_type(run: &Run<'_>, range: IpNet, kind: &str) -> Truth {
    if range.prefix_len() < range.max_prefix_len() {
        return Truth::Maybe;
    }
    match type_of(run.namespace, range.addr()) {
        Some(found) if kind == "LOCAL" => Truth::known(found == RTN_LOCAL),
        _ => Truth::Maybe,
    }
}

/// Splits a rule into words, as a shell does: a comment in quotation marks is one.
fn words(rule: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut letters = rule.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => {
                let next = letters.next().unwrap_or('\\');
                word.get_or_insert_default().push(next);
            }
            letter if letter.is_whitespace() && !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_comment_is_one_word() {
        assert_eq!(
            words("-A FORWARD -m comment --comment \"a \\\"-j\\\" x\" -j DROP"),
            ["-A", "FORWARD", "-m", "comment", "--comment", "a \"-j\" x", "-j", "DROP"]
        );
    }
}
