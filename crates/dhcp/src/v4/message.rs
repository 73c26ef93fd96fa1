//! The message format (RFC 2131 §2, RFC 2132, RFC 3396).
//!
//! Implemented here instead of using the crate `dhcproto`, against which the tests compare it. As
//! of 0.15 that crate drops every option after the first it cannot parse, knows nothing of option
//! overload (52), joins the parts of a long option only if they follow each other, cuts unknown
//! options above 255 octets, sorts options by code, and brings some fifty crates with it for the
//! names in option 119.

use std::net::Ipv4Addr;

use super::RawOption;
use crate::MacAddr;

/// Option codes (RFC 2132, RFC 3397, RFC 3442).
pub(super) mod code {
    pub(crate) const PAD: u8 = 0;
    pub(crate) const SUBNET_MASK: u8 = 1;
    pub(crate) const ROUTERS: u8 = 3;
    pub(crate) const DNS: u8 = 6;
    pub(crate) const HOST_NAME: u8 = 12;
    pub(crate) const DOMAIN: u8 = 15;
    pub(crate) const MTU: u8 = 26;
    pub(crate) const BROADCAST: u8 = 28;
    pub(crate) const STATIC_ROUTES: u8 = 33;
    pub(crate) const REQUESTED_ADDRESS: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const MESSAGE_TYPE: u8 = 53;
    pub(crate) const SERVER: u8 = 54;
    pub(crate) const REQUEST_LIST: u8 = 55;
    pub(crate) const MESSAGE: u8 = 56;
    pub(crate) const MAX_MESSAGE_SIZE: u8 = 57;
    pub(crate) const T1: u8 = 58;
    pub(crate) const T2: u8 = 59;
    pub(crate) const CLIENT_ID: u8 = 61;
    pub(crate) const SEARCH: u8 = 119;
    pub(crate) const CLASSLESS_ROUTES: u8 = 121;
    pub(crate) const END: u8 = 255;
}

/// RFC 2131 §3: the start of the options field.
const MAGIC: [u8; 4] = [99, 130, 83, 99];

/// Offsets of the fields `sname` and `file` and of the options.
const SNAME: usize = 44;
const FILE: usize = 108;
const OPTIONS: usize = 236;

/// RFC 951: BOOTP messages have this length, and some servers and relays drop shorter ones.
const MIN_LENGTH: usize = 300;

/// The top bit of `flags` (RFC 2131 §2, figure 2).
const BROADCAST: u16 = 0x8000;

/// `op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Request,
    Reply,
}

/// Option 53.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Discover,
    Offer,
    Request,
    Decline,
    Ack,
    Nak,
    Release,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Discover,
        Kind::Offer,
        Kind::Request,
        Kind::Decline,
        Kind::Ack,
        Kind::Nak,
        Kind::Release,
    ];

    fn number(self) -> u8 {
        match self {
            Kind::Discover => 1,
            Kind::Offer => 2,
            Kind::Request => 3,
            Kind::Decline => 4,
            Kind::Ack => 5,
            Kind::Nak => 6,
            Kind::Release => 7,
        }
    }

    pub(super) fn option(self) -> RawOption {
        RawOption::new(code::MESSAGE_TYPE, [self.number()])
    }
}

/// A message, without the fields that clients do not use (`siaddr`, `giaddr`, `hops`, boot file and
/// server names).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) op: Op,
    pub(super) xid: u32,
    pub(super) secs: u16,
    pub(super) broadcast: bool,
    pub(super) ciaddr: Ipv4Addr,
    pub(super) yiaddr: Ipv4Addr,
    pub(super) mac: MacAddr,
    /// In the order of arrival, the parts of a long one joined, each code once.
    pub(super) options: Vec<RawOption>,
}

/// Not a DHCP message for an Ethernet client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedMessage;

