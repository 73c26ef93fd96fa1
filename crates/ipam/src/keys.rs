//! The keys of `ipam` by which a configuration names the pools of `host-local`.
//!
//! The plugin itself also reads keys that say nothing of pools, and refuses those that it does not
//! know: this is for programs that look at networks that other programs or administrators made.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use crate::range::{self, RangeSets, RangeSetsError, RangeSpec};

/// Where the reference keeps its folders, and so do we, unless `dataDir` says otherwise.
pub const DATA_DIR: &str = "/var/lib/cni/networks";

/// The keys of `ipam`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Keys {
    /// The type of the plugin.
    #[serde(rename = "type")]
    pub plugin_type: String,
    /// The range sets.
    pub ranges: Vec<Vec<RangeSpec>>,
    /// The single range of old configurations, whose keys are among the others.
    #[serde(deserialize_with = "range::deserialize_subnet")]
    pub subnet: Option<IpNet>,
    /// Its first address.
    #[serde(rename = "rangeStart", with = "cni::text::optional_ip")]
    pub range_start: Option<IpAddr>,
    /// Its last address.
    #[serde(rename = "rangeEnd", with = "cni::text::optional_ip")]
    pub range_end: Option<IpAddr>,
    /// Its gateway.
    #[serde(with = "cni::text::optional_ip")]
    pub gateway: Option<IpAddr>,
    /// The folder of all networks' folders; empty for [`DATA_DIR`].
    #[serde(rename = "dataDir")]
    pub data_dir: String,
}

impl Keys {
    /// Returns what the plugin hands out: the single range comes first.
    ///
    /// # Errors
    /// As [`RangeSets::new`].
    pub fn range_sets(&self) -> Result<RangeSets, RangeSetsError> {
        let &Keys { subnet, range_start, range_end, gateway, .. } = self;
        let single = RangeSpec { subnet, range_start, range_end, gateway };
        let single = subnet.is_some().then(|| vec![single]);
        RangeSets::new(single.into_iter().chain(self.ranges.iter().cloned()).collect())
    }

    /// Returns the folder of all networks' folders.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        if self.data_dir.is_empty() { DATA_DIR.into() } else { self.data_dir.as_str().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_ranges_are_read() {
        let text = r#"{"type": "host-local", "subnet": "10.88.0.0/24", "rangeStart": "10.88.0.9",
            "ranges": [[{"subnet": "fd00:88::/64"}]]}"#;
        let keys: Keys = cni::json::from_str(text).unwrap();
        let sets = keys.range_sets().unwrap();
        let ranges = sets.sets().iter().flat_map(crate::RangeSet::ranges);
        let nets: Vec<String> = ranges.map(|range| range.subnet().to_string()).collect();
        assert_eq!(nets, ["10.88.0.0/24", "fd00:88::/64"]);
        assert_eq!(keys.folder(), PathBuf::from(DATA_DIR));
        assert!(Keys::default().range_sets().is_err());
        let keys = Keys { data_dir: "/srv/pools".to_owned(), ..Keys::default() };
        assert_eq!(keys.folder(), PathBuf::from("/srv/pools"));
    }
}
