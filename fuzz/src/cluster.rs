//! The messages between the plugin `cluster-ipam` and `netwrightd ipam`, the ranges of
//! configurations, the contents of files and records, and Whereabouts' objects.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netwright_cluster_ipam::import::{self, ImportSource};
use netwright_cluster_ipam::network::{Network, NetworkSpec, RangeSpec, address_of, number};
use netwright_cluster_ipam::record::{self, BlockRecord, NodeRecord, SpaceRecord};
use netwright_node_api::Message;
use netwright_node_api::ipam::{Answer, Request};

/// Messages: writing and reading one gives the same message; accepted ranges give only addresses of
/// their subnets.
pub fn messages(data: &[u8]) {
    if let Ok(request) = Request::from_line(data) {
        let line = request.to_line().expect("it fitted before");
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(Request::from_line(&line).expect("what we write we read"), request);
        if let Request::Assign(ask) = request {
            addresses(ask.network);
        }
    }
    if let Ok(answer) = Answer::from_line(data) {
        let line = answer.to_line().expect("it fitted before");
        assert_eq!(Answer::from_line(&line).expect("what we write we read"), answer);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(range) = text.parse::<RangeSpec>()
    {
        let mut spec = NetworkSpec::new("n");
        spec.ranges.push(range);
        addresses(spec);
    }
    if let Ok(value) = serde_json::from_slice(data) {
        let _ = record::read::<BlockRecord>(&value);
        let _ = record::read::<NodeRecord>(&value);
        if let Some(space) = record::read::<SpaceRecord>(&value) {
            for part in &space.parts {
                let block = space.block_of(part.subnet.addr());
                assert!(block.is_none_or(|block| block.contains(&part.subnet.addr())));
            }
        }
    }
}

fn addresses(spec: NetworkSpec) {
    let Ok(network) = Network::new(spec) else { return };
    for range in network.ranges() {
        let (first, last) = range.bounds();
        assert!(first <= last && 0 < range.capacity());
        let mut at = range.next(0);
        for _ in 0..100 {
            let Some(found) = at else { break };
            let address: IpAddr = address_of(range.family(), found);
            assert!(range.subnet().contains(&address) && range.allows(address));
            assert_eq!(number(address), found);
            at = found.checked_add(1).and_then(|next| range.next(next));
        }
        for nodes in [0, 1, 3, 5_000, usize::MAX] {
            let block = network.block_prefix(range, nodes);
            assert!(range.subnet().prefix_len() <= block && block <= range.family().bits());
        }
    }
}

/// Whereabouts' objects and pods: each imported address is a separate block, once in a space, and
/// the space has this block size.
pub fn whereabouts(data: &[u8]) {
    let mut found = ImportSource::default();
    if found.read(data).is_err() {
        return;
    }
    found.that_is_all_pods();
    let plan = import::plan(&found).expect("pods are known");
    let mut seen = BTreeSet::new();
    for block in &plan.blocks {
        assert_eq!(block.block.prefix_len(), block.block.max_prefix_len());
        assert!(seen.insert((block.space.clone(), block.block)), "{block:?}");
        let mut spaces = plan.spaces.iter();
        let space = spaces.find(|space| space.space == block.space).expect("its space is cut");
        assert_eq!(space.block_of(block.block.addr()), Some(block.block));
        assert!(!block.node.is_empty());
    }
}
