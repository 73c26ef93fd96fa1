//! Counters of a namespace that move when the kernel, or a rule, drops a packet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;

use diagnose::model::Namespace;
use diagnose::model::filter::{Family as Kind, Step, Table, Verdict as FilterVerdict};
use kernel::nft::{Expr, Family, NftSocket, RuleInfo, TableRef, Verdict};

/// Files with counters: a line of names before each line of numbers, or a name in each line.
const FILES: [&str; 3] =
    ["/proc/thread-self/net/netstat", "/proc/thread-self/net/snmp", "/proc/thread-self/net/snmp6"];
/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 17;

/// Counters of these files, and the kernel's names of what they count.
const REASONS: [(&str, &str); 7] = [
    ("IPReversePathFilter", "IP_RPFILTER"),
    ("InNoRoutes", "IP_INNOROUTES"),
    ("OutNoRoutes", "IP_OUTNOROUTES"),
    ("InAddrErrors", "IP_INADDRERRORS"),
    ("Ip6InNoRoutes", "IP_INNOROUTES"),
    ("Ip6OutNoRoutes", "IP_OUTNOROUTES"),
    ("Ip6InAddrErrors", "IP_INADDRERRORS"),
];

/// How many tables are read for the counters in them, and how many rules a table may have.
const MOST_TABLES: usize = 8;
const MOST_RULES: usize = 2_000;

/// A rule: table, chain and handle.
pub(super) type Rule = (String, String, u64);

/// What counters say at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    system: BTreeMap<&'static str, u64>,
    rules: BTreeMap<Rule, u64>,
}

impl Counters {
    /// Reads those of the calling thread's namespace.
    pub(super) fn read(namespace: &Namespace) -> Self {
        let mut system = BTreeMap::new();
        for path in FILES {
            let mut text = String::new();
            let read =
                File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
            if read.is_ok() {
                read_text(&text, &mut system);
            }
        }
        Counters { system, rules: rules(namespace) }
    }
}

/// Returns the reason for drops whose counter alone has moved, and by how much.
pub(super) fn reason(before: &[Counters; 2], after: &Counters) -> Option<(&'static str, u64)> {
    let [first, second] = before.each_ref().map(|counters| &counters.system);
    let (name, moved) = only([first, second, &after.system])?;
    let (_, reason) = REASONS.iter().find(|(counter, _)| *counter == name)?;
    Some((*reason, moved))
}

/// Returns the rule that drops whose counter alone has moved, and by how much.
pub(super) fn rule(before: &[Counters; 2], after: &Counters) -> Option<(Rule, u64)> {
    let [first, second] = before.each_ref().map(|counters| &counters.rules);
    only([first, second, &after.rules])
}

/// Returns the only counter that has moved since the second reading, if it stood still before.
fn only<K: Ord + Clone>(readings: [&BTreeMap<K, u64>; 3]) -> Option<(K, u64)> {
    let [first, second, last] = readings;
    let mut moved = last.iter().filter_map(|(key, now)| {
        let then = second.get(key)?;
        let by = now.checked_sub(*then).filter(|by| 0 < *by)?;
        Some((key, by))
    });
    let (key, by) = moved.next()?;
    if moved.next().is_some() || first.get(key) != second.get(key) {
        return None;
    }
    Some((key.clone(), by))
}

fn read_text(text: &str, found: &mut BTreeMap<&'static str, u64>) {
    let mut names: Vec<&str> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs = names.iter().copied().zip(words.iter().copied());
        let alone = match words[..] {
            [name, value] => Some((name, value)),
            _ => None,
        };
        for (name, value) in pairs.chain(alone) {
            let known = REASONS.iter().find(|(counter, _)| *counter == name);
            if let (Some((counter, _)), Ok(value)) = (known, value.parse()) {
                found.insert(*counter, value);
            }
        }
        names = words;
    }
}

