//! `netwrightd routes`: how pods of other nodes are reached, as people and scripts need it.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use agent::load;
use clap::{Arg, ArgMatches, Command};
use jiff::Timestamp;
use routing::Block;
use routing::routing::{Phase, Target};
use routing::show::{Explanation, PeerState, Row, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;
use service_kit::command_line::{self, is_json, json, output, socket, socket_of};
use service_kit::exchange::{NoAnswer, ask};
use service_kit::stdio::{self, columns};
use service_kit::stop::Stop;

use crate::answers::{ACCEPT, EXPLAIN, ROUTES, TARGETS};
use crate::probe::{self, ProbeReport};

const ADDRESS: &str = "address";
const NODES: &str = "node";

/// How long the service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the command.
pub fn command() -> Command {
    let common = |command: Command| {
        let socket = socket("where the service listens [default: as the configuration says]");
        command.arg(command_line::configuration()).arg(output()).arg(socket)
    };
    let address = Arg::new(ADDRESS)
        .value_name("ADDRESS")
        .required(true)
        .value_parser(|text: &str| text.parse::<IpAddr>().map_err(|error| error.to_string()))
        .help("an address of a pod, or any other");
    common(Command::new("routes"))
        .about("Shows how pods of other nodes are reached")
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true)
        .subcommand(common(Command::new("accept").about(
            "Confirms the removal of nodes that the service keeps because many were removed at once",
        )))
        .subcommand(common(
            Command::new("explain")
                .about("Says which node has an address, how packets get there, and why not by another path")
                .arg(address),
        ))
        .subcommand(common(Command::new("list").about(
            "Lists the other nodes, their prefixes and the paths to them; the default command",
        )))
        .subcommand(common(
            Command::new("probe")
                .about("Sends packets to other nodes along the paths of pods' packets: whether the nodes answer, how large a packet arrives, and whether UDP with a checksum does")
                .arg(Arg::new(NODES).value_name("NODE").num_args(0..).help(
                    "only these nodes",
                )),
        ))
        .after_help(
            "Examples:\n  netwright routes\n  netwright routes explain 10.244.2.7\n  netwright routes probe b\n  netwright routes -o json",
        )
}

/// Runs one of its commands.
pub fn run(matches: &ArgMatches) -> Result<(), Stop> {
    match matches.subcommand() {
        Some(("accept", matches)) => {
            let text = ask_service(matches, ACCEPT)?;
            stdio::say(&String::from_utf8_lossy(&text));
            Ok(())
        }
        Some(("explain", matches)) => {
            let address = matches.get_one::<IpAddr>(ADDRESS).expect("it is required");
            show(matches, &format!("{EXPLAIN}{address}"), explained)
        }
        Some(("probe", matches)) => probe(matches),
        Some((_, matches)) => show(matches, ROUTES, table),
        None => show(matches, ROUTES, table),
    }
}

/// Asks other nodes. It fails if something is wrong with one of them.
fn probe(matches: &ArgMatches) -> Result<(), Stop> {
    let body = ask_service(matches, TARGETS)?;
    let mut targets: Vec<Target> = read(&body)?;
    if let Some(nodes) = matches.get_many::<String>(NODES) {
        let nodes: Vec<&str> = nodes.map(String::as_str).collect();
        let is_known = |name: &str| targets.iter().any(|target| target.peer == name);
        if let Some(unknown) = nodes.iter().find(|name| !is_known(name)) {
            return Err(Stop::Failed(format!(
                "there is no path to a node {unknown:?}\nhint: netwright routes"
            )));
        }
        targets.retain(|target| nodes.contains(&target.peer.as_str()));
    }
    if !is_json(matches) && !targets.is_empty() {
        stdio::complain("asking other nodes; it takes some seconds\n");
    }
    let probed =
        probe::probe(targets).map_err(|error| Stop::Failed(format!("ask other nodes: {error}")))?;
    stdio::say(&if is_json(matches) { json(&probed) } else { probe_table(&probed) });
    match probed.iter().filter(|one| one.fault().is_some()).count() {
        0 => Ok(()),
        1 if probed.len() == 1 => Err(Stop::Failed("the path has a fault".to_owned())),
        count => Err(Stop::Failed(format!("{count} of {} paths have a fault", probed.len()))),
    }
}

/// Returns what was found out, as people read it.
fn probe_table(probed: &[ProbeReport]) -> String {
    let head = ["NODE", "PATH", "ADDRESS", "TIME", "FITS", "UDP", "RESULT"];
    let lines: Vec<Vec<String>> = std::iter::once(head.map(str::to_owned).to_vec())
        .chain(probed.iter().map(|one| one.cells().to_vec()))
        .collect();
    let mut text = columns(&lines);
    if probed.is_empty() {
        text.push_str("there is no path to another node\n");
    }
    text
}

