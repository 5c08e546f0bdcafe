//! Who runs: a seeded choice, as unfair as is asked for.

use super::fiber::Returned;
use super::launch::Free;
use super::machine::{Machine, Random, State, WARP};
use super::{Advance, Moment, Options, Outcome, World, calls};

/// How far time jumps at first when all wait.
pub(super) const FIRST_JUMP_NS: u64 = 1_000_000;

/// Beyond any deadline (a day).
const LAST_JUMP_NS: u64 = 86_400_000_000_000;

/// More than there are waits to end, one by one, after an abort.
const MOST_JUMPS: u32 = 20_000;

/// Warps that are picked in one call of `advance`.
const PICKS: u32 = 4000;

/// Picks between two changes of who is slow.
const PICKS_PER_MOOD: u32 = 1500;

/// Polls that a thread gets while time passes: a few more than a wait makes between two looks at the clock (128, 4096).
const FREE_POLLS_OF_FLAGS: u32 = 130;
const FREE_POLLS_OF_BARRIERS: u32 = 4100;

/// How likely each is picked when its turn comes, in percent.
#[derive(Debug)]
pub(super) struct Speeds {
    skew: u32,
    left: u32,
    devices: Vec<u32>,
    ctas: Vec<u32>,
    warps: Vec<u32>,
    copies: u32,
}

impl Speeds {
    pub fn new(options: &Options) -> Self {
        Self {
            skew: options.skew.min(100),
            left: 0,
            devices: vec![100; options.devices as usize],
            ctas: vec![100; 61],
            warps: vec![100; 17],
            copies: 50,
        }
    }

    fn next_mood(&mut self, random: &mut Random) {
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = PICKS_PER_MOOD / 2 + random.below(PICKS_PER_MOOD as usize) as u32;
        let skew = self.skew;
        let mut draw = || match random.below(6) {
            0 => 100 - skew,
            1 => 100 - skew * 9 / 10,
            2 => 100 - skew / 2,
            _ => 100,
        };
        self.devices.iter_mut().for_each(|speed| *speed = draw());
        self.ctas.iter_mut().for_each(|speed| *speed = draw());
        self.warps.iter_mut().for_each(|speed| *speed = draw());
        self.copies = [2, 20, 50, 90][random.below(4)];
    }
}

impl Machine {
    pub fn new(options: Options) -> Self {
        // Neighbouring seeds must not give similar runs.
        let mut random = Random(options.seed ^ 0x6d6b_6572_6e65_6c00);
        random.next();
        Self {
            free: (0..options.devices).map(|_| Free::default()).collect(),
            options,
            random,
            now_ns: 1_000_000,
            has_moved: false,
            memory: Default::default(),
            shadow: Default::default(),
            unused_smem: Vec::new(),
            components: 0,
            launches: Vec::new(),
            ctas: Vec::new(),
            warps: Vec::new(),
            threads: Vec::new(),
            ready: Vec::new(),
            operations: Vec::new(),
            locations: Default::default(),
            reports: Default::default(),
            lately: Default::default(),
            host: Default::default(),
            copied: Default::default(),
            current: 0,
        }
    }

    /// Lets threads that wait poll so many times.
    fn wake_with(&mut self, threads: &[usize], polls: u32) {
        for thread in threads {
            self.threads[*thread].free_polls = polls;
            self.wake(*thread);
        }
    }

    /// A warp that can run: its place in `ready`.
    fn pick(&mut self, speeds: &Speeds) -> Option<usize> {
        if self.ready.is_empty() {
            return None;
        }
        for _ in 0..24 {
            let place = self.random.below(self.ready.len());
            let warp = self.ready[place];
            let cta = &self.ctas[self.warps[warp].cta];
            let (device, cta) = (cta.device as usize, (cta.device * 7 + cta.index) as usize);
            let speed = speeds.devices[device] * speeds.ctas[cta % speeds.ctas.len()] / 100
                * speeds.warps[warp % speeds.warps.len()]
                / 100;
            if self.random.chance(speed) {
                return Some(place);
            }
        }
        Some(self.random.below(self.ready.len()))
    }
}

impl World {
    /// Lets work go on for a while.
    pub fn advance(&mut self) -> Advance {
        for _ in 0..PICKS {
            self.speeds.next_mood(&mut self.machine.random);
            let copy_now = self.machine.random.chance(self.speeds.copies);
            if copy_now && self.copy_something() {
                continue;
            }
            if !self.run_warp() && !self.copy_something() {
                self.end_failed();
                let idle =
                    self.copies.is_empty() && self.machine.launches.iter().all(Option::is_none);
                if !self.machine.ready.is_empty() || self.machine.wake_pollers_of_host() {
                    continue;
                }
                return match (idle, self.finished.is_empty()) {
                    (true, _) => Advance::Idle,
                    (false, false) => Advance::Busy,
                    (false, true) => Advance::Stuck,
                };
            }
        }
        self.end_failed();
        Advance::Busy
    }

    /// Looks whether words of host memory that threads wait for have changed. If so, these go on.
    pub fn look_at_host(&mut self) -> bool {
        self.machine.wake_pollers_of_host()
    }

