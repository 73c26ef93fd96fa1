//! `netwrightd policies`: which connections are allowed, and why others are not, as people and
//! scripts need it.

use std::io::Write as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use agent::config::IsolationScope;
use agent::keys::{self, Key};
use agent::load;
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use policy::isolation::Isolation;
use serde::de::DeserializeOwned;
use service_kit::attendant;
use service_kit::command_line::{
    CONFIGURATION, apply_keys, configuration, configuration_of, flags, is_json, json, output,
    socket, socket_of,
};
use service_kit::exchange::{NoAnswer, ask};
use service_kit::stdio;
use service_kit::stop::Stop;
use state::Roots;

use crate::answers::{ACCEPT, DROPS, EXPLAIN, POLICIES};
use crate::drops::{DroppedPacket, Page};
use crate::isolate::isolation;
use crate::listing::list;
use crate::objects;
use crate::of_files::{self, FileWorld};
use crate::question::{End, Question, judge, traffic};

mod text;

use text::{asides, dropped, explanation, listed, summary};

const SOURCE: &str = "source";
const DESTINATION: &str = "destination";
const PORT: &str = "port";
const NETWORK: &str = "network";
const FILES: &str = "file";
const EXPECT: &str = "expect";
const FOLLOW: &str = "follow";

/// The file's name that means standard input.
const STREAM: &str = "-";

/// How long the service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between looks while a user follows the drops.
const PAUSE: Duration = Duration::from_millis(500);

/// The exit code when the answer is another one than was expected, or files have faults.
const NOT_SO: u8 = 1;
/// The exit code when nothing could be judged.
const NOT_JUDGED: u8 = 3;

/// Returns the command.
pub fn command() -> Command {
    let common = |command: Command| {
        let socket =
            socket("where the service answers [default: /run/netwright/agent/policy.sock]");
        command.arg(output()).arg(socket)
    };
    let files = || {
        let files = Arg::new(FILES)
            .long(FILES)
            .value_name("PATH")
            .value_parser(ValueParser::path_buf())
            .action(ArgAction::Append)
            .help("judge the objects of this file or folder (YAML, JSON; - is standard input), without a service or a cluster; may be given several times");
        let others = [configuration()].into_iter().chain(flags(isolation_keys()));
        [files].into_iter().chain(others.map(|flag| flag.requires(FILES)))
    };
    let end = |name: &'static str, value: &'static str| {
        Arg::new(name)
            .value_name(value)
            .required(true)
            .value_parser(|text: &str| End::read(text))
            .help("an address, NAMESPACE/POD, or a node's name")
    };
    common(Command::new("policies"))
        .about("Shows who may talk to whom, and why something was dropped")
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true)
        .subcommand(common(Command::new("accept").about(
            "Confirms the removal of policies that the service keeps because many were removed at once",
        )))
        .subcommand(common(
            Command::new("drops")
                .about("Lists dropped packets with the policy that is the cause, and how many more were dropped")
                .arg(Arg::new(FOLLOW).long(FOLLOW).short('f').action(ArgAction::SetTrue).help(
                    "also print new ones until interrupted; as JSON, one object on each line",
                )),
        ))
        .subcommand(common(
            Command::new("explain")
                .about("Says whether a connection is allowed, and by which rule, without a packet")
                .arg(end(SOURCE, "SOURCE"))
                .arg(end(DESTINATION, "DESTINATION"))
                .arg(
                    Arg::new(PORT)
                        .value_name("PORT[/PROTOCOL]")
                        .required(true)
                        .value_parser(|text: &str| traffic(text))
                        .help("the destination's own port, such as 5432 or 53/udp; or icmp, icmpv6, protocol/47"),
                )
                .arg(
                    Arg::new(NETWORK)
                        .long(NETWORK)
                        .value_name("NAMESPACE/NAME")
                        .help("judge on this further network of the pods, by MultiNetworkPolicies"),
                )
                .args(files())
                .arg(
                    Arg::new(EXPECT)
                        .long(EXPECT)
                        .value_name("VERDICT")
                        .value_parser(PossibleValuesParser::new(["allow", "deny"]))
                        .help("exit code 1 unless this is the verdict"),
                )
                .after_help(
                    "Exit codes: 0 it was judged, and is as expected; 1 it is not as expected; 2 the command line is \
                     wrong; 3 it could not be judged: the service is away, an end is not known, a file cannot be read.\n\n\
                     Examples:\n  netwright policy explain shop/web shop/db 5432\n  netwright policy explain shop/web 198.51.100.7 443\n  \
                     netwright policy explain --file deploy/ --expect deny other/web shop/db 5432\n  \
                     netwright policy explain --file deploy/ --isolate namespaces other/web shop/web 8080",
                ),
        ))
        .subcommand(common(
            Command::new("list")
                .about("Lists the policies, and which of them apply to this node's pods; the default command")
                .args(files()),
        ))
        .after_help(
            "Examples:\n  netwright policy list\n  netwright policy explain shop/web shop/db 5432\n  netwright policy drops --follow",
        )
}

