//! What plugins recorded of an attachment, as a list of plugins whose DEL removes it: for an
//! attachment whose configuration is lost, or is another one by now.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cni::{NetworkList, PluginConfig, Version};
use cni_plugin::Role;
use cni_runtime::KnownAttachment;
use serde_json::json;
use state::{Record, Roots};

use crate::judge;

/// The address plugin of records that do not say which it was: they are of an older release. Its DEL
/// changes nothing where it has given no address.
const FORMER_IPAM: &str = "host-local";

/// Returns the list of the plugins that recorded something of one attachment; `None` if none of ours
/// did. DEL takes them from the end: those that changed an interface come before the one that made
/// it.
#[must_use]
pub fn list(records: &[Record]) -> Option<NetworkList> {
    let mut known: Vec<(bool, &Record)> = Vec::new();
    for record in records {
        let info = crate::info(&record.plugin);
        known.extend(info.map(|info| (matches!(info.role, Role::Chained), record)));
    }
    let network = &known.first()?.1.attachment.network;
    cni::order::sort_by(&mut known, |(one, a), (other, b)| {
        (one, &a.plugin).cmp(&(other, &b.plugin))
    });
    let plugin = |(is_chained, record): &(bool, &Record)| {
        let mut config = json!({ "type": record.plugin });
        // A plugin whose links others make has no addresses of its own.
        let has_inner = crate::info(&record.plugin).is_some_and(|info| info.inner.is_some());
        let former = || (!is_chained && !has_inner).then(|| json!({ "type": FORMER_IPAM }));
        if let Some(ipam) = record.ipam.clone().or_else(former) {
            config["ipam"] = ipam;
        }
        config
    };
    let plugins: Vec<_> = known.iter().map(plugin).collect();
    let document = json!({
        "cniVersion": Version::CURRENT.as_str(), "name": network.as_str(), "plugins": plugins,
    });
    NetworkList::parse(document.to_string().as_bytes()).ok()
}

/// Says whether others' plugins have attached the container again under the same names, of
/// attachments whose recorded namespace is gone: then its address is reserved for a namespace that
/// is not known to be gone. A reservation that does not name one is not of ours.
#[must_use]
pub fn lives_again(records: &[Record], roots: &Roots) -> bool {
    let is_present = |record| {
        let present = crate::ipam::host_local::present(record, roots);
        present.map_or(true, |files| !files.is_empty())
    };
    records.iter().any(is_present)
}

/// Returns the files by which `host-local` reserves addresses for such a container: they stay when
/// what ours recorded is removed.
#[must_use]
pub fn reserved_again(records: &[Record], roots: &Roots) -> Vec<PathBuf> {
    let present = |record| crate::ipam::host_local::present(record, roots).unwrap_or_default();
    let files: BTreeSet<PathBuf> = cni::order::gather(records.iter().flat_map(present));
    files.into_iter().collect()
}

/// Says whether other projects' plugins attached it, before ours took their names: each of ours that
/// makes an interface records it.
#[must_use]
pub fn is_by_others(known: &KnownAttachment) -> bool {
    let Some(cached) = known.cached.as_ref().filter(|cached| cached.result.is_some()) else {
        return false;
    };
    let is_recorded =
        |plugin: &PluginConfig| judge::role(&plugin.plugin_type) == Some(Role::Interface);
    let list = cached.list();
    known.records.is_empty() && list.is_ok_and(|list| list.plugins.iter().any(is_recorded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_an_interface_goes_before_what_made_it() {
        let key = cni::AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let record = |plugin: &str, ipam| {
            let mut record = Record::new(key.clone(), plugin, "b", serde_json::Value::Null);
            record.ipam = ipam;
            record
        };
        let dhcp = json!({ "type": "dhcp", "daemonSocketPath": "/run/d" });
        let types = |records: &[Record]| {
            let list = list(records)?;
            let plugins = list.plugins.iter();
            Some(plugins.map(|one| one.plugin_type.clone()).collect::<Vec<_>>().join(" "))
        };
        let all = [record("portmap", None), record("bridge", Some(dhcp)), record("tuning", None)];
        assert_eq!(types(&all).as_deref(), Some("bridge portmap tuning"));
        let text = String::from_utf8(list(&all).unwrap().source).unwrap();
        assert!(text.contains("/run/d") && !text.contains("host-local"), "{text}");
        let source =
            |name: &str| String::from_utf8(list(&[record(name, None)]).unwrap().source).unwrap();
        assert!(source("bridge").contains("host-local"));
        assert!(!source("multi").contains("ipam"));
        assert_eq!(types(&[record("unheard-of", None)]), None);
        assert_eq!(types(&[]), None);
    }
}
