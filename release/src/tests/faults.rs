//! Faults that stop the scripts of Debian's packages: dpkg goes on once the cause is gone, no
//! plugin call fails meanwhile, and nothing is left.

use super::debian::{BRIDGE, Debian, SNAPSHOT, go, ours};

/// A `dpkg-divert` that kills the script that calls it, after the call whose number is in
/// `/run/fault`. A list is no change, and does not count.
const KILLER: &str = r#"
mkdir -p /usr/local/sbin && cat >/usr/local/sbin/dpkg-divert <<'E'
#!/bin/sh
/usr/bin/dpkg-divert "$@" || exit
[ "$1" != --list ] || exit 0
echo called >>/run/diversions
[ "$(wc -l </run/diversions)" != "$(cat /run/fault)" ] || kill -9 $PPID
E
chmod 755 /usr/local/sbin/dpkg-divert
"#;

/// With `--full` it is killed at more steps.
#[test]
fn a_script_that_is_killed_is_finished_by_dpkg() {
    testkit::require!("root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-killed");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    // A file of the administrator's, and a link that some other tool manages.
    debian.sh("cd /usr/lib/cni && echo mine >tuning && ln -s /etc/alternatives/cni-vrf vrf");
    let before = debian.sh(SNAPSHOT);
    debian.sh(KILLER);
    let [netwright, plugins] = ours("0.1.0");
    debian.dpkg(&format!("--install {}", debian.bring(&[&netwright])));
    let names: usize = debian.sh("netwright --list | wc -l").trim().parse().unwrap();
    let calls = debian.calls("/usr/lib/cni/bridge");
    debian.wait_for_calls();
    let run = |fault: usize, what: &str| {
        debian.sh(&format!(": >/run/diversions; echo {fault} >/run/fault"));
        let dpkg = "LC_ALL=C dpkg --force-unsafe-io --no-triggers";
        debian.sh(&format!("PATH=/usr/local/sbin:$PATH {dpkg} {what} && echo done || true"))
    };
    // Killed while it looks for clashes, and while it adds diversions.
    let said = run(1, &format!("--install {}", debian.bring(&[&plugins])));
    assert!(said.contains("(Killed)"), "{said}");
    let some = if testkit::feature::available("full") { usize::MAX } else { 1 };
    for fault in [names + 1, names, 3 * names / 2, 2 * names].into_iter().take(some) {
        let said = run(fault, "--configure netwright-cni-plugins");
        assert!(said.contains("(Killed)"), "{fault}: {said}");
        assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "{fault}: nothing was switched");
    }
    let said = run(0, "--configure --pending");
    assert!(said.ends_with("done\n"), "{said}");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    // Killed while it removes diversions: dpkg has the package configured again.
    for fault in [2, 1, names].into_iter().take(some) {
        let said = run(fault, "--remove netwright-cni-plugins");
        assert!(!said.ends_with("done\n"), "{fault}: {said}");
        assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "{fault}: {said}");
    }
    let said = run(0, "--remove netwright-cni-plugins");
    assert!(said.ends_with("done\n"), "{said}");
    debian.dpkg("--purge netwright");
    debian.wait_for_calls();
    debian.sh("touch /run/stop");
    drop(calls);
    assert_eq!(debian.count("failed"), 0, "{}", debian.sh("cat /run/errors"));
    assert_eq!(debian.sh(SNAPSHOT), before);
}

/// A `netwright` that is killed at a call that changes a folder, where `/run/fault` has the number of
/// the call; once.
pub(super) const KILLED: &str = r#"
mkdir -p /usr/local/sbin && cat >/usr/local/sbin/netwright <<'E'
#!/bin/sh
[ -e /run/fault ] && [ "$1" != --list ] || exec /usr/bin/netwright "$@"
number=$(cat /run/fault) && rm /run/fault
calls=rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat
exec strace -f -o /dev/null -e trace=$calls -e inject=$calls:signal=KILL:when=$number /usr/bin/netwright "$@"
E
chmod 755 /usr/local/sbin/netwright
"#;

