//! `doctor` reports differences from what ADD made as CHECK does: the same items in the same words.

use serde_json::{Value, json};
use testkit::drift::{BRIDGE, DamagePlace, Drift};
use testkit::{Container, Lab, Place, require, share};

use super::situations::node::findings;
use crate::support::call_in;

/// The drifts that every run tries: one of the container, one of the packet filter, one of several
/// plugins at once, and one of the whole node.
const SAMPLE: [&str; 4] =
    ["IPv4 address gone", "host port element gone", "our table gone", "IPv4 forwarding off"];

/// How many drifts a run with `--full` tries, with other ones in each round.
const SHARE: usize = 13;

/// A node with one container, attached by the command line to all that [`BRIDGE`] damages.
struct AttachedNode {
    lab: Lab,
    c1: Container,
    /// The placeholders of a damage, each with this attachment's name.
    words: [(&'static str, String); 3],
}

/// The error of a plugin's CHECK: its first words, and the details.
struct Check {
    what: String,
    details: String,
}

impl AttachedNode {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let c1 = lab.container("c1");
        let ipam = json!({
            "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]],
            "routes": [{ "dst": "198.51.100.0/24" }, { "dst": "2001:db8::/32" }],
        });
        let rate = 8_000_000;
        let network = json!({ "cniVersion": "1.1.0", "name": "n", "plugins": [
            { "type": "bridge", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
              "macspoofchk": true, "portIsolation": true, "ipam": ipam },
            { "type": "tuning", "mtu": 1400, "allmulti": true, "txQLen": 500,
              "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } },
            { "type": "bandwidth", "ingressRate": rate, "ingressBurst": rate,
              "egressRate": rate, "egressBurst": rate },
            { "type": "portmap", "capabilities": { "portMappings": true } },
            { "type": "firewall", "ingressPolicy": "same-bridge" },
        ]});
        lab.sh("mkdir -p /etc/cni/net.d");
        let file = lab.path("/etc/cni/net.d/10-n.conflist");
        std::fs::write(file, network.to_string()).unwrap();
        let add = ["add", "n", "c1", "--container-id", "c1", "--publish", "8080:80"];
        let add = [add.as_slice(), &["--output", "json"]].concat();
        let result = call_in(&lab, &add).succeeded().json();
        let port = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
        let ifb = lab.sh("ip -br link show type ifb | cut -d ' ' -f 1").trim().to_owned();
        let ipam = "/var/lib/cni/networks".to_owned();
        AttachedNode { lab, c1, words: [("$port", port), ("$ifb", ifb), ("$ipam", ipam)] }
    }

    fn filled(&self, text: &str) -> String {
        let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
        self.words.iter().fold(text.to_owned(), fill)
    }

    /// Everything that `doctor` finds, including findings that a cause explains.
    fn found(&self) -> Vec<Value> {
        let causes = findings(&call_in(&self.lab, &["doctor", "--no-probe", "--output", "json"]));
        let explained = causes.iter().filter_map(|cause| cause["explains"].as_array());
        let explained: Vec<Value> = explained.flatten().cloned().collect();
        [causes, explained].concat()
    }

    /// The error of each plugin whose CHECK fails.
    fn checks(&self) -> Vec<Check> {
        let said = call_in(&self.lab, &["repair", "--dry-run", "--output", "json"]).json();
        let left = said["attachments"][0]["left"].as_array().cloned().unwrap_or_default();
        let check = |one: &Value| {
            let [what, details] =
                ["msg", "details"].map(|key| one["error"][key].as_str().unwrap_or_default());
            let prefix = format!("plugin type={} failed (check): ", one["plugin"]);
            let what = what.strip_prefix(&prefix).unwrap_or(what);
            Check { what: what.to_owned(), details: details.to_owned() }
        };
        left.iter().map(check).collect()
    }

    /// The error of the whole chain, as `netwright check` prints it.
    fn check(&self) -> String {
        let check = ["check", "n", "c1", "--container-id", "c1", "--output", "json"];
        let said = call_in(&self.lab, &check).failed(1).json();
        let [what, details] = ["msg", "details"].map(|key| said[key].as_str().unwrap_or_default());
        format!("{what}; {details}")
    }

    /// Does one damage, compares, and repairs it. Returns what is wrong.
    fn tried(&self, Drift(_, at, damage, told): &Drift) -> Vec<String> {
        let (damage, told) = (self.filled(damage), self.filled(told));
        match at {
            DamagePlace::Host => self.lab.sh(&damage),
            DamagePlace::Container => self.c1.sh(&damage),
        };
        let (all, checks, found) = (self.check(), self.checks(), self.found());
        let mut wrong = Vec::new();
        if !all.contains(&told) {
            wrong.push(format!("CHECK does not say {told:?}: {all}"));
        }
        // CHECK names the first failed plugin in other words than the plugins after it.
        if all.matches(" failed (check): ").count() + 1 != checks.len() {
            wrong.push(format!("not of {} plugins: {all}", checks.len()));
        }
        for Check { what, details } in &checks {
            if !all.contains(what.as_str()) || !all.contains(details.as_str()) {
                wrong.push(format!("CHECK of the chain does not say {what:?} {details:?}: {all}"));
            }
            if !found.iter().any(|finding| is_told(finding, what, details)) {
                wrong.push(format!("doctor does not say {what:?} {details:?}: {found:#?}"));
            }
        }
        for finding in found.iter().filter(|finding| finding["id"] == "attachment-differs") {
            let is_of = |check: &Check| is_told(finding, &check.what, &check.details);
            if !checks.iter().any(is_of) || finding["hits"] != json!(["c1"]) {
                wrong.push(format!("CHECK does not say {finding:#}"));
            }
        }
        let repaired = call_in(&self.lab, &["repair"]);
        if repaired.code != 0 {
            wrong.push(format!("it is not repaired: {repaired:#?}"));
        }
        wrong
    }
}

/// Says whether a finding repeats what a plugin's CHECK says. A setting of the whole node is a
/// finding of its own.
fn is_told(finding: &Value, what: &str, details: &str) -> bool {
    let says = finding["says"].as_str().unwrap();
    if finding["id"] == "forwarding-off" {
        return what.ends_with(" forwarding is off") && says.starts_with(what);
    }
    let seen = finding["seen"].as_array().unwrap();
    finding["id"] == "attachment-differs"
        && says == format!("eth0 of c1 on n: {what}")
        && finding["object"] == format!("n/c1/eth0: {what}")
        && (details.is_empty() || seen.iter().any(|line| line == details))
}

#[track_caller]
fn try_each(name: &str, drifts: &[&Drift]) {
    let attached = AttachedNode::new(name);
    let found = attached.found();
    assert!(!found.iter().any(|one| one["id"] == "attachment-differs"), "{found:#?}");
    let mut wrong = Vec::new();
    for drift in drifts {
        let mistakes = attached.tried(drift);
        if !mistakes.is_empty() {
            wrong.push((drift.0, mistakes));
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), drifts.len());
}

#[test]
fn some_differences_are_told_as_check_tells_them() {
    require!("root");
    let sample: Vec<&Drift> = BRIDGE.iter().filter(|drift| SAMPLE.contains(&drift.0)).collect();
    assert_eq!(sample.len(), SAMPLE.len());
    try_each("doctor-drifts", &sample);
}

#[test]
fn each_difference_is_told_as_check_tells_it() {
    require!("root", "full");
    let all: Vec<&Drift> = share::of_this_round(BRIDGE.iter().collect(), SHARE);
    try_each("doctor-drifts-all", &all);
    eprintln!("MEASURED {} drifts told by doctor as CHECK tells them", all.len());
}