    /// When stuck: lets simulated time jump, so that deadlines in kernels pass; returns by how many ns. Says who waits
    /// for what as a finding first, once per standstill, if `report` is set.
    pub fn let_time_pass(&mut self, report: bool) -> u64 {
        let machine = &mut *self.machine;
        if report && self.jumps == 0 {
            machine.find_deadlock();
        }
        // After an abort, waits end one by one, each when it has looked at the abort words.
        if std::mem::take(&mut machine.has_moved) {
            self.jump_ns = FIRST_JUMP_NS;
        }
        self.jumps += 1;
        let jumped_ns = self.jump_ns;
        if jumped_ns > LAST_JUMP_NS || self.jumps > MOST_JUMPS {
            for launch in 0..machine.launches.len() {
                machine.fail_launch(launch, "waits never end".into());
            }
            return jumped_ns;
        }
        machine.now_ns += jumped_ns;
        // By less than twofold, so that a deadline passes before twice the deadline does.
        self.jump_ns += self.jump_ns * 9 / 10;
        let pollers: Vec<usize> = (0..machine.threads.len())
            .filter(|thread| machine.threads[*thread].state == State::Polling)
            .collect();
        if pollers.is_empty() || self.barriers_see_time {
            let at_barriers =
                |thread: &usize| matches!(machine.threads[*thread].state, State::Barrier { .. });
            let waking: Vec<usize> = (0..machine.threads.len()).filter(at_barriers).collect();
            machine.wake_with(&waking, FREE_POLLS_OF_BARRIERS);
        }
        machine.wake_with(&pollers, FREE_POLLS_OF_FLAGS);
        jumped_ns
    }

    /// One copy of TMA's or the host's, if there is one.
    fn copy_something(&mut self) -> bool {
        let operations = self.machine.operations.len();
        let all = operations + self.copies.len();
        if all == 0 {
            return false;
        }
        let index = self.machine.random.below(all);
        if index < operations {
            self.machine.complete_operation(index);
        } else {
            let copy = self.copies.swap_remove(index - operations);
            let done = self.machine.make(copy);
            self.finished.push(done);
        }
        true
    }

    /// Lanes of one warp, until they wait; false if no warp can run.
    fn run_warp(&mut self) -> bool {
        let Some(place) = self.machine.pick(&self.speeds) else {
            return false;
        };
        let warp = self.machine.ready.swap_remove(place);
        let lanes = std::mem::take(&mut self.machine.warps[warp].ready);
        let first = self.machine.warps[warp].first_thread;
        let start = self.machine.random.below(WARP);
        // Now and then a warp diverges: some of its lanes stay behind.
        let until = if self.machine.random.chance(10) {
            1 + self.machine.random.below(WARP)
        } else {
            WARP
        };
        let mut behind = 0;
        for step in 0..WARP {
            let lane = (start + step) % WARP;
            if lanes >> lane & 1 == 0 {
                continue;
            }
            if step >= until && behind | lanes & !(1 << lane) != 0 && lanes.count_ones() > 1 {
                behind |= 1 << lane;
                continue;
            }
            self.run_thread(first + lane);
        }
        if behind != 0 {
            let machine = &mut self.machine;
            if machine.warps[warp].ready == 0 {
                machine.ready.push(warp);
            }
            machine.warps[warp].ready |= behind;
        }
        true
    }

    fn run_thread(&mut self, thread: usize) {
        let Some(mut fiber) = self.fibers[thread].take() else {
            return;
        };
        self.machine.current = thread;
        self.machine.now_ns += 1;
        calls::enter(&raw mut *self.machine);
        let returned = fiber.resume();
        calls::enter(std::ptr::null_mut());
        match returned {
            Returned::Waits => self.fibers[thread] = Some(fiber),
            Returned::Ended | Returned::Overran => {
                if fiber.end(&mut self.stacks) == Returned::Overran {
                    // Neighbouring memory is overwritten, so nothing can be told safely any more.
                    eprintln!("mkernel-sim: a kernel's thread ran over its stack");
                    std::process::abort();
                }
                let launch = self.machine.ctas[self.machine.threads[thread].cta].launch;
                if self.machine.thread_ended(thread) {
                    self.end(launch);
                }
            }
        }
    }

    fn end(&mut self, launch: usize) {
        let Some((task, known, failed)) = self.machine.end_launch(launch) else {
            return;
        };
        let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
        self.finished.push((task, outcome, Moment(known)));
        if self.machine.launches.iter().all(Option::is_none) {
            self.machine.ctas.clear();
            self.machine.warps.clear();
            self.machine.threads.clear();
            self.machine.ready.clear();
            self.machine.locations.forget_pollers();
            self.fibers.clear();
        }
    }

    /// Ends kernels that failed, with all their threads.
    fn end_failed(&mut self) {
        for launch in 0..self.machine.launches.len() {
            let failed = self.machine.launches[launch].as_ref();
            let Some(ctas) = failed
                .filter(|launch| launch.failed.is_some())
                .map(|launch| launch.ctas.clone())
            else {
                continue;
            };
            for cta in ctas {
                let threads = self.machine.ctas[cta].threads;
                for thread in threads..threads + self.machine.ctas[cta].thread_count as usize {
                    if let Some(fiber) = self.fibers[thread].take() {
                        fiber.end(&mut self.stacks);
                    }
                }
            }
            self.end(launch);
        }
    }
}
