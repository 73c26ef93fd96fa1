//! Containers that are broken inside, and programs that listen or do not.

use super::node::Way;
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

pub(super) const INSIDE: &[Situation] = &[
    Situation {
        number: 34,
        is: "loopback is down",
        breaks: Act::Sh("ip -n c1 link set lo down"),
        fails: Symptom::Silent(&[Way::Inside]),
        finds: ExpectedFinding::First("loopback-down", "c1"),
        fix: Fix::Mends,
        mends: Act::Sh("ip -n c1 link set lo up"),
    },
    Situation {
        number: 41,
        is: "the container has a firewall of its own",
        breaks: Act::Sh(
            "nsenter --net=/run/netns/c1 nft \
             'add table inet own; add chain inet own out { type filter hook output priority 0; }; \
             add rule inet own out oifname \"eth0\" drop'",
        ),
        fails: Symptom::Silent(&[Way::Out4, Way::Out6, Way::Between, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("inside-dropped", "c1: inet own/out rule 1"),
        fix: Fix::Hint(
            HintReason::Choice,
            "what a container lets out is its owner's to decide: only what was probed is let through",
        ),
        mends: Act::Sh("nsenter --net=/run/netns/c1 nft delete table inet own"),
    },
    Situation {
        number: 49,
        is: "the container's addresses are gone",
        breaks: Act::Sh("ip -n c1 addr flush dev eth0 scope global"),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("attachment-differs", "failed to find IP {a1}/24"),
        fix: Fix::Mends,
        mends: Act::Sh("netwright repair"),
    },
    Situation {
        number: 50,
        is: "the container's interface is down",
        breaks: Act::Sh("ip -n c1 link set eth0 down"),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("attachment-differs", "\"eth0\" is down"),
        fix: Fix::Mends,
        mends: Act::Sh("netwright repair"),
    },
    Situation {
        number: 33,
        is: "the container's interface is in another namespace",
        breaks: Act::Sh("ip -n c1 link set eth0 netns c4"),
        fails: Symptom::Silent(Way::BY_ITS_LINK),
        finds: ExpectedFinding::First("attachment-differs", "is gone from the container"),
        fix: Fix::Hint(HintReason::Lost, "who moved it must move it back"),
        mends: Act::Sh("ip -n c4 link set eth0 netns c1; netwright repair"),
    },
    Situation {
        number: 28,
        is: "the container asks its own loopback for names",
        breaks: Act::Sh("echo nameserver 127.0.0.53 >/etc/netns/c1/resolv.conf"),
        fails: Symptom::Silent(&[Way::Names]),
        finds: ExpectedFinding::First("nameserver-loopback", "c1"),
        fix: Fix::Hint(HintReason::File, "the runtime writes that file"),
        mends: Act::Sh("cp /etc/netns/c2/resolv.conf /etc/netns/c1/resolv.conf"),
    },
    Situation {
        number: 42,
        is: "the program listens on 127.0.0.1 alone",
        breaks: Act::Do(|node| node.serve(Some("127.0.0.1:80"))),
        fails: Symptom::Silent(&[Way::Published, Way::PublishedHere, Way::FromNode]),
        finds: ExpectedFinding::First("listens-on-loopback", "c1:80/tcp"),
        fix: Fix::Hint(HintReason::Program, "it is the program's configuration"),
        mends: Act::Do(|node| node.serve(Some("[::]:80"))),
    },
    Situation {
        number: 63,
        is: "no program listens",
        breaks: Act::Do(|node| node.serve(None)),
        fails: Symptom::Silent(&[Way::Published, Way::PublishedHere, Way::FromNode, Way::Inside]),
        finds: ExpectedFinding::First("nothing-listens", "c1:80/tcp"),
        fix: Fix::Hint(HintReason::Program, "only its owner knows the program"),
        mends: Act::Do(|node| node.serve(Some("[::]:80"))),
    },
    Situation {
        number: 14,
        is: "a program of the node listens at the published port",
        breaks: Act::Do(|node| node.listen(true)),
        fails: Symptom::Silent(&[Way::Program]),
        finds: ExpectedFinding::First("port-hidden", "8080/tcp"),
        fix: Fix::Hint(HintReason::Choice, "one of the two needs another port"),
        mends: Act::Do(|node| node.listen(false)),
    },
];
