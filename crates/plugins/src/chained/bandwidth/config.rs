//! The configuration of `bandwidth`, by an administrator and a runtime, read and checked.

use cni::code;
use cni_plugin::Call;
use serde::Deserialize;
use serde::de::IgnoredAny;
use wanted::{Limit, Limits};

use crate::shared::failure::Failure;

/// What runtimes write for a burst that was not given: kubelet and CRI-O the largest signed 32-bit
/// number, containerd the largest unsigned one.
const NO_BURST_GIVEN: [u64; 2] = [2_147_483_647, 4_294_967_295];
/// The maximum of the kernel's field for sizes, in bytes.
const BURST_MAX_BYTES: u64 = 0xffff_ffff;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    runtime_config: RawRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRuntime {
    bandwidth: Option<RawBandwidth>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawBandwidth {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

/// Keys that the reference had from 1.5.0 to 1.5.1 and has ignored since.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Subnets {
    unshaped_subnets: Option<IgnoredAny>,
    shaped_subnets: Option<IgnoredAny>,
}

/// The limit that is tried if none is configured.
pub(super) const EXAMPLE: Limit = Limit { rate_bits_per_s: 8_000_000, burst_bytes: None };

/// Warns of what an administrator may not expect.
pub(super) fn warn(call: &Call<'_>, limits: &Limits) {
    let subnets: Subnets = call.read_config().unwrap_or_default();
    for (key, given) in
        [("unshapedSubnets", subnets.unshaped_subnets), ("shapedSubnets", subnets.shaped_subnets)]
    {
        if given.is_some() {
            call.warn(format_args!(
                "{key} is ignored, as by the reference since 1.6.0: everything is shaped"
            ));
        }
    }
    for (way, limit) in [("ingress", &limits.ingress), ("egress", &limits.egress)] {
        if let Some(seconds) = limit.as_ref().and_then(seconds_at_once) {
            call.warn(format_args!(
                "{way}Burst is what {way}Rate carries in {seconds} s: after idleness so much \
                 passes at once; {} asks for a burst with which the rate holds in every second",
                NO_BURST_GIVEN[0]
            ));
        }
    }
}

/// Returns how many seconds' worth of traffic a configured burst lets through at once, if it is
/// more than one second's worth.
fn seconds_at_once(limit: &Limit) -> Option<u64> {
    let burst = u64::from(limit.burst_bytes?);
    let rate = limit.bytes_per_s();
    (rate < burst).then(|| burst.div_ceil(rate))
}

/// Reads and checks everything.
///
/// # Errors
/// Code 6 when a type is wrong, 7 when a value is.
pub(super) fn read(call: &Call<'_>) -> Result<Limits, Failure> {
    call.read_config::<Raw>()?.check()
}

impl Raw {
    fn check(&self) -> Result<Limits, Failure> {
        let fixed = [self.ingress_rate, self.ingress_burst, self.egress_rate, self.egress_burst];
        // If the configuration has one of the keys, the runtime's values are ignored.
        let asked = if fixed.iter().any(Option::is_some) {
            let [ingress_rate, ingress_burst, egress_rate, egress_burst] =
                fixed.map(Option::unwrap_or_default);
            RawBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }
        } else {
            self.runtime_config.bandwidth.unwrap_or_default()
        };
        Ok(Limits {
            ingress: limit("ingress", asked.ingress_rate, asked.ingress_burst)?,
            egress: limit("egress", asked.egress_rate, asked.egress_burst)?,
        })
    }
}

