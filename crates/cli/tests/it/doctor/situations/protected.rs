//! Packet filters of others that stop containers, and protect something besides. The printed fix
//! mends the node, and what the administrator keeps from containers stays out of their reach.

use std::time::Instant;

use serde_json::Value;
use testkit::Lab;

use super::node::{MENDED, Node, Way, findings};
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

/// Commands after those that give the server another address of each IP version, which c1 reaches.
/// An administrator drops what goes there.
macro_rules! with_a_secret {
    ($more:expr $(,)?) => {
        concat!(
            "ip -n server addr add 203.0.113.9/24 dev eth0
             ip -n server addr add 2001:db8:5::9/64 dev eth0 nodad preferred_lft 0
             for to in 203.0.113.9 2001:db8:5::9
             do ip netns exec c1 ping -n -q -c 1 -W 5 $to
             done
             ",
            $more
        )
    };
}

/// Commands before those that remove the addresses.
macro_rules! without_it {
    ($more:literal $(,)?) => {
        concat!(
            $more,
            "
             ip -n server addr del 203.0.113.9/24 dev eth0
             ip -n server addr del 2001:db8:5::9/64 dev eth0"
        )
    };
}

/// The policy of `iptables-nft` or `iptables-legacy` drops, below what an administrator drops.
macro_rules! iptables_policy {
    ($kind:literal) => {
        with_a_secret!(concat!(
            "for version in '' 6
             do tool=ip${version}tables-",
            $kind,
            "
                $tool -A FORWARD -d $(test $version && echo 2001:db8:5::9 || echo 203.0.113.9) -j DROP
                $tool -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
                $tool -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT
                $tool -P FORWARD DROP
             done"
        ))
    };
}

/// A chain of theirs drops that many rules use, those of an administrator too.
macro_rules! iptables_shared_chain {
    ($kind:literal) => {
        with_a_secret!(concat!(
            "for version in '' 6
             do tool=ip${version}tables-",
            $kind,
            "
                $tool -N LOGDROP
                $tool -A LOGDROP -j DROP
                $tool -A FORWARD -d $(test $version && echo 2001:db8:5::9 || echo 203.0.113.9) -j LOGDROP
                $tool -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
                $tool -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT
                $tool -A FORWARD -i cni0 -j LOGDROP
                $tool -A FORWARD -i tun0 -j LOGDROP
             done"
        ))
    };
}

/// Neither address is reached.
const KEEPS: &str = "for to in 203.0.113.9 2001:db8:5::9
    do ! ip netns exec c1 ping -n -q -c 1 -W 1 $to || exit 1
    done";

const NO_TABLES: &str = without_it!(
    "for family in ip ip6 inet
     do nft list tables $family | while read -r table family name
        do test $name = netwright || nft delete $table $family $name
        done
     done"
);

