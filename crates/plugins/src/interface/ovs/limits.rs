//! Whether the kernel has the limits that the switch was told to set. Open vSwitch reports a port
//! as sound whose limits the kernel refused: only its log has that.

use cni_plugin::codes;
use kernel::route::{QdiscKind, RouteSocket, TcHandle};

use super::extras::Qos;
use crate::shared::failure::Failure;
use crate::shared::pair::Pair;

/// The filters by which Open vSwitch limits what comes in (lib/netdev-linux.c `tc_add_policer`).
const POLICERS: [&str; 2] = ["basic", "matchall"];

/// The kernel's name for the discipline of `linux-htb`.
const HTB: &str = "htb";

/// Refuses limits that the kernel does not have. The switch sets them before it reports the port.
///
/// # Errors
/// Code 100.
pub(super) fn require(host: &mut RouteSocket, qos: &Qos, pair: &Pair) -> Result<(), Failure> {
    let (ifindex, port) = (pair.host_index, &pair.host_ifname);
    if qos.ingress_bits.is_some() {
        let filters = host.filters(ifindex, TcHandle::INGRESS_QDISC)?;
        if !filters.iter().any(|filter| POLICERS.contains(&filter.kind.as_str())) {
            return Err(lacking("ingressRate", port, "cls_basic and act_police"));
        }
    }
    if qos.shapes_egress() {
        let root = host.qdisc(ifindex, TcHandle::ROOT)?;
        let kind = root.map(|found| found.qdisc.kind);
        if !matches!(kind, Some(QdiscKind::Other(kind)) if kind == HTB) {
            return Err(lacking("egressRate and qos.queues", port, "sch_htb"));
        }
    }
    Ok(())
}

fn lacking(key: &str, port: &str, modules: &str) -> Failure {
    let message = format!("Open vSwitch could not set qos.{key} of port {port:?} in the kernel");
    Failure::new(codes::KERNEL, message).with_details(format!(
        "it needs the kernel's {modules}; the log of ovs-vswitchd has the kernel's words; without the key nothing is limited"
    ))
}
