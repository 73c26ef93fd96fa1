//! `add`, `del` and `check`: one attachment.

use std::process::ExitCode;

use cni::text::one_line;
use cni::{AddResult, ContainerId, IfName, NetworkList, NetworkName, code};
use cni_runtime::{Attachment, CachedAttachment, DelError, RepairObstacle, Runtime};
use serde::Serialize;
use state::Index;

use super::Outcome;
use crate::args::{Add, Attach, AttachmentArgs, Check, Common, Del};
use crate::failure::{EXIT_ENVIRONMENT, Failure};
use crate::net::attach;
use crate::net::attachments;
use crate::net::container::{self, ContainerName, Kind};
use crate::net::session::{Network, PluginSource, Session};
use crate::net::taken;
use crate::net::{default, forwarding};
use crate::shell::{Format, Report, Shell};
use crate::table::Table;
use crate::world::World;

/// The attachment that the command line means.
struct Target {
    container: ContainerName,
    container_id: ContainerId,
    ifname: IfName,
    netns: String,
}

impl Target {
    /// Returns the key of the container's attachment to a network.
    fn key(&self, which: &AttachmentArgs) -> Result<cni::AttachmentKey, Failure> {
        Ok(cni::AttachmentKey {
            network: NetworkName::new(&which.network)?,
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        })
    }
}

fn target(which: &AttachmentArgs, asked: &Attach, world: &World) -> Result<Target, Failure> {
    let container = container::resolve(&which.container, world)?;
    let container_id = match &which.container_id {
        Some(id) => container::id(id, "--container-id")?,
        None => container.derived_id(),
    };
    let ifname = attach::ifname(&asked.addresses, world)?;
    Ok(Target { container_id, ifname, netns: container.netns_text(), container })
}

