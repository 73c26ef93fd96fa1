//! With `--full`: the machine's Debian, booted by its own systemd in `systemd-nspawn`, as on a
//! user's machine, with its units, its podman and containerd, and the reference's plugins with
//! their socket.

use std::collections::BTreeSet;

use testkit::real::Debian;
use testkit::{require, wait_for, wait_until};

use crate::system::{NETWRIGHT, SERVE, netwrightd};

/// Our executables, and an image for containers.
const PREPARE: &str = r"
mkdir -p root/root/dist && cp $NETWRIGHT $NETWRIGHTD root/root/dist/
mkdir -p root/root/image/bin && cp /usr/bin/busybox root/root/image/bin/busybox
for name in sh httpd mkdir hostname; do ln -s busybox root/root/image/bin/$name; done
";

/// Everything that setup could leave, one thing in each line.
const SNAPSHOT: &str = r"
find /etc /usr/local /opt /usr/lib/cni /var/lib/netwright /var/lib/cni /run/netwright /run/cni -xdev \
    -printf '%p %y %m %U:%G %l\n' 2>/dev/null | sort
find /etc /usr/local /usr/lib/cni -xdev -type f -print0 2>/dev/null | sort -z | xargs -0 md5sum
nft list ruleset
ip -brief link | cut -d' ' -f1
systemctl list-unit-files --no-legend | sort
systemctl list-units --all --plain --no-legend 'netwright*' 'cni*'
true
";

#[test]
fn debian_is_set_up_and_is_as_before_afterwards() {
    require!(
        "full",
        "root",
        "program:systemd-nspawn",
        "program:podman",
        "program:containerd",
        "program:crun",
        "program:curl",
        "file:/usr/bin/busybox",
        "file:/lib/systemd/system/cni-dhcp.socket"
    );
    let daemon = netwrightd();
    let variables = format!("NETWRIGHT={NETWRIGHT}; NETWRIGHTD={};", daemon.display());
    let debian = Debian::boot("setup-booted", &format!("{variables} {PREPARE}"));
    debian.sh(
        "systemctl enable --now cni-dhcp.socket && tar -C /root/image -c . | podman import - web",
    );
    // These are podman's own folders, and the image for containerd.
    debian.sh("podman ps && podman save --quiet --format oci-archive --output /root/web.tar web");
    debian.sh("systemctl start containerd && ctr image import --snapshotter native /root/web.tar");
    let before = debian.sh(SNAPSHOT);

    let said = debian.sh("/root/dist/netwright setup --yes 2>&1");
    eprintln!("{said}");
    assert!(said.contains("gateway 10.63.0.1: answers after"), "{said}");
    let said = debian.sh("netwright agent status --wait");
    for service in ["collect  ready", "dhcp     ready", "repair   ready"] {
        assert!(said.contains(service), "{said}");
    }
    assert!(debian.sh("netwright setup --yes 2>&1").contains("nothing to do"));
    debian.sh(&format!(
        "podman run --cgroups disabled --detach --name web --hostname web --network netwright --publish 8081:80 web sh -c '{SERVE}'"
    ));
    let page = debian.sh("curl --silent --show-error --retry 50 --retry-connrefused --retry-delay 0 --retry-max-time 10 http://127.0.0.1:8081/");
    assert_eq!(page, "hello from web\n");
    // containerd calls the same plugins for the same network. `ctr` itself waits for the end, and
    // then detaches the container. The machine's cgroups are read-only in there.
    debian.sh("printf '#!/bin/sh\nexec crun --cgroup-manager=disabled \"$@\"\n' >/root/crun && chmod 755 /root/crun");
    debian.sh(&format!(
        "ctr run --rm --cni --runc-binary /root/crun --snapshotter native localhost/web:latest other sh -c '{SERVE}' >/root/other.log 2>&1 &"
    ));
    let links = wait_for("containerd's container", || {
        let said = debian.try_sh("ctr task exec --exec-id $$ other /bin/busybox ip -o -4 address");
        let links = String::from_utf8_lossy(&said.stdout).into_owned();
        let log = debian.sh("cat /root/other.log");
        assert!(!log.contains("ctr: "), "{log}");
        links.contains("eth0").then_some(links)
    });
    let address = links.split_whitespace().find_map(|word| word.strip_suffix("/16"));
    let address = address.unwrap_or_else(|| panic!("{links}"));
    let page = debian.sh(&format!("curl --silent --show-error --retry 50 --retry-connrefused --retry-delay 0 --retry-max-time 10 http://{address}/"));
    assert!(page.starts_with("hello from "), "{page}");
    debian.sh("mkdir /etc/netwright/netwrightd.d && printf '[collect]\\ngrace = \"9s\"\\n' >/etc/netwright/netwrightd.d/x.toml");
    assert_eq!(debian.sh("netwright agent reload"), "tells collect: grace\n");
    debian.sh("rm -r /etc/netwright/netwrightd.d && netwright agent reload && podman rm --force --time 0 web");
    debian.sh("ctr task kill --signal KILL other");
    wait_until("its end", || !debian.try_sh("ctr container info other").status.success());

    let said = debian.sh("netwright setup --undo --yes 2>&1");
    eprintln!("{said}");
    let after = debian.sh(SNAPSHOT);
    // These are what podman and host-local keep of their containers, as with the reference.
    let lines = |text: &str| -> BTreeSet<String> {
        text.lines().filter(|line| !line.contains("/var/lib/cni")).map(str::to_owned).collect()
    };
    let (before, after) = (lines(&before), lines(&after));
    let new: Vec<&String> = after.difference(&before).collect();
    let gone: Vec<&String> = before.difference(&after).collect();
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}\ngone: {gone:#?}");
}