pub(super) const PROTECTED: &[Situation] = &[
    Situation {
        number: 1,
        is: "the policy of nft drops, below what an administrator drops",
        breaks: Act::Sh(with_a_secret!(
            "nft 'add table inet fw; \
             add chain inet fw forward { type filter hook forward priority 0; policy drop; }; \
             add rule inet fw forward ip daddr 203.0.113.9 drop; \
             add rule inet fw forward ip6 daddr 2001:db8:5::9 drop; \
             add rule inet fw forward ct state established,related accept; \
             add rule inet fw forward ct status dnat accept'"
        )),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "inet fw/forward policy"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 2,
        is: "the last rule of nft rejects, below what an administrator drops",
        breaks: Act::Sh(with_a_secret!(
            "nft 'add table inet fw; \
             add chain inet fw forward { type filter hook forward priority 0; }; \
             add rule inet fw forward ip daddr 203.0.113.9 drop; \
             add rule inet fw forward ip6 daddr 2001:db8:5::9 drop; \
             add rule inet fw forward ct state established,related accept; \
             add rule inet fw forward ct status dnat accept; \
             add rule inet fw forward reject'"
        )),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "inet fw/forward rule 5"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 3,
        is: "the policy of iptables drops, below what an administrator drops",
        breaks: Act::Sh(iptables_policy!("nft")),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "filter/FORWARD policy"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 4,
        is: "a chain that many rules of nft use drops",
        breaks: Act::Sh(with_a_secret!(
            "nft 'add table inet fw; \
             add chain inet fw logdrop; \
             add rule inet fw logdrop counter drop; \
             add chain inet fw forward { type filter hook forward priority 0; }; \
             add rule inet fw forward ip daddr 203.0.113.9 jump logdrop; \
             add rule inet fw forward ip6 daddr 2001:db8:5::9 jump logdrop; \
             add rule inet fw forward ct state established,related accept; \
             add rule inet fw forward ct status dnat accept; \
             add rule inet fw forward iifname \"cni0\" jump logdrop; \
             add rule inet fw forward iifname \"tun0\" jump logdrop'"
        )),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "inet fw/logdrop rule 1"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 5,
        is: "a chain that many rules of iptables use drops",
        breaks: Act::Sh(iptables_shared_chain!("nft")),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "filter/LOGDROP rule 1"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 6,
        is: "chains of ufw are left, and ufw is off",
        breaks: Act::Sh(with_a_secret!(
            "for version in '' 6
             do tool=ip${version}tables-nft
                own=ufw$version-user-forward
                $tool -N $own
                $tool -A $own -i tun0 -j ACCEPT
                $tool -A FORWARD -d $(test $version && echo 2001:db8:5::9 || echo 203.0.113.9) -j DROP
                $tool -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
                $tool -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT
                $tool -A FORWARD -j $own
                $tool -P FORWARD DROP
             done"
        )),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "filter/FORWARD policy"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 8,
        is: "a policy drops what is for a published port, below what an administrator drops",
        breaks: Act::Sh(with_a_secret!(
            "nft 'add table inet fw; \
             add chain inet fw forward { type filter hook forward priority 0; policy drop; }; \
             add rule inet fw forward ip saddr 203.0.113.9 drop; \
             add rule inet fw forward ip daddr 203.0.113.9 drop; \
             add rule inet fw forward ip6 daddr 2001:db8:5::9 drop; \
             add rule inet fw forward ct state established,related accept; \
             add rule inet fw forward iifname \"cni0\" accept'"
        )),
        fails: Symptom::Silent(&[Way::Published]),
        finds: ExpectedFinding::First("forward-dropped", "inet fw/forward policy"),
        fix: Fix::MendsBut(
            "! ip netns exec server python3 -c 'import socket; \
             socket.create_connection((\"198.51.100.1\", 8080), 1, (\"203.0.113.9\", 0))' || exit 1
             ! ip netns exec c1 ping -n -q -c 1 -W 1 203.0.113.9",
        ),
        mends: Act::Sh(NO_TABLES),
    },
    Situation {
        number: 11,
        is: "the first rule of nft drops all, above what an administrator drops",
        breaks: Act::Sh(with_a_secret!(
            "nft 'add table inet fw; \
             add chain inet fw forward { type filter hook forward priority 0; }; \
             add rule inet fw forward iifname \"cni0\" oifname \"up0\" drop; \
             add rule inet fw forward ip daddr 203.0.113.9 drop; \
             add rule inet fw forward ip6 daddr 2001:db8:5::9 drop'"
        )),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "inet fw/forward rule 1"),
        fix: Fix::Hint(
            HintReason::Choice,
            "a rule before it for all would let pass what the rules below drop",
        ),
        mends: Act::Sh(NO_TABLES),
    },
];

pub(super) const LEGACY: &[Situation] = &[
    Situation {
        number: 9,
        is: "the policy of legacy iptables drops, below what an administrator drops",
        breaks: Act::Sh(iptables_policy!("legacy")),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "filter/FORWARD policy"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_LEGACY),
    },
    Situation {
        number: 10,
        is: "a chain that many rules of legacy iptables use drops",
        breaks: Act::Sh(iptables_shared_chain!("legacy")),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Names, Way::Large]),
        finds: ExpectedFinding::First("forward-dropped", "filter/LOGDROP rule 1"),
        fix: Fix::MendsBut(KEEPS),
        mends: Act::Sh(NO_LEGACY),
    },
];

const NO_LEGACY: &str = without_it!(
    "for tool in iptables-legacy ip6tables-legacy
     do $tool -P FORWARD ACCEPT
        $tool -F
        $tool -X
     done"
);

/// A container lets nothing out beside its tunnel. The printed commands let through what a probe sent,
/// and no more, and the advice says what that takes away.
pub(super) fn kill_switch() {
    let node = Node::without_firewall(Lab::new("doctor-kill-switch"));
    let run = |commands: &str| {
        let (done, said) = node.run(commands);
        assert!(done, "{commands}: {said}");
    };
    run("nsenter --net=/run/netns/c1 nft 'add table inet kill; \
         add chain inet kill out { type filter hook output priority 0; policy drop; }; \
         add rule inet kill out oifname { \"lo\", \"wg0\" } accept; \
         add rule inet kill out ip daddr 203.0.113.77 udp dport 51820 accept; \
         add rule inet kill out ct state established,related accept'");
    let closed = [Way::Out4, Way::Out6, Way::Between];
    let lost = [&closed[..], &[Way::Names]].concat();
    assert_eq!(node.silent(&lost), lost);
    let found = findings(&node.doctor(&[]));
    let own: Vec<&Value> = found.iter().filter(|one| one["id"] == "inside-dropped").collect();
    assert!(!own.is_empty(), "{found:#?}");
    for finding in &own {
        let advice = finding["advice"].to_string();
        let words = ["may be meant, as the kill switch of a VPN is", "takes its protection away"];
        assert!(words.iter().all(|part| advice.contains(part)), "{finding:#?}");
    }
    for fix in own.iter().flat_map(|one| one["fix"].as_array().into_iter().flatten()) {
        run(fix.as_str().unwrap());
    }
    let deadline = Instant::now() + MENDED;
    while !node.silent(&[Way::Names]).is_empty() {
        assert!(Instant::now() < deadline, "{found:#?}");
    }
    assert_eq!(node.silent(&closed), closed, "{own:#?}");
}
