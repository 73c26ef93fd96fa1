//! What services count, in the text format that Prometheus reads ("Exposition formats", version
//! 0.0.4).
//!
//! A service reports figures as data ([`crate::report::Report::figures`]). [`FAMILIES`] says what
//! each means; the documentation is compared with it. The process that is asked for metrics writes
//! those of all services as one text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::report::{Report, State, Status};

/// What the text is, for HTTP.
pub const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a value may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only goes up while the process lives.
    Counter,
    /// It goes up and down; the value is in milliseconds, and is written in seconds.
    Seconds,
}

/// Figures of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// How its values may change.
    pub kind: Kind,
    /// What it means, in a sentence.
    pub help: &'static str,
}

const fn family(name: &'static str, kind: Kind, help: &'static str) -> Family {
    Family { name, kind, help }
}

/// All families, in the order in which they are written.
pub const FAMILIES: &[Family] = &[
    family(READY, Kind::Gauge, "Whether the service can do its work."),
    family(MISSING, Kind::Gauge, "How many things the service needs and does not have."),
    family(RESTARTS, Kind::Counter, "How often netwrightd has started the service again."),
    family("netwright_policy_policies", Kind::Gauge, "Policies that are known, by kind."),
    family("netwright_policy_pods", Kind::Gauge, "Pods that are known, of all nodes."),
    family(
        "netwright_policy_local_pods",
        Kind::Gauge,
        "Addresses of pods of this node, by what is done with them: judged, open since no policy selects them, or closed since they are not known.",
    ),
    family(
        "netwright_policy_refused_objects",
        Kind::Gauge,
        "Faults of objects that do not hold as they are written.",
    ),
    family(
        "netwright_policy_held_objects",
        Kind::Gauge,
        "Objects that are kept although the last list lacks them.",
    ),
    family(
        "netwright_policy_source_silent",
        Kind::Gauge,
        "Whether policies and pods cannot be learnt.",
    ),
    family(
        "netwright_policy_transactions_total",
        Kind::Counter,
        "Changes of the packet filter that were made, or that the kernel refused.",
    ),
    family(
        "netwright_policy_put_back_total",
        Kind::Counter,
        "How often something that network policy needs, and that another program had changed, was put back.",
    ),
    family(
        "netwright_policy_cuts_total",
        Kind::Counter,
        "Connections that were ended since policies forbid them.",
    ),
    family(
        "netwright_policy_drops_total",
        Kind::Counter,
        "Packets that were dropped, by direction, since the packet filter's table was made.",
    ),
    family(
        "netwright_routing_nodes",
        Kind::Gauge,
        "Other nodes by the state that netwright routes shows, for each address family.",
    ),
    family(
        "netwright_routing_blocks",
        Kind::Gauge,
        "Blocks of spaces of which the service knows who holds them, on this node and on others.",
    ),
    family(
        "netwright_routing_objects",
        Kind::Gauge,
        "Routes, nexthops, neighbours and the like that the kernel has of the service.",
    ),
    family("netwright_routing_pod_mtu_bytes", Kind::Gauge, "The MTU of pods that start now."),
    family(
        "netwright_routing_source_silent",
        Kind::Gauge,
        "Whether the list of nodes cannot be read.",
    ),
    family(
        "netwright_routing_changes_total",
        Kind::Counter,
        "Changes of the kernel that were made, or that it refused.",
    ),
    family(
        "netwright_routing_put_back_total",
        Kind::Counter,
        "How often something that another program had changed was put back.",
    ),
    family(
        "netwright_routing_looks_total",
        Kind::Counter,
        "How often everything that the kernel has was looked at.",
    ),
    family("netwright_routing_look_seconds", Kind::Seconds, "How long the last look took."),
];

const READY: &str = "netwright_service_ready";
const MISSING: &str = "netwright_service_missing";
const RESTARTS: &str = "netwright_service_restarts_total";

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Its family's name.
    pub name: String,
    /// What it is counted by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The value, in the unit of its family's [`Kind`].
    pub value: u64,
}

impl Figure {
    /// Returns a figure without labels.
    #[must_use]
    pub fn new(name: &str, value: u64) -> Self {
        Figure { name: name.to_owned(), labels: BTreeMap::new(), value }
    }

