//! With `--full`: what Debian's packages find where they are installed, and what they leave there.

use super::debian::{BRIDGE, Debian, SNAPSHOT, go, ours};

/// In a chroot there may be no `/proc`. systemd is in none of these.
#[test]
fn a_chroot_without_proc_stops_the_installation_until_it_has_one() {
    testkit::require!("full", "root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-chroot");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    let before = debian.sh(SNAPSHOT);
    let [netwright, plugins] = ours("0.1.0");
    let both = debian.bring(&[&netwright, &plugins]);
    debian.sh("test ! -e /run/systemd/system && umount --lazy /proc && test ! -e /proc/self");
    let said = debian.dpkg(&format!("--install {both} || true"));
    assert!(said.contains("mount /proc: a chroot may lack it"), "{said}");
    assert!(debian.sh("CNI_COMMAND=VERSION /usr/lib/cni/bridge </dev/null").ends_with("go 8\n"));
    debian.sh("mount -t proc proc /proc");
    // What their package's upgrade brings meanwhile is what comes back in the end.
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("9")])));
    assert!(debian.sh(BRIDGE).ends_with("go 9\n"));
    debian.dpkg("--configure --pending");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    debian.dpkg("--purge netwright netwright-cni-plugins");
    assert!(debian.sh(BRIDGE).ends_with("go 9\n"));
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    assert_eq!(debian.sh(SNAPSHOT), before);
}

/// The links that other tools manage come back as they were, and those tools find nothing changed.
#[test]
fn an_alternative_is_put_aside_and_comes_back() {
    testkit::require!(
        "full",
        "root",
        "program:dpkg-divert",
        "program:update-alternatives",
        "program:strip"
    );
    let debian = Debian::new("release-alternative");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    debian.sh("rm -f /usr/lib/cni/vrf && mkdir -p /usr/local/lib/cni && \
         cp /usr/lib/cni/bridge /usr/local/lib/cni/vrf && \
         update-alternatives --install /usr/lib/cni/vrf cni-vrf /usr/local/lib/cni/vrf 10");
    let alternative = || {
        debian.sh("readlink /usr/lib/cni/vrf; LC_ALL=C update-alternatives --query cni-vrf; \
                   /usr/lib/cni/vrf")
    };
    let (before, chosen) = (debian.sh(SNAPSHOT), alternative());
    assert!(chosen.starts_with("/etc/alternatives/cni-vrf\n"), "{chosen}");
    let [netwright, plugins] = ours("0.1.0");
    debian.dpkg(&format!("--install {}", debian.bring(&[&netwright, &plugins])));
    assert_eq!(debian.sh("readlink /usr/lib/cni/vrf"), "netwright\n");
    debian.dpkg("--purge netwright netwright-cni-plugins");
    assert_eq!(debian.sh(SNAPSHOT), before);
    assert_eq!(alternative(), chosen);
}

/// A version that does not read what a later one wrote changes none of it.
#[test]
fn a_downgrade_over_newer_state_is_refused_and_plugins_serve() {
    testkit::require!("full", "root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-newer");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    let before = debian.sh(SNAPSHOT);
    let bring = |version: &str| {
        let [netwright, plugins] = ours(version);
        debian.bring(&[&netwright, &plugins])
    };
    let (newer, older) = (bring("0.1.1"), bring("0.1.0"));
    debian.dpkg(&format!("--install {newer}"));
    let manifest = "/usr/lib/cni/.netwright-replaced/manifest.json";
    debian.sh(&format!(
        "cp {manifest} /run/ && sed -i 's/\"format\": 1/\"format\": 2/' {manifest} && \
         cp {manifest} /run/newer && ! cmp --quiet /run/newer /run/manifest.json"
    ));
    let refusal = "has format 2, and this version reads 1";
    let said = debian.dpkg(&format!("--install {older} || true"));
    assert!(said.contains(refusal), "{said}");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "ours serve: {said}");
    // Nor does it restore anything that it does not know.
    let said = debian.dpkg("--remove netwright-cni-plugins || true");
    assert!(said.contains(refusal), "{said}");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "{said}");
    debian.sh(&format!("cmp {manifest} /run/newer"));
    // Back to the version that wrote it; here it wrote the known format.
    debian.sh(&format!("cp /run/manifest.json {manifest}"));
    debian.dpkg(&format!("--install {newer}"));
    debian.dpkg(&format!("--install {older}"));
    debian.dpkg("--purge netwright netwright-cni-plugins");
    assert_eq!(debian.sh(SNAPSHOT), before);
}

/// Calls a plugin for a container, as a runtime does.
const CALL: &str = r#"
call() {
    CNI_COMMAND=$1 CNI_CONTAINERID=web CNI_NETNS=/run/netns/web CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni \
        /usr/lib/cni/bridge <<'E'
{"cniVersion":"1.0.0","name":"n","type":"bridge","bridge":"br0","isGateway":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.93.0.0/24"}]]}}
E
}
"#;

/// A container that our plugins attached keeps its network, and its state, over a purge. Once our
/// plugins are installed again, they detach it.
#[test]
fn what_is_attached_outlives_a_purge() {
    testkit::require!("full", "root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-attached");
    debian.sh("rm -rf /usr/lib/cni /var/lib/cni");
    let [netwright, plugins] = ours("0.1.0");
    let both = debian.bring(&[&netwright, &plugins]);
    debian.dpkg(&format!("--install {both}"));
    debian.sh(&format!("{CALL} ip netns add web && call ADD"));
    let address = || debian.sh("ip netns exec web ip -brief -4 address show dev eth0");
    let before = address();
    assert!(before.contains(" 10.93.0."), "{before}");
    let said = debian.dpkg("--purge netwright netwright-cni-plugins");
    assert!(said.contains("containers are attached; kept for them: /run/netwright"), "{said}");
    assert!(said.contains("once they are gone: rm -r /run/netwright /var/lib/netwright"), "{said}");
    debian.sh("test ! -e /usr/lib/cni && test ! -e /usr/bin/netwright");
    assert_eq!(address(), before);

    debian.dpkg(&format!("--install {both}"));
    debian.sh(&format!("{CALL} call DEL"));
    let links = debian.sh("ip netns exec web ip -brief link; ip -brief link");
    assert!(links.lines().all(|line| line.starts_with("lo ")), "{links}");
    let said = debian.dpkg("--purge netwright netwright-cni-plugins");
    assert!(!said.contains("containers are attached"), "{said}");
    debian.sh("ip netns del web; test ! -e /run/netwright && test ! -e /var/lib/netwright");
}