pub(crate) fn add(args: &Add, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let target = target(&args.which, &args.attach, world)?;
    target.container.require()?;
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let network = session.network(&args.which.network)?;
    attach::refuse_unread_labels(&[&network.list], &args.labels)?;
    let lacks_ipv6 = default::lacks_ipv6(&network);
    let list = attach::labelled(network.list, &args.labels)?;
    let attachment = attach::describe(
        &list,
        target.container_id.clone(),
        target.ifname.clone(),
        &target.netns,
        &args.attach,
        world,
    )?;
    attach::refuse_untaken(&[&list], &args.attach)?;
    attach::refuse_out_of_place(&list)?;
    default::refuse_ipv6(&list, &attachment)?;
    taken::refuse(&list, &attachment)?;
    let waiting = shell.waiting(format!("attaching to network {:?}", list.name));
    let added = session.runtime.add_list(&list, &attachment, session.deadline());
    drop(waiting);
    let added = added.map_err(|error| Failure::from(error.to_cni()).look_around(None))?;
    if let Err(error) = attachment.require_given(&added.result) {
        let undoing = session.runtime.clone().undoing();
        let undone = undoing.del_list(&list, &attachment, session.deadline());
        return Err(Failure::from(match undone {
            Ok(_) => error.with_details("the container was detached again"),
            Err(left) => {
                error.with_details(format!("undoing it failed, run `netwright del`: {left}"))
            }
        }));
    }
    lacks_ipv6.into_iter().for_each(|line| shell.warn(line));
    forwarding::warn(&list, &added.result, &Index::new(&session.roots), shell);
    match shell.format {
        Format::Json => {
            shell.raw(added.document.get().as_bytes());
            shell.raw(b"\n");
        }
        Format::Text => {
            let text = describe_result(&added.result, target.ifname.as_str());
            shell.raw(text.as_bytes());
        }
    }
    if shell.unread() {
        undo(&session, &list, &attachment, shell);
        return Ok(ExitCode::from(EXIT_ENVIRONMENT));
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns that no process reads standard output, unless a warning said so before.
pub(crate) fn tell_unread(shell: &Shell) {
    if !shell.lost() {
        shell.say("error: write to standard output\ncause: its reader is gone");
    }
}

/// Detaches again: the result cannot be read, so the caller does not know what was made.
pub(crate) fn undo(
    session: &Session,
    list: &NetworkList,
    attachment: &Attachment,
    shell: &mut Shell,
) {
    tell_unread(shell);
    match session.runtime.clone().undoing().del_list(list, attachment, session.deadline()) {
        Ok(_) => shell.say("the container was detached again"),
        Err(error) => {
            let error = error.to_cni();
            shell.warn(format_args!("the container stays attached, run `netwright del`: {error}"));
        }
    }
}

/// Returns a table of the container's addresses, and its routes and name servers.
pub(crate) fn describe_result(result: &AddResult, ifname: &str) -> String {
    let mut table = Table::new(&["IFNAME", "MAC", "ADDRESS", "GATEWAY"]);
    let mac = result.container_interface(ifname).map(|link| link.mac.clone()).unwrap_or_default();
    let mut any = false;
    for ip in result.container_ips(ifname) {
        any = true;
        let gateway = ip.gateway.map(|gateway| gateway.to_string()).unwrap_or_default();
        table.row([ifname.to_owned(), mac.clone(), ip.address.to_string(), gateway]);
    }
    if !any {
        table.row([ifname.to_owned(), mac, String::new(), String::new()]);
    }
    let mut text = table.to_string();
    if !result.routes.is_empty() {
        let routes = result.routes.iter().map(|route| match route.gw {
            Some(gw) => format!("{} via {gw}", route.dst),
            None => route.dst.to_string(),
        });
        text.push_str(&format!("routes: {}\n", routes.collect::<Vec<_>>().join(", ")));
    }
    if !result.dns.nameservers.is_empty() {
        text.push_str(&format!("name servers: {}\n", one_line(result.dns.nameservers.join(", "))));
    }
    text
}

/// The result of a command on an attachment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttachReport {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    /// `detached`, `absent` or `sound`.
    outcome: &'static str,
}

impl Report for AttachReport {
    fn text(&self) -> String {
        let AttachReport { network, container_id, ifname, outcome } = self;
        match *outcome {
            "detached" => format!("detached {ifname} of {container_id} from network {network}"),
            "absent" => format!(
                "{ifname} of {container_id} on network {network} has no record; every plugin was asked to \
                 remove what it might have made"
            ),
            _ => format!(
                "{ifname} of {container_id} is attached to network {network} as it should be"
            ),
        }
    }
}

/// Detaches, with the configuration with which it was attached, if that is known.
pub(crate) fn del(args: &Del, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let mut target = target(&args.which, &args.attach, world)?;
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let cached = cached(&session.runtime, &args.which, &args.attach, &mut target)?;
    let network = session.network(&args.which.network);
    let waiting = shell.waiting(format!("detaching from network {:?}", args.which.network));
    let key = target.key(&args.which)?;
    let records = || Index::new(&session.roots).of_attachment(&key).found;
    let runtime = session.runtime.for_records(&records());
    // What plugins recorded is enough, if the network's configuration is lost.
    let recorded = || plugins::recorded::list(&records());
    let by_records = || match recorded() {
        None => Ok(()),
        Some(list) => {
            let id = target.container_id.clone();
            let attachment = Attachment::new(id, target.ifname.clone(), &target.netns);
            let done = runtime.del_recorded(&list, &attachment, session.deadline());
            done.map_err(|error| Failure::from(error.to_cni()))
        }
    };
    let was_recorded = recorded().is_some();
    let forget = || {
        let forgotten = session.runtime.cache().forget(&key);
        forgotten.map_err(|error| Failure::from(error.to_cni()))?;
        Ok(cni_runtime::DeletedAttachment::default())
    };
    let deleted = match (cached, network) {
        (Some(cached), network) => {
            match (runtime.del_cached(&cached, session.deadline()), network) {
                // The recorded configuration cannot be read: use the present one.
                (Err(DelError::NoConfig { .. }), Ok(network)) => {
                    del_list(&session, &network, &target, &args.attach, world)
                }
                // Our records are enough.
                (Err(DelError::NoConfig { .. }), Err(_)) if was_recorded => forget(),
                (deleted, _) => deleted.map_err(|error| Failure::from(error.to_cni())),
            }
            .and_then(|deleted| by_records().map(|()| deleted))
        }
        (None, network) => by_records().and_then(|()| match network {
            Err(_) if was_recorded => forget(),
            network => del_list(&session, &network?, &target, &args.attach, world),
        }),
    };
    drop(waiting);
    let deleted = deleted?;
    for notice in &deleted.notices {
        shell.warn(notice);
    }
    let outcome = if deleted.was_cached || was_recorded { "detached" } else { "absent" };
    shell.confirm(&done(&args.which, &target, outcome));
    Ok(ExitCode::SUCCESS)
}

fn del_list(
    session: &Session,
    network: &Network,
    target: &Target,
    asked: &Attach,
    world: &World,
) -> Result<cni_runtime::DeletedAttachment, Failure> {
    let attachment = attach::describe(
        &network.list,
        target.container_id.clone(),
        target.ifname.clone(),
        &target.netns,
        asked,
        world,
    )?;
    session
        .runtime
        .del_list(&network.list, &attachment, session.deadline())
        .map_err(|error| Failure::from(error.to_cni()))
}

/// Looks for the attachment in a runtime's cache. Where no namespace has the name, it may also be a
/// container ID; then the target becomes that container.
fn cached(
    runtime: &Runtime<'_>,
    which: &AttachmentArgs,
    asked: &Attach,
    target: &mut Target,
) -> Result<Option<CachedAttachment>, Failure> {
    let network = NetworkName::new(&which.network)?;
    let failed = |error: cni_runtime::CacheError| Failure::from(error.to_cni());
    let key = cni::AttachmentKey {
        network: network.clone(),
        container_id: target.container_id.clone(),
        ifname: target.ifname.clone(),
    };
    if let Ok(Some(found)) = runtime.cached_attachment(&key) {
        return Ok(Some(found));
    }
    let could_be_id = which.container_id.is_none()
        && matches!(target.container.kind, Kind::Name | Kind::Pid)
        && !target.container.exists();
    let Some(id) = could_be_id.then(|| ContainerId::new(&which.container).ok()).flatten() else {
        return Ok(None);
    };
    let listing = runtime.cached_attachments(Some(&id)).map_err(failed)?;
    let found = listing.attachments.into_iter().find(|cached| {
        cached.network == network
            && asked
                .addresses
                .ifname
                .as_ref()
                .is_none_or(|ifname| *ifname == cached.attachment.ifname)
    });
    if let Some(found) = &found {
        target.container_id = id;
        target.ifname = found.attachment.ifname.clone();
        target.netns.clone_from(&found.attachment.netns);
    }
    Ok(found)
}

/// Looks for the attachment of a container by any name that `inspect` knows, such as the one that
/// podman gave it; then the target becomes that container. Returns the runtime whose cache has it.
///
/// # Errors
/// A container of Docker's: its plugins cannot be asked.
fn by_name<'r>(
    session: &'r Session,
    runtime: Runtime<'r>,
    which: &AttachmentArgs,
    asked: &Attach,
    target: &mut Target,
) -> Result<(Runtime<'r>, Option<CachedAttachment>), Failure> {
    if which.container_id.is_some() {
        return Ok((runtime, None));
    }
    let known = attachments::all(session)?.known;
    let mut named = attachments::of_container(known, &target.container, &session.roots);
    named.retain(|known| {
        known.key.network.as_str() == which.network
            && asked.addresses.ifname.as_ref().is_none_or(|ifname| *ifname == known.key.ifname)
    });
    for known in named {
        if known.apart(&session.roots) == Some(RepairObstacle::Dockers) {
            let text = format!(
                "{:?} is a container of Docker's, whose plugins worked in another namespace",
                which.container
            );
            return Err(Failure::new(code::UNKNOWN_CONTAINER, text).hint(format!(
                "`netwright doctor {}` looks at it; `netwrightd repair` repairs Docker's containers",
                which.container
            )));
        }
        let inner = attachments::inner_runtimes(session)?;
        for runtime in [runtime.clone()].into_iter().chain(inner) {
            if let Ok(Some(found)) = runtime.cached_attachment(&known.key) {
                target.container_id = known.key.container_id;
                target.ifname = known.key.ifname;
                target.netns.clone_from(&found.attachment.netns);
                return Ok((runtime, Some(found)));
            }
        }
    }
    Ok((runtime, None))
}

