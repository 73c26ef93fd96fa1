//! What a new user types on a Debian that systemd has booted: from nothing to a container that
//! answers, and back. With `--full` also upgrades, while other containers come and go.

use std::fmt::Write as _;
use std::time::Instant;

use testkit::real::Debian;
use testkit::wait_until;

use super::debian::packages;
use crate::goods::tests::texts;

/// Skips a test on a machine that cannot boot its Debian, or lacks what [`BootedDebian`] uses.
macro_rules! needs_podman {
    () => {
        testkit::require!(
            "root",
            "program:systemd-nspawn",
            "program:podman",
            "program:crun",
            "program:curl",
            "program:strip",
            "file:/usr/bin/busybox",
            "file:/usr/lib/cni/bridge"
        );
    };
}

pub(super) use needs_podman;

/// An image for containers: a page on port 80. The machine on which tests run may refuse to start
/// services of packages; this one does not.
pub(super) const IMAGE: &str = r#"
rm -f root/usr/sbin/policy-rc.d
mkdir -p root/root/image/bin && cp /usr/bin/busybox root/root/image/bin/busybox
for name in sh httpd mkdir; do ln -s busybox root/root/image/bin/$name; done
"#;

/// What the container runs.
pub(super) const SERVE: &str =
    "mkdir /www && echo hello >/www/index.html && httpd -f -p 80 -h /www";

/// Everything that packages and setup could leave, a line each.
pub(super) const SNAPSHOT: &str = r"
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

/// Fails unless two snapshots are equal.
#[track_caller]
pub(super) fn assert_as_before(before: &str, after: &str) {
    let differs: Vec<&str> = before.lines().filter(|line| !after.contains(line)).collect();
    let new: Vec<&str> = after.lines().filter(|line| !before.contains(line)).collect();
    assert!(differs.is_empty() && new.is_empty(), "gone: {differs:#?}\nnew: {new:#?}");
}

/// Puts our packages of these versions into folders of the machine that will boot: the shell script
/// that does it. The files are in `dir` before.
pub(super) fn bring(dir: &tempfile::TempDir, versions: &[&str]) -> String {
    let mut script = String::new();
    for version in versions {
        let _ = writeln!(script, "mkdir root/root/{version}");
        for package in packages(version, &["netwright", "netwrightd"]) {
            let path = dir.path().join(package.file_name());
            std::fs::write(&path, package.write(texts().epoch).unwrap()).unwrap();
            let _ = writeln!(script, "cp {} root/root/{version}/", path.display());
        }
    }
    script
}

const GET: &str = "curl --silent --show-error --retry 50 --retry-connrefused --retry-delay 0 \
                   --retry-max-time 10 http://127.0.0.1:8081/";

/// The network of [`Load`], as a plugin and as a runtime is given it.
const NETWORK: &str = r#""type":"bridge","bridge":"load0","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.99.0.0/16"}]]}"#;

/// Attaches containers and detaches them, as a runtime does, until the test stops it. Between the
/// two calls another package's plugins may take the place. The namespace stays: making one takes
/// longer than an ADD.
const CALLS: &str = r"
number=0
ip netns add load$1 || exit
until [ -e /run/stop ]; do
    number=$((number + 1))
    id=load$1-$number
    for verb in ADD DEL; do
        CNI_COMMAND=$verb CNI_CONTAINERID=$id CNI_NETNS=/run/netns/load$1 CNI_IFNAME=c$number \
            CNI_PATH=/usr/lib/cni /usr/lib/cni/bridge </root/load.json >/run/load$1.said 2>>/run/errors || {
            echo $verb of $id failed >>/run/failed
            cat /run/load$1.said >>/run/errors
        }
    done
    echo called >>/run/called
done
ip netns del load$1
echo ended >>/run/ended
";

/// Calls one verb for a container that stays, so that the bridge does.
const STAYS: &str = "CNI_CONTAINERID=stays CNI_NETNS=/run/netns/stays CNI_IFNAME=eth0 \
                     CNI_PATH=/usr/lib/cni /usr/lib/cni/bridge </root/load.json";

/// How many callers there are.
const CALLERS: u128 = 4;

/// Containers that come and go: some fifty in a second, if the machine can do that, and the
/// executables are those that ship (`NETWRIGHT_MEASURED`, `NETWRIGHTD_MEASURED`).
struct Load<'d> {
    debian: &'d Debian,
}

impl<'d> Load<'d> {
    fn start(debian: &'d Debian) -> Self {
        debian.sh(&format!(
            "echo '{{\"cniVersion\":\"1.0.0\",\"name\":\"load\",{NETWORK}}}' >/root/load.json
            echo '{{\"cniVersion\":\"1.0.0\",\"name\":\"load\",\"plugins\":[{{{NETWORK}}}]}}' >/root/load.conflist
            ip netns add stays && CNI_COMMAND=ADD {STAYS} >/dev/null
            cat >/root/load <<'E'\n{CALLS}E
            for n in $(seq {CALLERS}); do sh /root/load $n >/dev/null 2>&1 & done"
        ));
        let load = Load { debian };
        load.goes_on();
        load
    }

    fn count(&self, file: &str) -> u128 {
        self.debian.sh(&format!("cat /run/{file} 2>/dev/null | wc -l")).trim().parse().unwrap()
    }

    /// Waits until every caller has begun a container since.
    fn goes_on(&self) {
        let before = self.count("called");
        wait_until("containers to come and go", || before + 8 < self.count("called"));
    }

