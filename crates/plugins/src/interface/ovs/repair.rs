//! Repairs, under a running container, its port in the database, the link of a port that the switch
//! created anew, and its interface.

use cni::{AddResult, Error};
use cni_plugin::Call;
use kernel::mac::MacAddr;
use kernel::netns::Netns;
use kernel::route::{Change, LinkSet, RouteSocket};
use state::Index;

use super::config::{Config, PortKind};
use super::connect::{self, Facts, OPTIONS};
use super::database::Switch;
use super::{NAME, interior, rows, verify};
use crate::shared::repair::{self, Inside, Repair};
use crate::shared::{attachment, claim, identity, kernel_error as kernel};

/// Runs the repair. The reservation of the addresses comes before the addresses, the port before
/// the container's side.
pub(super) fn run(call: &Call<'_>) -> Result<Vec<String>, Error> {
    repair::of_record(call, NAME, |index, repair| {
        let config = Config::of(call)?;
        let result = call.require_prev_result("Required prevResult missing")?;
        let addresses = repair.addresses(call);
        let netns = call.open_netns()?;
        let mut host = RouteSocket::open().map_err(kernel)?;
        let mut inside = RouteSocket::open_in(&netns).map_err(kernel)?;
        let kinds: &[&str] = match config.kind {
            PortKind::Veth => {
                veth(call, &config, &result, &mut host, &mut inside, repair)?;
                &["veth"]
            }
            PortKind::Internal => {
                internal(call, index, &config, &result, &netns, &mut host, &mut inside, repair)?;
                interior::KINDS
            }
        };
        let wanted = Inside { kinds, options: OPTIONS, addresses };
        repair::container_side(call, &netns, &mut inside, &result, wanted, repair)?;
        let facts: Option<Facts> = attachment::read_facts(index, call.attachment(), NAME);
        claim::put_back(call, index, &facts.unwrap_or_default().claims, repair)
    })
}

/// Restores the pair's end on the host, and its port. A pair that is gone cannot be restored under
/// a container.
fn veth(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
    repair: &mut Repair,
) -> Result<(), Error> {
    let link = inside.link_by_name(call.ifname().as_str()).map_err(kernel)?;
    let Some((peer, mac)) = link.and_then(|link| Some((link.peer_index?, link.mac?))) else {
        return Ok(());
    };
    let Some(end) = host.link_by_index(peer).map_err(kernel)? else { return Ok(()) };
    let reported = |name: &str| {
        result.interfaces.iter().any(|link| link.name == name && link.sandbox.is_empty())
    };
    if !reported(&end.name) {
        return Ok(());
    }
    port(call, config, &end.name, mac, repair)?;
    // After the port: a switch that releases or adopts a link may set it down.
    let end = host.link_by_index(peer).map_err(kernel)?;
    if let Some(end) = end.filter(|end| !end.up()) {
        let change = Change::SetLink { ifindex: end.index, set: LinkSet::default().up(true) };
        repair.apply(host, format_args!("link {:?} up", end.name), &change);
    }
    Ok(())
}

/// Restores the port's rows if they are not as ADD left them. Returns whether it did.
fn port(
    call: &Call<'_>,
    config: &Config,
    name: &str,
    mac: MacAddr,
    repair: &mut Repair,
) -> Result<bool, Error> {
    let mut switch = Switch::connect(call, &config.remote)?;
    let seen = verify::look(&mut switch, config, name)?;
    let Some(what) = verify::judge(call, config, name, &seen) else { return Ok(false) };
    if seen.bridge.is_none() && config.create.is_none() {
        return Err(Error::new(cni_plugin::codes::SWITCH, what)
            .with_details("whoever made the bridge must make it again"));
    }
    let put_back = write_again(&mut switch, call, config, name, mac);
    let done = put_back.is_ok();
    repair.note(what, put_back);
    Ok(done)
}

/// Removes what exists of our rows and writes them again, in one transaction.
fn write_again(
    switch: &mut Switch,
    call: &Call<'_>,
    config: &Config,
    name: &str,
    mac: MacAddr,
) -> Result<(), Error> {
    switch.listen()?;
    let seen = connect::observe(switch, call, config)?;
    let (interface, _) = connect::write(switch, call, config, seen, name, mac)?;
    switch.wait_for_port(&interface, name).map(drop)
}

/// Replaces the link of a port that the switch created: a switch that was restarted has created a
/// new one, and the one in the container no longer has another end.
#[expect(clippy::too_many_arguments, reason = "both sides, and what is known of them")]
fn internal(
    call: &Call<'_>,
    index: &Index,
    config: &Config,
    result: &AddResult,
    netns: &Netns,
    host: &mut RouteSocket,
    inside: &mut RouteSocket,
    repair: &mut Repair,
) -> Result<(), Error> {
    let ifname = call.ifname().as_str();
    let name = rows::interior_name(call.attachment());
    let reported = result.container_interface(ifname);
    let Some(mac) = reported.and_then(|reported| reported.mac.parse::<MacAddr>().ok()) else {
        return Ok(());
    };
    port(call, config, &name, mac, repair)?;
    if host.link_index(&name).map_err(kernel)?.is_none() {
        // If it is as ADD left it, someone may have set it down.
        if let Some(lower) = inside.link_by_name(&name).map_err(kernel)?.filter(|link| !link.up()) {
            let change = Change::SetLink { ifindex: lower.index, set: LinkSet::default().up(true) };
            repair.apply(inside, format_args!("link {name:?} up"), &change);
        }
        return Ok(());
    }
    let what = format!("link of port {name:?} as interface {ifname:?}");
    let moved = interior::remove_dead(inside, call).and_then(|()| {
        let link = interior::move_in(call, netns, host, inside, &name, mac, config.mtu)?;
        identity::write_down(index, call.attachment(), NAME, &link)
    });
    repair.note(what, moved);
    Ok(())
}
