//! The token bucket and its units.

use std::fs;

use crate::wire::{self, Attribute, Writer};

/// `linux include/uapi/linux/pkt_sched.h` TCA_TBF_*.
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PRATE64: u16 = 5;
const TCA_TBF_BURST: u16 = 6;
const TCA_TBF_PBURST: u16 = 7;
/// Size of `struct tc_tbf_qopt`.
const PARMS: usize = 36;
/// TC_LINKLAYER_ETHERNET: the kernel computes, instead of using a table that would be sent along.
const LINKLAYER_ETHERNET: u8 = 1;
/// Where the kernel reports its units.
const PSCHED: &str = "/proc/net/psched";
const NS_PER_S: u64 = 1_000_000_000;

/// A token bucket: it lets `rate` through. After an idle time it lets `burst` more through, but no
/// faster than `peak`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    /// Rate in bytes a second.
    pub rate: u64,
    /// Size of the bucket in bytes. The value read back is a few bytes less or more: the kernel
    /// stores a time. It reports that in 32 bits, so a size that lasts longer than 274 seconds is
    /// read back as the remainder.
    pub burst: u32,
    /// How many bytes may wait, if it contains no other discipline (TCA_TBF_PARMS `limit`).
    pub limit: u32,
    /// A second bucket.
    pub peak: Option<Peak>,
}

/// How fast a token bucket may be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// Rate in bytes a second; it must exceed the bucket's rate, otherwise the kernel refuses it.
    pub rate: u64,
    /// How many bytes may leave at once. A larger bundle of packets (GSO) is split into packets, a
    /// larger packet is dropped.
    pub burst: u32,
}

/// How long a tick of the packet scheduler is (`/proc/net/psched`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickRate {
    ns: u64,
    ticks: u64,
}

impl Default for TickRate {
    /// 64 ns, as every kernel since 2.6.31 has it (PSCHED_SHIFT).
    fn default() -> Self {
        Self { ns: 64, ticks: 1 }
    }
}

impl TickRate {
    /// Reads what the kernel reports, or uses what every kernel has reported so far.
    #[must_use]
    pub fn read() -> Self {
        fs::read_to_string(PSCHED).ok().and_then(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Reads the text of `/proc/net/psched`: nanoseconds per microsecond, nanoseconds per tick,
    /// clock ticks per second, all in hexadecimal.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers =
            text.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap_or(0));
        let (us, tick, resolution) = (numbers.next()?, numbers.next()?, numbers.next()?);
        // As tc_core_init of iproute2: ticks per microsecond are us / tick * resolution / 10^6.
        let rate = Self { ns: tick.checked_mul(NS_PER_S)?, ticks: us.checked_mul(resolution)? };
        (rate.ns != 0 && rate.ticks != 0).then_some(rate)
    }

    /// Returns how many bytes pass in this many ticks.
    fn bytes(self, rate: u64, ticks: u32) -> u32 {
        let ns = u128::from(ticks) * u128::from(self.ns) / u128::from(self.ticks);
        let bytes = (ns * u128::from(rate) + u128::from(NS_PER_S / 2)) / u128::from(NS_PER_S);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Returns how many ticks this many bytes take; the largest value that can be written if it is
    /// more.
    fn ticks(self, rate: u64, bytes: u32) -> u32 {
        u32::try_from(self.all_ticks(rate, bytes)).unwrap_or(u32::MAX)
    }

    fn all_ticks(self, rate: u64, bytes: u32) -> u128 {
        let ns = u128::from(bytes) * u128::from(NS_PER_S) / u128::from(rate.max(1));
        ns * u128::from(self.ticks) / u128::from(self.ns)
    }
}

impl Tbf {
    /// Says whether a bucket read from the kernel is this one: sizes may differ by what the
    /// kernel's units cannot express.
    #[must_use]
    pub fn is_as(&self, read: &Self) -> bool {
        let peak = match (self.peak, read.peak) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => {
                ours.rate == theirs.rate && near(ours.rate, ours.burst, theirs.burst)
            }
            _ => false,
        };
        self.rate == read.rate
            && self.limit == read.limit
            && near(self.rate, self.burst, read.burst)
            && peak
    }

