//! Containers are attached while the node's configurations still appear. The `cni-runtime` tests of
//! the same name show without containers which orders and timings there are; here real containers
//! are attached meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{Lab, Place, Snapshot, feature, share};

use crate::support::{Scratch, call_in};

/// How many times the node boots: in every run, with `--full`, and in a run that tries all.
const BOOTS: u32 = 4;
const BOOTS_OF_A_SHARE: u32 = 10;
const ALL_BOOTS: u32 = 100;

/// The limit of reads of the folder, for a file that never comes.
const LOOKS: u32 = 2_000;

/// Three networks that cannot be mistaken for each other, each with three plugins.
fn list(network: &str, number: u32) -> String {
    format!(
        r#"{{ "cniVersion": "1.1.0", "name": "{network}", "plugins": [
  {{ "type": "bridge", "bridge": "br-{network}", "isGateway": true,
     "ipam": {{ "type": "host-local", "subnet": "10.9{number}.0.0/24" }} }},
  {{ "type": "tuning", "mtu": 14{number}0 }},
  {{ "type": "tuning", "sysctl": {{ "net.ipv4.conf.IFNAME.arp_filter": "1" }} }} ] }}
"#
    )
}

const NETWORKS: [&str; 3] = ["pods", "storage", "netwright"];

/// Writes as a shell's `>` does, in pieces.
fn write_slowly(path: &Path, text: &str, pieces: usize) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    for piece in text.as_bytes().chunks(text.len().div_ceil(pieces)) {
        std::thread::yield_now();
        file.write_all(piece).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Whether a container has everything of a network.
fn holds(container: &impl Place, number: u32) -> bool {
    let link = container.sh("ip -o addr show dev eth0; ip -o link show dev eth0; cat /proc/sys/net/ipv4/conf/eth0/arp_filter");
    let words = [format!(" 10.9{number}.0."), format!(" mtu 14{number}0 ")];
    words.iter().all(|word| link.contains(word)) && link.trim_end().ends_with('1')
}

/// Three files appear, each time in another order: one in pieces, one by a rename, one twice. The
/// test attaches containers to their networks as soon as that works. Until then ADD fails and
/// leaves nothing; a successful ADD is complete. While a file for `netwright` is about to appear,
/// that name is not the embedded network.
#[test]
fn containers_get_whole_networks_while_files_appear() {
    testkit::require!("root");
    let boots = match feature::available("full") {
        true => share::count(ALL_BOOTS, BOOTS_OF_A_SHARE),
        false => BOOTS,
    };
    let (mut refused, mut attached) = (0_u32, 0_u32);
    for boot in 0..boots {
        let lab = Lab::new("boot");
        let before = Snapshot::take(&lab);
        call_in(&lab, &["install", "--no-config", "--bin-dir", "/opt/cni/bin"]).succeeded();
        let scratch = Scratch::new();
        let dir = scratch.path("net.d");
        fs::create_dir_all(&dir).unwrap();
        // The file that replaces the embedded network of that name has begun to appear.
        let files = NETWORKS.map(|network| dir.join(format!("10-{network}.conflist")));
        fs::write(&files[2], "").unwrap();
        let up = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..3 {
                    let which = usize::try_from((turn + boot) % 3).unwrap();
                    let number = u32::try_from(which).unwrap();
                    appear(&files[which], &list(NETWORKS[which], number), (boot / 3 + turn) % 3);
                }
                up.store(true, Ordering::Relaxed);
            });
            for (number, network) in (0..).zip(NETWORKS) {
                let name = format!("c{number}");
                let container = lab.container(&name);
                let call = ["--conf-dir", dir.to_str().unwrap(), "add", network, &name];
                for look in 0..LOOKS {
                    let over = up.load(Ordering::Relaxed);
                    let said = call_in(&lab, &call);
                    if said.code == 0 {
                        attached += 1;
                        assert!(
                            holds(&container, number),
                            "boot {boot}: half of {network}: {said:#?}"
                        );
                        break;
                    }
                    refused += 1;
                    assert!(
                        !over && look + 1 < LOOKS,
                        "boot {boot}: every file is there: {said:#?}"
                    );
                    let links = container.sh("ip -br link | wc -l");
                    assert_eq!(
                        links.trim(),
                        "1",
                        "boot {boot}: a refused ADD left something: {said:#?}"
                    );
                }
                call_in(&lab, &["--conf-dir", dir.to_str().unwrap(), "del", network, &name])
                    .succeeded();
            }
        });
        call_in(&lab, &["uninstall", "--bin-dir", "/opt/cni/bin"]).succeeded();
        // The folders of host-local and tuning stay, as with the reference.
        let left = before.diff(&Snapshot::take(&lab));
        let left: Vec<_> = left
            .iter()
            .filter(|line| !line.contains("/var/lib/cni") && !line.contains("/run/cni"))
            .collect();
        assert!(left.is_empty(), "boot {boot}: {left:#?}");
    }
    eprintln!(
        "MEASURED {boots} boots: {attached} containers attached, {refused} times refused, 0 wrong or half"
    );
}

/// Makes a file appear in one of three ways.
fn appear(path: &Path, text: &str, way: u32) {
    match way {
        0 => write_slowly(path, text, 7),
        1 => {
            let temporary = PathBuf::from(format!("{}.tmp", path.display()));
            write_slowly(&temporary, text, 3);
            fs::rename(&temporary, path).unwrap();
        }
        _ => {
            write_slowly(path, "{ \"name\": ", 2);
            write_slowly(path, text, 3);
        }
    }
}
