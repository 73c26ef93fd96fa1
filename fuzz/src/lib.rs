//! The fuzz targets: every parser of input from outside, one plain function each.
//!
//! A function takes any bytes and must return. If it accepts the bytes it also checks what must
//! then hold: that what was read can be written and read again, and that what must pass through
//! unchanged did. It must not print, allocate without bound or depend on anything but the bytes.
//!
//! libFuzzer (`libfuzzer/fuzz_targets/`) and the runner that needs only a stable toolchain
//! ([`smoke`]) use the same functions. [`TARGETS`] lists them.

pub mod cluster;
pub mod dhcp;
pub mod kept;
pub mod npwg;
pub mod ovsdb;
pub mod said;
pub mod smoke;

use netwright_cni::json::{self, Object};
use netwright_cni::{
    AddResult, Args, CommonConfig, ContainerId, Error, IfName, Injection, NetworkList, NetworkName,
    PluginConfig, Version, text, version,
};

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is also the name of its folder in `seeds/` and of its libFuzzer target.
    pub name: &'static str,
    /// The function that runs for each input.
    pub run: fn(&[u8]),
    /// One of this many inputs is run: a target that needs files, or reads each input many times,
    /// is slow.
    pub share: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "network_list", run: network_list, share: 1 },
    Target { name: "plugin_config", run: plugin_config, share: 1 },
    Target { name: "result", run: result, share: 1 },
    Target { name: "error", run: error, share: 1 },
    Target { name: "args", run: args, share: 1 },
    Target { name: "ifname", run: ifname, share: 1 },
    Target { name: "json_object", run: json_object, share: 1 },
    Target { name: "dhcp_frame", run: dhcp::frame, share: 1 },
    Target { name: "dhcp_v4", run: dhcp::dhcp_v4, share: 1 },
    Target { name: "dhcp_v6", run: dhcp::dhcp_v6, share: 1 },
    Target { name: "reservation", run: kept::reservation, share: 1 },
    Target { name: "address_store", run: kept::address_store, share: 50 },
    Target { name: "cache_entry", run: kept::cache_entry, share: 20 },
    Target { name: "owner_record", run: kept::owner_record, share: 20 },
    Target { name: "tuning_backup", run: kept::tuning_backup, share: 1 },
    Target { name: "dhcp_lease", run: kept::dhcp_lease, share: 1 },
    Target { name: "netlink", run: said::netlink, share: 5 },
    Target { name: "iptables", run: said::iptables, share: 1 },
    Target { name: "owner_comment", run: said::owner_comment, share: 1 },
    Target { name: "sysctl", run: said::sysctl, share: 1 },
    Target { name: "http", run: said::http, share: 5 },
    Target { name: "ovsdb", run: ovsdb::messages, share: 1 },
    Target { name: "npwg", run: npwg::annotations, share: 2 },
    Target { name: "cluster", run: cluster::messages, share: 1 },
    Target { name: "whereabouts", run: cluster::whereabouts, share: 1 },
    Target { name: "multinet", run: npwg::messages, share: 2 },
    Target { name: "plugin_keys", run: said::plugin_keys, share: 10 },
];

/// Network lists and the older single-plugin files.
pub fn network_list(data: &[u8]) {
    if let Ok(list) = NetworkList::parse(data) {
        assert_eq!(list.source, data);
        assert_eq!(NetworkList::parse(&list.source).as_ref(), Ok(&list));
        for plugin in &list.plugins {
            request(plugin, &list.name, &list.cni_version);
        }
    }
    if let Ok(list) = NetworkList::from_plugin(data) {
        assert_eq!(list.plugins.len(), 1);
        let again = NetworkList::parse(&list.source).expect("what we made we can read");
        assert_eq!(again, list);
    }
}

/// A plugin's configuration: as the runtime loads it and as the plugin reads it.
pub fn plugin_config(data: &[u8]) {
    if let Ok(plugin) = PluginConfig::parse(data) {
        request(&plugin, "net", "1.1.0");
    }
    if let Ok(config) = json::from_slice::<CommonConfig>(data) {
        for version in Version::ALL {
            let _ = config.previous(*version);
        }
        let text = std::str::from_utf8(data).expect("JSON was read, so it is text");
        let lines = text.split('\n').count();
        for key in json::unknown_keys::<CommonConfig>(text).expect("it was read before") {
            assert!((1..=lines).contains(&key.line) && 1 <= key.column);
            let _ = key.nearest();
        }
    }
}

