//! What an attachment has of the plugin: recorded by ADD, read by DEL.

use std::net::IpAddr;

use cni::AttachmentKey;
use cni_plugin::Call;
use firewall::Plan;
use firewall::firewalld::Source;
use firewall::iptables::isolation::Isolation;
use serde::{Deserialize, Serialize};
use state::Index;

use super::NAME;
use crate::shared::attachment;
use crate::shared::failure::Failure;
use crate::shared::filter::write_record;

/// What ADD records about an attachment for DEL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordData {
    /// What nftables must contain.
    pub(super) plan: Plan,
    /// The addresses that are accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) addresses: Vec<IpAddr>,
    /// Whether the reference's chains accept them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) iptables: bool,
    /// What the reference's chains isolate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) isolation: Vec<Isolation>,
    /// The foreign chains that had to be made to accept them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) accepted: Vec<AcceptingChain>,
    /// The addresses in firewalld's zones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sources: Vec<Source>,
}

/// A chain `FORWARD` of iptables, or Docker's next to it, that accepts an attachment's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AcceptingChain {
    /// Whether it is for IPv4 and not IPv6.
    pub(super) ipv4: bool,
    /// Whether it is in legacy iptables.
    pub(super) legacy: bool,
}

impl RecordData {
    /// Reads an attachment's record. An unreadable one counts as missing.
    pub(super) fn read(index: &Index, key: &AttachmentKey) -> Option<RecordData> {
        attachment::recorded(index, key, NAME)
    }

    /// Writes the record, before anything is changed.
    pub(super) fn write(&self, call: &Call<'_>, index: &Index) -> Result<(), Failure> {
        write_record(call, index, NAME, self, |path, netns, record| {
            record.in_netns_of_another(path, netns)
        })
    }

    /// Returns the addresses that a chain accepts.
    pub(super) fn addresses_of(&self, accepted: AcceptingChain) -> Vec<IpAddr> {
        self.addresses.iter().copied().filter(|at| at.is_ipv4() == accepted.ipv4).collect()
    }

    /// Returns this record and what `before` has in addition.
    pub(super) fn joined(&self, before: Option<&RecordData>) -> RecordData {
        let mut all = self.clone();
        if let Some(before) = before {
            all.plan.join(before.plan.clone());
            all.iptables |= before.iptables;
            all.addresses.extend(before.addresses.iter().filter(|at| !self.addresses.contains(at)));
            all.sources.extend(before.sources_but(&self.sources));
            all.isolation.extend(before.isolation_but(&self.isolation));
        }
        all
    }

    /// Returns what this record isolates and `others` do not.
    pub(super) fn isolation_but(&self, others: &[Isolation]) -> Vec<Isolation> {
        self.isolation.iter().filter(|one| !others.contains(one)).cloned().collect()
    }

    /// Returns the sources of this record that are not among `others`.
    pub(super) fn sources_but(&self, others: &[Source]) -> Vec<Source> {
        self.sources.iter().filter(|source| !others.contains(source)).cloned().collect()
    }
}
