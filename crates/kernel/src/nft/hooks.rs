//! Lists the functions at a netfilter hook (nfnetlink_hook).

use super::info::ChainInfo;
use super::names::{Family, HookPoint, TableRef};
use super::{NFGENMSG, nfgenmsg};
use crate::netlink::{Errno, NetlinkError, Request, Socket};
use crate::wire::{Message, Writer};

/// `linux include/uapi/linux/netfilter/nfnetlink.h` NFNL_SUBSYS_HOOK << 8 | NFNL_MSG_HOOK_GET.
/// Kernel: 5.14.
const HOOK_GET: u16 = 12 << 8;
/// `linux include/uapi/linux/netfilter/nfnetlink_hook.h`.
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_PRIORITY: u16 = 2;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
const NFNLA_HOOK_CHAIN_INFO: u16 = 6;
const NFNLA_HOOK_INFO_DESC: u16 = 1;
const NFNLA_CHAIN_TABLE: u16 = 1;
const NFNLA_CHAIN_FAMILY: u16 = 2;
const NFNLA_CHAIN_NAME: u16 = 3;

/// A function at a netfilter hook.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookInfo {
    /// The packets' family: never [`Family::Inet`].
    pub family: Family,
    /// The place.
    pub point: HookPoint,
    /// The order: lower first.
    pub priority: i32,
    /// The base chain, if nftables put it there: its table and its name.
    pub chain: Option<(TableRef, String)>,
    /// The kernel's function.
    pub function: Option<String>,
    /// The kernel module of the function.
    pub module: Option<String>,
}

/// Asks the kernel.
pub(crate) fn list(
    socket: &mut Socket,
    family: Family,
    point: HookPoint,
) -> Result<Vec<HookInfo>, NetlinkError> {
    let mut found = Vec::new();
    for &family in families(family) {
        let body = |writer: &mut Writer| {
            writer.raw(&nfgenmsg(family.number(), 0));
            writer.put_u32_be(NFNLA_HOOK_HOOKNUM, point.number(family));
        };
        let operation = format_args!("list the hooks of {family} {}", point.name());
        let request = Request { operation: &operation, kind: HOOK_GET, flags: 0, body: &body };
        found.extend(socket.dump(&request, |message| decode(message, family, point))?);
    }
    found.sort_by_key(|hook| hook.priority);
    Ok(found)
}

/// Whether the kernel cannot list hooks: EINVAL without the subsystem, EPROTONOSUPPORT or
/// EOPNOTSUPP without the family.
pub(crate) fn is_unknown(error: &NetlinkError) -> bool {
    const EPROTONOSUPPORT: Errno = Errno(93);
    let unknown = [Errno::INVAL, Errno::OPNOTSUPP, EPROTONOSUPPORT];
    error.errno().is_some_and(|errno| unknown.contains(&errno))
}

/// Builds the list from base chains.
pub(crate) fn from_chains(
    chains: Vec<ChainInfo>,
    family: Family,
    point: HookPoint,
) -> Vec<HookInfo> {
    let mut found = Vec::new();
    for chain in chains {
        let Some(hook) = chain.hook.filter(|hook| hook.point == point) else { continue };
        for &seen in families(chain.table.family) {
            if families(family).contains(&seen) {
                found.push(HookInfo {
                    family: seen,
                    point,
                    priority: hook.priority,
                    chain: Some((chain.table.clone(), chain.name.clone())),
                    function: None,
                    module: None,
                });
            }
        }
    }
    found.sort_by_key(|hook| hook.priority);
    found
}

/// For the kernel, inet is both families.
fn families(family: Family) -> &'static [Family] {
    match family {
        Family::Inet => &[Family::Ip, Family::Ip6],
        Family::Ip => &[Family::Ip],
        Family::Ip6 => &[Family::Ip6],
        Family::Arp => &[Family::Arp],
        Family::Bridge => &[Family::Bridge],
        Family::Netdev => &[Family::Netdev],
    }
}

fn decode(message: &Message<'_>, family: Family, point: HookPoint) -> Option<HookInfo> {
    if message.kind != HOOK_GET {
        return None;
    }
    let mut hook =
        HookInfo { family, point, priority: 0, chain: None, function: None, module: None };
    for attribute in message.attributes(NFGENMSG) {
        match attribute.kind {
            NFNLA_HOOK_PRIORITY => hook.priority = attribute.i32_be()?,
            NFNLA_HOOK_FUNCTION_NAME => hook.function = Some(attribute.text()),
            NFNLA_HOOK_MODULE_NAME => hook.module = Some(attribute.text()),
            NFNLA_HOOK_CHAIN_INFO => {
                hook.chain = attribute.find(NFNLA_HOOK_INFO_DESC).and_then(|chain| {
                    let own = chain.find(NFNLA_CHAIN_FAMILY).and_then(|family| family.u8());
                    let family = own.and_then(Family::from_number).unwrap_or(family);
                    let table = TableRef::new(family, chain.find(NFNLA_CHAIN_TABLE)?.text());
                    Some((table, chain.find(NFNLA_CHAIN_NAME)?.text()))
                });
            }
            _ => {}
        }
    }
    Some(hook)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes as linux net/netfilter/nfnetlink_hook.c (`nfnl_hook_dump_one`) writes them.
    fn reply(body: impl Fn(&mut Writer)) -> Option<HookInfo> {
        let mut writer = Writer::new();
        writer.raw(&nfgenmsg(2, 0));
        body(&mut writer);
        let message = Message { kind: HOOK_GET, flags: 0, seq: 1, body: writer.bytes() };
        decode(&message, Family::Ip, HookPoint::Forward)
    }

    #[test]
    fn a_base_chain() {
        let hook = reply(|writer| {
            writer.put_text(NFNLA_HOOK_MODULE_NAME, "nf_tables");
            writer.put_text(NFNLA_HOOK_FUNCTION_NAME, "nft_do_chain_inet");
            writer.nest(NFNLA_HOOK_CHAIN_INFO, |writer| {
                writer.put_u32_be(2, 1);
                writer.nest(NFNLA_HOOK_INFO_DESC, |writer| {
                    writer.put_text(NFNLA_CHAIN_TABLE, "netwright");
                    writer.put_text(NFNLA_CHAIN_NAME, "forward");
                    writer.put_u8(NFNLA_CHAIN_FAMILY, 1);
                });
            });
            writer.put_u32_be(NFNLA_HOOK_HOOKNUM, 2);
            writer.put(NFNLA_HOOK_PRIORITY, &(-5_i32).to_be_bytes());
        });
        let expected = HookInfo {
            family: Family::Ip,
            point: HookPoint::Forward,
            priority: -5,
            chain: Some((TableRef::new(Family::Inet, "netwright"), "forward".to_owned())),
            function: Some("nft_do_chain_inet".to_owned()),
            module: Some("nf_tables".to_owned()),
        };
        assert_eq!(hook, Some(expected));
    }

    #[test]
    fn somebody_else() {
        let hook = reply(|writer| {
            writer.put_text(NFNLA_HOOK_FUNCTION_NAME, "ipt_do_table");
            writer.put_u32_be(NFNLA_HOOK_PRIORITY, 0);
        });
        let hook = hook.unwrap();
        assert_eq!((hook.chain, hook.function.as_deref()), (None, Some("ipt_do_table")));
    }
}
