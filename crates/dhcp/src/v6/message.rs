//! The message format (RFC 8415 §8, §21).
//!
//! Implemented here for the same reasons as DHCPv4; the tests compare it with the crate `dhcproto`.

use std::net::Ipv6Addr;

use super::{Address, RawOption};

/// Option codes (RFC 8415 §21, RFC 3646).
pub(super) mod code {
    pub(crate) const CLIENT_ID: u16 = 1;
    pub(crate) const SERVER_ID: u16 = 2;
    pub(crate) const IA_NA: u16 = 3;
    pub(crate) const IA_ADDRESS: u16 = 5;
    pub(crate) const REQUEST: u16 = 6;
    pub(crate) const PREFERENCE: u16 = 7;
    pub(crate) const ELAPSED: u16 = 8;
    pub(crate) const STATUS: u16 = 13;
    pub(crate) const RAPID_COMMIT: u16 = 14;
    pub(crate) const DNS: u16 = 23;
    pub(crate) const SEARCH: u16 = 24;
    pub(crate) const SOL_MAX_RT: u16 = 82;
}

/// `msg-type` (RFC 8415 §7.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Solicit,
    Advertise,
    Request,
    Confirm,
    Renew,
    Rebind,
    Reply,
    Release,
    Decline,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Solicit,
        Kind::Advertise,
        Kind::Request,
        Kind::Confirm,
        Kind::Renew,
        Kind::Rebind,
        Kind::Reply,
        Kind::Release,
        Kind::Decline,
    ];

    fn number(self) -> u8 {
        match self {
            Kind::Solicit => 1,
            Kind::Advertise => 2,
            Kind::Request => 3,
            Kind::Confirm => 4,
            Kind::Renew => 5,
            Kind::Rebind => 6,
            Kind::Reply => 7,
            Kind::Release => 8,
            Kind::Decline => 9,
        }
    }
}

/// A transaction identifier has three octets.
pub(super) const XID_MASK: u32 = 0x00ff_ffff;

/// A message between client and server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) xid: u32,
    pub(super) options: Vec<RawOption>,
}

/// Not a message between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedMessage;

impl Message {
    pub(super) fn parse(payload: &[u8]) -> Result<Self, MalformedMessage> {
        let (head, options) = payload.split_at_checked(4).ok_or(MalformedMessage)?;
        let [number, a, b, c] = *head else { return Err(MalformedMessage) };
        let kind =
            Kind::ALL.into_iter().find(|kind| kind.number() == number).ok_or(MalformedMessage)?;
        let options = read_options(options).ok_or(MalformedMessage)?;
        Ok(Message { kind, xid: u32::from_be_bytes([0, a, b, c]), options })
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let [_, a, b, c] = self.xid.to_be_bytes();
        let mut payload = vec![self.kind.number(), a, b, c];
        write_options(&mut payload, &self.options);
        payload
    }

    pub(super) fn option(&self, code: u16) -> Option<&[u8]> {
        // Those that count here may appear only once.
        RawOption::find(&self.options, code)
    }
}

/// `None` if one is cut off.
fn read_options(octets: &[u8]) -> Option<Vec<RawOption>> {
    let mut options = Vec::new();
    let mut rest = octets;
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(4)?;
        let [a, b, c, d] = *head else { return None };
        let (value, after) = after.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
        options.push(RawOption::new(u16::from_be_bytes([a, b]), value));
        rest = after;
    }
    Some(options)
}

/// An option too long for its length field is left out: only `Config::send` could contain one.
fn write_options(payload: &mut Vec<u8>, options: &[RawOption]) {
    for RawOption { code, value } in options {
        if let Ok(length) = u16::try_from(value.len()) {
            payload.extend_from_slice(&code.to_be_bytes());
            payload.extend_from_slice(&length.to_be_bytes());
            payload.extend_from_slice(value);
        }
    }
}

/// A status (RFC 8415 §21.13).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) message: String,
}

impl Status {
    pub(super) const SUCCESS: u16 = 0;
    pub(super) const NO_ADDRESSES: u16 = 2;
    pub(super) const NO_BINDING: u16 = 3;
    pub(super) const NOT_ON_LINK: u16 = 4;

    /// RFC 8415 §21.13: an absent status means success.
    pub(super) fn of(options: &[RawOption]) -> Option<Self> {
        let Some(value) = RawOption::find(options, code::STATUS) else {
            return Some(Status { code: Status::SUCCESS, message: String::new() });
        };
        let (code, message) = value.split_at_checked(2)?;
        let code = u16::from_be_bytes(code.try_into().ok()?);
        Some(Status { code, message: printable(message) })
    }
}

/// A server's message for a log: bounded, on one line.
fn printable(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message);
    let letters = text.chars().filter(|letter| !letter.is_control());
    letters.take(200).collect()
}

/// An identity association for addresses (RFC 8415 §21.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Association {
    pub(super) iaid: u32,
    pub(super) t1_s: u32,
    pub(super) t2_s: u32,
    pub(super) status: Status,
    /// With lifetimes as received. Addresses with an invalid option are left out.
    pub(super) addresses: Vec<AddressOption>,
}

/// An address in an association (RFC 8415 §21.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressOption {
    pub(super) address: Ipv6Addr,
    pub(super) preferred_s: u32,
    pub(super) valid_s: u32,
}

impl Association {
    pub(super) fn parse(value: &[u8]) -> Option<Self> {
        let (head, options) = value.split_at_checked(12)?;
        let options = read_options(options)?;
        let number = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let addresses = options.iter().filter(|option| option.code == code::IA_ADDRESS);
        Some(Association {
            iaid: number(0)?,
            t1_s: number(4)?,
            t2_s: number(8)?,
            status: Status::of(&options)?,
            addresses: addresses.filter_map(|o| AddressOption::parse(&o.value)).collect(),
        })
    }

    /// As clients send it: times are zero, which leaves them to the server (RFC 8415 §18.2.1 and
    /// following).
    pub(super) fn ask(iaid: u32, addresses: &[Ipv6Addr]) -> RawOption {
        let mut value = iaid.to_be_bytes().to_vec();
        value.extend_from_slice(&[0; 8]);
        let option = |address: &Ipv6Addr| {
            RawOption::new(code::IA_ADDRESS, [&address.octets()[..], &[0; 8]].concat())
        };
        write_options(&mut value, &addresses.iter().map(option).collect::<Vec<_>>());
        RawOption::new(code::IA_NA, value)
    }
}

impl AddressOption {
    fn parse(value: &[u8]) -> Option<Self> {
        let (head, options) = value.split_at_checked(24)?;
        let options = read_options(options)?;
        // A status other than success in an address's option removes the address.
        if Status::of(&options)?.code != Status::SUCCESS {
            return None;
        }
        let address = <[u8; 16]>::try_from(head.get(..16)?).ok()?;
        let number = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        Some(AddressOption {
            address: Ipv6Addr::from(address),
            preferred_s: number(16)?,
            valid_s: number(20)?,
        })
    }
}

impl From<AddressOption> for Address {
    fn from(option: AddressOption) -> Self {
        // RFC 8415 §7.7: all ones means for ever.
        let finite = |seconds: u32| (seconds != u32::MAX).then_some(seconds);
        Address {
            address: option.address,
            preferred_s: finite(option.preferred_s),
            valid_s: finite(option.valid_s),
        }
    }
}
