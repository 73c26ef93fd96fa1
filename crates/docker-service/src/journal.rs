//! What is on disk: one file per network, endpoint and pool. It is the only memory: nothing is kept
//! between two calls.
//!
//! Before the driver does something it writes and flushes the file about it; it removes the file
//! after undoing it. So after a crash the next driver finds at most more records than there are
//! things, and undoes those.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni::{Error, code};
use cni_plugin::codes;
use cnm::network::{CreateEndpoint, CreateNetwork, CreatedEndpoint, JoinAnswer};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::holds::{Hold, SHARED};
use super::mirrored_file::{Place, Record};

/// The version of the files.
const VERSION: u32 = 1;

/// The journal's folders.
const NETWORKS: &str = "networks";
const ENDPOINTS: &str = "endpoints";
const POOLS: &str = "pools";

/// The longest ID: Docker's have 64 characters, those of swarm networks 25.
const MAX_ID: usize = 64;

/// The port-publishing capability, by its name in the CNI conventions.
pub(crate) const PORT_MAPPINGS: &str = "portMappings";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Network {
    pub(crate) version: u32,
    pub(crate) id: String,
    /// The network list as it was when the network was created, a JSON text.
    pub(crate) conflist: String,
    /// We made the list from options: only Docker uses the network.
    pub(crate) made: bool,
    /// The network does not reach outside.
    pub(crate) internal: bool,
    /// The interface's name while plugins work on it.
    pub(crate) ifname: String,
    /// The prefix of the interface's name in the container.
    pub(crate) prefix: String,
    /// Docker's request.
    pub(crate) asked: CreateNetwork,
    /// The pools it has of ours, by the names of its holds; `None` when a previous driver without
    /// holds created it.
    #[serde(default)]
    pub(crate) holds: Option<Vec<String>>,
    /// Docker has released a pool of it: the network is about to be removed, or was removed without
    /// a call to us.
    #[serde(default)]
    pub(crate) released: bool,
}

/// The phase of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    /// Plugins are at work, or were when the driver ended.
    Adding,
    /// Everything is made, in the namespace that holds the link.
    Added,
    /// Docker has the link.
    Joined,
    /// Docker has given the link back, or is about to.
    Left,
    /// It is to be deleted, and the first attempt failed.
    Deleting,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) network: String,
    pub(crate) phase: Phase,
    /// When the phase began: the boot, and the seconds since that boot.
    pub(crate) boot_id: String,
    pub(crate) since_s: u64,
    pub(crate) asked: CreateEndpoint,
    pub(crate) answer: CreatedEndpoint,
    /// What the last plugin returned, in the list's version.
    pub(crate) result: Option<String>,
    /// The link's name on the host while Docker takes it or gives it back.
    pub(crate) src_name: String,
    pub(crate) layout: Layout,
    pub(crate) sandbox: Option<PathBuf>,
    /// The engine's process that joined it, if we could see it.
    pub(crate) engine: Option<String>,
    pub(crate) joined: Option<JoinAnswer>,
    /// The published ports, as the capability `portMappings` has them.
    pub(crate) ports: Vec<PortMapping>,
    /// Docker has said that this endpoint is on the container's gateway network.
    #[serde(default)]
    pub(crate) leads_out: bool,
}

/// The state that plugins gave the link; the link must have it again once it is in the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Layout {
    pub(crate) mac: String,
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) routes: Vec<LayoutRoute>,
    /// Sysctls that differ from those of a new interface: `ipv4` or `ipv6`, name, value.
    pub(crate) switches: Vec<(String, String, String)>,
    /// Tables to which rules send packets by their source address.
    pub(crate) tables: Vec<LayoutTable>,
}

/// A routing table for source addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayoutTable {
    pub(crate) table: u32,
    pub(crate) sources: Vec<IpNet>,
    pub(crate) routes: Vec<LayoutRoute>,
}

/// A route by the link, in the main table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LayoutRoute {
    pub(crate) destination: IpNet,
    pub(crate) gateway: Option<IpAddr>,
    /// The kernel made it, for an address.
    pub(crate) by_kernel: bool,
}

