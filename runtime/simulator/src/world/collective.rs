//! What threads do together: warps, CTAs.

use super::machine::{Machine, State, WARP};

/// What the lanes of a warp do when they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// They see what all of them did.
    Sync,
    /// One of them is chosen.
    Elect,
    /// Each gets the value of a lane.
    Shuffle { lane: u32 },
    /// Each gets the value of the lane whose number differs in the bits of the mask.
    ShuffleXor { mask: u32 },
    /// 8 x 8 matrices from their registers to shared memory.
    StoreMatrix { count: u32 },
    /// The same the other way.
    LoadMatrix { count: u32, transpose: bool },
}

/// Named barriers of a CTA (PTX ISA, "bar").
const NAMED_BARRIERS: usize = 16;

impl Machine {
    /// A lane comes to where its warp does something together. The last one does it and wakes the others; false if the
    /// lane waits.
    pub fn meet_warp(&mut self, what: Together, place: u64) -> bool {
        let current = self.current;
        let warp = self.threads[current].warp;
        let meeting = &mut self.warps[warp].meeting;
        let first = meeting.place;
        if meeting.arrived.is_empty() {
            meeting.place = place;
        }
        meeting.arrived.push(current);
        if first != place && meeting.arrived.len() > 1 {
            let text = format!("{what:?} of a lane, while lanes of its warp are elsewhere");
            let thread = self.warps[warp].meeting.arrived[0];
            self.find_pair((current, place), (thread, first), "warp diverged", text);
        }
        if self.warps[warp].meeting.arrived.len() < WARP {
            self.block(State::Meeting, place);
            return false;
        }
        let mut arrived = std::mem::take(&mut self.warps[warp].meeting.arrived);
        arrived.sort_unstable();
        match what {
            Together::Sync => self.sync(&arrived),
            Together::Elect => {
                // Which lane it is, the hardware does not say; it is always the same one.
                let leader = (self.options.seed as usize ^ self.options.seed as usize >> 7) % WARP;
                for (lane, thread) in arrived.iter().enumerate() {
                    self.threads[*thread].result = u32::from(lane == leader);
                }
            }
            Together::Shuffle { lane } => {
                let value = self.threads[arrived[lane as usize % WARP]].exchange[0];
                for thread in &arrived {
                    self.threads[*thread].result = value;
                }
            }
            Together::ShuffleXor { mask } => {
                let values: Vec<u32> = arrived
                    .iter()
                    .map(|thread| self.threads[*thread].exchange[0])
                    .collect();
                for (lane, thread) in arrived.iter().enumerate() {
                    self.threads[*thread].result = values[(lane ^ mask as usize) % WARP];
                }
            }
            Together::StoreMatrix { count } => self.store_matrices(&arrived, count, place),
            Together::LoadMatrix { count, transpose } => {
                self.load_matrices(&arrived, count, transpose, place)
            }
        }
        for thread in arrived.into_iter().filter(|thread| *thread != current) {
            self.wake(thread);
        }
        true
    }

    /// Threads that met see what all of them did; whole warps start a new step.
    fn sync(&mut self, arrived: &[usize]) {
        let mut all = self.threads[arrived[0]].view.clone();
        let mut warps: Vec<usize> = arrived
            .iter()
            .map(|thread| self.threads[*thread].warp)
            .collect();
        warps.dedup();
        for pair in arrived.windows(2) {
            let (before, view) = (&self.threads[pair[0]].view, &self.threads[pair[1]].view);
            // Neighbours mostly know the same.
            if !view.is(before) {
                all.join(view);
            }
        }
        for warp in &warps {
            let (component, step, first) = {
                let warp = &self.warps[*warp];
                (warp.component, warp.step, warp.first_thread)
            };
            let lanes = &self.threads[first..first + WARP];
            let all = all.ways();
            all.generic.raise(component, step);
            if lanes.iter().all(|lane| !lane.unfenced_shared) {
                all.shared.raise(component, step);
            }
            if lanes.iter().all(|lane| !lane.unfenced_global) {
                all.global.raise(component, step);
            }
            self.warps[*warp].step += 1;
        }
        for thread in arrived {
            self.threads[*thread].view = all.clone();
        }
    }

    /// Named barrier `barrier` of `expected` threads; false if the thread waits.
    pub fn meet_cta(&mut self, barrier: u32, expected: u32, place: u64) -> bool {
        let current = self.current;
        if !self.come_to_named(barrier, expected, place) {
            self.block(State::Meeting, place);
            return false;
        }
        self.cta_of(current).named[barrier as usize]
            .arrived
            .push(current);
        if !self.is_complete(barrier) {
            self.block(State::Meeting, place);
            return false;
        }
        self.part_named(barrier);
        true
    }

    /// The same for a thread that does not wait: the others see what it did before.
    pub fn arrive_cta(&mut self, barrier: u32, expected: u32, place: u64) {
        let current = self.current;
        if !self.come_to_named(barrier, expected, place) {
            return;
        }
        let release = self.release(current);
        let meeting = &mut self.cta_of(current).named[barrier as usize];
        meeting.went_on += 1;
        meeting.published.add(&release);
        if self.is_complete(barrier) {
            self.part_named(barrier);
        }
    }

