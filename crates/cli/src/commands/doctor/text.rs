//! What `doctor` found, for people and for programs.

use std::time::Duration;

use cni::order::sort;
use cni::text::one_line;
use diagnose::model::{Attachment, Container, Scene};
use diagnose::{
    Answer, Answers, Diagnosis, Finding, Look, Probe, Question, RootCause, Severity, Trial, Trials,
    UnexaminedWay, WayKind,
};
use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

use crate::shell::Report;

/// How many of the affected containers of a finding are named.
const NAMED: usize = 5;

/// How many lines tell what was not examined.
const LISTED: usize = 8;

/// Findings of an attachment that is not as ADD left it.
const OF_ADD: [&str; 4] =
    ["attachment-differs", "attachment-unfinished", "inside-differs", "node-differs"];

/// How many kinds of findings are named that another one explains.
const KINDS: usize = 3;

/// What was found.
pub(super) struct DoctorReport<'t> {
    pub(super) diagnosis: &'t Diagnosis,
    pub(super) answers: &'t Answers,
    pub(super) scene: &'t Scene,
    /// The ID of the container that was asked for.
    pub(super) only: Option<&'t str>,
    /// Everything is shown, also what a deeper cause explains.
    pub(super) verbose: bool,
    pub(super) took: Duration,
    /// Only ASCII is written.
    pub(super) plain: bool,
}

/// Names the paragraph that says what a finding means, how it arises and what helps.
fn page(id: &str) -> String {
    format!("docs/findings.md#{id}")
}

impl Serialize for DoctorReport<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Cause<'c> {
            #[serde(flatten)]
            finding: &'c Finding,
            page: String,
            explains: Vec<&'c Finding>,
        }
        let causes: Vec<Cause<'_>> = (self.diagnosis.causes.iter())
            .map(|cause| Cause {
                finding: &cause.finding,
                page: page(cause.finding.id),
                explains: cause.explains.iter().collect(),
            })
            .collect();
        let mut document = serializer.serialize_struct("Told", 10)?;
        document.serialize_field("node", &self.scene.node)?;
        document.serialize_field("container", &self.only)?;
        document.serialize_field("findings", &causes)?;
        document.serialize_field("notes", &self.diagnosis.notes)?;
        document.serialize_field("errors", &self.diagnosis.errors())?;
        document.serialize_field("warnings", &self.diagnosis.warnings())?;
        document.serialize_field("notSeen", &self.diagnosis.unknown())?;
        document.serialize_field("notExamined", &self.diagnosis.unexamined)?;
        document.serialize_field("leftOut", &self.diagnosis.left_out)?;
        document.serialize_field("lookedAt", &self.diagnosis.looked_at)?;
        document.end()
    }
}

impl Report for DoctorReport<'_> {
    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(container) = self.only.and_then(|id| self.scene.container(id)) {
            text.push_str(&self.container(container));
            text.push('\n');
        }
        let notes = self.diagnosis.notes.iter().filter(|note| self.tells(note));
        let notes = notes.map(|note| RootCause { finding: note.clone(), explains: Vec::new() });
        let notes: Vec<RootCause> = notes.collect();
        let all = || self.diagnosis.causes.iter().chain(&notes);
        let width = all().map(|cause| cause.finding.id.len()).max().unwrap_or_default();
        for cause in all() {
            text.push_str(&self.cause(cause, width));
            text.push('\n');
        }
        if self.only.is_none() && !self.diagnosis.unexamined.is_empty() {
            text.push_str(&self.unexamined());
        }
        text.push_str(&self.summary());
        text
    }
}

