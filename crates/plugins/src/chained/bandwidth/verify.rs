//! CHECK and STATUS.

use cni::Error;
use cni_plugin::Call;
use kernel::route::{Link, LinkKind, NewLink, QdiscKind, RouteSocket};
use state::Index;

use super::config::{Config, Limit};
use super::node::{self, Node, Standing};
use super::plan::{self, Hook, Shape};
use super::{Facts, NAME};
use crate::shared::steps::{self, Step};
use crate::shared::{attachment, drift, kernel_error as kernel, trial};

/// Runs CHECK: buckets, queues, and the redirection to them.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    if config.is_empty() {
        return Ok(());
    }
    let result = call.require_prev_result("must be called as a chained plugin")?;
    let netns = call.open_netns()?;
    let mut socket = RouteSocket::open().map_err(kernel)?;
    let host = node::find_host(&mut socket, call, &netns, &result)?;
    let index = Index::new(call.roots());
    let facts: Option<Facts> = attachment::read_facts(&index, call.attachment(), NAME);
    is_same(&host, facts.as_ref())?;
    let node = Node::observe(socket, call.attachment(), host)?;
    let name = &node.host.name;
    if let Some(limit) = &config.ingress {
        check_link(name, &node.root, limit, node.host.mtu, facts.as_ref())?;
    }
    let Some(limit) = &config.egress else { return Ok(()) };
    let ifb =
        node.ifb.as_ref().ok_or_else(|| drift("get ifb device: Link not found".to_owned()))?;
    if !ifb.up() {
        return Err(drift(format!("link {:?} is down", ifb.name)));
    }
    check_link(&ifb.name, &node.ifb_root, limit, node.host.mtu, facts.as_ref())?;
    if !node.is_redirected() {
        return Err(drift(format!(
            "what comes in by link {name:?} is not led to {:?} any more",
            ifb.name
        )));
    }
    Ok(())
}

/// Refuses a host's end that is by now a different link from the one that ADD shaped. If it is
/// missing, CHECK reports that.
///
/// # Errors
/// Code 104 when it is a different link; 100 when the kernel does not answer.
pub(super) fn refuse_another(call: &Call<'_>) -> Result<(), Error> {
    let facts: Option<Facts> =
        attachment::read_facts(&Index::new(call.roots()), call.attachment(), NAME);
    let (Some(result), Some(netns)) = (call.prev_result()?, call.open_netns_if_there()?) else {
        return Ok(());
    };
    let mut socket = RouteSocket::open().map_err(kernel)?;
    match node::find_host(&mut socket, call, &netns, &result) {
        Ok(host) => is_same(&host, facts.as_ref()),
        Err(_) => Ok(()),
    }
}

fn is_same(host: &Link, facts: Option<&Facts>) -> Result<(), Error> {
    match facts.filter(|facts| facts.host_index != host.index) {
        None => Ok(()),
        Some(_) => {
            let text = format!("link {:?} is another link than the one that ADD saw", host.name);
            Err(drift(text).with_details("what ADD did to that one is not done to this one"))
        }
    }
}

fn check_link(
    name: &str,
    standing: &Standing,
    limit: &Limit,
    mtu: u32,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    let root = standing
        .root
        .as_ref()
        .ok_or_else(|| drift(format!("Failed to find qdisc: link {name:?} has none")))?;
    let QdiscKind::Tbf(read) = &root.kind else {
        return Err(drift(format!("link {name:?} has {root}, not a bucket (tbf)")));
    };
    let asked = limit.rate.bytes_per_sec();
    if read.rate != asked {
        return Err(drift(format!(
            "Rate doesn't match: link {name:?} has {} bytes/s, the configuration asks for {asked}",
            read.rate
        )));
    }
    // A bucket that the reference created before us may stay until DEL.
    let theirs = facts.is_none() && plan::is_references(limit, read);
    if !theirs && !plan::is_for(limit, mtu, read) {
        let wanted = Shape::of(limit, mtu).bucket;
        return Err(drift(format!(
            "the bucket of link {name:?} does not match: {read:?}, it should be {wanted:?}"
        )));
    }
    if facts.is_some_and(|facts| facts.fair) && !standing.is_fair() {
        return Err(drift(format!("the queue (fq_codel) of link {name:?} is gone")));
    }
    Ok(())
}

/// Runs STATUS: whether the configuration is valid, and whether the kernel supports all of it.
/// STATUS tries that in a namespace of its own, which is deleted at once.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    let limit = config.ingress.or(config.egress).unwrap_or(super::config::EXAMPLE);
    trial::in_fresh_netns(|socket| probe(socket, &limit))
}

fn probe(socket: &mut RouteSocket, limit: &Limit) -> Result<(), Error> {
    let ifb = NewLink { up: true, ..NewLink::new("probe", LinkKind::Ifb) };
    let ifb = socket.create_link(&ifb).map_err(|error| kernel(error).with_details(node::HINT))?;
    let shape = Shape::of(limit, ifb.mtu);
    let mut steps: Vec<Step> = plan::bucket((ifb.index, &ifb.name), None, false, Some(&shape))?;
    steps.extend(plan::redirection(ifb.index, &Hook::default(), &[], ifb.index, true));
    steps::apply(socket, &steps).map(drop).map_err(|error| error.with_details(node::HINT))
}