fn limit(way: &str, rate: u64, burst: u64) -> Result<Option<Limit>, Failure> {
    let invalid = |message: &str, why: String| {
        Err(Failure::new(code::INVALID_CONFIG, message).with_details(why))
    };
    match (rate, burst) {
        (0, 0) => return Ok(None),
        (_, 0) => {
            return invalid(
                "if rate is set, burst must also be set",
                format!(
                    "{way}Rate is {rate} and {way}Burst is missing; {} asks for a fitting one",
                    NO_BURST_GIVEN[0]
                ),
            );
        }
        (0, _) => {
            return invalid(
                "if burst is set, rate must also be set",
                format!("{way}Burst is {burst} and {way}Rate is missing"),
            );
        }
        _ => {}
    }
    let Some(bytes) =
        u32::try_from(burst / 8).ok().filter(|&bytes| u64::from(bytes) < BURST_MAX_BYTES)
    else {
        return invalid("burst cannot be more than 4GB", format!("{way}Burst is {burst} bits"));
    };
    if rate < 8 {
        return invalid(
            &format!("{way}Rate is {rate} bit/s, less than a byte a second"),
            "rates are in bits a second".to_owned(),
        );
    }
    let burst = (!NO_BURST_GIVEN.contains(&burst)).then_some(bytes);
    Ok(Some(Limit { rate_bits_per_s: rate, burst_bytes: burst }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Limits, Failure> {
        cni::json::from_str::<Raw>(text).unwrap().check()
    }

    #[track_caller]
    fn limits(text: &str) -> [Option<(u64, Option<u32>)>; 2] {
        let config = check(text).unwrap();
        [config.ingress, config.egress]
            .map(|limit| limit.map(|limit| (limit.rate_bits_per_s, limit.burst_bytes)))
    }

    #[test]
    fn a_key_in_the_configuration_goes_before_all_of_the_runtimes() {
        let runtime = r#""runtimeConfig": {"bandwidth": {"ingressRate": 1000, "ingressBurst": 800,
            "egressRate": 2000, "egressBurst": 1600}}"#;
        assert_eq!(
            limits(&format!("{{{runtime}}}")),
            [Some((1000, Some(100))), Some((2000, Some(200)))]
        );
        let fixed = r#""egressRate": 8000, "egressBurst": 8000"#;
        assert_eq!(limits(&format!("{{{fixed}, {runtime}}}")), [None, Some((8000, Some(1000)))]);
        assert_eq!(limits(&format!("{{\"egressRate\": 0, {runtime}}}")), [None, None]);
        assert_eq!(
            limits(&format!("{{\"egressRate\": null, {runtime}}}"))[0],
            Some((1000, Some(100)))
        );
    }

    #[test]
    fn what_containerd_and_kubelet_write() {
        let text = r#"{"runtimeConfig": {"bandwidth": {"IngressRate": 10000000, "IngressBurst": 4294967295,
            "EgressRate": 20000000, "EgressBurst": 2147483647}}}"#;
        assert_eq!(limits(text), [Some((10_000_000, None)), Some((20_000_000, None))]);
        assert_eq!(limits(r#"{"runtimeConfig": {"bandwidth": {}}}"#), [None, None]);
        assert_eq!(limits(r#"{"runtimeConfig": {"bandwidth": null}}"#), [None, None]);
        assert_eq!(limits("{}"), [None, None]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_the_references_words() {
        for (text, words, key) in [
            (r#"{"ingressRate": 8000}"#, "if rate is set, burst must also be set", "ingressBurst"),
            (r#"{"egressBurst": 8000}"#, "if burst is set, rate must also be set", "egressRate"),
            (
                r#"{"ingressRate": 8000, "ingressBurst": 34359738360}"#,
                "burst cannot be more than 4GB",
                "ingressBurst",
            ),
            (
                r#"{"egressRate": 8, "egressBurst": 18446744073709551615}"#,
                "burst cannot be more than 4GB",
                "egressBurst",
            ),
            (r#"{"egressRate": 7, "egressBurst": 80}"#, "egressRate is 7 bit/s", ""),
        ] {
            let error = check(text).unwrap_err();
            assert!(
                error.code() == code::INVALID_CONFIG && error.message().starts_with(words),
                "{error:?}"
            );
            assert!(error.details().contains(key), "{error:?}");
        }
    }
}
