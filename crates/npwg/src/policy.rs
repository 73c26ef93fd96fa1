//! Who may use which definition, and ask for which address.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::selection::{self, Selection};

/// The namespace whose definitions everybody may use (Multus).
const DEFAULT_NAMESPACE: &str = "default";

/// Stands for every namespace, or every network.
const ANY: &str = "*";

/// What pods may select and ask for.
///
/// Without rules everybody may ask for every address, as with Multus. Once there is one, an address or hardware address needs a rule that grants it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Policy {
    /// Whether pods may use only definitions of their own namespace and of [`Policy::global_namespaces`].
    pub namespace_isolation: bool,
    /// The namespaces whose definitions everybody may use, `default` beside them.
    pub global_namespaces: Vec<String>,
    /// Who may ask for what.
    pub rules: Vec<Rule>,
}

/// Grants addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rule {
    /// To pods of these namespaces; `*` for all.
    pub namespaces: Vec<String>,
    /// On these networks, `<namespace>/<name>`; `*` for all, which `<namespace>/*` is for those of one namespace.
    pub networks: Vec<String>,
    /// Addresses of these ranges.
    pub addresses: Vec<IpNet>,
    /// Hardware addresses that begin like one of these, such as `02:00:5e`.
    pub macs: Vec<String>,
}

/// Says what a pod may not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The definition is another namespace's.
    #[error(
        "pods of namespace {pod:?} may not use definitions of namespace {definition:?} (\"namespaceIsolation\")"
    )]
    Namespace {
        /// The pod's.
        pod: String,
        /// The definition's.
        definition: String,
    },
    /// The address is not granted.
    #[error("pods of namespace {pod:?} may not ask for address {address} on network {network:?}")]
    Address {
        /// The pod's namespace.
        pod: String,
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
    },
    /// The hardware address is not granted.
    #[error(
        "pods of namespace {pod:?} may not ask for hardware address {mac} on network {network:?}"
    )]
    Mac {
        /// The pod's namespace.
        pod: String,
        /// The network.
        network: String,
        /// The hardware address.
        mac: String,
    },
}

impl Policy {
    /// Decides whether pods of this namespace may have what is selected.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn allow(&self, pod: &str, selection: &Selection) -> Result<(), PolicyError> {
        self.allow_namespace(pod, &selection.namespace)?;
        if self.rules.is_empty() {
            return Ok(());
        }
        let matching: Vec<&Rule> =
            self.rules.iter().filter(|rule| rule.is_about(pod, selection)).collect();
        for address in selection.ips.iter().filter_map(|ip| selection::address(ip)) {
            let grants = |rule: &&Rule| rule.addresses.iter().any(|range| range.contains(&address));
            if !matching.iter().any(grants) {
                let (pod, network) = (pod.to_owned(), selection.full_name());
                return Err(PolicyError::Address { pod, network, address });
            }
        }
        if let Some(mac) = &selection.mac {
            let grants = |rule: &&Rule| rule.macs.iter().any(|begin| begins_with(mac, begin));
            if !matching.iter().any(grants) {
                let (pod, network) = (pod.to_owned(), selection.full_name());
                return Err(PolicyError::Mac { pod, network, mac: mac.clone() });
            }
        }
        Ok(())
    }

    /// Decides whether pods of this namespace may use definitions of that.
    ///
    /// # Errors
    /// [`PolicyError::Namespace`].
    pub fn allow_namespace(&self, pod: &str, definition: &str) -> Result<(), PolicyError> {
        let is_global = self.global_namespaces.iter().any(|global| global == definition);
        if !self.namespace_isolation
            || pod == definition
            || definition == DEFAULT_NAMESPACE
            || is_global
        {
            return Ok(());
        }
        Err(PolicyError::Namespace { pod: pod.to_owned(), definition: definition.to_owned() })
    }
}

impl Rule {
    fn is_about(&self, pod: &str, selection: &Selection) -> bool {
        let of_namespace = format!("{}/{ANY}", selection.namespace);
        let name = selection.full_name();
        self.namespaces.iter().any(|namespace| namespace == ANY || namespace == pod)
            && self
                .networks
                .iter()
                .any(|network| *network == ANY || *network == of_namespace || *network == name)
    }
}

/// Compares whole bytes: `02:0` is no beginning of `02:05:…`.
fn begins_with(mac: &str, begin: &str) -> bool {
    let begin = begin.to_ascii_lowercase();
    let begin = begin.trim_end_matches(':');
    begin == ANY
        || mac.strip_prefix(begin).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}
