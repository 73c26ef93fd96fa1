//! With `--full`: on a Debian that has no more than it needs to boot. Other tests of packages run on a
//! copy of this machine's Debian, which has everything that any test uses.

use testkit::real::Debian;
use testkit::wait_until;

use super::booted::{SNAPSHOT, assert_as_before, bring};

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