/// A published port (CNI conventions, `portMappings`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PortMapping {
    pub(crate) host_port: u16,
    pub(crate) container_port: u16,
    pub(crate) protocol: String,
    #[serde(rename = "hostIP", default, skip_serializing_if = "String::is_empty")]
    pub(crate) host_ip: String,
}

/// A pool of the IPAM driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pool {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) subnet: IpNet,
    /// The part that is handed out, in records of older drivers; now the hold has it.
    pub(crate) part: Option<IpNet>,
    /// The network list whose addresses these are.
    pub(crate) conflist: Option<String>,
    pub(crate) gateway: Option<IpAddr>,
    /// The addresses that are handed out, and what for.
    pub(crate) taken: BTreeMap<IpAddr, Use>,
    /// The holds to which each address is handed out.
    #[serde(default)]
    pub(crate) held_by: BTreeMap<IpAddr, BTreeSet<String>>,
    /// The holds of the pool, by name.
    #[serde(default = "shared_hold")]
    pub(crate) holds: BTreeMap<String, Hold>,
    /// The record was lost and rebuilt: there may be more holds than it says.
    #[serde(default)]
    pub(crate) rebuilt: bool,
    /// The last address that was chosen here: the search for the next one starts after it.
    pub(crate) last: Option<IpAddr>,
}

/// What an address is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Use {
    Gateway,
    Any,
}

#[derive(Debug, Clone)]
pub(crate) struct Journal {
    dir: PathBuf,
    /// The copies, which last until the next boot.
    copies: PathBuf,
}

impl Record for Network {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Record for Endpoint {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Record for Pool {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Journal {
    pub(crate) fn open(dir: &Path, copies: &Path) -> Result<Self, state::FileError> {
        for folder in [NETWORKS, ENDPOINTS, POOLS] {
            for folder in [dir.join(folder), copies.join(folder)] {
                state::create_directory(&folder, 0o700)?;
                state::remove_abandoned(&folder);
            }
        }
        let journal = Journal { dir: dir.to_owned(), copies: copies.to_owned() };
        journal.heal::<Network>(NETWORKS);
        journal.heal::<Endpoint>(ENDPOINTS);
        journal.heal::<Pool>(POOLS);
        journal.write_lost_pools();
        Ok(journal)
    }

    /// Opens the journal of a driver that runs in another process, only for reading.
    pub(crate) fn of_another(dir: &Path, copies: &Path) -> Self {
        Journal { dir: dir.to_owned(), copies: copies.to_owned() }
    }

    pub(crate) fn network(&self, id: &str) -> Result<Option<Network>, Error> {
        self.read(NETWORKS, id)
    }

    /// Returns a network, or an error that says what to do.
    pub(crate) fn known_network(&self, id: &str) -> Result<Network, Error> {
        self.network(id)?.ok_or_else(|| {
            Error::new(
                code::INVALID_CONFIG,
                format!("network {} is not known to netwright", short(id)),
            )
            .with_details(
                "its record is gone: remove the network with docker network rm and create it again",
            )
        })
    }

    pub(crate) fn networks(&self) -> Vec<Network> {
        self.list(NETWORKS)
    }

    pub(crate) fn put_network(&self, network: &Network) -> Result<(), Error> {
        self.write(NETWORKS, &network.id, network)
    }

    pub(crate) fn remove_network(&self, id: &str) -> Result<(), Error> {
        self.remove(NETWORKS, id)
    }

    pub(crate) fn endpoint(&self, id: &str) -> Result<Option<Endpoint>, Error> {
        self.read(ENDPOINTS, id)
    }

    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        self.list(ENDPOINTS)
    }

    pub(crate) fn put_endpoint(&self, endpoint: &Endpoint) -> Result<(), Error> {
        self.write(ENDPOINTS, &endpoint.id, endpoint)
    }

    /// Writes what does not outlive a reboot, without waiting for the disk.
    pub(crate) fn note_endpoint(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let place = self.place(ENDPOINTS, &endpoint.id)?;
        place.write_copy(endpoint).map_err(|error| failed(&error))
    }

    pub(crate) fn remove_endpoint(&self, id: &str) -> Result<(), Error> {
        self.remove(ENDPOINTS, id)
    }

