//! A node and its containers' network namespaces at one moment, as data: links with their VLANs,
//! modes, tunnels and traffic control that loses packets, addresses, routes, rules, neighbours,
//! kernel parameters, packet filters, listening programs; the networks that are configured, the
//! plugins, and what each attachment's CHECK says.
//!
//! A program that explains a network to a person judges a scene, and never the kernel itself. So
//! each judgement can be tested with recorded scenes, and a scene from one machine can be judged on
//! another. What could not be read is in the scene as a [`Hole`]: unknown is not the same as
//! absent.
//!
//! This module does no I/O. Its values are serialisable, with a version.
//!
//! ```
//! use netwright_diagnose::model::{Namespace, Scene};
//!
//! let scene = Scene { node: "node1".to_owned(), ..Scene::default() };
//! let text = scene.to_json();
//! assert_eq!(Scene::from_json(text.as_bytes())?.node, "node1");
//! # Ok::<(), netwright_diagnose::model::SceneError>(())
//! ```

mod by_name;
mod container;
pub mod filter;
mod namespace;
mod node;
mod segment;

use serde::{Deserialize, Serialize};

use by_name::ByName;
pub use container::{
    Attachment, Container, Drift, Item, ItemKind, NameFiles, Port, SwitchDrop, UnfinishedAdd,
};
pub use namespace::{
    Address, ConntrackTable, Fdb, Flow, Link, Listener, Namespace, Neighbour, NextHop, Policy,
    ProxiedAddress, QueueDrops, Rate, Route, RouteKind, RouteRule, RuleAction, Transport,
};
pub use node::{Folder, Network, Overlay, Plugin, Pool, PoolHolders, Program, Service};
pub use segment::{
    Ipvlan, IpvlanMode, IpvlanReach, Loss, MacvlanMode, Peer, PortVlan, Redirect, TunnelEnd,
};

/// The version of the format. A reader refuses a scene of a higher one.
pub const FORMAT: u32 = 1;

/// The largest scene that is read, in bytes: a node with 10,000 containers has less.
pub const MAX_BYTES: usize = 512 * 1024 * 1024;

/// A node at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scene {
    /// [`FORMAT`] when it was written.
    pub version: u32,
    /// The node's name.
    pub node: String,
    /// The kernel's release, as `uname -r` says it.
    pub kernel: String,
    /// The version of the program that read it.
    pub netwright: String,
    /// When it was read, in seconds since 1970.
    pub at_s: u64,
    /// The node's own namespace.
    pub host: Namespace,
    /// The containers, sorted by their IDs.
    pub containers: Vec<Container>,
    /// The networks that are configured, in the order in which a runtime reads their files.
    pub networks: Vec<Network>,
    /// Network configurations that cannot be used: file and reason.
    pub broken: Vec<(String, String)>,
    /// The plugins that the networks name.
    pub plugins: Vec<Plugin>,
    /// The address pools of networks.
    pub pools: Vec<Pool>,
    /// The folders that an ADD writes to.
    pub folders: Vec<Folder>,
    /// The services of `netwrightd`.
    pub services: Vec<Service>,
    /// Programs of the node that change its network.
    pub programs: Vec<Program>,
    /// The firewalls that a command of their own changes now: `firewalld`, `ufw`. Others may have
    /// left chains.
    pub firewalls: Vec<String>,
    /// Flows of UDP to published ports, and translated ones of containers.
    pub flows: Vec<Flow>,
    /// What could not be read.
    pub holes: Vec<Hole>,
}

impl Default for Scene {
    fn default() -> Self {
        Scene {
            version: FORMAT,
            node: String::new(),
            kernel: String::new(),
            netwright: String::new(),
            at_s: 0,
            host: Namespace::default(),
            containers: Vec::new(),
            networks: Vec::new(),
            broken: Vec::new(),
            plugins: Vec::new(),
            pools: Vec::new(),
            folders: Vec::new(),
            services: Vec::new(),
            programs: Vec::new(),
            firewalls: Vec::new(),
            flows: Vec::new(),
            holes: Vec::new(),
        }
    }
}

/// Something that could not be read: what is missing from the scene is unknown, not absent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hole {
    /// The part of the scene.
    pub part: Part,
    /// The container's ID; `None` is the node.
    pub container: Option<String>,
    /// Why it could not be read.
    pub reason: String,
}

