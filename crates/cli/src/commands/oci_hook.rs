//! `oci-hook`: attaches the containers of runc, crun and youki.
//!
//! The OCI runtime runs the hook in the host's network namespace with the container's state on
//! standard input (OCI runtime specification, "State" and "Lifecycle"). At createRuntime the state
//! holds the process ID and the annotations; at poststop only the ID is reliable. crun does not run
//! poststop after a createRuntime that failed, so a hook that fails cleans up after itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use cni::nearest::nearest;
use cni::{ContainerId, code};
use serde::{Deserialize, Serialize};

use super::{Outcome, attach};
use crate::args::{Common, OciHook, Stage};
use crate::failure::{EXIT_ENVIRONMENT, Failure};
use crate::net::attachments::{self, KnownAttachment};
use crate::net::session::{PluginSource, Session};
use crate::net::several::Plan;
use crate::net::spec::NetworkSpec;
use crate::net::{default, ports, spec};
use crate::shell::{Report, Shell};
use crate::world::World;

/// The annotation that lists networks.
const NETWORKS: &str = "dev.netwright.networks";
/// The annotation that lists published ports.
const PUBLISH: &str = "dev.netwright.publish";

/// The prefix of our annotations.
const OURS: &str = "dev.netwright.";

/// The largest state that is read: annotations are the container's own and may be anything.
const STATE_LIMIT: u64 = 4 << 20;

/// The parts of a container's state that a hook needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    id: String,
    status: String,
    pid: Option<u32>,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct HookReport {
    #[serde(rename = "containerID")]
    container_id: String,
    attached: Vec<String>,
    detached: Vec<String>,
}

impl Report for HookReport {
    fn text(&self) -> String {
        // Runtimes mix a hook's output into their own: silence is success.
        String::new()
    }
}

pub(crate) fn main(args: &OciHook, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let document = shell.read_input(STATE_LIMIT).map_err(|error| {
        Failure::of(code::IO_FAILURE, &error).context("read the container's state")
    })?;
    let state: State = cni::json::from_slice(&document).map_err(|error| {
        Failure::new(
            code::DECODE_FAILURE,
            format!("the container's state on standard input: {error}"),
        )
        .hint("an OCI runtime calls this command as a hook; see `netwright oci-hook --help`")
    })?;
    let id = ContainerId::new(&state.id).map_err(|error| {
        Failure::from(error.context("the container's ID"))
            .hint("CNI allows letters, digits, `_`, `.` and `-` in the ID of a container")
    })?;
    let stage = match args.stage {
        Some(stage) => stage,
        None if state.status == "stopped" => Stage::Poststop,
        None => Stage::CreateRuntime,
    };
    let mut served =
        HookReport { container_id: id.to_string(), attached: Vec::new(), detached: Vec::new() };
    let mut attached = None;
    match stage {
        Stage::CreateRuntime | Stage::Prestart => {
            attached = attach_all(&state, &id, common, world, shell)?;
            let members = attached.iter().flat_map(|(_, plan)| &plan.members);
            served.attached = members.map(|member| member.list.name.clone()).collect();
        }
        Stage::Poststop => served.detached = detach_all(&id, common, world, shell)?,
    }
    shell.print(&served);
    match attached {
        // A runtime that cannot read the answer takes the hook for failed, and crun then runs no
        // poststop.
        Some((session, plan)) if shell.unread() => {
            attach::tell_unread(shell);
            plan.undo(&session, shell);
            Ok(ExitCode::from(EXIT_ENVIRONMENT))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Attaches to every network that the annotations name, if any. When one fails, detaches those
/// before it.
fn attach_all(
    state: &State,
    id: &ContainerId,
    common: &Common,
    world: &World,
    shell: &Shell,
) -> Result<Option<(Session, Plan)>, Failure> {
    refuse_mistyped(&state.annotations)?;
    let annotation = |name: &str| state.annotations.get(name).map_or("", String::as_str);
    let refuse = |name: &str, error: String| {
        Failure::new(code::INVALID_CONFIG, format!("annotation {name}: {error}"))
    };
    let mut specs =
        spec::parse_list(annotation(NETWORKS)).map_err(|error| refuse(NETWORKS, error))?;
    let ports = ports::parse_list(annotation(PUBLISH)).map_err(|error| refuse(PUBLISH, error))?;
    if specs.is_empty() && !ports.is_empty() {
        specs.push(NetworkSpec::new(default::NAME));
    }
    if specs.is_empty() {
        return Ok(None);
    }
    let pid = state.pid.filter(|pid| *pid != 0).ok_or_else(|| {
        Failure::new(code::INVALID_ENVIRONMENT, "the container's state holds no process ID")
            .hint("run this hook at createRuntime (or prestart), not later")
    })?;
    let netns = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let plan = Plan::new(&specs, &ports, id, &netns.to_string_lossy(), &session, world)?;
    plan.attach(&session, shell)?;
    Ok(Some((session, plan)))
}

/// Refuses an annotation that was meant for us and mistyped: its container would start without a
/// network.
fn refuse_mistyped(annotations: &BTreeMap<String, String>) -> Result<(), Failure> {
    let known = [NETWORKS, PUBLISH];
    for name in annotations.keys().filter(|name| !known.contains(&name.as_str())) {
        let near = nearest(name, known);
        if near.is_none() && !name.starts_with(OURS) {
            continue;
        }
        let message =
            format!("annotation {name} is unknown: this hook knows only {NETWORKS} and {PUBLISH}");
        let failure = Failure::new(code::INVALID_CONFIG, message);
        return Err(match near {
            Some(near) => failure.hint(format!("did you mean {near}?")),
            None => failure.hint("remove it; names that begin with dev.netwright. are this hook's"),
        });
    }
    Ok(())
}

/// Detaches every known attachment of the container, the last network first.
fn detach_all(
    id: &ContainerId,
    common: &Common,
    world: &World,
    shell: &Shell,
) -> Result<Vec<String>, Failure> {
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let mut known = attachments::all(&session)?.known;
    known.retain(|known| known.key.container_id == *id);
    let mut detached = Vec::new();
    let mut failure: Option<Failure> = None;
    for known in known.iter().rev() {
        match super::gc::remove(known, &session) {
            Ok(stays) => {
                detached.push(name(known));
                stays.into_iter().for_each(|line| shell.warn(line));
            }
            Err(error) => {
                failure = Some(match failure.take() {
                    None => error,
                    Some(first) => first.because(error.message()),
                });
            }
        }
    }
    match failure {
        None => Ok(detached),
        Some(failure) => Err(failure.hint("`netwright gc` tries again")),
    }
}

fn name(known: &KnownAttachment) -> String {
    known.key.network.to_string()
}
