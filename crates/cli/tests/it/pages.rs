//! Every command of the documentation is typed in a laboratory host in the page's order, and its
//! output is compared with the page's. [`testkit::page`] says how it reads a page, and how a page
//! marks what cannot be typed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use testkit::page::{Page, Step, TypedCommand, first_that_differs, is_as_shown};
use testkit::real::{Containerd, Docker, Ovs, Podman};
use testkit::{Lab, Place as _, feature, require};

use crate::docker::life::needs_docker;
use crate::docker::support::Driver;
use crate::system::{NETWRIGHT, install, netwrightd};

/// What the page's reader has installed before the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Machine {
    /// A built checkout.
    Plain,
    /// A built checkout, and systemd.
    Systemd,
    /// A built checkout, systemd, and a Docker Engine.
    Docker,
    /// A built checkout. With `--full` plugins are installed, and there are a Docker Engine and our
    /// driver.
    PlainOrDocker,
    /// podman and runc.
    Podman,
    /// podman and containerd as Debian has them.
    Runtimes,
    /// podman and containerd as Debian has them, and an Open vSwitch with a bridge.
    DockerAndOvs,
}

/// A page with commands.
struct Entry {
    page: &'static str,
    machine: Machine,
}

const fn entry(page: &'static str, machine: Machine) -> Entry {
    Entry { page, machine }
}

const README: Entry = entry("README.md", Machine::Plain);
const AGENT: Entry = entry("docs/agent.md", Machine::Plain);
const BY_HAND: Entry = entry("docs/evidence/conformance-by-hand.md", Machine::Plain);
const CONFIGURATION: Entry = entry("docs/configuration.md", Machine::Plain);
const CONFORMANCE: Entry = entry("docs/conformance.md", Machine::Plain);
const DHCP: Entry = entry("docs/dhcp.md", Machine::Systemd);
const DOCKER: Entry = entry("docs/docker.md", Machine::Docker);
const DOCTOR: Entry = entry("docs/doctor.md", Machine::Plain);
const FIREWALL: Entry = entry("docs/firewall.md", Machine::Plain);
const FIRST_CONTAINER: Entry = entry("docs/first-container.md", Machine::Plain);
const FROM_GO: Entry = entry("docs/from-go.md", Machine::Runtimes);
const MULTI_NETWORK: Entry = entry("docs/multi-network.md", Machine::Systemd);
const NETWRIGHTD: Entry = entry("docs/netwrightd.md", Machine::Plain);
const OCI_HOOK: Entry = entry("docs/oci-hook.md", Machine::Podman);
const OVS: Entry = entry("docs/ovs.md", Machine::DockerAndOvs);
const POLICY: Entry = entry("docs/policy.md", Machine::PlainOrDocker);
const REPAIR: Entry = entry("docs/repair.md", Machine::Systemd);
const ROUTING: Entry = entry("docs/routing.md", Machine::Plain);
const RUNTIMES: Entry = entry("docs/runtimes.md", Machine::Runtimes);
const SECURITY: Entry = entry("docs/security.md", Machine::Plain);
const SETUP: Entry = entry("docs/setup.md", Machine::Systemd);

const PAGES: [Entry; 21] = [
    README,
    AGENT,
    BY_HAND,
    CONFIGURATION,
    CONFORMANCE,
    DHCP,
    DOCKER,
    DOCTOR,
    FIREWALL,
    FIRST_CONTAINER,
    FROM_GO,
    MULTI_NETWORK,
    NETWRIGHTD,
    OCI_HOOK,
    OVS,
    POLICY,
    REPAIR,
    ROUTING,
    RUNTIMES,
    SECURITY,
    SETUP,
];

/// How long one page may take: with `--full` a page runs the conformance suite, twice.
const DEADLINE: &str = "1800s";

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The pages that people read, by their paths in the checkout.
fn pages() -> Vec<String> {
    let root = checkout();
    let mut pages = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["docs", "deploy", "fuzz"].iter().map(|name| root.join(name)).collect();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let tops = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"];
    let mut files: Vec<PathBuf> = tops.iter().map(|name| root.join(name)).collect();
    files.extend(crates.map(|dir| dir.join("README.md")).filter(|file| file.exists()));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.retain(|file| file.extension().is_some_and(|ending| ending == "md"));
    for file in files {
        pages.push(file.strip_prefix(&root).unwrap().display().to_string());
    }
    pages.sort();
    pages
}

