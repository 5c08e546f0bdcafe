//! The compilers.

use super::finding::Finding;
use crate::cli::failure::chain;
use mkernel::{Communicator, Simulation};
use mkernel_compile::{GenError, HostCxx, Nvrtc};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The longest time that a compiler may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// NVRTC, which compiles kernels for GPUs.
pub fn nvrtc() -> Finding {
    let check = "nvrtc";
    match Nvrtc::load() {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            Finding::ok(
                check,
                format!("{major}.{minor}, {}", nvrtc.path().display()),
            )
        }
        Err(GenError::NvrtcMissing {
            version: (major, minor),
            commands: [command, _],
            looked,
        }) => {
            let looked: Vec<_> = looked.iter().map(ToString::to_string).collect();
            let found = format!("{major}.{minor} not found; tried:\n{}", looked.join("\n"));
            Finding::fault(check, found, command)
        }
        Err(error) => Finding::fault(check, chain(&error), "mkernel-gen fetch-nvrtc"),
    }
}

/// The C++ compiler, which compiles kernels for simulated GPUs.
pub fn cxx() -> Finding {
    let check = "c++";
    match HostCxx::load_within(LIMIT) {
        Ok(cxx) => Finding::ok(check, cxx.name()),
        Err(GenError::CxxMissing { command, looked }) => {
            let looked: Vec<_> = looked.iter().map(ToString::to_string).collect();
            let found = format!(
                "no C++20 compiler, which simulated GPUs need; tried:\n{}",
                looked.join("\n")
            );
            Finding::note(check, found, command)
        }
        Err(error) => Finding::note(check, chain(&error), "apt-get install --yes g++"),
    }
}

/// The simulated driver, which a C compiler builds. On a host with GPUs it would take the place of their driver.
pub fn simulated() -> Finding {
    let check = "simulator";
    if crate::cli::machine::gpus() > 0 {
        return Finding::ok(check, "not tried, since this host has GPUs");
    }
    let (sender, result) = mpsc::channel();
    // A compiler that hangs does not keep this program from ending.
    thread::spawn(move || {
        let one = Simulation {
            ranks: 1,
            ..Simulation::default()
        };
        let _ = sender.send(Communicator::simulated(&one).map(drop));
    });
    match result.recv_timeout(LIMIT) {
        Ok(Ok(())) => Finding::ok(check, "simulated GPUs start"),
        Ok(Err(error)) => Finding::note(check, chain(&error), "apt-get install --yes gcc"),
        Err(_) => Finding::note(
            check,
            format!("the C compiler has not built the simulated driver within {LIMIT:?}"),
            "run `cc --version` to see why it hangs, or put another cc before it in PATH",
        ),
    }
}
