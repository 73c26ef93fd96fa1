//! Acts as cnitool, the reference's test tool, for scripts written against it.
//!
//! `cnitool add|check|del|gc|status NET NETNS`, with `-i`/`--ifname`. We substitute nothing for
//! what is missing: no embedded network, no plugins beside `CNI_PATH`. `gc` removes every
//! attachment of the network, as the original does.

use std::ffi::OsString;
use std::process::ExitCode;

use cni::{IfName, NetworkList};
use cni_runtime::{Attachment, ConfigFolder};

use crate::args::Common;
use crate::failure::Failure;
use crate::net::session::{PluginSource, Session, load_failure};
use crate::net::{attach, container};
use crate::shell::{Format, Shell};
use crate::world::World;

const USAGE: &str = "usage: cnitool add|check|del|gc|status [-i IFNAME] NET NETNS";

/// How long one operation may take. The original waits for ever.
const TIMEOUT_S: u64 = 300;

/// Runs one command; every failure exits with 1, as the original does.
pub(crate) fn main(arguments: &[OsString], world: &World, shell: &mut Shell) -> ExitCode {
    match run(arguments, world, shell) {
        Ok(code) => code,
        Err(failure) => {
            shell.say(failure.to_cni());
            ExitCode::FAILURE
        }
    }
}

struct Line {
    command: String,
    network: String,
    netns: String,
    ifname: Option<String>,
}

fn run(arguments: &[OsString], world: &World, shell: &mut Shell) -> Result<ExitCode, Failure> {
    let Some(line) = parse(arguments) else {
        shell.say(USAGE);
        return Ok(ExitCode::FAILURE);
    };
    let common = Common { output: Format::Json, timeout: TIMEOUT_S, conf_dir: None };
    let session = Session::open(world, &common, shell, PluginSource::PathOnly)?;
    let folder = ConfigFolder::scan(&session.conf_dir).map_err(|error| load_failure(&error))?;
    let list = folder.find(&line.network).map_err(|error| Failure::usage(error.to_string()))?;
    let netns = world.absolute(&line.netns);
    let ifname =
        line.ifname.or_else(|| world.variable("CNI_IFNAME")).unwrap_or_else(|| "eth0".to_owned());
    let attachment = attach::from_environment(
        container::derived_id(&netns),
        IfName::new(&ifname)?,
        &netns.to_string_lossy(),
        world,
    )?;
    act(&line.command, &session, list, &attachment, shell)?;
    Ok(ExitCode::SUCCESS)
}

fn act(
    command: &str,
    session: &Session,
    list: &NetworkList,
    attachment: &Attachment,
    shell: &mut Shell,
) -> Result<(), Failure> {
    let runtime = &session.runtime;
    let deadline = session.deadline();
    let said = |error: String| Failure::usage(error);
    match command {
        "add" => {
            let added = runtime
                .add_list(list, attachment, deadline)
                .map_err(|error| said(error.to_string()))?;
            let version = cni::Version::parse(&list.cni_version).unwrap_or(cni::Version::CURRENT);
            shell.raw(&added.result.write_indented(version)?);
            if shell.unread() {
                super::attach::undo(session, list, attachment, shell);
                return Err(said("the result cannot be written to standard output".to_owned()));
            }
        }
        "check" => {
            runtime
                .check_list(list, attachment, deadline)
                .map_err(|error| said(error.to_string()))?;
        }
        "del" => {
            runtime
                .del_list(list, attachment, deadline)
                .map_err(|error| said(error.to_string()))?;
        }
        "gc" => {
            runtime.gc_list(list, None, deadline).map_err(|error| said(error.to_string()))?;
        }
        _ => runtime.status_list(list, deadline).map_err(|error| said(error.to_string()))?,
    }
    Ok(())
}

/// Reads the arguments. Ignores names after the second, as the original does.
fn parse(arguments: &[OsString]) -> Option<Line> {
    let texts: Vec<&str> = arguments.iter().map(|text| text.to_str()).collect::<Option<_>>()?;
    let mut names = Vec::new();
    let mut ifname = None;
    let mut left = texts.into_iter();
    while let Some(text) = left.next() {
        match text {
            "-i" | "--ifname" => ifname = Some(left.next()?.to_owned()),
            _ => match text.strip_prefix("--ifname=") {
                Some(value) => ifname = Some(value.to_owned()),
                None => names.push(text),
            },
        }
    }
    let [command, network, netns, ..] = names.as_slice() else { return None };
    if !["add", "check", "del", "gc", "status"].contains(command) {
        return None;
    }
    Some(Line {
        command: (*command).to_owned(),
        network: (*network).to_owned(),
        netns: (*netns).to_owned(),
        ifname,
    })
}