/// Runs one of its commands.
pub fn run(matches: &ArgMatches, roots: &Roots) -> Result<(), Stop> {
    let done = match matches.subcommand() {
        Some(("accept", matches)) => answer_of(matches, roots, ACCEPT).map(|text| {
            stdio::say(&String::from_utf8_lossy(&text));
        }),
        Some(("drops", matches)) => drops(matches, roots),
        Some(("explain", matches)) => explain(matches, roots),
        Some((_, matches)) => show_list(matches, roots),
        None => show_list(matches, roots),
    };
    done.map_err(|failed| match failed {
        CommandFailure::NotJudged(why) => {
            stdio::complain(&why.iter().map(|why| format!("error: {why}\n")).collect::<String>());
            Stop::Said(NOT_JUDGED)
        }
        CommandFailure::NotSo(why) => {
            stdio::complain(&format!("error: {why}\n"));
            Stop::Said(NOT_SO)
        }
        CommandFailure::Usage(stop) => stop,
    })
}

/// Why a command does not end with 0.
#[derive(Debug)]
enum CommandFailure {
    NotJudged(Vec<String>),
    NotSo(String),
    /// The command line is wrong.
    Usage(Stop),
}

fn not_judged(why: impl Into<String>) -> CommandFailure {
    CommandFailure::NotJudged(vec![why.into()])
}

fn explain(matches: &ArgMatches, roots: &Roots) -> Result<(), CommandFailure> {
    let end = |name| matches.get_one::<End>(name).expect("it is required").clone();
    let question = Question {
        source: end(SOURCE),
        destination: end(DESTINATION),
        traffic: *matches.get_one(PORT).expect("it is required"),
        network: matches.get_one::<String>(NETWORK).cloned(),
    };
    let judged = match of_named_files(matches)? {
        Some(files) => {
            let world = question.world(&files.world, &files.networks).map_err(not_judged)?;
            let mut judged = judge(world, &question).map_err(not_judged)?;
            judged.notes.extend(files.notes);
            judged.faults = files.faults;
            judged
        }
        None => ask_service(matches, roots, &format!("{EXPLAIN}{}", question.target()))?,
    };
    if is_json(matches) {
        stdio::say(&json(&judged));
    } else {
        stdio::complain(&asides(&judged.notes, &judged.faults));
        stdio::say(&explanation(&judged));
    }
    let expected = matches.get_one::<String>(EXPECT).map(|word| word == "allow");
    match expected {
        Some(expected) if expected != judged.allowed => {
            let word = |allowed| if allowed { "allowed" } else { "denied" };
            Err(CommandFailure::NotSo(format!(
                "{} to {}, {}, is {}, and {} was expected",
                judged.source,
                judged.destination,
                judged.traffic,
                word(judged.allowed),
                word(expected)
            )))
        }
        _ => Ok(()),
    }
}

/// Reads the files that were named, if any were.
fn of_named_files(matches: &ArgMatches) -> Result<Option<FileWorld>, CommandFailure> {
    let Some(paths) = matches.try_get_many::<PathBuf>(FILES).ok().flatten() else {
        return Ok(None);
    };
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == STREAM {
            files.push(objects::read_stream("standard input", std::io::stdin().lock()));
        } else {
            files.extend(objects::read(std::slice::from_ref(path)).map_err(not_judged)?);
        }
    }
    if files.is_empty() {
        return Err(not_judged("the folder has no file whose name ends in .yaml, .yml or .json"));
    }
    let (isolation, note) = isolation_of(matches)?;
    let mut files = of_files::world(files, Some(isolation)).map_err(CommandFailure::NotJudged)?;
    files.notes.extend(note);
    Ok(Some(files))
}

/// Returns the keys that isolate namespaces.
fn isolation_keys() -> impl Iterator<Item = &'static Key> {
    keys::of_table("policy").filter(|key| key.name.starts_with("isolate"))
}

