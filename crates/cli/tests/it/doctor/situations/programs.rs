//! Programs that hold a port or a queue, and read nothing from it.

use super::node::{Node, Way};
use super::{Act, ExpectedFinding, Fix, HintReason, Situation, Symptom};

/// What c1 serves at port 80.
const SERVED: &[Way] = &[Way::Published, Way::PublishedHere, Way::FromNode, Way::Inside];

pub(super) const PROGRAMS: &[Situation] = &[
    Situation {
        number: 1,
        is: "the program accepts no connections any more",
        breaks: Act::Do(|node| node.hang(true)),
        fails: Symptom::Silent(SERVED),
        finds: ExpectedFinding::First("program-hangs", "c1:80/tcp"),
        fix: Fix::Hint(HintReason::Program, "only its owner knows the program"),
        mends: Act::Do(|node| node.hang(false)),
    },
    Situation {
        number: 2,
        is: "the program is stopped by a signal",
        breaks: Act::Do(Node::stop_program),
        fails: Symptom::Silent(SERVED),
        finds: ExpectedFinding::First("program-hangs", "c1:80/tcp"),
        fix: Fix::Hint(HintReason::Choice, "it may be debugged"),
        mends: Act::Do(|node| {
            node.end_others();
            node.serve(Some("[::]:80"));
        }),
    },
    Situation {
        number: 3,
        is: "the program serves IPv6 alone",
        breaks: Act::Do(|node| {
            node.serve(None);
            node.run("ip netns exec c1 sysctl -qw net.ipv6.bindv6only=1");
            node.serve(Some("[::]:80"));
        }),
        fails: Symptom::Silent(SERVED),
        finds: ExpectedFinding::First("nothing-listens", "c1:80/tcp"),
        fix: Fix::Hint(HintReason::Program, "it is the program's configuration"),
        mends: Act::Do(|node| {
            node.serve(None);
            node.run("ip netns exec c1 sysctl -qw net.ipv6.bindv6only=0");
            node.serve(Some("[::]:80"));
        }),
    },
    Situation {
        number: 4,
        is: "packets wait for a program that judges none",
        breaks: Act::Do(|node| {
            node.read_queue("hold");
            node.run("iptables-nft -I FORWARD -j NFQUEUE --queue-num 7");
        }),
        fails: Symptom::Silent(&[Way::Out4, Way::Published, Way::Names]),
        finds: ExpectedFinding::First("forward-dropped", "ip filter/FORWARD rule 1"),
        fix: Fix::Hint(HintReason::Program, "its owner must see why it hangs"),
        mends: Act::Do(|node| {
            node.run("nft delete table ip filter");
            node.end_others();
        }),
    },
    Situation {
        number: 5,
        is: "the program's control group is frozen",
        breaks: Act::Do(Node::freeze_program),
        fails: Symptom::Silent(SERVED),
        finds: ExpectedFinding::First("program-hangs", "c1:80/tcp"),
        fix: Fix::Hint(HintReason::Choice, "it may be paused on purpose"),
        mends: Act::Do(|node| {
            node.end_others();
            node.serve(Some("[::]:80"));
        }),
    },
];
