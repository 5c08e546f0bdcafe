//! A small world for tests of the driver. Its moments are sets of tasks, so tests see the order of tasks. A kernel is
//! three words: an operation, an address and a value.

use crate::world::{Advance, Finding, Options, Outcome, PhysicalId, TaskId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The tasks that happened before this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment(pub BTreeSet<TaskId>);

impl Moment {
    pub fn join(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }
}

#[derive(Debug)]
pub(super) struct Image;

impl Image {
    pub fn load(_bytes: &[u8]) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self))
    }

    pub fn args_bytes(&self) -> usize {
        24
    }
}

/// The pieces of work of the real world, with kernels of this world.
pub(super) type Work = crate::world::Work<Arc<Image>>;

/// A kernel that adds the value to the word at its address.
pub(super) const ADD: u64 = 0;
/// A kernel that waits for the value, and ends when time passes.
pub(super) const AWAIT: u64 = 1;
/// A kernel that fails.
pub(super) const FAIL: u64 = 2;
/// A kernel that writes the value to pinned memory, and publishes this to the host.
pub(super) const RING: u64 = 3;

/// A kernel that waits for the value in pinned memory, and ends when time passes.
pub(super) const AWAIT_HOST: u64 = 4;

#[derive(Debug)]
struct Task {
    id: TaskId,
    work: Work,
    after: Moment,
}

#[derive(Debug, Default)]
pub(super) struct World {
    physical: HashMap<PhysicalId, Vec<u8>>,
    mapped: BTreeMap<u64, PhysicalId>,
    next: u64,
    tasks: Vec<Task>,
    finished: Vec<(TaskId, Outcome, Moment)>,
    findings: Vec<Finding>,
    published: Moment,
    jumps: u32,
    given_up: bool,
    /// The started tasks, each with the moment that it was ordered after.
    pub log: Vec<(TaskId, Moment)>,
}

impl World {
    pub fn new(_options: Options) -> Self {
        Self {
            next: 1 << 44,
            ..Self::default()
        }
    }

    pub fn has_aborted(&self) -> bool {
        false
    }

    pub fn create(&mut self, _device: u32, bytes: u64) -> Option<PhysicalId> {
        self.next += 1 << 30;
        let id = PhysicalId(self.next);
        self.physical.insert(id, vec![0xcc; bytes as usize]);
        Some(id)
    }

    pub fn release(&mut self, _memory: PhysicalId) {}

    pub fn reserve(&mut self, _bytes: u64) -> u64 {
        self.next += 1 << 30;
        self.next
    }

    pub fn unreserve(&mut self, _address: u64, _bytes: u64) {}

    pub fn map(&mut self, address: u64, memory: PhysicalId, _device: u32) {
        self.mapped.insert(address, memory);
    }

    pub fn unmap(&mut self, address: u64) {
        self.mapped.remove(&address);
    }

    pub unsafe fn adopt_host(&mut self, _address: u64, _bytes: u64) {}

    pub fn disown_host(&mut self, _address: u64) {}

    pub fn start(&mut self, _device: u32, work: Work, after: &Moment) -> TaskId {
        let id = TaskId(self.log.len() as u64);
        self.log.push((id, after.clone()));
        let after = after.clone();
        self.tasks.push(Task { id, work, after });
        id
    }

    pub fn start_behind(
        &mut self,
        device: u32,
        work: Work,
        after: &Moment,
        _before: Option<TaskId>,
    ) -> TaskId {
        self.start(device, work, after)
    }

    pub fn allows_overlap(&self, _task: TaskId) -> bool {
        false
    }

    pub fn advance(&mut self) -> Advance {
        if self.tasks.is_empty() {
            return Advance::Idle;
        }
        for i in 0..self.tasks.len() {
            let work = self.tasks[i].work.clone();
            if let Some(outcome) = self.perform(&work) {
                let Task { id, mut after, .. } = self.tasks.remove(i);
                after.0.insert(id);
                if matches!(&work, Work::Kernel { args, .. } if args[0] == RING as u8) {
                    self.published.join(&after);
                }
                self.finished.push((id, outcome, after));
                return Advance::Busy;
            }
        }
        Advance::Stuck
    }