    /// Writes the contents of TCA_OPTIONS.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        let ticks = TickRate::default();
        let mut parms = [0; PARMS];
        parms[1] = LINKLAYER_ETHERNET;
        parms[8..12].copy_from_slice(&short(self.rate).to_ne_bytes());
        if let Some(peak) = self.peak {
            parms[13] = LINKLAYER_ETHERNET;
            parms[20..24].copy_from_slice(&short(peak.rate).to_ne_bytes());
            parms[32..36].copy_from_slice(&ticks.ticks(peak.rate, peak.burst).to_ne_bytes());
        }
        parms[24..28].copy_from_slice(&self.limit.to_ne_bytes());
        parms[28..32].copy_from_slice(&ticks.ticks(self.rate, self.burst).to_ne_bytes());
        writer.put(TCA_TBF_PARMS, &parms);
        // In bytes, exactly (kernel 3.14); the ticks above are for programs that read those.
        writer.put_u32(TCA_TBF_BURST, self.burst);
        if u32::try_from(self.rate).is_err() {
            writer.put(TCA_TBF_RATE64, &self.rate.to_ne_bytes());
        }
        if let Some(peak) = self.peak {
            writer.put_u32(TCA_TBF_PBURST, peak.burst);
            if u32::try_from(peak.rate).is_err() {
                writer.put(TCA_TBF_PRATE64, &peak.rate.to_ne_bytes());
            }
        }
    }

    /// Reads TCA_OPTIONS; `None` if it is too short.
    pub(crate) fn decode(options: &Attribute<'_>, ticks: TickRate) -> Option<Self> {
        let parms = options.find(TCA_TBF_PARMS)?.value;
        let number = |at| wire::u32_at(parms, at);
        let long = |kind| {
            let found = options.find(kind)?;
            Some(u64::from_ne_bytes(found.value.try_into().ok()?))
        };
        let rate = long(TCA_TBF_RATE64).unwrap_or(number(8)?.into());
        let peak_rate = long(TCA_TBF_PRATE64).unwrap_or(number(20)?.into());
        let peak = Peak { rate: peak_rate, burst: ticks.bytes(peak_rate, number(32)?) };
        Some(Self {
            rate,
            burst: ticks.bytes(rate, number(28)?),
            limit: number(24)?,
            peak: (peak_rate != 0).then_some(peak),
        })
    }
}

/// Returns the value of the old 32-bit field for a rate.
fn short(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

/// Whether a size that the kernel reports is one that was set, except for two ticks and rounding:
/// it reports the lower 32 bits of a number of ticks (`linux net/sched/sch_tbf.c` `tbf_dump`).
fn near(rate: u64, set: u32, told: u32) -> bool {
    let ticks = TickRate::default();
    let around = 1 << u32::BITS;
    let apart = ticks.all_ticks(rate, set).abs_diff(ticks.all_ticks(rate, told)) % around;
    apart.min(around - apart) <= ticks.all_ticks(rate, 2) + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_as_tc_reads_them() {
        let read = TickRate::parse("000003e8 00000040 000f4240 3b9aca00\n").unwrap();
        // 15.625 ticks per microsecond: 25 000 bytes take 10 ms at 20 Mbit/s.
        assert_eq!(read.ticks(2_500_000, 25_000), 156_250);
        assert_eq!(read.bytes(2_500_000, 156_250), 25_000);
        assert_eq!(TickRate::default().ticks(2_500_000, 25_000), 156_250);
        for text in ["", "000003e8", "0 0 0 0", "zz 40 f4240"] {
            assert_eq!(TickRate::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_may_differ_by_what_the_kernel_cannot_say() {
        let tbf = Tbf { rate: 2_500_000, burst: 25_000, limit: 60_000, peak: None };
        assert!(tbf.is_as(&Tbf { burst: 24_999, ..tbf }));
        assert!(!tbf.is_as(&Tbf { burst: 24_000, ..tbf }));
        assert!(!tbf.is_as(&Tbf { rate: 2_500_001, ..tbf }));
        assert!(!tbf.is_as(&Tbf { limit: 60_001, ..tbf }));
        let peak = Some(Peak { rate: 5_000_000, burst: 3_000 });
        assert!(!tbf.is_as(&Tbf { peak, ..tbf }));
        // 20 MB last 2500 s at 8000 bytes/s, of which 274.877906944 s are reported as nothing.
        let long = Tbf { rate: 8_000, burst: 20_000_000, ..tbf };
        assert!(long.is_as(&Tbf { burst: 208_791, ..long }));
        assert!(!long.is_as(&Tbf { burst: 200_000, ..long }));
    }
}
