//! Properties that hold for every input.

use std::collections::BTreeMap;

use netwright_cni::json::{self, Object};
use netwright_cni::version::ResultFamily;
use netwright_cni::{
    AddResult, Args, CommonConfig, ContainerId, Error, IfName, Injection, Interface, IpConfig,
    NetworkList, NetworkName, PluginConfig, Route, Version, text, version,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::strategies::{entries, result};

fn object_text(entries: &[(String, String)]) -> String {
    let entries: Vec<String> = entries
        .iter()
        .map(|(key, value)| format!("{} : {value}", serde_json::to_string(key).unwrap()))
        .collect();
    format!("{{ {} }}", entries.join(" ,"))
}

/// What `AddResult::write` keeps, by its documentation.
fn left(result: &AddResult, version: Version) -> Option<AddResult> {
    let mut left = result.clone();
    match version.family() {
        ResultFamily::V1 => {}
        ResultFamily::V0_4 => {
            for link in &mut left.interfaces {
                *link = Interface {
                    mtu: 0,
                    socket_path: String::new(),
                    pci_id: String::new(),
                    ..link.clone()
                };
            }
        }
        ResultFamily::V0_2 => {
            left.interfaces.clear();
            left.ips.clear();
            left.routes.clear();
            for v4 in [true, false] {
                let of_family = |ip: &&IpConfig| ip.address.addr().is_ipv4() == v4;
                let Some(first) = result.ips.iter().find(of_family) else { continue };
                left.ips.push(IpConfig { interface: None, ..first.clone() });
                let routes = result.routes.iter().filter(|r| r.dst.addr().is_ipv4() == v4);
                left.routes.extend(routes.map(|route| Route::new(route.dst, route.gw)));
            }
            if left.ips.is_empty() {
                return None;
            }
        }
    }
    Some(left)
}

proptest! {
    #[test]
    fn a_result_loses_what_the_version_cannot_hold_and_nothing_else(
        result in result(), version in select(Version::ALL),
    ) {
        match left(&result, version) {
            Some(left) => {
                prop_assert_eq!(&result.through(version).unwrap(), &left);
                // Within a family, reading what was written is the identity.
                for same in Version::ALL.iter().filter(|v| v.family() == version.family()) {
                    prop_assert_eq!(&left.through(*same).unwrap(), &left);
                }
                // A conversion up loses nothing.
                for newer in Version::starting_from(version) {
                    prop_assert_eq!(&left.through(*newer).unwrap(), &left);
                }
                // A conversion down through a version between equals a direct one.
                for between in Version::starting_from(version) {
                    let detour = result.through(*between).and_then(|r| r.through(version));
                    prop_assert_eq!(&detour.unwrap(), &left);
                }
            }
            None => prop_assert!(result.write(version).is_err()),
        }
    }

    #[test]
    fn a_written_result_names_its_version_and_is_one_document(
        result in result(), version in select(&Version::ALL[2..]),
    ) {
        let text = result.write_indented(version).unwrap();
        prop_assert_eq!(AddResult::version_of(&text).unwrap(), Some(version));
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        prop_assert_eq!(value["cniVersion"].as_str(), Some(version.as_str()));
        let versions = value["ips"].as_array().into_iter().flatten().filter(|ip| ip.get("version").is_some());
        let expected = if version.family() == ResultFamily::V0_4 { result.ips.len() } else { 0 };
        prop_assert_eq!(versions.count(), expected);
    }

    #[test]
    fn objects_keep_every_value_to_the_byte(entries in entries()) {
        let object = Object::parse(object_text(&entries).as_bytes()).unwrap();
        let kept: Vec<(String, String)> =
            object.iter().map(|(key, value)| (key.to_owned(), value.get().to_owned())).collect();
        prop_assert_eq!(&kept, &entries);
        let again = Object::parse(&object.to_vec()).unwrap();
        prop_assert_eq!(again, object);
    }

    #[test]
    fn requests_keep_unknown_keys_to_the_byte(entries in entries(), place in 0_usize..7) {
        let mut given = entries.clone();
        given.insert(place.min(entries.len()), ("type".into(), "\"t\"".into()));
        given.push(("Capabilities".into(), r#"{"mac":true}"#.into()));
        let plugin = PluginConfig::parse(object_text(&given).as_bytes()).unwrap();
        let args: BTreeMap<_, _> =
            [("mac".to_owned(), serde_json::value::to_raw_value(&1).unwrap())].into();
        let injection = Injection {
            capability_args: Some(&args), valid_attachments: Some(&[]), ..Injection::default()
        };
        let request = Object::parse(&plugin.request("n", "1.1.0", &injection)).unwrap();
        let added = ["type", "cniVersion", "name", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"];
        let kept: Vec<(String, String)> = request
            .iter()
            .filter(|(key, _)| !added.contains(key))
            .map(|(key, value)| (key.to_owned(), value.get().to_owned()))
            .collect();
        prop_assert_eq!(kept, entries);
        prop_assert_eq!(request.iter().filter(|(key, _)| added.contains(key)).count(), added.len());
    }

    #[test]
    fn addresses_read_back_as_they_were_written(text in "[0-9a-f:./]{0,24}") {
        if let Some(network) = text::parse_cidr(&text) {
            prop_assert_eq!(text::parse_cidr(&network.to_string()), Some(network));
        }
        if let Some(address) = text::parse_ip(&text) {
            prop_assert_eq!(text::parse_ip(&address.to_string()), Some(address));
        }
    }

    #[test]
    fn args_read_back_as_they_were_written(text in "[A-Za-z=;\\PC]{0,30}") {
        if let Ok(args) = Args::parse(&text) {
            prop_assert_eq!(args.to_string(), text.clone());
            prop_assert_eq!(&Args::parse_lenient(&text), &args);
            let _ = args.require_known(&["A"]);
        }
    }

    #[test]
    fn accepted_names_are_safe_file_names(text in "\\PC{0,20}|[a-z/.:\\- ]{0,17}") {
        let names = [
            IfName::new(&text).map(|name| name.to_string()),
            ContainerId::new(&text).map(|name| name.to_string()),
            NetworkName::new(&text).map(|name| name.to_string()),
        ];
        for name in names.into_iter().flatten() {
            prop_assert_eq!(&name, &text);
            prop_assert!(!name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']));
        }
    }

    #[test]
    fn versions_order_as_their_numbers(a in any::<[u16; 3]>(), b in any::<[u16; 3]>()) {
        let text = |v: [u16; 3]| format!("{}.{}.{}", v[0], v[1], v[2]);
        prop_assert_eq!(version::compare(&text(a), &text(b)), Ok(a.cmp(&b)));
    }

    #[test]
    fn no_bytes_make_a_parser_panic(bytes in any::<Vec<u8>>()) {
        parse_all(&bytes);
    }

    #[test]
    fn nothing_like_json_makes_a_parser_panic(text in "[\\[\\]{}:,\"\\\\0-9eE+.a-z \n-]{0,60}") {
        parse_all(text.as_bytes());
    }

    #[test]
    fn no_change_of_a_byte_makes_a_parser_panic(at in any::<usize>(), byte in any::<u8>(), cut in any::<bool>()) {
        let texts: [&[u8]; 4] = [
            include_bytes!("../golden/1.1.0/config.conflist"),
            include_bytes!("../golden/1.1.0/result-routes.json"),
            include_bytes!("../golden/0.4.0/result-dual-stack.json"),
            include_bytes!("../golden/0.2.0/result-dual-stack.json"),
        ];
        for text in texts {
            let mut text = text.to_vec();
            let at = at % text.len();
            text[at] = byte;
            if cut {
                text.truncate(at + 1);
            }
            parse_all(&text);
        }
    }
}

/// Gives bytes to every parser. Their results do not matter; that they return does.
fn parse_all(bytes: &[u8]) {
    if let Ok(list) = NetworkList::parse(bytes) {
        assert_eq!(NetworkList::parse(&list.source).unwrap(), list);
    }
    let _ = NetworkList::from_plugin(bytes);
    let _ = PluginConfig::parse(bytes);
    for version in Version::ALL {
        if let Ok(result) = AddResult::parse(bytes, *version) {
            let _ = result.write(*version);
        }
    }
    let _ = AddResult::version_of(bytes);
    if let Ok(error) = Error::parse(bytes) {
        assert_eq!(Error::parse(&error.to_json()).unwrap(), error);
    }
    if let Ok(config) = json::from_slice::<CommonConfig>(bytes) {
        let _ = config.previous(Version::CURRENT);
    }
    if let Ok(object) = Object::parse(bytes) {
        assert_eq!(Object::parse(&object.to_vec()).unwrap(), object);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        for key in json::unknown_keys::<CommonConfig>(text).unwrap_or_default() {
            assert_ne!((key.line, key.column), (0, 0));
            let _ = key.nearest();
        }
        let _ = Args::parse(text).and_then(|args| args.require_known(&["MAC"]));
        let _ = version::triple(text).map_err(|error| error.to_string());
        let _ = text::quote(text);
    }
}
