//! [`read_log`]: the resources of a kernel, and the reasons to reject it, in a log of NVRTC.

use crate::cubin::Resources;

/// The bytes of spill stores that are accepted: 32 registers of a thread. ptxas spills one or two registers for some shapes
/// that users have, such as `dispatch_gemm` on nodes of one GPU, and up to 32 for kernels of 8 ranks that take any number of
/// rows in buckets. A slower kernel is better than no kernel. Where spills hinder the main loop, ptxas also reports that it
/// serialises wgmma, which is a fault.
pub(crate) const TOLERATED_SPILL_BYTES: u32 = 128;

/// The contents of a log of NVRTC.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogReport {
    pub resources: Resources,
    /// The lines for which the kernel is rejected: warnings, too many spills, lost optimisations.
    pub faults: Vec<String>,
    /// The log without the lines that differ from run to run.
    pub log: String,
}

/// Reads the log of a successful compilation. Every line that is not on the list of harmless lines is a fault, so that no
/// warning is missed, such as C7508 (`setmaxnreg` ignored), C7511 (wgmma serialised), C7517 and C7519 (waits injected).
pub(crate) fn read_log(log: &str) -> LogReport {
    let mut report = LogReport::default();
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        let text = line.strip_prefix("ptxas").map(|rest| {
            rest.trim_start_matches(" info")
                .trim_start_matches([' ', ':', '.'])
        });
        let is_timing = text.is_some_and(|text| text.starts_with("Compile time"));
        if !is_timing {
            report.log.push_str(line.trim_end());
            report.log.push('\n');
        }
        if !text.is_some_and(|text| report.resources.read_line(text)) {
            report.faults.push(line.trim_end().to_owned());
        }
    }
    report
}

impl Resources {
    /// Reads the figures in a line of ptxas without its prefix. Returns false if the line is a fault.
    fn read_line(&mut self, text: &str) -> bool {
        if text.ends_with("bytes spill loads") && text.contains("bytes stack frame") {
            // ptxas prints such a line for each function that is not inlined.
            let before = |unit| figure_before(text, unit);
            self.stack_bytes += before("bytes stack frame");
            let (stores, loads) = (before("bytes spill stores"), before("bytes spill loads"));
            self.spill_store_bytes += stores;
            self.spill_load_bytes += loads;
            return stores <= TOLERATED_SPILL_BYTES;
        }
        if text.contains("Registers are spilled to local memory") {
            return figure_before(text, "bytes spill stores") <= TOLERATED_SPILL_BYTES;
        }
        if text.starts_with("Used ") {
            self.registers = self.registers.max(figure_before(text, "registers"));
            self.smem_static_bytes = self
                .smem_static_bytes
                .max(figure_before(text, "bytes smem"));
            return true;
        }
        text.starts_with("Compiling entry function")
            || text.starts_with("Function properties for")
            || text.starts_with("Compile time")
            || text.contains(" bytes gmem")
    }
}

/// The number before `unit`, such as 12 in `12 bytes smem`. 0 if the line has no such number.
fn figure_before(text: &str, unit: &str) -> u32 {
    let before = text
        .split_once(unit)
        .map_or("", |(before, _)| before.trim_end());
    before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'axpy' for 'sm_90a'
ptxas info    : Function properties for axpy
ptxas         .     16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 40 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 3.289 ms
";

    fn faults(line: &str) -> Vec<String> {
        read_log(&format!("{line}\n{SOUND}")).faults
    }

    #[test]
    fn sound_log() {
        let report = read_log(SOUND);
        assert_eq!(report.faults, [""; 0]);
        let expected = Resources {
            registers: 168,
            smem_static_bytes: 40,
            stack_bytes: 16,
            ..Resources::default()
        };
        assert_eq!(report.resources, expected);
        assert!(
            !report.log.contains("Compile time"),
            "a log that differs from run to run"
        );
        assert!(report.log.contains("Used 168 registers"));
    }

    #[test]
    fn spills_are_faults() {
        let line = "ptxas         .     1088 bytes stack frame, 632 bytes spill stores, 636 bytes spill loads";
        let report = read_log(line);
        assert_eq!(report.faults, [line]);
        assert_eq!(
            (
                report.resources.spill_store_bytes,
                report.resources.spill_load_bytes
            ),
            (632, 636)
        );
        let line = "ptxas warning : Registers are spilled to local memory in function 'k', 132 bytes spill stores, 8 bytes spill loads";
        assert_eq!(faults(line), [line]);
    }

    #[test]
    fn some_registers_may_be_spilled() {
        let warning = "ptxas warning : Registers are spilled to local memory in function 'k', 8 bytes spill stores, 240 bytes spill loads";
        let properties =
            "ptxas         .     8 bytes stack frame, 8 bytes spill stores, 240 bytes spill loads";
        let report = read_log(&format!("{warning}\n{properties}"));
        assert_eq!(report.faults, [""; 0]);
        assert_eq!(report.resources.spill_store_bytes, 8);
    }

    #[test]
    fn lost_optimisations_and_warnings_are_faults() {
        for line in [
            "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.",
            "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to something in function 'k'",
            "ptxas info    : (C7519) something nobody has seen yet",
            "k.cu(1): warning #177-D: variable \"unused\" was declared but never referenced",
            "Remark: The warnings can be suppressed with \"-diag-suppress <warning-number>\"",
        ] {
            assert_eq!(faults(line), [line]);
        }
    }
}
