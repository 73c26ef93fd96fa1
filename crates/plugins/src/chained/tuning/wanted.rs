//! What an attachment of `tuning` wants, for CHECK and repair.

use cni_plugin::Call;
use state::Index;
use wanted::{Item, Reason, State, Sysctl, Sysctls, Wanted};

use super::config::{self, Config};
use super::node::{self, PLUGIN};
use super::plan::RecordData;
use super::sysctl::{is_of_interface, same_value};
use super::{Tuning, in_netns};
use crate::engine::{Attachment, Comparison, Mismatch, Picture, Wants, unknown};
use crate::shared::attachment;
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;

impl Wants for Tuning {
    type Observation = ();

    /// The link comes before sysctls: setting its MTU resets the one of IPv6.
    fn wanted(attached: &Attachment<'_, Self>, (): &()) -> Wanted {
        let (config, recorded) = (attached.config, attached.recorded);
        let mut wanted = Wanted::new();
        let link = || attached.ifname.to_owned();
        if !config.link.is_empty() {
            let state = State::Link { link: link(), kinds: Vec::new() };
            wanted.push(Item::container(state, Reason::Created));
        }
        let is_own = |sysctl: &&config::Sysctl| {
            sysctl.key.paths().any(|path| is_of_interface(path, &attached.key.ifname))
        };
        let (own, others): (Vec<_>, Vec<_>) = config.sysctls.iter().partition(is_own);
        if !config.link.is_empty() || !own.is_empty() {
            let state = State::Recorded { link: link() };
            wanted.push(Item::container(state, Reason::Ownership));
        }
        wanted.extend(link_values(config, attached.ifname));
        for (of, link) in [(own, Some(link())), (others, None)] {
            if !of.is_empty() {
                let values = of.into_iter().map(|sysctl| sysctl_of(sysctl, recorded)).collect();
                let state = State::Sysctls(Sysctls { link, values });
                wanted.push(Item::container(state, Reason::Key("sysctl".to_owned())));
            }
        }
        wanted
    }

    /// The reference's words.
    fn words(item: &Item, now: Option<&str>) -> Option<String> {
        let (name, link, wanted) = match &item.state {
            State::Link { link, .. } => return Some(format!("Cannot find container link {link}")),
            State::Mac { link, mac } => ("Ethernet", link, mac.clone()),
            State::Promiscuous { link, on } => ("promisc", link, on.to_string()),
            State::Mtu { link, mtu } => ("MTU", link, mtu.to_string()),
            State::AllMulticast { link, on } => ("all-multicast mode", link, on.to_string()),
            State::QueueLength { link, length } => {
                ("transmission queue length", link, length.to_string())
            }
            _ => return None,
        };
        let now = now.unwrap_or("none");
        Some(format!("Tuning configured {name} of {link} is {wanted}, current value is {now}"))
    }

    fn compare(_: &Config, picture: &mut Picture<'_>, item: &Item) -> Comparison {
        let State::Sysctls(sysctls) = &item.state else {
            return Err(unknown(item));
        };
        let each = || sysctls.values.iter().map(difference).collect::<Result<Vec<_>, Failure>>();
        Ok(in_netns(&picture.namespaces.get()?.netns, each)?.into_iter().flatten().collect())
    }

    fn restore(
        _: &Config,
        picture: &mut Picture<'_>,
        item: &Item,
    ) -> Result<Option<String>, Failure> {
        let State::Sysctls(sysctls) = &item.state else {
            return Err(unknown(item));
        };
        let mut written = Vec::new();
        let mut became = Vec::new();
        let mut failures = Failures::new();
        let write = || {
            for sysctl in &sysctls.values {
                let found = failures.note("read a sysctl", read(sysctl)).flatten();
                let Some((path, Some(now))) = found else { continue };
                if is_wanted(sysctl, &now) {
                    continue;
                }
                let what = format!("sysctl {path} = {:?}", sysctl.value);
                if let Some(now) = failures.note(&what, node::write(path, &sysctl.value)) {
                    written.push(what);
                    became.push((path.to_owned(), now));
                }
            }
            Ok(())
        };
        in_netns(&picture.namespaces.get()?.netns, write)?;
        failures.note("record what sysctls became", record(picture, &became));
        failures.into_result().map(|()| Some(written.join(", ")))
    }

    /// What the administrator's list no longer allows is not written again.
    fn before_repair(call: &Call<'_>, _: &Index) -> Result<(), Failure> {
        Tuning::require_allowed(&Config::of(call)?)
    }
}

