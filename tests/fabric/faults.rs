//! Tests of endpoints with seeded faults and a virtual clock. No run may hang: the data is right, or an endpoint reports
//! an error.

use mkernel_fabric::FabricError;
use mkernel_fabric::emulated::{Failure, Faults, NicModel};
use mkernel_fabric::testing::{EmulatedSubject, Traffic, TrafficRun};
use std::time::Duration;

/// A random number generator.
struct Draw(u64);

impl Draw {
    /// Returns a number from 0 to `end` - 1.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The outcome of a run: the modelled time, and the error of each endpoint.
type Outcome = (u64, Vec<Option<FabricError>>);

/// A run: the network, its faults, and the traffic. A seed determines all three.
struct Run {
    nic: NicModel,
    faults: Vec<Faults>,
    traffic: Traffic,
    /// The seed of the delays of copies. With `None`, copies complete at once.
    late: Option<u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let us = |draw: &mut Draw, end| Duration::from_micros(draw.below(end));
        let nic = NicModel {
            rails: 1 + draw.below(4) as u32,
            latency: us(&mut draw, 20),
            queue_depth: 2 + draw.below(30) as u32,
            receives: 16 + draw.below(20) as u32,
            ..NicModel::default()
        };
        let faults = Faults {
            seed,
            jitter: us(&mut draw, 100),
            loss: draw.below(4) as f64 * 0.1,
            retransmission: us(&mut draw, 500),
            duplicates: draw.below(3) as f64 * 0.2,
            failure: None,
        };
        let traffic = Traffic {
            endpoints: 2 + draw.below(2) as usize,
            channels: 1 + draw.below(3) as u16,
            puts: 10 + draw.below(30) as u32,
            ring_log2: 1 + draw.below(4) as u32,
            first: [0, u32::MAX - 9, (1 << 20) - 9][draw.below(3) as usize],
            deadline: Duration::from_millis(50),
            ..Traffic::default()
        };
        let mut faults = vec![faults; traffic.endpoints];
        let after_writes = draw.below(40);
        faults[0].failure = match draw.below(4) {
            0 => Some(Failure::Nic { after_writes }),
            1 => Some(Failure::Silence { after_writes }),
            _ => None,
        };
        Self {
            nic,
            faults,
            traffic,
            late: (seed % 2 == 1).then_some(seed),
        }
    }

    /// Runs the traffic, and returns the outcome and whether all endpoints finished. Panics if data is wrong or the run
    /// hangs.
    fn run(&self) -> (Outcome, bool) {
        let mut subject = EmulatedSubject::new(self.nic.clone(), self.faults.clone());
        subject.copy_delay_seed = self.late;
        let mut run = TrafficRun::new(&mut subject, self.traffic.clone()).expect("connects");
        run.run();
        let has_finished = run.nodes.iter().all(|node| node.endpoint.is_some());
        for node in &run.nodes {
            assert_eq!(
                node.error.is_some(),
                node.arrivals.is_aborted(),
                "kernels are aborted"
            );
        }
        let errors = run.nodes.iter().map(|node| node.error.clone()).collect();
        drop(run);
        ((subject.now_ns(), errors), has_finished)
    }

    /// Returns whether an endpoint may end with this error if endpoint 0 is the one that fails.
    fn is_plausible(&self, at: usize, error: &FabricError) -> bool {
        match error {
            FabricError::Nic { .. } => at == 0,
            // Both an isolated endpoint and endpoints that wait for an aborted one report their peers.
            FabricError::Timeout { waited, .. } => *waited >= self.traffic.deadline,
            FabricError::Lost { .. } => true,
            _ => false,
        }
    }
}

#[test]
fn a_thousand_runs_end_with_right_data_or_an_error() {
    let (mut failed, mut survived) = (0, 0);
    for seed in 0..1000 {
        let run = Run::new(seed);
        let ((_, errors), has_finished) = run.run();
        if run.faults[0].failure.is_none() {
            assert!(
                has_finished && errors.iter().all(Option::is_none),
                "seed {seed}: {errors:?}"
            );
            continue;
        }
        let has_failed = errors.iter().any(Option::is_some);
        assert_eq!(has_finished, !has_failed, "seed {seed}: {errors:?}");
        for (at, error) in errors.iter().enumerate() {
            let is_right = error
                .as_ref()
                .is_none_or(|error| run.is_plausible(at, error));
            assert!(is_right, "seed {seed}, endpoint {at}: {errors:?}");
        }
        if matches!(run.faults[0].failure, Some(Failure::Nic { .. })) && has_failed {
            assert!(
                matches!(errors[0], Some(FabricError::Nic { .. })),
                "seed {seed}: {errors:?}"
            );
        }
        *(if has_failed {
            &mut failed
        } else {
            &mut survived
        }) += 1;
    }
    println!("{failed} runs failed as they should, {survived} ended before the fault");
    assert!(failed > 300, "{failed}");
}

#[test]
fn a_seed_reproduces_its_run() {
    for seed in 0..40 {
        let run = Run::new(seed);
        assert_eq!(run.run().0, run.run().0, "seed {seed}");
    }
}
