use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use testkit::{Lab, Place as _, require};

#[test]
fn a_lab_is_a_fresh_host() {
    require!("root");
    let lab = Lab::new("fresh");
    assert_eq!(lab.sh("ip -br link | wc -l").trim(), "1", "only lo");
    assert!(lab.sh("ip -br addr show lo").contains("127.0.0.1/8"));
    assert_eq!(lab.sh("cat /proc/sys/net/ipv4/ip_forward").trim(), "0");
    assert_eq!(lab.sh("ls /sys/class/net").trim(), "lo");
    assert_eq!(lab.sh("ls -A /run").split_whitespace().collect::<Vec<_>>(), ["lock", "netns"]);
    assert_eq!(lab.sh("ls -d /etc/cni /var/lib/cni /opt/cni 2>/dev/null || true"), "");
    assert!(lab.sh("ls /sys/fs/cgroup").len() > 1, "cgroups are where programs look for them");
}

/// The settings of each device that a new namespace has, if there is a file for it.
const SHOWN: &str = "cd /proc/sys/net && grep -H . \
    ipv4/conf/*/forwarding ipv4/conf/*/rp_filter ipv4/conf/*/promote_secondaries ipv4/conf/*/route_localnet \
    ipv4/conf/*/send_redirects ipv6/conf/*/forwarding ipv6/conf/*/accept_ra ipv6/conf/*/autoconf \
    ipv6/conf/*/use_tempaddr";

#[test]
fn vm_a_lab_takes_over_no_sysctl_of_the_machine() {
    require!("root", "configured-machine");
    let lab = Lab::new("fresh");
    let c1 = lab.container("c1");
    for shown in [lab.sh(SHOWN), c1.sh(SHOWN)] {
        let values = |file: &str| -> Vec<&str> {
            let lines = shown.lines().filter(|line| line.contains(file));
            lines.filter_map(|line| Some(line.rsplit_once(':')?.1)).collect()
        };
        for off in [
            "v4/conf/all/forwarding",
            "v6/conf/all/forwarding",
            "rp_filter",
            "promote",
            "route_localnet",
        ] {
            assert!(values(off).iter().all(|value| *value == "0"), "{off}: {shown}");
        }
        for on in ["send_redirects", "accept_ra", "autoconf"] {
            assert!(values(on).iter().all(|value| *value == "1"), "{on}: {shown}");
        }
        assert_eq!(values("default/use_tempaddr"), ["0"]);
        assert_eq!(values("forwarding").len(), 6, "{shown}");
    }
    let machine = fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    assert_eq!(machine.trim(), "1", "the machine forwards as before");
}

#[test]
fn what_a_lab_writes_does_not_reach_the_machine() {
    require!("root");
    let lab = Lab::new("private");
    for file in [
        "/run/nwt-mark",
        "/etc/nwt-mark",
        "/var/lib/nwt-mark",
        "/opt/nwt-mark",
        "/dev/shm/nwt-mark",
    ] {
        lab.sh(&format!("echo here > {file}"));
        assert!(!Path::new(file).exists(), "{file} on the machine");
        assert_eq!(fs::read_to_string(lab.path(file)).unwrap(), "here\n");
        assert_eq!(lab.enter(|| fs::read_to_string(file).unwrap()), "here\n");
    }
    fs::write(lab.dir().join("shared"), "both").unwrap();
    assert_eq!(lab.sh(&format!("cat {}/shared", lab.dir().display())), "both");
}

/// The tests for the virtual machine are chosen in this way: when asked, each test says whether it
/// would be skipped without `--full`, and does nothing else.
#[test]
fn a_test_that_is_asked_does_nothing() {
    let ask = |name: &str| {
        let asked = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("NWT_VICTIM", "1")
            .env(testkit::feature::ASKED_VARIABLE, "1")
            .env_remove(testkit::feature::FULL_VARIABLE)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        assert!(asked.status.success(), "{said}");
        said
    };
    let said = ask("lab::runs_in_a_full_run");
    assert!(said.contains("SKIP lab::runs_in_a_full_run: only with --full\n"), "{said}");
    let said = ask("lab::runs_in_every_run");
    assert!(!said.contains("SKIP"), "{said}");
}

#[test]
fn runs_in_a_full_run() {
    if std::env::var_os("NWT_VICTIM").is_some() {
        require!("full");
        panic!("it was run");
    }
}

#[test]
fn runs_in_every_run() {
    if std::env::var_os("NWT_VICTIM").is_some() {
        require!("file:/");
        panic!("it was run");
    }
}

