//! Debian's packages, installed by Debian's dpkg over a copy of this machine's Debian: what
//! runtimes call works at every moment.

use std::fmt::Write as _;
use std::path::PathBuf;

use testkit::real::REMOVE_OURS;
use testkit::{Lab, Place as _, RunningProgram, wait_until};

use crate::contents;
use crate::deb::Package;
use crate::goods::tests::{built, texts};
use crate::goods::{Architecture, Build, Texts};
use crate::tree::{FILE, PROGRAM, Tree};

/// The machine's Debian, without what is mounted in it, and with a layer for changes.
const ROOT: &str = "
mkdir layer root && mount -t tmpfs tmpfs layer && mkdir layer/upper layer/work
mount -t overlay overlay -o lowerdir=$lower,upperdir=layer/upper,workdir=layer/work root
";
const MOUNTS: &str = "
mount -t proc proc root/proc && mount --rbind /dev root/dev && mount -t tmpfs tmpfs root/run
";

/// Calls a plugin until the test stops it, and counts the calls.
const CALLS: &str = "
until [ -e /run/stop ]; do
    CNI_COMMAND=VERSION $1 </dev/null >/dev/null 2>>/run/errors || echo failed >>/run/failed
    echo called >>/run/called
done
";

/// What an installation leaves: names, links and contents of plugins, diversions, our folders.
pub(super) const SNAPSHOT: &str = "
cd /usr/lib/cni && find . -printf '%p %y %m %l\\n' | sort && find . -type f | sort | xargs md5sum
dpkg-divert --list '*cni*'
ls -d /usr/bin/netwright* /run/netwright* /var/lib/netwright* /usr/share/doc/netwright* 2>/dev/null
true
";

/// A copy of the machine's Debian.
pub(super) struct Debian {
    lab: Lab,
}

impl Debian {
    pub(super) fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        lab.sh(&format!(
            "set -e; cd {}; lower=/; {ROOT}{REMOVE_OURS}{MOUNTS}",
            lab.dir().display()
        ));
        Debian { lab }
    }

    fn root(&self) -> PathBuf {
        self.lab.dir().join("root")
    }

    #[track_caller]
    pub(super) fn sh(&self, script: &str) -> String {
        std::fs::write(self.lab.dir().join("script"), script).unwrap();
        let dir = self.lab.dir().display();
        self.lab.sh(&format!("chroot {dir}/root sh -c \"$(cat {dir}/script)\" </dev/null 2>&1"))
    }

    /// Puts packages into the folder `/run/packages`; returns their paths.
    pub(super) fn bring(&self, packages: &[&Package]) -> String {
        let mut paths = String::new();
        for package in packages {
            let written = package.write(texts().epoch).unwrap();
            let _ = write!(paths, " {}", self.bring_file(&package.file_name(), &written));
        }
        paths
    }

    /// Puts a file into the folder `/run/packages`; returns its path.
    pub(super) fn bring_file(&self, name: &str, bytes: &[u8]) -> String {
        let folder = self.root().join("run/packages");
        // The lab's mounts are not this process's.
        let here = self.lab.dir().join(name);
        std::fs::write(&here, bytes).unwrap();
        let (here, folder) = (here.display(), folder.display());
        self.lab.sh(&format!("mkdir -p {folder} && mv {here} {folder}/"));
        format!("/run/packages/{name}")
    }

    /// Runs dpkg, and returns what it prints.
    #[track_caller]
    pub(super) fn dpkg(&self, what: &str) -> String {
        self.sh(&format!("LC_ALL=C dpkg --force-unsafe-io --no-triggers {what}"))
    }

    /// Calls a plugin from now on.
    pub(super) fn calls(&self, plugin: &str) -> RunningProgram {
        let root = self.root().display().to_string();
        self.lab.start("chroot", &[&root, "sh", "-c", CALLS, "calls", plugin])
    }

    pub(super) fn count(&self, file: &str) -> usize {
        self.sh(&format!("cat /run/{file} 2>/dev/null | wc -l")).trim().parse().unwrap()
    }

    /// Waits until plugins were called some more times.
    pub(super) fn wait_for_calls(&self) {
        let before = self.count("called");
        wait_until("plugins to be called", || before + 3 < self.count("called"));
    }
}

/// An executable that tests run, without what is for debuggers.
fn stripped(name: &str) -> Vec<u8> {
    // The tests' own are not optimised.
    if let Some(measured) = std::env::var_os(format!("{}_MEASURED", name.to_uppercase())) {
        return std::fs::read(measured).unwrap();
    }
    let own = std::env::current_exe().unwrap();
    let built = own.ancestors().nth(2).unwrap().join(name);
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join(name);
    super::said("strip", &["-o", small.to_str().unwrap(), built.to_str().unwrap()]);
    std::fs::read(small).unwrap()
}

