//! `setup` refuses what it cannot do, or undoes it. The test's `systemctl` gives the answers that
//! each test needs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use expect_test::{Expect, expect};
use testkit::{Lab, Place as _, Snapshot, feature};

use super::{FILES, assert_as_before, empty_programs};
use crate::support::{CommandOutput, EXECUTABLE, said};

/// A `systemctl` that knows no unit, records its calls, and fails at the call whose number is in
/// `/run/fault`.
const SYSTEMCTL: &str = r#"#!/bin/sh
shift
if [ "$1" = show ]; then
    shift 2
    for unit; do printf 'Id=%s\nLoadState=not-found\nActiveState=inactive\n\n' "$unit"; done
    exit
fi
echo "$*" >>/run/told
[ "$(wc -l </run/told)" != "$(cat /run/fault 2>/dev/null)" ] || { echo "no $1 today" >&2; exit 1; }
"#;

/// A host that looks as if systemd ran it.
struct Host {
    lab: Lab,
}

impl Host {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        empty_programs(&lab);
        lab.sh("mkdir -p /run/systemd/system /run/bin /run/programs /etc/systemd/system");
        // The daemon's file has only some bytes, because it is never started.
        fs::write(lab.path("/run/programs/netwrightd"), "a daemon").unwrap();
        fs::copy(EXECUTABLE, lab.path("/run/programs/netwright")).unwrap();
        let systemctl = lab.path("/run/bin/systemctl");
        fs::write(&systemctl, SYSTEMCTL).unwrap();
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
        Host { lab }
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.lab.command(program);
        command.args(args).env_clear().env("PATH", "/run/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    fn setup(&self, args: &[&str]) -> CommandOutput {
        let own = ["setup", "--bin-dir", "/opt/cni/bin", "--no-packet"];
        said(self.command("/run/programs/netwright", &[&own[..], args].concat()))
    }

    fn undo(&self) -> CommandOutput {
        said(self.command("/run/programs/netwright", &["setup", "--undo", "--yes"]))
    }

    fn told(&self) -> String {
        fs::read_to_string(self.lab.path("/run/told")).unwrap_or_default()
    }