/// Returns which namespaces are isolated by default, as the configuration and the flags say it, and
/// a note if it is more than those that their labels name.
fn isolation_of(matches: &ArgMatches) -> Result<(Isolation, Option<String>), CommandFailure> {
    let file = configuration_of(matches);
    let (mut loaded, problems) = load::read(&file);
    if !problems.is_empty() {
        let problems = problems.iter().map(|problem| problem.to_string().trim_end().to_owned());
        return Err(CommandFailure::NotJudged(problems.collect()));
    }
    let is_named = matches.value_source(CONFIGURATION) == Some(ValueSource::CommandLine);
    if is_named && !loaded.files.contains(&file) {
        return Err(not_judged(format!("{}: there is no such file", file.display())));
    }
    apply_keys(isolation_keys(), matches, &mut loaded).map_err(CommandFailure::Usage)?;
    let config = &loaded.config.policy;
    let source = loaded.sources.get(&("policy", "isolate")).map(|source| source.file.display());
    let source = source.map(cni::text::one_line).filter(|file| !file.is_empty());
    let note = (config.isolate.0 == IsolationScope::Namespaces).then(|| {
        let source = source.unwrap_or_else(|| "--isolate".to_owned());
        format!("namespaces are isolated by default, as {source} says")
    });
    Ok((isolation(config), note))
}

fn show_list(matches: &ArgMatches, roots: &Roots) -> Result<(), CommandFailure> {
    let files = of_named_files(matches)?;
    let listing = match &files {
        Some(files) => {
            stdio::complain(&asides(&files.notes, &[]));
            list(&files.world, None, Vec::new(), Vec::new()).with(&files.networks, None)
        }
        None => ask_service(matches, roots, POLICIES)?,
    };
    stdio::say(&if is_json(matches) { json(&listing) } else { listed(&listing) });
    let faults = files.map(|files| files.faults).unwrap_or_default();
    match faults.len() {
        0 => Ok(()),
        1 => Err(CommandFailure::NotSo(faults.into_iter().collect())),
        count => {
            stdio::complain(&asides(&[], &faults));
            Err(CommandFailure::NotSo(format!("{count} parts of the policies were refused")))
        }
    }
}

fn drops(matches: &ArgMatches, roots: &Roots) -> Result<(), CommandFailure> {
    let follows = matches.get_flag(FOLLOW);
    let page: Page = ask_service(matches, roots, &format!("{DROPS}0"))?;
    if !follows {
        stdio::say(&if is_json(matches) { json(&page) } else { dropped(&page.drops) });
        if !is_json(matches) {
            stdio::complain(&summary(&page));
        }
        return Ok(());
    }
    let (mut next, mut said, mut silent) = (page.next, String::new(), false);
    let mut page = Some(page);
    loop {
        if let Some(page) = page.take() {
            silent = false;
            next = page.next;
            let text = match is_json(matches) {
                true => page.drops.iter().map(one_object).collect(),
                false => dropped(&page.drops),
            };
            if kernel::stdout::Stdout.write_all(text.as_bytes()).is_err() {
                // The reader is gone.
                return Ok(());
            }
            let summary = summary(&page);
            if !is_json(matches) && summary != said {
                stdio::complain(&summary);
                said = summary;
            }
        }
        sleep(PAUSE);
        match ask_service(matches, roots, &format!("{DROPS}{next}")) {
            Ok(found) => page = Some(found),
            // The service may be starting again.
            Err(CommandFailure::NotJudged(why)) if !silent => {
                // What helps is told by a command that ends.
                let why: Vec<&str> = why.iter().filter_map(|why| why.lines().next()).collect();
                stdio::complain(&format!("{}; asking again\n", why.join("; ")));
                silent = true;
            }
            Err(_) => {}
        }
    }
}

fn one_object(packet: &DroppedPacket) -> String {
    let mut line = serde_json::to_string(packet).expect("our types serialise to JSON");
    line.push('\n');
    line
}

fn ask_service<T: DeserializeOwned>(
    matches: &ArgMatches,
    roots: &Roots,
    question: &str,
) -> Result<T, CommandFailure> {
    serde_json::from_slice(&answer_of(matches, roots, question)?)
        .map_err(|error| not_judged(format!("read what the service says: {error}")))
}

fn answer_of(
    matches: &ArgMatches,
    roots: &Roots,
    question: &str,
) -> Result<Vec<u8>, CommandFailure> {
    let path = socket_of(matches).unwrap_or_else(|| attendant::socket(roots, "policy"));
    let shown = path.display();
    match ask(&path, question, TIMEOUT) {
        Ok((200, body)) => Ok(body),
        Ok((_, body)) => {
            Err(not_judged(cni::text::one_line(String::from_utf8_lossy(&body).trim_end())))
        }
        Err(NoAnswer::Nobody(_)) => Err(not_judged(format!(
            "the service policy does not run here, or waits before it begins: no program listens at {shown}\nhint: netwrightd agent status policy; files are judged with --file"
        ))),
        Err(error) => Err(not_judged(format!("ask the service policy at {shown}: {error}"))),
    }
}