/// Our packages, with the command line that tests run; the daemon is not one.
pub(super) fn ours(version: &str) -> [Package; 2] {
    packages(version, &["netwright"])
}

/// Our packages, with these executables that tests run.
pub(super) fn packages(version: &str, programs: &[&str]) -> [Package; 2] {
    let (texts, built) = goods(version, programs);
    contents::debian(&texts, &built).unwrap()
}

/// What packages of a version are made of, with these executables that tests run.
pub(super) fn goods(version: &str, programs: &[&str]) -> (Texts, Build) {
    let mut built = built(Architecture::X86_64);
    for program in built.programs.iter_mut().filter(|program| programs.contains(&program.name)) {
        program.bytes = stripped(program.name);
    }
    let mut texts = texts();
    version.clone_into(&mut texts.version);
    (texts, built)
}

/// Returns an executable that prints a version: a binary, as the Go plugins are. An interpreter
/// would open a script a second time, when it may be another file.
fn says(version: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("says.c"), dir.path().join("says"));
    std::fs::write(
        &source,
        format!("#include <stdio.h>\nint main(void) {{ puts(\"go {version}\"); return 0; }}\n"),
    )
    .unwrap();
    super::said("cc", &["-o", program.to_str().unwrap(), source.to_str().unwrap()]);
    std::fs::read(program).unwrap()
}

/// A package that has Go's plugins' names, as Debian's has, with programs that say its version.
pub(super) fn go(version: &str) -> Package {
    let mut tree = Tree::default();
    for name in ["bridge", "host-local", "portmap"] {
        tree.file(&format!("usr/lib/cni/{name}"), PROGRAM, says(version)).unwrap();
    }
    tree.file("usr/share/doc/containernetworking-plugins/copyright", FILE, *b"free\n").unwrap();
    Package {
        name: "containernetworking-plugins",
        version: version.to_owned(),
        architecture: "amd64",
        fields: vec![
            ("Maintainer", "Somebody <somebody@example.com>".to_owned()),
            ("Provides", "container-network-stack (= 1)".to_owned()),
        ],
        summary: "Go's plugins",
        description: "For a test.",
        scripts: Vec::new(),
        tree,
    }
}

/// Says which file runtimes execute, and has it say its version.
pub(super) const BRIDGE: &str = "
file=/usr/lib/cni/bridge
named=$(head -c 200 $file | tr -d '\\0' | sed -n '1s/^#!//p')
readlink -f ${named:-$file}
CNI_COMMAND=VERSION $file </dev/null";

#[test]
fn plugins_change_hands_and_no_call_fails() {
    testkit::require!("root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-debian");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("9")])));
    let before = debian.sh(SNAPSHOT);
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "{before}");
    let calls = debian.calls("/usr/lib/cni/bridge");
    debian.wait_for_calls();

    let [netwright, plugins] = ours("0.1.0");
    let both = debian.bring(&[&netwright, &plugins]);
    debian.dpkg(&format!("--install {both}"));
    debian.wait_for_calls();
    let said = debian.sh(BRIDGE);
    assert!(said.starts_with("/usr/bin/netwright\n") && said.contains("1.1.0"), "{said}");
    assert_eq!(debian.sh("/usr/lib/cni/.netwright-replaced/bridge"), "go 8\n");

    // Their package is upgraded beneath; ours too.
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("9")])));
    debian.wait_for_calls();
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
    assert_eq!(debian.sh("/usr/lib/cni/.netwright-replaced/bridge"), "go 9\n");
    let [netwright, plugins] = ours("0.1.1");
    debian.dpkg(&format!("--install {}", debian.bring(&[&netwright, &plugins])));
    debian.wait_for_calls();
    // And back to the version before.
    debian.dpkg(&format!("--install {both}"));
    debian.wait_for_calls();
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));

    debian.dpkg("--remove netwright-cni-plugins");
    debian.wait_for_calls();
    assert!(debian.sh(BRIDGE).ends_with("go 9\n"));
    let verified = debian.dpkg("--verify containernetworking-plugins");
    assert_eq!(verified, "", "every file is where the package has it");
    debian.dpkg("--purge netwright netwright-cni-plugins");
    debian.wait_for_calls();
    debian.sh("touch /run/stop");
    drop(calls);
    assert_eq!(debian.count("failed"), 0, "{}", debian.sh("cat /run/errors"));
    eprintln!("MEASURED calls while packages changed hands: {}, failed: 0", debian.count("called"));
    assert_eq!(debian.sh(SNAPSHOT), before);
}