/// Asks the service, and shows what it says.
fn show<T: DeserializeOwned + Serialize>(
    matches: &ArgMatches,
    question: &str,
    text: fn(&T) -> String,
) -> Result<(), Stop> {
    let answer: T = read(&ask_service(matches, question)?)?;
    stdio::say(&if is_json(matches) { json(&answer) } else { text(&answer) });
    Ok(())
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Stop> {
    serde_json::from_slice(body)
        .map_err(|error| Stop::Failed(format!("read what the service says: {error}")))
}

fn ask_service(matches: &ArgMatches, question: &str) -> Result<Vec<u8>, Stop> {
    // What is wrong with the rest of the configuration is `config check`'s to say.
    let configured =
        || load::read(&command_line::configuration_of(matches)).0.config.routing.socketpath;
    let path = socket_of(matches).unwrap_or_else(configured);
    match ask(&path, question, TIMEOUT) {
        Ok((200, body)) => Ok(body),
        Ok((_, body)) => Err(Stop::Failed(cni::text::one_line(String::from_utf8_lossy(&body)))),
        Err(NoAnswer::Nobody(_)) => Err(Stop::Failed(format!(
            "the service routing does not run here, or waits before it begins: no program listens at {}\nhint: netwrightd agent status routing",
            path.display()
        ))),
        Err(error) => {
            Err(Stop::Failed(format!("ask the service routing at {}: {error}", path.display())))
        }
    }
}

/// Returns the table as people read it.
fn table(table: &Table) -> String {
    use cni::text::one_line;

    let mut text = String::new();
    let phase = match &table.phase {
        Phase::Waiting(why) => format!("waits: {why}"),
        Phase::Restoring => {
            "has the nodes that the disk knows; no source has answered yet".to_owned()
        }
        Phase::Syncing => "is being programmed".to_owned(),
        Phase::Ready => "ready".to_owned(),
        Phase::Degraded(since) => {
            format!("keeps what it knows: the source is silent since {since}")
        }
        Phase::Standby => "on standby: flanneld does this node's part".to_owned(),
    };
    let prefixes: Vec<String> = table.prefixes.iter().map(ToString::to_string).collect();
    let mtu = table.pod_mtu.map_or(String::new(), |mtu| format!(", MTU of pods {mtu}"));
    let _ = writeln!(text, "{}", one_line(format!("node {}: {phase}", table.node)));
    if !prefixes.is_empty() {
        let _ = writeln!(text, "prefixes {}{mtu}", prefixes.join(", "));
    }
    if !table.kept.is_empty() {
        let kept: Vec<String> = table.kept.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "pods still live in earlier prefixes: {}", kept.join(", "));
    }
    if !table.blocks.is_empty() {
        let block = |block: &Block| format!("{block} of {}", block.space);
        let blocks: Vec<String> = table.blocks.iter().map(block).collect();
        let _ = writeln!(text, "blocks {}", one_line(blocks.join(", ")));
    }
    for warning in &table.warnings {
        let _ = writeln!(text, "warning: {}", one_line(warning));
    }
    if !table.standby.is_empty() {
        text.push_str("in its place, this node would make:\n");
    }
    for change in &table.standby {
        let _ = writeln!(text, "  {}", one_line(change));
    }
    let head = ["NODE", "PREFIXES", "PATH", "MTU", "SINCE", "STATE"].map(str::to_owned);
    let lines: Vec<Vec<String>> = std::iter::once(head.to_vec())
        .chain(table.rows.iter().map(|row| line(row).to_vec()))
        .collect();
    text.push_str(&columns(&lines));
    if table.rows.is_empty() {
        text.push_str("no other node is known\n");
    }
    text
}