#[test]
fn a_command_that_is_killed_within_a_script_is_finished_by_dpkg() {
    testkit::require!(
        "full",
        "root",
        "ptrace",
        "program:dpkg-divert",
        "program:strace",
        "program:strip"
    );
    let debian = Debian::new("release-command");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    let before = debian.sh(SNAPSHOT);
    debian.sh(KILLED);
    let [netwright, plugins] = ours("0.1.0");
    debian.dpkg(&format!("--install {}", debian.bring(&[&netwright])));
    let package = debian.bring(&[&plugins]);
    let calls = debian.calls("/usr/lib/cni/bridge");
    debian.wait_for_calls();
    let run = |fault: usize, what: &str| {
        debian.sh(&format!("echo {fault} >/run/fault"));
        let dpkg = "LC_ALL=C dpkg --force-unsafe-io --no-triggers";
        let said =
            debian.sh(&format!("PATH=/usr/local/sbin:$PATH {dpkg} {what} && echo done || true"));
        assert!(!said.ends_with("done\n"), "{fault}: it was not killed: {said}");
        debian.sh("test ! -e /run/fault");
    };
    for fault in [1, 2, 5, 20] {
        run(fault, &format!("--install {package}"));
        let said = debian.dpkg("--configure --pending && echo done");
        assert!(said.ends_with("done\n"), "{fault}: {said}");
        assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "{fault}");
        // dpkg has the package configured again.
        run(fault, "--remove netwright-cni-plugins");
        assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "{fault}");
        debian.dpkg("--remove netwright-cni-plugins");
        assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "{fault}");
    }
    debian.dpkg("--purge netwright netwright-cni-plugins");
    debian.wait_for_calls();
    debian.sh("touch /run/stop");
    drop(calls);
    assert_eq!(debian.count("failed"), 0, "{}", debian.sh("cat /run/errors"));
    assert_eq!(debian.sh(SNAPSHOT), before);
}

/// However many files still have room, the installation either completes or changes nothing that
/// runtimes call. A removal without enough room leaves our plugins.
#[test]
fn a_disk_that_is_full_at_any_step_leaves_plugins_that_serve() {
    testkit::require!("full", "root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-full");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    let before = debian.sh(SNAPSHOT);
    let [netwright, plugins] = ours("0.1.0");
    debian.dpkg(&format!("--install {}", debian.bring(&[&netwright])));
    let package = debian.bring(&[&plugins]);
    debian
        .sh("cp -a /usr/lib/cni /run/cni && mount -t tmpfs -o nr_inodes=6 tmpfs /usr/lib/cni && \
         cp -a /run/cni/. /usr/lib/cni/");
    debian.dpkg(&format!("--install {package} || true"));
    let mut refused = 0;
    let room = (8..200).step_by(3).find(|room| {
        debian.sh(&format!("mount -o remount,nr_inodes={room} /usr/lib/cni"));
        let said = debian.dpkg("--configure --pending && echo done || true");
        if said.ends_with("done\n") {
            return true;
        }
        assert!(said.contains("No space left on device"), "{room}: {said}");
        assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "{room}: {said}");
        refused += 1;
        false
    });
    assert!(room.is_some() && 3 < refused, "{room:?} {refused}");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    debian.sh("n=0; while ( : >/usr/lib/cni/fill$n ) 2>/dev/null; do n=$((n + 1)); done");
    let said = debian.dpkg("--remove netwright-cni-plugins || true");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "{said}");
    debian.sh("rm /usr/lib/cni/fill* && mount -o remount,nr_inodes=300 /usr/lib/cni");
    debian.dpkg("--configure --pending");
    debian.dpkg("--remove netwright-cni-plugins");
    assert!(debian.sh(BRIDGE).ends_with("go 8\n"));
    debian.sh("umount /usr/lib/cni");

    // Where only our own state has no room, the plugins are installed all the same.
    debian.sh(
        "mkdir -p /var/lib/netwright && mount -t tmpfs -o nr_inodes=1 tmpfs /var/lib/netwright",
    );
    let said = debian.dpkg(&format!("--install {package}"));
    assert!(said.contains("nothing will notice"), "{said}");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    debian.sh("umount /var/lib/netwright");
    debian.dpkg("--purge netwright netwright-cni-plugins");
    assert_eq!(debian.sh(SNAPSHOT), before);
}

#[test]
fn a_folder_that_cannot_be_written_stops_the_installation_until_it_can() {
    testkit::require!("root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-unwritable");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    let before = debian.sh(SNAPSHOT);
    let [netwright, plugins] = ours("0.1.0");
    let both = debian.bring(&[&netwright, &plugins]);
    debian.sh("mount --bind /usr/lib/cni /usr/lib/cni && mount -o remount,bind,ro /usr/lib/cni");
    let said = debian.dpkg(&format!("--install {both} || true"));
    assert!(said.contains("/usr/lib/cni cannot be written"), "{said}");
    assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "nothing was switched");
    assert!(!debian.sh("dpkg-divert --list").contains("netwright"), "and nothing is diverted");
    // A disk that becomes full on the way.
    debian.sh("umount /usr/lib/cni && cp -a /usr/lib/cni /run/cni && \
         mount -t tmpfs -o nr_inodes=12 tmpfs /usr/lib/cni && cp -a /run/cni/. /usr/lib/cni/");
    let said = debian.dpkg("--configure --pending || true");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "everything was put back");
    debian.sh("umount /usr/lib/cni");
    debian.dpkg("--configure --pending");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));

    debian.dpkg("--remove netwright-cni-plugins");
    debian.sh("mkdir -p /run/netwright/owners/somebody");
    let said = debian.dpkg("--purge netwright");
    assert!(said.contains("containers are attached; kept for them: /run/netwright"), "{said}");
    debian.sh("rm -r /run/netwright && rm -rf /var/lib/netwright");
    assert_eq!(debian.sh(SNAPSHOT), before);
}
