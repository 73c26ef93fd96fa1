//! What ADD records about an attachment for DEL.

use std::net::IpAddr;

use cni::AttachmentKey;
use cni_plugin::Call;
use firewall::element::{Element, Field, Protocol, Set};
use firewall::hostport::{self, Forward, Target};
use firewall::{Plan, SharedObject};
use serde::{Deserialize, Serialize};
use state::{Index, Record};

use super::NAME;
use crate::chained::sbr;
use crate::shared::attachment;
use crate::shared::failure::Failure;
use crate::shared::filter::write_record;

/// The plugin's own part of its record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    /// What nftables must contain.
    pub(super) plan: Plan,
    /// Whether the reference's chains are used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) iptables: bool,
    /// The UDP ports whose flows are deleted when the translation changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) udp: Vec<HostPort>,
    /// The SCTP ports of which that is true too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sctp: Vec<HostPort>,
    /// The rule and the table of the container's address, if its answers would leave by another
    /// network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answers: Option<sbr::RecordData>,
}

/// A port of the host that is forwarded to the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostPort {
    /// The port.
    pub(super) port: u16,
    /// The host's address, if only one of them is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<IpAddr>,
    /// The container's address.
    pub(super) container: IpAddr,
}

impl RecordData {
    /// Reads an attachment's note. An unreadable one counts as missing.
    pub(super) fn read(index: &Index, key: &AttachmentKey) -> Option<RecordData> {
        attachment::recorded(index, key, NAME)
    }

    /// Reads the note in a record.
    pub(super) fn of(record: &Record) -> Option<RecordData> {
        serde_json::from_value(record.data.clone()).ok()
    }

    /// Lists the ports that are forwarded to the container; `None` if the reference's chains have
    /// them, and not this note.
    pub(super) fn forwards(&self) -> Option<Vec<Forward>> {
        (!self.iptables).then(|| hostport::forwards(&self.plan))
    }

    /// Writes the note, before anything is changed: a crash then leaves a superfluous note, never a
    /// port without one. What an earlier ADD created stays in the note until it is removed.
    pub(super) fn write(&self, call: &Call<'_>, index: &Index) -> Result<(), Failure> {
        write_record(call, index, NAME, self, |path, netns, record| record.in_netns(path, netns))
    }

    /// Returns the interface by which the host reached an address of the container during ADD.
    pub(super) fn way_to(&self, address: IpAddr) -> Option<String> {
        let of_element = |element: &Element| match (element.set, element.key.as_slice()) {
            (Set::LocalSnat4 | Set::LocalSnat6, [Field::Ifname(out), Field::Address(to)])
                if *to == address =>
            {
                Some(out.clone())
            }
            _ => None,
        };
        // With the reference's chains there are no elements of ours, and these sysctls are all that
        // depends on the interface.
        let of_switch = |shared: &SharedObject| match shared {
            SharedObject::Localnet(out) if address.is_ipv4() => Some(out.clone()),
            SharedObject::Loopback6(out) if address.is_ipv6() => Some(out.clone()),
            _ => None,
        };
        let found = self.plan.own.iter().find_map(of_element);
        found.or_else(|| self.plan.shared.iter().find_map(of_switch))
    }

    /// Returns these recorded and what `before` has in addition.
    pub(super) fn joined(&self, before: Option<&RecordData>) -> RecordData {
        let mut all = self.clone();
        if let Some(before) = before {
            all.plan.join(before.plan.clone());
            all.iptables |= before.iptables;
            all.answers = all.answers.or_else(|| before.answers.clone());
            all.udp.extend(before.udp.iter().filter(|port| !self.udp.contains(port)).cloned());
            all.sctp.extend(before.sctp.iter().filter(|port| !self.sctp.contains(port)).cloned());
        }
        all
    }
}

/// Lists the ports of a protocol among forwards to a container.
pub(super) fn host_ports(
    protocol: Protocol,
    forwards: &[Forward],
    targets: &[Target],
) -> Vec<HostPort> {
    let mut ports = Vec::new();
    for target in targets {
        let family = |at: &IpAddr| at.is_ipv4() == target.address.is_ipv4();
        for forward in forwards.iter().filter(|forward| {
            forward.protocol == protocol && forward.host_ip.as_ref().is_none_or(family)
        }) {
            let at = forward.host_ip.filter(|at| !at.is_unspecified());
            ports.push(HostPort { port: forward.host_port, at, container: target.address });
        }
    }
    ports
}
