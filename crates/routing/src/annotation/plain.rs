//! The annotation as nodes write it.
//!
//! A cluster has thousands of them. This module reads one as [`super::read_any`] does. It leaves one
//! with anything else in it to that reader, which reads it or says what is wrong with it.

use ipnet::IpNet;
use serde::Deserialize;

use super::{Annotation, LONGEST, MOST_KEPT, VERSION};
use crate::backends::PlainOffers;
use crate::node::{Offers, Underlay};
use crate::reader;
use net::IpFamily;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    version: u32,
    #[serde(borrow)]
    underlay: Vec<&'a str>,
    mtu: Option<u32>,
    #[serde(borrow)]
    zone: Option<&'a str>,
    offers: PlainOffers,
    #[serde(borrow, default)]
    kept: Vec<&'a str>,
}

/// Reads an annotation; `None` if it is not of the plain form, or something is wrong with it.
pub(super) fn read(text: &str) -> Option<Annotation> {
    if LONGEST < text.len() {
        return None;
    }
    let whole: Document<'_> = serde_json::from_str(text).ok()?;
    // serde would read a list in the place of an object.
    let lists = 1 + usize::from(!whole.kept.is_empty());
    if whole.version != VERSION
        || text.matches('[').count() != lists
        || whole.mtu.is_some_and(|mtu| !is_in(mtu, reader::MTU))
    {
        return None;
    }
    let underlay = underlay(&whole.underlay)?;
    let offers = Offers::of_plain(whole.offers, underlay)?;
    if offers == Offers::default() {
        return None;
    }
    let zone = whole.zone.map(str::to_owned);
    Some(Annotation { underlay, mtu: whole.mtu, zone, offers, kept: kept(&whole.kept)? })
}

fn underlay(texts: &[&str]) -> Option<Underlay> {
    let mut underlay = Underlay::default();
    for text in texts {
        let address = reader::address(text).ok()?;
        if underlay.get(IpFamily::of(address)).is_some() {
            return None;
        }
        underlay.set(address);
    }
    (underlay != Underlay::default()).then_some(underlay)
}

fn kept(texts: &[&str]) -> Option<Vec<IpNet>> {
    if MOST_KEPT < texts.len() {
        return None;
    }
    let mut kept: Vec<IpNet> = Vec::with_capacity(texts.len());
    for text in texts {
        let prefix = reader::prefix(text).ok()?;
        if kept.iter().any(|other| reader::overlap(*other, prefix)) {
            return None;
        }
        kept.push(prefix);
    }
    Some(kept)
}

fn is_in(value: u32, (least, most): (u64, u64)) -> bool {
    (least..=most).contains(&u64::from(value))
}

#[cfg(test)]
mod tests {
    use super::super::read_any;
    use super::*;

    #[test]
    fn what_nodes_write_is_read_alike() {
        for text in [
            r#"{"version":1,"underlay":["192.0.2.7"],"offers":{"native":{}}}"#,
            r#"{"version":1,"underlay":["192.0.2.7","2001:db8::7"],"mtu":1500,"zone":"a",
                "offers":{"direct":{},"vxlan":{"vni":1,"port":8472,
                "mac4":"02:00:00:00:00:01","mac6":"02:00:00:00:00:02"}},
                "kept":["10.244.9.0/24","fd00:9::/64"]}"#,
            r#"{"offers":{"vxlan":{"port":1,"vni":16777215,"mac6":"02-00-00-00-00-02"},
                "direct":null},"underlay":["2001:db8::7"],"zone":null,"mtu":null,"version":1}"#,
        ] {
            let found = read(text);
            assert!(found.is_some(), "{text}");
            assert_eq!(found, read_any(text).ok(), "{text}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_reader_of_any_json() {
        let with = |rest: &str| {
            format!(r#"{{"version":1,"underlay":["192.0.2.7"],"offers":{{"direct":{{}}}}{rest}}}"#)
        };
        let offering =
            |offers: &str| format!(r#"{{"version":1,"underlay":["192.0.2.7"],"offers":{offers}}}"#);
        let vxlan = |vxlan: &str| offering(&format!(r#"{{"vxlan":{vxlan}}}"#));
        assert!(read(&with("")).is_some());
        for text in [
            String::new(),
            "{}".to_owned(),
            r#"[1,["192.0.2.7"],null,null,{"direct":{}},[]]"#.to_owned(),
            r#"[1,["192.0.2.7"],null,null,{"direct":{}},["10.0.0.0/24"]]"#.to_owned(),
            with(r#","colour":"red""#),
            with(r#","version":1"#),
            with(r#","mtu":575"#),
            with(r#","mtu":65536"#),
            with(r#","mtu":-1"#),
            with(r#","zone":"\u0061""#),
            with(r#","zone":"[""#),
            with(r#","kept":["10.244.9.0/24","10.244.9.0/25"]"#),
            with(r#","kept":["10.244.9.1/24"]"#),
            with(r#","kept":null"#),
            with("").replace("\"version\":1", "\"version\":2"),
            with("").replace("192.0.2.7", "127.0.0.1"),
            with("").replace("\"192.0.2.7\"", "\"192.0.2.7\",\"192.0.2.8\""),
            with("").replace("\"192.0.2.7\"", ""),
            offering("{}"),
            offering(r#"{"direct":null}"#),
            offering(r#"{"direct":{"later":true}}"#),
            offering(r#"{"direct":[]}"#),
            offering("[null,{},null]"),
            vxlan(r#"{"vni":1,"port":8472}"#),
            vxlan(r#"{"vni":0,"port":8472,"mac4":"02:00:00:00:00:01"}"#),
            vxlan(r#"{"vni":16777216,"port":8472,"mac4":"02:00:00:00:00:01"}"#),
            vxlan(r#"{"vni":1,"port":0,"mac4":"02:00:00:00:00:01"}"#),
            vxlan(r#"{"vni":1,"port":65536,"mac4":"02:00:00:00:00:01"}"#),
            vxlan(r#"{"vni":1,"port":8472,"mac4":"03:00:00:00:00:01"}"#),
            vxlan(r#"{"vni":1,"port":8472,"mac4":"02"}"#),
            vxlan(r#"{"vni":1,"port":8472,"mac6":"02:00:00:00:00:01"}"#),
            vxlan(r#"[1,8472,"02:00:00:00:00:01",null]"#),
            with(&format!(r#","zone":"{}""#, "z".repeat(LONGEST))),
        ] {
            assert_eq!(read(&text), None, "{text}");
        }
    }
}
