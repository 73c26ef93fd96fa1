//! What an attachment of `ovs` wants, for CHECK and repair.

use cni::{Error, IpConfig};
use cni_plugin::Call;
use ipnet::IpNet;
use wanted::{Because, Item, State, Wanted};

use super::config::{Config, PortKind};
use super::connect::{self, OPTIONS, Recorded};
use super::{NAME, Ovs, port, rows};
use crate::engine::{Attached, Compared, Difference, Kind, Picture, unknown};
use crate::shared::{claim, container, owner, pair};

impl Kind for Ovs {
    const NAME: &'static str = NAME;
    type Config = Config;
    type Recorded = Recorded;
    type Observed = ();

    fn config(call: &Call<'_>) -> Result<Config, Error> {
        Config::of(call)
    }

    /// Claims come before the port, and the port before the container's side. The host's end comes up after the port: a switch
    /// that releases or takes a link may set it down.
    fn wanted(
        config: &Config,
        recorded: Option<&Recorded>,
        (): &(),
        attached: &Attached<'_>,
    ) -> Wanted {
        let ips: Vec<IpConfig> = attached.result.container_ips(attached.ifname).cloned().collect();
        let reported = attached.result.container_interface(attached.ifname);
        let mac = reported.map(|link| link.mac.clone()).filter(|mac| !mac.is_empty());
        let bridge = config.bridge.clone();
        let mut wanted = Wanted::new();
        let claims = recorded.map(|recorded| recorded.claims.as_slice());
        wanted.extend(claim::wanted(claims.unwrap_or_default()));
        match config.kind {
            PortKind::Veth => {
                let port = host_end(config, recorded, attached);
                wanted.extend(pair::wanted_ends(&port, recorded.is_some(), attached));
                let up = State::Up { link: port.clone() };
                let state = State::OvsPort { port, is_link: true, bridge, mac };
                wanted.push(Item::host(state, Because::Created));
                wanted.push(Item::host(up, Because::Created));
            }
            PortKind::Internal => {
                let (link, port) = (attached.ifname.to_owned(), rows::interior_name(attached.key));
                let inside = State::OvsInterface { link, port: port.clone(), mac: mac.clone() };
                let state = State::OvsPort { port, is_link: false, bridge, mac };
                wanted.push(Item::host(state, Because::Created));
                wanted.push(Item::container(inside, Because::Created));
            }
        }
        wanted.extend(container::wanted_side(attached, &ips, OPTIONS, false));
        wanted
    }

    fn compare(config: &Config, picture: &mut Picture<'_>, item: &Item) -> Compared {
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
    ) -> Result<Option<String>, Error> {
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
        config: &Config,
        (): &(),
        attached: &Attached<'_>,
        picture: &mut Picture<'_>,
    ) -> Result<Vec<Difference>, Error> {
        let ips = attached.result.container_ips(attached.ifname);
        let ips: Vec<IpNet> = ips.map(|ip| ip.address).collect();
        let call = picture.call;
        let host = &mut picture.namespaces.get()?.host;
        let (_, own) = connect::segment(host, config)?;
        let refused = claim::refuse_addresses_of(call, host, own.as_slice(), &ips);
        Ok(Difference::of(refused.map_err(claim::as_drift))?.into_iter().collect())
    }
}

/// Returns the name of the host's end. The record has it only if it is not the usual one.
fn host_end(config: &Config, recorded: Option<&Recorded>, attached: &Attached<'_>) -> String {
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
