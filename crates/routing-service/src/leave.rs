//! Leaves a node as if routing had never been there.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use agent::config::RoutingSource;
use ipnet::IpNet;
use kernel::route::RouteSocket;
use routing::plan::ObservedObjects;
use routing::routing::{LeaveMode, without_flannels};
use routing::settings::OwnNode;
use routing::{Routing, Settings, annotation, flannel};
use service_kit::attendant;
use service_kit::command_line::Invocation;
use service_kit::exchange::{NoAnswer, ask};
use service_kit::process::Process;
use service_kit::stdio;
use service_kit::stop::{Stop, failed, words};
use state::{Index, Record, Roots};

use super::apply::{apply, unmark_tunnels};
use super::files::{Disk, NetworkFiles};
use super::filter::Filter;
use super::host::Host;
use super::own_lease::{self, Configuration};
use super::settings::{settings, under_policy};
use super::{FORCE, TO_FLANNEL, cluster_nodes};

/// How long a service may take to say that it runs.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long flanneld may take to make the rest of its routes: when it starts, it makes one after the
/// other. The second is the pause between looks at them.
const FLANNELD_TIME: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(200));

/// How many containers an error names.
const NAMED: usize = 5;

/// Removes what the service made on this node, as the command line says.
pub(super) fn uninstall(
    invocation: &Invocation,
    process: &Process,
    node: &str,
    disk: &Disk,
) -> Result<(), Stop> {
    let config = &invocation.config().routing;
    let is_etcd = config.source.0 == RoutingSource::Etcd;
    let of_etcd = is_etcd.then(|| Configuration::read_once(config, disk)).transpose()?;
    let settings = settings(config, disk, of_etcd.as_ref()).map_err(Stop::Failed)?;
    let published = NetworkFiles::new(config, under_policy(&invocation.config().policy));
    let leaving = match invocation.more.get_flag(TO_FLANNEL) {
        true if settings.flannel.is_none() => {
            return Err(Stop::Failed("--to-flannel needs flannel = \"replace\"".to_owned()));
        }
        true => LeaveMode::ToFlannel,
        false => LeaveMode::Clean,
    };
    let forget = || match (config.source.0, &of_etcd) {
        (RoutingSource::Kubernetes, _) => {
            let mut annotations = vec![annotation::KEY.to_owned()];
            if let (Some(of_flannel), LeaveMode::Clean) = (&settings.flannel, leaving) {
                annotations.extend(flannel::annotations::written(of_flannel));
            }
            cluster_nodes::forget(config.kubeconfig.as_deref(), node, &annotations)
        }
        (RoutingSource::Etcd, Some(of_etcd)) if leaving == LeaveMode::Clean => {
            own_lease::forget(config, &settings, node, &of_etcd.windows)
        }
        _ => Ok(()),
    };
    let roots = process.roots();
    if leaving == LeaveMode::Clean && !invocation.more.get_flag(FORCE) {
        refuse_attached(&config.network, &roots)?;
    }
    leave(&settings, node, leaving, disk, &published, &roots, forget)
}

/// Refuses while containers of the network are attached: other nodes would no longer reach them.
fn refuse_attached(network: &str, roots: &Roots) -> Result<(), Stop> {
    let read = Index::new(roots).list();
    let of_network = |record: &&Record| record.attachment.network.as_str() == network;
    let attached: BTreeSet<String> =
        read.found.iter().filter(of_network).map(|record| record.attachment.to_string()).collect();
    // A record that cannot be read may be of a container of the network.
    let damaged = read.nameless().map(|one| format!("{} (damaged)", one.path.display()));
    let attached: Vec<String> = attached.into_iter().chain(damaged).collect();
    if attached.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = attached.iter().take(NAMED).map(String::as_str).collect();
    let more = match attached.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(Stop::Failed(format!(
        "containers of the network are attached here, and would be cut off from other nodes: {}{more}; \
         stop them first, or give --force",
        named.join(", ")
    )))
}

