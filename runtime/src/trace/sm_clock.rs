//! [`SmClock`]: converts ticks of SMs to ns.

use mkernel_spec::abi::{TraceCta, TraceLayout, TraceWarp};

/// The clock of an SM during the call.
#[derive(Clone, Copy)]
pub(super) struct SmClock {
    begin_ticks: u64,
    begin_ns: f64,
    ns_per_tick: f64,
}

/// The clock of each CTA's SM. All SMs of a GPU run at one rate, which the longest times between two moments give best. The
/// common clock advances in steps, so it is behind the time by up to one step. Of the moments of a CTA, the moment at which the
/// common clock is least behind places the SM's clock.
pub(super) fn clocks(layout: &TraceLayout, ctas: &[TraceCta], warps: &[TraceWarp]) -> Vec<SmClock> {
    let of_cta = warps.chunks((layout.threads / TraceLayout::WARP) as usize);
    let ends = |cta: &TraceCta, ends: &[TraceWarp]| -> Vec<(f64, f64)> {
        let ended = ends.iter().filter(|end| end.end_ticks > cta.begin_ticks);
        let since = |end: &TraceWarp| {
            let ns = end.end_ns.saturating_sub(cta.begin_ns) as f64;
            (ns, (end.end_ticks - cta.begin_ticks) as f64)
        };
        ended.map(since).collect()
    };
    let all: Vec<_> = ctas
        .iter()
        .zip(of_cta)
        .map(|(cta, of)| ends(cta, of))
        .collect();
    let sum = all
        .iter()
        .flatten()
        .fold((0.0, 0.0), |sum: (f64, f64), of| {
            (sum.0 + of.0, sum.1 + of.1)
        });
    let ns_per_tick = if sum.1 > 0.0 { sum.0 / sum.1 } else { 1.0 };
    let clock = |(cta, ends): (&TraceCta, &Vec<(f64, f64)>)| {
        let behind = ends.iter().map(|(ns, ticks)| ns - ticks * ns_per_tick);
        SmClock {
            begin_ticks: cta.begin_ticks,
            begin_ns: cta.begin_ns as f64 + behind.fold(0.0, f64::max),
            ns_per_tick,
        }
    };
    ctas.iter().zip(&all).map(clock).collect()
}

impl SmClock {
    /// The time of a moment of the call.
    pub fn ns(&self, ticks: u32) -> u64 {
        let since = ticks.wrapping_sub(self.begin_ticks as u32);
        (self.begin_ns + f64::from(since) * self.ns_per_tick).round() as u64
    }
}

/// The smallest difference of two readings of the common clock.
pub(super) fn clock_step_ns(ctas: &[TraceCta], warps: &[TraceWarp]) -> u64 {
    let begins = ctas.iter().map(|cta| cta.begin_ns);
    let mut all: Vec<_> = begins.chain(warps.iter().map(|warp| warp.end_ns)).collect();
    all.retain(|ns| *ns != 0);
    all.sort_unstable();
    let steps = all.windows(2).map(|pair| pair[1] - pair[0]);
    steps.filter(|step| *step > 0).min().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_wrap_and_the_common_clock_is_behind() {
        let begin_ticks = (3 << 32) - 10;
        // The common clock has steps of 32 ns, and was 24 ns behind at the begin. A tick is 2 ns.
        let cta = TraceCta {
            begin_ns: 32_000,
            begin_ticks,
            sm: 0,
            call: 1,
        };
        let at = |ticks: u64| TraceWarp {
            end_ns: (32_024 + 2 * ticks) / 32 * 32,
            end_ticks: begin_ticks + ticks,
        };
        let layout = TraceLayout {
            buffer: Default::default(),
            bytes: 0,
            ctas: 1,
            threads: 64,
        };
        let clocks = clocks(&layout, &[cta], &[at(1_000_004), at(2_000_004)]);
        let ns = clocks[0].ns(90);
        assert!(ns.abs_diff(32_224) <= 32, "{ns}");
        assert_eq!(clock_step_ns(&[cta], &[at(4), at(20)]), 32);
    }
}
