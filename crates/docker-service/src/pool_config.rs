//! Which plugin gives the addresses of a network list, and which addresses.

use cni::json::Object;
use cni::{Error, NetworkList, NetworkName, code};
use ipam::{Keys, RangeSets};
use ipnet::IpNet;
use plugins::ipam::host_local;

use super::create_options::Pools;

/// Reports whether Docker can choose the addresses.
pub(super) fn gives_any_requested(ipam: &Keys) -> bool {
    plugins::info(&ipam.plugin_type).is_some_and(|info| info.gives_any_requested)
}

/// Reports whether it is host-local, whose keys are read here.
pub(super) fn is_host_local(ipam: &Keys) -> bool {
    ipam.plugin_type == host_local::INFO.name
}

/// Returns what host-local hands out.
pub(super) fn range_sets(ipam: &Keys) -> Result<RangeSets, Error> {
    ipam.range_sets().map_err(|error| Error::from_chain(code::INVALID_CONFIG, &error))
}

/// Reads a plugin's `ipam`.
pub(super) fn ipam_of(plugin: &Object) -> Result<Option<Keys>, Error> {
    let Some(raw) = plugin.get_ignore_case("ipam") else { return Ok(None) };
    let read = cni::json::from_raw(raw);
    read.map_err(|error| {
        Error::new(code::INVALID_CONFIG, format!("\"ipam\" of the network: {error}"))
    })
}

/// Reads which plugin gives addresses in a list: that of the first plugin with an `ipam`.
pub(super) fn ipam_of_list(list: &NetworkList) -> Result<Option<Keys>, Error> {
    for plugin in &list.plugins {
        if let Some(ipam) = ipam_of(&plugin.object)?.filter(|ipam| !ipam.plugin_type.is_empty()) {
            return Ok(Some(ipam));
        }
    }
    Ok(None)
}

/// Refuses subnets that the list cannot give: Docker chooses addresses from them.
pub(super) fn check_pools(list: &NetworkList, pools: &Pools) -> Result<(), Error> {
    if pools.subnets.is_empty() {
        return Ok(());
    }
    let ipam = ipam_of_list(list)?;
    if !ipam.as_ref().is_some_and(gives_any_requested) {
        let plugin_type = ipam.as_ref().map_or("no IPAM plugin", |ipam| ipam.plugin_type.as_str());
        return Err(Error::new(
            code::INVALID_CONFIG,
            format!(
                "network list {:?} has its addresses from {plugin_type:?}, which does not honour requested addresses",
                list.name
            ),
        )
        .with_details(
            "create the network with --ipam-driver null: then the list gives the addresses",
        ));
    }
    let Some(ipam) = ipam.filter(is_host_local) else { return Ok(()) };
    let sets = range_sets(&ipam)?;
    let has: Vec<IpNet> =
        sets.sets().iter().flat_map(ipam::RangeSet::ranges).map(ipam::Range::subnet).collect();
    let missing = pools.subnets.iter().find(|(subnet, _)| !has.contains(subnet));
    let Some((subnet, _)) = missing else { return Ok(()) };
    let listed: Vec<String> = has.iter().map(|subnet| format!("--subnet {subnet}")).collect();
    Err(Error::new(
        code::INVALID_CONFIG,
        format!("Docker chose the pool {subnet}, which network list {:?} does not hand out", list.name),
    )
    .with_details(format!(
        "create it with {}, or with --ipam-driver netwright --ipam-opt conflist={}, or with --ipam-driver null",
        listed.join(" "),
        list.name
    )))
}

/// Removes the address folder of a network that we made and that is gone, once it holds no
/// reservation.
pub(super) fn forget_addresses(list: &NetworkList) {
    let Ok(Some(ipam)) = ipam_of_list(list) else { return };
    if !is_host_local(&ipam) {
        return;
    }
    let Ok(name) = NetworkName::new(&list.name) else { return };
    let store = ipam::Store::new(&ipam.folder(), &name);
    let unused = store.addresses().is_ok_and(|addresses| addresses.is_empty());
    // The rest of it has no value: the lock, and the last address.
    if unused && let Err(error) = std::fs::remove_dir_all(store.directory()) {
        tracing::debug!(%error, "the folder of a removed network stays");
    }
}
