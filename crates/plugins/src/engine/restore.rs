//! The restoration of one item that differs.

use std::net::IpAddr;

use cni::IpConfig;
use kernel::route::{self, AddressOptions, Change, LinkSet, Scope, TABLE_MAIN};
use wanted::{Address, Item, Place, Route, State};

use super::any_kind::ConfiguredKind;
use super::backend;
use super::compare::neighbour_name;
use super::picture::{Difference, Picture};
use crate::shared::container::{self, Options};
use crate::shared::failure::Failure;
use crate::shared::{advertisements, claim, dropping, forwarding, host_side, rules};

impl Picture<'_> {
    /// Says what is restored of an item: the item, or what differs of an item of several parts.
    pub(super) fn what_is_restored(&self, item: &Item, difference: &Difference) -> String {
        match &item.state {
            State::Claim { object } => claim::name(object),
            State::Forwarding { .. }
            | State::Filter { .. }
            | State::Gateways(_)
            | State::VlanLink { .. }
            | State::OvsPort { .. }
            | State::OvsMirrors(_) => difference.text.clone(),
            _ => item.to_string(),
        }
    }

    /// Restores an item that differs. Returns what was set, or nothing if the item itself says it.
    ///
    /// # Errors
    /// Code 100 with the kernel's words; those of the packet filter and of our own files.
    pub(super) fn restore(
        &mut self,
        own: &dyn ConfiguredKind,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let (call, index, key) = (self.call, self.index, self.call.attachment());
        match &item.state {
            State::LinkLocal { link } => {
                return host_side::restore_ipv6(&mut self.namespaces.get()?.host, link).map(Some);
            }
            State::NoAdvertisements { link } => advertisements::refuse(link),
            State::Forwarding { ipv4, restore } => {
                forwarding::hold_family(index, key, *ipv4, forwarding::at_the_end(*restore))
            }
            State::Filter { plan, iptables, addresses, sources } => {
                rules::restore(index, key, backend(*iptables, *sources), plan, addresses)
            }
            State::Claim { object } => claim::restore(call, index, self.about.name, object),
            State::NoNeighbour { link, address, mac } => {
                return self.delete_neighbours(item.place, link, *address, mac).map(Some);
            }
            State::Mac { .. }
            | State::Mtu { .. }
            | State::QueueLength { .. }
            | State::Promiscuous { .. }
            | State::AllMulticast { .. }
            | State::Up { .. }
            | State::Mark { .. }
            | State::Address(_)
            | State::Route(_)
            | State::SubnetRoute { .. } => Ok(self.change(item)?),
            _ => return own.restore(self, item),
        }
        .map(|()| None)
    }

    /// Restores an item that takes one change of the kernel.
    fn change(&mut self, item: &Item) -> Result<(), Failure> {
        let place = item.place;
        let link = match item.state.link() {
            Some(name) => self.side(place).link(name)?.map_or(0, |link| link.index),
            None => 0,
        };
        let set = |set: LinkSet| Change::SetLink { ifindex: link, set };
        let mut prepared = Ok(());
        let change = match &item.state {
            State::Mac { mac, .. } => set(LinkSet { mac: mac.parse().ok(), ..LinkSet::default() }),
            State::Mtu { mtu, .. } => set(LinkSet { mtu: Some(*mtu), ..LinkSet::default() }),
            State::QueueLength { length, .. } => {
                set(LinkSet { tx_queue_len: Some(*length), ..LinkSet::default() })
            }
            State::Promiscuous { on, .. } => {
                set(LinkSet { promiscuous: Some(*on), ..LinkSet::default() })
            }
            State::AllMulticast { on, .. } => {
                set(LinkSet { all_multicast: Some(*on), ..LinkSet::default() })
            }
            State::Mark { alias, .. } => {
                set(LinkSet { alias: Some(alias.clone()), ..LinkSet::default() })
            }
            State::Address(address) => {
                // The address is added all the same, and the failure is reported.
                if place == Place::Container {
                    prepared = self.prepare(address);
                }
                Change::AddAddress {
                    ifindex: link,
                    address: address.address,
                    options: AddressOptions {
                        nodad: address.nodad,
                        noprefixroute: address.noprefixroute,
                        broadcast: (!address.gateway)
                            .then(|| container::broadcast_of(address.address))
                            .flatten(),
                        ..AddressOptions::default()
                    },
                }
            }
            State::Route(wanted) => {
                let route = kernel_route(link, wanted);
                match place {
                    Place::Host => Change::AddRoute(route),
                    Place::Container => Change::AppendRoute(route),
                }
            }
            State::SubnetRoute { gateway, .. } => host_side::restore_route(gateway, link),
            _ => set(LinkSet::default().up(true)),
        };
        let may_be_anothers = place == Place::Host && matches!(item.state, State::Route(_));
        match self.namespaces.socket(place)?.apply_one(&change) {
            // Another call was faster, or the route came with an address.
            Err(error) if error.is_exists() && !may_be_anothers => prepared,
            done => done.map_err(Failure::from).and(prepared),
        }
    }

    /// Removes such entries, so that the kernel solicits the neighbour again.
    fn delete_neighbours(
        &mut self,
        place: Place,
        link: &str,
        address: IpAddr,
        mac: &str,
    ) -> Result<String, Failure> {
        let mut removed = Vec::new();
        for entry in self.wrong_neighbours(place, link, address, mac)? {
            removed.push(format!("{} (removed)", neighbour_name(&entry, link)));
            match self.namespaces.socket(place)?.apply_one(&Change::DelNeighbour(entry)) {
                Err(error) if !error.is_not_found() => return Err(Failure::from(error)),
                _ => {}
            }
        }
        Ok(removed.join(", "))
    }

    /// Writes the sysctls that an interface needs for an address.
    fn prepare(&mut self, address: &Address) -> Result<(), Failure> {
        let ip = IpConfig::new(address.address, None);
        let options = Options::new(address.nodad);
        let sysctls = container::sysctls(&address.link, &[&ip], options);
        container::write_sysctls(&self.namespaces.get()?.netns, &sysctls)
    }
}

fn kernel_route(oif: u32, wanted: &Route) -> route::Route {
    route::Route {
        gateway: wanted.gateway,
        oif: wanted.drops.is_none().then_some(oif),
        kind: dropping::kind(wanted.drops),
        source: wanted.source,
        scope: wanted.scope.map(Scope),
        table: wanted.table.unwrap_or(TABLE_MAIN),
        priority: wanted.priority,
        mtu: wanted.mtu,
        advmss: wanted.advmss,
        onlink: wanted.onlink,
        ..route::Route::new(wanted.destination)
    }
}
