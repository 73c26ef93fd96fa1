//! Rules as they are compared.

use std::collections::BTreeMap;

use kernel::nft::Expr;

/// The rules of a chain, in their order.
pub(crate) type Rules = Vec<Vec<Expr>>;

/// Leaves out what packets change, and what the kernel adds to a translation because of its registers
/// (`linux include/uapi/linux/netfilter/nf_nat.h` NF_NAT_RANGE_*).
pub(crate) fn at_rest(rule: Vec<Expr>) -> Vec<Expr> {
    let at_rest = |expr: Expr| match expr {
        Expr::Counter { .. } => Expr::Counter { packets: 0, bytes: 0 },
        Expr::Nat { kind, family, address, port, .. } => {
            Expr::Nat { kind, family, address, port, flags: 0 }
        }
        other => other,
    };
    rule.into_iter().map(at_rest).collect()
}

/// Sorts rules by their chains, each with its chain's name.
pub(crate) fn by_chain(
    rules: impl IntoIterator<Item = (String, Vec<Expr>)>,
) -> BTreeMap<String, Rules> {
    let mut chains: BTreeMap<String, Rules> = BTreeMap::new();
    for (chain, rule) in rules {
        chains.entry(chain).or_default().push(at_rest(rule));
    }
    chains
}
