//! What an attachment of `vrf` wants, for CHECK and repair.

use ipnet::IpNet;
use kernel::route::{Route, TABLE_MAIN};
use wanted::{Item, Place, Reason, State, Wanted};

use super::config::Config;
use super::{NAME, NO_PREVIOUS, RecordData, Vrf, enter, node};
use crate::engine::{
    self, Attachment, Comparison, Difference, Mismatch, Picture, Wants, differs, unknown,
};
use crate::shared::failure::Failure;
use crate::shared::{attachment, container};

impl Wants for Vrf {
    const NO_PREVIOUS: &'static str = NO_PREVIOUS;
    type Observation = ();

    fn wanted(attached: &Attachment<'_, Self>, (): &()) -> Wanted {
        let config = attached.config;
        let link = attached.ifname.to_owned();
        let mut wanted = engine::wanted_of_another(attached.ifname);
        let vrf = wanted::Vrf { link, vrf: config.vrf.clone(), table: config.table };
        wanted.push(Item::container(State::Vrf(vrf), Reason::Key("vrfname".to_owned())));
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let State::Vrf(wanted) = &item.state else {
            return Err(unknown(item));
        };
        let name = &wanted.vrf;
        let Some(vrf) = picture.link(item.place, name)? else {
            return differs(format!("VRF {name:?} is gone"));
        };
        let Some(table) = vrf.vrf_table else {
            return differs(format!("Netlink {name} is not a VRF"));
        };
        let mut found = Vec::new();
        if let Some(asked) = wanted.table.filter(|&asked| asked != table) {
            let text =
                format!("VRF {name:?} has table {table}, the configuration asks for {asked}");
            found.push(text);
        }
        if !vrf.up() {
            found.push(format!("VRF {name:?} is down"));
        }
        let link = picture.link(item.place, &wanted.link)?;
        let recorded: Option<RecordData> =
            attachment::recorded(picture.index, picture.call.attachment(), NAME);
        if link.is_some_and(|link| link.master != Some(vrf.index)) {
            found.push(format!("interface {:?} is not in VRF {name:?} any more", wanted.link));
        } else if recorded.is_some_and(|recorded| recorded.moving.is_some()) {
            found.push(format!("interface {:?} moved into VRF {name:?} halfway", wanted.link));
        }
        Ok(found.into_iter().map(Mismatch::new).collect())
    }

    /// Does what ADD would do.
    fn restore(
        config: &Config,
        picture: &mut Picture<'_>,
        _: &Item,
    ) -> Result<Option<String>, Failure> {
        let (call, index) = (picture.call, picture.index);
        enter(call, index, &picture.namespaces.get()?.netns, config).map(|()| None)
    }

    /// Addresses and routes of the result: the plugin that made the interface restores them.
    fn others(
        attached: &Attachment<'_, Self>,
        (): &(),
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let config = attached.config;
        let vrf = picture.link(Place::Container, &config.vrf)?.map(|vrf| vrf.index);
        let link = picture.link(Place::Container, attached.ifname)?;
        let inside = link.filter(|link| vrf.is_some() && link.master == vrf);
        // Without it in its VRF, an item says so.
        let Some(link) = inside else { return Ok(Vec::new()) };
        let (ifname, routes) = (attached.ifname, &attached.result.routes);
        let ips: Vec<_> = attached.result.container_ips(ifname).collect();
        let socket = &mut picture.namespaces.get()?.inside;
        let mut found = container::differences(socket, link.index, ifname, &ips, routes)?;
        // What ADD moved, and not what another plugin or program added later: CNI 1.1.0 §2 "CHECK".
        let moved = |to: &IpNet| {
            routes.iter().any(|route| route.dst.trunc() == *to)
                || ips.iter().any(|ip| ip.address.trunc() == *to)
        };
        let left = node::routes_of(socket, link.index)?;
        let astray = |route: &&Route| route.table == TABLE_MAIN && moved(&route.destination);
        let astray = left.iter().filter(astray);
        let name = &config.vrf;
        found.extend(
            astray.map(|route| format!("route {route} is not in the table of VRF {name:?}")),
        );
        Ok(found.into_iter().map(Difference::text).collect())
    }
}
