//! With `--full`: on a Debian that has no more than it needs to boot. Other tests of packages run on a
//! copy of this machine's Debian, which has everything that any test uses.

use testkit::real::Debian;
use testkit::{Lab, Place as _, wait_until};

use super::booted::{SNAPSHOT, assert_as_before, bring};
use super::debian::packages;
use crate::goods::tests::texts;

/// What the container serves, and with what. The program is static.
const SERVED: &str = "
mkdir root/root/www && echo hello >root/root/www/index.html && cp /usr/bin/busybox root/root/
";

const SERVE: &str = "netwright run --publish 8081:80 -- /root/busybox httpd -f -p 80 -h /root/www \
                     </dev/null >/run/server.log 2>&1 & echo $! >/run/server";

const GET: &str = "/root/busybox wget -q -O - http://127.0.0.1:8081/";

#[test]
fn an_empty_debian_is_served_and_is_empty_again() {
    testkit::require!(
        "full",
        "root",
        "program:systemd-nspawn",
        "program:strip",
        "file:/usr/bin/busybox",
        "empty-debian"
    );
    let dir = tempfile::tempdir().unwrap();
    let prepare = format!("{SERVED}{}", bring(&dir, &["0.1.0", "0.1.1"]));
    let debian = Debian::boot_empty("release-empty", &prepare);
    debian.sh("test ! -e /usr/lib/cni && test ! -e /etc/cni && test ! -e /usr/sbin/iptables");
    let before = debian.sh(SNAPSHOT);
    let install = |version: &str| {
        let packages = format!("/root/{version}/*.deb");
        debian.sh(&format!("apt-get install --yes --allow-downgrades {packages} 2>&1"));
    };
    let answers = |what: &str| {
        wait_until(&format!("a container to answer, {what}"), || {
            debian.try_sh(GET).stdout == b"hello\n"
        });
    };

    install("0.1.0");
    let said = debian.sh("netwright setup --yes 2>&1");
    assert!(said.contains("gateway 10.63.0.1: answers after"), "{said}");
    debian.sh("netwright agent status --wait");
    debian.sh(SERVE);
    answers("attached");
    for version in ["0.1.1", "0.1.0"] {
        install(version);
        debian.sh("netwright agent status --wait");
        answers(version);
    }
    debian.sh("kill $(cat /run/server)");
    wait_until("its network to go", || debian.sh("netwright list") == "no attachments\n");
    debian.sh("apt-get purge --yes netwright netwright-cni-plugins 2>&1");
    // A runtime may watch the folder of networks that setup made, so that stays.
    debian.sh("rmdir --parents /etc/cni/net.d 2>/dev/null; true");
    assert_as_before(&before, &debian.sh(SNAPSHOT));
}

/// Packs that Debian, without sources of packages: nothing is fetched. piuparts does not write sources
/// of its own only where it begins with an archive.
const OFFLINE: &str = "
mkdir copies
tar -C $lower --exclude ./etc/apt/sources.list --exclude './etc/apt/sources.list.d/*' \
    -I 'gzip -1' -cf base.tar.gz .
. $lower/etc/os-release && echo $VERSION_CODENAME
";

/// For a program that hangs.
const DEADLINE_S: &str = "900";

/// Debian's own test of packages: it installs and purges them in a chroot, and compares all files.
#[test]
fn piuparts_finds_nothing_left() {
    testkit::require!("full", "root", "program:piuparts", "program:strip", "empty-debian");
    let lab = Lab::new("release-piuparts");
    let dir = lab.dir().display();
    let lower = testkit::reference::empty_debian().unwrap();
    let suite = lab.sh(&format!("set -e; cd {dir}; lower={}\n{OFFLINE}", lower.display()));
    let mut command = lab.command("timeout");
    command.args([DEADLINE_S, "piuparts", "--defaults=debian", "--distribution", suite.trim()]);
    command.args(["--keep-sources-list", "--no-upgrade-test", "--log-level=info"]);
    command.arg("--basetgz").arg(lab.dir().join("base.tar.gz"));
    command.arg("--tmpdir").arg(lab.dir().join("copies"));
    for package in packages("0.1.0", &["netwright", "netwrightd"]) {
        let path = lab.dir().join(package.file_name());
        std::fs::write(&path, package.write(texts().epoch).unwrap()).unwrap();
        command.arg(path);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && said.contains("PASS: All tests."), "{said}");
}
