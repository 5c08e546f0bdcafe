//! A layer of experts: tokens to their experts, and the weighted sums back; several calls in a row, each with other tokens.

mod buffers;
mod calls;
mod recovery;
mod reference;

pub use recovery::{recovers, ways};

use crate::simulated::attention::Pace;
use crate::simulated::{Machine, Results, Simulated, Where, apply, emulated};
use mkernel::{
    BLayout, CombineConfig, CombineOp, CombineShape, Communicator, Diagnostics, Dim,
    DispatchConfig, DispatchOp, DispatchShape, Error, Faults, KernelConfig, KernelSpec, Operator,
};

/// Tokens of a call, by rank: the experts of each.
pub type Call = Vec<Vec<Vec<i32>>>;

/// Bits of the sums of all calls.
pub type Bits = Vec<u32>;

/// Replacements in a kernel's text, each of which must be found.
pub type Edits = Vec<(String, String)>;

#[derive(Clone, Debug)]
pub struct Layer {
    pub world: u32,
    /// Into which its ranks are put.
    pub nodes: u32,
    /// Of the network between them; seeded anew in each run.
    pub faults: Faults,
    pub experts: u64,
    pub top_k: u64,
    pub max_tokens: u64,
    pub hidden: u64,
    pub intermediate: u64,
    pub nk: bool,
    pub tile: Option<(u32, u32)>,
    pub comm_ctas: Option<u32>,
    pub max_rows: Option<u32>,
    pub sms: u32,
    pub skew: u32,
    pub pace: Pace,
    pub calls: Vec<Call>,
    /// Calls that are pretended to have been made when the first two have been.
    pub age: Option<u32>,
    /// What is said of the number of tokens, if not the truth.
    pub count: Option<i32>,
    pub dispatch_edits: Edits,
    pub combine_edits: Edits,
}