fn request(plugin: &PluginConfig, name: &str, cni_version: &str) {
    let request = plugin.request(name, cni_version, &Injection::default());
    let config: CommonConfig = json::from_slice(&request).unwrap_or_default();
    let object = Object::parse(&request).expect("a request is an object");
    assert_eq!(object.get_ignore_case("capabilities").map(serde_json::value::RawValue::get), None);
    // A reader that ignores case sees the list's name and version.
    if !config.name.is_empty() {
        assert_eq!((config.name.as_str(), config.cni_version.as_str()), (name, cni_version));
    }
    let own = ["cniVersion", "name", "capabilities"];
    let kept = |object: &Object| -> Vec<(String, String)> {
        let entries = object.iter().map(|(key, value)| (key.to_owned(), value.get().to_owned()));
        // Keys outside ASCII are left out: some of them fold to our own.
        entries
            .filter(|(key, _)| key.is_ascii() && !own.iter().any(|o| o.eq_ignore_ascii_case(key)))
            .collect()
    };
    assert_eq!(kept(&object), kept(&plugin.object));
}

/// Results of ADD in every shape, and from every shape to every other.
pub fn result(data: &[u8]) {
    let _ = AddResult::version_of(data);
    for assumed in [Version::V0_2_0, Version::V0_4_0, Version::V1_1_0] {
        let Ok(result) = AddResult::parse(data, assumed) else { continue };
        for version in Version::ALL {
            let Ok(written) = result.write(*version) else { continue };
            let read =
                AddResult::parse(&written, Version::V0_1_0).expect("what we wrote we can read");
            assert_eq!(read.write(*version).as_ref(), Ok(&written));
        }
        assert_eq!(result.through(Version::CURRENT), Ok(result));
    }
}

/// Error objects.
pub fn error(data: &[u8]) {
    if let Ok(error) = Error::parse(data) {
        assert_eq!(Error::parse(&error.to_json()).as_ref(), Ok(&error));
        let _ = error.to_string();
    }
}

/// `CNI_ARGS`.
pub fn args(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lenient = Args::parse_lenient(text);
    match Args::parse(text) {
        Ok(args) => {
            assert_eq!(args.to_string(), text);
            assert_eq!(args, lenient);
            let _ = args.require_known(&["MAC", "IP", "GATEWAY"]).map_err(|error| error.to_json());
        }
        Err(error) => assert_eq!(error.code, 4),
    }
}

/// Names, versions and addresses: the small texts that become file names and kernel objects.
pub fn ifname(data: &[u8]) {
    let Ok(given) = std::str::from_utf8(data) else { return };
    if let Ok(name) = IfName::new(given) {
        assert!((1..=15).contains(&name.as_str().len()));
    }
    let names = [
        IfName::new(given).map(|name| name.to_string()),
        ContainerId::new(given).map(|name| name.to_string()),
        NetworkName::new(given).map(|name| name.to_string()),
    ];
    for name in names.into_iter().flatten() {
        assert_eq!(name, given);
        assert!(!name.contains(['/', '\0', '\n']) && name != "." && name != "..");
    }
    let _ = version::triple(given).map_err(|error| error.to_string());
    if let Some(network) = text::parse_cidr(given) {
        assert_eq!(text::parse_cidr(&network.to_string()), Some(network));
    }
    assert!(!text::quote(given).contains(|letter: char| letter.is_control()));
}

/// Objects kept as text.
pub fn json_object(data: &[u8]) {
    let Ok(mut object) = Object::parse(data) else { return };
    let written = object.to_vec();
    assert_eq!(Object::parse(&written).as_ref(), Ok(&object));
    for (_, value) in object.iter() {
        assert!(data.windows(value.get().len()).any(|part| part == value.get().as_bytes()));
    }
    object.set_value("name", "n");
    assert_eq!(object.get_ignore_case("NAME").map(serde_json::value::RawValue::get), Some("\"n\""));
    object.remove("Name");
    assert_eq!(object.get_ignore_case("name").map(serde_json::value::RawValue::get), None);
}
