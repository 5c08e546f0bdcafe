//! [`Runs`]: runs every kernel with every seed, several at a time, and reports the outcomes in order.

use super::exit_code::is_same_for_all_seeds;
use super::kernel_run::KernelRun;
use super::queue::{Queue, Run as NextRun};
use super::ranks::{Job, Outcome};
use super::report::Report;
use super::routing::TokenLoad;
use super::scratch::{self, Scratch};
use crate::cli::fabric_test::Network;
use crate::cli::failure::Failure;
use crate::cli::machine::cores;
use crate::cli::signals::{Watch, end_by};
use mkernel::Communicator;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

/// The runs of a command.
pub struct Runs<'a> {
    pub network: &'a Network,
    /// Whether no other run starts after a run that is not right.
    pub fail_fast: bool,
    /// Writes the files of an outcome.
    pub write: &'a (dyn Fn(&Outcome) -> Result<(), Failure> + Sync),
    pub kernels: &'a [KernelRun<'a>],
    pub queue: &'a Queue<'a>,
    /// The number of concurrent runs, if there is the memory for them.
    pub jobs: usize,
    /// The communicator of this process, if other processes have the other ranks.
    pub launched: Option<&'a Communicator>,
}

/// A message to the thread that reports.
enum Event {
    Outcome(NextRun, Box<Outcome>),
    Failed(Failure),
    /// A thread has found no run that is left.
    Idle,
    Signal(i32),
}

impl Runs<'_> {
    /// Runs the queue until it is empty. A signal ends the process after a summary.
    pub fn run(&self, report: &mut Report) -> Result<(), Failure> {
        let (sender, events) = mpsc::channel();
        // A signal before the folder exists leaves nothing behind.
        let _watch = watch(sender.clone())?;
        let scratch = Scratch::new();
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                let sender = sender.clone();
                scope.spawn(move || self.work(&sender));
            }
            let result = self.report(&events, report, &scratch);
            // After an error, no other run is needed.
            self.queue.close();
            result
        })
    }

    fn work(&self, events: &Sender<Event>) {
        while let Some(run) = self.queue.take() {
            let event = match self.outcome(run) {
                Ok(outcome) => Event::Outcome(run, Box::new(outcome)),
                Err(failure) => Event::Failed(failure),
            };
            self.queue.end(run);
            let _ = events.send(event);
        }
        let _ = events.send(Event::Idle);
    }

    fn outcome(&self, (index, seed): NextRun) -> Result<Outcome, Failure> {
        let about = &self.kernels[index];
        let ranks = self.launched.map_or(about.plan.spec.world(), |_| 1);
        let job = Job {
            config: about.kernel.spec.config(),
            plan: about.plan,
            machine: about.machine,
            load: TokenLoad::Any,
            seed,
            calls: about.calls,
            threads: cores() / (self.jobs * ranks as usize),
            transport: self.network.transport(seed)?,
            launched: self.launched,
        };
        let outcome = job.run();
        if is_same_for_all_seeds(&outcome) {
            self.queue.skip(index);
        }
        // After an error of a rank, the communicator cannot be used.
        let is_over = self.launched.is_some() && outcome.result.is_err();
        if is_over || self.fail_fast && !outcome.is_right() {
            self.queue.close();
        }
        Ok(outcome)
    }

    /// Reports outcomes in the order of the queue until all threads are idle.
    fn report(
        &self,
        events: &Receiver<Event>,
        report: &mut Report,
        scratch: &Scratch,
    ) -> Result<(), Failure> {
        let mut early = BTreeMap::new();
        let mut wanted = self.queue.of_kernel(0);
        let mut busy = self.jobs;
        if let Some(first) = self.kernels.first() {
            report.kernel(0, first)?;
        }
        while busy > 0 {
            match events.recv() {
                Ok(Event::Outcome(run, outcome)) => {
                    early.insert(run, outcome);
                }
                Ok(Event::Failed(failure)) => return Err(failure),
                Ok(Event::Idle) | Err(_) => busy -= 1,
                Ok(Event::Signal(signal)) => {
                    for (run, outcome) in &early {
                        self.report_one(*run, outcome, report)?;
                    }
                    report.summary(true)?;
                    scratch::remove(scratch.path().as_deref());
                    end_by(signal);
                }
            }
            while let Some(outcome) = early.remove(&wanted) {
                self.report_one(wanted, &outcome, report)?;
                let kernel = wanted.0;
                wanted = self.queue.after(wanted);
                if is_same_for_all_seeds(&outcome) {
                    wanted = self.queue.of_kernel(kernel + 1);
                    early.retain(|run, _| *run >= wanted);
                }
            }
        }
        Ok(())
    }

    fn report_one(
        &self,
        (index, _): NextRun,
        outcome: &Outcome,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let about = &self.kernels[index];
        report.kernel(index, about)?;
        report.outcome(about, outcome)?;
        (self.write)(outcome)
    }
}

/// Sends signals as events. A second signal ends the process at once.
fn watch(sender: Sender<Event>) -> Result<Watch, Failure> {
    let mut is_second = false;
    Watch::new(move |signal| {
        if is_second || sender.send(Event::Signal(signal)).is_err() {
            end_by(signal);
        }
        is_second = true;
    })
}
