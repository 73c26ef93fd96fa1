//! What an attachment of `ovs` wants, for CHECK and repair.

use cni::IpConfig;
use ipnet::IpNet;
use wanted::{Item, Reason, State, Wanted};

use super::config::{Config, PortKind};
use super::connect::{self, OPTIONS, RecordData};
use super::{Ovs, port, rows};
use crate::engine::{Attachment, Comparison, Difference, Picture, Wants, unknown};
use crate::shared::failure::Failure;
use crate::shared::{claim, container, owner, pair};

impl Wants for Ovs {
    type Observation = ();

    /// Claims come before the port, and the port before the container's side. The host's end comes up after the port: a switch
    /// that releases or takes a link may set it down.
    fn wanted(attached: &Attachment<'_, Self>, (): &()) -> Wanted {
        let (config, recorded) = (attached.config, attached.recorded);
        let ips: Vec<IpConfig> = attached.result.container_ips(attached.ifname).cloned().collect();
        let reported = attached.result.container_interface(attached.ifname);
        let mac = reported.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty());
        let bridge = config.bridge.clone();
        let mut wanted = Wanted::new();
        let claims = recorded.map(|recorded| recorded.claims.as_slice());
        wanted.extend(claim::wanted(claims.unwrap_or_default()));
        let quiet = |link: String| Item::host(State::NoAdvertisements { link }, Reason::Safety);
        if recorded.is_some_and(|recorded| recorded.quiet) {
            wanted.push(quiet(bridge.clone()));
        }
        match config.kind {
            PortKind::Veth => {
                let port = host_end(config, recorded, attached);
                wanted.extend(pair::wanted_ends(&port, recorded.is_some(), attached));
                // The reference's plugin does not prevent this, so it is not a difference there.
                if recorded.is_some() {
                    wanted.push(quiet(port.clone()));
                }
                let up = State::Up { link: port.clone() };
                let state = State::OvsPort { port, is_link: true, bridge, mac };
                wanted.push(Item::host(state, Reason::Created));
                wanted.push(Item::host(up, Reason::Created));
            }
            PortKind::Internal => {
                let (link, port) = (attached.ifname.to_owned(), rows::interior_name(attached.key));
                let inside = State::OvsInterface { link, port: port.clone(), mac: mac.clone() };
                let state = State::OvsPort { port, is_link: false, bridge, mac };
                wanted.push(Item::host(state, Reason::Created));
                wanted.push(Item::container(inside, Reason::Created));
            }
        }
        let (ifname, result) = (attached.ifname, attached.result);
        wanted.extend(container::wanted_side(ifname, result, &ips, OPTIONS, false));
        wanted
    }

    fn compare(config: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        match &item.state {
            State::OvsPort { port, .. } => port::compare(config, picture, port),
            State::OvsInterface { link, port, .. } => port::compare_interface(picture, link, port),
            _ => Err(unknown(item)),
        }
    }

    fn restore(
        config: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        match &item.state {
            State::OvsPort { port, mac, .. } => {
                port::restore(config, picture, port, mac.as_deref())?;
            }
            State::OvsInterface { port, mac, .. } => {
                port::restore_interface(config, picture, port, mac.as_deref())?;
            }
            _ => return Err(unknown(item)),
        }
        Ok(None)
    }

    fn others(
        attached: &Attachment<'_, Self>,
        (): &(),
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Failure> {
        let config = attached.config;
        let ips = attached.result.container_ips(attached.ifname);
        let ips: Vec<IpNet> = ips.map(|ip| ip.address).collect();
        let call = picture.call;
        let host = &mut picture.namespaces.get()?.host;
        let own = connect::own_link(host, config)?;
        let refused = claim::refuse_addresses_of(call, host, own.as_slice(), &ips);
        Ok(Difference::of(refused.map_err(claim::as_drift))?.into_iter().collect())
    }
}

/// Returns the name of the host's end. The record has it only if it is not the usual one.
fn host_end(
    config: &Config,
    recorded: Option<&RecordData>,
    attached: &Attachment<'_, Ovs>,
) -> String {
    let Some(recorded) = recorded else {
        let mut links = attached.result.interfaces.iter();
        let end = links.find(|link| link.sandbox.is_empty() && link.name != config.bridge);
        return end.map(|link| link.name.clone()).unwrap_or_default();
    };
    match recorded.host_ifname.as_str() {
        "" => owner::host_ifname(attached.key, 0),
        name => name.to_owned(),
    }
}
