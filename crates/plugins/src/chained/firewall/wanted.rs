//! What an attachment of `firewall` wants, for CHECK and repair.

use cni_plugin::Call;
use firewall::iptables::{filter, isolation};
use state::Index;
use wanted::{ForeignPart, Item, Reason, State, Wanted};

use super::FirewallPlugin;
use super::config::Config;
use super::recorded::RecordData;
use super::want::{firewalld, want};
use crate::engine::{Attachment, Comparison, Mismatch, Picture, Wants, unknown};
use crate::shared::failure::Failure;
use crate::shared::rules;

impl Wants for FirewallPlugin {
    /// The reference's words.
    const NO_PREVIOUS: &'static str = "missing prevResult from earlier plugin";
    /// What the packet filters of this host make necessary.
    type Observation = RecordData;

    fn observe(
        attached: &Attachment<'_, Self>,
        picture: &mut Picture<'_>,
    ) -> Result<RecordData, Failure> {
        let (config, recorded) = (attached.config, attached.recorded);
        want(picture.call, config, attached.result, recorded)
    }

    fn wanted(attached: &Attachment<'_, Self>, seen: &RecordData) -> Wanted {
        let config = attached.config;
        let mut wanted = Wanted::new();
        let because = Reason::Key("ingressPolicy".to_owned());
        wanted.extend(rules::wanted(None, seen.plan.clone(), Vec::new(), because));
        let item = |foreign| Item::host(State::Foreign(foreign), Reason::Outbound);
        wanted.extend(foreign(config, seen).into_iter().map(item));
        wanted
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let State::Foreign(foreign) = &item.state else {
            return Err(unknown(item));
        };
        let key = picture.call.attachment();
        let missing = match foreign {
            ForeignPart::Chains { addresses, admin_chain } => filter::check(addresses, admin_chain),
            ForeignPart::Isolation(bridges) => isolation::check(bridges),
            ForeignPart::Accept { addresses, legacy } => {
                filter::check_accept(addresses, key, *legacy)
            }
            ForeignPart::Zones(sources) => {
                let missing = firewalld(picture.call).check(sources);
                return Ok(found(&missing?));
            }
        };
        // Only ours have our comment.
        let is_ours = matches!(foreign, ForeignPart::Accept { .. });
        let found = found(&missing?).into_iter();
        Ok(found.map(|one| if is_ours { one.of_ours() } else { one }).collect())
    }

    fn restore(
        _: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        match &item.state {
            State::Foreign(foreign) => {
                Ok(put(picture.call, picture.index, foreign).map(|()| None)?)
            }
            _ => Err(unknown(item)),
        }
    }

    /// What is wanted depends on the host: DEL must find in the record what repair adds.
    fn before_repair(call: &Call<'_>, index: &Index) -> Result<(), Failure> {
        let result = call.require_prev_result(Self::NO_PREVIOUS)?;
        let recorded = RecordData::read(index, call.attachment());
        let wanted = want(call, &Config::of(call)?, &result, recorded.as_ref())?;
        let both = wanted.joined(recorded.as_ref());
        if recorded.as_ref() == Some(&both) {
            return Ok(());
        }
        both.write(call, index)
    }
}

fn found(missing: &[String]) -> Vec<Mismatch> {
    missing.iter().map(|text| Mismatch::of_filter(text)).collect()
}

/// Lists what an attachment needs of packet filters that are not ours.
pub(super) fn foreign(config: &Config, recorded: &RecordData) -> Vec<ForeignPart> {
    let mut all = Vec::new();
    if recorded.iptables {
        let admin_chain = config.admin_chain.clone();
        all.push(ForeignPart::Chains { addresses: recorded.addresses.clone(), admin_chain });
    }
    if !recorded.isolation.is_empty() {
        all.push(ForeignPart::Isolation(recorded.isolation.clone()));
    }
    all.extend(recorded.accepted.iter().map(|accepted| ForeignPart::Accept {
        addresses: recorded.addresses_of(*accepted),
        legacy: accepted.legacy,
    }));
    if !recorded.sources.is_empty() {
        all.push(ForeignPart::Zones(recorded.sources.clone()));
    }
    all
}

