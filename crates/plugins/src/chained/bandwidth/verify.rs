//! CHECK and STATUS.

use cni::Error;
use cni_plugin::Call;
use kernel::route::{LinkKind, NewLink, QdiscKind, RouteSocket};
use state::Index;

use super::config::{Config, Limit};
use super::node::{self, Node, Standing};
use super::plan::{self, Hook, Shape};
use super::{Facts, NAME};
use crate::shared::steps::{self, Step};
use crate::shared::{attachment, drift, kernel_error as kernel, trial};

/// Runs CHECK: buckets, queues, and what leads to them.
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
    // What the reference made before us may stay until DEL.
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

/// Runs STATUS: whether the configuration makes sense, and whether the kernel can do all of it. That is tried in a
/// namespace of its own, which goes at once.
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
