//! Tunnels of all kinds, in what they have in common: who makes one need not know its kind.

use std::net::IpAddr;

use super::{Link, LinkKind, LinkSet, VxlanOptions, VxlanSet};

/// Settings of a tunnel.
///
/// ```
/// use kernel::route::TunnelOptions;
///
/// let mut tunnel = TunnelOptions::new("vxlan");
/// assert_eq!(tunnel.new_link(), None);
/// (tunnel.id, tunnel.port) = (Some(1), Some(8472));
/// assert_eq!(tunnel.new_link().map(|kind| kind.name()), Some("vxlan"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TunnelOptions<'a> {
    /// The kernel's name for the kind (IFLA_INFO_KIND).
    pub kind: &'a str,
    /// Its network identifier, if links of the kind have one. It cannot be changed later.
    pub id: Option<u32>,
    /// Its UDP port, if links of the kind have one. It cannot be changed later.
    pub port: Option<u16>,
    /// The source address of its packets; its version is the version of all of them.
    pub local: Option<IpAddr>,
    /// The link that carries its packets.
    pub underlay: Option<u32>,
    /// Whether it learns from packets where others are.
    pub learning: bool,
    /// Whether it has settings beside these. A new one has none.
    pub has_more: bool,
}

impl<'a> TunnelOptions<'a> {
    /// A tunnel of a kind, with nothing else set.
    #[must_use]
    pub fn new(kind: &'a str) -> Self {
        Self {
            kind,
            id: None,
            port: None,
            local: None,
            underlay: None,
            learning: false,
            has_more: false,
        }
    }

    /// Reads those of a link; `None` if it is no tunnel, or of a kind that is not known here.
    #[must_use]
    pub fn of(link: &'a Link) -> Option<Self> {
        let info = link.vxlan.as_ref()?;
        let VxlanOptions { vni, port, local, underlay, learning, .. } = info.options;
        let (id, port, has_more) = (Some(vni), Some(port), !info.switches.is_empty());
        Some(Self { id, port, local, underlay, learning, has_more, ..Self::new("vxlan") })
    }

    /// Returns how to make such a tunnel; `None` if the kind is not known here, or lacks a number.
    #[must_use]
    pub fn new_link(&self) -> Option<LinkKind> {
        let Self { local, underlay, learning, .. } = *self;
        match (self.kind, self.id, self.port) {
            ("vxlan", Some(vni), Some(port)) => {
                let options = VxlanOptions::new(vni, port);
                Some(LinkKind::Vxlan(VxlanOptions { local, underlay, learning, ..options }))
            }
            _ => None,
        }
    }

    /// Returns what makes a tunnel with the same numbers like this one, while it carries packets.
    #[must_use]
    pub fn change(&self) -> LinkSet {
        let Self { local, underlay, learning, .. } = *self;
        let vxlan = match self.kind {
            "vxlan" => VxlanSet { local, underlay, learning: Some(learning) },
            _ => VxlanSet::default(),
        };
        LinkSet { vxlan, ..LinkSet::default() }
    }
}
