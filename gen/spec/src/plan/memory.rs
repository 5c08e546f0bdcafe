//! What a plan needs of a device's memory.

use super::KernelPlan;
use crate::diagnostic::Diagnostics;

impl KernelPlan {
    /// Bytes of the operands of `rank`, those that are read and those that are written.
    #[must_use]
    pub fn operand_bytes(&self, rank: u32) -> (u64, u64) {
        let of = |written: bool| {
            let operands = self.operands.iter().filter(|spec| spec.written == written);
            operands
                .map(|spec| {
                    let elems = spec.rows.on(rank).saturating_mul(spec.cols);
                    elems.saturating_mul(spec.dtype.bytes())
                })
                .fold(0, u64::saturating_add)
        };
        (of(false), of(true))
    }

    /// Bytes of device memory that one call needs on the rank that needs most: operands and workspace.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let operands = (0..self.spec.world()).map(|rank| {
            let (read, written) = self.operand_bytes(rank);
            read.saturating_add(written)
        });
        let operands = operands.max().unwrap_or(0);
        self.workspace.bytes.saturating_add(operands)
    }

    /// Whether that is no more than the device has. The mistake is that of the largest dimension.
    pub(super) fn check_memory(&self) -> Result<(), Diagnostics> {
        let (needed, most) = (self.resident_bytes(), self.device.memory_bytes);
        if needed <= most {
            return Ok(());
        }
        let workspace = self.workspace.bytes;
        let mut found = Diagnostics::default();
        let dims = self.spec.problem().dims().into_iter();
        let largest = dims.max_by_key(|(_, dim)| dim.fixed());
        if let Some((field, _)) = largest {
            found.push(
                field,
                format!(
                    "operands of {} bytes and a workspace of {workspace} bytes on each rank are more than the {most} bytes of memory of {}",
                    needed - workspace,
                    self.device.name
                ),
                "use smaller sizes, or more ranks where they share what is large",
            );
        }
        found.into_result(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Dim, GemmConfig, GemmOp, KernelConfig};
    use crate::device::Device;
    use crate::diagnostic::Field;
    use crate::plan::KernelPlan;
    use crate::spec::KernelSpec;

    fn spec(m: u64, n: u64) -> KernelSpec {
        let config = GemmConfig {
            m: Dim::Static(m),
            n: Dim::Static(n),
            k: Dim::Static(8),
            ..GemmConfig::new(GemmOp::GemmRs)
        };
        KernelSpec::validate(KernelConfig::new(8, config)).expect("valid")
    }

    #[test]
    fn what_no_gpu_can_hold_is_a_mistake_with_its_figures() {
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
    fn the_sum_is_that_of_operands_and_workspace() {
        let plan = KernelPlan::new(&spec(1024, 512), &Device::h200()).expect("small");
        // A, B, and an eighth of C.
        let operands = 2 * (1024 * 8 + 8 * 512 + 128 * 512);
        assert_eq!(plan.resident_bytes(), operands + plan.workspace.bytes);
        let barely = |memory_bytes| Device {
            memory_bytes,
            ..Device::h200()
        };
        let needed = plan.resident_bytes();
        KernelPlan::new(&spec(1024, 512), &barely(needed)).expect("enough");
        KernelPlan::new(&spec(1024, 512), &barely(needed - 1)).expect_err("a byte short");
    }
}
