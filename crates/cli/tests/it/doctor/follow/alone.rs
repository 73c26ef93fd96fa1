//! Each means by which `doctor` follows probes tells alone where a packet ended: tracepoints, the
//! packet filter's trace, and counters.
//!
//! A situation in which a packet ends on the node or in a container is a row of [`LOST`], with what
//! each means says of that end. All other situations are in [`NOWHERE`], with the reason why
//! `doctor` can follow no packet to its end there.

use testkit::{Place as _, require, share};

use super::super::situations::node::Node;
use super::super::situations::{Act, act, all};
use super::noise;

use Statement::{At, Perhaps, Unknown};

/// The means by which `doctor` follows probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Tracepoints,
    Filter,
    Counters,
}

/// What one means says of the end of a packet.
#[derive(Debug, Clone, Copy)]
enum Statement {
    /// The link and the namespace.
    At(&'static str),
    /// The same, or nothing: that depends on when the kernel gives the packet up, or on packets of
    /// other programs.
    Perhaps(&'static str),
    Unknown,
}

/// How a packet gets lost, and what each means says of it.
#[derive(Debug)]
struct LostPacket {
    by: Fault,
    /// Commands after the fault that decide which neighbours the sender knows.
    then: &'static str,
    /// Undoes them.
    undo: &'static str,
    sent: Sender,
    /// The answer to the probe is lost, not the probe.
    back: bool,
    /// What tracepoints say. In busy traffic of equal sizes they tell no answer from other packets.
    traced: Statement,
    /// What the packet filter's trace says.
    judged: Statement,
    /// What counters say.
    counted: Statement,
}

#[derive(Debug)]
enum Fault {
    /// The situation of this number.
    Situation(u8),
    /// Another one, and what mends it.
    Made(Act, Act),
}

/// Who sends the probe, and where to.
#[derive(Debug, Clone, Copy)]
enum Sender {
    ByC1(&'static str),
    ByNode(&'static str),
}

const OUT4: &str = "203.0.113.2:80";
const OUT6: &str = "[2001:db8:5::2]:80";

const BRIDGE: Statement = At("cni0 of the node");

/// The probe of c1 to the server, of which no means tells the end.
const UNTOLD: LostPacket = LostPacket {
    by: Fault::Situation(0),
    then: "",
    undo: "",
    sent: Sender::ByC1(OUT4),
    back: false,
    traced: Unknown,
    judged: Unknown,
    counted: Unknown,
};

/// The node's routing drops it, or another thing that is no rule of nftables.
const fn not_routed(situation: u8) -> LostPacket {
    LostPacket { by: Fault::Situation(situation), traced: BRIDGE, counted: BRIDGE, ..UNTOLD }
}

/// A rule of the node drops it.
const fn filtered(situation: u8) -> LostPacket {
    LostPacket { judged: BRIDGE, ..not_routed(situation) }
}

/// It waits in c1 for a neighbour that does not answer. The kernel gives it up some seconds later.
const fn waits(situation: u8) -> LostPacket {
    LostPacket {
        by: Fault::Situation(situation),
        then: "ip -n c1 neigh flush all",
        traced: Perhaps("a link of c1"),
        counted: At("a link of c1"),
        ..UNTOLD
    }
}

/// It waits on the node for c1.
const fn waits_for_c1(situation: u8) -> LostPacket {
    LostPacket {
        then: "ip neigh flush all",
        sent: Sender::ByNode("{a1}:80"),
        traced: Perhaps("a link of the node"),
        counted: At("a link of the node"),
        ..waits(situation)
    }
}

/// The answer waits on the node for c1, where c1 is not.
const fn led_astray(situation: u8) -> LostPacket {
    LostPacket {
        by: Fault::Situation(situation),
        back: true,
        traced: Perhaps("up0 of the node"),
        counted: At("up0 of the node"),
        ..UNTOLD
    }
}

const LOST: &[LostPacket] = &[
    not_routed(1),
    filtered(2),
    not_routed(LEGACY),
    LostPacket {
        by: Fault::Situation(4),
        back: true,
        traced: At("up1 of the node"),
        counted: At("up1 of the node"),
        ..UNTOLD
    },
    not_routed(6),
    waits(11),
    // c1 has to know c2's hardware address: otherwise c1 does not even send it.
    LostPacket {
        by: Fault::Situation(12),
        then: "set -- $(ip -n c2 -br link show eth0)
               ip -n c1 neigh replace {a2} lladdr $3 dev eth0 nud permanent",
        undo: "ip -n c1 neigh del {a2} dev eth0",
        sent: Sender::ByC1("{a2}:80"),
        traced: At("{p1} of the node"),
        counted: At("{p1} of the node"),
        ..UNTOLD
    },
    // c1 has the bridge's hardware address, as before the fault.
    LostPacket {
        by: Fault::Situation(13),
        then: "set -- $(ip -br link show cni0)
               ip -n c1 neigh replace 10.88.0.1 lladdr $3 dev eth0 nud permanent",
        undo: "ip -n c1 neigh del 10.88.0.1 dev eth0",
        traced: At("{p1} of the node"),
        counted: At("{p1} of the node"),
        ..UNTOLD
    },
    // It leaves the node with c1's address, and the answer does not come back.
    LostPacket { by: Fault::Situation(16), ..UNTOLD },
    // The bridge sends it to all ports, and each container drops it as a copy for another.
    LostPacket { by: Fault::Situation(17), ..UNTOLD },
    // So the bridge does with the answer; but c1 has the address to which it is sent.
    LostPacket { by: Fault::Situation(18), back: true, counted: At("eth0 of c1"), ..UNTOLD },
    LostPacket { sent: Sender::ByC1(OUT6), ..not_routed(20) },
    filtered(29),
    led_astray(30),
    led_astray(31),
    not_routed(37),
    LostPacket {
        by: Fault::Situation(39),
        sent: Sender::ByC1("{a2}:80"),
        traced: At("{p1} of the node"),
        judged: At("{p1} of the node"),
        counted: At("{p1} of the node"),
        ..UNTOLD
    },
    // No link has seen it; the packet filter knows by which it was to leave.
    LostPacket {
        by: Fault::Situation(41),
        traced: At("a link of c1"),
        judged: At("eth0 of c1"),
        counted: At("a link of c1"),
        ..UNTOLD
    },
    not_routed(43),
    waits(44),
    waits(47),
    waits_for_c1(49),
    waits_for_c1(50),
    // The node finds no route for it once its destination is translated.
    LostPacket {
        by: Fault::Situation(57),
        sent: Sender::ByNode("127.0.0.1:8080"),
        traced: At("a link of the node"),
        counted: At("a link of the node"),
        ..UNTOLD
    },
    LostPacket { sent: Sender::ByC1("10.88.0.1:80"), ..filtered(58) },
    LostPacket { sent: Sender::ByC1(OUT6), ..waits(67) },
];

/// This situation needs a feature of its own.
const LEGACY: u8 = 3;

/// Situations in which `doctor` follows no packet to its end, and why.
const NOWHERE: [(&[u8], &str); 8] = [
    (&[5, 33], "c1 has no way out, so it sends nothing"),
    (&[9, 10], "only large packets are lost: sizes are tried, and not followed"),
    (&[14], "a container gets what a program should get"),
    (&[15], "it concerns packets that come from beyond the node, where doctor has no sender"),
    (&[28, 42, 63], "the kernel of c1 refuses it"),
    (&[34], "doctor sends nothing by the loopback of a container"),
    (&[22, 23, 25, 52, 53, 59, 66, 68], "ADD refuses, so there is no container that sends"),
    (&[24, 27, 61, 62], "nothing is lost, or the container is gone"),
];

const FOREIGN_GONE: &str = "nft delete table inet foreign";

/// Packets that no situation loses.
const MADE: &[LostPacket] = &[
    LostPacket {
        by: Fault::Made(
            Act::Sh(
                "nft 'table inet foreign { chain c { type filter hook forward priority 0; \
                 ip saddr 203.0.113.2 meta length > 20 drop; }; }'",
            ),
            Act::Sh(FOREIGN_GONE),
        ),
        back: true,
        traced: At("up0 of the node"),
        judged: At("up0 of the node"),
        counted: At("up0 of the node"),
        ..UNTOLD
    },
    LostPacket {
        by: Fault::Made(
            Act::Sh(
                "ip netns exec c1 nft 'table inet foreign { chain c { \
                 type filter hook input priority 0; ip saddr 203.0.113.2 meta length > 20 drop; }; }'",
            ),
            Act::Sh("ip netns exec c1 nft delete table inet foreign"),
        ),
        back: true,
        traced: Perhaps("eth0 of c1"),
        judged: At("eth0 of c1"),
        counted: At("eth0 of c1"),
        ..UNTOLD
    },
    LostPacket {
        by: Fault::Made(
            Act::Sh(
                "ip netns exec c2 nft 'table inet foreign { chain c { \
                 type filter hook input priority 0; tcp dport 80 meta length > 20 drop; }; }'",
            ),
            Act::Sh("ip netns exec c2 nft delete table inet foreign"),
        ),
        sent: Sender::ByC1("{a2}:80"),
        traced: At("eth0 of c2"),
        judged: At("eth0 of c2"),
        counted: At("eth0 of c2"),
        ..UNTOLD
    },
    // No machine has that gateway's address.
    LostPacket {
        by: Fault::Made(
            Act::Sh("ip -n c1 route replace default via 10.88.0.200"),
            Act::Sh("ip -n c1 route replace default via 10.88.0.1"),
        ),
        ..waits(0)
    },
];

/// How often an answer is followed until its end is told.
const TRIES: usize = 3;

/// How many of [`LOST`] one run with `--full` tries: each takes some ten seconds.
const OF_A_SHARE: usize = 5;

impl Fault {
    /// Returns what breaks the node, and what mends it.
    fn acts(&self) -> [&Act; 2] {
        match self {
            Fault::Situation(number) => {
                let situation = all().find(|one| one.number == *number).unwrap();
                [&situation.breaks, &situation.mends]
            }
            Fault::Made(breaks, mends) => [breaks, mends],
        }
    }
}

impl Statement {
    /// What is said if other packets may be taken for this one.
    fn if_at_all(self) -> Self {
        match self {
            At(place) | Perhaps(place) => Perhaps(place),
            Unknown => Unknown,
        }
    }
}

impl LostPacket {
    fn is_of(&self, situation: u8) -> bool {
        matches!(self.by, Fault::Situation(number) if number == situation)
    }

    /// Lets `doctor` follow the packet with one means. Returns what is wrong with the place that it
    /// names.
    fn mistake(&self, node: &Node, means: Means, says: Statement) -> Option<String> {
        let (probe, to) = match self.sent {
            Sender::ByC1(to) => (format!("a probe from c1 to {to} "), to),
            Sender::ByNode(to) => (format!("a connection of this node to {to} "), OUT4),
        };
        let said = doctor_by(node, means, to);
        let probe = node.filled(&probe);
        let Some((_, told)) = said.split_once(&probe) else {
            return Some(format!("{means:?}: nothing of {probe:?} in {said}"));
        };
        let told = told.split('"').next().unwrap_or_default();
        let end = told.split_once("; ").and_then(|(_, end)| end.split_once(':'));
        let what = if self.back { "the answer" } else { "it" };
        let is_place = |place: &str| {
            let wanted = format!("{what} ended at {}", node.filled(place));
            end.is_some_and(|(end, _)| end == wanted)
        };
        let is_right = match says {
            At(place) => is_place(place),
            Perhaps(place) => end.is_none() || is_place(place),
            Unknown => end.is_none(),
        };
        (!is_right).then(|| format!("{means:?}: not {says:?}, but {probe}{told}"))
    }

    /// Loses it, and lets `doctor` follow it with each means in busy traffic of equal sizes; with
    /// tracepoints also without that, if it is an answer. Returns what is wrong.
    fn tried(&self, node: &mut Node) -> Vec<String> {
        let mut mistakes = Vec::new();
        let [breaks, mends] = self.by.acts();
        act(breaks, node, &mut mistakes, "breaking");
        act(&Act::Sh(self.then), node, &mut mistakes, "preparing");
        let mut traced = self.traced;
        if self.back {
            // Tracepoints also show the packets of tests that run beside this one.
            let failed: Option<Vec<String>> =
                (0..TRIES).map(|_| self.mistake(node, Means::Tracepoints, traced)).collect();
            mistakes.extend(failed.into_iter().flatten());
            traced = traced.if_at_all();
        }
        let busy = noise(node);
        mistakes.extend(self.mistake(node, Means::Tracepoints, traced));
        mistakes.extend(self.mistake(node, Means::Filter, self.judged));
        mistakes.extend(self.mistake(node, Means::Counters, self.counted));
        drop(busy);
        act(mends, node, &mut mistakes, "mending");
        act(&Act::Sh(self.undo), node, &mut mistakes, "undoing");
        mistakes
    }
}

/// Runs `doctor` for c1 with only one means, and returns its output. The test hides tracing from
/// it, or makes in advance the tables that it would make: their names contain the process ID, which
/// is known before `doctor` starts. Without CAP_NET_RAW it cannot count packets.
fn doctor_by(node: &Node, means: Means, to: &str) -> String {
    let hide = "mount -t tmpfs none /sys/kernel/tracing;";
    let take = "for family in inet bridge; do nft add table $family netwright-doctor-$$; done;
        for name in c1 c2; do ip netns exec $name nft add table inet netwright-doctor-$$; done;";
    let (before, by) = match means {
        Means::Tracepoints => (take.to_owned(), ""),
        Means::Filter => (hide.to_owned(), "setpriv --bounding-set=-net_raw --inh-caps=-net_raw"),
        Means::Counters => (format!("{hide} {take}"), ""),
    };
    let doctor = format!("exec {by} netwright doctor c1 --output json --to {to}");
    let (_, said) = node.run(&format!("exec unshare -m sh -c '{before} {doctor}'"));
    let remove =
        "nft list tables | sed -n \"s/^table \\(.*netwright-doctor.*\\)/delete table \\1/p\"";
    node.lab.sh(&format!("{remove} | nft -f -"));
    node.lab.sh(&format!(
        "for name in c1 c2; do ip netns exec $name sh -c '{remove} | nft -f -'; done"
    ));
    said
}

/// Tries these on one node.
#[track_caller]
fn try_each(name: &str, losses: &[&LostPacket]) {
    let mut node = Node::new(name);
    let mut wrong = Vec::new();
    for lost in losses {
        let mut mistakes = lost.tried(&mut node);
        let complaints = node.complaints();
        if !complaints.is_empty() {
            mistakes.push(format!("after mending: {complaints:#?}"));
            node = Node::new(name);
        }
        if !mistakes.is_empty() {
            wrong.push((&lost.by, mistakes));
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), losses.len());
}

#[test]
fn each_means_places_the_situations_losses() {
    require!(
        "root",
        "full",
        "program:nft",
        "program:iptables-nft",
        "program:python3",
        "program:setpriv",
        "file:/sys/kernel/tracing"
    );
    let usual: Vec<&LostPacket> = LOST.iter().filter(|lost| !lost.is_of(LEGACY)).collect();
    try_each("doctor-follow-each", &share::of_this_round(usual, OF_A_SHARE));
}

#[test]
fn each_means_places_a_loss_of_legacy_iptables() {
    require!(
        "root",
        "full",
        "legacy-tables",
        "program:nft",
        "program:python3",
        "program:setpriv",
        "file:/sys/kernel/tracing"
    );
    let legacy: Vec<&LostPacket> = LOST.iter().filter(|lost| lost.is_of(LEGACY)).collect();
    try_each("doctor-follow-legacy", &legacy);
}

#[test]
fn each_means_places_further_losses() {
    require!(
        "root",
        "full",
        "program:nft",
        "program:python3",
        "program:setpriv",
        "file:/sys/kernel/tracing"
    );
    let made: Vec<&LostPacket> = MADE.iter().collect();
    try_each("doctor-follow-alone", &share::of_this_round(made, OF_A_SHARE));
}

#[test]
fn of_each_situation_it_is_known_where_a_packet_ends() {
    let mut wanted: Vec<u8> = all().map(|one| one.number).collect();
    wanted.sort_unstable();
    let mut numbers: Vec<u8> =
        NOWHERE.iter().flat_map(|(numbers, _)| numbers.iter().copied()).collect();
    numbers.extend(LOST.iter().filter_map(|lost| match lost.by {
        Fault::Situation(number) => Some(number),
        Fault::Made(..) => None,
    }));
    numbers.sort_unstable();
    assert_eq!(numbers, wanted);
    assert!(NOWHERE.iter().all(|(_, why)| !why.is_empty()));
}