/// The package does not remove another package's diversion; the administrator decides.
#[test]
fn somebody_elses_diversion_fails_the_installation_and_stays() {
    testkit::require!("root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-diverted");
    debian.dpkg(&format!("--install {}", debian.bring(&[&go("8")])));
    debian.sh("dpkg-divert --local --rename --divert /usr/lib/cni/bridge.real --add /usr/lib/cni/bridge && \
               cp /usr/lib/cni/bridge.real /usr/lib/cni/bridge");
    let [netwright, plugins] = ours("0.1.0");
    let both = debian.bring(&[&netwright, &plugins]);
    let said = debian.dpkg(&format!("--install {both} || true"));
    assert!(said.contains("clashes with") && said.contains("bridge.real"), "{said}");
    assert!(debian.sh(BRIDGE).ends_with("go 8\n"), "nothing was switched");
    assert!(!debian.sh("dpkg-divert --list").contains("netwright"), "and nothing is diverted");
    // Once it is gone, the installation goes on.
    debian
        .sh("rm /usr/lib/cni/bridge && dpkg-divert --local --rename --remove /usr/lib/cni/bridge");
    debian.dpkg("--configure --pending");
    assert!(debian.sh(BRIDGE).starts_with("/usr/bin/netwright\n"));
}

/// An administrator may have both: a setup from an archive, whose executables are in
/// `/usr/local/bin`, and the package.
#[test]
fn a_purge_leaves_the_setup_of_other_executables_alone() {
    testkit::require!("root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-both");
    let record = "/var/lib/netwright/setup/record.json";
    let make = |programs: &str| {
        debian.sh("mkdir -p /etc/netwright /var/lib/netwright/setup");
        debian.sh(&format!("echo '{{\"programs\":\"{programs}\"}}' >{record}"));
    };
    let [netwright, _] = ours("0.1.0");
    let package = debian.bring(&[&netwright]);
    debian.dpkg(&format!("--install {package}"));
    make("/usr/local/bin");
    let said = debian.dpkg("--purge netwright");
    assert!(said.contains("kept for another installation: /etc/netwright"), "{said}");
    debian.sh(&format!("test -d /etc/netwright && test -e {record}"));
    debian.dpkg(&format!("--install {package}"));
    make("/usr/bin");
    // Plugins in another folder, as the chart installs them.
    let folder = "/var/lib/netwright/installed";
    debian.sh(&format!("mkdir {folder} && echo '  \"dir\": \"/opt/cni/bin\",' >{folder}/a.json"));
    let said = debian.dpkg("--purge netwright");
    assert!(said.contains("kept for plugins in /opt/cni/bin: /etc/netwright"), "{said}");
    debian.sh(&format!("test -d /etc/netwright && rm -r {folder}"));
    debian.dpkg(&format!("--install {package}"));
    debian.dpkg("--purge netwright");
    debian.sh("test ! -e /etc/netwright && test ! -e /var/lib/netwright");
}

/// What lintian says is explained in the packages (`deploy/packages/debian/*.lintian-overrides`).
#[test]
fn lintian_has_nothing_to_say() {
    testkit::require!("full", "root", "program:lintian", "program:strip");
    let dir = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for package in packages("0.1.0", &["netwright", "netwrightd"]) {
        let path = dir.path().join(package.file_name());
        std::fs::write(&path, package.write(texts().epoch).unwrap()).unwrap();
        files.push(path.to_str().unwrap().to_owned());
    }
    let options = ["--no-cfg", "--allow-root", "--fail-on", "none", "--tag-display-limit", "0"];
    let args: Vec<&str> = options.into_iter().chain(files.iter().map(String::as_str)).collect();
    assert_eq!(super::said("lintian", &args), "");
}

/// The machine on which tests run may have our packages, and networks of ours.
#[test]
fn a_copy_of_a_machine_with_netwright_has_nothing_of_it() {
    testkit::require!("full", "root", "program:dpkg-divert", "program:strip");
    let debian = Debian::new("release-copy");
    let [netwright, plugins] = ours("0.1.0");
    debian.dpkg(&format!("--install {}", debian.bring(&[&netwright, &plugins])));
    let folders =
        "/etc/cni/net.d /etc/netwright /opt/cni/bin /var/lib/cni /var/lib/netwright/setup";
    debian.sh(&format!("mkdir -p {folders} && touch /var/lib/netwright/setup/record.json"));
    let again = debian.lab.dir().join("again");
    debian.lab.sh(&format!(
        "set -e; mkdir {0}; cd {0}; lower=../layer/upper:/; {ROOT}{REMOVE_OURS}{MOUNTS}",
        again.display()
    ));
    let left = format!(
        "chroot {}/root sh -c 'ls -d /usr/bin/netwright* {folders} 2>/dev/null; \
         dpkg-divert --list \"*cni*\"; dpkg-query -W -f \"\\${{Package}}\" \"netwright*\" 2>/dev/null'; true",
        again.display()
    );
    assert_eq!(debian.lab.sh(&left), "");
}
