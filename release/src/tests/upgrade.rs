//! With `--full`: an upgrade under systemd that cannot be finished at once.

use testkit::real::Debian;

use super::booted::bring;

const DROP_IN: &str = "/etc/systemd/system/netwrightd@repair.service.d";

/// Programs that do their work and then kill the script that called them.
const KILLERS: &str = r#"
mkdir -p /usr/local/sbin && cd /usr/local/sbin
printf '#!/bin/sh\n/usr/bin/systemctl "$@"\n[ "$1" != restart ] || kill -9 $PPID\n' >systemctl
printf '#!/bin/sh\n/usr/bin/netwright "$@"\nkill -9 $PPID\n' >netwright
chmod 755 systemctl netwright
"#;

#[test]
fn an_upgrade_that_stops_is_said_and_finished() {
    testkit::require!("full", "root", "program:systemd-nspawn", "program:strip");
    let dir = tempfile::tempdir().unwrap();
    let prepare = format!("rm -f root/usr/sbin/policy-rc.d\n{}", bring(&dir, &["0.1.0", "0.1.1"]));
    let debian = Debian::boot("release-upgrade", &prepare);
    debian.sh("dpkg --install /root/0.1.0/*.deb 2>&1 && netwright setup --yes 2>&1");
    debian.sh("netwright agent status --wait");
    let versions = || {
        debian.sh("dpkg-query --show --showformat='${Version} ${db:Status-Status}\n' \
                   netwright netwright-cni-plugins")
    };
    assert_eq!(versions(), "0.1.0-1 installed\n0.1.0-1 installed\n");

    // A service that does not start with the new version is named, again and again, and the others
    // run.
    debian.sh(&format!(
        "mkdir {DROP_IN} && printf '[Service]\nExecStartPre=/bin/false\n' >{DROP_IN}/x.conf"
    ));
    let refusal = "did not start with this version: netwrightd@repair.service";
    for what in ["--install /root/0.1.1/*.deb", "--configure netwright"] {
        let said = debian.sh(&format!("dpkg {what} 2>&1 && echo done || true"));
        assert!(said.contains(refusal) && !said.ends_with("done\n"), "{said}");
    }
    let said = debian.sh("netwright agent status; true");
    assert!(said.contains("collect  ready") && !said.contains("repair   ready"), "{said}");
    debian.sh("CNI_COMMAND=VERSION /usr/lib/cni/bridge </dev/null");
    debian.sh(&format!("rm -r {DROP_IN} && dpkg --configure --pending 2>&1"));
    debian.sh("netwright agent status --wait");
    assert_eq!(versions(), "0.1.1-1 installed\n0.1.1-1 installed\n");

    // The script of the executables' package is killed when it has restarted one service; and when
    // it has undone the setup.
    debian.sh(KILLERS);
    let killed = |what: &str| {
        let said = debian.sh(&format!(
            "LC_ALL=C PATH=/usr/local/sbin:$PATH dpkg {what} 2>&1 && echo done || true"
        ));
        assert!(said.contains("(Killed)") && !said.ends_with("done\n"), "{what}: {said}");
    };
    killed("--install /root/0.1.0/netwright_*.deb");
    debian.sh("dpkg --install /root/0.1.0/*.deb 2>&1");
    debian.sh("netwright agent status --wait");
    assert_eq!(versions(), "0.1.0-1 installed\n0.1.0-1 installed\n");
    debian.sh("dpkg --remove netwright-cni-plugins 2>&1");
    killed("--remove netwright");
    debian.sh("rm /usr/local/sbin/netwright /usr/local/sbin/systemctl");
    debian.sh("dpkg --purge netwright netwright-cni-plugins 2>&1");
    debian
        .sh("test ! -e /etc/netwright && test ! -e /var/lib/netwright && test ! -e /run/netwright");
    let units = debian.sh("systemctl list-units --all --plain --no-legend 'netwright*'; true");
    assert_eq!(units, "");
}