pub(crate) fn check(args: &Check, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let mut target = target(&args.which, &args.attach, world)?;
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let network = session.network(&args.which.network);
    let mut runtime = session.runtime.clone();
    let mut found = cached(&runtime, &args.which, &args.attach, &mut target)?;
    if found.is_none() {
        for inner in attachments::inner_runtimes(&session)? {
            found = cached(&inner, &args.which, &args.attach, &mut target)?;
            if found.is_some() {
                runtime = inner;
                break;
            }
        }
    }
    if found.is_none() {
        (runtime, found) = by_name(&session, runtime, &args.which, &args.attach, &mut target)?;
    }
    let Some(found) = found else {
        let network = network?;
        target.container.require()?;
        return Err(Failure::new(
            code::UNKNOWN_CONTAINER,
            format!(
                "{} of {} is not attached to network {:?}",
                target.ifname, target.container_id, network.list.name
            ),
        )
        .hint("`netwright list` shows what is attached"));
    };
    // A network of a pod may be defined elsewhere than on the node.
    let list = match network {
        Ok(network) => network.list,
        Err(failure) => found.list().map_err(|_| failure)?,
    };
    let waiting = shell.waiting(format!("checking network {:?}", list.name));
    let deadline = session.deadline();
    let key = target.key(&args.which)?;
    let runtime = runtime.for_records(&Index::new(&session.roots).of_attachment(&key).found);
    let checked = runtime.check_whole_list(&list, &found.attachment, deadline);
    drop(waiting);
    checked.map_err(|error| {
        Failure::from(error.to_cni()).look_around(Some(&found.attachment.container_id))
    })?;
    shell.confirm(&done(&args.which, &target, "sound"));
    Ok(ExitCode::SUCCESS)
}

fn done(which: &AttachmentArgs, target: &Target, outcome: &'static str) -> AttachReport {
    AttachReport {
        network: which.network.clone(),
        container_id: target.container_id.to_string(),
        ifname: target.ifname.to_string(),
        outcome,
    }
}
