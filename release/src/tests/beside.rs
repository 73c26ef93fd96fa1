//! With `--full`: our package beside Debian's real Go plugins, on a Debian that systemd has booted,
//! with twenty containers of podman. Each package's plugins detach what the other's attached.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use testkit::real::Debian;

use super::booted::{IMAGE, SERVE, SNAPSHOT, assert_as_before, bring, needs_podman};
use super::said;
use crate::deb::Package;
use crate::goods::tests::texts;
use crate::tree::Tree;

/// Debian's package of the Go plugins.
const THEIRS: &str = "containernetworking-plugins";

/// Where dpkg keeps what packages say of themselves.
const INFO: &str = "/var/lib/dpkg/info";

/// The network of the containers: what Debian's plugins need no packet filter for.
const NETWORK: &str = r#"{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"bridge","bridge":"web0","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.92.0.0/24"}]]}}]}"#;

/// Returns this machine's package of the Go plugins with another version.
fn theirs(version: &str) -> Package {
    let mut tree = Tree::default();
    for path in said("dpkg", &["--listfiles", THEIRS]).lines().map(Path::new) {
        // An administrator may have had documents left out.
        let Ok(found) = path.symlink_metadata() else { continue };
        let name = path.strip_prefix("/").unwrap().to_str().unwrap();
        // `/lib` is listed, and is a link to `/usr/lib`.
        if found.is_symlink() && path.is_dir() {
            continue;
        }
        if found.is_symlink() {
            let target = std::fs::read_link(path).unwrap();
            tree.link(name, target.to_str().unwrap()).unwrap();
        } else if found.is_file() {
            let mode = found.permissions().mode() & 0o7777;
            tree.file(name, mode, std::fs::read(path).unwrap()).unwrap();
        }
    }
    let mut scripts = Vec::new();
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        if let Ok(text) = std::fs::read_to_string(format!("{INFO}/{THEIRS}.{script}")) {
            scripts.push((script, text));
        }
    }
    Package {
        name: THEIRS,
        version: version.to_owned(),
        architecture: "amd64",
        fields: vec![
            ("Maintainer", "Somebody <somebody@example.com>".to_owned()),
            ("Provides", "container-network-stack (= 1)".to_owned()),
        ],
        summary: "Go's plugins",
        description: "As Debian has them.",
        scripts,
        tree,
    }
}

/// Containers of podman, each with a number in its name.
struct Containers<'d>(&'d Debian);

impl Containers<'_> {
    fn attach(&self, numbers: &str) {
        self.0.sh(&format!(
            "set -e; for n in $(seq {numbers}); do podman run --cgroups disabled --detach --name c$n \
             --network web web sh -c '{SERVE}'; done"
        ));
    }

    #[track_caller]
    fn detach(&self, numbers: &str) {
        let said =
            self.0.sh(&format!("podman rm --force --time 0 $(seq --format c%g {numbers}) 2>&1"));
        // podman names what its plugins refuse, and goes on.
        assert!(!said.contains("rror"), "{said}");
    }

    /// Fails unless each container that runs answers.
    #[track_caller]
    fn answer(&self, count: usize) {
        let said = self.0.sh(
            "for id in $(podman ps --quiet); do
                 address=$(podman inspect --format '{{.NetworkSettings.Networks.web.IPAddress}}' $id)
                 curl --silent --show-error --retry 50 --retry-connrefused --retry-delay 0 \
                      --retry-max-time 10 http://$address/
             done",
        );
        assert_eq!(said, "hello\n".repeat(count));
    }
}

#[test]
fn twenty_containers_change_hands_between_debians_plugins_and_ours() {
    testkit::require!("full", "file:/var/lib/dpkg/info/containernetworking-plugins.list");
    needs_podman!();
    let dir = tempfile::tempdir().unwrap();
    let mut prepare = format!("{IMAGE}{}", bring(&dir, &["0.1.0"]));
    for version in ["98", "99"] {
        let path = dir.path().join(format!("theirs-{version}.deb"));
        std::fs::write(&path, theirs(version).write(texts().epoch).unwrap()).unwrap();
        prepare.push_str(&format!("cp {} root/root/\n", path.display()));
    }
    let debian = Debian::boot("release-beside", &prepare);
    let containers = Containers(&debian);
    debian.sh("dpkg --install /root/theirs-98.deb 2>&1");
    debian.sh(&format!("mkdir -p /etc/cni/net.d && echo '{NETWORK}' >/etc/cni/net.d/web.conflist"));
    debian.sh("tar -C /root/image -c . | podman import - web && podman ps");
    let before = debian.sh(SNAPSHOT);
    let ours =
        || debian.sh("head -c 50 /usr/lib/cni/bridge").starts_with("#!/usr/lib/cni/netwright\n");
    let install = || debian.sh("apt-get install --yes /root/0.1.0/*.deb 2>&1");

    containers.attach("1 20");
    containers.answer(20);
    install();
    assert!(ours());
    containers.answer(20);
    containers.detach("1 10");
    containers.attach("21 30");
    containers.answer(20);
    // Their package is upgraded beneath ours.
    debian.sh("dpkg --install /root/theirs-99.deb 2>&1");
    assert!(ours());
    containers.answer(20);

    // Debian's plugins serve again, and detach what both packages' plugins attached.
    let refused =
        debian.sh("apt-get remove --yes netwright-cni-plugins 2>&1 && echo removed; true");
    assert!(refused.contains("containers are still attached") && ours(), "{refused}");
    debian.sh("NETWRIGHT_LEAVE_ATTACHED=1 apt-get remove --yes netwright-cni-plugins 2>&1");
    assert!(!ours());
    containers.answer(20);
    containers.detach("11 15");
    containers.detach("21 25");
    containers.attach("31 35");
    containers.answer(15);
    // And ours.
    install();
    for numbers in ["16 20", "26 30", "31 35"] {
        containers.detach(numbers);
    }
    assert_eq!(debian.sh("ls /var/lib/cni/networks/web | grep -c '^10' || true"), "0\n");
    // What theirs detached is still recorded by ours: a purge would keep its state for that.
    debian.sh("netwright gc web --all");
    debian.sh("apt-get purge --yes netwright netwright-cni-plugins 2>&1");
    debian.sh("ip link del web0 2>/dev/null; true");
    assert_as_before(&before, &debian.sh(SNAPSHOT));

    // Theirs goes first, and podman stays: our package has what it asks for. Then ours goes.
    install();
    debian.sh(&format!("apt-get purge --yes {THEIRS} 2>&1"));
    assert!(ours());
    containers.attach("1 1");
    containers.answer(1);
    containers.detach("1 1");
    debian.sh("dpkg --purge --force-depends netwright-cni-plugins netwright 2>&1");
    debian.sh("test ! -e /usr/lib/cni && test ! -e /var/lib/netwright && test ! -e /run/netwright");
}