impl DoctorReport<'_> {
    fn mark(&self, severity: Severity) -> &'static str {
        match (severity, self.plain) {
            (Severity::Error, false) => "✘",
            (Severity::Error, true) => "x",
            (Severity::Warning, _) => "!",
            (Severity::Unknown, _) => "?",
        }
    }

    fn cause(&self, cause: &RootCause, width: usize) -> String {
        let RootCause { finding, explains } = cause;
        let mark = self.mark(finding.severity);
        let mut text = format!("{mark} {:<width$}  {}\n", finding.id, one_line(&finding.says));
        let mut row = |name: &str, value: &str| {
            text.push_str(&format!("    {name:<7} {}\n", one_line(value)));
        };
        if let Some(place) = &finding.place {
            row("where", place);
        }
        if let Some(whose) = &finding.whose {
            row("whose", whose);
        }
        for seen in &finding.seen {
            row("seen", seen);
        }
        if self.only.is_none() && !finding.hits.is_empty() {
            row("hits", &self.hits(&finding.hits));
        }
        for fix in &finding.fix {
            row("fix", fix);
        }
        for advice in &finding.advice {
            row("advice", advice);
        }
        row("more", &format!("netwright doctor --explain {}", finding.id));
        if self.verbose {
            for explained in explains {
                row("so", &format!("{}: {}", explained.id, explained.says));
            }
        } else if !explains.is_empty() {
            row("so", &so(explains));
        }
        text
    }

    /// Names the containers that a finding hits, if there are few.
    fn hits(&self, ids: &[String]) -> String {
        let names: Vec<&str> = (ids.iter().take(NAMED))
            .map(|id| self.scene.container(id).map_or(id.as_str(), Container::called))
            .collect();
        match ids.len().saturating_sub(NAMED) {
            0 => names.join(", "),
            more => format!("{}, and {more} more containers", names.join(", ")),
        }
    }

    /// Lists what was not examined, each way in one line.
    fn unexamined(&self) -> String {
        let all = &self.diagnosis.unexamined;
        let shown = if self.verbose { all.len() } else { LISTED.min(all.len()) };
        let mut text = String::new();
        for one in &all[..shown] {
            let line = match one.hits.is_empty() {
                true => one.why.clone(),
                false => format!("{} of {}: {}", way(one), self.hits(&one.hits), one.why),
            };
            text.push_str(&format!("? not examined: {}\n", one_line(line)));
        }
        match all.len() - shown {
            0 => {}
            more => {
                text.push_str(&format!("? not examined: {more} more: netwright doctor -v\n"));
            }
        }
        text.push('\n');
        text
    }

    /// Says whether a note is shown: a user who asks for a container wants to know what concerns
    /// it.
    fn tells(&self, note: &Finding) -> bool {
        let is_of = |id: &str| note.hits.iter().any(|hit| hit == id);
        self.verbose || self.only.is_some_and(is_of)
    }

    fn summary(&self) -> String {
        let Diagnosis { looked_at, .. } = self.diagnosis;
        let (errors, warnings) = (self.diagnosis.errors(), self.diagnosis.warnings());
        let unknown = self.diagnosis.unknown();
        let seconds = self.took.as_secs_f64();
        let mut notes = match self.diagnosis.notes.iter().filter(|note| !self.tells(note)).count() {
            0 => String::new(),
            count => format!("; {}: netwright doctor -v", several(count, "note")),
        };
        let left_out = self.diagnosis.left_out;
        if 0 < left_out {
            notes.push_str(&format!("; {} left out", several(left_out, "finding")));
        }
        if errors + warnings + unknown == 0 {
            let containers = self.scene.containers.len();
            let networks = self.scene.networks.len();
            let sound = match self.diagnosis.unexamined.len() {
                0 if 0 < left_out => "the others as they should be".to_owned(),
                0 => "all as they should be".to_owned(),
                count => format!("as they should be, and {} not examined", several(count, "way")),
            };
            return format!(
                "{}: {} on {}, {looked_at} things looked at, {sound} ({seconds:.2} s){notes}\n",
                one_line(&self.scene.node),
                several(containers, "container"),
                several(networks, "network"),
            );
        }
        let mut parts = Vec::new();
        if 0 < errors {
            parts.push(several(errors, "error"));
        }
        if 0 < warnings {
            parts.push(several(warnings, "warning"));
        }
        if 0 < unknown {
            parts.push(format!("{} could not be looked at", several(unknown, "thing")));
        }
        let sound = looked_at.saturating_sub(errors + warnings + unknown);
        format!("{}; {sound} things are as they should be{notes}\n", parts.join(", "))
    }

    /// Shows the ways of one container, each with what was found of it.
    fn container(&self, container: &Container) -> String {
        let mut text = String::new();
        for attachment in &container.attachments {
            text.push_str(&format!("{}\n", one_line(head(container, attachment))));
        }
        let has_gateway = container.attachments.iter().any(|one| !one.gateways.is_empty());
        let has_names = container.nameservers.as_ref().is_some_and(|names| !names.is_empty());
        let has_ports = container.attachments.iter().any(|one| !one.ports.is_empty());
        let published = &[WayKind::Published, WayKind::PublishedHere][..];
        let look = Look { scene: self.scene, answers: self.answers, only: self.only, to: None };
        let trials = Trials::of(look);
        // A way that is broken is shown if the container has it; one that works, if it was tried.
        let rows = [
            ("attached", &[][..], true, self.attached(container)),
            ("inside", &[WayKind::Inside][..], true, self.inside(container)),
            ("gateway", &[WayKind::Gateway][..], has_gateway, self.echoes(container)),
            ("outside", &[WayKind::Outside][..], has_gateway, self.connections(container)),
            ("names", &[WayKind::Names][..], has_names, self.names(container)),
            ("published", published, has_ports, self.ports(container)),
        ];
        for (name, kinds, exists, says) in rows {
            let broken = self.blamed(container, kinds);
            let read = kinds.iter().all(|kind| *kind == WayKind::Inside);
            let shown = kinds.iter().map(|kind| trials.of_way(container, *kind, None));
            let shown = shown.fold(Trial::Never, Trial::and);
            let good = if self.plain { "+" } else { "✔" };
            let (mark, says) = match (broken.filter(|_| exists), says, shown) {
                (Some(cause), ..) if read => {
                    (self.mark(cause.severity), format!("see {}", cause.id))
                }
                (None, Some(says), _) if read => (good, says),
                (Some(cause), _, Trial::Fails) => {
                    (self.mark(Severity::Error), format!("see {}", cause.id))
                }
                (Some(cause), Some(says), Trial::Works) => {
                    (self.mark(Severity::Warning), format!("{says}; see {}", cause.id))
                }
                (Some(cause), ..) => {
                    let says = format!("not examined: what was read breaks it, see {}", cause.id);
                    (self.mark(Severity::Unknown), says)
                }
                (None, Some(says), Trial::Works) => (good, says),
                (None, Some(says), Trial::Fails) => {
                    let says = format!("{says}; another probe was not answered");
                    (self.mark(Severity::Warning), says)
                }
                (None, ..) => ("", String::new()),
            };
            if !mark.is_empty() {
                text.push_str(&format!("  {mark} {name:<10} {}\n", one_line(says)));
            }
            let is_of = |one: &&UnexaminedWay| kinds.contains(&one.way);
            for one in self.diagnosis.unexamined.iter().filter(is_of) {
                let by = one.family.map(|family| format!("by {family} ")).unwrap_or_default();
                let why = one_line(&one.why);
                text.push_str(&format!("  ? {name:<10} {by}not examined: {why}\n"));
            }
        }
        text
    }

    /// Returns the finding that says most of why what a container sends is lost; of none, why it
    /// is not as ADD left it.
    fn blamed(&self, container: &Container, kinds: &[WayKind]) -> Option<&Finding> {
        let is_of = |finding: &&Finding| {
            finding.severity != Severity::Unknown
                && (finding.hits.is_empty() || finding.hits.contains(&container.id))
                && match kinds {
                    [] => OF_ADD.contains(&finding.id),
                    kinds => finding.breaks.iter().any(|way| {
                        kinds.contains(&way.kind)
                            && way.container.as_ref().is_none_or(|id| *id == container.id)
                    }),
                }
        };
        // Errors come first.
        self.diagnosis.causes.iter().map(|cause| &cause.finding).find(is_of)
    }

    /// Only where every attachment was compared.
    fn attached(&self, container: &Container) -> Option<String> {
        let all = &container.attachments;
        let is_checked = !all.is_empty() && all.iter().all(|one| one.not_checked.is_none());
        let plugins: usize = all.iter().map(|one| one.plugins.len()).sum();
        is_checked.then(|| format!("as ADD left it: {}", several(plugins, "plugin")))
    }

    /// Published ports that were tried.
    fn ports(&self, container: &Container) -> Option<String> {
        let mut unexamined = self.diagnosis.unexamined.iter();
        if unexamined.any(|one| one.way == WayKind::Published) {
            return None;
        }
        ports(container)
    }

    fn inside(&self, container: &Container) -> Option<String> {
        let inside = container.inside.as_ref()?;
        let listeners: Vec<String> = (inside.listeners.iter().take(NAMED))
            .map(|listener| {
                let program = listener.program.as_deref().unwrap_or("a program");
                format!("{program} on {}", listener.at)
            })
            .collect();
        let sound = match self.is_diverted(container) {
            true => "loopback, addresses",
            false => "loopback, addresses, routes",
        };
        Some(match listeners.is_empty() {
            true => format!("{sound}; no program listens"),
            false => format!("{sound}; listening: {}", listeners.join(", ")),
        })
    }

    /// Says whether a route of the container leads what it sends elsewhere.
    fn is_diverted(&self, container: &Container) -> bool {
        let causes = &self.diagnosis.causes;
        let mut all =
            causes.iter().flat_map(|cause| std::iter::once(&cause.finding).chain(&cause.explains));
        all.any(|one| one.id == "inside-diverts" && one.hits.contains(&container.id))
    }

    fn echoes(&self, container: &Container) -> Option<String> {
        let gateways: Vec<_> = container.attachments.iter().flat_map(|one| &one.gateways).collect();
        let answered =
            self.answers.from(Some(&container.id)).filter_map(|(asked, answer)| {
                match (asked, answer) {
                    (Probe::Echo { to }, Answer::Reached { after_us })
                        if gateways.contains(&to) =>
                    {
                        Some(format!("{to} in {}", millis(*after_us)))
                    }
                    _ => None,
                }
            });
        joined(answered.collect())
    }

    fn connections(&self, container: &Container) -> Option<String> {
        let gateways: Vec<_> = container.attachments.iter().flat_map(|one| &one.gateways).collect();
        let reached = self.answers.from(Some(&container.id)).filter_map(|(asked, answer)| {
            match (asked, answer) {
                (Probe::Connect { to }, Answer::Reached { after_us }) => {
                    Some(format!("{to} in {}", millis(*after_us)))
                }
                (Probe::Connect { to }, Answer::Refused) => {
                    Some(format!("{to} is reached, and nothing listens there"))
                }
                (Probe::Echo { to }, Answer::Reached { after_us }) if !gateways.contains(&to) => {
                    Some(format!("{to} in {}", millis(*after_us)))
                }
                _ => None,
            }
        });
        joined(reached.collect())
    }

    fn names(&self, container: &Container) -> Option<String> {
        let servers = container.nameservers.iter().flatten();
        let answered = servers.filter_map(|server| {
            let asked = Probe::name(container, *server);
            match self.answers.to(&Question { from: Some(container.id.clone()), asked })? {
                Answer::Named { after_us, .. }
                | Answer::OneKind { after_us, .. }
                | Answer::Reached { after_us } => {
                    Some(format!("{server} answers in {}", millis(*after_us)))
                }
                _ => None,
            }
        });
        joined(answered.collect())
    }
}

