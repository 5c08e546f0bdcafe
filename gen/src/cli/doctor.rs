//! `mkernel-gen doctor`: examines this machine, and names a remedy for each fault.

mod finding;
mod gpus;
mod limits;
mod nics;
mod pci;
mod store;
mod toolchain;

use super::failure::Failure;
use super::format::count;
use super::output::{print, print_json};
pub use finding::FindingLine;
use finding::{Finding, State};
use mkernel_compile::Env;
use mkernel_topology::Topology;
use std::path::Path;

/// Prints what was found. The command fails if there is a fault.
pub fn run(json: bool) -> Result<(), Failure> {
    let env = Env::valid().map_err(Failure::Variables)?;
    let findings = examine(env);
    if json {
        findings
            .iter()
            .try_for_each(|finding| print_json(&finding.line()))?;
    } else {
        print(&findings.iter().map(Finding::text).collect::<String>())?;
    }
    let faults = findings.iter().filter(|one| one.state() == State::Fault);
    match faults.count() {
        0 => Ok(()),
        faults => Err(Failure::Machine {
            faults: count(faults, "fault"),
        }),
    }
}

fn examine(env: &Env) -> Vec<Finding> {
    let (sys, proc) = (Path::new("/sys"), Path::new("/proc"));
    let topology = Topology::read(sys);
    let mut findings = vec![toolchain::nvrtc(), toolchain::cxx(), toolchain::simulated()];
    findings.push(store::cache(env));
    findings.extend(store::bundles(env));
    findings.push(store::tuned());
    findings.push(gpus::driver(&topology, proc));
    findings.push(gpus::links(&topology));
    findings.push(nics::transports(&topology));
    findings.push(nics::nics(&topology));
    findings.push(nics::gpu_memory(&topology, sys, proc));
    findings.push(pci::access_control(&topology, sys));
    findings.push(pci::iommu(&topology, sys));
    findings.push(limits::memlock(&topology));
    findings.push(limits::open_files());
    findings
}
