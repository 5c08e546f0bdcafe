//! The results of `mkernel-gen tune`, as lines of JSON and as a table.

use super::search::Found;
use crate::cli::failure::Failure;
use crate::cli::format::{micros, table};
use crate::cli::input::Kernel;
use crate::cli::output::{Line, print};
use mkernel::{KernelConfig, Tuned};
use schemars::JsonSchema;
use serde::Serialize;

/// The result for a kernel, as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct TunedLine {
    label: String,
    gpu: String,
    op: String,
    ranks: u32,
    /// The number of kernels that were compared.
    compared: usize,
    /// The time with the fastest choices, µs.
    us: f64,
    /// The time with the choices of the cost model, µs.
    untuned_us: f64,
    /// The options that fix the fastest choices. Empty if the choices of the cost model are the fastest.
    choices: String,
}

impl Line for TunedLine {
    const KIND: &'static str = "tune";
}

impl TunedLine {
    /// The result of a search.
    pub fn new(kernel: &Kernel, found: &Found) -> Self {
        let of = &found.tuned;
        Self {
            label: kernel.label.clone(),
            gpu: of.gpu.clone(),
            op: of.kernel.op().name().to_owned(),
            ranks: of.kernel.world,
            compared: found.compared,
            us: of.times.us,
            untuned_us: of.times.untuned_us,
            choices: of.kernel.fixed_choices(),
        }
    }

    /// The time of the planner's choice, relative to the time of the fastest.
    fn gain(&self) -> f64 {
        self.untuned_us / self.us
    }
}

/// The choices that a file has for a kernel. The GPU is not compared, since a file is for GPUs of
/// one kind.
pub fn known<'a>(tuned: &'a Tuned, kernel: &Kernel) -> Option<&'a KernelConfig> {
    let config = kernel.spec.config();
    let is_equal = |known: &&KernelConfig| {
        let plain = KernelConfig {
            problem: known.problem.without_choices(),
            name: config.name.clone(),
            ..(*known).clone()
        };
        plain == *config
    };
    let configs = tuned.kernels().iter().map(|known| &known.kernel);
    configs.rev().find(is_equal)
}

/// Prints a table with a line for each kernel, and the loss of the planner's choices.
pub fn print_table(lines: &[TunedLine]) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    print(&text(lines))
}

fn text(lines: &[TunedLine]) -> String {
    let heading = [
        "kernel", "ranks", "compared", "planner", "fastest", "gain", "choices",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(lines.iter().map(|line| {
        vec![
            line.label.clone(),
            line.ranks.to_string(),
            line.compared.to_string(),
            micros(line.untuned_us),
            micros(line.us),
            format!("{:.3}", line.gain()),
            match line.choices.as_str() {
                "" => "those of the planner".to_owned(),
                choices => choices.to_owned(),
            },
        ]
    }));
    let logarithms: f64 = lines.iter().map(|line| line.gain().ln()).sum();
    let mean = (logarithms / lines.len() as f64).exp();
    let worst = lines.iter().map(TunedLine::gain).fold(1.0, f64::max);
    format!(
        "{}the planner's choices take {:.1} % longer than the fastest in the geometric mean, and {:.1} % at most\n",
        table(&rows, &[1, 2, 3, 4, 5]),
        100.0 * (mean - 1.0),
        100.0 * (worst - 1.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(untuned_us: f64, us: f64, choices: &str) -> TunedLine {
        TunedLine {
            label: "gemm m=256".to_owned(),
            gpu: "NVIDIA H200".to_owned(),
            op: "gemm".to_owned(),
            ranks: 1,
            compared: 31,
            us,
            untuned_us,
            choices: choices.to_owned(),
        }
    }

    #[test]
    fn a_table_has_the_loss_of_the_planner() {
        let text = text(&[line(24.2, 20.0, "split_k = 2"), line(200.0, 200.0, "")]);
        let words = |text: &str| {
            let lines = text.lines();
            let of_line = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            lines.map(of_line).collect::<Vec<Vec<String>>>()
        };
        let expected = "\
kernel ranks compared planner fastest gain choices
gemm m=256 1 31 24.2 µs 20.0 µs 1.210 split_k = 2
gemm m=256 1 31 200 µs 200 µs 1.000 those of the planner
the planner's choices take 10.0 % longer than the fastest in the geometric mean, and 21.0 % at most";
        assert_eq!(words(&text), words(expected));
    }
}
