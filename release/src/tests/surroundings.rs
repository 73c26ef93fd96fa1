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
    assert_eq!(debian.sh("cat /usr/lib/cni/vrf"), "#!/usr/lib/cni/netwright\n");
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

/// A network with everything that other plugins leave, and a container on it.
const ATTACH: &str = r#"
mkdir -p /etc/cni/net.d && cat >/etc/cni/net.d/n.conflist <<'E'
{"cniVersion": "1.0.0", "name": "n", "plugins": [
 {"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.93.0.0/24"}]]}},
 {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
E
ip netns add web && netwright add n web --container-id web -p 8080:80
"#;

/// What the kernel has of containers, and what lies on the disk.
const KERNEL: &str = "nft list ruleset; ip -brief link; ip rule; ip netns; \
    ls -d /usr/bin/netwright* /run/netwright* /var/lib/netwright* 2>/dev/null; true";

/// Where containers are attached, each way off is refused before anything is changed, and names
/// them; one of two words detaches them, or leaves them with what removes the rest.
#[test]
fn packages_do_not_go_before_what_is_attached() {
    testkit::require!("root", "program:dpkg-divert", "program:strip", "program:nft");
    let debian = Debian::new("release-attached");
    debian.sh("rm -rf /usr/lib/cni /var/lib/cni /etc/cni /var/lib/netwright");
    let before = debian.sh(KERNEL);
    let [netwright, plugins] = ours("0.1.0");
    let both = debian.bring(&[&netwright, &plugins]);
    let install = || debian.dpkg(&format!("--install {both}"));
    let purge = "--purge netwright netwright-cni-plugins";
    install();
    debian.sh(ATTACH);
    let attached = debian.sh(KERNEL);
    assert!(attached.contains("8080"), "{attached}");
    // Each of the two packages by itself, too.
    for what in ["--remove netwright-cni-plugins", purge, "--force-depends --remove netwright"] {
        let said = debian.dpkg(&format!("{what} || true"));
        assert!(said.contains("cause: n/web/eth0\n"), "{said}");
        assert!(said.contains("or detach them by `netwright gc --all`; "), "{said}");
        assert_eq!(debian.sh(KERNEL), attached, "{what}");
        debian.sh("CNI_COMMAND=VERSION /usr/lib/cni/portmap </dev/null");
    }
    // A node that is thrown away.
    debian.sh("netwright gc --all");
    debian.dpkg(purge);
    assert_eq!(debian.sh(&format!("ip netns del web; rm -r /etc/cni; {KERNEL}")), before);

    install();
    debian.sh(ATTACH);
    let said = debian.sh(&format!("NETWRIGHT_LEAVE_ATTACHED=1 dpkg {purge} 2>&1"));
    assert!(said.contains("n/web/eth0 are attached, and keep their networks; "), "{said}");
    let left = said.lines().find_map(|line| line.strip_prefix("netwright: once they have ended: "));
    debian.sh("test ! -e /usr/lib/cni && test ! -e /usr/bin/netwright");
    debian.sh("ip netns exec web ping -c 1 -W 5 10.93.0.1");
    assert_eq!(debian.sh("nft list ruleset | grep -c 8080"), "1\n", "as was said");
    debian.sh(&format!("ip netns del web; {}; rm -r /etc/cni", left.unwrap()));
    assert_eq!(debian.sh(KERNEL), before);
}
