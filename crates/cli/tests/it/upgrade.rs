//! A node's plugins are replaced while containers come and go, and then restored.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use testkit::{Container, Lab, Place, Snapshot, feature, share};

use crate::support::{EXECUTABLE, assert_as_before, wait_for_addresses};

/// Where Debian puts the reference's plugins.
const GO: &str = "/usr/lib/cni";

/// Where a node has its plugins.
const BIN: &str = "/opt/cni/bin";

/// Containers that come and go at the same time.
const WORKERS: usize = 4;

/// How often the plugins are replaced: in every run, with `--full`, and in a run that tries all.
const UPGRADES: usize = 12;
const UPGRADES_OF_A_SHARE: usize = 50;
const ALL_UPGRADES: usize = 200;

/// Calls a plugin as a runtime does that tries once: if the kernel refuses to execute it, the call
/// fails.
#[expect(
    clippy::disallowed_methods,
    reason = "runtimes' own retries would hide what is looked for"
)]
fn call(plugin: &str, verb: &str, container: &Container) -> Result<(), String> {
    let config = r#"{ "cniVersion": "1.0.0", "name": "upgrade", "type": "bridge", "bridge": "up0", "isGateway": true,
        "ipam": { "type": "host-local", "subnet": "10.94.0.0/24" } }"#;
    let mut child = Command::new(format!("{BIN}/{plugin}"))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", container.name())
        .env("CNI_NETNS", container.netns())
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", BIN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{plugin} could not be executed: {error}"))?;
    child.stdin.take().unwrap().write_all(config.as_bytes()).map_err(|error| error.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        return Err(format!(
            "{}: {} {}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        ));
    }
    let result = serde_json::from_slice::<serde_json::Value>(&output.stdout);
    match verb {
        "ADD" if !result.as_ref().is_ok_and(|result| result["ips"].is_array()) => {
            Err(format!("ADD printed {}", text(&output.stdout)))
        }
        _ => Ok(()),
    }
}

/// From the reference's plugins to ours, and from one version of ours to another and back,
/// repeatedly, while four containers are attached and detached as fast as possible: not one call
/// fails. Then the node has its own plugins back.
#[test]
fn no_call_fails_while_the_plugins_are_replaced() {
    testkit::require!("root", "file:/usr/lib/cni/bridge");
    let upgrades = match feature::available("full") {
        true => share::count(ALL_UPGRADES, UPGRADES_OF_A_SHARE),
        false => UPGRADES,
    };
    let lab = Lab::new("upgrade");
    lab.sh("sysctl -qw net.ipv4.ip_forward=1");
    // Another version: the same program in another file.
    lab.sh(&format!("mkdir -p {BIN} /opt/old /opt/new && cp {EXECUTABLE} /opt/old/netwright"));
    lab.sh("cp /opt/old/netwright /opt/new/netwright && echo newer >>/opt/new/netwright");
    lab.sh(&format!("cp -p {GO}/bridge {GO}/host-local {BIN}"));
    let own = lab.enter(|| whole(Path::new(BIN)));
    // The reference makes its bridge once, and it stays.
    let first = lab.container("first");
    for verb in ["ADD", "DEL"] {
        lab.enter(|| call("bridge", verb, &first)).unwrap();
    }
    drop(first);
    wait_for_addresses(&lab);
    let before = Snapshot::take(&lab);
    let containers: Vec<Container> =
        (0..WORKERS).map(|number| lab.container(&format!("c{number}"))).collect();
    let (over, added) = (AtomicBool::new(false), AtomicUsize::new(0));
    let started = Instant::now();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = containers
            .iter()
            .map(|container| {
                let (lab, over, added) = (&lab, &over, &added);
                scope.spawn(move || {
                    lab.enter(|| {
                        let mut failures = Vec::new();
                        while !over.load(Ordering::Relaxed) {
                            for verb in ["ADD", "DEL"] {
                                failures.extend(call("bridge", verb, container).err());
                            }
                            added.fetch_add(1, Ordering::Relaxed);
                        }
                        failures
                    })
                })
            })
            .collect();
        for upgrade in 0..upgrades {
            // The plugins are replaced in the middle of calls. Each version has worked before the
            // next one comes.
            let seen = added.load(Ordering::Relaxed);
            while added.load(Ordering::Relaxed) < seen + WORKERS {
                std::thread::yield_now();
                if workers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    break;
                }
            }
            let version = ["old", "new"][upgrade % 2];
            lab.sh(&format!("/opt/{version}/netwright install --no-config --bin-dir {BIN}"));
        }
        over.store(true, Ordering::Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let (added, seconds) = (added.into_inner(), started.elapsed().as_secs_f64());
    assert!(failures.is_empty(), "{} of {added}: {failures:#?}", failures.len());
    assert!(upgrades < added);
    drop(containers);
    lab.sh(&format!("{BIN}/netwright uninstall --bin-dir {BIN}"));
    assert_eq!(lab.enter(|| whole(Path::new(BIN))), own);
    assert_as_before(&before, &lab);
    eprintln!(
        "MEASURED {added} ADDs and DELs under {upgrades} upgrades in {seconds:.1} s, {:.0} ADD/s, 0 failed",
        f64::from(u32::try_from(added).unwrap()) / seconds
    );
}

/// Containers run during an upgrade: the installation closes what the rules of an older version let
/// through.
#[test]
fn an_installation_brings_the_rules_of_an_older_version_up_to_date() {
    testkit::require!("root");
    let lab = Lab::new("upgrade-rules");
    let install = || lab.sh(&format!("{EXECUTABLE} install --no-config --bin-dir {BIN} 2>&1"));
    install();
    assert_eq!(lab.sh("nft list ruleset"), "", "no table is made");
    lab.sh("mkdir -p /run/netwright && nft add table inet netwright '{ comment \"Netwright, layout 1.\"; }' && \
            nft add set inet netwright localnet '{ type ifname; elements = { \"cni0\" comment \"shared localnet cni0\" }; }'");
    assert!(install().contains("this version's rules"));
    let table = lab.sh("nft list table inet netwright");
    for there in [
        "iifname != \"lo\" ip daddr 127.0.0.0/8 return",
        "\"cni0\" comment \"shared localnet cni0\"",
    ] {
        assert!(table.contains(there), "{table}");
    }
    assert!(!install().contains("this version's rules"));
}

/// Everything of a file that an installation could lose.
#[derive(Debug, PartialEq, Eq)]
struct FileSnapshot {
    inode: u64,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    content: Vec<u8>,
    attributes: BTreeMap<String, Vec<u8>>,
}

fn whole(dir: &Path) -> BTreeMap<String, FileSnapshot> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_symlink() {
            std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if meta.is_dir() {
            format!("{:#?}", whole(&path)).into_bytes()
        } else {
            std::fs::read(&path).unwrap()
        };
        let one = FileSnapshot {
            inode: meta.ino(),
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            // A folder's times change with its contents.
            modified: if meta.is_dir() { (0, 0) } else { (meta.mtime(), meta.mtime_nsec()) },
            content,
            attributes: attributes(&path),
        };
        found.insert(entry.file_name().to_string_lossy().into_owned(), one);
    }
    found
}