/// A part of a scene that is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Part {
    /// A whole namespace.
    Namespace,
    /// Links and their addresses.
    Links,
    /// Routes and routing rules.
    Routes,
    /// Neighbours and forwarding entries of bridges.
    Neighbours,
    /// Kernel parameters.
    Sysctls,
    /// The packet filter of nftables.
    Nftables,
    /// Tables of the older iptables.
    LegacyIptables,
    /// Filters of traffic control, VLANs of ports, and which filters of other kinds there are.
    OtherFilters,
    /// Filters that exist, but whose rules a scene does not contain: ebtables, arptables, BPF
    /// programs.
    Unjudged,
    /// Connection tracking.
    Conntrack,
    /// Sockets that listen.
    Listeners,
    /// Processes of the node.
    Processes,
    /// The container's resolv.conf, hosts and nsswitch.conf.
    Names,
    /// Attachments, their records and what CHECK says.
    Attachments,
    /// Network configurations.
    Networks,
    /// Address pools.
    Pools,
    /// Services of `netwrightd`.
    Services,
}

impl Part {
    /// Returns the words for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Namespace => "the network namespace",
            Part::Links => "links and addresses",
            Part::Routes => "routes",
            Part::Neighbours => "neighbours",
            Part::Sysctls => "kernel parameters",
            Part::Nftables => "the packet filter",
            Part::LegacyIptables => "the rules of legacy iptables",
            Part::OtherFilters => "packet filters of other kinds",
            Part::Unjudged => "filters that are not judged",
            Part::Conntrack => "connection tracking",
            Part::Listeners => "listening sockets",
            Part::Processes => "processes",
            Part::Names => "name resolution",
            Part::Attachments => "attachments",
            Part::Networks => "network configurations",
            Part::Pools => "address pools",
            Part::Services => "services of netwrightd",
        }
    }
}

/// Why a text is not a scene.
#[derive(Debug, thiserror::Error)]
pub enum SceneError {
    /// It is too large.
    #[error("a scene of {0} bytes is too large")]
    TooLarge(usize),
    /// It is not the format, or is cut off.
    #[error("read the scene")]
    Format(#[source] serde_json::Error),
    /// A newer program wrote it.
    #[error("the scene has format {0}, and this program reads up to {FORMAT}")]
    Newer(u32),
}

impl Scene {
    /// Writes it.
    ///
    /// # Panics
    /// Never: all keys are strings.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("the keys of all maps are strings")
    }

    /// Reads what [`Scene::to_json`] has written.
    ///
    /// # Errors
    /// [`SceneError`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, SceneError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        if MAX_BYTES < bytes.len() {
            return Err(SceneError::TooLarge(bytes.len()));
        }
        let head: Head = read(bytes).map_err(SceneError::Format)?;
        if FORMAT < head.version {
            return Err(SceneError::Newer(head.version));
        }
        read(bytes).map_err(SceneError::Format)
    }

    /// Says whether a part of the node, or of a container, could not be read.
    #[must_use]
    pub fn lacks(&self, part: Part, container: Option<&str>) -> bool {
        self.holes.iter().any(|hole| {
            hole.container.as_deref() == container
                && (hole.part == part || hole.part == Part::Namespace)
        })
    }

    /// Returns the container of an ID.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// Says whether a command of a firewall changes its rules now.
    #[must_use]
    pub fn has_firewall(&self, name: &str) -> bool {
        self.firewalls.iter().any(|one| one == name)
    }

    /// Returns the program of a kind that runs.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name == name)
    }
}

/// Reads a whole document.
fn read<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = T::deserialize(ByName(&mut json))?;
    json.end()?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_is_read_as_it_was_written() {
        let scene = Scene {
            node: "node1".to_owned(),
            containers: vec![Container { id: "web".to_owned(), ..Container::default() }],
            holes: vec![Hole {
                part: Part::Nftables,
                container: Some("web".to_owned()),
                reason: "Operation not permitted".to_owned(),
            }],
            ..Scene::default()
        };
        let read = Scene::from_json(scene.to_json().as_bytes()).unwrap();
        assert_eq!(read, scene);
        assert!(read.lacks(Part::Nftables, Some("web")));
        assert!(!read.lacks(Part::Nftables, None));
        assert!(!read.lacks(Part::Routes, Some("web")));
    }

    #[test]
    fn what_is_no_scene_is_refused() {
        let text = Scene::default().to_json();
        let cut = &text.as_bytes()[..text.len() / 2];
        assert!(matches!(Scene::from_json(cut), Err(SceneError::Format(_))));
        let newer = text.replacen("\"version\":1", "\"version\":2", 1);
        assert!(matches!(Scene::from_json(newer.as_bytes()), Err(SceneError::Newer(2))));
        // Two documents, and fields without names.
        for other in [format!("{text} {text}"), "[1]".to_owned(), "[[1]]".to_owned()] {
            assert!(matches!(Scene::from_json(other.as_bytes()), Err(SceneError::Format(_))));
        }
    }
}
