//! With `--full`: packages of rpm, with their scripts, installed by Debian's rpm over a copy of
//! this machine's Debian. rpm has no diversions: the other package writes over our links, and a
//! trigger puts them back.

use std::process::Command;

use super::debian::{Debian, goods};
use super::faults::KILLED;
use crate::contents;
use crate::goods::tests::texts;
use crate::rpm::Package;
use crate::tree::{FILE, PROGRAM, Tree};

/// What rpmlint reports, and why it stays.
const EXPLAINED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/packages/rpm/netwright.rpmlintrc");

/// What an installation leaves.
const SNAPSHOT: &str = "
cd /usr/libexec/cni && find . -printf '%p %y %m %l\\n' | sort
find /usr/libexec/cni -type f | sort | xargs md5sum
ls -d /usr/bin/netwright* /usr/share/doc/netwright* /usr/share/licenses/netwright* 2>/dev/null
true
";

const BRIDGE: &str =
    "named=$(head -c 200 /usr/libexec/cni/bridge | tr -d '\\0' | sed -n '1s/^#!//p')
readlink -f ${named:-/usr/libexec/cni/bridge}
CNI_COMMAND=VERSION /usr/libexec/cni/bridge </dev/null
tail -c 5 /usr/libexec/cni/bridge";

/// A package that has Go's plugins' names, as Fedora's has. They are a program that succeeds,
/// followed by their version. A script's interpreter would open the path again, where our plugin
/// may be by then.
fn go(version: &str) -> Package {
    let mut tree = Tree::default();
    for name in ["bridge", "host-local", "portmap"] {
        let mut program = std::fs::read("/usr/bin/true").unwrap();
        program.extend(format!("go {version}\n").into_bytes());
        tree.file(&format!("usr/libexec/cni/{name}"), PROGRAM, program).unwrap();
    }
    tree.file("usr/share/licenses/theirs/LICENSE", FILE, *b"free\n").unwrap();
    Package {
        name: "containernetworking-plugins",
        version: version.to_owned(),
        release: "1".to_owned(),
        architecture: "x86_64",
        licence: "Apache-2.0",
        url: "https://example.com",
        summary: "Go's plugins",
        description: "For a test.",
        packager: "Somebody <somebody@example.com>",
        requires: Vec::new(),
        provides: Vec::new(),
        scripts: Vec::new(),
        tree,
    }
}

/// Puts a package where rpm finds it; returns its path.
fn bring(debian: &Debian, package: &Package) -> String {
    debian.bring_file(&package.file_name(), &package.write(texts().epoch).unwrap())
}

/// Puts ours of a version there: that of the executables, and that of the plugins.
fn ours(debian: &Debian, version: &str) -> [String; 2] {
    let (texts, built) = goods(version, &["netwright"]);
    contents::rpms(&texts, &built).unwrap().map(|package| bring(debian, &package))
}

/// Runs rpm. Debian's counts its own name of the architecture, and lists none of Debian's packages.
#[track_caller]
fn rpm(debian: &Debian, what: &str) -> String {
    let architecture = if what.starts_with("--erase") { "" } else { "--ignorearch" };
    debian.sh(&format!("LC_ALL=C rpm --nodeps {architecture} {what}"))
}