/// Names a way that was not examined.
fn way(one: &UnexaminedWay) -> String {
    let name = match one.way {
        WayKind::Gateway => "the gateway",
        WayKind::Outside => "the way beyond this node",
        WayKind::Names => "servers of names",
        _ => "published ports",
    };
    match one.family {
        Some(family) => format!("{name} by {family}"),
        None => name.to_owned(),
    }
}

fn joined(parts: Vec<String>) -> Option<String> {
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn ports(container: &Container) -> Option<String> {
    let ports = container.attachments.iter().flat_map(|one| &one.ports);
    joined(
        ports
            .map(|port| format!("{} -> {}/{}", port.host, port.container, port.transport.as_str()))
            .collect(),
    )
}

fn head(container: &Container, attachment: &Attachment) -> String {
    let addresses: Vec<String> =
        attachment.addresses.iter().map(|address| address.addr().to_string()).collect();
    format!(
        "{}   {} on {}   {}",
        container.called(),
        attachment.ifname,
        attachment.network,
        addresses.join("  ")
    )
}

fn millis(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

fn several(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Says of how many findings another one is the cause, and which they are.
fn so(explains: &[Finding]) -> String {
    let mut kinds: Vec<&str> = explains.iter().map(|finding| finding.id).collect();
    sort(&mut kinds);
    kinds.dedup();
    let more = if KINDS < kinds.len() { " and others" } else { "" };
    kinds.truncate(KINDS);
    format!(
        "the cause of {} more ({}{more}): netwright doctor -v",
        explains.len(),
        kinds.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnose::IpFamily;
    use diagnose::model::{Namespace, Port, Transport};
    use expect_test::{Expect, expect};

    fn node() -> Scene {
        let attachment = Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            plugins: vec!["bridge".to_owned(), "portmap".to_owned()],
            addresses: vec!["10.88.0.2/24".parse().unwrap()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            ports: vec![Port {
                transport: Transport::Tcp,
                host: 8080,
                host_ip: None,
                container: 80,
            }],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            inside: Some(Namespace::default()),
            nameservers: Some(vec!["192.0.2.53".parse().unwrap()]),
            attachments: vec![attachment],
            ..Container::default()
        };
        Scene { node: "node1".to_owned(), containers: vec![container], ..Scene::default() }
    }

    fn dropped() -> RootCause {
        let says = "containers of mynet do not reach beyond this node";
        let finding = Finding::error("forward-dropped", "ip filter/FORWARD rule 1", says)
            .at("table ip filter, chain FORWARD, rule 1: drop")
            .of("firewalld, which is running")
            .seen("a probe ended there")
            .hits("c1")
            .fix("nft delete rule ip filter FORWARD handle 7")
            .breaks(WayKind::Outside, Some(IpFamily::V4))
            .breaks(WayKind::Names, Some(IpFamily::V4));
        let silent = Finding::error("nameserver-silent", "192.0.2.53", "192.0.2.53 is silent");
        RootCause { finding, explains: vec![silent] }
    }

    fn check(causes: Vec<RootCause>, only: Option<&str>, verbose: bool, expected: &Expect) {
        let diagnosis = Diagnosis { causes, looked_at: 7, ..Diagnosis::default() };
        check_all(&diagnosis, only, verbose, expected);
    }

    fn check_all(diagnosis: &Diagnosis, only: Option<&str>, verbose: bool, expected: &Expect) {
        let echo = Probe::Echo { to: "10.88.0.1".parse().unwrap() };
        let question = Question { from: Some("c1".to_owned()), asked: echo };
        let answers = Answers { all: vec![(question, Answer::Reached { after_us: 300 })] };
        let told = DoctorReport {
            diagnosis,
            answers: &answers,
            scene: &node(),
            only,
            verbose,
            took: Duration::from_millis(140),
            plain: true,
        };
        expected.assert_eq(&told.text());
    }

    #[test]
    fn a_sound_node_is_one_line() {
        check(
            Vec::new(),
            None,
            false,
            &expect![[r#"
                node1: 1 container on 0 networks, 7 things looked at, all as they should be (0.14 s)
            "#]],
        );
    }

    /// Nothing is wrong, and we cannot know what a BPF program does.
    #[test]
    fn what_nobody_judges_is_shown_on_demand() {
        let note = Finding::unknown("filter-unknown", "this node", "this node has filters")
            .seen("a program of BPF (XDP) sees the packets of up0 first");
        let diagnosis = Diagnosis { notes: vec![note], looked_at: 7, ..Diagnosis::default() };
        check_all(
            &diagnosis,
            None,
            false,
            &expect![[r#"
                node1: 1 container on 0 networks, 7 things looked at, all as they should be (0.14 s); 1 note: netwright doctor -v
            "#]],
        );
        check_all(
            &diagnosis,
            None,
            true,
            &expect![[r#"
                ? filter-unknown  this node has filters
                    seen    a program of BPF (XDP) sees the packets of up0 first
                    more    netwright doctor --explain filter-unknown

                node1: 1 container on 0 networks, 7 things looked at, all as they should be (0.14 s)
            "#]],
        );
    }

    #[test]
    fn what_is_left_out_is_counted_and_not_called_sound() {
        let diagnosis = Diagnosis { left_out: 2, looked_at: 7, ..Diagnosis::default() };
        check_all(
            &diagnosis,
            None,
            false,
            &expect![[r#"
                node1: 1 container on 0 networks, 7 things looked at, the others as they should be (0.14 s); 2 findings left out
            "#]],
        );
    }

    /// Only a probe shows that a way is broken, or works; what was read or computed is no trial.
    #[test]
    fn a_way_is_called_broken_if_a_probe_was_lost() {
        let row = |to: Option<(&str, Answer)>| {
            let diagnosis = Diagnosis { causes: vec![dropped()], ..Diagnosis::default() };
            let asked = |(to, answer): (&str, Answer)| {
                let asked = Probe::Echo { to: to.parse().unwrap() };
                (Question { from: Some("c1".to_owned()), asked }, answer)
            };
            let answers = Answers { all: to.map(asked).into_iter().collect() };
            let scene = node();
            let report = DoctorReport {
                diagnosis: &diagnosis,
                answers: &answers,
                scene: &scene,
                only: Some("c1"),
                verbose: false,
                took: Duration::ZERO,
                plain: true,
            };
            let text = report.text();
            text.lines().find(|line| line.contains("outside")).unwrap_or_default().to_owned()
        };
        let lost = row(Some(("192.0.2.1", Answer::Silent { hops: Vec::new() })));
        assert_eq!(lost, "  x outside    see forward-dropped");
        let reached = row(Some(("192.0.2.1", Answer::Reached { after_us: 300 })));
        assert_eq!(reached, "  ! outside    192.0.2.1 in 0.3 ms; see forward-dropped");
        let says = "not examined: what was read breaks it, see forward-dropped";
        assert_eq!(row(None), format!("  ? outside    {says}"));
    }

    /// Nothing is known of what was not examined.
    #[test]
    fn what_was_not_examined_is_listed_and_not_called_sound() {
        let unexamined = vec![UnexaminedWay {
            way: WayKind::Outside,
            family: Some(IpFamily::V6),
            hits: vec!["c1".to_owned()],
            why: "no probe was sent".to_owned(),
        }];
        let diagnosis = Diagnosis { unexamined, looked_at: 7, ..Diagnosis::default() };
        check_all(
            &diagnosis,
            None,
            false,
            &expect![[r#"
                ? not examined: the way beyond this node by IPv6 of c1: no probe was sent

                node1: 1 container on 0 networks, 7 things looked at, as they should be, and 1 way not examined (0.14 s)
            "#]],
        );
        check_all(
            &diagnosis,
            Some("c1"),
            false,
            &expect![[r#"
                c1   eth0 on mynet   10.88.0.2
                  + attached   as ADD left it: 2 plugins
                  + inside     loopback, addresses, routes; no program listens
                  + gateway    10.88.0.1 in 0.3 ms
                  ? outside    by IPv6 not examined: no probe was sent

                node1: 1 container on 0 networks, 7 things looked at, as they should be, and 1 way not examined (0.14 s)
            "#]],
        );
    }

    #[test]
    fn what_a_cause_explains_is_counted() {
        check(
            vec![dropped()],
            None,
            false,
            &expect![[r#"
                x forward-dropped  containers of mynet do not reach beyond this node
                    where   table ip filter, chain FORWARD, rule 1: drop
                    whose   firewalld, which is running
                    seen    a probe ended there
                    hits    c1
                    fix     nft delete rule ip filter FORWARD handle 7
                    more    netwright doctor --explain forward-dropped
                    so      the cause of 1 more (nameserver-silent): netwright doctor -v

                1 error; 6 things are as they should be
            "#]],
        );
    }

    #[test]
    fn a_container_is_shown_with_its_ways() {
        check(
            vec![dropped()],
            Some("c1"),
            true,
            &expect![[r#"
                c1   eth0 on mynet   10.88.0.2
                  + attached   as ADD left it: 2 plugins
                  + inside     loopback, addresses, routes; no program listens
                  + gateway    10.88.0.1 in 0.3 ms
                  ? outside    not examined: what was read breaks it, see forward-dropped
                  ? names      not examined: what was read breaks it, see forward-dropped

                x forward-dropped  containers of mynet do not reach beyond this node
                    where   table ip filter, chain FORWARD, rule 1: drop
                    whose   firewalld, which is running
                    seen    a probe ended there
                    fix     nft delete rule ip filter FORWARD handle 7
                    more    netwright doctor --explain forward-dropped
                    so      nameserver-silent: 192.0.2.53 is silent

                1 error; 6 things are as they should be
            "#]],
        );
    }
}
