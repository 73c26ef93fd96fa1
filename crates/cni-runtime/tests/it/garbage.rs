//! Whatever the cache's folder or the configuration folder contains, nothing fails because of it.

use netwright_cni_runtime::ConfigFolder;
use proptest::prelude::*;

use crate::lab::{Lab, chain, container};

/// Bytes that are almost a record, or nothing like one.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let record = concat!(
        r#"{"kind":"cniCacheV1","containerId":"c1","config":"e30=","ifName":"eth0","#,
        r#""networkName":"net","netns":"/n","cniArgs":[["a","b"]],"capabilityArgs":{"x":1},"#,
        r#""result":{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.2/24"}]}}"#
    );
    let list = r#"{"name": "n", "cniVersions": ["1.0.0"], "plugins": [{"type": "a"}]}"#;
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        (0..record.len()).prop_map(move |end| record.as_bytes()[..end].to_vec()),
        (0..record.len(), any::<u8>()).prop_map(move |(place, byte)| {
            let mut bytes = record.as_bytes().to_vec();
            bytes[place] = byte;
            bytes
        }),
        (0..list.len(), any::<u8>()).prop_map(move |(place, byte)| {
            let mut bytes = list.as_bytes().to_vec();
            bytes[place] = byte;
            bytes
        }),
        Just(b"[".repeat(10_000)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_survives_garbage(files in proptest::collection::vec(("[ -~&&[^/]]{1,20}", content()), 0..4), own in content()) {
        let lab = Lab::new(&[]);
        for (name, bytes) in &files {
            if name != "." && name != ".." {
                lab.write_cached(name, bytes);
            }
        }
        lab.write_cached("net-c1-eth0", own);
        let runtime = lab.runtime();
        let listing = runtime.cached_attachments(None).unwrap();
        prop_assert!(listing.attachments.len() <= 1);
        let key = runtime.key(&chain("1.0.0", &["a"]), &container("c1")).unwrap();
        let _ = runtime.cached_attachment(&key);
        runtime.cache().forget(&key).unwrap();
        prop_assert!(runtime.cached_attachment(&key).unwrap().is_none());
    }

    #[test]
    fn the_configuration_folder_survives_garbage(files in proptest::collection::vec(content(), 1..5)) {
        let dir = tempfile::tempdir().unwrap();
        for (index, bytes) in files.iter().enumerate() {
            let extension = if index % 2 == 0 { "conflist" } else { "conf" };
            std::fs::write(dir.path().join(format!("{index}.{extension}")), bytes).unwrap();
        }
        std::fs::write(dir.path().join("z.conflist"), r#"{"name":"zz","plugins":[{"type":"a"}]}"#).unwrap();
        let folder = ConfigFolder::scan(dir.path()).unwrap();
        prop_assert!(folder.find("zz").is_ok());
        prop_assert_eq!(folder.considered().len(), files.len() + 1);
        for considered in folder.considered() {
            prop_assert!(!considered.to_string().contains('\n') || considered.to_string().contains("network"));
        }
    }
}

/// A full life over garbage under the attachment's own name.
#[test]
fn an_attachment_takes_the_place_of_garbage() {
    let lab = Lab::new(&["a"]);
    let runtime = lab.runtime();
    let list = chain("1.0.0", &["a"]);
    for garbage in ["", "{", "\0\0\0\0", r#"{"kind":"cniCacheV1","networkName":"net"}"#] {
        lab.write_cached("net-c1-eth0", garbage);
        runtime.add_list(&list, &container("c1"), None).unwrap();
        assert_eq!(runtime.cached_attachments(None).unwrap().attachments.len(), 1);
        runtime.del_list(&list, &container("c1"), None).unwrap();
        assert!(lab.cached().is_empty());
    }
}
