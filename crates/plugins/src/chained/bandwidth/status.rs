//! STATUS.

use cni_plugin::Call;
use kernel::route::{LinkKind, NewLink, RouteSocket};
use wanted::Limit;

use super::config;
use super::node;
use super::plan::{self, Hook, Shape};
use crate::shared::failure::Failure;
use crate::shared::steps::{self, Step};
use crate::shared::trial;

/// Runs STATUS: whether the configuration is valid, and whether the kernel supports all of it.
/// STATUS tries that in a namespace of its own, which is deleted at once.
pub(super) fn status(call: &Call<'_>) -> Result<(), Failure> {
    let limits = config::read(call)?;
    config::warn(call, &limits);
    let limit = limits.ingress.or(limits.egress).unwrap_or(config::EXAMPLE);
    trial::in_fresh_netns(|socket| probe(socket, &limit))
}

fn probe(socket: &mut RouteSocket, limit: &Limit) -> Result<(), Failure> {
    let ifb = NewLink { up: true, ..NewLink::new("probe", LinkKind::Ifb) };
    let ifb =
        socket.create_link(&ifb).map_err(|error| Failure::from(error).with_details(node::HINT))?;
    let shape = Shape::of(limit, ifb.mtu);
    let mut steps: Vec<Step> = plan::bucket((ifb.index, &ifb.name), None, false, Some(&shape))?;
    steps.extend(plan::redirection(ifb.index, &Hook::default(), &[], ifb.index, true));
    steps::apply(socket, &steps).map(drop).map_err(|error| error.with_details(node::HINT))
}