    /// Asserts that a call is refused and changes nothing.
    #[track_caller]
    fn refuses(&self, args: &[&str], code: i32, expected: &Expect) {
        let before = Snapshot::with_files(&self.lab, &FILES);
        expected.assert_eq(&self.setup(args).failed(code).stderr);
        before.assert_same(&Snapshot::with_files(&self.lab, &FILES));
        assert_eq!(self.told(), "");
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_changed() {
    testkit::require!("root");
    let host = &Host::new("setup-refused");
    let lab = &host.lab;
    host.refuses(
        &[],
        2,
        &expect![[r#"
        error: setup asks before it changes anything, and cannot ask here
        hint: give --yes, or --dry-run to see what it would do
    "#]],
    );
    host.refuses(
        &["--yes", "--program-dir", "/opt/a b"],
        2,
        &expect![[r#"
        error: --program-dir /opt/a b: a unit takes only letters, digits and ./_-+
    "#]],
    );
    // The user is not root.
    let words = ["--reuid", "65534", "--clear-groups", "/run/programs/netwright", "setup", "--yes"];
    let nobody = said(host.command("setpriv", &words)).failed(3);
    expect![[r#"
        error: setup installs services for the whole machine
        cause: you are not root
        hint: run as root
    "#]]
    .assert_eq(&nobody.stderr);
    // The configuration is wrong.
    lab.sh("mkdir -p /etc/netwright && echo '[repiar]' >/etc/netwright/netwrightd.toml");
    host.refuses(
        &["--yes"],
        1,
        &expect![[r#"
        error: the configuration of netwrightd is wrong
        /etc/netwright/netwrightd.toml:1:2: there is no table "repiar"
          |
        1 | [repiar]
          |  ^
        hint: there is [repair]
        hint: correct it: `netwrightd config check` says the same
    "#]],
    );
    lab.sh("rm -r /etc/netwright");
    // Units of other packages have our names.
    lab.sh("ln -s /dev/null /etc/systemd/system/netwright.target");
    host.refuses(
        &["--yes"],
        1,
        &expect![[r#"
        error: /etc/systemd/system/netwright.target is there, and it is not Netwright's
        hint: move it away, if it is not needed
    "#]],
    );
    lab.sh("rm /etc/systemd/system/netwright.target && mkdir -p /usr/local/lib/systemd/system && \
            : >/usr/local/lib/systemd/system/netwrightd@dhcp.socket");
    host.refuses(&["--yes"], 1, &expect![[r#"
        error: /usr/local/lib/systemd/system/netwrightd@dhcp.socket is there: a package installed Netwright's services
        hint: call the `netwright` of that package, or remove it first
    "#]]);
    lab.sh("rm -r /usr/local/lib/systemd");
    // A folder is not writable.
    lab.sh("mount --bind /usr/local/bin /usr/local/bin && mount -o remount,bind,ro /usr/local/bin");
    host.refuses(
        &["--yes"],
        3,
        &expect![[r#"
        error: /usr/local/bin/netwright cannot be written
        cause: /usr/local/bin: Read-only file system
        hint: what the message names is mounted read-only: mount it writable
        hint: choose another folder with --program-dir
    "#]],
    );
    lab.sh("umount /usr/local/bin");
    // There is no daemon, and then no systemd.
    lab.sh("mv /run/programs/netwrightd /run/programs/x");
    host.refuses(
        &["--yes"],
        1,
        &expect![[r#"
        error: netwrightd is not beside this executable, and its services are to be installed
        hint: put netwrightd of the same version there
    "#]],
    );
    lab.sh("mv /run/programs/x /run/programs/netwrightd; rm -r /run/systemd");
    host.refuses(&["--yes"], 3, &expect![[r#"
        error: systemd does not run this machine
        hint: `netwright install` puts the plugins, and `netwrightd` starts the services (docs/agent.md)
    "#]]);
}

/// Each call of `systemctl` can fail: setup then undoes everything. If setup is interrupted there,
/// `--undo` removes what it left.
#[test]
fn a_step_that_fails_undoes_all_before_it() {
    testkit::require!("root");
    let host = &Host::new("setup-faults");
    let lab = &host.lab;
    lab.sh("mkdir -p /opt/cni/bin && echo theirs >/opt/cni/bin/bridge");
    let before = Snapshot::with_files(lab, &FILES);
    let fault = |number: usize| fs::write(lab.path("/run/fault"), number.to_string()).unwrap();
    let told = [
        "daemon-reload",
        "--quiet enable netwright.target",
        "start netwright.target netwrightd@collect.service netwrightd@repair.service",
    ];
    for (number, words) in (1..).zip(told) {
        fault(number);
        let said = host.setup(&["--yes"]).failed(3);
        assert!(said.stderr.starts_with(&format!("error: systemctl {words}\n")), "{said:#?}");
        assert!(said.stderr.contains("\ncause: everything was put back as it was\n"), "{said:#?}");
        assert_as_before(&before, lab);
        lab.sh("rm -f /run/told");
    }
    fault(0);
    host.setup(&["--yes"]).succeeded();
    assert_eq!(host.told().lines().collect::<Vec<_>>(), told);
    host.undo().succeeded();
    assert_as_before(&before, lab);
}

/// The disk becomes full in the middle of an executable, and of a unit.
#[test]
fn a_full_disk_undoes_all() {
    testkit::require!("root");
    let host = &Host::new("setup-full");
    let lab = &host.lab;
    for (folder, octets) in [("/usr/local/bin", 1 << 20), ("/etc/systemd/system", 1 << 14)] {
        lab.sh(&format!("mount -t tmpfs -o size={octets} tmpfs {folder}"));
        let before = Snapshot::with_files(lab, &FILES);
        let said = host.setup(&["--yes"]).failed(3);
        assert!(said.stderr.contains("No space left on device"), "{said:#?}");
        assert!(said.stderr.contains("\ncause: everything was put back as it was\n"), "{said:#?}");
        assert_as_before(&before, lab);
        lab.sh(&format!("umount {folder}"));
    }
}

/// If setup is killed at any moment, the next setup completes it, and `--undo` undoes it.
#[test]
fn a_killed_setup_is_finished_or_taken_back() {
    testkit::require!("root");
    let kills = if feature::available("full") { 12 } else { 2 };
    let host = &Host::new("setup-killed");
    let lab = &host.lab;
    lab.sh("echo theirs >/usr/local/bin/netwrightd");
    let before = Snapshot::with_files(lab, &FILES);
    for kill in 0..kills {
        // At the call of systemctl with this number, the rest of the process is killed.
        let number = kill / 2 % 3 + 1;
        fs::write(lab.path("/run/fault"), number.to_string()).unwrap();
        lab.sh("sed -i 's/^\\[ .*$/[ \"$(wc -l <\\/run\\/told)\" != \"$(cat \\/run\\/fault)\" ] || kill -KILL $PPID/' /run/bin/systemctl");
        let said = host.setup(&["--yes"]);
        assert_eq!(said.code, -1, "{said:#?}");
        lab.sh("rm -f /run/told; echo 0 >/run/fault");
        if kill % 2 == 0 {
            host.setup(&["--yes"]).succeeded();
        }
        host.undo().succeeded();
        assert_as_before(&before, lab);
        lab.sh("rm -f /run/told");
    }
}

/// Files that a person has changed since then stay, and are named; files that existed before come
/// back.
#[test]
fn files_of_others_are_kept() {
    testkit::require!("root");
    let host = &Host::new("setup-files");
    let lab = &host.lab;
    lab.sh("echo theirs >/usr/local/bin/netwright && chmod 711 /usr/local/bin/netwright");
    let inode = || lab.sh("stat -c '%i %a %Y' /usr/local/bin/netwright");
    let theirs = inode();
    let before = Snapshot::with_files(lab, &FILES);
    host.setup(&["--yes", "--no-config"]).succeeded();
    assert_ne!(inode(), theirs);
    let write = |path: &str, text: &str| fs::write(lab.path(path), text).unwrap();
    write("/etc/netwright/netwrightd.toml", "[repair]\nenable = true\ninterval = \"7s\"\n");
    write("/etc/systemd/system/netwright.target", "[Unit]\nDescription=changed\n");
    let again = host.setup(&["--dry-run"]).succeeded();
    let stays = "netwright.target was changed since setup wrote it: it stays as it is";
    assert!(again.stdout.contains(stays), "{again:#?}");
    let undone = host.undo().succeeded();
    for path in ["/etc/netwright/netwrightd.toml", "/etc/systemd/system/netwright.target"] {
        let stays = format!("{path} was changed since setup wrote it: it stays");
        assert!(undone.stderr.contains(&stays), "{undone:#?}");
        assert!(lab.path(path).exists());
    }
    assert_eq!(inode(), theirs);
    lab.sh("rm -r /etc/netwright /etc/systemd/system/netwright.target");
    assert_as_before(&before, lab);
}
