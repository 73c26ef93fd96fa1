//! Changes under a running container: CHECK names each, and a repairing CHECK restores it.
//!
//! One attachment of a long chain is damaged in one way after another. Each time CHECK must fail
//! with words that name what was damaged; after the repair every plugin's CHECK passes, and the
//! host and the container look as they did before.

mod drifts;
mod owners;
mod uplink;
mod vrf;

use serde_json::{Value, json};
use testkit::{Container, Lab, Place};

use crate::support::{Answer, Node};

/// A chain attached to a container.
pub(crate) struct Chain<'n> {
    node: &'n Node,
    pub(super) container: &'n Container,
    pub(crate) plugins: Vec<(&'static str, Value)>,
    pub(super) result: Value,
}

impl<'n> Chain<'n> {
    /// Runs ADD of each plugin.
    #[track_caller]
    pub(crate) fn add(
        node: &'n Node,
        container: &'n Container,
        plugins: Vec<(&'static str, Value)>,
    ) -> Self {
        let mut result = Value::Null;
        for (plugin, keys) in &plugins {
            let mut run = node.run(plugin, "ADD").to(container).config(keys.clone());
            if !result.is_null() {
                run = run.prev(&result);
            }
            result = run.call().ok();
        }
        Chain { node, container, plugins, result }
    }

    fn each(&self, verb: &str, more: &Value) -> Vec<Answer> {
        let plugins = self.plugins.iter();
        let call = |(plugin, keys): &(&str, Value)| {
            let run = self.node.run(plugin, verb).to(self.container).config(keys.clone());
            run.prev(&self.result).config(more.clone()).call()
        };
        plugins.map(call).collect()
    }

    /// Returns the drifts that CHECK of all plugins finds.
    pub(super) fn drift(&self) -> Vec<String> {
        let failed = self.each("CHECK", &json!({})).into_iter().filter(|said| !said.succeeded());
        failed.map(|said| said.error().to_string()).collect()
    }

    /// Repairs; returns what was restored, and what could not be.
    pub(super) fn repair(&self) -> (Vec<String>, Vec<String>) {
        // A later plugin may restore what an earlier one misses; runtimes repeat the repair, too.
        self.repair_times(2)
    }

    /// Lets each plugin repair this many times. Returns what was restored, and what the last repair
    /// left.
    pub(super) fn repair_times(&self, times: usize) -> (Vec<String>, Vec<String>) {
        let (mut put_back, mut left) = (Vec::new(), Vec::new());
        for _ in 0..times {
            left.clear();
            for said in self.each("CHECK", &json!({ "netwright/repair": true })) {
                if said.succeeded() {
                    put_back.extend(cni::RepairReport::parse(&said.output.stdout).lines);
                } else {
                    left.push(said.error().to_string());
                }
            }
        }
        (put_back, left)
    }

    /// Lets one plugin repair. Returns why it did not.
    #[track_caller]
    pub(super) fn repair_of(&self, plugin: &str) -> String {
        let (_, keys) = self.plugins.iter().find(|(name, _)| *name == plugin).unwrap();
        let run = self.node.run(plugin, "CHECK").to(self.container).config(keys.clone());
        let said = run.prev(&self.result).config(json!({ "netwright/repair": true })).call();
        assert!(!said.succeeded(), "{said:?}");
        said.error().to_string()
    }

    /// Runs DEL of each plugin, the last first.
    #[track_caller]
    pub(super) fn del(&self) {
        for (plugin, keys) in self.plugins.iter().rev() {
            let run = self.node.run(plugin, "DEL").to(self.container).config(keys.clone());
            run.prev(&self.result).call().silent();
        }
    }
}

/// Shows everything that a repair may touch, with as few programs as possible: starting them takes
/// most of the time, above all in the virtual machine.
const STATE: &str = "
ip -o addr show scope global
ip -j -d link
for family in -4 -6; do
    echo '@@ routes'
    ip $family -force -batch - <<END
route show table all
rule show
neigh show nud permanent
END
    echo '@@'
done
nft list ruleset
bridge -d link
echo '@@ qdiscs'
tc qdisc
echo '@@'
read -r four </proc/sys/net/ipv4/ip_forward
read -r six </proc/sys/net/ipv6/conf/all/forwarding
echo \"forwarding: $four, IPv6 $six\"
";

/// Everything a repair may touch, as text, without the numbers that the kernel assigns.
pub(super) fn picture(lab: &Lab, container: &Container) -> Vec<String> {
    let mut lines = Vec::new();
    for text in [lab.sh(STATE), container.sh(STATE)] {
        let mut part = Vec::new();
        let mut section = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("@@") {
                section = name.trim();
                continue;
            }
            match (section, serde_json::from_str(line)) {
                ("", Ok(Value::Array(links))) => {
                    part.extend(links.iter().map(|link| without_numbers(&shown(link))));
                }
                ("routes", _) if is_the_kernels(line) => {}
                ("qdiscs", _) if !line.contains("tbf") && !line.contains("ingress") => {}
                _ => part.push(without_numbers(line)),
            }
        }
        part.sort();
        lines.extend(part);
    }
    lines
}

/// The compared part of a link. The address of an ifb link is random, and the kernel reports a
/// link's carrier up to a second late.
fn shown(link: &Value) -> String {
    let is_ifb = link["linkinfo"]["info_kind"] == "ifb";
    let address = if is_ifb { &Value::Null } else { &link["address"] };
    let mut flags = link["flags"].clone();
    if let Some(flags) = flags.as_array_mut() {
        flags.retain(|flag| flag != "NO-CARRIER");
    }
    let rest = ["mtu", "master", "ifalias", "txqlen"].map(|key| &link[key]);
    json!([link["ifname"], address, rest, flags]).to_string()
}

/// Whether a line is a route that the kernel makes by itself. Rules and neighbour entries among the
/// lines are not.
fn is_the_kernels(line: &str) -> bool {
    let is_route = !line.contains(":\t") && !line.contains(" PERMANENT");
    is_route
        && (line.starts_with("multicast") || line.contains("fe80") || line.contains("table local"))
}

/// Removes the numbers of links, which the kernel assigns, and how long addresses are valid.
fn without_numbers(line: &str) -> String {
    let line = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(':');
    let mut words = Vec::new();
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        if ["valid_lft", "preferred_lft"].contains(&word) {
            all.next();
            continue;
        }
        // `veth0@if2` is `veth0@cni0` if the peer's number happens to be that of a link here.
        words.push(word.split('@').next().unwrap_or_default());
    }
    words.join(" ")
}

/// Returns the lines that only one of two states has.
pub(super) fn differences(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("- {line}"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}