/// Removes everything that the service made. One failure stops nothing else. `forget` removes what
/// the source has of this node because the service wrote it.
fn leave(
    settings: &Settings,
    node: &str,
    leaving: LeaveMode,
    disk: &Disk,
    published: &NetworkFiles,
    roots: &Roots,
    forget: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    if settings.standby {
        return Err(Stop::Print("in standby the service has made nothing\n".to_owned()));
    }
    if !matches!(
        ask(&attendant::socket(roots, "routing"), "/livez", TIMEOUT),
        Err(NoAnswer::Nobody(_))
    ) {
        return Err(Stop::Failed(
            "the service routing runs, and would make everything again: stop it first".to_owned(),
        ));
    }
    let mut netlink = RouteSocket::open().map_err(failed)?;
    // A tunnel of flanneld's that was not taken over has no mark, and is not ours.
    let unmarked = Settings { flannel: None, ..settings.clone() };
    let mut routing = Routing::new(unmarked, node);
    let own = routing.cluster().own().clone();
    let ranges: Vec<IpNet> = settings.ranges().collect();
    let (mut host, observed, lacking) = read(&mut netlink, settings, &own, leaving)?;
    let mut errors = Vec::new();
    let mut said = String::new();
    for prefix in lacking {
        said.push_str(&format!("flanneld has no route to {prefix}, and none of ours stays\n"));
    }
    // From now on no pod is to start.
    match published.remove(leaving) {
        Ok(paths) => {
            paths.iter().for_each(|path| said.push_str(&format!("removed {}\n", path.display())));
        }
        Err(error) => errors.push(words(&error)),
    }
    // From now on no other node is to send packets here.
    if let Err(Stop::Failed(why)) = forget() {
        errors.push(why);
    }
    let _ = routing.look(observed);
    let changes = routing.leave(leaving);
    let all: Vec<_> = changes.iter().collect();
    for (change, result) in changes.iter().zip(apply(&mut netlink, &mut host.links, &all)) {
        match result {
            Ok(()) => said.push_str(&format!("{change}\n")),
            Err(error) => errors.push(format!("{change}: {error}")),
        }
    }
    if leaving == LeaveMode::ToFlannel {
        errors.extend(unmark_tunnels(&mut netlink, &host.links));
    }
    match Filter::open(settings, false, roots) {
        Ok(mut filter) => {
            // Those that the service opened, with the node's own prefixes among them.
            let removed = filter.remove(&ranges);
            errors.extend(removed.err().map(|error| words(&error)));
        }
        Err(error) => errors.push(words(&error)),
    }
    errors.extend(disk.remove().err().map(|error| words(&error)));
    if errors.is_empty() {
        said.push_str("forwarding stays as it is: another program may rely on it by now\n");
        return Err(Stop::Print(said));
    }
    stdio::say(&said);
    Err(Stop::Failed(errors.join("; ")))
}

/// Reads what the kernel has. Where the node goes back to flanneld, it waits for the rest of
/// flanneld's routes, and returns the prefixes to which there are none then: flanneld ignores nodes
/// of another backend.
fn read(
    netlink: &mut RouteSocket,
    settings: &Settings,
    own: &OwnNode,
    leaving: LeaveMode,
) -> Result<(Host, ObservedObjects, Vec<IpNet>), Stop> {
    let ranges: Vec<IpNet> = settings.ranges().collect();
    let begin = Instant::now();
    loop {
        let mut host = Host::read(netlink, own, &ranges).map_err(failed)?;
        let observed = host.observe(netlink, &ranges, own, Vec::new()).map_err(failed)?;
        let lacking = match leaving {
            LeaveMode::Clean => Vec::new(),
            LeaveMode::ToFlannel => without_flannels(&observed, &settings.cluster_ranges)
                .map_err(|error| Stop::Failed(error.to_string()))?,
        };
        if lacking.is_empty() || FLANNELD_TIME.0 <= begin.elapsed() {
            return Ok((host, observed, lacking));
        }
        std::thread::sleep(FLANNELD_TIME.1);
    }
}

#[cfg(test)]
mod tests {
    use cni::AttachmentKey;

    use super::*;

    /// The other half of the way off: the network of containers that run stays.
    #[test]
    fn what_would_be_cut_off_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::new(folder.path().join("run"), folder.path().join("lib"));
        refuse_attached("pods", &roots).unwrap();
        let put = |network: &str, id: &str| {
            let key = AttachmentKey {
                network: network.parse().unwrap(),
                container_id: id.parse().unwrap(),
                ifname: "eth0".parse().unwrap(),
            };
            let record = Record::new(key, "ptp", "boot", serde_json::Value::Null);
            Index::new(&roots).put(&record).unwrap();
        };
        put("other", "web");
        refuse_attached("pods", &roots).unwrap();
        (0..7).for_each(|number| put("pods", &format!("c{number}")));
        let Err(Stop::Failed(why)) = refuse_attached("pods", &roots) else { panic!("refused") };
        assert!(why.contains("c0/eth0") && why.contains(" and 2 more; stop them first"), "{why}");
    }

    /// Its container may be of the network.
    #[test]
    fn a_damaged_record_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::new(folder.path().join("run"), folder.path().join("lib"));
        let put = |plugin: &str| {
            let key = AttachmentKey {
                network: "other".parse().unwrap(),
                container_id: "web".parse().unwrap(),
                ifname: "eth0".parse().unwrap(),
            };
            let record = Record::new(key, plugin, "boot", serde_json::Value::Null);
            Index::new(&roots).put(&record).unwrap();
            let records = roots.run.join("owners").join(record.attachment.hash());
            records.join(format!("{plugin}.json"))
        };
        let (first, second) = (put("ptp"), put("portmap"));
        std::fs::write(&first, "{").unwrap();
        // The other record says that the container is of another network.
        refuse_attached("pods", &roots).unwrap();
        std::fs::write(&second, "{").unwrap();
        let Err(Stop::Failed(why)) = refuse_attached("pods", &roots) else { panic!("refused") };
        for file in [first, second] {
            assert!(why.contains(&format!("{} (damaged)", file.display())), "{why}");
        }
    }
}
