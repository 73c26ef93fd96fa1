//! Each target with its seeds and a few thousand random changes of them, as in every run of CI.

use std::collections::BTreeSet;
use std::path::Path;

use netwright_fuzz::TARGETS;
use netwright_fuzz::smoke::{random_seed, try_target};

/// The number of inputs for a target, fewer if they need files. This build is not optimised;
/// `--full` runs more, optimised.
const INPUTS: u64 = 5_000;

#[track_caller]
fn survives(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("its name is one");
    let seed = random_seed();
    if let Err(what) = try_target(target, seed, INPUTS) {
        panic!("{name}, seed {seed}: {what}");
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        const TRIED: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                survives(stringify!($name));
            }
        )*
    };
}

targets! {
    network_list
    plugin_config
    result
    error
    args
    ifname
    json_object
    dhcp_frame
    dhcp_v4
    dhcp_v6
    reservation
    address_store
    cache_entry
    owner_record
    tuning_backup
    dhcp_lease
    netlink
    iptables
    owner_comment
    sysctl
    http
    ovsdb
    npwg
    cluster
    whereabouts
    multinet
    plugin_keys
}

#[test]
fn every_target_is_tried_here_and_by_libfuzzer() {
    let known: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    let tried: BTreeSet<String> = TRIED.iter().map(|name| (*name).to_owned()).collect();
    let folder = Path::new("libfuzzer/fuzz_targets");
    let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let guided = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(tried, known);
    assert_eq!(known, guided);
}
