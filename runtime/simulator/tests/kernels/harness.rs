//! Compiles the kernels of `cu/`, and runs them on a simulated host with the memory that they use.

use super::data::{Contents, Data, MATRIX_BYTES};
use mkernel_compile::{CudaSource, HostCxx};
use mkernel_sim::tensor_map::TensorMap;
use mkernel_sim::world::{Advance, Finding, Image, Moment, Options, Outcome, TaskId, Work, World};
use mkernel_spec::{Arch, Backend};
use std::collections::BTreeMap;
use std::sync::Arc;

const ROW_BYTES: u64 = 128;
/// The size of a rank's workspace. Before the first call, its first half holds 0, and its second half was never
/// written.
const WORKSPACE_BYTES: usize = 64 << 10;
/// The number of jumps of simulated time in a standstill before the test ends the kernel. Deadlines of seconds pass
/// within these jumps.
const JUMPS: u32 = 30;

/// The launch of a kernel, and the output that it must have.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub ranks: u32,
    pub ctas: u32,
    pub cluster: u32,
    pub threads: u32,
    pub smem_bytes: u32,
    /// The number of calls, one after the other.
    pub calls: u32,
    pub host: HostAction,
    /// The swizzle of the box of `input_map`.
    pub swizzle_bytes: u8,
    /// The rows of the box of `input_map`.
    pub box_rows: u32,
    pub data: Data,
    /// The number of bytes of the output that must be right at the end.
    pub bytes: usize,
    /// Whether threads are late on purpose. Then a standstill is not a deadlock, and waits at barriers see time pass.
    pub late: bool,
}

/// The action of the host on another stream while the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAction {
    /// Nothing.
    Waits,
    /// Copies the matrix to the workspace of rank 0, and writes a flag after the copy.
    CopyThenFlag,
    /// Copies the matrix as `CopyThenFlag` does, but does not order the flag after the copy.
    CopyAndFlag,
}

/// The smallest shape.
pub const SHAPE: Shape = Shape {
    ranks: 1,
    ctas: 1,
    cluster: 1,
    threads: 32,
    smem_bytes: 20 << 10,
    calls: 1,
    host: HostAction::Waits,
    swizzle_bytes: 0,
    box_rows: 64,
    data: Data::Matrix,
    bytes: 128,
    late: false,
};

/// Compiles and loads a kernel of `cu/` after replacements in its text. Each replaced text must occur.
pub fn compile(text: &str, edits: &[(&str, &str)]) -> Result<Arc<Image>, String> {
    Image::load(&shared_object(text, edits)?)
}

/// Compiles a kernel of `cu/` after replacements, and returns the shared object.
pub fn shared_object(text: &str, edits: &[(&str, &str)]) -> Result<Vec<u8>, String> {
    let mut text = format!("{}{text}", include_str!("cu/prelude.cu"));
    for (from, to) in edits {
        assert!(text.contains(from), "the kernel does not contain {from}");
        text = text.replacen(from, to, 1);
    }
    let source = CudaSource {
        id: "kernel".into(),
        arch: Arch::Sm90a,
        backend: Backend::HostCxx,
        text,
    };
    let compiler = HostCxx::load().map_err(|error| error.to_string())?;
    let cubin = compiler
        .compile(&source)
        .map_err(|error| error.to_string())?;
    Ok(cubin.bytes)
}

/// The result of a run.
#[derive(Debug)]
pub struct RunResult {
    pub findings: Vec<Finding>,
    pub failures: Vec<String>,
    /// The ranks whose output is wrong.
    pub wrong: Vec<u32>,
}

impl RunResult {
    pub fn is_correct(&self) -> bool {
        self.findings.is_empty() && self.failures.is_empty() && self.wrong.is_empty()
    }
}

struct Harness<'a> {
    world: World,
    shape: Shape,
    contents: &'a Contents,
    /// The address of each rank's input.
    input: Vec<u64>,
    output: Vec<u64>,
    workspaces: Vec<u64>,
    host_page: Box<[u64; 32]>,
    findings: Vec<Finding>,
    failures: Vec<String>,
    /// The outcome of each task that has ended, and the moment of its end.
    over: BTreeMap<TaskId, (Outcome, Moment)>,
}

