//! Buckets and queues for a rate, and the changes to make. Reads nothing, changes nothing.
//!
//! In any second a token bucket lets through at most its rate, and once its burst. A configured
//! burst is used as it is, and passes in a hundredth of a second if the link is fast enough.
//! Without one the burst is a twentieth of what the rate carries in a second, so the rate holds in
//! every second.
//!
//! There is always a second, small bucket of ten milliseconds. What does not fit into it is cut
//! into packets. The kernel builds bundles of 64 KiB between links of one host; at 20 Mbit/s one of
//! them would keep everything behind it waiting for 26 ms.

use cni_plugin::codes;
use kernel::route::{Change, FilterInfo, FqCodel, Peak, Qdisc, QdiscKind, Redirect, Tbf, TcHandle};
use wanted::Limit;

use crate::shared::failure::Failure;
use crate::shared::steps::Step;

/// A burst that was not configured is what the rate carries in a second, divided by this.
const HARMLESS: u64 = 20;
/// A burst leaves at least this many times faster than the rate.
const PEAK: u64 = 2;
/// A configured burst leaves within a second divided by this.
const AT_ONCE: u64 = 100;
/// The small bucket is what its rate carries in a second, divided by this: ten milliseconds, so
/// that no time is lost when a timer is late.
const SMALL: u64 = 100;
/// How long packets may wait without fair queueing, as a fraction of a second: 25 ms, as with the
/// reference.
const WAIT: u64 = 40;
/// What a packet has besides its MTU: an Ethernet header with two VLAN tags.
const HEADER: u32 = 22;
/// How many packets must fit into a bucket: one that leaves and one that waits for it.
const LEAST_PACKETS: u32 = 2;
/// How many packets must be able to wait, so that slow rates do not starve TCP.
const LEAST_WAITING: u32 = 10;
/// fq_codel's own defaults, in microseconds (RFC 8290 §5.2.3, §5.2.4).
const CODEL_TARGET_US: u64 = 5_000;
const CODEL_INTERVAL_US: u64 = 100_000;
/// How much memory waiting packets may take: what the rate carries in 100 ms, within these bounds.
const MEMORY: std::ops::RangeInclusive<u64> = 256 * 1024..=32 * 1024 * 1024;
/// The handles of our qdiscs; that of the bucket is the reference's.
const BUCKET: TcHandle = TcHandle::new(1, 0);
const INSIDE_BUCKET: TcHandle = TcHandle::new(1, 1);
const QUEUE: TcHandle = TcHandle::new(2, 0);
/// The largest Ethernet MTU that a link may claim. The MTU of loopback and ifb can be larger, but
/// their packets cannot.
const MTU_MAX: u32 = 65_535;

/// The qdiscs of a link for a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// The bucket.
    pub(super) bucket: Tbf,
    /// The queue inside it.
    pub(super) queue: FqCodel,
}

impl Shape {
    /// Decides on bucket and queue for packets of up to an MTU.
    pub(super) fn of(limit: &Limit, mtu: u32) -> Self {
        let rate = limit.bytes_per_s();
        let packet = mtu.min(MTU_MAX) + HEADER;
        let least = packet * LEAST_PACKETS;
        let chosen = limit.burst_bytes.map(|burst| burst.max(least));
        let burst = chosen.unwrap_or_else(|| size(rate / HARMLESS).max(least));
        let at_once = u64::from(chosen.unwrap_or_default()) * AT_ONCE;
        let quick = rate.saturating_mul(PEAK).max(at_once);
        let peak = Peak { rate: quick, burst: size(rate / SMALL).max(least) };
        let waiting = size(rate / WAIT).max(packet * LEAST_WAITING);
        let bucket = Tbf { rate, burst, limit: waiting, peak: Some(peak) };
        Self { bucket, queue: queue(rate, packet) }
    }
}

/// Chooses fq_codel's parameters: a packet may always wait for one and a half others.
fn queue(rate: u64, packet: u32) -> FqCodel {
    let packet_us = u64::from(packet) * 1_000_000 / rate.max(1);
    let target = CODEL_TARGET_US.max(packet_us + packet_us / 2);
    let interval = CODEL_INTERVAL_US + (target - CODEL_TARGET_US);
    let memory = (rate / 10).clamp(*MEMORY.start(), *MEMORY.end());
    FqCodel {
        target_us: Some(size(target)),
        interval_us: Some(size(interval)),
        limit: None,
        memory_bytes: Some(size(memory)),
    }
}

