//! A comparison of the cost model with the measured candidates in `benches/measured.toml`.

use mkernel_spec::device::Hardware;
use mkernel_spec::plan::KernelPlan;
use mkernel_spec::{Device, KernelConfig, SizedSpec};
use serde::Deserialize;
use std::fmt::Write;

/// The driver's figures of an H100 SXM.
const H100: Hardware = Hardware {
    memory_clock_khz: 2_619_000,
    memory_bus_bits: 5120,
    ..Hardware::H200
};

/// The largest estimate of the fastest candidate, relative to the estimate of the plan that the model chooses.
const MOST_REGRET: f64 = 1.03;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    measured: Vec<Measured>,
}

/// The candidates of one kernel.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    gpu: String,
    #[serde(rename = "within")]
    _within: String,
    kernel: toml::Table,
    candidates: Vec<Candidate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Candidate {
    us: f64,
    options: toml::Table,
}

impl Measured {
    fn device(&self) -> Device {
        match self.gpu.as_str() {
            "H100" => Device::hopper(&H100),
            "H200" => Device::h200(),
            gpu => panic!("{gpu} is not in devices"),
        }
    }

    /// Returns the plan of the kernel with these options.
    fn plan(&self, options: &toml::Table) -> KernelPlan {
        let mut kernel = self.kernel.clone();
        kernel.extend(options.clone());
        let config: KernelConfig = kernel.try_into().expect("a configuration");
        let spec = SizedSpec::validate(config).expect("a valid configuration");
        KernelPlan::new(&spec, &self.device()).expect("a plan")
    }
}

#[test]
fn estimates_of_fastest_and_chosen_plans_are_close() {
    let file: File = toml::from_str(include_str!("../../benches/measured.toml")).expect("a table");
    let mut wrong = String::new();
    for measured in &file.measured {
        let chosen = measured.plan(&toml::Table::new());
        let fastest = measured
            .candidates
            .iter()
            .min_by(|a, b| a.us.total_cmp(&b.us));
        let fastest = fastest.expect("candidates");
        let best = measured.plan(&fastest.options);
        let regret = best.body().estimate_us / chosen.body().estimate_us;
        if regret > MOST_REGRET {
            let _ = writeln!(
                wrong,
                "{} on {}: {:?} took {} µs. The model expects {:.1} µs, and chooses {} with {:.1} µs",
                best.id,
                measured.gpu,
                fastest.options,
                fastest.us,
                best.body().estimate_us,
                chosen.id,
                chosen.body().estimate_us
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