/// Runs a kernel with `seed`. `contents` is the result of `shape.data`.
pub fn run(image: &Arc<Image>, shape: Shape, contents: &Contents, seed: u64) -> RunResult {
    let mut harness = Harness::new(shape, contents, seed);
    let ready = harness.fill();
    let mut last = vec![ready.clone(); shape.ranks as usize];
    let mut running: Vec<(usize, u32, TaskId)> = (0..shape.ranks as usize)
        .map(|rank| (rank, 1, harness.launch(image, rank, 1, &ready)))
        .collect();
    if shape.host != HostAction::Waits {
        harness.copy_concurrently(&ready);
    }
    while !running.is_empty() && harness.go_on() {
        let mut next = Vec::new();
        for (rank, call, task) in running {
            match harness.over.get(&task).cloned() {
                None => next.push((rank, call, task)),
                Some((_, moment)) if call < shape.calls => {
                    let task = harness.launch(image, rank, call + 1, &moment);
                    next.push((rank, call + 1, task));
                }
                Some((_, moment)) => last[rank] = moment,
            }
        }
        running = next;
    }
    let mut wrong = Vec::new();
    if running.is_empty() && harness.failures.is_empty() {
        let ranks = 0..shape.ranks;
        wrong.extend(ranks.filter(|rank| !harness.is_output_right(*rank, &last[*rank as usize])));
    } else {
        harness
            .failures
            .push("the kernel has not ended, or has failed".into());
    }
    RunResult {
        findings: harness.findings,
        failures: harness.failures,
        wrong,
    }
}

impl<'a> Harness<'a> {
    fn new(shape: Shape, contents: &'a Contents, seed: u64) -> Self {
        let mut world = World::new(Options {
            devices: 2,
            seed,
            skew: (seed % 4 * 30) as u32,
            timeline: false,
        });
        if shape.late {
            world.let_barriers_see_time();
        }
        let mut host_page = Box::new([0; 32]);
        // SAFETY: the page lives as long as the world, and nothing else accesses it.
        unsafe { world.adopt_host(host_page.as_mut_ptr() as u64, 256) };
        let mut memory = |rank: u32, bytes: usize, ranks: u32| {
            let id = world.create(rank, bytes as u64).expect("memory");
            // Each rank accesses the memory at a different address.
            let addresses = (0..ranks).map(|by| {
                let address = world.reserve(bytes as u64);
                world.map(address, id, if ranks == 1 { rank } else { by });
                address
            });
            addresses.collect::<Vec<_>>()
        };
        let input = (0..shape.ranks)
            .map(|rank| memory(rank, contents.input.len(), 1)[0])
            .collect();
        let output = (0..shape.ranks)
            .map(|rank| memory(rank, contents.output.len(), 1)[0])
            .collect();
        // The indices are [owner][accessor].
        let shared: Vec<Vec<u64>> = (0..2)
            .map(|owner| memory(owner, WORKSPACE_BYTES, 2))
            .collect();
        let workspaces = (0..2)
            .flat_map(|by| [shared[0][by], shared[1][by]])
            .collect();
        Self {
            world,
            shape,
            contents,
            input,
            output,
            workspaces,
            host_page,
            findings: Vec::new(),
            failures: Vec::new(),
            over: BTreeMap::new(),
        }
    }

    /// Writes the inputs and the zeros, and returns the moment after these writes.
    fn fill(&mut self) -> Moment {
        let start = Moment::default();
        let mut ready = Moment::default();
        let uploads = self
            .input
            .iter()
            .map(|to| (*to, self.contents.input.clone()));
        let zeros = self.workspaces[..2]
            .iter()
            .map(|to| (*to, vec![0; WORKSPACE_BYTES / 2]));
        let works: Vec<(u64, Vec<u8>)> = uploads.chain(zeros).collect();
        let tasks: Vec<TaskId> = works
            .into_iter()
            .map(|(to, bytes)| self.world.start(0, Work::Upload { to, bytes }, &start))
            .collect();
        for task in tasks {
            ready.join(&self.wait_for(task).1);
        }
        ready
    }