/// Reads the counters of rules that drop.
fn rules(namespace: &Namespace) -> BTreeMap<Rule, u64> {
    let mut found = BTreeMap::new();
    let tables: Vec<&Table> =
        namespace.filter.tables.iter().filter(|table| counts(table)).take(MOST_TABLES).collect();
    if tables.is_empty() {
        return found;
    }
    let Ok(mut socket) = NftSocket::open() else { return found };
    for table in tables {
        let table = TableRef::new(family(table.family), table.name.clone());
        for rule in socket.rules_of_table(&table).unwrap_or_default() {
            if let Some(packets) = dropped(&rule) {
                found.insert((table.to_string(), rule.chain, rule.handle), packets);
            }
        }
    }
    found
}

/// Says whether a table has rules that count what they drop, and not too many rules.
fn counts(table: &Table) -> bool {
    let rules = || table.chains.iter().flat_map(|chain| &chain.rules);
    let is_drop =
        |step: &Step| matches!(step, Step::Verdict(FilterVerdict::Drop) | Step::Reject { .. });
    rules().count() <= MOST_RULES
        && rules().any(|rule| {
            rule.steps.iter().any(|step| matches!(step, Step::Counter { .. }))
                && rule.steps.iter().any(is_drop)
        })
}

fn family(kind: Kind) -> Family {
    match kind {
        Kind::Ip => Family::Ip,
        Kind::Ip6 => Family::Ip6,
        Kind::Inet => Family::Inet,
        Kind::Arp => Family::Arp,
        Kind::Bridge => Family::Bridge,
        Kind::Netdev => Family::Netdev,
    }
}

/// Returns how many packets a rule has dropped.
fn dropped(rule: &RuleInfo) -> Option<u64> {
    let is_drop = |expr: &Expr| {
        matches!(expr, Expr::Verdict(Verdict::Drop) | Expr::Reject { .. })
            || matches!(expr, Expr::XtTarget { name, .. } if name == "REJECT")
    };
    let packets = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Counter { packets, .. } => Some(*packets),
        _ => None,
    })?;
    rule.exprs.iter().any(is_drop).then_some(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(text: &str) -> Counters {
        let mut system = BTreeMap::new();
        read_text(text, &mut system);
        Counters { system, rules: BTreeMap::new() }
    }

    /// As the kernel writes them, in part.
    fn texts(filtered: u64, no_route: u64, no_route6: u64) -> Counters {
        let mut all = system(&format!(
            "TcpExt: SyncookiesSent IPReversePathFilter PAWSActive\n\
             TcpExt: 1 {filtered} 3\n\
             IpExt: InNoRoutes InTruncatedPkts\n\
             IpExt: {no_route} 0\n"
        ));
        let of_v6 = format!("Ip6InReceives  \t7\nIp6InNoRoutes  \t{no_route6}\n");
        all.system.extend(system(&of_v6).system);
        all
    }

    #[test]
    fn the_counter_that_moved_tells_why() {
        let still = || texts(4, 5, 6);
        let moved = |after: &Counters| reason(&[still(), still()], after);
        assert_eq!(moved(&still()), None);
        assert_eq!(moved(&texts(6, 5, 6)), Some(("IP_RPFILTER", 2)));
        assert_eq!(moved(&texts(4, 6, 6)), Some(("IP_INNOROUTES", 1)));
        assert_eq!(moved(&texts(4, 5, 7)), Some(("IP_INNOROUTES", 1)));
        assert_eq!(moved(&texts(5, 6, 6)), None, "it may be either");
        // Others are dropped all the time.
        assert_eq!(reason(&[texts(3, 5, 6), still()], &texts(5, 5, 6)), None);
        assert_eq!(reason(&[still(), Counters::default()], &texts(5, 5, 6)), None);
    }

    #[test]
    fn the_rule_that_counted_is_told() {
        let counters = |one: u64, other: u64| {
            let rule = |handle| ("inet foreign".to_owned(), "forward".to_owned(), handle);
            let rules = BTreeMap::from([(rule(7), one), (rule(8), other)]);
            Counters { system: BTreeMap::new(), rules }
        };
        let still = [counters(1, 1), counters(1, 1)];
        let told = rule(&still, &counters(3, 1)).unwrap();
        assert_eq!((told.0.2, told.1), (7, 2));
        assert_eq!(rule(&still, &counters(2, 2)), None);
        // It was made again meanwhile.
        assert_eq!(rule(&still, &counters(0, 1)), None);
    }
}
