//! Device information files.

use expect_test::expect;
use netwright_npwg::device;

#[test]
fn files_are_called_as_the_specification_says() {
    assert_eq!(
        device::plugin_file("vendor.example/nic", "0000:03:02/1"),
        "vendor.example-nic-0000:03:02-1-device.json"
    );
    assert_eq!(device::cni_file("ns/net", "c1", "net1"), "ns-net-c1_net1");
}

#[test]
fn every_type_of_device() {
    for text in [
        r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:03:02.1","vhost-net":"/dev/vhost-net","rdma-device":"mlx5_0","pf-pci-address":"0000:03:00.0","representor-device":"eth7"}}"#,
        r#"{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa0","driver":"vhost_vdpa","path":"/dev/vhost-vdpa-0","pci-address":"0000:03:02.1","pf-pci-address":"0000:03:00.0","representor-device":"eth7"}}"#,
        r#"{"type":"vhost-user","version":"1.1.0","vhost-user":{"mode":"client","path":"/var/run/s.sock"}}"#,
        r#"{"type":"memif","version":"1.1.0","memif":{"role":"master","path":"/var/run/m.sock","mode":"ethernet"}}"#,
    ] {
        let info: device::DeviceInfo = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&info).unwrap(), text);
        assert_eq!(device::read(text.as_bytes()).unwrap().to_vec(), text.as_bytes());
    }
}

#[test]
fn what_is_not_known_is_kept() {
    let text = br#"{"type":"telepathy","version":"9.0.0","telepathy":{"range":7}}"#;
    assert_eq!(device::read(text).unwrap().to_vec(), text);
}

#[test]
fn what_is_no_device_information() {
    let mut found = String::new();
    for text in [
        "",
        "tea",
        "[]",
        "{}",
        r#"{"version":"1.1.0"}"#,
        r#"{"type":"pci","pci":{}}"#,
        r#"{"type":"pci","version":"1.1.0"}"#,
        r#"{"type":"pci","version":"1.1.0","pci":5}"#,
    ] {
        let error = device::read(text.as_bytes()).unwrap_err();
        found.push_str(&format!("{text}\n    {error}\n"));
    }
    expect![[r#"

            not device information: it ends before it is complete at line 1 column 0
        tea
            not device information: tea is not a value of JSON: a text needs quotation marks at line 1 column 1
        []
            not device information: found a list, wanted an object
        {}
            device information without "version"
        {"version":"1.1.0"}
            device information without "type"
        {"type":"pci","pci":{}}
            device information without "version"
        {"type":"pci","version":"1.1.0"}
            device information of type "pci" without "pci"
        {"type":"pci","version":"1.1.0","pci":5}
            not device information: pci: found 5, wanted an object at line 1 column 39
    "#]]
    .assert_eq(&found);
    assert!(device::read(&vec![b' '; device::MAX_FILE + 1]).is_err());
}
