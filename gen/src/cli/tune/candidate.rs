//! [`Candidate`]: a kernel with fixed choices, which is to be measured.

use mkernel::{KernelConfig, KernelPlan, Tuned};
use mkernel_compile::{KernelTemplate, Key};
use mkernel_spec::plan::Launch;
use mkernel_spec::{Device, SizedSpec};

/// The longest estimate of a candidate, relative to the shortest estimate. Kernels with longer estimates are not worth a measurement.
const MOST_ESTIMATE: f64 = 2.0;

/// A kernel with fixed choices.
pub struct Candidate {
    pub config: KernelConfig,
    pub plan: KernelPlan,
    pub template: KernelTemplate,
}

impl Candidate {
    /// The kernel with the choices of the cost model where `config` fixes none. `None` if no such plan exists.
    pub fn new(config: KernelConfig, device: &Device) -> Option<Self> {
        let spec = SizedSpec::validate(config.clone()).ok()?;
        let plan = KernelPlan::with_tuned(&spec, device, &Tuned::default()).ok()?;
        Some(Self {
            config,
            template: KernelTemplate::of(&plan),
            plan,
        })
    }

    /// Logs the time of the kernel beside the estimate of the cost model.
    pub fn log(&self, us: f64) {
        let estimate_us = self.plan.body().estimate_us;
        let choices = self.config.fixed_choices();
        tracing::debug!(id = self.plan.id, us, estimate_us, choices, "measured");
    }
}

/// The kernels that have been candidates. Several combinations of choices may give one kernel.
#[derive(Default)]
pub struct Known(Vec<(Key, Launch)>);

impl Known {
    /// Whether the kernel is new.
    pub fn add(&mut self, candidate: &Candidate) -> bool {
        let kernel = (
            Key::of_template(&candidate.template),
            candidate.plan.launch(),
        );
        let is_new = !self.0.contains(&kernel);
        self.0.extend(is_new.then_some(kernel));
        is_new
    }

    /// Up to `most` new kernels, those with the shortest estimates first.
    pub fn best_of(
        &mut self,
        configs: Vec<KernelConfig>,
        device: &Device,
        most: usize,
    ) -> Vec<Candidate> {
        let planned = configs.into_iter();
        let planned = planned.filter_map(|config| Candidate::new(config, device));
        let mut planned: Vec<_> = planned.collect();
        let us = |candidate: &Candidate| candidate.plan.body().estimate_us;
        planned.sort_by(|a, b| us(a).total_cmp(&us(b)));
        let longest = planned.first().map_or(0.0, us) * MOST_ESTIMATE;
        let planned = planned.into_iter();
        let possible = planned.take_while(|candidate| us(candidate) <= longest);
        possible
            .filter(|candidate| self.add(candidate))
            .take(most)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mkernel_spec::{BLayout, Dim, GemmConfig, GemmOp};

    fn gemm() -> KernelConfig {
        let gemm = GemmConfig {
            m: Dim::Static(256),
            n: Dim::Static(4096),
            k: Dim::Static(4096),
            b_layout: BLayout::Nk,
            ..GemmConfig::new(GemmOp::GemmAr)
        };
        KernelConfig::new(2, gemm)
    }

    #[test]
    fn candidates_are_different_kernels_in_the_order_of_their_estimates() {
        let device = Device::h200();
        let mut known = Known::default();
        let untuned = Candidate::new(gemm(), &device).expect("a plan");
        assert!(known.add(&untuned) && !known.add(&untuned));
        let best = known.best_of(gemm().candidates(), &device, 8);
        assert_eq!(best.len(), 8);
        let us: Vec<_> = best.iter().map(|of| of.plan.body().estimate_us).collect();
        assert!(us.is_sorted(), "{us:?}");
        assert!(us[0] >= untuned.plan.body().estimate_us, "{us:?}");
        let keys: std::collections::BTreeSet<_> = best
            .iter()
            .map(|of| Key::of_template(&of.template))
            .collect();
        assert_eq!(
            keys.len(),
            best.len(),
            "each kernel has a source of its own"
        );
        let again = known.best_of(gemm().candidates(), &device, 1);
        assert!(
            again
                .iter()
                .all(|of| !keys.contains(&Key::of_template(&of.template)))
        );
    }

    #[test]
    fn impossible_choices_are_no_candidates() {
        let mut config = gemm();
        config.problem.gemm_mut().expect("a GEMM").tuning.tile_m = Some(65);
        assert!(Candidate::new(config, &Device::h200()).is_none());
    }
}
