//! The configuration, as the crate `routing` and the files for pods have it.

use agent::config::{self, RoutingFlannel, RoutingSource};
use agent::setting::{Item as _, PodMtu};
use ipnet::IpNet;
use routing::path::BackendId;
use routing::settings::{self, Backend, Paths, Tunnels};
use routing::{Settings, render};

use super::files::Disk;
use super::flannel_config;
use super::own_lease::Configuration;

/// Returns the network policy that pods start under.
pub(super) fn under_policy(policy: &config::Policy) -> Option<render::Policy> {
    let elsewhere = policy.socketpath != config::Policy::default().socketpath;
    let socket = elsewhere.then(|| policy.socketpath.clone());
    policy.enable.then_some(render::Policy { socket })
}

/// Returns what the crate `routing` has to know of the configuration, flanneld's included: that of
/// etcd, or of a file.
///
/// # Errors
/// What is wrong with flanneld's configuration.
pub(super) fn settings(
    config: &config::Routing,
    disk: &Disk,
    of_etcd: Option<&Configuration>,
) -> Result<Settings, String> {
    let path = config.path.text();
    let paths = Paths::of_word(&path).ok_or_else(|| format!("path: {path} is not known"))?;
    let of_cluster = match config.flannel.0 {
        RoutingFlannel::None => Settings {
            vxlan: Tunnels {
                vni: config.vxlan_vni.0,
                port: u16::try_from(config.vxlan_port.0).unwrap_or(u16::MAX),
            },
            paths,
            ..Settings::new(config.cluster.clone())
        },
        flannel => {
            let of_flannel = match of_etcd {
                Some(found) => found.read.clone(),
                None => flannel_config::read(config, disk)?,
            };
            Settings {
                standby: flannel == RoutingFlannel::Standby,
                // As flanneld has them, so that it can take over again: Linux refuses its IPv6
                // routes by the tunnel where ours are by another link.
                paths: match (paths, of_flannel.backend) {
                    (Paths::Auto, Backend::HostGw) => Paths::Only(BackendId::Direct),
                    (Paths::Auto, Backend::Vxlan) if !of_flannel.direct_routing => {
                        Paths::Only(BackendId::Vxlan)
                    }
                    (paths, _) => paths,
                },
                ..of_flannel.settings(&config.flannel_prefix)
            }
        }
    };
    let overlap = of_cluster.cluster_ranges.iter().find_map(|range| {
        let is_same = |of: &&IpNet| of.contains(range) || range.contains(*of);
        Some((range, config.space_ranges.iter().find(is_same)?))
    });
    if let Some((range, of_space)) = overlap {
        return Err(format!("space-ranges: {of_space} overlaps {range}, which is the cluster's"));
    }
    Ok(Settings {
        spaces: config.spaces.clone(),
        space_ranges: config.space_ranges.clone(),
        source: match config.source.0 {
            RoutingSource::File => settings::Source::File,
            RoutingSource::Kubernetes => settings::Source::Kubernetes,
            RoutingSource::Etcd => settings::Source::Etcd,
        },
        exempt: config.exempt.clone(),
        service_ranges: config.services.clone(),
        pod_mtu: match config.pod_mtu {
            PodMtu::Paths => routing::settings::PodMtu::Paths,
            PodMtu::Underlay => routing::settings::PodMtu::Underlay,
            PodMtu::Fixed(mtu) => routing::settings::PodMtu::Fixed(mtu),
        },
        allow_overlap: config.allow_overlap,
        ..of_cluster
    })
}

#[cfg(test)]
mod tests {
    use agent::config::RoutingPath;
    use agent::setting::Choice as _;

    use super::*;

    /// A word that only one of the two knew could not be set, or would be refused at the start.
    #[test]
    fn each_backend_has_its_word_and_each_word_a_meaning() {
        let words: Vec<&str> = RoutingPath::WORDS.iter().map(|(word, _)| *word).collect();
        assert!(words.iter().all(|word| Paths::of_word(word).is_some()), "{words:?}");
        assert!(BackendId::ALL.iter().all(|id| words.contains(&id.name())), "{words:?}");
    }
}