fn line(row: &Row) -> [String; 6] {
    let prefixes: Vec<String> = row.prefixes.iter().map(ToString::to_string).collect();
    let blocks = match row.blocks.len() {
        0 => None,
        1 => Some("1 block".to_owned()),
        count => Some(format!("{count} blocks")),
    };
    let prefixes: Vec<String> = prefixes.into_iter().chain(blocks).collect();
    let mut state = match &row.state {
        PeerState::Incomplete(what) => format!("incomplete: {what}"),
        PeerState::Refused(why) => format!("refused: {why}"),
        PeerState::Wanted => "to be programmed".to_owned(),
        PeerState::Programmed => "programmed".to_owned(),
        PeerState::Probed => "answers".to_owned(),
        PeerState::Failing { error, since } => format!("failing since {since}: {error}"),
        PeerState::Held(why) => format!("held: {why}"),
        PeerState::Conflict(route) => format!("another program's route is in the way: {route}"),
    };
    if row.path == routing::Path::None && !row.because.is_empty() {
        let _ = write!(state, ": {}", row.because);
    }
    for fault in &row.faults {
        let _ = write!(state, "; {fault}");
    }
    let millis = i64::try_from(row.since.0).unwrap_or_default();
    let since = Timestamp::from_millisecond(millis).map(|time| format!("{time:.0}"));
    [
        row.peer.clone(),
        if prefixes.is_empty() { "-".to_owned() } else { prefixes.join(",") },
        row.path.to_string(),
        row.mtu.map_or("-".to_owned(), |mtu| mtu.to_string()),
        since.unwrap_or_default(),
        state,
    ]
}

fn explained(explained: &Explanation) -> String {
    let mut text: String = explained
        .sentences
        .iter()
        .map(|sentence| format!("{}\n", cni::text::one_line(sentence)))
        .collect();
    for passed in &explained.passed_over {
        let _ = writeln!(text, "not {}: {}", passed.path, cni::text::one_line(&passed.why));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use routing::Time;

    #[test]
    fn the_table_is_read_by_people() {
        let row = |peer: &str, path, state| Row {
            peer: peer.to_owned(),
            family: None,
            prefixes: vec!["10.244.2.0/24".parse().unwrap()],
            blocks: Vec::new(),
            path,
            because: "neither end offers VXLAN".to_owned(),
            state,
            since: Time::from_seconds(1_700_000_000),
            mtu: Some(1450),
            probe: None,
            probed: None,
            faults: Vec::new(),
        };
        let block = |prefix: &str| Block {
            prefix: prefix.parse().unwrap(),
            space: "storage".to_owned(),
            kept: false,
        };
        let failing = PeerState::Failing { error: "no\nroom".to_owned(), since: Time(0) };
        let shown = Table {
            version: 1,
            node: "a".to_owned(),
            prefixes: vec!["10.244.1.0/24".parse().unwrap()],
            kept: vec!["10.244.9.0/24".parse().unwrap()],
            blocks: vec![block("10.60.0.64/26"), block("10.60.1.0/26")],
            phase: Phase::Ready,
            pod_mtu: Some(1450),
            warnings: vec!["the source is silent".to_owned()],
            standby: vec!["create route 10.244.2.0/24".to_owned()],
            rows: vec![
                Row {
                    blocks: vec![block("10.60.2.0/26")],
                    ..row("b", routing::Path::Direct, PeerState::Programmed)
                },
                row("long-name", routing::Path::None, failing),
            ],
        };
        expect![[r#"
            node a: ready
            prefixes 10.244.1.0/24, MTU of pods 1450
            pods still live in earlier prefixes: 10.244.9.0/24
            blocks 10.60.0.64/26 of storage, 10.60.1.0/26 of storage
            warning: the source is silent
            in its place, this node would make:
              create route 10.244.2.0/24
            NODE       PREFIXES               PATH    MTU   SINCE                 STATE
            b          10.244.2.0/24,1 block  direct  1450  2023-11-14T22:13:20Z  programmed
            long-name  10.244.2.0/24          none    1450  2023-11-14T22:13:20Z  failing since 00:00 UTC: no\nroom: neither end offers VXLAN
        "#]].assert_eq(&table(&shown));
        // Whatever a record says, it is not the terminal's.
        let evil = "b\u{1b}[2J\nnode c\u{202e}".to_owned();
        let mut obeyed = shown.clone();
        (obeyed.node, obeyed.phase) = (evil.clone(), Phase::Waiting(evil.clone()));
        (obeyed.warnings, obeyed.standby) = (vec![evil.clone()], vec![evil.clone()]);
        obeyed.blocks[0].space.clone_from(&evil);
        obeyed.rows[0].peer.clone_from(&evil);
        obeyed.rows[0].faults.push(evil);
        let written = table(&obeyed);
        assert_eq!(written.lines().count(), table(&shown).lines().count(), "{written}");
        let raw = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
        assert!(!written.contains(raw), "{written}");
        let none = Table {
            kept: Vec::new(),
            blocks: Vec::new(),
            rows: Vec::new(),
            warnings: Vec::new(),
            standby: Vec::new(),
            ..shown
        };
        expect![[r#"
            node a: ready
            prefixes 10.244.1.0/24, MTU of pods 1450
            NODE  PREFIXES  PATH  MTU  SINCE  STATE
            no other node is known
        "#]]
        .assert_eq(&table(&none));
    }
}
