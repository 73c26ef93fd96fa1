//! `NetworkUnavailable`.

use netwright_routing::condition::{Health, ProgrammingFault, decide};

use crate::support::{NOW, at};

#[test]
fn a_node_is_unavailable_only_by_its_own_fault_or_when_all_tunnels_are_dead() {
    let sound = Health {
        programmed: Ok(()),
        peers_known: true,
        peers: 3,
        answered: 1,
        cut_off_since: None,
    };
    let silent = Health { answered: 0, ..sound.clone() };
    let failed = ProgrammingFault::Failed("no such device".to_owned());
    let unavailable = |health: &Health, now| decide(health, now).map(|told| told.unavailable);
    for (health, seconds, expected, why) in [
        (sound.clone(), 0, Some(false), "one peer answered"),
        (
            silent.clone(),
            1000,
            None,
            "nobody answers, by no address: peers are down, or probes are filtered",
        ),
        (Health { peers: 0, answered: 0, ..sound.clone() }, 0, Some(false), "a cluster of one"),
        (
            Health { peers: 0, answered: 0, peers_known: false, ..sound.clone() },
            0,
            None,
            "no source has said that there is no other node",
        ),
        (Health { cut_off_since: Some(NOW), ..silent.clone() }, 29, None, "for less than 30 s"),
        (Health { cut_off_since: Some(NOW), ..silent.clone() }, 30, Some(true), "cut off"),
        (
            Health { programmed: Err(ProgrammingFault::NotYet), ..sound.clone() },
            0,
            None,
            "starting",
        ),
        (Health { programmed: Err(failed.clone()), ..sound.clone() }, 0, Some(true), "own objects"),
    ] {
        assert_eq!(unavailable(&health, at(seconds)), expected, "{why}");
    }
    let told = decide(&Health { programmed: Err(failed), ..sound }, NOW).unwrap();
    assert_eq!(
        (told.reason, told.message.as_str()),
        ("NotProgrammed", "this node's part of the network cannot be programmed: no such device")
    );
}
