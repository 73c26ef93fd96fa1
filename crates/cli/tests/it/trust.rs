//! Plugins that a user other than root can change.

use testkit::{Lab, Place};

use crate::support::call_in;

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"theirs","plugins":[{"type":"theirs","ipam":{"type":"addresses"}}]}"#;

/// Gives every verb the same answer.
const PLUGIN: &str = "#!/bin/sh\ncat >/dev/null\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n";

#[test]
fn who_can_change_a_plugin_is_told_and_refused_where_the_administrator_says_so() {
    testkit::require!("root");
    let lab = Lab::new("trust");
    let _c1 = lab.container("c1");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin");
    lab.enter(|| {
        std::fs::write("/etc/cni/net.d/a.conflist", LIST).unwrap();
        for name in ["theirs", "addresses"] {
            std::fs::write(format!("/opt/cni/bin/{name}"), PLUGIN).unwrap();
        }
    });
    lab.sh("chmod 755 /opt/cni/bin/*");
    let quiet = call_in(&lab, &["status", "theirs"]).succeeded();
    assert!(!quiet.both().contains("written by others"), "{quiet:#?}");
    call_in(&lab, &["lint", "--strict"]).succeeded();

    lab.sh("chmod 777 /opt/cni/bin/theirs; chown nobody /opt/cni/bin/addresses");
    let told = call_in(&lab, &["status", "theirs"]).succeeded();
    assert!(
        told.stdout.contains("/opt/cni/bin/theirs can be written by others (mode 0777)"),
        "{told:#?}"
    );
    assert!(
        told.stdout.contains("/opt/cni/bin/addresses belongs to user 65534, not to root"),
        "{told:#?}"
    );
    let lint = call_in(&lab, &["lint", "--strict"]).failed(1);
    assert!(
        lint.stdout.contains("plugin \"theirs\": /opt/cni/bin/theirs can be written"),
        "{lint:#?}"
    );

    call_in(&lab, &["add", "theirs", "c1"]).succeeded();
    call_in(&lab, &["del", "theirs", "c1"]).succeeded();
    lab.sh("mkdir -p /etc/netwright && touch /etc/netwright/require-trusted-plugins");
    let refused = call_in(&lab, &["add", "theirs", "c1"]).failed(3);
    assert!(
        refused.both().contains("is not run: ") && refused.both().contains("mode 0777"),
        "{refused:#?}"
    );
    // Ours are in this executable, which only root can change.
    call_in(&lab, &["add", "netwright", "c1"]).succeeded();
    lab.sh("chmod 755 /opt/cni/bin/theirs");
    call_in(&lab, &["add", "theirs", "c1", "--ifname", "eth1"]).succeeded();
}

/// A user namespace shows under one number the machine's root and every other user that it does not
/// have. That is no reason for a warning, and none for trust.
#[test]
fn whose_a_plugin_is_must_be_seen_where_the_administrator_says_so() {
    testkit::require!("root");
    let lab = Lab::new("trust-userns");
    let _c1 = lab.container("c1");
    lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin /etc/netwright");
    lab.enter(|| {
        std::fs::write("/etc/cni/net.d/a.conflist", LIST).unwrap();
        std::fs::write("/opt/cni/bin/theirs", PLUGIN).unwrap();
    });
    // It has the machine's root, and no other.
    let within = |args: &str| {
        let netwright = crate::system::NETWRIGHT;
        let said = lab.try_sh(&format!("unshare --user --map-root-user {netwright} {args}"));
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
    };
    lab.sh("chmod 755 /opt/cni/bin/theirs; chown 1234 /opt/cni/bin/theirs");
    let quiet = within("lint");
    assert!(!quiet.contains("belongs to"), "{quiet}");
    let run = within("add theirs c1");
    assert!(!run.contains("is not run"), "{run}");
    lab.sh("touch /etc/netwright/require-trusted-plugins");
    let refused = within("add theirs c1");
    let words = "/opt/cni/bin/theirs belongs to a user whom this user namespace does not have";
    assert!(refused.contains("is not run: ") && refused.contains(words), "{refused}");
    lab.sh("chown root /opt/cni/bin/theirs");
    let run = within("add theirs c1");
    assert!(!run.contains("is not run"), "{run}");
}
