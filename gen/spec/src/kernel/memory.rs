//! The device memory that a plan needs.

use super::plan::KernelPlan;
use crate::diagnostic::{Diagnostics, Field};
use crate::parts::Region;

impl KernelPlan {
    /// Bytes of the operands of `rank`, both read and written operands.
    #[must_use]
    pub fn operand_bytes(&self, rank: u32) -> (u64, u64) {
        let of = |written: bool| {
            let operands = self
                .operands()
                .iter()
                .filter(|spec| spec.written == written);
            operands
                .map(|spec| {
                    let elems = spec.rows.on(rank).saturating_mul(spec.cols);
                    elems.saturating_mul(spec.dtype.bytes())
                })
                .fold(0, u64::saturating_add)
        };
        (of(false), of(true))
    }

    /// Bytes of device memory, operands and workspace, that one call needs on the rank with the largest need.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let operands = (0..self.spec.world()).map(|rank| {
            let (read, written) = self.operand_bytes(rank);
            read.saturating_add(written)
        });
        let operands = operands.max().unwrap_or(0);
        self.workspace_bytes().saturating_add(operands)
    }

    /// Checks that the device has this memory, and that kernels can number the elements of each region. A mistake names the largest
    /// dimension.
    pub(super) fn check_memory(&self) -> Result<(), Diagnostics> {
        let mut found = Diagnostics::default();
        let dims = self.spec.problem().dims().into_iter();
        let Some((field, _)) = dims.max_by_key(|(_, dim)| dim.fixed()) else {
            return Ok(());
        };
        let (needed, most) = (self.resident_bytes(), self.device.memory_bytes);
        let workspace = self.workspace_bytes();
        found.require(
            needed <= most,
            field,
            || {
                format!(
                    "operands of {} bytes and a workspace of {workspace} bytes on each rank are more than the {most} bytes of memory of {}",
                    needed - workspace,
                    self.device.name
                )
            },
            "use smaller sizes, or divide large operands among more ranks",
        );
        for (_, region) in self.workspace_regions() {
            check_elements(region, field, &mut found);
        }
        found.into_result(())
    }
}

/// Records a region with more elements than kernels can number.
fn check_elements(region: &Region, field: Field, found: &mut Diagnostics) {
    let elements = region.elements();
    found.require(
        elements <= Region::MAX_ELEMENTS,
        field,
        || {
            let extents = region.indices.iter();
            let extents: Vec<_> = extents.map(|i| i.extent.to_string()).collect();
            format!(
                "`{}` in the workspace has {} = {elements} elements, more than {} (kernels number them in 32 bits)",
                region.name,
                extents.join(" · "),
                Region::MAX_ELEMENTS
            )
        },
        format!("use a smaller {field}, and more calls"),
    );
}

#[cfg(test)]
mod tests {
    use crate::config::{
        CombineConfig, CombineOp, Dim, DispatchConfig, DispatchOp, Dtype, GemmConfig, GemmOp,
        KernelConfig, Problem,
    };
    use crate::device::Device;
    use crate::diagnostic::Field;
    use crate::plan::KernelPlan;
    use crate::spec::SizedSpec;

    fn spec(m: u64, n: u64) -> SizedSpec {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(8),
            ..GemmConfig::new(GemmOp::GemmRs)
        };
        SizedSpec::validate(KernelConfig::new(8, config)).expect("valid")
    }

    #[test]
    fn operands_that_exceed_device_memory_are_refused_with_figures() {
        let found = KernelPlan::new(&spec(524_288, 524_280), &Device::h200());
        let found = found.expect_err("a terabyte");
        let fields: Vec<_> = found.iter().map(|v| v.field).collect();
        assert_eq!(fields, [Field::M]);
        let text = found.to_string();
        assert!(
            text.contains("150323855360 bytes of memory of NVIDIA H200"),
            "{text}"
        );
    }

    #[test]
    fn the_need_is_the_sum_of_operands_and_workspace() {
        let plan = KernelPlan::new(&spec(1024, 512), &Device::h200()).expect("small");
        // Operands: A, B, and an eighth of C.
        let operands = Dtype::Bf16.bytes() * (1024 * 8 + 8 * 512 + 128 * 512);
        assert_eq!(plan.resident_bytes(), operands + plan.workspace_bytes());
        let barely = |memory_bytes| Device {
            memory_bytes,
            ..Device::h200()
        };
        let needed = plan.resident_bytes();
        KernelPlan::new(&spec(1024, 512), &barely(needed)).expect("enough");
        KernelPlan::new(&spec(1024, 512), &barely(needed - 1)).expect_err("a byte short");
    }

    /// A small `max_rows` lets a rank have more choices than rows. Some regions have an element for each choice of each
    /// source.
    #[test]
    fn regions_of_more_elements_than_numbers_are_refused() {
        let of = |max_tokens, device: &Device, problem: fn(u64) -> Problem| {
            let spec = SizedSpec::validate(KernelConfig::new(8, problem(max_tokens)));
            let plan = KernelPlan::new(&spec.expect("valid"), device);
            plan.err().map(|found| found.to_string())
        };
        let combine = |max_tokens| {
            let combine = CombineConfig {
                experts: Dim::Static(64),
                top_k: Dim::Static(8),
                max_tokens: Dim::Static(max_tokens),
                hidden: Dim::Static(8),
                max_rows: Some(1000),
                ..CombineConfig::new(CombineOp::Combine)
            };
            combine.into()
        };
        // 2^28 choices need less than the memory of an H200.
        let h200 = Device::h200();
        assert_eq!(of((1 << 25) - 1, &h200, combine), None);
        let text = of(1 << 25, &h200, combine).expect("2^32 elements");
        for part in [
            "max_tokens: `topk_packets` in the workspace has 2 · 8 · 268435456 = 4294967296 elements",
            "more than 4294967295",
            "use a smaller max_tokens",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        // The shared memory of this many SMs has room for the choices of all tokens.
        let many_sms = Device {
            sm_count: 1 << 16,
            memory_bytes: u64::MAX,
            ..Device::h200()
        };
        let dispatch = |max_tokens| {
            let dispatch = DispatchConfig {
                experts: Dim::Static(8),
                top_k: Dim::Static(1),
                max_tokens: Dim::Static(max_tokens),
                hidden: Dim::Static(8),
                intermediate: Dim::Static(8),
                max_rows: Some(1000),
                ..DispatchConfig::new(DispatchOp::DispatchGemm)
            };
            dispatch.into()
        };
        assert_eq!(of((1 << 28) - 1, &many_sms, dispatch), None);
        let text = of(1 << 28, &many_sms, dispatch).expect("2^32 elements");
        assert!(
            text.contains("`lists` in the workspace has 2 · 8"),
            "{text}"
        );
    }
}