/// A lab stands for a machine whose checkout is in `/opt`, where a lab puts an overlay.
#[test]
fn a_checkout_that_a_lab_would_cover_is_the_machines() {
    require!("root");
    let machine = Lab::new("machine");
    let checkout = Path::new("/opt/my checkout");
    let built = checkout.join("target/debug/deps");
    fs::create_dir_all(machine.path(&built)).unwrap();
    fs::create_dir(machine.path(checkout.join("package"))).unwrap();
    fs::write(machine.path(checkout.join("Cargo.lock")), "").unwrap();
    fs::copy(std::env::current_exe().unwrap(), machine.path(built.join("it"))).unwrap();
    let output = machine
        .command("env")
        .arg(format!("--chdir={}", checkout.join("package").display()))
        .args([OsStr::new("NWT_VICTIM=1"), built.join("it").as_os_str()])
        .args(["--exact", "lab::writes_into_its_checkout", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mark = fs::read_to_string(machine.path(checkout.join("mark")));
    assert_eq!(mark.unwrap(), "seen\n", "what is written there reaches the machine");
}

#[test]
fn writes_into_its_checkout() {
    if std::env::var_os("NWT_VICTIM").is_none() {
        return;
    }
    let lab = Lab::new("covers");
    lab.sh("test -e ../Cargo.lock && echo seen >../mark");
    lab.sh("echo private >/opt/mark");
    assert!(!Path::new("/opt/mark").exists(), "the rest of the folder is the lab's");
}

#[test]
fn containers_are_named_namespaces() {
    require!("root");
    let lab = Lab::new("named");
    let mut c1 = lab.container("c1");
    assert_eq!(lab.sh("ip netns list").trim(), "c1");
    assert_eq!(c1.sh("ip -br link").split_whitespace().next(), Some("lo"));
    let inode = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).unwrap().ino()
    };
    let from_thread = c1.enter(|| inode(Path::new("/proc/thread-self/ns/net")));
    let pid = c1.pid();
    assert_eq!(from_thread, inode(&c1.netns_path()));
    assert_eq!(from_thread, inode(Path::new(&format!("/proc/{pid}/ns/net"))));
    assert_ne!(from_thread, inode(&lab.netns_path()));
    drop(c1);
    assert_eq!(lab.sh("ls -A /run/netns"), "");
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn programs_start_in_the_current_directory() {
    require!("root");
    let lab = Lab::new("cwd");
    let here = std::env::current_dir().unwrap();
    assert_eq!(lab.sh("pwd").trim(), here.to_str().unwrap());
    assert_eq!(lab.enter(|| std::env::current_dir().unwrap()), here);
}

#[test]
fn a_dropped_lab_leaves_no_process() {
    require!("root");
    for lab in [Lab::new("plain"), Lab::with_processes("pids")] {
        // A daemon: its parent is gone before the test looks.
        lab.sh("setsid sleep 1000 >/dev/null 2>&1 & echo started");
        let pids = lab.processes();
        assert!(!pids.is_empty());
        let dir = lab.dir().to_owned();
        drop(lab);
        let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
        assert!(left.is_empty(), "processes {left:?} are alive");
        assert!(!dir.exists());
    }
}

#[test]
fn a_lab_with_processes_numbers_them_from_one() {
    require!("root");
    let lab = Lab::with_processes("pids");
    assert_eq!(lab.sh("cat /proc/1/comm").trim(), "cat");
    assert_eq!(lab.sh("echo $$ && readlink /proc/self/ns/pid").lines().count(), 2);
    // Code sees a namespace that a program made, and a program sees one that code made.
    lab.sh("ip netns add made-inside");
    assert!(lab.enter(|| fs::read_dir("/run/netns").unwrap().count()) == 1);
    let c1 = lab.container("c1");
    assert!(lab.sh("ip netns exec c1 ip -br link").starts_with("lo"));
    assert!(c1.sh("ip -br link").starts_with("lo"));
    // Orphans are reaped: a runtime that waits for a PID to disappear does not wait for ever.
    lab.sh("setsid sh -c 'sleep 0.01 & exit' & wait");
    let deadline = Instant::now() + Duration::from_secs(5);
    while !lab.sh("grep -l '^State:.Z' /proc/[0-9]*/status || true").is_empty() {
        assert!(Instant::now() < deadline, "zombies");
    }
}

#[test]
fn a_lab_dies_with_its_test() {
    require!("root");
    // The test binary runs itself as a victim that makes a lab, prints a line and waits to be
    // killed.
    let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lab::victim", "--nocapture"])
        .env("NWT_VICTIM", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(victim.stdout.take().unwrap());
    let pids: Vec<u32> = loop {
        let mut line = String::new();
        assert!(
            std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0,
            "the victim ended"
        );
        if let Some((_, pids)) = line.split_once("pids ") {
            break pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        }
    };
    assert!(pids.len() >= 2, "{pids:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while let Some(pid) = pids.iter().find(|pid| is_alive(**pid)) {
        assert!(Instant::now() < deadline, "process {pid} outlives the test");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn victim() {
    if std::env::var_os("NWT_VICTIM").is_none() {
        return;
    }
    let lab = Lab::with_processes("victim");
    lab.sh("setsid sleep 1000 >/dev/null 2>&1 & echo started");
    let plain = Lab::new("victim-plain");
    let _sleep = plain.start("sleep", &["1000"]);
    let pids: Vec<String> =
        lab.processes().iter().chain(&plain.processes()).map(u32::to_string).collect();
    let own = std::process::id().to_string();
    let pids: Vec<_> = pids.into_iter().filter(|pid| *pid != own).collect();
    use std::io::Write as _;
    // The print macros would be captured: the parent reads the pipe.
    writeln!(std::io::stdout(), "pids {}", pids.join(" ")).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']))
}