    fn perform(&mut self, work: &Work) -> Option<Outcome> {
        match work {
            Work::Kernel { args, .. } => {
                let [what, address, value] = words(args);
                return self.kernel(what, address, value);
            }
            Work::Copy {
                to,
                from,
                to_pitch_bytes,
                from_pitch_bytes,
                row_bytes,
                rows,
            } => {
                for row in 0..*rows {
                    let bytes = self
                        .bytes(from + row * from_pitch_bytes, *row_bytes)
                        .to_vec();
                    self.bytes(to + row * to_pitch_bytes, *row_bytes)
                        .copy_from_slice(&bytes);
                }
            }
            Work::Upload { to, bytes } => {
                self.bytes(*to, bytes.len() as u64).copy_from_slice(bytes)
            }
            Work::Download { from, bytes } => {
                return Some(Outcome::Read(self.bytes(*from, *bytes).to_vec()));
            }
            Work::Fill { to, value, bytes } => self.bytes(*to, *bytes).fill(*value),
            Work::Write { to, value } => self.bytes(*to, 4).copy_from_slice(&value.to_ne_bytes()),
            Work::Call(function) => (function.0)(),
        }
        Some(Outcome::Done)
    }

    fn kernel(&mut self, what: u64, address: u64, value: u64) -> Option<Outcome> {
        let given_up = self.given_up;
        match what {
            ADD => {
                let bytes = self.bytes(address, 4);
                let word = u32::from_ne_bytes(bytes.try_into().expect("4 bytes")) + value as u32;
                self.bytes(address, 4).copy_from_slice(&word.to_ne_bytes());
            }
            AWAIT if given_up => {}
            AWAIT if self.bytes(address, 4) != (value as u32).to_ne_bytes() => return None,
            AWAIT => {}
            // SAFETY: tests pass the address of a pinned word that is alive.
            RING => unsafe {
                (*(address as *const AtomicU32)).store(value as u32, Ordering::Release)
            },
            AWAIT_HOST if !given_up && host_word(address) != value as u32 => return None,
            AWAIT_HOST => {}
            _ => return Some(Outcome::Failed("on request".into())),
        }
        Some(Outcome::Done)
    }

    fn bytes(&mut self, address: u64, bytes: u64) -> &mut [u8] {
        let (start, id) = self.mapped.range(..=address).next_back().expect("mapped");
        let memory = self.physical.get_mut(id).expect("physical memory");
        &mut memory[(address - start) as usize..][..bytes as usize]
    }

    pub fn take_finished(&mut self) -> Vec<(TaskId, Outcome, Moment)> {
        std::mem::take(&mut self.finished)
    }

    pub fn look_at_host(&mut self) -> bool {
        self.tasks.iter().any(|task| match &task.work {
            Work::Kernel { args, .. } => {
                let [what, address, value] = words(args);
                what == AWAIT_HOST && host_word(address) == value as u32
            }
            _ => false,
        })
    }

    pub fn let_time_pass(&mut self, report: bool) -> u64 {
        self.jumps += 1;
        self.given_up = self.jumps > 3;
        if report && self.jumps == 1 {
            let text = "all threads wait for each other".into();
            self.findings.push(Finding {
                kind: "deadlock",
                text,
            });
        }
        20_000_000
    }

    pub fn published_to_host(&self) -> Moment {
        self.published.clone()
    }

    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    pub fn name_memory(
        &mut self,
        _: u64,
        _: u64,
        _: impl Fn(u64) -> Option<String> + Send + 'static,
    ) {
    }

    pub fn timeline(&self) -> String {
        format!("{} tasks", self.log.len())
    }
}

/// Returns the words of a kernel's parameter.
fn words(args: &[u8]) -> [u64; 3] {
    std::array::from_fn(|i| u64::from_ne_bytes(args[8 * i..][..8].try_into().expect("8 bytes")))
}

fn host_word(address: u64) -> u32 {
    // SAFETY: tests pass the address of a pinned word that is alive.
    unsafe { (*(address as *const AtomicU32)).load(Ordering::Acquire) }
}
