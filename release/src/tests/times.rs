//! With `--full`: how long a new user waits until a container answers, on a Debian that has a
//! runtime and an image and nothing of ours: with packages, with the archive, with our image.

use std::fmt::Write as _;
use std::time::Instant;

use testkit::real::Debian;
use testkit::{wait_for, wait_until};

use super::booted::{IMAGE, SERVE, bring};
use super::debian::goods;
use crate::archive::{Top, gzip, tar};
use crate::contents;
use crate::goods::Architecture::Aarch64;
use crate::goods::tests::built as stand_in;

const GET: &str = "curl --silent --show-error --retry 50 --retry-connrefused --retry-delay 0 \
                   --retry-max-time 10 http://";

/// The control groups of the machine are read-only in there.
const RUNTIME: &str = "printf '#!/bin/sh\nexec crun --cgroup-manager=disabled \"$@\"\n' >/root/crun \
                       && chmod 755 /root/crun";
const CTR: &str = "ctr run --rm --runc-binary /root/crun --snapshotter native";

/// A stranger at work.
struct Stranger {
    way: &'static str,
    begin: Instant,
    steps: String,
}

impl Stranger {
    fn takes(way: &'static str) -> Self {
        Stranger { way, begin: Instant::now(), steps: String::new() }
    }

    fn does<T>(&mut self, what: &str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        let _ = write!(self.steps, ", {what} {:.1} s", begin.elapsed().as_secs_f64());
        done
    }

    fn leave(self) {
        eprintln!(
            "MEASURED from nothing to a container that answers, by {}: {:.1} s{}",
            self.way,
            self.begin.elapsed().as_secs_f64(),
            self.steps
        );
    }
}

/// podman's container on the network that `setup` wrote, until it answers at its published port.
fn podman_serves(debian: &Debian) {
    debian.sh(&format!(
        "podman run --cgroups disabled --detach --name web --network netwright --publish 8081:80 web sh -c '{SERVE}'"
    ));
    assert_eq!(debian.sh(&format!("{GET}127.0.0.1:8081/")), "hello\n");
}

/// containerd's container on that network, until it answers. `ctr` itself waits for its end.
fn containerd_serves(debian: &Debian) {
    debian.sh(&format!(
        "{CTR} --cni localhost/web:latest other sh -c '{SERVE}' </dev/null >/root/other.log 2>&1 &"
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
    assert_eq!(debian.sh(&format!("{GET}{address}/")), "hello\n");
}

#[test]
fn a_stranger_has_a_container_that_answers_by_each_way() {
    testkit::require!(
        "full",
        "root",
        "program:systemd-nspawn",
        "program:podman",
        "program:containerd",
        "program:crun",
        "program:curl",
        "program:strip",
        "file:/usr/bin/busybox"
    );
    let dir = tempfile::tempdir().unwrap();
    let (texts, built) = goods("0.1.0", &["netwright", "netwrightd"]);
    let top = contents::archive_name(&texts, &built);
    let tree = contents::archive(&texts, &built).unwrap();
    let archive = gzip(&tar(&tree, Top::In(&top), texts.epoch).unwrap()).unwrap();
    let image = contents::image(&texts, &[built, stand_in(Aarch64)]).unwrap();
    let image = image.write(texts.epoch).unwrap();
    let mut prepare = format!("{IMAGE}{}", bring(&dir, &["0.1.0"]));
    for (name, bytes) in [("netwright.tar.gz", archive), ("netwright.oci.tar", image)] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let _ = writeln!(prepare, "cp {} root/root/", path.display());
    }
    let debian = Debian::boot("release-times", &prepare);
    debian.sh("tar -C /root/image -c . | podman import - web && podman ps");
    debian.sh("podman save --quiet --format oci-archive --output /root/web.tar web");
    debian.sh("systemctl start containerd && ctr image import --snapshotter native /root/web.tar");
    debian.sh(RUNTIME);

    let mut stranger = Stranger::takes("packages");
    stranger.does("installed", || debian.sh("apt-get install --yes /root/0.1.0/*.deb 2>&1"));
    stranger.does("set up", || debian.sh("netwright setup --yes 2>&1"));
    stranger.does("container", || podman_serves(&debian));
    stranger.leave();
    debian.sh("podman rm --force --time 0 web");
    debian.sh("apt-get purge --yes netwright netwright-cni-plugins 2>&1");

    let mut stranger = Stranger::takes("archive");
    stranger.does("unpacked", || debian.sh("tar -C /root -xf /root/netwright.tar.gz"));
    stranger.does("set up", || debian.sh(&format!("/root/{top}/bin/netwright setup --yes 2>&1")));
    stranger.does("container", || podman_serves(&debian));
    stranger.leave();
    debian.sh("podman rm --force --time 0 web && netwright setup --undo --yes 2>&1");

    debian.sh("mkdir -p /etc/cni/net.d");
    let mut stranger = Stranger::takes("image");
    stranger.does("imported", || {
        debian.sh("ctr image import --snapshotter native /root/netwright.oci.tar")
    });
    stranger.does("installed", || {
        let mount =
            |path: &str| format!("--mount type=bind,src={path},dst={path},options=rbind:rw");
        let mounts = [mount("/usr/lib/cni"), mount("/etc/cni/net.d")].join(" ");
        debian.sh(&format!(
            "{CTR} {mounts} ghcr.io/netwright/netwright:0.1.0 install /opt/netwright/netwright install \
             --bin-dir /usr/lib/cni </dev/null 2>&1"
        ))
    });
    assert_eq!(debian.sh("cat /usr/lib/cni/bridge"), "#!/usr/lib/cni/netwright\n");
    stranger.does("container", || containerd_serves(&debian));
    stranger.leave();
    debian.sh("ctr task kill --signal KILL other");
    wait_until("its end", || !debian.try_sh("ctr container info other").status.success());
}
