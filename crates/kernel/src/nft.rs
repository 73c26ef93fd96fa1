//! nftables over netlink: one [`Batch`] is one transaction.
//!
//! Tables, chains, sets, maps, elements and rules are plain values. What an attachment needs should
//! be *elements* of sets and maps, looked up by a few rules that never change: an element costs the
//! kernel 6 µs however many there are, a rule costs more with each existing rule. To find out
//! whether an object exists, use a targeted query ([`NftSocket::get_element`],
//! [`NftSocket::get_chain`]), never a listing; a failing transaction costs 8–20 ms.
//!
//! Everything written here reads well in `nft list ruleset`: types of keys, comments and
//! dependencies are those that nft itself would write.
//!
//! ```no_run
//! use std::net::Ipv4Addr;
//!
//! use kernel::nft::{Batch, Family, Hook, Key, KeyType, NewChain, NewRule, NewSet, NftSocket, TableRef, Value, field};
//! use kernel::nft::{Element, Verdict};
//!
//! let table = TableRef::new(Family::Inet, "example");
//! let mut batch = Batch::new();
//! batch.add_table(&table, Some("made by an example"));
//! batch.add_chain(NewChain::regular(&table, "web"));
//! batch.add_chain(NewChain::base(&table, "postrouting", Hook::postrouting_srcnat()));
//! batch.add_set(NewSet::verdict_map(&table, "sources", [KeyType::IfName, KeyType::Ipv4Addr]));
//! let key = Key::of([Value::IfName("br0".into()), Value::Ipv4(Ipv4Addr::new(192, 0, 2, 1))]);
//! batch.add_elements(&table, "sources", [Element::verdict(key.clone(), Verdict::Jump("web".into())).comment("c1")]);
//! batch.add_rule(NewRule::new(&table, "postrouting").vmap(&[field::oifname(), field::ip_saddr()], "sources"));
//!
//! let mut nft = NftSocket::open()?;
//! nft.commit(&batch)?;
//! assert!(nft.get_element(&table, "sources", &key)?.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod batch_encode;
mod expr;
mod expr_decode;
mod expr_encode;
pub mod field;
mod hooks;
mod info;
mod key;
mod names;
mod object;
mod operand;
mod rule;
mod socket;
pub mod trace;
mod userdata;

pub use batch::{Batch, Mode, Operation};
pub use expr::{BitwiseExpr, Expr, LogGroup};
pub use hooks::HookInfo;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use info::decode_elements;
pub use info::{ChainInfo, RuleInfo, SetInfo, TableInfo};
pub use key::{Key, KeyType, Value};
pub use names::{ChainType, Family, Hook, HookPoint, Policy, TableRef, Verdict};
pub use object::{Element, ElementData, MapData, NewChain, NewSet, RangeEnd};
pub use operand::{
    CmpOp, CtDirection, CtKey, FibFlags, FibResult, LookupTo, MetaKey, NatKind, PayloadBase,
    Register, RejectKind, RtKey,
};
pub use rule::NewRule;
pub use socket::{NftError, NftSocket, SomeElements};
pub use userdata::MAX_COMMENT;

/// `linux include/uapi/linux/netfilter/nfnetlink.h` NFNL_SUBSYS_NFTABLES.
const SUBSYSTEM: u16 = 10;
/// Size of `struct nfgenmsg`.
pub(crate) const NFGENMSG: usize = 4;

/// Messages of nf_tables, `linux include/uapi/linux/netfilter/nf_tables.h` NFT_MSG_*.
mod msg {
    const fn kind(message: u16) -> u16 {
        super::SUBSYSTEM << 8 | message
    }
    pub(super) const NEW_TABLE: u16 = kind(0);
    pub(super) const GET_TABLE: u16 = kind(1);
    pub(super) const DEL_TABLE: u16 = kind(2);
    pub(super) const NEW_CHAIN: u16 = kind(3);
    pub(super) const GET_CHAIN: u16 = kind(4);
    pub(super) const DEL_CHAIN: u16 = kind(5);
    pub(super) const NEW_RULE: u16 = kind(6);
    pub(super) const GET_RULE: u16 = kind(7);
    pub(super) const DEL_RULE: u16 = kind(8);
    pub(super) const NEW_SET: u16 = kind(9);
    pub(super) const GET_SET: u16 = kind(10);
    pub(super) const DEL_SET: u16 = kind(11);
    pub(super) const NEW_ELEMENT: u16 = kind(12);
    pub(super) const GET_ELEMENT: u16 = kind(13);
    pub(super) const DEL_ELEMENT: u16 = kind(14);
    pub(super) const NEW_GEN: u16 = kind(15);
    pub(super) const GET_GEN: u16 = kind(16);
    /// Kernel 6.3.
    pub(super) const DESTROY_ELEMENT: u16 = kind(30);
}

/// `struct nfgenmsg`: family, version 0, resource ID.
pub(crate) fn nfgenmsg(family: u8, resource: u16) -> [u8; NFGENMSG] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
