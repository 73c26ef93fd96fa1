//! The table as it should be, as data, and what repairs another one.

use ipnet::IpNet;
use kernel::nft::{Element, Value};

use super::layout::{self, Set};
use super::{ClusterFilter, batch_of};
use crate::cluster::ranges::Net;
use crate::declared::{self, SetKind, SetState, Span, TableDifference, TableState};
use crate::difference::Difference;

/// The addresses of a prefix.
pub(crate) fn range(prefix: IpNet) -> Span {
    let bytes = |address| Value::from(address).bytes();
    Span::new(bytes(prefix.network()), bytes(prefix.broadcast()))
}

/// An interface's name.
pub(crate) fn ifname(name: &str) -> Span {
    let bytes = Value::IfName(name.to_owned()).bytes();
    Span::new(bytes.clone(), bytes)
}

/// Returns the element that has the addresses of a prefix, as [`Span::element`] makes it: a node has
/// those of thousands of others.
pub(crate) fn element(set: Set, prefix: IpNet) -> Element {
    let first = Value::from(prefix.network());
    if set.has_ranges() {
        Element::range(first, Value::from(prefix.broadcast()))
    } else {
        Element::new(first)
    }
}

/// Says what a filter's table should be.
pub(crate) fn wanted(filter: &ClusterFilter) -> TableState {
    let chains = declared::chains(layout::chains(), layout::rules(filter.rules()));
    let sets = Set::ALL.into_iter().map(|set| {
        let elements = filter.entries(set).into_iter().map(|span| (span, None)).collect();
        let kind = SetKind::of(&layout::new_set(set));
        (set.name().to_owned(), SetState { kind, elements })
    });
    TableState::new(chains, sets.collect())
}

/// Compares what is there with a filter: in words, and as the transaction that repairs it. If more
/// than elements differs, the whole table is made again.
pub(crate) fn difference(found: &TableState, filter: &ClusterFilter) -> Difference {
    let wanted = match found.exists {
        true => wanted(filter),
        false => TableState::default(),
    };
    let different = TableDifference::between(&wanted, found, &layout::table());
    if !different.is_of_elements() {
        return Difference::new(different.lines, filter.batch());
    }
    let mut net = Net::new();
    for set in Set::ALL {
        let Some(elements) = different.elements.get(set.name()) else { continue };
        let span = |element: &Element| (set, Span::of(element, set.has_ranges()));
        elements.come.iter().for_each(|element| net.come(span(element)));
        elements.gone.iter().for_each(|element| net.go(span(element)));
    }
    Difference::new(different.lines, batch_of(net))
}