fn read(page: &str) -> Page {
    let path = checkout().join(page);
    let text = fs::read_to_string(&path);
    Page::read(&text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

#[test]
fn every_command_of_every_page_is_typed_or_says_why_not() {
    let mut mistakes = Vec::new();
    let mut reasons = String::new();
    let (mut all, mut every, mut full) = (0, 0, 0);
    for name in pages() {
        let page = read(&name);
        mistakes.extend(page.mistakes.iter().map(|mistake| format!("{name}, {mistake}")));
        let entry = PAGES.iter().find(|entry| entry.page == name);
        let (run, not): (Vec<&TypedCommand>, Vec<&TypedCommand>) =
            page.commands().partition(|typed| typed.not_run.is_none());
        if entry.is_none() && !run.is_empty() {
            mistakes.push(format!("{name}: no test follows this page"));
        }
        let long = run.iter().filter(|typed| typed.full.is_some()).count();
        all += run.len() + not.len();
        full += long;
        every += run.len() - long;
        let why: BTreeSet<&str> = not.iter().filter_map(|typed| typed.not_run.as_deref()).collect();
        for why in why {
            let count = not.iter().filter(|typed| typed.not_run.as_deref() == Some(why)).count();
            write!(reasons, "; {count} of {name}: {why}").unwrap();
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
    eprintln!(
        "MEASURED the pages' commands: {all} in all, {every} typed in every run, {full} with --full alone, {} not typed{reasons}",
        all - every - full
    );
}

/// One host, with a built checkout as the working folder.
struct Desk<'l> {
    lab: &'l Lab,
    environment: Vec<(String, String)>,
}

impl<'l> Desk<'l> {
    fn new(lab: &'l Lab, path: &str) -> Self {
        let dir = lab.dir().join("netwright");
        fs::create_dir_all(dir.join("target/dist")).unwrap();
        for entry in fs::read_dir(checkout()).unwrap() {
            let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).unwrap();
            if name != "target" {
                symlink(path, dir.join(name)).unwrap();
            }
        }
        for (built, name) in
            [(NETWRIGHT, "netwright"), (netwrightd().to_str().unwrap(), "netwrightd")]
        {
            symlink(built, dir.join("target/dist").join(name)).unwrap();
        }
        // Writes to the folders that Debian's runtimes watch stay in the lab.
        lab.sh(
            "mkdir -p /var/lib/debians && if [ -d /usr/lib/cni ]; then cp -a /usr/lib/cni/. /var/lib/debians/ && \
             mount --bind /var/lib/debians /usr/lib/cni; fi",
        );
        let environment = [("PATH", path), ("HOME", dir.to_str().unwrap())];
        let environment = environment.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Desk { lab, environment: environment.into() }
    }

    /// Types these steps; returns the commands whose result or output differs from the page's.
    fn follow(&self, first: Option<&str>, steps: &[&Step]) -> Vec<String> {
        follow(&[(None, self)], first, steps)
    }

    /// Starts a shell here that runs a script.
    fn shell(&self, script: &Path) -> Child {
        let mut bash = self.lab.command("timeout");
        bash.args([DEADLINE, "bash"]).arg(script).env_clear();
        let environment = self.environment.iter().map(|(key, value)| (key, value));
        bash.envs(environment).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// A page's machines. The first one has no name.
type Desks<'l> = [(Option<&'l str>, &'l Desk<'l>)];

/// Types these steps, each machine's into one shell; returns the commands whose result or output
/// differs from the page's.
#[expect(clippy::print_stderr, reason = "the log shows what a person sees")]
fn follow(desks: &Desks<'_>, first: Option<&str>, steps: &[&Step]) -> Vec<String> {
    let dir = desks[0].1.lab.dir().join("typed");
    fs::create_dir_all(&dir).unwrap();
    let at = |name: String| dir.join(name);
    let mut scripts: Vec<String> = Vec::new();
    for (number, (_, desk)) in desks.iter().enumerate() {
        let home = desk.lab.dir().join("netwright");
        let ended = at(format!("ended{number}"));
        scripts.push(format!(
            "cd {}\nexec </dev/null\ntrap 'touch {}' EXIT\n{}",
            home.display(),
            ended.display(),
            first.unwrap_or_default()
        ));
    }
    let mut typed = Vec::new();
    let mut before: Option<(usize, usize)> = None;
    for (number, step) in steps.iter().enumerate() {
        let Step::Session { on, typed: session } = step else {
            let Step::File { path, text } = step else { continue };
            let file = at(format!("file{number}"));
            fs::write(&file, text).unwrap();
            let folder = Path::new(path).parent().unwrap().display();
            for script in &mut scripts {
                writeln!(script, "mkdir -p {folder} && cp {} {path} || exit", file.display())
                    .unwrap();
            }
            continue;
        };
        let machine = desks.iter().position(|(name, _)| *name == on.as_deref());
        let machine = machine.unwrap_or_else(|| panic!("no such machine: {on:?}"));
        let script = &mut scripts[machine];
        if let Some((other, step)) = before.filter(|(other, _)| *other != machine) {
            let (done, ended) = (at(format!("step{step}")), at(format!("ended{other}")));
            writeln!(
                script,
                "until [ -e {0} ]; do [ ! -e {1} ] || [ -e {0} ] || exit 1; sleep 0.02; done",
                done.display(),
                ended.display()
            )
            .unwrap();
        }
        for one in session.iter().filter(|one| is_typed(one)) {
            let base = at(typed.len().to_string());
            fs::write(base.with_extension("command"), &one.command).unwrap();
            let base = base.display();
            writeln!(
                script,
                "eval \"$(cat {base}.command)\" >{base}.said 2>&1; code=$?; echo $code >{base}.code"
            )
            .unwrap();
            // Separate sessions of a page show exit codes as text.
            if first.is_none() {
                let wanted = if is_refused(one) { "!=" } else { "=" };
                writeln!(script, "[ $code {wanted} 0 ] || exit 1").unwrap();
            }
            typed.push(one);
        }
        writeln!(script, "touch {}", at(format!("step{number}")).display()).unwrap();
        before = Some((machine, number));
    }
    let shells: Vec<Child> = scripts
        .iter()
        .enumerate()
        .map(|(number, script)| {
            let file = at(format!("script{number}"));
            fs::write(&file, script).unwrap();
            desks[number].1.shell(&file)
        })
        .collect();
    let ends: Vec<Output> =
        shells.into_iter().map(|shell| shell.wait_with_output().unwrap()).collect();
    let mut wrong = Vec::new();
    for (number, one) in typed.iter().enumerate() {
        let base = at(number.to_string());
        let said = fs::read_to_string(base.with_extension("said")).unwrap_or_default();
        let code = fs::read_to_string(base.with_extension("code"));
        let code = code.unwrap_or_else(|_| "none: never ended\n".to_owned());
        if first.is_none() {
            eprintln!("# {}\n{}", one.command, said.trim_end());
        }
        let done = first.is_some() || (code == "0\n") != is_refused(one);
        if !done || !is_as_shown(&one.shown, &said) {
            let differs = first_that_differs(&one.shown, &said).unwrap_or("the end");
            wrong.push(format!(
                "line {}: {}\ndiffers at: {differs}\nits last line: {}\nexit code {code}it printed:\n{said}\nthe page shows:\n{}\n",
                one.line,
                one.command,
                said.trim_end().lines().last().unwrap_or_default(),
                one.shown.join("\n")
            ));
        }
        if !done {
            // The commands after the failed one were not typed.
            return wrong;
        }
    }
    for end in ends {
        let said = String::from_utf8_lossy(&end.stderr);
        if wrong.is_empty() && first.is_none() && !end.status.success() {
            wrong.push(format!("the shell: {}: {said}", end.status));
        }
    }
    wrong
}

/// Whether a command is typed in this run.
fn is_typed(typed: &TypedCommand) -> bool {
    typed.not_run.is_none() && (typed.full.is_none() || feature::available("full"))
}

/// Whether a page shows that a command is refused.
fn is_refused(typed: &TypedCommand) -> bool {
    typed.shown.iter().any(|line| line.starts_with("error: ") || line.starts_with("docker: Error"))
}

/// Where Debian's runtimes look for plugins first.
const DEBIANS: &str = "/usr/lib/cni";

const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The machine `b` of some pages, and `eth0` of the first machine to it.
#[expect(clippy::disallowed_methods, reason = "`Lab::sh` does not see the other lab's threads")]
fn second_machine(first: &Lab, name: &str) -> Lab {
    let second = Lab::with_processes(&format!("page-{name}-b"));
    let thread = first.netns_path();
    let thread = thread.components().nth(2).unwrap().as_os_str();
    let pair = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns"];
    let made = second.enter(|| Command::new("ip").args(pair).arg(thread).status().unwrap());
    assert!(made.success(), "{made}");
    for (lab, end) in [(first, 1), (&second, 2)] {
        lab.sh(&format!("ip link set eth0 up && ip addr add 192.0.2.{end}/24 dev eth0"));
    }
    second
}

fn follow_page(entry: &Entry) {
    let page = read(entry.page);
    let steps: Vec<&Step> = page.steps.iter().collect();
    let name = Path::new(entry.page).file_stem().unwrap().to_str().unwrap();
    if let Some(first) = &page.before_every_block {
        let follow = |step| {
            let lab = Lab::new(&format!("page-{name}"));
            Desk::new(&lab, PATH).follow(Some(first), &[step])
        };
        let wrong: Vec<String> = steps.into_iter().flat_map(follow).collect();
        assert!(wrong.is_empty(), "{}:\n{}", entry.page, wrong.join("\n"));
        return;
    }
    let lab = match entry.machine {
        Machine::Plain | Machine::PlainOrDocker | Machine::Podman | Machine::Runtimes => {
            Lab::with_processes(&format!("page-{name}"))
        }
        Machine::Systemd | Machine::Docker | Machine::DockerAndOvs => {
            Lab::with_systemd(&format!("page-{name}"))
        }
    };
    let _outside = lab.outside();
    // As every machine, this one knows a name server. Nothing answers there.
    lab.sh("rm -f /etc/resolv.conf && echo nameserver 198.51.100.2 >/etc/resolv.conf");
    // README says how the executable comes into PATH; the later pages, and all machines `b`, assume
    // that it is there.
    let with_netwright =
        |lab: &Lab| format!("{}:{PATH}", lab.dir().join("netwright/target/dist").display());
    let is_readme = entry.page == README.page;
    let path = if is_readme { PATH.to_owned() } else { with_netwright(&lab) };
    // The same holds for the Docker driver, installed as its page says.
    let installed =
        (entry.machine == Machine::DockerAndOvs).then(|| read(DOCKER.page).steps.remove(0));
    let steps: Vec<&Step> = installed.iter().chain(steps).collect();
    let mut desk = Desk::new(&lab, &path);
    let has_second = steps.iter().any(|step| matches!(step, Step::Session { on: Some(_), .. }));
    let second = has_second.then(|| second_machine(&lab, name));
    let second = second.as_ref().map(|lab| Desk::new(lab, &with_netwright(lab)));
    let _ovs = (entry.machine == Machine::DockerAndOvs).then(|| {
        let ovs = Ovs::start(&lab);
        ovs.add_bridge("br0");
        ovs.at_its_usual_place();
        ovs
    });
    let has_driver = entry.machine == Machine::PlainOrDocker && feature::available("full");
    let driver = has_driver.then(|| {
        install(&lab);
        Driver::start(&lab)
    });
    let docker = matches!(entry.machine, Machine::Docker | Machine::DockerAndOvs) || has_driver;
    let docker = docker.then(|| Docker::new(&lab));
    if let Some(docker) = &docker {
        // Docker Hub's image runs a shell unless it is told something else, and so ends at once.
        docker.run(&["create", "--name", "image", Docker::IMAGE]);
        docker.run(&["commit", "--change", r#"CMD ["sh"]"#, "image", "busybox"]);
        docker.run(&["rm", "image"]);
        desk.environment.extend(docker.environment());
    }
    if entry.machine == Machine::Podman {
        let podman = Podman::new(&lab, "/usr/lib/cni");
        podman.run(&["tag", Podman::IMAGE, "busybox"]);
        desk.environment.extend(podman.environment());
    }
    let containerd =
        (entry.machine == Machine::Runtimes).then(|| Containerd::without_network(&lab, DEBIANS));
    if let Some(containerd) = &containerd {
        let podman = Podman::new(&lab, DEBIANS);
        podman.use_defaults();
        podman.run(&["tag", Podman::IMAGE, "busybox"]);
        desk.environment.extend(podman.environment());
        desk.environment.extend(containerd.for_ctr("docker.io/library/busybox:latest"));
    }
    let second = second.as_ref().map(|desk| (Some("b"), desk));
    let desks: Vec<(Option<&str>, &Desk<'_>)> = [(None, &desk)].into_iter().chain(second).collect();
    let wrong = follow(&desks, None, &steps);
    assert!(wrong.is_empty(), "{}:\n{}", entry.page, wrong.join("\n"));
    drop(driver);
}

#[test]
fn readme() {
    require!("root", "program:busybox", "program:curl");
    follow_page(&README);
}

#[test]
fn conformance_by_hand() {
    // The reference's failures change with its releases alone, and it waits for seconds at an ADD.
    require!("full");
    require!("root", "file:/usr/lib/cni/bridge", "program:jq", "program:iptables");
    follow_page(&BY_HAND);
}

#[test]
fn netwrightd_reference() {
    require!("root");
    follow_page(&NETWRIGHTD);
}

#[test]
fn agent() {
    require!("root", "program:curl");
    follow_page(&AGENT);
}

#[test]
fn configuration() {
    require!("root");
    follow_page(&CONFIGURATION);
}

#[test]
fn conformance() {
    require!("root", "file:/usr/lib/cni/bridge");
    follow_page(&CONFORMANCE);
}

#[test]
fn dhcp() {
    require!("root", "file:/lib/systemd/systemd");
    follow_page(&DHCP);
}

#[test]
fn setup() {
    require!("root", "file:/lib/systemd/systemd");
    follow_page(&SETUP);
}

#[test]
fn docker() {
    needs_docker!();
    require!("file:/lib/systemd/systemd", "program:curl");
    follow_page(&DOCKER);
}

#[test]
fn doctor() {
    require!("root");
    follow_page(&DOCTOR);
}

#[test]
fn firewall() {
    require!("root", "program:nft");
    follow_page(&FIREWALL);
}

#[test]
fn first_container() {
    require!("root", "program:busybox", "program:curl", "program:ping");
    follow_page(&FIRST_CONTAINER);
}

#[test]
fn from_go() {
    require!(
        "root",
        "program:containerd",
        "program:runc",
        "program:podman",
        "program:crun",
        "program:curl",
        "program:iptables",
        "file:/usr/bin/busybox",
        "file:/usr/lib/cni/bridge"
    );
    follow_page(&FROM_GO);
}

#[test]
fn multi_network() {
    require!("root", "file:/lib/systemd/systemd");
    follow_page(&MULTI_NETWORK);
}

#[test]
fn oci_hook() {
    require!(
        "root",
        "program:runc",
        "program:podman",
        "program:crun",
        "program:curl",
        "file:/usr/bin/busybox"
    );
    follow_page(&OCI_HOOK);
}

#[test]
fn ovs() {
    needs_docker!();
    require!("file:/lib/systemd/systemd", "program:ovs-vswitchd", "program:ovsdb-server");
    follow_page(&OVS);
}

#[test]
fn policy() {
    require!("root", "program:busybox", "program:curl");
    if feature::available("full") {
        needs_docker!();
    }
    follow_page(&POLICY);
}

#[test]
fn repair() {
    require!("root", "file:/lib/systemd/systemd");
    follow_page(&REPAIR);
}

#[test]
fn routing() {
    require!("root", "program:ping");
    follow_page(&ROUTING);
}

#[test]
fn runtimes() {
    require!(
        "root",
        "program:containerd",
        "program:runc",
        "program:podman",
        "program:crun",
        "program:curl",
        "file:/usr/bin/busybox"
    );
    follow_page(&RUNTIMES);
}

#[test]
fn security() {
    require!("root");
    follow_page(&SECURITY);
}
