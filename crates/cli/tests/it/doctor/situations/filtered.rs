//! Packet filters of others.

use super::node::Way;
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

pub(super) const FILTERS: &[Situation] = &[
    Situation {
        number: 2,
        is: "another program's iptables rule drops forwarded packets",
        breaks: Act::Sh("iptables-nft -I FORWARD -j DROP"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip filter/FORWARD rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip filter"),
    },
    Situation {
        number: 15,
        is: "another tool's translation takes the published port first",
        breaks: Act::Sh(
            "nft 'add table ip other; \
             add chain ip other pre { type nat hook prerouting priority -100; }; \
             add rule ip other pre tcp dport 8080 dnat to 10.88.0.99:80'",
        ),
        fails: Symptom::Silent(&[Way::Published]),
        finds: ExpectedFinding::First("port-redirected", "ip other/pre rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table ip other"),
    },
    Situation {
        number: 16,
        is: "the whole rule set was flushed",
        breaks: Act::Sh("nft flush ruleset"),
        fails: Symptom::Silent(&[
            Way::Out4,
            Way::Out6,
            Way::Published,
            Way::PublishedHere,
            Way::Names,
        ]),
        finds: ExpectedFinding::First("attachment-differs", "table inet netwright"),
        fix: Fix::Mends,
        mends: Act::Sh("netwright repair"),
    },
    Situation {
        number: 29,
        is: "firewalld's table rejects what is forwarded",
        breaks: Act::Sh(
            "nft 'add table inet firewalld; \
             add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; }; \
             add rule inet firewalld filter_FORWARD ct state established,related accept; \
             add rule inet firewalld filter_FORWARD ct status dnat accept; \
             add rule inet firewalld filter_FORWARD iifname \"lo\" accept; \
             add rule inet firewalld filter_FORWARD reject with icmpx type admin-prohibited'",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "inet firewalld/filter_FORWARD rule 4"),
        fix: Fix::Hint(
            HintReason::Program,
            "STATUS refuses until firewalld runs, which nothing printed can start",
        ),
        mends: Act::Sh("nft delete table inet firewalld"),
    },
    Situation {
        number: 39,
        is: "a table of family bridge drops between containers",
        breaks: Act::Sh(
            "nft 'add table bridge foreign; \
             add chain bridge foreign forward { type filter hook forward priority 0; }; \
             add rule bridge foreign forward ether type ip drop'",
        ),
        fails: Symptom::Silent(&[Way::Between]),
        finds: ExpectedFinding::First("bridge-dropped", "bridge foreign/forward rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table bridge foreign"),
    },
    Situation {
        number: 58,
        is: "the node's firewall takes nothing in, not even questions for its hardware address",
        breaks: Act::Sh(
            "nft 'add table inet hostfw; \
             add chain inet hostfw input { type filter hook input priority 0; policy drop; }; \
             add rule inet hostfw input iifname \"lo\" accept; \
             add rule inet hostfw input ct state established,related accept'; \
             ip neigh flush all; ip -n c1 neigh flush all; ip -n outside neigh flush all",
        ),
        fails: Symptom::Silent(&[Way::Out6]),
        finds: ExpectedFinding::First("input-dropped", "inet hostfw/input policy"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table inet hostfw"),
    },
];

/// Filters that see frames. The printed commands leave their rules where they are.
pub(super) const FRAMES: &[Situation] = &[
    Situation {
        number: 61,
        is: "a chain at the node's end of a container's link drops all that comes in",
        breaks: Act::Sh(
            "nft 'add table netdev own; \
             add chain netdev own in { type filter hook ingress device \"{p1}\" priority 0; }; \
             add rule netdev own in drop'",
        ),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("bridge-dropped", "netdev own/in rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table netdev own"),
    },
    Situation {
        number: 62,
        is: "a rule of ebtables drops between the ports of bridges",
        breaks: Act::Sh("ebtables-nft -A FORWARD -j DROP"),
        fails: Symptom::Silent(&[Way::Between]),
        finds: ExpectedFinding::First("bridge-dropped", "bridge filter/FORWARD rule 1"),
        fix: Fix::Mends,
        mends: Act::Sh("nft delete table bridge filter"),
    },
    Situation {
        number: 63,
        is: "a rule of ebtables drops what the node sends to the ports of bridges",
        breaks: Act::Sh("ebtables-nft -A OUTPUT -p IPv4 --ip-dst {a1} --ip-proto tcp -j DROP"),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::PublishedHere, Way::FromNode]),
        finds: ExpectedFinding::First("bridge-dropped", "bridge filter/OUTPUT rule 1"),
        fix: Fix::Hint(HintReason::Choice, "no rule there tells answers from other packets"),
        mends: Act::Sh("nft delete table bridge filter"),
    },
];

pub(super) const LEGACY: &[Situation] = &[Situation {
    number: 3,
    is: "the policy of legacy iptables drops what is forwarded",
    breaks: Act::Sh("iptables-legacy -P FORWARD DROP"),
    fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
    finds: ExpectedFinding::First("forward-dropped", "iptables filter/FORWARD policy"),
    fix: Fix::Mends,
    mends: Act::Sh("iptables-legacy -P FORWARD ACCEPT"),
}];