fn size(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Reports whether a bucket that was read is the one for a limit.
pub(super) fn is_for(limit: &Limit, mtu: u32, read: &Tbf) -> bool {
    Shape::of(limit, mtu).bucket.is_as(read)
}

/// Reports whether a bucket that was read is the one that the reference creates for a limit.
///
/// That bucket has no small bucket, and its burst is the configured one, which we only know if our
/// configuration has it too.
pub(super) fn is_references(limit: &Limit, read: &Tbf) -> bool {
    let rate = limit.bytes_per_s();
    let burst = limit.burst_bytes.unwrap_or(read.burst);
    Tbf { rate, burst, limit: read.limit, peak: None }.is_as(read)
}

/// Plans a link's bucket: set, replaced or removed. `found` is what is at its root.
///
/// # Errors
/// Code 108 if the root has a foreign qdisc.
pub(super) fn bucket(
    link: (u32, &str),
    found: Option<&Qdisc>,
    queued: bool,
    wanted: Option<&Shape>,
) -> Result<Vec<Step>, Failure> {
    let (ifindex, name) = link;
    let remove = Change::DelQdisc { ifindex, parent: TcHandle::ROOT, handle: BUCKET };
    let known = match found {
        None => None,
        Some(qdisc @ Qdisc { kind: QdiscKind::Tbf(tbf), handle: BUCKET, .. }) => Some((qdisc, tbf)),
        Some(foreign) if wanted.is_some() => {
            return Err(Failure::new(
                codes::CONFLICT,
                format!("create qdisc: link {name:?} has {foreign}, which is not ours"),
            )
            .with_details(format!("remove it: tc qdisc del dev {name} root")));
        }
        Some(_) => None,
    };
    let mut steps = Vec::new();
    let Some(wanted) = wanted else {
        let put_back = known.map(|(qdisc, _)| Change::ReplaceQdisc(qdisc.clone()));
        steps.extend(put_back.map(|back| Step::new(remove, back)));
        return Ok(steps);
    };
    let own = Qdisc {
        ifindex,
        handle: BUCKET,
        parent: TcHandle::ROOT,
        kind: QdiscKind::Tbf(wanted.bucket),
    };
    match known {
        Some((_, read)) if wanted.bucket.is_as(read) => {}
        Some((before, _)) => {
            let back = Change::ReplaceQdisc(before.clone());
            steps.push(Step::new(Change::ReplaceQdisc(own), back));
        }
        None => steps.push(Step::new(Change::AddQdisc(own), remove)),
    }
    if !queued || !steps.is_empty() {
        let queue = Qdisc {
            ifindex,
            handle: QUEUE,
            parent: INSIDE_BUCKET,
            kind: QdiscKind::FqCodel(wanted.queue),
        };
        // It is deleted with the bucket.
        let change = Change::ReplaceQdisc(queue);
        steps.push(Step { change, back: Vec::new(), optional: true });
    }
    Ok(steps)
}

/// The parent of a bucket's queue.
pub(super) const QUEUE_PLACE: TcHandle = INSIDE_BUCKET;

/// The target of a filter whose link is gone: the filter drops everything.
pub(super) const NOWHERE: u32 = 0;

/// The hook for filters of a link's incoming traffic.
#[derive(Debug, Default)]
pub(super) struct Hook {
    /// The qdisc that holds them, if there is one.
    pub(super) qdisc: Option<Qdisc>,
    /// Whether we have created it, by our record.
    pub(super) ours: bool,
}

/// Plans the redirection of everything that a link receives to another, `to`: present if `wanted`,
/// else removed. A redirection to a link that is gone, as the reference's DEL leaves behind, is
/// removed in any case.
pub(super) fn redirection(
    ifindex: u32,
    hook: &Hook,
    filters: &[FilterInfo],
    to: u32,
    wanted: bool,
) -> Vec<Step> {
    let redirect =
        |preference| Redirect { ifindex, parent: TcHandle::INGRESS_FILTERS, preference, to };
    let own_hook = Qdisc {
        ifindex,
        handle: TcHandle::INGRESS_QDISC,
        parent: TcHandle::INGRESS,
        kind: QdiscKind::Ingress,
    };
    let remove_hook =
        Change::DelQdisc { ifindex, parent: TcHandle::INGRESS, handle: TcHandle::INGRESS_QDISC };
    let mut steps = Vec::new();
    let (dead, alive): (Vec<_>, Vec<_>) =
        filters.iter().partition(|filter| filter.redirects_to == Some(NOWHERE));
    for filter in &dead {
        steps.push(Step::one_way(Change::DelRedirect(redirect(filter.preference))));
    }
    let ours = alive.iter().find(|filter| filter.redirects_to == Some(to));
    if wanted && ours.is_none() {
        if hook.qdisc.is_none() {
            steps.push(Step::new(Change::AddQdisc(own_hook), remove_hook));
        }
        // The reference's preference, or the next free one.
        let taken = |preference| alive.iter().any(|found| found.preference == preference);
        let preference = (1..u16::MAX).find(|&at| !taken(at)).unwrap_or(u16::MAX);
        let redirect = redirect(preference);
        steps.push(Step::new(Change::AddRedirect(redirect), Change::DelRedirect(redirect)));
        return steps;
    }
    if wanted {
        return steps;
    }
    if let Some(ours) = ours {
        let redirect = redirect(ours.preference);
        steps.push(Step::new(Change::DelRedirect(redirect), Change::AddRedirect(redirect)));
    }
    let others = alive.iter().any(|filter| filter.redirects_to != Some(to));
    // A clsact qdisc is not ours. Neither is a hook without a filter of ours, unless the record
    // says that it is.
    let is_ingress = hook.qdisc.as_ref().is_some_and(|hook| hook.kind == QdiscKind::Ingress);
    if !others && is_ingress && (hook.ours || !steps.is_empty()) {
        steps.push(Step::new(remove_hook, Change::AddQdisc(own_hook)));
    }
    steps
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn limit(rate: u64, burst: Option<u32>) -> Limit {
        Limit { rate_bits_per_s: rate, burst_bytes: burst }
    }

    #[track_caller]
    fn check(rate: u64, burst: Option<u32>, expect: Expect) {
        let shape = Shape::of(&limit(rate, burst), 1500);
        let (bucket, peak) = (shape.bucket, shape.bucket.peak.unwrap());
        let text = format!(
            "rate {} burst {} limit {} peak {}/{} target {} us",
            bucket.rate,
            bucket.burst,
            bucket.limit,
            peak.rate,
            peak.burst,
            shape.queue.target_us.unwrap()
        );
        expect.assert_eq(&text);
    }

    #[test]
    fn buckets() {
        check(
            20_000_000,
            None,
            expect!["rate 2500000 burst 125000 limit 62500 peak 5000000/25000 target 5000 us"],
        );
        // A configured burst is used, however long it lasts.
        check(
            20_000_000,
            Some(2_500_000),
            expect!["rate 2500000 burst 2500000 limit 62500 peak 250000000/25000 target 5000 us"],
        );
        check(
            8_000,
            Some(u32::MAX - 1),
            expect![
                "rate 1000 burst 4294967294 limit 15220 peak 429496729400/3044 target 2283000 us"
            ],
        );
        check(
            40_000_000_000,
            Some(10_000),
            expect![
                "rate 5000000000 burst 10000 limit 125000000 peak 10000000000/50000000 target 5000 us"
            ],
        );
        // With less than a packet nothing would pass.
        check(
            1_000_000,
            Some(100),
            expect!["rate 125000 burst 3044 limit 15220 peak 304400/3044 target 18264 us"],
        );
        check(8, None, expect!["rate 1 burst 3044 limit 15220 peak 2/3044 target 2283000000 us"]);
        check(
            u64::MAX,
            None,
            expect![
                "rate 2305843009213693951 burst 4294967295 limit 4294967295 peak 4611686018427387902/4294967295 target 5000 us"
            ],
        );
    }

    /// In one second a bucket lets through its rate, and once its burst. The kernel refuses a peak
    /// that is not faster than the rate.
    #[test]
    fn no_second_has_a_tenth_too_much_unless_somebody_chose_it() {
        for rate in [2_000_000, 20_000_000, 1_000_000_000, 40_000_000_000] {
            let Shape { bucket, .. } = Shape::of(&limit(rate, None), 1500);
            assert!(u64::from(bucket.burst) <= bucket.rate / 10, "{rate}");
            for burst in [None, Some(1), Some(200_000), Some(12_500_000), Some(u32::MAX - 1)] {
                let Shape { bucket, .. } = Shape::of(&limit(rate, burst), 1500);
                assert!(bucket.rate < bucket.peak.unwrap().rate, "the kernel refuses {bucket:?}");
                assert!(burst.is_none_or(|burst| burst <= bucket.burst), "{rate} {burst:?}");
            }
        }
    }

    fn names(steps: &[Step]) -> Vec<String> {
        steps.iter().map(|step| step.change.to_string()).collect()
    }

    #[test]
    fn a_bucket_that_is_there_is_left_replaced_or_refused() {
        let shape = Shape::of(&limit(8_000_000, None), 1500);
        let plan = |found: Option<&Qdisc>, queued, wanted| bucket((7, "v"), found, queued, wanted);
        let fresh = plan(None, false, Some(&shape)).unwrap();
        assert_eq!(
            names(&fresh),
            ["add qdisc tbf 1: at root of link 7", "set qdisc fq_codel 2: at 1:1 of link 7"]
        );
        let Change::AddQdisc(own) = &fresh[0].change else { panic!("{fresh:?}") };
        assert_eq!(plan(Some(own), true, Some(&shape)).unwrap(), []);
        assert_eq!(names(&plan(Some(own), false, Some(&shape)).unwrap()).len(), 1);
        let other = Shape::of(&limit(16_000_000, None), 1500);
        let replaced = plan(Some(own), true, Some(&other)).unwrap();
        assert_eq!(replaced[0].back, [Change::ReplaceQdisc(own.clone())]);
        assert_eq!(
            names(&plan(Some(own), true, None).unwrap()),
            ["delete qdisc at root of link 7"]
        );
        let foreign = Qdisc { kind: QdiscKind::Other("htb".to_owned()), ..own.clone() };
        assert_eq!(plan(Some(&foreign), false, None).unwrap(), []);
        let error = plan(Some(&foreign), false, Some(&shape)).unwrap_err();
        assert!(error.code() == codes::CONFLICT && error.message().contains("htb"), "{error:?}");
    }
}
