//! flannel's dialect: annotations of Nodes, leases in etcd, its configuration, `subnet.env`.
//!
//! What flanneld writes is here byte for byte. Where it reads loosely (JSON's keys in any case, a
//! null for nothing), so does this.
//!
//! # In flanneld's place
//!
//! A tunnel keeps its name and its hardware address for as long as other nodes may know them: a
//! running flanneld notices a new hardware address only if those of both families change at once.
//! The address is what the node's record on the disk says, else flanneld's annotation, else what
//! flanneld's link has, else a hash of the node's UID. So the tunnel of an old node is still
//! `flannel.1` after `flannel = "none"`, and that of a new node is `nw-vxlan4`.
//!
//! The paths are flanneld's: no direct route within a segment unless flanneld has `DirectRouting`.
//! Linux refuses an IPv6 route whose gateway is reached by a route over another link
//! (`ip6_route_check_nh_onlink`), so flanneld could not come back where such a path of ours is. In
//! standby everything is read and planned, but the loop makes no change. A tunnel that was taken
//! over gets our mark (the alias), and `--uninstall` removes only tunnels with it. `--uninstall
//! --to-flannel` works only if flanneld already has routes; it cannot know whether these are all.
//!
//! A node publishes one backend here, and reaches peers of both, vxlan and host-gw.

pub mod annotations;
pub mod config;
pub mod kept;
pub mod lease;
pub mod leases;
pub mod own_lease;
pub mod subnet_env;
pub mod turns;

use std::net::IpAddr;

use serde_json::Value;

use crate::node::{Node, Offers, Underlay, Vxlan};
use crate::reader::{Fault, KeyedValue};
use crate::refused::Cause;
use crate::settings::{Backend, FlannelSettings, Settings};
use net::IpFamily;
use net::MacAddr;

/// The longest annotation or lease of flannel's that is read, in bytes.
pub const LONGEST: usize = 4096;

/// What flanneld publishes for a family.
struct Backing {
    /// The backend's data, as JSON.
    data: Option<String>,
    /// The address by which others reach the node.
    address: IpAddr,
}

/// Returns what flanneld publishes for a family of a node; `None` if the node does not have it.
fn backing(node: &Node, flannel: &FlannelSettings, family: IpFamily) -> Option<Backing> {
    node.prefixes.iter().find(|prefix| IpFamily::of_prefix(**prefix) == family)?;
    let address = node.underlay.get(family)?;
    let data = match flannel.backend {
        Backend::HostGw => None,
        Backend::Vxlan => {
            let vxlan = node.offers.vxlan?;
            let mac = vxlan.mac(family)?;
            Some(format!(r#"{{"VNI":{},"VtepMAC":"{mac}"}}"#, published_vni(vxlan.vni)))
        }
    };
    Some(Backing { data, address })
}

/// Returns the identifier as flanneld publishes it: its field has 16 bits, and it reads no more.
fn published_vni(vni: u32) -> u32 {
    vni & 0xffff
}

fn other_backend(name: &str) -> Cause {
    Cause::OtherBackend { backend: cni::text::shortened(name) }
}

/// What is read of a node, family by family.
struct Families<'a> {
    backend: Backend,
    flannel: &'a FlannelSettings,
    settings: &'a Settings,
    underlay: Underlay,
    macs: Vec<(IpFamily, MacAddr)>,
    vni: Option<u32>,
}

impl<'a> Families<'a> {
    fn new(backend: Backend, flannel: &'a FlannelSettings, settings: &'a Settings) -> Self {
        let underlay = Underlay::default();
        Families { backend, flannel, settings, underlay, macs: Vec::new(), vni: None }
    }

    /// Takes what a family's data say; nothing of it if something is wrong.
    fn take(
        &mut self,
        family: IpFamily,
        address: IpAddr,
        data: Option<&Value>,
    ) -> Result<(), Fault> {
        if self.backend == Backend::Vxlan {
            let data = data.filter(|data| !data.is_null());
            let data =
                KeyedValue::root(data.ok_or_else(|| (String::new(), Cause::Missing))?).like_go();
            let mac = data.required("VtepMAC")?.mac()?;
            if let Some(vni) = data.get("VNI")? {
                let own = self.settings.vxlan.vni;
                // Old flannelds do not write it, and all write its lower half only.
                let there: u32 = vni.number((0, u64::from(u32::MAX)))?;
                if there != own && there != published_vni(own) {
                    return Err(vni.fault(Cause::OtherVni { vni: there, own }));
                }
            }
            self.vni = Some(self.settings.vxlan.vni);
            self.macs.push((family, mac));
        }
        self.underlay.set(address);
        Ok(())
    }

    /// Returns what the node offers, unless no family has been taken.
    fn finish(self) -> Option<(Underlay, Offers)> {
        if self.underlay == Underlay::default() {
            return None;
        }
        let mac = |family| self.macs.iter().find(|(of, _)| *of == family).map(|(_, mac)| *mac);
        let vxlan = self.vni.map(|vni| Vxlan {
            vni,
            port: self.settings.vxlan.port,
            mac4: mac(IpFamily::V4),
            mac6: mac(IpFamily::V6),
        });
        let direct = match self.backend {
            Backend::HostGw => true,
            Backend::Vxlan => self.flannel.direct_routing,
        };
        Some((self.underlay, Offers { direct, vxlan, ..Offers::default() }))
    }
}
