//! Masquerade as the reference makes it: a chain for each container and network.

use cni::AttachmentKey;
use cni::owner::sha512_hex;
use ipnet::IpNet;
use net::IpFamily;

use super::text::target;
use super::{IptablesError, ObservedTable, Restore, Tool, host, quote};
use crate::masquerade::Sources;

const TABLE: &str = "nat";
/// How many hexadecimal digits are in a chain's name: 28 characters with the prefix, the limit of
/// iptables.
const DIGITS: usize = 24;

/// Returns the chain's name. It does not contain the interface: two attachments of a container to
/// one network share the chain.
#[must_use]
pub fn chain_name(key: &AttachmentKey) -> String {
    format!("CNI-{}", sha512_hex(format!("{}{}", key.network, key.container_id), DIGITS))
}

/// Returns the comment of all rules for a container in a network.
#[must_use]
pub fn comment(key: &AttachmentKey) -> String {
    format!("name: \"{}\" id: \"{}\"", key.network, key.container_id)
}

/// Masquerades what these addresses send out of their prefixes.
///
/// # Errors
/// [`IptablesError`]; the families done before keep their rules.
pub fn add(
    key: &AttachmentKey,
    addresses: &[IpNet],
    sources: Sources,
) -> Result<(), IptablesError> {
    for family in IpFamily::ALL {
        let own: Vec<IpNet> = of_family(family, addresses).collect();
        if !own.is_empty() {
            Tool::host(family).change(TABLE, |observed, restore| {
                plan_add(key, &own, sources, observed, restore);
            })?;
        }
    }
    Ok(())
}

/// Removes a container's chain and the jumps to it, in both families. While another interface of
/// the container still uses the chain, only the jumps for `addresses` are removed; with no
/// addresses, all are.
///
/// **Idempotence**: what is gone already, or a family without iptables, is success.
///
/// # Errors
/// The first [`IptablesError`]; the other family is tried all the same.
pub fn remove(key: &AttachmentKey, addresses: &[IpNet], legacy: bool) -> Result<(), IptablesError> {
    let mut outcome = Ok(());
    for family in IpFamily::ALL {
        let done = Tool { family, legacy }.change(TABLE, |observed, restore| {
            plan_remove(key, addresses, observed, restore);
        });
        match done {
            Err(error) if !error.is_missing() && outcome.is_ok() => outcome = Err(error),
            _ => {}
        }
    }
    outcome
}

/// Describes what is missing; returns nothing when all is well.
///
/// # Errors
/// [`IptablesError`].
pub fn check(
    key: &AttachmentKey,
    addresses: &[IpNet],
    sources: Sources,
) -> Result<Vec<String>, IptablesError> {
    let mut missing = Vec::new();
    for family in IpFamily::ALL {
        let own: Vec<IpNet> = of_family(family, addresses).collect();
        if own.is_empty() {
            continue;
        }
        let observed = Tool::host(family).observe(TABLE)?;
        for (chain, rule) in rules(key, &own, sources) {
            if !observed.has_rule(&chain, &rule) {
                missing.push(format!("missing: -A {chain} {rule}"));
            }
        }
    }
    Ok(missing)
}

fn of_family(family: IpFamily, addresses: &[IpNet]) -> impl Iterator<Item = IpNet> {
    addresses.iter().copied().filter(move |address| IpFamily::of(address.addr()) == family)
}

fn rules(key: &AttachmentKey, addresses: &[IpNet], sources: Sources) -> Vec<(String, String)> {
    let chain = chain_name(key);
    let comment = format!("-m comment --comment {}", quote(&comment(key)));
    let mut rules = Vec::new();
    for address in addresses {
        let multicast = if address.addr().is_ipv4() { "224.0.0.0/4" } else { "ff00::/8" };
        rules.push((chain.clone(), format!("-d {} {comment} -j ACCEPT", address.trunc())));
        let translates = match sources.of(address.addr()) {
            Some(source) => format!("SNAT --to-source {source}"),
            None => "MASQUERADE".to_owned(),
        };
        rules.push((chain.clone(), format!("! -d {multicast} {comment} -j {translates}")));
        let host = host(address.addr());
        rules.push(("POSTROUTING".to_owned(), format!("-s {host} {comment} -j {chain}")));
    }
    rules
}

fn plan_add(
    key: &AttachmentKey,
    addresses: &[IpNet],
    sources: Sources,
    observed: &ObservedTable,
    restore: &mut Restore,
) {
    restore.ensure_chain(observed, &chain_name(key));
    let mut done: Vec<(String, String)> = Vec::new();
    for rule in rules(key, addresses, sources) {
        if !done.contains(&rule) {
            restore.ensure_last(observed, &rule.0, &rule.1);
            done.push(rule);
        }
    }
}

fn plan_remove(
    key: &AttachmentKey,
    addresses: &[IpNet],
    observed: &ObservedTable,
    restore: &mut Restore,
) {
    let chain = chain_name(key);
    // The reference once wrote the subnet instead of the address.
    let sources: Vec<String> = addresses
        .iter()
        .flat_map(|address| [host(address.addr()), address.trunc().to_string()])
        .map(|source| format!("-s {source} "))
        .collect();
    let is_own = |rule: &str| sources.iter().any(|source| rule.starts_with(source));
    let jumps = |rule: &&String| target(rule) == Some(&chain);
    let others = observed.rules("POSTROUTING").iter().filter(jumps).any(|rule| !is_own(rule));
    if addresses.is_empty() || !others {
        restore.delete_chain(observed, &chain);
    } else {
        restore.delete_rules(observed, "POSTROUTING", |rule| {
            target(rule) == Some(&chain) && is_own(rule)
        });
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_layout_is_the_references() {
        let key = AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let mut restore = Restore::new(TABLE);
        let address = ["10.1.0.2/24".parse().unwrap()];
        plan_add(&key, &address, Sources::default(), &ObservedTable::default(), &mut restore);
        // What `iptables-save` printed after the reference's bridge plugin 1.1.1 had run.
        expect![[r#"
            *nat
            -A CNI-9b00b9b7c2795a8a61a6eec1 -d 10.1.0.0/24 -m comment --comment "name: \"n\" id: \"c1\"" -j ACCEPT
            -A CNI-9b00b9b7c2795a8a61a6eec1 ! -d 224.0.0.0/4 -m comment --comment "name: \"n\" id: \"c1\"" -j MASQUERADE
            -A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"n\" id: \"c1\"" -j CNI-9b00b9b7c2795a8a61a6eec1
            COMMIT
        "#]]
        .assert_eq(&restore.text());
    }

    #[test]
    fn another_interface_of_the_container_keeps_the_chain() {
        let key = AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        };
        let chain = chain_name(&key);
        let observed = ObservedTable::parse(&format!(
            "-N {chain}\n-A POSTROUTING -s 10.1.0.2/32 -j {chain}\n\
             -A POSTROUTING -s 10.1.0.3/32 -j {chain}\n"
        ));
        let remove = |addresses: &[IpNet]| {
            let mut restore = Restore::new(TABLE);
            plan_remove(&key, addresses, &observed, &mut restore);
            restore.text()
        };
        expect![[r"
            *nat
            -D POSTROUTING -s 10.1.0.2/32 -j CNI-9b00b9b7c2795a8a61a6eec1
            COMMIT
        "]]
        .assert_eq(&remove(&["10.1.0.2/24".parse().unwrap()]));
        assert!(remove(&[]).contains("-X"));
    }
}