    fn launch(&mut self, image: &Arc<Image>, rank: usize, call: u32, after: &Moment) -> TaskId {
        let map = |address, swizzle_bytes: u8, rows| {
            let columns = if swizzle_bytes == 0 {
                64
            } else {
                u32::from(swizzle_bytes) / 2
            };
            let map = TensorMap::new(
                address,
                (2, swizzle_bytes),
                &[64, 64],
                &[ROW_BYTES],
                &[columns, rows],
            );
            map.expect("a map").to_bytes()
        };
        let Shape {
            swizzle_bytes,
            box_rows,
            ..
        } = self.shape;
        let mut args = Vec::new();
        args.extend(map(self.input[rank], swizzle_bytes, box_rows));
        args.extend(map(self.output[rank], 0, 64));
        let workspaces = &self.workspaces[rank * 2..rank * 2 + 2];
        let page = self.host_page.as_ptr() as u64;
        for address in [
            self.input[rank],
            self.output[rank],
            workspaces[0],
            workspaces[1],
            page,
        ] {
            args.extend(address.to_le_bytes());
        }
        args.extend((rank as u32).to_le_bytes());
        args.extend(call.to_le_bytes());
        args.resize(args.len().next_multiple_of(128), 0);
        let work = Work::Kernel {
            image: image.clone(),
            ctas: self.shape.ctas,
            cluster_ctas: self.shape.cluster,
            threads: self.shape.threads,
            smem_bytes: self.shape.smem_bytes,
            args,
            overlaps: false,
        };
        self.world.start(rank as u32, work, after)
    }

    fn copy_concurrently(&mut self, ready: &Moment) {
        let (from, to) = (self.input[0], self.workspaces[0]);
        let bytes = MATRIX_BYTES as u64;
        let copy = Work::Copy {
            to,
            from,
            to_pitch_bytes: bytes,
            from_pitch_bytes: bytes,
            row_bytes: bytes,
            rows: 1,
        };
        let copied = self.world.start(0, copy, ready);
        let after = if self.shape.host == HostAction::CopyThenFlag {
            self.wait_for(copied).1
        } else {
            ready.clone()
        };
        let flag = Work::Write {
            to: to + 16384,
            value: 1,
        };
        self.world.start(0, flag, &after);
    }

    /// Advances the world until work has finished. Returns false if nothing can continue.
    fn go_on(&mut self) -> bool {
        for _ in 0..JUMPS {
            let advance = self.world.advance();
            self.findings.extend(self.world.take_findings());
            let finished = self.world.take_finished();
            let has_moved = !finished.is_empty();
            for (task, outcome, moment) in finished {
                if let Outcome::Failed(why) = &outcome {
                    self.failures.push(why.clone());
                }
                self.over.insert(task, (outcome, moment));
            }
            match advance {
                Advance::Busy | Advance::Idle => return has_moved || advance == Advance::Busy,
                Advance::Stuck => {
                    self.world.let_time_pass(!self.shape.late);
                }
            }
        }
        self.findings.extend(self.world.take_findings());
        false
    }

    fn wait_for(&mut self, task: TaskId) -> (Outcome, Moment) {
        while !self.over.contains_key(&task) && self.go_on() {}
        self.over.get(&task).cloned().expect("copies end")
    }

    fn is_output_right(&mut self, rank: u32, after: &Moment) -> bool {
        let right = &self.contents.output[..self.shape.bytes];
        let work = Work::Download {
            from: self.output[rank as usize],
            bytes: right.len() as u64,
        };
        let task = self.world.start(rank, work, after);
        let read = self.wait_for(task).0;
        matches!(read, Outcome::Read(read) if read == right)
    }
}
