//! With `--full`: what a stranger types on a Debian that systemd has booted, from nothing to a
//! container that is reached, over an upgrade, and back.

use std::fmt::Write as _;

use testkit::real::Debian;
use testkit::wait_until;

use super::debian::packages;
use crate::goods::tests::texts;

/// An image for containers: a page on port 80. The machine on which tests run may refuse to start
/// services of packages; this one does not.
const IMAGE: &str = r#"
rm -f root/usr/sbin/policy-rc.d
mkdir -p root/root/image/bin && cp /usr/bin/busybox root/root/image/bin/busybox
for name in sh httpd mkdir; do ln -s busybox root/root/image/bin/$name; done
"#;

/// What the container runs.
const SERVE: &str = "mkdir /www && echo hello >/www/index.html && httpd -f -p 80 -h /www";

/// Attaches and detaches until it is told to stop, and counts.
const LOAD: &str = "
until [ -e /run/stop ]; do
    netwright run -- true </dev/null >/dev/null 2>>/run/errors || echo failed >>/run/failed
    echo called >>/run/called
done
echo ended >>/run/ended
";

/// Everything that packages and setup could leave, a line each.
const SNAPSHOT: &str = r"
find /etc /usr/local /usr/bin /usr/lib/cni /usr/lib/systemd /usr/share/doc /opt /var/lib/netwright \
    /run/netwright -xdev ! -path '/etc/apt/*' -printf '%p %y %m %U:%G %l\n' 2>/dev/null | sort
find /usr/lib/cni -xdev -type f -print0 | sort -z | xargs -0 md5sum
dpkg-divert --list '*cni*'
nft list ruleset
ip -brief link | cut -d' ' -f1
systemctl list-unit-files --no-legend | sort
systemctl list-units --all --plain --no-legend 'netwright*' 'cni*'
true
";

/// Removes what the Go plugins leave that served the load while ours were away: two empty chains.
const WITHOUT_GO_CHAINS: &str = r#"
for family in ip ip6; do
    nft list table $family filter >/dev/null 2>&1 || continue
    nft "delete chain $family filter CNI-FORWARD; delete chain $family filter CNI-ADMIN
        delete table $family filter" || exit 1
done
"#;

const GET: &str = "curl --silent --show-error --retry 50 --retry-connrefused --retry-delay 0 \
                   --retry-max-time 10 http://127.0.0.1:8081/";

#[test]
fn a_node_is_served_by_packages_and_is_as_before_afterwards() {
    testkit::require!(
        "full",
        "root",
        "program:systemd-nspawn",
        "program:podman",
        "program:crun",
        "program:curl",
        "program:strip",
        "file:/usr/bin/busybox"
    );
    let dir = tempfile::tempdir().unwrap();
    let mut prepare = format!("{IMAGE}mkdir root/root/0.1.0 root/root/0.1.1\n");
    for version in ["0.1.0", "0.1.1"] {
        for package in packages(version, &["netwright", "netwrightd"]) {
            let path = dir.path().join(package.file_name());
            std::fs::write(&path, package.write(texts().epoch).unwrap()).unwrap();
            let _ = writeln!(prepare, "cp {} root/root/{version}/", path.display());
        }
    }
    let debian = Debian::boot("release-booted", &prepare);
    debian.sh("tar -C /root/image -c . | podman import - web && podman ps");
    let before = debian.sh(SNAPSHOT);

    debian.sh("apt-get install --yes /root/0.1.0/*.deb 2>&1");
    assert_eq!(debian.sh("systemctl is-enabled netwright.target; true"), "disabled\n");
    let said = debian.sh("netwright setup --yes 2>&1");
    assert!(said.contains("gateway 10.63.0.1: answers after"), "{said}");
    assert!(!said.contains("/usr/local/bin"), "{said}");
    debian.sh("netwright agent status --wait");
    debian.sh(&format!(
        "podman run --cgroups disabled --detach --name web --network netwright --publish 8081:80 web sh -c '{SERVE}'"
    ));
    assert_eq!(debian.sh(GET), "hello\n");

    // An upgrade and the way back, under load and under a container.
    debian.sh(&format!(
        "cat >/root/load <<'E'\n{LOAD}E\nfor n in 1 2; do sh /root/load >/dev/null 2>&1 & done"
    ));
    let started =
        debian.sh("systemctl show --property=ExecMainStartTimestampMonotonic netwrightd@repair");
    for version in ["0.1.1", "0.1.0"] {
        debian.sh(&format!("apt-get install --yes --allow-downgrades /root/{version}/*.deb 2>&1"));
        debian.sh("netwright agent status --wait");
        assert_eq!(debian.sh(GET), "hello\n");
    }
    let now =
        debian.sh("systemctl show --property=ExecMainStartTimestampMonotonic netwrightd@repair");
    assert_ne!(now, started, "the service was restarted");
    // The plugins go, the container stays; a second installation finds it.
    debian.sh("apt-get remove --yes netwright-cni-plugins 2>&1");
    assert_eq!(debian.sh(GET), "hello\n");
    debian.sh("apt-get install --yes /root/0.1.0/*.deb 2>&1 && touch /run/stop");
    let count = |file: &str| debian.sh(&format!("cat /run/{file} 2>/dev/null | wc -l"));
    wait_until("the load to end", || count("ended") == "2\n");
    assert_eq!(count("failed"), "0\n", "{}", debian.sh("cat /run/errors"));
    eprintln!("MEASURED attachments while packages came and went: {}", count("called").trim());

    debian.sh("podman rm --force --time 0 web");
    debian.sh(WITHOUT_GO_CHAINS);
    debian.sh("apt-get purge --yes netwright netwright-cni-plugins 2>&1");
    let after = debian.sh(SNAPSHOT);
    let differs: Vec<&str> = before.lines().filter(|line| !after.contains(line)).collect();
    let new: Vec<&str> = after.lines().filter(|line| !before.contains(line)).collect();
    assert!(differs.is_empty() && new.is_empty(), "gone: {differs:#?}\nnew: {new:#?}");
}