impl Layer {
    /// Kernels as they are rendered, a tile of 64 x 128 if it may be small.
    pub fn new(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Self {
        Self {
            world,
            nodes: 1,
            faults: Faults::default(),
            experts,
            top_k,
            max_tokens,
            hidden: 200,
            intermediate: 72,
            nk: false,
            tile: Some((64, 128)),
            comm_ctas: None,
            max_rows: None,
            sms: 5,
            skew: 60,
            pace: Pace::BackToBack,
            calls: Vec::new(),
            age: None,
            count: None,
            dispatch_edits: Vec::new(),
            combine_edits: Vec::new(),
        }
    }

    /// With another call, in which token `t` of rank `r`, of `counts[r]`, has experts `choose(r, t)`.
    pub fn call(mut self, counts: &[usize], choose: impl Fn(usize, usize) -> Vec<i32>) -> Self {
        let of_rank =
            |(rank, count): (usize, &usize)| (0..*count).map(|t| choose(rank, t)).collect();
        self.calls
            .push(counts.iter().enumerate().map(of_rank).collect());
        self
    }

    /// On so many nodes, whose network has faults.
    pub fn across(mut self, nodes: u32, faults: Faults) -> Self {
        (self.nodes, self.faults) = (nodes, faults);
        self.sms = 3; // one that communicates, and two: simulated GPUs take as long as they have threads
        self
    }

    fn local(&self) -> usize {
        self.experts as usize / self.world as usize
    }

    fn configs(&self) -> (KernelConfig, KernelConfig) {
        let dispatch = DispatchConfig {
            experts: Dim::Static(self.experts),
            top_k: Dim::Static(self.top_k),
            max_tokens: Dim::DYNAMIC,
            hidden: Dim::Static(self.hidden),
            intermediate: Dim::Static(self.intermediate),
            b_layout: if self.nk { BLayout::Nk } else { BLayout::Kn },
            max_rows: self.max_rows,
            tile_m: self.tile.map(|tile| tile.0),
            tile_n: self.tile.map(|tile| tile.1),
            comm_ctas: self.comm_ctas,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let combine = CombineConfig {
            experts: Dim::Static(self.experts),
            top_k: Dim::Static(self.top_k),
            max_tokens: Dim::DYNAMIC,
            hidden: Dim::Static(self.intermediate),
            max_rows: self.max_rows,
            ..CombineConfig::new(CombineOp::Combine)
        };
        let on_nodes = |config| KernelConfig {
            nodes: self.nodes,
            ..config
        };
        (
            on_nodes(KernelConfig::new(self.world, dispatch)),
            on_nodes(KernelConfig::new(self.world, combine)),
        )
    }

    /// With three calls, so that each buffer is used again, with other numbers of tokens.
    pub fn mixed(self, counts: [&[usize]; 3]) -> Self {
        let (experts, top_k) = (self.experts as usize, self.top_k as usize);
        counts
            .into_iter()
            .enumerate()
            .fold(self, |layer, (salt, counts)| {
                layer.call(counts, |rank, token| {
                    let first = (rank * 5 + token * 3 + salt) % experts;
                    (0..top_k)
                        .map(|j| ((first + j * (1 + token % 2)) % experts) as i32)
                        .collect()
                })
            })
    }

    /// Two calls before it is pretended to have made `age`, and four after. Most tokens come first in the call in which
    /// what was never written is taken for what is awaited, if old calls are told from new ones by a window or by 0.
    pub fn growing_old(mut self, age: u32) -> Self {
        self.age = Some(age);
        let (experts, top_k) = (self.experts as usize, self.top_k as usize);
        let (most, world) = (self.max_tokens as usize, self.world as usize);
        let first_of_all = if age < 1 << 31 { 4 } else { 3 };
        (0..6).fold(self, |layer, salt| {
            let few = [1 + salt % 2, salt % 3];
            let count = |rank: usize| {
                if salt < first_of_all {
                    few[rank % 2].min(most)
                } else {
                    most
                }
            };
            let counts: Vec<usize> = (0..world).map(count).collect();
            layer.call(&counts, |rank, token| {
                let first = (rank * 5 + token * 3 + salt) % experts;
                (0..top_k)
                    .map(|j| ((first + j * (1 + token % 2)) % experts) as i32)
                    .collect()
            })
        })
    }

    /// With another call whose ids look random; if `skewed`, expert e is chosen as often as 1 / (e + 1) says.
    pub fn random(self, counts: &[usize], skewed: bool) -> Self {
        let (experts, top_k) = (self.experts, self.top_k as usize);
        let salt = self.calls.len();
        self.call(counts, |rank, token| {
            let mut state = (salt << 40 | rank << 32 | token) as u64;
            let mut chosen = Vec::with_capacity(top_k);
            while chosen.len() < top_k {
                let x = fraction(&mut state);
                let expert = match skewed {
                    true => (experts as f64 + 1.0).powf(x) as u64 - 1,
                    false => (x * experts as f64) as u64,
                };
                let expert = expert.min(experts - 1) as i32;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen
        })
    }

    pub(super) fn machine(&self) -> Machine {
        Machine {
            world: self.world,
            sms: self.sms,
            skew: self.skew,
        }
    }

    /// Runs it with `seed`: what each rank says, which no failure of another ends.
    pub fn each(&self, seed: u64) -> Vec<Result<Bits, String>> {
        self.each_on(Where::Simulated { seed })
    }

    /// What each rank says; the bits of its sums, if all is right.
    pub fn each_on(&self, place: Where) -> Vec<Result<Bits, String>> {
        let transport = emulated(&self.faults, place);
        let said = self.machine().each(place, |ranks, _| {
            ranks.set_transport(transport.clone());
            self.rank(ranks)
        });
        said.expect("GPUs")
    }

    fn shapes(&self) -> (DispatchShape, CombineShape) {
        let dispatch = DispatchShape {
            experts: self.experts,
            top_k: self.top_k,
            max_tokens: self.max_tokens,
            hidden: self.hidden,
            intermediate: self.intermediate,
        };
        let combine = CombineShape {
            experts: self.experts,
            top_k: self.top_k,
            max_tokens: self.max_tokens,
            hidden: self.intermediate,
        };
        (dispatch, combine)
    }

    /// Both kernels.
    pub fn specs(&self) -> Result<[KernelSpec; 2], Diagnostics> {
        let ((dispatch, combine), shapes) = (self.configs(), self.shapes());
        Ok([
            KernelSpec::validate(dispatch)?.specialise(shapes.0)?,
            KernelSpec::validate(combine)?.specialise(shapes.1)?,
        ])
    }

    fn prepare(&self, ranks: &Communicator) -> Result<(Operator, Operator), Error> {
        let ((dispatch, combine), shapes) = (self.configs(), self.shapes());
        // SAFETY: planted mistakes are for simulated GPUs, which check every access of a kernel.
        unsafe {
            Ok((
                ranks.prepare_edited(&dispatch, shapes.0, |text| {
                    apply(&self.dispatch_edits, text);
                })?,
                ranks.prepare_edited(&combine, shapes.1, |text| {
                    apply(&self.combine_edits, text);
                })?,
            ))
        }
    }
}

impl Simulated for Layer {
    fn run(&self, seed: u64) -> Result<Results, String> {
        let place = Where::Simulated { seed };
        let transport = emulated(&self.faults, place);
        self.machine().run(place, |ranks| {
            ranks.set_transport(transport.clone());
            Ok(vec![self.rank(ranks)?])
        })
    }

    /// Those of `dispatch_gemm`.
    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.dispatch_edits = edits;
    }
}

/// The same, with mistakes in `combine`.
#[derive(Clone)]
pub struct Combining(pub Layer);

impl Simulated for Combining {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.0.run(seed)
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.0.combine_edits = edits;
    }
}

/// In 0 .. 1 (splitmix64).
fn fraction(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