/// Puts such a part in place. What is there stays.
pub(super) fn put(call: &Call<'_>, index: &Index, foreign: &ForeignPart) -> Result<(), Failure> {
    let key = call.attachment();
    match foreign {
        ForeignPart::Chains { addresses, admin_chain } => {
            Ok(filter::add(index, key, addresses, admin_chain)?)
        }
        ForeignPart::Isolation(bridges) => Ok(isolation::hold(index, key, bridges)?),
        ForeignPart::Accept { addresses, legacy } => Ok(filter::accept(addresses, key, *legacy)?),
        ForeignPart::Zones(sources) => Ok(firewalld(call).hold(index, key, sources)?),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use firewall::firewalld::Source;
    use firewall::iptables::isolation::Isolation;
    use firewall::policy::{self, IngressPolicy};

    use super::super::recorded::AcceptingChain;
    use super::*;
    use crate::engine::sample;

    /// An attachment of `bridge` with these keys of `firewall`, on a host that makes this necessary.
    #[track_caller]
    fn check(keys: &str, seen: &RecordData, expected: Expect) {
        let config = Config::of_text(keys).unwrap();
        let result = sample::result(
            vec![
                sample::host_link("cni0", "02:00:00:00:00:01"),
                sample::host_link("veth1", "02:00:00:00:00:02"),
                sample::interface(),
            ],
            &[("10.1.0.2/24", "10.1.0.1"), ("2001:db8::2/64", "2001:db8::1")],
            &[],
        );
        let (key, config) = (&sample::key(), &config);
        let attached = Attachment::<FirewallPlugin> {
            key,
            ifname: "eth0",
            result: &result,
            config,
            recorded: None,
        };
        expected.assert_eq(&FirewallPlugin::wanted(&attached, seen).to_string());
    }

    fn addresses() -> Vec<std::net::IpAddr> {
        vec!["10.1.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()]
    }

    #[test]
    fn a_host_that_forwards_everything_needs_nothing() {
        let seen = RecordData { addresses: addresses(), ..RecordData::default() };
        check("{}", &seen, expect![""]);
    }

    #[test]
    fn an_isolated_bridge_on_a_host_that_drops() {
        let source = |address| Source { zone: "trusted".to_owned(), address };
        let seen = RecordData {
            plan: policy::plan(IngressPolicy::Isolated, "cni0", "veth1"),
            addresses: addresses(),
            accepted: vec![AcceptingChain { ipv4: true, legacy: false }],
            sources: addresses().into_iter().map(source).collect(),
            ..RecordData::default()
        };
        check(
            r#"{"ingressPolicy": "isolated"}"#,
            &seen,
            expect![[r#"
                host: packet filter: bridge netwright isolated_ports { "veth1" }, inet netwright policy_bridges { "cni0" }, inet netwright policy_same { "cni0" . "cni0" }, inet netwright policy_isolated { "cni0" . "cni0" } (the configuration's ingressPolicy asks for it)
                host: packet filter: iptables accepts 10.1.0.2 (the container reaches others by it)
                host: packet filter: 10.1.0.2 in trusted zone, 2001:db8::2 in trusted zone (the container reaches others by it)
            "#]],
        );
    }

    #[test]
    fn the_references_chains() {
        let policy = IngressPolicy::SameBridge;
        let seen = RecordData {
            addresses: addresses(),
            iptables: true,
            isolation: Isolation::of(policy, "cni0", true).into_iter().collect(),
            ..RecordData::default()
        };
        check(
            r#"{"backend": "iptables", "ingressPolicy": "same-bridge"}"#,
            &seen,
            expect![[r#"
                host: packet filter: the reference's chains accept 10.1.0.2, 2001:db8::2 (the container reaches others by it)
                host: packet filter: the reference's chains isolate "cni0" (the container reaches others by it)
            "#]],
        );
    }
}