/// Extended attributes: an SELinux label is one.
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = OsStr::new(std::str::from_utf8(name).unwrap());
            let mut value = vec![0; 4096];
            let length = lgetxattr(path, name, &mut value).unwrap();
            (name.to_str().unwrap().to_owned(), value[..length].to_vec())
        })
        .collect()
}

/// A folder with all kinds of things in it is the same after an installation, an upgrade and
/// `uninstall`, down to the inodes.
#[test]
fn uninstall_gives_the_very_same_files_back() {
    testkit::require!("root");
    let lab = Lab::new("upgrade-back");
    lab.sh(&format!(
        "mkdir -p {BIN} /opt/new /etc/cni/net.d && cp {EXECUTABLE} /opt/new/netwright"
    ));
    lab.sh("echo newer >>/opt/new/netwright");
    lab.enter(|| {
        let dir = Path::new(BIN);
        // Under a plugin's name: a program, a file that may not be executed, a link, a link that
        // leads nowhere.
        for (name, mode) in [("bridge", 0o4755), ("portmap", 0o600), ("their-plugin", 0o755)] {
            let path = dir.join(name);
            std::fs::write(&path, format!("somebody's {name}")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
            let times = std::fs::FileTimes::new()
                .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 5));
            std::fs::File::open(&path).unwrap().set_times(times).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let label: &[u8] = b"system_u:object_r:container_runtime_exec_t:s0\0";
            lsetxattr(&path, "security.selinux", label, XattrFlags::empty()).unwrap();
        }
        symlink("their-plugin", dir.join("host-local")).unwrap();
        symlink("/nowhere/at/all", dir.join("vlan")).unwrap();
        std::fs::create_dir(dir.join("somebodys-folder")).unwrap();
    });
    let before = Snapshot::take(&lab);
    let own = lab.enter(|| whole(Path::new(BIN)));
    for installer in [EXECUTABLE, "/opt/new/netwright", EXECUTABLE] {
        lab.sh(&format!("{installer} install --bin-dir {BIN}"));
        let installed = lab.enter(|| whole(Path::new(BIN)));
        assert_eq!(installed["bridge"].content, format!("#!{BIN}/netwright\n").as_bytes());
        assert_eq!(installed["their-plugin"], own["their-plugin"], "foreign files stay");
    }
    lab.sh(&format!("{BIN}/netwright uninstall --bin-dir {BIN}"));
    assert_eq!(lab.enter(|| whole(Path::new(BIN))), own);
    assert_as_before(&before, &lab);
}
