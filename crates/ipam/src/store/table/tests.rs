//! Compares the table with a set, in memory and in a file.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::head::MAGIC;
use super::*;
use crate::range::{RangeSet, RangeSpec};

/// Returns a key with few values, so that keys collide.
fn key(number: u8) -> Key {
    // Neighbours in the table, and the last slot's home before them.
    Key::from(number).wrapping_sub(2) << 8
}

fn v4(number: u32) -> IpAddr {
    std::net::Ipv4Addr::from(0xc000_0200 + number).into()
}

fn v6(number: u128) -> IpAddr {
    Ipv6Addr::from(0x2001_0db8_u128 << 96 | number).into()
}

fn set(subnet: &str) -> RangeSet {
    RangeSet::new(&[RangeSpec { subnet: subnet.parse().ok(), ..RangeSpec::default() }]).unwrap()
}

/// Writes a table into a file, as it is stored.
fn written(mut table: Table) -> Table {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(table.seal("boot", Stamp::from_numbers([1, 2, 3, 4, 5, 6])).unwrap()).unwrap();
    Table::open(file).unwrap()
}

#[track_caller]
fn agrees(table: &Table, model: &BTreeSet<(u8, IpAddr)>) {
    assert_eq!(table.live(), u64::try_from(model.len()).unwrap());
    for number in 0..=20 {
        let mut found = table.find(key(number)).unwrap();
        found.sort();
        let held: Vec<IpAddr> =
            model.iter().filter(|(of, _)| *of == number).map(|(_, address)| *address).collect();
        assert_eq!(found, held, "key {number}");
    }
    for set in [set("192.0.0.0/18"), set("2001:db8::/64")] {
        let is_taken = |address: &IpAddr| model.iter().any(|(_, taken)| taken == address);
        let inside: BTreeSet<_> =
            model.iter().filter(|(_, address)| set.range_of(*address).is_some()).collect();
        let run = &set.runs(None)[0];
        if run.is_ipv4() {
            assert_eq!(table.taken(run).unwrap(), u128::try_from(inside.len()).unwrap());
        }
        let free = set.ring(None).map(|(address, _)| address).find(|one| !is_taken(one));
        assert_eq!(table.first_free(run, |_| true).unwrap(), free);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn it_is_a_set_of_holders_and_addresses(
        steps in prop::collection::vec((any::<bool>(), 0_u8..20, any::<bool>(), 0_u16..300), 1..400),
        in_file in any::<bool>(),
    ) {
        let mut model: BTreeSet<(u8, IpAddr)> = BTreeSet::new();
        let mut table = Table::build(&[], false);
        for (adds, holder, is_v4, number) in steps {
            let address = if is_v4 { v4(number.into()) } else { v6(u128::from(number) * 64) };
            let entry = Entry { key: key(holder), address };
            let is_others = model.iter().any(|(of, taken)| *of != holder && *taken == address);
            if adds && !is_others {
                table.insert(entry).unwrap();
                model.insert((holder, address));
            } else if !is_others {
                table.remove(entry).unwrap();
                model.remove(&(holder, address));
            }
            if in_file && !table.is_written() {
                table = written(table);
            }
        }
        agrees(&table, &model);
    }

    #[test]
    fn any_bytes_are_read_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..2000), is_ours in any::<bool>()) {
        if is_ours && 8 <= bytes.len() {
            bytes[..8].copy_from_slice(&MAGIC);
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        if let Some(table) = Table::open(file) {
            let _ = table.find(key(1));
            let _ = table.first_free(&set("192.0.2.0/24").runs(None)[0], |_| true);
        }
    }
}

#[test]
fn a_full_range_is_told_from_a_few_reads() {
    let all: Vec<Entry> =
        (2..0x1_0000).map(|n| Entry { key: Key::from(n) << 8, address: v4(n) }).collect();
    let set = RangeSet::new(&[RangeSpec {
        subnet: "192.0.0.0/14".parse().ok(),
        range_start: Some(v4(2)),
        range_end: Some(v4(0xffff)),
        ..RangeSpec::default()
    }])
    .unwrap();
    let mut table = written(Table::build(&all, false));
    let run = &set.runs(None)[0];
    assert_eq!(table.first_free(run, |_| true).unwrap(), None);
    assert_eq!(table.taken(run).unwrap(), 0xfffe);
    table.remove(Entry { key: 0x8000 << 8, address: v4(0x8000) }).unwrap();
    assert_eq!(table.first_free(run, |_| true).unwrap(), Some(v4(0x8000)));
    assert_eq!(table.first_free(run, |one| one != v4(0x8000)).unwrap(), None);
}

#[test]
fn the_last_address_before_groups_is_no_trap() {
    // What follows are multicast addresses, which no pool has.
    let last = Ipv6Addr::from((0xff_u128 << 120) - 1);
    let set = RangeSet::new(&[RangeSpec {
        subnet: "fe00::/8".parse().ok(),
        range_start: Some(Ipv6Addr::from(u128::from(last) - 9).into()),
        range_end: Some(last.into()),
        ..RangeSpec::default()
    }])
    .unwrap();
    let last = IpAddr::from(last);
    let all: Vec<Entry> =
        set.ring(None).map(|(address, _)| Entry { key: 1 << 8, address }).collect();
    let mut table = Table::build(&all, false);
    assert_eq!(table.first_free(&set.runs(None)[0], |_| true).unwrap(), None);
    table.remove(Entry { key: 1 << 8, address: last }).unwrap();
    assert_eq!(table.first_free(&set.runs(None)[0], |_| true).unwrap(), Some(last));
}

#[test]
fn strewn_addresses_cost_no_blocks() {
    let all: Vec<Entry> =
        (0..10_000).map(|n| Entry { key: n << 8, address: v6(n << 40) }).collect();
    let table = Table::build(&all, false);
    assert_eq!(table.head().blocks, 0);
    assert_eq!(table.find(77 << 8).unwrap(), [v6(77 << 40)]);
    let error = table.first_free(&set("2001:db8::/64").runs(None)[0], |_| true).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn a_head_reads_back() {
    let mut table = Table::build(&[Entry { key: 1 << 8, address: v4(1) }], true);
    let stamp = Stamp::from_numbers([1, u64::MAX, 3, 4, 5, 6]);
    let boot = "0b9c1c5e-9d7f-4f0e-9a55-d2f2e4a5a7c1";
    let bytes = table.seal(boot, stamp).unwrap().to_vec();
    let head = Head::parse(bytes[..HEAD].try_into().unwrap()).unwrap();
    assert_eq!(&head, table.head());
    assert_eq!((head.boot.as_str(), head.stamp, head.strays), (boot, stamp, true));
}