impl Message {
    pub(super) fn option(&self, code: u8) -> Option<&[u8]> {
        RawOption::find(&self.options, code)
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        let [number] = *self.option(code::MESSAGE_TYPE)? else { return None };
        Kind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    pub(super) fn parse(payload: &[u8]) -> Result<Self, MalformedMessage> {
        let fixed = payload.get(..OPTIONS).ok_or(MalformedMessage)?;
        let op = match fixed[..3] {
            [1, 1, 6] => Op::Request,
            [2, 1, 6] => Op::Reply,
            _ => return Err(MalformedMessage),
        };
        let field =
            |at: usize| <[u8; 4]>::try_from(&fixed[at..at + 4]).map_err(|_| MalformedMessage);
        let [secs_high, secs_low, flags, _] = field(8)?;
        let field_options = payload[OPTIONS..].strip_prefix(&MAGIC).ok_or(MalformedMessage)?;
        Ok(Message {
            op,
            xid: u32::from_be_bytes(field(4)?),
            secs: u16::from_be_bytes([secs_high, secs_low]),
            broadcast: flags & 0x80 != 0,
            ciaddr: Ipv4Addr::from(field(12)?),
            yiaddr: Ipv4Addr::from(field(16)?),
            mac: MacAddr(fixed[28..34].try_into().map_err(|_| MalformedMessage)?),
            options: read_options(field_options, &fixed[FILE..OPTIONS], &fixed[SNAME..FILE])?,
        })
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(2 * MIN_LENGTH);
        payload.extend_from_slice(match self.op {
            Op::Request => &[1, 1, 6, 0],
            Op::Reply => &[2, 1, 6, 0],
        });
        payload.extend_from_slice(&self.xid.to_be_bytes());
        payload.extend_from_slice(&self.secs.to_be_bytes());
        let flags = if self.broadcast { BROADCAST } else { 0 };
        payload.extend_from_slice(&flags.to_be_bytes());
        payload.extend_from_slice(&self.ciaddr.octets());
        payload.extend_from_slice(&self.yiaddr.octets());
        // siaddr and giaddr.
        payload.extend_from_slice(&[0; 8]);
        payload.extend_from_slice(&self.mac.0);
        payload.resize(OPTIONS, 0);
        payload.extend_from_slice(&MAGIC);
        for option in &self.options {
            write_option(&mut payload, option);
        }
        payload.push(code::END);
        if payload.len() < MIN_LENGTH {
            payload.resize(MIN_LENGTH, code::PAD);
        }
        payload
    }
}

/// A value above 255 octets is split into several options of the same code (RFC 3396 §6).
fn write_option(payload: &mut Vec<u8>, option: &RawOption) {
    let mut rest = option.value.as_slice();
    loop {
        let (part, after) = rest.split_at(rest.len().min(255));
        payload.push(option.code);
        payload.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
        payload.extend_from_slice(part);
        if after.is_empty() {
            return;
        }
        rest = after;
    }
}

/// The options of all fields that contain some, in the order in which RFC 3396 §5 joins them: the
/// options field, `file`, `sname`.
fn read_options(
    field: &[u8],
    file: &[u8],
    sname: &[u8],
) -> Result<Vec<RawOption>, MalformedMessage> {
    let mut options = Vec::new();
    read_field(field, &mut options)?;
    // RFC 2132 §9.3. Within the other two fields it means nothing.
    let overload = options.iter().find(|option: &&RawOption| option.code == code::OVERLOAD);
    let (file_too, sname_too) = match overload.map(|option| option.value.as_slice()) {
        None => (false, false),
        Some([1]) => (true, false),
        Some([2]) => (false, true),
        Some([3]) => (true, true),
        Some(_) => return Err(MalformedMessage),
    };
    if file_too {
        read_field(file, &mut options)?;
    }
    if sname_too {
        read_field(sname, &mut options)?;
    }
    Ok(options)
}

/// The options of one field. A field may lack its end, but no option may.
fn read_field(field: &[u8], options: &mut Vec<RawOption>) -> Result<(), MalformedMessage> {
    let mut rest = field;
    while let [code, after @ ..] = rest {
        match *code {
            code::PAD => rest = after,
            code::END => break,
            code => {
                let [length, after @ ..] = after else { return Err(MalformedMessage) };
                let (value, after) =
                    after.split_at_checked(usize::from(*length)).ok_or(MalformedMessage)?;
                match options.iter_mut().find(|option| option.code == code) {
                    Some(option) => option.value.extend_from_slice(value),
                    None => options.push(RawOption::new(code, value)),
                }
                rest = after;
            }
        }
    }
    Ok(())
}
