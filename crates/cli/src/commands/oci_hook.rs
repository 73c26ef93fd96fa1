//! `oci-hook`: attaching the containers of runc, crun and youki.
//!
//! The OCI runtime runs the hook in the host's network namespace with the container's state on standard
//! input (OCI runtime specification, "State" and "Lifecycle"). At createRuntime the state holds the process
//! ID and the annotations; at poststop only the ID can be relied upon. crun does not run poststop after a
//! createRuntime that failed, so a hook that fails cleans up after itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use cni::{ContainerId, IfName, code};
use cni_runtime::Attachment;
use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::args::{Attach, Common, OciHook, Stage};
use crate::failure::Failure;
use crate::net::attachments::{self, Known};
use crate::net::session::{Network, PluginSource, Session};
use crate::net::spec::NetworkSpec;
use crate::net::{attach, default, forwarding, ports, spec};
use crate::shell::{Report, Shell};
use crate::world::World;

/// The annotation that lists networks.
const NETWORKS: &str = "dev.netwright.networks";
/// The annotation that lists published ports.
const PUBLISH: &str = "dev.netwright.publish";

/// The most a state may hold: annotations are the container's own and could be anything.
const STATE_LIMIT: u64 = 4 << 20;

/// The state of a container, as far as a hook needs it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    id: String,
    status: String,
    pid: Option<u32>,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Served {
    #[serde(rename = "containerID")]
    container_id: String,
    attached: Vec<String>,
    detached: Vec<String>,
}

impl Report for Served {
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
        Served { container_id: id.to_string(), attached: Vec::new(), detached: Vec::new() };
    match stage {
        Stage::CreateRuntime | Stage::Prestart => {
            served.attached = attach_all(&state, &id, common, world, shell)?;
        }
        Stage::Poststop => served.detached = detach_all(&id, common, world, shell)?,
    }
    shell.print(&served);
    Ok(ExitCode::SUCCESS)
}

/// Attaches to every network that the annotations name. When one fails, those before it are detached.
fn attach_all(
    state: &State,
    id: &ContainerId,
    common: &Common,
    world: &World,
    shell: &Shell,
) -> Result<Vec<String>, Failure> {
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
        return Ok(Vec::new());
    }
    let pid = state.pid.filter(|pid| *pid != 0).ok_or_else(|| {
        Failure::new(code::INVALID_ENVIRONMENT, "the container's state holds no process ID")
            .hint("run this hook at createRuntime (or prestart), not later")
    })?;
    let netns = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let planned = plan(&specs, &ports, id, &netns.to_string_lossy(), &session, world)?;

    let mut attached: Vec<(&Network, &Attachment)> = Vec::new();
    for (network, attachment) in &planned {
        let added = session.runtime.add_list(&network.list, attachment, session.deadline());
        let Err(error) = added else {
            forwarding::warn(&network.list, shell);
            attached.push((network, attachment));
            continue;
        };
        let mut failure = Failure::from(error.to_cni());
        for (network, attachment) in attached.into_iter().rev() {
            let deleted = session.runtime.del_list(&network.list, attachment, session.deadline());
            if let Err(error) = deleted {
                failure = failure.because(format_args!("undoing {}: {error}", network.list.name));
            }
        }
        return Err(failure);
    }
    Ok(planned.iter().map(|(network, _)| network.list.name.clone()).collect())
}

/// Decides everything before anything is changed: networks, interface names, addresses and ports.
pub(crate) fn plan(
    specs: &[NetworkSpec],
    ports: &[ports::PortMapping],
    id: &ContainerId,
    netns: &str,
    session: &Session,
    world: &World,
) -> Result<Vec<(Network, Attachment)>, Failure> {
    let networks: Vec<Network> =
        specs.iter().map(|spec| session.network(&spec.name)).collect::<Result<_, _>>()?;
    let publisher = networks.iter().position(|network| attach::can_publish(&network.list));
    let mut planned: Vec<(Network, Attachment)> = Vec::new();
    for (index, (network, spec)) in networks.into_iter().zip(specs).enumerate() {
        let ifname = match &spec.addresses.ifname {
            Some(ifname) => ifname.clone(),
            None => IfName::new(&format!("eth{index}"))?,
        };
        if let Some((other, _)) = planned.iter().find(|(_, planned)| planned.ifname == ifname) {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                format!(
                    "networks {:?} and {:?} both get interface {ifname}",
                    other.list.name, network.list.name
                ),
            )
            .hint("name one of them otherwise: NAME:ifname=…"));
        }
        // With nobody to publish, the first network explains what is missing.
        let publishes = publisher.unwrap_or_default() == index;
        let asked = Attach {
            publish: if publishes { ports.to_vec() } else { Vec::new() },
            addresses: spec.addresses.clone(),
            ..Attach::default()
        };
        let attachment = attach::describe(&network.list, id.clone(), ifname, netns, &asked, world)?;
        planned.push((network, attachment));
    }
    Ok(planned)
}

/// Detaches from everything that is known of the container, the last network first.
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
            Ok(()) => detached.push(name(known)),
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

fn name(known: &Known) -> String {
    known.key.network.to_string()
}