/// Records, for CHECK, what sysctls read as after they were written.
fn record(picture: &Picture<'_>, became: &[(String, Option<String>)]) -> Result<(), Failure> {
    let Some(mut record) = picture.index.get(picture.call.attachment(), PLUGIN).found else {
        return Ok(());
    };
    let Some(before) = attachment::recorded_in::<RecordData>(&record) else { return Ok(()) };
    let mut recorded = before.clone();
    for known in &mut recorded.sysctls {
        if let Some((_, now)) = became.iter().find(|(path, _)| *path == known.path) {
            known.became.clone_from(now);
        }
    }
    if recorded == before {
        return Ok(());
    }
    record.data = serde_json::to_value(&recorded).expect("a record has string keys only");
    Ok(picture.index.put(&record)?)
}

/// Lists the link's values that the configuration names.
fn link_values(config: &Config, ifname: &str) -> Vec<Item> {
    let link = || ifname.to_owned();
    let values = config.link;
    let states = [
        ("mac", values.mac.map(|mac| State::Mac { link: link(), mac: mac.to_string() })),
        ("promisc", values.promisc.map(|on| State::Promiscuous { link: link(), on })),
        ("mtu", values.mtu.map(|mtu| State::Mtu { link: link(), mtu })),
        ("allmulti", values.allmulti.map(|on| State::AllMulticast { link: link(), on })),
        (
            "txQLen",
            values.tx_queue_length.map(|length| State::QueueLength { link: link(), length }),
        ),
    ];
    let item = |(key, state): (&str, Option<State>)| {
        Some(Item::container(state?, Reason::Key(key.to_owned())))
    };
    states.into_iter().filter_map(item).collect()
}

fn sysctl_of(wanted: &config::Sysctl, recorded: Option<&RecordData>) -> Sysctl {
    let paths: Vec<String> = wanted.key.paths().map(ToOwned::to_owned).collect();
    let mut known = recorded.iter().flat_map(|recorded| &recorded.sysctls);
    let known =
        known.find(|known| paths.contains(&known.path) && same_value(&known.asked, &wanted.value));
    let shown = known.and_then(|known| known.became.clone());
    Sysctl { paths, value: wanted.value.clone(), shown }
}

fn read(sysctl: &Sysctl) -> Result<Option<(&str, Option<String>)>, Failure> {
    node::read_first(sysctl.paths.iter().map(String::as_str))
}

fn is_wanted(sysctl: &Sysctl, now: &str) -> bool {
    same_value(now, &sysctl.value)
        || sysctl.shown.as_ref().is_some_and(|shown| same_value(now, shown))
}

/// Compares one sysctl of the calling thread's namespace. One that can only be written is not
/// compared.
fn difference(sysctl: &Sysctl) -> Result<Option<Mismatch>, Failure> {
    let Some((path, now)) = read(sysctl)? else {
        let text = format!("Tuning cannot find sysctl {}", sysctl.paths.join(" or "));
        return Ok(Some(Mismatch::by_hand(text, node::MISSING)));
    };
    let now = now.filter(|now| !is_wanted(sysctl, now));
    Ok(now.map(|now| {
        let value = &sysctl.value;
        Mismatch::new(format!(
            "Tuning configured value of {path} is {value}, current value is {now}"
        ))
    }))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::engine::sample;

    #[track_caller]
    fn check(keys: &str, expected: Expect) {
        let config = Config::of_text(keys).unwrap();
        let result = sample::result(vec![sample::interface()], &[("10.1.0.2/24", "10.1.0.1")], &[]);
        let (key, config) = (&sample::key(), &config);
        let attached =
            Attachment::<Tuning> { key, ifname: "eth0", result: &result, config, recorded: None };
        expected.assert_eq(&Tuning::wanted(&attached, &()).to_string());
    }

    #[test]
    fn values_of_the_link_come_before_sysctls() {
        check(
            r#"{"sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_notify": "1"},
                "mac": "02:00:00:00:00:07", "promisc": true, "mtu": 1400, "allmulti": false,
                "txQLen": 500}"#,
            expect![[r#"
                container: interface "eth0" (ADD created it)
                container: interface "eth0", as ADD recorded it (it shows the owner)
                container: MAC address 02:00:00:00:00:07 of interface "eth0" (the configuration's mac asks for it)
                container: promiscuous mode on of interface "eth0" (the configuration's promisc asks for it)
                container: MTU 1400 of interface "eth0" (the configuration's mtu asks for it)
                container: all-multicast mode off of interface "eth0" (the configuration's allmulti asks for it)
                container: transmission queue length 500 of interface "eth0" (the configuration's txQLen asks for it)
                container: sysctl net/ipv4/conf/eth0/arp_notify = "1" (the configuration's sysctl asks for it)
                container: sysctl net/core/somaxconn = "500" (the configuration's sysctl asks for it)
            "#]],
        );
    }

    /// A sysctl of the namespace needs no link.
    #[test]
    fn sysctls_of_the_namespace_alone() {
        check(
            r#"{"sysctl": {"net.core.somaxconn": "500"}}"#,
            expect![[r#"
                container: sysctl net/core/somaxconn = "500" (the configuration's sysctl asks for it)
            "#]],
        );
    }
}
