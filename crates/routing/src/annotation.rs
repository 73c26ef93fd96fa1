//! Our dialect: the annotation `routing.netwright.io/node`.
//!
//! ```json
//! {"version":1,"underlay":["192.0.2.7","2001:db8::7"],"mtu":1500,"zone":"a",
//!  "offers":{"direct":{},"vxlan":{"vni":1,"port":8472,"mac4":"…","mac6":"…"}}}
//! ```
//!
//! It has no prefixes: those are in `spec.podCIDRs`, which a node cannot write. `kept` has earlier
//! ones in which pods still live; they yield to the prefixes of all other nodes. Keys and offers
//! that are not known are passed over: a newer node may have more to say.

mod plain;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

use crate::backends::WrittenOffers;
use crate::node::{Node, Offers, Underlay};
use crate::reader::{self, Fault, KeyedValue};
use crate::refused::Cause;

/// The annotation.
pub const KEY: &str = "routing.netwright.io/node";

/// The version of its format.
pub const VERSION: u32 = 1;

/// The longest annotation that is read, in bytes. What is written has less than 600.
pub const LONGEST: usize = 4096;

/// How many earlier prefixes are read, and written.
pub(crate) const MOST_KEPT: usize = 8;

/// What the annotation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The underlay addresses.
    pub underlay: Underlay,
    /// The MTU of the underlay, in bytes.
    pub mtu: Option<u32>,
    /// The zone.
    pub zone: Option<String>,
    /// What is offered.
    pub offers: Offers,
    /// Earlier prefixes in which pods live.
    pub kept: Vec<IpNet>,
}

/// The annotation as it is written: what identifies the format first.
#[derive(Serialize)]
struct AnnotationFields<'a> {
    version: u32,
    underlay: Vec<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    offers: WrittenOffers,
    #[serde(skip_serializing_if = "<[IpNet]>::is_empty")]
    kept: &'a [IpNet],
}

/// Writes the annotation of a node.
#[must_use]
pub fn write(node: &Node) -> String {
    let written = AnnotationFields {
        version: VERSION,
        underlay: node.underlay.iter().collect(),
        mtu: node.mtu,
        zone: node.zone.as_deref(),
        offers: node.offers.written(),
        kept: &node.kept,
    };
    serde_json::to_string(&written).expect("our types serialise to JSON")
}

/// Reads the annotation.
///
/// # Errors
/// What is wrong with it, after the path of the key in it (`offers.vxlan.mac4`; empty for the
/// whole).
pub fn read(text: &str) -> Result<Annotation, (String, Cause)> {
    plain::read(text).map_or_else(|| read_any(text), Ok)
}

/// Reads one of any form.
fn read_any(text: &str) -> Result<Annotation, Fault> {
    let value = reader::json(text.as_bytes(), LONGEST).map_err(|cause| (String::new(), cause))?;
    let root = KeyedValue::root(&value);
    let version = root.required("version")?;
    match version.number((0, u64::MAX))? {
        1_u64 => {}
        version_there => {
            return Err(version.fault(Cause::Version { version: version_there, known: VERSION }));
        }
    }
    let underlay = root.required("underlay")?.underlay()?;
    let offers = offers(&root.required("offers")?, underlay)?;
    let mtu = root.get("mtu")?.map(|mtu| mtu.mtu()).transpose()?;
    let zone = root.get("zone")?.map(|zone| zone.text()).transpose()?.map(str::to_owned);
    let kept = root.get("kept")?.map(|kept| kept.prefixes(MOST_KEPT)).transpose()?;
    Ok(Annotation { underlay, mtu, zone, offers, kept: kept.unwrap_or_default() })
}

fn offers(at: &KeyedValue<'_>, underlay: Underlay) -> Result<Offers, Fault> {
    let offers = Offers::read(at, underlay)?;
    if offers == Offers::default() {
        return Err(at.fault(Cause::NothingOffered));
    }
    Ok(offers)
}
