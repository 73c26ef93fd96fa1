//! What another program does to a table of ours has one outcome, whichever of the three tables it
//! is: that of attachments, of policies, or of routing.

use cni::AttachmentKey;
use firewall::Plan;
use firewall::cluster::ClusterTable;
use firewall::pods::{Logging, PodsTable};
use netwright_firewall as firewall;
use testkit::{Lab, Place as _};

use crate::engine::with_both_tables;
use crate::support::Node;
use crate::{cluster, pods};

/// One of our tables.
trait OwnTable {
    /// Its name; one of its chains, which has a hook and rules; and a set or map with an element.
    const NAMES: [&str; 3];

    fn lab(&self) -> &Lab;

    /// Says what differs.
    fn observe(&mut self) -> Vec<String>;

    /// Repairs what differs.
    fn repair(&mut self);

    fn listed(&self) -> String {
        self.lab().sh(&format!("nft -s list table {}", Self::NAMES[0]))
    }
}

struct Attachments {
    node: Node,
    key: AttachmentKey,
    plan: Plan,
}

impl OwnTable for Attachments {
    const NAMES: [&str; 3] = ["inet netwright", "forward", "map masquerade4"];

    fn lab(&self) -> &Lab {
        &self.node.lab
    }

    fn observe(&mut self) -> Vec<String> {
        self.node.check(&self.key, &self.plan)
    }

    fn repair(&mut self) {
        self.node.firewall(|firewall| firewall.mend(&self.plan)).unwrap();
        self.node.add(&self.key, &self.plan);
    }
}

struct Policies {
    lab: Lab,
    table: PodsTable,
    compiler: policy::Compiler,
}

impl OwnTable for Policies {
    const NAMES: [&str; 3] = ["inet netwright-policy", "ingress", "map in4"];

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn observe(&mut self) -> Vec<String> {
        self.table.observe(self.compiler.program()).unwrap().lines().to_vec()
    }

    fn repair(&mut self) {
        self.table.bring(self.compiler.program()).unwrap();
    }
}

struct Routing(Lab);

impl OwnTable for Routing {
    const NAMES: [&str; 3] = ["inet netwright-routing", "forward", "set nodes4"];

    fn lab(&self) -> &Lab {
        &self.0
    }

    fn observe(&mut self) -> Vec<String> {
        let look = || ClusterTable::open().unwrap().observe(&cluster::filter()).unwrap();
        self.0.enter(look).lines().to_vec()
    }

    fn repair(&mut self) {
        self.0.enter(|| ClusterTable::open().unwrap().bring(&cluster::filter())).unwrap();
    }
}

/// What becomes of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is reported and taken back.
    Repaired,
    /// It changes nothing that a packet meets.
    Ignored,
}

use Outcome::{Ignored, Repaired};

/// Each kind of change, as commands of a shell: `$T` is the table, `$C` its chain, and `$S` its set.
/// `$L` is the table's listing before.
///
/// The last column is the one exception: a later version may share the table of attachments, and
/// have objects there that this version does not know. Those see no packet that our own rules do not
/// lead to them.
const CHANGES: [(&str, Outcome, Outcome); 15] = [
    ("nft -f $L.reload", Ignored, Ignored),
    ("nft add counter $T zz", Repaired, Ignored),
    ("nft add chain $T zz", Repaired, Ignored),
    ("nft \"add set $T zz { type mark; }\"", Repaired, Ignored),
    ("nft \"add map $T zz { type mark : verdict; }\"", Repaired, Ignored),
    ("nft \"add chain $T zz { type filter hook forward priority 7; }\"", Repaired, Repaired),
    ("nft add rule $T $C counter accept", Repaired, Repaired),
    ("nft insert rule $T $C ip daddr 192.0.2.77 drop", Repaired, Repaired),
    ("nft flush chain $T $C", Repaired, Repaired),
    (
        "nft -a list chain $T $C | grep -o 'handle [0-9]*$' | tail -n 1 | xargs nft delete rule $T $C",
        Repaired,
        Repaired,
    ),
    ("nft \"flush chain $T $C; delete chain $T $C\"", Repaired, Repaired),
    ("nft \"add table $T { flags dormant; }\"", Repaired, Repaired),
    ("nft flush ${S% *} $T ${S#* }", Repaired, Repaired),
    ("nft delete table $T", Repaired, Repaired),
    ("nft flush ruleset", Repaired, Repaired),
];

fn outcomes<T: OwnTable>(table: &mut T) -> Vec<(&'static str, Outcome)> {
    let [name, chain, set] = T::NAMES;
    table.repair();
    assert_eq!(table.observe(), Vec::<String>::new());
    let before = table.listed();
    let saved = table.lab().dir().join("listing");
    let script = format!("delete table {name}\n{before}");
    std::fs::write(saved.with_extension("reload"), script).unwrap();
    let of = |(change, ..): (&'static str, Outcome, Outcome)| {
        let (saved, set_up) = (saved.display(), format!("T='{name}' C={chain} S='{set}'"));
        table.lab().sh(&format!("{set_up} L={saved}; {change}"));
        let lines = table.observe();
        table.repair();
        assert_eq!(table.observe(), Vec::<String>::new(), "{name}: {change}");
        let outcome = if lines.is_empty() { Ignored } else { Repaired };
        if outcome == Repaired {
            let as_set = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort_unstable();
                lines
            };
            assert_eq!(as_set(&table.listed()), as_set(&before), "{name}: {change}: {lines:?}");
        } else {
            table.lab().sh(&format!("{set_up} L={saved}; nft -f $L.reload"));
        }
        (change, outcome)
    };
    CHANGES.map(of).to_vec()
}

#[test]
fn a_change_has_one_outcome_in_all_three_tables() {
    testkit::require!("root");
    let (node, key, plan) = with_both_tables("outside");
    let attachments = outcomes(&mut Attachments { node, key, plan });
    let lab = Lab::new("outside-pods");
    let table = lab.enter(|| PodsTable::open(Logging::default())).unwrap();
    let compiler = pods::damage::small();
    let policies = outcomes(&mut Policies { lab, table, compiler });
    let routing = outcomes(&mut Routing(Lab::new("outside-cluster")));
    let expected = CHANGES.map(|(change, outcome, _)| (change, outcome));
    assert_eq!(policies, expected, "policies");
    assert_eq!(routing, expected, "routing");
    assert_eq!(attachments, CHANGES.map(|(change, _, outcome)| (change, outcome)), "attachments");
}
