//! Compares the present state with the configuration, for CHECK.

use super::config::{Config, LinkValues};
use super::plan::{LinkState, Saved, SysctlState};
use super::sysctl::same_value;

/// Lists everything that is not as configured. Values that the configuration does not name are not
/// compared, and neither are sysctls that can only be written.
pub(super) fn drift(
    config: &Config,
    ifname: &str,
    link: Option<&LinkState>,
    sysctls: &[Option<SysctlState>],
    saved: &Saved,
) -> Vec<String> {
    let mut drift = Vec::new();
    for (wanted, now) in config.sysctls.iter().zip(sysctls) {
        let Some(now) = now else {
            drift.push(format!("Tuning cannot find sysctl {}", wanted.key.path()));
            continue;
        };
        let Some(value) = &now.value else { continue };
        let became = saved
            .sysctls
            .iter()
            .find(|known| known.path == now.path && same_value(&known.asked, &wanted.value))
            .and_then(|known| known.became.as_ref());
        if !same_value(value, &wanted.value)
            && became.is_none_or(|became| !same_value(value, became))
        {
            drift.push(format!(
                "Tuning configured value of {} is {}, current value is {value}",
                now.path, wanted.value
            ));
        }
    }
    if config.link.is_empty() {
        return drift;
    }
    match link {
        Some(link) => drift.extend(link_drift(&config.link, ifname, &link.values)),
        None => drift.push(format!("Cannot find container link {ifname}")),
    }
    drift
}

fn link_drift(wanted: &LinkValues, ifname: &str, now: &LinkValues) -> Vec<String> {
    fn differs<T: PartialEq + ToString>(
        wanted: Option<T>,
        now: Option<T>,
    ) -> Option<(String, String)> {
        let wanted = wanted?;
        let differs = now.as_ref() != Some(&wanted);
        let now = now.map_or_else(|| "none".to_owned(), |now| now.to_string());
        differs.then(|| (wanted.to_string(), now))
    }
    let named = [
        ("Ethernet", differs(wanted.mac, now.mac)),
        ("promisc", differs(wanted.promisc, now.promisc)),
        ("MTU", differs(wanted.mtu, now.mtu)),
        ("all-multicast mode", differs(wanted.allmulti, now.allmulti)),
        ("transmission queue length", differs(wanted.tx_queue_length, now.tx_queue_length)),
    ];
    let sentence = |(name, difference): (&str, Option<(String, String)>)| {
        let (wanted, now) = difference?;
        Some(format!("Tuning configured {name} of {ifname} is {wanted}, current value is {now}"))
    };
    named.into_iter().filter_map(sentence).collect()
}
