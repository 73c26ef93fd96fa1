//! Names are checked where they enter.

use netwright_cni::name::check_plugin_type;
use netwright_cni::owner::sha512_hex;
use netwright_cni::{AttachmentKey, ContainerId, Error, GcAttachment, IfName, NetworkName};

fn said(result: Result<(), Error>) -> (u32, String, String) {
    let error = result.unwrap_err();
    (error.code, error.msg, error.details)
}

fn error(code: u32, msg: &str, details: &str) -> (u32, String, String) {
    (code, msg.to_owned(), details.to_owned())
}

#[test]
fn container_ids_have_the_characters_of_the_specification() {
    for good in ["c1", "0", "A_b.c-d", "a".repeat(300).as_str()] {
        assert_eq!(ContainerId::new(good).unwrap().as_str(), good);
    }
    for bad in ["a b", "_a", ".a", "-a", "a/b", "é", "a\n", "a;b"] {
        let got = said(ContainerId::new(bad).map(drop));
        assert_eq!(got, error(4, "invalid characters in containerID", bad));
    }
    assert_eq!(said(ContainerId::new("").map(drop)), error(3, "missing containerID", ""));
}

#[test]
fn network_names_have_the_characters_of_the_specification() {
    assert!(NetworkName::new("my.net-1_x").is_ok());
    let got = said(NetworkName::new("te%st").map(drop));
    assert_eq!(got, error(7, "invalid characters found in network name", "te%st"));
    assert_eq!(said(NetworkName::new("").map(drop)), error(7, "missing network name", ""));
}

#[test]
fn interface_names_fit_the_kernel() {
    for good in ["eth0", "a", "123456789012345", "...", "é", "a-b_c.d@e"] {
        assert_eq!(IfName::new(good).unwrap().as_str(), good);
    }
    let table = [
        ("", "interface name is empty", ""),
        (
            "1234567890123456",
            "interface name is too long",
            "interface name should be less than 16 characters",
        ),
        // The limit counts bytes, not characters.
        (
            "éééééééé",
            "interface name is too long",
            "interface name should be less than 16 characters",
        ),
        (".", "interface name is . or ..", ""),
        ("..", "interface name is . or ..", ""),
        (
            "all",
            "interface name is all or default",
            "the kernel keeps these names for settings that are not one link's",
        ),
    ];
    for (name, msg, details) in table {
        assert_eq!(said(IfName::new(name).map(drop)), error(4, msg, details), "{name}");
    }
    for bad in ["a/b", "a:b", "a b", "a\tb", "a\u{a0}b", "a\u{2003}b", "a\u{85}b"] {
        let msg = "interface name contains / or : or whitespace characters";
        assert_eq!(said(IfName::new(bad).map(drop)), error(4, msg, ""), "{bad}");
    }
}

#[test]
fn a_plugin_type_stays_in_its_folder() {
    assert!(check_plugin_type("bridge").is_ok());
    assert_eq!(said(check_plugin_type("")), error(7, "no plugin name provided", ""));
    for bad in ["a/b", "/bin/sh", "..", "."] {
        assert_eq!(
            said(check_plugin_type(bad)),
            error(7, &format!("invalid plugin name: {bad}"), "")
        );
    }
}

fn key(network: &str, container: &str, ifname: &str) -> AttachmentKey {
    AttachmentKey {
        network: NetworkName::new(network).unwrap(),
        container_id: ContainerId::new(container).unwrap(),
        ifname: IfName::new(ifname).unwrap(),
    }
}

#[test]
fn an_attachments_hash_never_changes() {
    // On disk and in the kernel this hash identifies the owner: a change orphans everything on
    // upgrade. printf 'n\0c1\0eth0\0' | sha512sum | cut -c-32
    assert_eq!(key("n", "c1", "eth0").hash(), "675392252e72bba948fc360ca7b2df45");
    assert_eq!(key("n", "c1", "eth0").to_string(), "n/c1/eth0");
}

#[test]
fn the_parts_of_an_attachment_cannot_run_together() {
    assert_ne!(key("a-b", "c", "eth0").hash(), key("a", "b-c", "eth0").hash());
    assert_ne!(key("ab", "c", "eth0").hash(), key("a", "bc", "eth0").hash());
}

#[test]
fn names_of_the_reference_are_reproduced() {
    assert_eq!(sha512_hex("nc1", 24), "9b00b9b7c2795a8a61a6eec1");
    assert_eq!(sha512_hex("/run/netns/a", 20), "a145bc1ace582bff43bd");
    assert_eq!(sha512_hex("n", 16), "917148ec47923f2e");
    assert_eq!(sha512_hex("eth0:c1", 16), "f4d01f2ef4b92245");
    assert_eq!(sha512_hex("", 500).len(), 128);
}

#[test]
fn a_valid_attachment_without_a_name_stops_gc() {
    // An entry read as empty would match nothing, and GC would remove what it must keep.
    for bad in [r#"[{}]"#, r#"[{"ifname": "eth0"}]"#, "[null]"] {
        assert!(netwright_cni::json::from_str::<Vec<GcAttachment>>(bad).is_err(), "{bad}");
    }
}