    /// Returns the IDs of endpoints whose record and its copy are damaged.
    pub(crate) fn lost_endpoints(&self) -> Vec<String> {
        let mut ids = self.ids(ENDPOINTS);
        ids.retain(|id| self.endpoint(id).is_err());
        ids
    }

    /// Says whether an endpoint may be there that [`Journal::endpoints`] does not name: its record
    /// and its copy are damaged, or the records cannot be listed.
    pub(super) fn may_lack_an_endpoint(&self) -> bool {
        self.listed(ENDPOINTS).map_or(true, |ids| ids.iter().any(|id| self.endpoint(id).is_err()))
    }

    pub(crate) fn pool(&self, id: &str) -> Result<Option<Pool>, Error> {
        self.read(POOLS, id).or_else(|error| self.rebuilt_pool(id).map(Some).ok_or(error))
    }

    pub(crate) fn pools(&self) -> Vec<Pool> {
        self.ids(POOLS).iter().filter_map(|id| self.pool(id).ok().flatten()).collect()
    }

    /// Returns the pools, or an error if one of them, or their folder, cannot be read.
    pub(super) fn all_pools(&self) -> Result<Vec<Pool>, Error> {
        let pools: Vec<Option<Pool>> =
            self.listed(POOLS)?.iter().map(|id| self.pool(id)).collect::<Result<_, _>>()?;
        Ok(pools.into_iter().flatten().collect())
    }

    /// Returns the IDs of pools whose record and its copy are damaged.
    pub(super) fn lost_pools(&self) -> Vec<String> {
        let mut ids = self.ids(POOLS);
        ids.retain(|id| self.read::<Pool>(POOLS, id).is_err());
        ids
    }

    pub(crate) fn put_pool(&self, pool: &Pool) -> Result<(), Error> {
        self.write(POOLS, &pool.id, pool)
    }

    pub(crate) fn remove_pool(&self, id: &str) -> Result<(), Error> {
        self.remove(POOLS, id)
    }

    fn place(&self, folder: &str, id: &str) -> Result<Place, Error> {
        check_id(id)?;
        let file = |dir: &Path| dir.join(folder).join(format!("{id}.json"));
        Ok(Place { record: file(&self.dir), copy: file(&self.copies) })
    }

    fn read<T: Record>(&self, folder: &str, id: &str) -> Result<Option<T>, Error> {
        self.place(folder, id)?.read(id)
    }

    fn write<T: Record>(&self, folder: &str, id: &str, content: &T) -> Result<(), Error> {
        self.place(folder, id)?.write(content).map_err(|error| failed(&error))
    }

    fn remove(&self, folder: &str, id: &str) -> Result<(), Error> {
        self.place(folder, id)?.remove().map_err(|error| failed(&error))
    }

    /// Restores damaged files where the other one of the two is whole. Runs before any other reader
    /// or writer.
    fn heal<T: Record>(&self, folder: &str) {
        for id in self.ids(folder) {
            if let Ok(place) = self.place(folder, &id) {
                place.heal::<T>(&id);
            }
        }
    }

    /// Lists the IDs of a folder's records; logs it if that is impossible.
    fn ids(&self, folder: &str) -> Vec<String> {
        self.listed(folder).unwrap_or_else(|error| {
            tracing::error!(%error, "passed over a folder of records");
            Vec::new()
        })
    }

    fn listed(&self, folder: &str) -> Result<Vec<String>, Error> {
        let path = self.dir.join(folder);
        let failed = |source| failed(&state::FileError::List { path: path.clone(), source });
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name().into_string();
            ids.extend(name.ok().and_then(|name| Some(name.strip_suffix(".json")?.to_owned())));
        }
        Ok(ids)
    }

    /// Lists what can be read; logs what cannot, and skips it.
    fn list<T: Record>(&self, folder: &str) -> Vec<T> {
        let mut found = Vec::new();
        for id in self.ids(folder) {
            match self.read(folder, &id) {
                Ok(record) => found.extend(record),
                Err(error) => tracing::warn!(%error, "passed over a record"),
            }
        }
        found
    }
}

impl Network {
    pub(crate) fn new(asked: CreateNetwork, conflist: String) -> Self {
        Network {
            version: VERSION,
            id: asked.network_id.clone(),
            conflist,
            made: false,
            internal: false,
            ifname: "eth0".to_owned(),
            prefix: "eth".to_owned(),
            asked,
            holds: None,
            released: false,
        }
    }