    /// Adds a label.
    #[must_use]
    pub fn by(mut self, label: &str, value: &str) -> Self {
        self.labels.insert(label.to_owned(), value.to_owned());
        self
    }
}

/// Returns the metrics of all services and of the process that starts them.
#[must_use]
pub fn of_all(status: &Status) -> String {
    let figures = status.agent.iter().chain(&status.services).flat_map(of_report);
    text(&figures.collect::<Vec<_>>())
}

/// Returns the metrics of one service.
#[must_use]
pub fn of_one(report: &Report) -> String {
    text(&of_report(report).collect::<Vec<_>>())
}

/// Returns what a service counts, and what its report says besides.
fn of_report(report: &Report) -> impl Iterator<Item = Figure> {
    let missing = u64::try_from(report.missing.len()).unwrap_or(u64::MAX);
    let of_service = [
        (READY, u64::from(report.state == State::Ready)),
        (MISSING, missing),
        (RESTARTS, u64::from(report.restarts)),
    ];
    let of_service =
        of_service.map(|(name, value)| Figure::new(name, value).by("service", &report.service));
    of_service.into_iter().chain(report.figures.clone())
}

/// Writes figures, family by family. One of a family that is not known, as a newer service may have,
/// is left out.
fn text(figures: &[Figure]) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let mut of_family = figures.iter().filter(|one| one.name == family.name).peekable();
        if of_family.peek().is_none() {
            continue;
        }
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge | Kind::Seconds => "gauge",
        };
        let name = family.name;
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
        for figure in of_family {
            let labels: Vec<String> = figure
                .labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let value = match family.kind {
                Kind::Seconds => format!("{}.{:03}", figure.value / 1000, figure.value % 1000),
                Kind::Gauge | Kind::Counter => figure.value.to_string(),
            };
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
    text
}

/// Returns a label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn services_are_written_family_by_family() {
        let silent = Figure::new("netwright_routing_source_silent", 0);
        let took = Figure::new("netwright_routing_look_seconds", 1_042);
        let failed = Figure::new("netwright_routing_changes_total", 3).by("result", "a\"\\\n");
        let unknown = Figure::new("netwright_of_tomorrow", 1);
        let routing = Report {
            state: State::Ready,
            figures: vec![took, failed, unknown, silent],
            ..Report::stopped("routing")
        };
        let status = Status { agent: None, services: vec![Report::stopped("dhcp"), routing] };
        expect![[r#"
            # HELP netwright_service_ready Whether the service can do its work.
            # TYPE netwright_service_ready gauge
            netwright_service_ready{service="dhcp"} 0
            netwright_service_ready{service="routing"} 1
            # HELP netwright_service_missing How many things the service needs and does not have.
            # TYPE netwright_service_missing gauge
            netwright_service_missing{service="dhcp"} 0
            netwright_service_missing{service="routing"} 0
            # HELP netwright_service_restarts_total How often netwrightd has started the service again.
            # TYPE netwright_service_restarts_total counter
            netwright_service_restarts_total{service="dhcp"} 0
            netwright_service_restarts_total{service="routing"} 0
            # HELP netwright_routing_source_silent Whether the list of nodes cannot be read.
            # TYPE netwright_routing_source_silent gauge
            netwright_routing_source_silent 0
            # HELP netwright_routing_changes_total Changes of the kernel that were made, or that it refused.
            # TYPE netwright_routing_changes_total counter
            netwright_routing_changes_total{result="a\"\\\n"} 3
            # HELP netwright_routing_look_seconds How long the last look took.
            # TYPE netwright_routing_look_seconds gauge
            netwright_routing_look_seconds 1.042
        "#]]
        .assert_eq(&of_all(&status));
    }

    #[test]
    fn the_page_has_every_family() {
        let page = include_str!("../../../docs/agent.md");
        for Family { name, help, .. } in FAMILIES {
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
            let help = help.trim_end_matches('.');
            assert!(page.contains(help), "{name}: {help}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `netwright_")).count();
        assert_eq!(rows, FAMILIES.len());
    }
}
