//! [`Rivals`]: the times of cuBLAS followed by a collective of PyTorch or NCCL (`benches/baselines.py`), or by NICs.

use crate::Case;
use crate::flags::Flags;
use mkernel_testing::lab::Failure;
use serde::Deserialize;
use std::process::{Command, Stdio};

/// The variant of the local product alone, which is not a rival of operators that communicate.
const ALONE: &str = "cuBLAS";

/// The variant of the local product, followed by the NICs.
const STEPS: &str = "cuBLAS, then NICs";

/// A line of the script's output.
#[derive(Debug, Deserialize)]
struct Line {
    op: String,
    m: u64,
    n: u64,
    k: u64,
    variant: String,
    us: f64,
}

/// The times of all runs of the script.
#[derive(Debug, Default)]
pub struct Rivals(Vec<Line>);

impl Rivals {
    /// Runs the script for these cases, unless the flags forbid it. The script does not support emulated NICs.
    pub fn measure(&mut self, flags: &Flags, cases: &[Case]) -> Result<(), Failure> {
        if flags.no_rivals || flags.network.nodes > 1 {
            return Ok(());
        }
        for op in flags.op.iter().filter(|op| op.communicates()) {
            let mut command = Command::new(&flags.python);
            let script = ["benches/baselines.py", "--chain", "--b-layout", "nk"];
            command
                .args(["-m", "torch.distributed.run", "--standalone"])
                .args(["--nproc-per-node", &flags.world.to_string()])
                .args(script)
                .args(["--op", op.op().name()])
                .args(["--calls", &flags.calls.to_string()])
                .args(["--weights", &flags.weights.to_string()])
                .stderr(Stdio::inherit());
            for (_, shape) in cases.iter().filter(|(of, _)| of == op) {
                command.args(["--shape", &format!("{}x{}x{}", shape.m, shape.n, shape.k)]);
            }
            let output = command.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            if !output.status.success() {
                return Err(format!("{command:?} failed with {}: {text}", output.status).into());
            }
            // Lines that are not JSON come from other programs.
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            self.0.extend(lines);
        }
        Ok(())
    }

    /// Adds the time of cuBLAS followed by the NICs, or of cuBLAS alone for operators that do not communicate.
    pub fn add_measured(&mut self, (op, shape): Case, cublas_us: f64, nics_us: Option<f64>) {
        let (variant, us) = match op.communicates() {
            true => (STEPS, nics_us.map(|nics_us| cublas_us + nics_us)),
            false => (ALONE, Some(cublas_us)),
        };
        self.0.extend(us.map(|us| Line {
            op: op.op().name().to_owned(),
            m: shape.m,
            n: shape.n,
            k: shape.k,
            variant: variant.to_owned(),
            us,
        }));
    }

    /// Returns the names of the rivals, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for line in &self.0 {
            if !names.contains(&line.variant.as_str()) {
                names.push(&line.variant);
            }
        }
        names
    }

    /// Returns the shortest time of a rival.
    pub fn time(&self, case: Case, name: &str) -> Option<f64> {
        let of_rival = self.lines(case).filter(|line| line.variant == name);
        of_rival.map(|line| line.us).min_by(f64::total_cmp)
    }

    /// Returns the time of the fastest rival.
    pub fn best(&self, case: Case) -> Option<f64> {
        let is_rival = |line: &&Line| line.variant != ALONE || !case.0.communicates();
        let rivals = self.lines(case).filter(is_rival);
        rivals.map(|line| line.us).min_by(f64::total_cmp)
    }

    fn lines(&self, (op, shape): Case) -> impl Iterator<Item = &Line> {
        self.0.iter().filter(move |line| {
            line.op == op.op().name() && (line.m, line.n, line.k) == (shape.m, shape.n, shape.k)
        })
    }
}