#[test]
fn plugins_change_hands_by_scripts_and_triggers() {
    testkit::require!("full", "root", "program:rpm", "program:strip");
    let debian = Debian::new("release-rpm");
    let bring = |package: &Package| bring(&debian, package);
    let rpm = |what: &str| rpm(&debian, what);
    let ours = |version: &str| ours(&debian, version).join(" ");
    debian.sh("rpm --initdb");
    rpm(&format!("--install {}", bring(&go("9"))));
    let before = debian.sh(SNAPSHOT);
    rpm(&format!("--upgrade --oldpackage {}", bring(&go("8"))));
    assert!(debian.sh(BRIDGE).ends_with("go 8\n"));
    let calls = debian.calls("/usr/libexec/cni/bridge");
    debian.wait_for_calls();

    rpm(&format!("--install {}", ours("0.1.0")));
    let said = debian.sh(BRIDGE);
    assert!(said.starts_with("/usr/bin/netwright\n") && said.contains("1.1.0"), "{said}");
    debian.wait_for_calls();
    // Theirs is upgraded, and ours.
    rpm(&format!("--upgrade {}", bring(&go("9"))));
    debian.wait_for_calls();
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    assert_eq!(debian.sh("tail -c 5 /usr/libexec/cni/.netwright-replaced/bridge"), "go 9\n");
    rpm(&format!("--upgrade {}", ours("0.1.1")));
    debian.wait_for_calls();
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));

    rpm("--erase netwright-cni-plugins netwright");
    debian.wait_for_calls();
    debian.sh("touch /run/stop");
    drop(calls);
    assert!(debian.sh(BRIDGE).ends_with("go 9\n"));
    assert_eq!(debian.count("failed"), 0, "{}", debian.sh("cat /run/errors"));
    eprintln!("MEASURED calls while packages of rpm changed hands: {}", debian.count("called"));
    assert_eq!(debian.sh(SNAPSHOT), before);
    // Their package is removed first, beneath ours: the trigger restores our links that were
    // removed with it.
    rpm(&format!("--install {}", ours("0.1.0")));
    rpm("--erase containernetworking-plugins");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    rpm("--erase netwright-cni-plugins netwright");
}

/// Has scripts find [`KILLED`].
const TO_KILLER: &str =
    "--define '_install_script_path /usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin'";

/// To rpm a package is installed or not: what fails after its files are there is a warning, and what
/// fails before they go stops the removal. The same command again finishes either.
#[test]
fn a_command_that_is_killed_within_a_script_is_finished_by_rpm() {
    testkit::require!("full", "root", "ptrace", "program:rpm", "program:strace", "program:strip");
    let debian = Debian::new("release-rpm-killed");
    let rpm = |what: &str| rpm(&debian, what);
    debian.sh("rpm --initdb");
    rpm(&format!("--install {}", bring(&debian, &go("8"))));
    debian.sh(KILLED);
    let [netwright, plugins] = ours(&debian, "0.1.0");
    rpm(&format!("--install {netwright}"));
    let before = debian.sh(SNAPSHOT);
    let calls = debian.calls("/usr/libexec/cni/bridge");
    debian.wait_for_calls();
    let killed = |fault: usize, what: &str| {
        debian.sh(&format!("echo {fault} >/run/fault"));
        let said = rpm(&format!("{what} {TO_KILLER} || true"));
        assert!(said.contains("scriptlet failed"), "{fault}: it was not killed: {said}");
        debian.sh("test ! -e /run/fault && rpm --query netwright-cni-plugins");
    };
    for fault in [1, 2, 5, 20] {
        killed(fault, &format!("--install {plugins}"));
        rpm(&format!("--install --replacepkgs {plugins}"));
        assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"), "{fault}");
        killed(fault, "--erase netwright-cni-plugins");
        rpm("--erase netwright-cni-plugins");
        assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "{fault}");
        assert_eq!(debian.sh(SNAPSHOT), before, "{fault}");
    }
    debian.wait_for_calls();
    debian.sh("touch /run/stop");
    drop(calls);
    assert_eq!(debian.count("failed"), 0, "{}", debian.sh("cat /run/errors"));
}

/// What rpmlint says is explained beside the packages' scripts. An explanation that fits nothing is
/// an error of rpmlint, too.
#[test]
#[expect(clippy::disallowed_methods, reason = "a second opinion is a program of the machine")]
fn rpmlint_has_nothing_to_say() {
    testkit::require!("full", "program:rpmlint", "program:strip");
    let dir = tempfile::tempdir().unwrap();
    let (texts, built) = goods("0.1.0", &["netwright", "netwrightd"]);
    let mut command = Command::new("rpmlint");
    command.args(["--rpmlintrc", EXPLAINED]).env("LC_ALL", "C.UTF-8");
    for package in contents::rpms(&texts, &built).unwrap() {
        let path = dir.path().join(package.file_name());
        std::fs::write(&path, package.write(texts.epoch).unwrap()).unwrap();
        command.arg(path);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let nothing = " 2 packages and 0 specfiles checked; 0 errors, 0 warnings, ";
    assert!(said.contains(nothing), "{said}{errors}");
}
