//! What `macvlan`, `ipvlan` and `vlan` have in common: the parent, and the link created on it.
//!
//! The parent is in the host's namespace, or in the container's with `linkInContainer`. ADD records
//! which parent it used: a parent chosen by a route may be another one by the time of CHECK, and
//! the link does not move.

use cni::code;
use cni_plugin::{Call, codes};
use kernel::route::{Link, LinkKind, NewLink, RouteSocket};
use serde::{Deserialize, Serialize};
use state::Index;

use crate::shared::failure::Failure;
use crate::shared::namespaces::Namespaces;
use crate::shared::parent::{RawParent, Selector, check_mtu};
use crate::shared::{attachment, drift, owner};

/// Which parent, and in which namespace it is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// How it is chosen.
    pub selector: Selector,
    /// Whether it is in the container's namespace.
    pub in_container: bool,
}

/// The parent as ADD found it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordData {
    /// Its name, for messages.
    pub parent: String,
    /// Its ifindex, which a link keeps as long as it exists.
    pub index: u32,
    /// The VLAN on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

impl Parent {
    /// Reads the keys `master`, `parent` and `linkInContainer`.
    ///
    /// # Errors
    /// As [`Selector::parse`]; code 7 when `parent` asks for a property that cannot be seen in a
    /// container.
    pub fn parse(
        master: &str,
        parent: Option<&RawParent>,
        in_container: bool,
    ) -> Result<Self, Failure> {
        let selector = Selector::parse(master, parent)?;
        if let (true, Selector::Pci(_) | Selector::Driver(_)) = (in_container, &selector) {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                "\"parent.pciBusID\" and \"parent.driver\" exclude \"linkInContainer\"",
            )
            .with_details("the host shows devices of its own namespace only; use \"master\""));
        }
        Ok(Parent { selector, in_container })
    }

    /// Returns the socket of the namespace the parent is in.
    pub fn socket<'s>(&self, namespaces: &'s mut Namespaces) -> &'s mut RouteSocket {
        if self.in_container { &mut namespaces.inside } else { &mut namespaces.host }
    }

    /// Finds the parent.
    ///
    /// # Errors
    /// As [`Selector::find`]; code 7 for the loopback link, which cannot have child links.
    pub fn find(&self, socket: &mut RouteSocket) -> Result<Link, Failure> {
        let parent = self.selector.find(socket)?;
        if parent.loopback() {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                format!("{:?} cannot be a parent: it is the loopback link", parent.name),
            )
            .with_details("choose an Ethernet link with \"master\" or \"parent\""));
        }
        Ok(parent)
    }

    /// Refuses an existing parent that cannot serve ([`cni_plugin::Plugin::fits_host`]): the
    /// loopback link, or one with a smaller MTU.
    ///
    /// # Errors
    /// Code 7 as [`Parent::find`] and [`check_mtu`].
    pub fn fits_host(&self, mtu: Option<u32>, host: &mut RouteSocket) -> Result<(), Failure> {
        if self.in_container || self.selector.find(host).is_err() {
            return Ok(());
        }
        check_mtu(mtu, &self.find(host)?)
    }

    /// Describes the link to create in the container, marked with its owner.
    #[must_use]
    pub fn new_link(
        &self,
        call: &Call<'_>,
        kind: LinkKind,
        parent: &Link,
        namespaces: &Namespaces,
    ) -> NewLink {
        NewLink {
            parent: Some(parent.index),
            alias: Some(owner::alias(call.attachment())),
            netns: (!self.in_container).then(|| namespaces.netns.clone()),
            ..NewLink::new(call.ifname().as_str(), kind)
        }
    }

    /// Compares the parent of a link with the one that ADD found, or with the configured one if the
    /// configuration names it or there is no record (CHECK).
    ///
    /// # Errors
    /// Code 104.
    pub fn verify(
        &self,
        call: &Call<'_>,
        plugin: &str,
        link: &Link,
        namespaces: &mut Namespaces,
    ) -> Result<(), Failure> {
        let recorded = recorded(call, plugin);
        let (name, index) = match (&self.selector, recorded) {
            (Selector::Name(_), _) | (_, None) => {
                let parent = self
                    .find(self.socket(namespaces))
                    .map_err(|error| error.with_code(codes::DRIFT))?;
                (parent.name, parent.index)
            }
            (_, Some(recorded)) => (recorded.parent, recorded.index),
        };
        let same_side = link.link_netnsid.is_none() == self.in_container;
        if link.peer_index == Some(index) && same_side {
            return Ok(());
        }
        Err(drift(format!("interface {:?} is not on {name:?}", link.name)))
    }
}

/// Reads what ADD recorded about the parent.
#[must_use]
pub fn recorded(call: &Call<'_>, plugin: &str) -> Option<RecordData> {
    let index = Index::new(call.roots());
    let recorded: RecordData = attachment::recorded(&index, call.attachment(), plugin)?;
    (recorded.index != 0).then_some(recorded)
}

/// Returns what to record about a parent.
#[must_use]
pub fn to_record(parent: &Link, vlan: Option<u16>) -> serde_json::Value {
    let recorded = RecordData { parent: parent.name.clone(), index: parent.index, vlan };
    serde_json::to_value(recorded).expect("a record has string keys only")
}

/// Returns what a parent is a port of, which prevents macvlan and ipvlan on it.
#[must_use]
pub fn port_of(parent: &Link, socket: &mut RouteSocket) -> Option<String> {
    let master = socket.link_by_index(parent.master?).ok()??;
    Some(format!(
        "{:?} is a port of {} {:?}; make {:?} the parent",
        parent.name,
        master.kind.as_deref().unwrap_or("link"),
        master.name,
        master.name,
    ))
}

/// The kernel's kinds of links whose ports pass everything on: no other link can be made on such a
/// port but a VLAN. A port of a VRF, for instance, is free.
const TAKES_PORTS: [&str; 4] = ["bond", "bridge", "openvswitch", "team"];

/// Refuses a parent on which neither macvlan nor ipvlan can be created, since it is a port.
///
/// # Errors
/// Code 100, as the kernel refuses it (EBUSY).
pub fn refuse_port(plugin: &str, parent: &Link, socket: &mut RouteSocket) -> Result<(), Failure> {
    let Some(index) = parent.master else { return Ok(()) };
    let master = socket.link_by_index(index)?;
    let kind = master.and_then(|master| master.kind).unwrap_or_default();
    if !TAKES_PORTS.contains(&kind.as_str()) {
        return Ok(());
    }
    let text = format!("failed to create {plugin}: parent {:?} is busy", parent.name);
    Err(Failure::new(codes::KERNEL, text).with_details(port_of(parent, socket).unwrap_or_default()))
}