    /// Does something meanwhile, and says how many came and went.
    fn during(&self, what: &str, work: impl FnOnce()) {
        let (before, begin) = (self.count("called"), Instant::now());
        work();
        self.goes_on();
        let (called, took) = (self.count("called") - before, begin.elapsed().as_millis());
        let failed = self.count("failed");
        let rate = called * 1000 / took.max(1);
        eprintln!(
            "MEASURED packages, {what}: {called} ADDs and DELs, {rate} a second, {failed} failed"
        );
        assert_eq!(failed, 0, "{}", self.debian.sh("cat /run/failed /run/errors"));
    }

    /// Detaches what our plugins attached and the Go plugins have detached. In a PID namespace of
    /// its own the command cannot know that these namespaces are gone.
    fn forget(&self) {
        self.debian.sh("cp /root/load.conflist /etc/cni/net.d/ && netwright gc load --all && \
             rm /etc/cni/net.d/load.conflist");
    }

    fn end(self) {
        self.debian.sh("touch /run/stop");
        wait_until("the callers to end", || self.count("ended") == CALLERS);
        self.debian.sh(&format!("CNI_COMMAND=DEL {STAYS} && ip netns del stays"));
        let held = "ls /var/lib/cni/networks/load | grep -c '^10[.]' || true";
        assert_eq!(self.debian.sh(held), "0\n", "addresses");
        self.debian.sh("ip link del load0; rm -r /var/lib/cni/networks/load");
        assert_eq!(self.count("failed"), 0, "{}", self.debian.sh("cat /run/failed /run/errors"));
    }
}

/// A booted Debian with podman, an image, and our packages of these versions in its folders.
struct BootedDebian {
    debian: Debian,
    before: String,
    _files: tempfile::TempDir,
}

impl BootedDebian {
    fn new(name: &str, versions: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let prepare = format!("{IMAGE}{}", bring(&files, versions));
        let debian = Debian::boot(name, &prepare);
        debian.sh("tar -C /root/image -c . | podman import - web && podman ps");
        let before = debian.sh(SNAPSHOT);
        BootedDebian { debian, before, _files: files }
    }

    fn install(&self, version: &str) {
        let packages = format!("/root/{version}/*.deb");
        self.debian.sh(&format!("apt-get install --yes --allow-downgrades {packages} 2>&1"));
    }

    /// Sets the node up, and runs a container whose published port answers.
    fn serve(&self) {
        let said = self.debian.sh("netwright setup --yes 2>&1");
        assert!(said.contains("gateway 10.63.0.1: answers after"), "{said}");
        assert!(!said.contains("/usr/local/bin"), "{said}");
        self.debian.sh("netwright agent status --wait");
        self.debian.sh(&format!(
            "podman run --cgroups disabled --detach --name web --network netwright --publish 8081:80 web sh -c '{SERVE}'"
        ));
        self.answers();
    }

    #[track_caller]
    fn answers(&self) {
        assert_eq!(self.debian.sh(GET), "hello\n");
    }

    fn end_container(&self) {
        self.debian.sh("podman rm --force --time 0 web");
    }

    fn purge(&self) {
        self.debian.sh("apt-get purge --yes netwright netwright-cni-plugins 2>&1");
    }

    #[track_caller]
    fn assert_as_before(&self) {
        assert_as_before(&self.before, &self.debian.sh(SNAPSHOT));
    }
}

#[test]
fn packages_serve_a_node_and_leave_it_as_before() {
    needs_podman!();
    let booted = BootedDebian::new("release-short", &["0.1.0"]);
    booted.install("0.1.0");
    booted.serve();
    booted.end_container();
    booted.purge();
    booted.assert_as_before();
}

#[test]
fn a_node_is_served_by_packages_and_is_as_before_afterwards() {
    testkit::require!("full");
    needs_podman!();
    let booted = BootedDebian::new("release-booted", &["0.1.0", "0.1.1"]);
    let debian = &booted.debian;

    let load = Load::start(debian);
    load.during("installed beside Debian's", || booted.install("0.1.0"));
    // Nor would the first boot of an image enable it.
    let enabled = debian.sh(
        "systemctl is-enabled netwright.target
        systemctl preset netwright.target 2>/dev/null && systemctl is-enabled netwright.target; true",
    );
    assert_eq!(enabled, "disabled\ndisabled\n");
    booted.serve();

    let started =
        debian.sh("systemctl show --property=ExecMainStartTimestampMonotonic netwrightd@repair");
    for (what, version) in [("upgraded", "0.1.1"), ("downgraded", "0.1.0")] {
        load.during(what, || {
            booted.install(version);
            debian.sh("netwright agent status --wait");
        });
        booted.answers();
    }
    let now =
        debian.sh("systemctl show --property=ExecMainStartTimestampMonotonic netwrightd@repair");
    assert_ne!(now, started, "the service was restarted");
    // The plugins go, the container stays; a second installation finds it.
    load.during("the plugins removed, Debian's serve", || {
        debian.sh("NETWRIGHT_LEAVE_ATTACHED=1 apt-get remove --yes netwright-cni-plugins 2>&1");
    });
    booted.answers();
    load.during("installed again", || booted.install("0.1.0"));
    booted.end_container();
    load.during("the plugins removed again", || {
        debian.sh("NETWRIGHT_LEAVE_ATTACHED=1 apt-get remove --yes netwright-cni-plugins 2>&1");
    });
    load.forget();
    load.during("purged", || booted.purge());
    load.end();
    debian.sh(WITHOUT_GO_CHAINS);
    booted.assert_as_before();
}