    /// Checks the name and that all name the same number of threads; false if there is no such barrier.
    fn come_to_named(&mut self, barrier: u32, expected: u32, place: u64) -> bool {
        let current = self.current;
        if barrier as usize >= NAMED_BARRIERS
            || expected == 0
            || !expected.is_multiple_of(WARP as u32)
        {
            let text = format!(
                "barrier {barrier} of {expected} threads: there are 0 to 15, of whole warps"
            );
            self.find_at(place, "named barrier", text.clone());
            self.fail(text);
            return false;
        }
        let cta = self.cta_of(current);
        cta.named.resize_with(NAMED_BARRIERS, Default::default);
        let meeting = &mut cta.named[barrier as usize];
        if meeting.count() == 0 {
            (meeting.expected, meeting.place, meeting.first) = (expected, place, current);
        }
        let (first, first_place, before) = (meeting.first, meeting.place, meeting.expected);
        if before != expected {
            let text = format!(
                "barrier {barrier} of {expected} threads, while others come to it as one of {before}"
            );
            self.find_pair(
                (current, place),
                (first, first_place),
                "named barrier",
                text,
            );
            self.cta_of(current).named[barrier as usize].expected = expected;
        }
        true
    }

    fn is_complete(&mut self, barrier: u32) -> bool {
        let cta = self.cta_of(self.current);
        let meeting = &cta.named[barrier as usize];
        // __syncthreads does not wait for threads that have ended.
        let expected = if barrier == 0 {
            meeting.expected.min(cta.running)
        } else {
            meeting.expected
        };
        meeting.count() >= expected
    }

    /// All have come: those that wait go on.
    fn part_named(&mut self, barrier: u32) {
        let meeting = &mut self.cta_of(self.current).named[barrier as usize];
        let arrived = std::mem::take(&mut meeting.arrived);
        let published = std::mem::take(&mut meeting.published).into_view();
        meeting.went_on = 0;
        if arrived.is_empty() {
            return;
        }
        for thread in &arrived {
            self.lately
                .join(&mut self.threads[*thread].view, &published);
        }
        self.part(arrived);
    }

    /// A thread of `cta` has ended, for which __syncthreads may have waited.
    pub fn leave_cta(&mut self, cta: usize) {
        let running = self.ctas[cta].running as usize;
        if let Some(meeting) = self.ctas[cta].named.first_mut()
            && meeting.arrived.len() == running
            && running > 0
        {
            let arrived = std::mem::take(&mut meeting.arrived);
            self.part(arrived);
        }
    }

    /// The last of those who meet lets all go on.
    pub fn part(&mut self, mut arrived: Vec<usize>) -> bool {
        arrived.sort_unstable();
        self.sync(&arrived);
        // For those who ask whether one of them has something to say.
        let any = arrived.iter().any(|t| self.threads[*t].exchange[0] != 0);
        for thread in &arrived {
            self.threads[*thread].result = u32::from(any);
        }
        let current = self.current;
        for thread in arrived.into_iter().filter(|thread| *thread != current) {
            self.wake(thread);
        }
        true
    }

    /// Row r of matrix m is 16 bytes at the address of lane 8 m + r; lane l holds elements 2 (l % 4) (+ 1) of row l / 4.
    fn store_matrices(&mut self, lanes: &[usize], count: u32, place: u64) {
        for matrix in 0..count as usize {
            for row in 0..8 {
                let mut bytes = [0; 16];
                for (pair, to) in bytes.chunks_exact_mut(4).enumerate() {
                    let value = self.threads[lanes[row * 4 + pair]].exchange[1 + matrix];
                    to.copy_from_slice(&value.to_le_bytes());
                }
                let address = self.threads[lanes[matrix * 8 + row]].exchange[0];
                let running = std::mem::replace(&mut self.current, lanes[matrix * 8 + row]);
                if self.check_row(address, place) {
                    self.store_shared(address, &bytes, place);
                }
                self.current = running;
            }
        }
    }

    fn load_matrices(&mut self, lanes: &[usize], count: u32, transpose: bool, place: u64) {
        for matrix in 0..count as usize {
            let mut elems = [[0u16; 8]; 8];
            for (row, to) in elems.iter_mut().enumerate() {
                let lane = lanes[matrix * 8 + row];
                let address = self.threads[lane].exchange[0];
                let running = std::mem::replace(&mut self.current, lane);
                let mut bytes = [0; 16];
                if self.check_row(address, place) {
                    self.load_shared(address, &mut bytes, place);
                }
                for (elem, pair) in to.iter_mut().zip(bytes.chunks_exact(2)) {
                    *elem = u16::from_le_bytes([pair[0], pair[1]]);
                }
                self.current = running;
            }
            for (lane, thread) in lanes.iter().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let pair = if transpose {
                    [elems[column][row], elems[column + 1][row]]
                } else {
                    [elems[row][column], elems[row][column + 1]]
                };
                self.threads[*thread].exchange[1 + matrix] =
                    u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
        }
    }

    fn check_row(&mut self, address: u32, place: u64) -> bool {
        let aligned = address.is_multiple_of(16);
        if !aligned {
            self.find_at(
                place,
                "alignment",
                format!("a matrix row at {address:#x}, which is not a multiple of 16"),
            );
        }
        aligned
    }
}
