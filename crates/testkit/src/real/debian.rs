//! The machine's Debian, or an empty one, booted by its own systemd in `systemd-nspawn`, as on a
//! user's machine.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::lab::Lab;
use crate::place::{Place as _, RunningProgram};
use crate::reference::empty_debian;
use crate::service::wait_until;

/// A script that removes what is of ours from a copy of the machine's Debian, which is the folder
/// `root`: its packages, what `netwright install` has put in the place of the Go plugins, and what
/// runtimes and our commands have written.
pub const REMOVE_OURS: &str = r"
if [ -e root/var/lib/dpkg/info/netwright.list ]; then
    mount -t proc proc root/proc
    chroot root dpkg --force-unsafe-io --no-triggers --purge netwright-cni-plugins netwright >&2
    umount root/proc
fi
plugins=root/usr/lib/cni
if [ -e $plugins/.netwright-replaced ]; then
    grep --binary-files=text -lm1 '^#!/usr/lib/cni/netwright$' $plugins/* | xargs rm $plugins/netwright
    rm -f $plugins/netwrightd $plugins/.netwright-replaced/manifest.json
    mv $plugins/.netwright-replaced/* $plugins/ && rmdir $plugins/.netwright-replaced
fi
rm -rf root/etc/cni root/etc/netwright root/opt/cni root/usr/local/bin/netwright* root/var/lib/cni \
    root/var/lib/netwright
";

/// Leaves out what the machine's administrator configured: systemd starts only the units that
/// Debian's packages enable by themselves.
const ROOT: &str = r"
mkdir layer root && mount -t tmpfs tmpfs layer && mkdir layer/upper layer/work
mount -t overlay overlay -o lowerdir=$lower,upperdir=layer/upper,workdir=layer/work root
";
const UNCONFIGURED: &str = r"
rm -rf root/etc/systemd/system/* root/etc/fstab root/etc/resolv.conf root/var/log/journal
: >root/etc/machine-id
echo nameserver 192.0.2.1 >root/etc/resolv.conf
";

const BOOT: &str = "systemd-nspawn --quiet --directory=root --register=no --keep-unit --private-network \
                    --console=pipe --system-call-filter=@keyring --tmpfs=/var/lib/containers --tmpfs=/var/lib/containerd --boot >console 2>&1 & echo $! >nspawn.pid; wait";

/// A booted system.
///
/// A test that uses it needs `testkit::require!("root", "program:systemd-nspawn")`.
#[derive(Debug)]
pub struct Debian {
    lab: Lab,
    /// The process ID of its systemd in the lab.
    leader: String,
    _machine: RunningProgram,
}

impl Debian {
    /// Boots the machine's Debian. Before that, the shell script `prepare` runs in the folder that
    /// contains the system's root as `root`.
    ///
    /// # Panics
    /// When it does not boot.
    #[must_use]
    pub fn boot(name: &str, prepare: &str) -> Self {
        Self::boot_over(Path::new("/"), name, prepare)
    }

    /// Does the same with a Debian that has no more than it needs to boot.
    ///
    /// A test that uses it needs `testkit::require!("empty-debian")`, too.
    ///
    /// # Panics
    /// When it is not there, or does not boot.
    #[must_use]
    pub fn boot_empty(name: &str, prepare: &str) -> Self {
        let root = empty_debian().expect("`cargo xtask setup --full` has made it");
        Self::boot_over(&root, name, prepare)
    }

    fn boot_over(lower: &Path, name: &str, prepare: &str) -> Self {
        let lab = Lab::with_processes(name);
        let dir = lab.dir().display().to_string();
        lab.sh(&format!(
            "set -e; cd {dir}; lower={}; {ROOT}{REMOVE_OURS}{UNCONFIGURED}{prepare}",
            lower.display()
        ));
        let machine = lab.start("sh", &["-c", &format!("cd {dir}; {BOOT}")]);
        let leader = || {
            let said = lab.try_sh(&format!("cat /proc/$(cat {dir}/nspawn.pid)/task/*/children"));
            String::from_utf8_lossy(&said.stdout).trim().to_owned()
        };
        wait_until("systemd-nspawn to start systemd", || {
            let leader = leader();
            !leader.is_empty()
                && lab.try_sh(&format!("grep -q systemd /proc/{leader}/comm")).status.success()
        });
        let booted = Debian { leader: leader(), lab, _machine: machine };
        wait_until("Debian to boot", || {
            let said = booted.try_sh("systemctl is-system-running");
            ["running\n", "degraded\n"].contains(&&*String::from_utf8_lossy(&said.stdout))
        });
        booted
    }

    /// Runs a shell script in it, and returns its output, whether it succeeds or not.
    ///
    /// # Panics
    /// When the script cannot be run at all.
    #[must_use]
    pub fn try_sh(&self, script: &str) -> Output {
        let mut command = self.lab.command("nsenter");
        command.arg(format!("--target={}", self.leader));
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--wdns=/", "--"]);
        command.args([
            "env",
            "-i",
            "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
        ]);
        command.args(["sh", "-c", script]).output().expect("nsenter can be run")
    }

    /// Runs a shell script in it, and returns its standard output.
    ///
    /// # Panics
    /// When the script fails, with its outputs and what the system printed on its console.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        let console = || fs::read_to_string(self.lab.dir().join("console")).unwrap_or_default();
        assert!(
            output.status.success(),
            "{script}: {}{}{}",
            text(&output.stdout),
            text(&output.stderr),
            console()
        );
        text(&output.stdout)
    }
}
