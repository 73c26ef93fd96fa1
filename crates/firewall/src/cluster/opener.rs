//! Lets the host forward the cluster's packets where other software drops what is forwarded.
//!
//! The ways are those of [`crate::forward`], for whole ranges instead of single addresses. The rules
//! in chains of iptables have a comment of their own, so those of earlier ranges are found; sources
//! in firewalld's zone are known by their ranges alone.

use ipnet::IpNet;
use net::IpFamily;
use state::Index;

use crate::error::FirewallError;
use crate::firewalld::{Firewalld, FirewalldError};
use crate::forward::{self, Blocker, Sender};
use crate::iptables::{IptablesError, filter};
use crate::reference;

/// Why the host could not be made to forward.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It could not be found out which packet filters drop forwarded packets, or the kernel
    /// refused.
    #[error(transparent)]
    Kernel(#[from] FirewallError),
    /// iptables failed.
    #[error("accept what the cluster forwards in chain FORWARD")]
    Iptables(#[source] IptablesError),
    /// firewalld failed.
    #[error("accept what the cluster forwards in firewalld's zone {zone:?}")]
    Firewalld {
        /// The zone.
        zone: String,
        /// The failure.
        source: Box<FirewalldError>,
    },
}

impl OpenError {
    /// Returns what the operator can do, if the message alone does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            OpenError::Kernel(error) => error.hint().map(str::to_owned),
            OpenError::Iptables(error) if error.is_missing() => Some(
                "install iptables, or accept the cluster's ranges, from them and to them, in chain FORWARD"
                    .to_owned(),
            ),
            OpenError::Iptables(_) => None,
            OpenError::Firewalld { source, .. } => source.hint(),
        }
    }
}

/// Opens this host's packet filters for the cluster's ranges ([`ClusterFilter::forwarded`]).
///
/// [`ClusterFilter::forwarded`]: super::ClusterFilter::forwarded
#[derive(Debug)]
pub struct Opener<'a> {
    /// Remembers what this kernel lacks.
    pub index: &'a Index,
    /// firewalld, which need not run.
    pub firewalld: Firewalld,
    /// The zone of firewalld that lets everything through; see
    /// [`TRUSTED`](crate::firewalld::TRUSTED).
    pub zone: String,
}

/// Something that lets packets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Rules in a chain of iptables.
    Rules { family: IpFamily, legacy: bool },
    /// Sources of a zone.
    Zone,
}

impl Opener<'_> {
    /// Accepts what is forwarded from and to the ranges wherever it would be dropped. Returns the
    /// packet filters that drop it all the same, because only the administrator can change them.
    ///
    /// **Idempotence**: rules and sources that are there stay. Rules for other ranges, which an
    /// earlier call made, go.
    ///
    /// # Errors
    /// [`OpenError`]; what was opened before stays open.
    pub fn open(&self, ranges: &[IpNet]) -> Result<Vec<Blocker>, OpenError> {
        let (ways, closed) = self.ways(ranges)?;
        for way in ways {
            match way {
                Way::Rules { family, legacy } => {
                    filter::accept_ranges(ranges, family, legacy).map_err(OpenError::Iptables)?;
                }
                Way::Zone => {
                    let added = self.firewalld.add_ranges(&self.zone, ranges);
                    added.map_err(|source| self.failed(source))?;
                }
            }
        }
        Ok(closed)
    }

    /// Describes what [`Opener::open`] would add.
    ///
    /// # Errors
    /// [`OpenError`] when a packet filter does not answer.
    pub fn check(&self, ranges: &[IpNet]) -> Result<Vec<String>, OpenError> {
        let mut missing = Vec::new();
        for way in self.ways(ranges)?.0 {
            missing.extend(match way {
                Way::Rules { family, legacy } => {
                    filter::missing_ranges(ranges, family, legacy).map_err(OpenError::Iptables)?
                }
                Way::Zone => self
                    .firewalld
                    .missing_ranges(&self.zone, ranges)
                    .map_err(|source| self.failed(source))?,
            });
        }
        Ok(missing)
    }

    /// Removes what [`Opener::open`] made: all its rules, of any ranges, and these ranges from the
    /// zone.
    ///
    /// **Idempotence**: what is gone already, or software that does not run, is success.
    ///
    /// # Errors
    /// The first failure; the other steps are tried all the same.
    pub fn close(&self, ranges: &[IpNet]) -> Result<(), OpenError> {
        let rules = reference::remove_range_accepts().map_err(OpenError::Kernel);
        let sources =
            self.firewalld.remove_ranges(&self.zone, ranges).map_err(|source| self.failed(source));
        rules.and(sources)
    }

    /// Finds the ways that are needed here, and the blockers for which there is none.
    fn ways(&self, ranges: &[IpNet]) -> Result<(Vec<Way>, Vec<Blocker>), OpenError> {
        // Pods have links of any kind.
        let sender = Sender { links: Vec::new(), sources: ranges.to_vec() };
        let dropping = forward::blockers(self.index, &sender)?;
        let blockers: Vec<Blocker> = dropping.into_iter().map(|drops| drops.blocker).collect();
        // Asking over a bus takes time: only if the answer matters.
        let matters = |blocker: &Blocker| !matches!(blocker, Blocker::Nftables { .. });
        let firewalld = blockers.iter().any(matters)
            && self.firewalld.is_running().map_err(|source| self.failed(source))?;
        Ok(ways(&blockers, firewalld, ranges))
    }

    fn failed(&self, source: FirewalldError) -> OpenError {
        OpenError::Firewalld { zone: self.zone.clone(), source: Box::new(source) }
    }
}

fn ways(blockers: &[Blocker], firewalld: bool, ranges: &[IpNet]) -> (Vec<Way>, Vec<Blocker>) {
    let (mut ways, mut closed) = (Vec::new(), Vec::new());
    for blocker in blockers {
        match blocker {
            Blocker::Iptables { family, legacy } => {
                if ranges.iter().any(|range| IpFamily::of(range.addr()) == *family) {
                    ways.push(Way::Rules { family: *family, legacy: *legacy });
                    // Old firewalld versions keep their rules in iptables, and remove ours when
                    // they reload.
                    ways.extend(firewalld.then_some(Way::Zone));
                }
            }
            Blocker::Firewalld if firewalld => ways.push(Way::Zone),
            other => closed.push(other.clone()),
        }
    }
    ways.sort_unstable();
    ways.dedup();
    (ways, closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_blocker_has_its_way() {
        let ranges = ["10.244.0.0/16".parse().unwrap()];
        let v4 = Blocker::Iptables { family: IpFamily::V4, legacy: false };
        let v6 = Blocker::Iptables { family: IpFamily::V6, legacy: true };
        let own = Blocker::Nftables { table: "inet wall".to_owned(), chain: "forward".to_owned() };
        let rules = Way::Rules { family: IpFamily::V4, legacy: false };
        assert_eq!(ways(&[v4.clone(), v6.clone()], false, &ranges), (vec![rules], Vec::new()));
        assert_eq!(ways(&[v4, v6], true, &ranges).0, [rules, Way::Zone]);
        assert_eq!(
            ways(&[Blocker::Firewalld, own.clone()], true, &ranges),
            (vec![Way::Zone], vec![own])
        );
        // Its rules exist, but it does not answer: only the administrator knows what they let
        // through.
        assert_eq!(ways(&[Blocker::Firewalld], false, &ranges).1, [Blocker::Firewalld]);
    }
}