    /// Returns the list.
    pub(crate) fn list(&self) -> Result<cni::NetworkList, Error> {
        cni::NetworkList::parse(self.conflist.as_bytes())
    }

    /// Returns the list without the plugins that only publish ports: they run when Docker says so.
    /// This saves two processes in a container's life.
    pub(crate) fn list_without_ports(&self) -> Result<cni::NetworkList, Error> {
        let mut list = self.list()?;
        let mut first = true;
        list.plugins.retain(|plugin| {
            let sole = plugins::info(&plugin.plugin_type).and_then(|info| info.sole_capability);
            let publishes = sole == Some(PORT_MAPPINGS)
                && plugin.capabilities.iter().any(|has| has == PORT_MAPPINGS);
            std::mem::replace(&mut first, false) || !publishes
        });
        Ok(list)
    }
}

impl Endpoint {
    pub(crate) fn new(asked: CreateEndpoint) -> Self {
        let head: String = asked.endpoint_id.chars().take(12).collect();
        Endpoint {
            version: VERSION,
            id: asked.endpoint_id.clone(),
            network: asked.network_id.clone(),
            phase: Phase::Adding,
            boot_id: String::new(),
            since_s: 0,
            asked,
            answer: CreatedEndpoint::default(),
            result: None,
            src_name: format!("{}{head}", state::PASSAGE),
            layout: Layout::default(),
            sandbox: None,
            engine: None,
            joined: None,
            ports: Vec::new(),
            leads_out: false,
        }
    }
}

impl Pool {
    pub(crate) fn new(id: String, subnet: IpNet) -> Self {
        Pool {
            version: VERSION,
            id,
            subnet,
            part: None,
            conflist: None,
            gateway: None,
            taken: BTreeMap::new(),
            held_by: BTreeMap::new(),
            holds: BTreeMap::new(),
            rebuilt: false,
            last: None,
        }
    }
}

/// Returns the holds of an older driver's pool.
fn shared_hold() -> BTreeMap<String, Hold> {
    BTreeMap::from([(SHARED.to_owned(), Hold::default())])
}

/// Refuses what is not an ID: it becomes part of a path.
pub(crate) fn check_id(id: &str) -> Result<(), Error> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    if id.is_empty() || MAX_ID < id.len() || !id.bytes().all(plain) || id.starts_with('.') {
        return Err(Error::new(code::INVALID_CONFIG, format!("{id:?} is not an ID"))
            .with_details("letters, digits and - _ . : are allowed, at most 64"));
    }
    Ok(())
}

/// Shortens an ID as Docker does.
pub(crate) fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

fn failed(error: &state::FileError) -> Error {
    Error::from_chain(codes::STATE, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_published_apart() {
        let conflist = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [
            {"type": "cilium-cni", "capabilities": {"portMappings": true}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "portmap"}, {"type": "firewall"}]}"#;
        let asked = CreateNetwork { network_id: "n".to_owned(), ..CreateNetwork::default() };
        let network = Network::new(asked, conflist.to_owned());
        let list = network.list_without_ports().unwrap();
        let types: Vec<&str> = list.plugins.iter().map(|plugin| &*plugin.plugin_type).collect();
        // Not what does something else too, and not what never got ports.
        assert_eq!(types, ["cilium-cni", "portmap", "firewall"]);
    }

    /// No pools would mean that Docker has released those of each network; no endpoints, that no
    /// container has an address.
    #[test]
    fn what_cannot_be_listed_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::of_another(dir.path(), &dir.path().join("copies"));
        assert!(journal.all_pools().unwrap().is_empty() && !journal.may_lack_an_endpoint());
        for folder in [POOLS, ENDPOINTS] {
            std::fs::write(dir.path().join(folder), "").unwrap();
        }
        assert!(journal.all_pools().is_err() && journal.may_lack_an_endpoint());
    }
}
