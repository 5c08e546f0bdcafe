//! A layer of experts: its sizes, the routing of each call, and its runs.

use crate::jobs::attention::CallPattern;
use crate::jobs::{Backend, Machine, Results, SimulatedJob, apply_edits, emulated};
use mkernel::testing::prepare_edited;
use mkernel::{
    Communicator, Error, KernelConfig, Operator,
    network::Faults,
    spec::{
        BLayout, CombineConfig, CombineOp, CombineShape, Diagnostics, Dim, DispatchConfig,
        DispatchOp, DispatchShape, Dtype, Router, Scales, Shape, SizedSpec,
    },
};

/// The experts of each token of each rank in one call. The id -1 is no choice.
pub type Routing = Vec<Vec<Vec<i32>>>;

/// The expert id and the row index of a choice that a token does not have.
pub(super) const NO_CHOICE: i32 = -1;

/// The bits of the sums of all calls of a rank.
pub type ResultBits = Vec<u32>;

/// The operators of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `dispatch_gemm` and `combine`, without a down projection.
    OneProduct,
    /// `dispatch_gemm` and `gemm_combine`.
    TwoProducts,
    /// `moe_layer`.
    Whole,
}

/// Several calls of a layer of experts on all ranks.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The number of ranks.
    pub world: u32,
    /// The number of nodes into which the ranks are divided.
    pub nodes: u32,
    /// The faults of the emulated network between the nodes. Each run sets their seed.
    pub faults: Faults,
    /// The number of experts of all ranks.
    pub experts: u64,
    /// The number of experts of a token.
    pub top_k: u64,
    /// The largest number of tokens of a rank.
    pub max_tokens: u64,
    /// The number of elements of a token.
    pub hidden: u64,
    /// The number of columns of an expert's weight.
    pub intermediate: u64,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The elements of tokens and of a weight that share a scale.
    pub scales: Scales,
    /// Whether the weights have the layout `[N, K]`.
    pub nk: bool,
    /// Whether the result is `silu(gate) * up` of two products.
    pub swiglu: bool,
    /// Whether `dispatch_gemm` makes rows of e4m3 with scales, which no `combine` returns.
    pub quantises: bool,
    /// The operators of the layer.
    pub form: Form,
    /// The choice of experts by the kernel.
    pub router: Router,
    /// The rows and columns of a tile, or `None` to leave them to the planner.
    pub tile: Option<(u32, u32)>,
    /// The most slices of K of a tile, or `None` to leave them to the planner.
    pub split_k: Option<u32>,
    /// The number of communication CTAs, or `None` to leave it to the planner.
    pub comm_ctas: Option<u32>,
    /// The largest number of rows of the experts of a rank.
    pub max_rows: Option<u32>,
    /// The tokens of a put and the puts in flight of a peer, or `None` to leave both to the planner.
    pub puts: Option<(u32, u32)>,
    /// The most tokens of a rank whose sums `combine` sends as packets, or `None` to leave them to the planner.
    pub low_latency_tokens: Option<u32>,
    /// The number of SMs of a simulated GPU.
    pub sms: u32,
    /// The unfairness of the schedule of simulated GPUs, from 0 to 100.
    pub skew: u32,
    /// The way in which the ranks make the calls.
    pub pattern: CallPattern,
    /// The routing of each call.
    pub calls: Vec<Routing>,
    /// If set, the call counts of the operators are set to this number after two calls.
    pub call_count: Option<u32>,
    /// A wrong number of tokens that all ranks pass to the calls; `None` to pass the right number.
    pub num_tokens: Option<i32>,
    /// The edits of both kernels, as [`apply_edits`](crate::jobs::apply_edits) takes them.
    pub edits: Vec<(String, String)>,
}

impl Layer {
    /// Creates a layer on one node, without calls, whose kernels have tiles of 64 x 128 and are not edited.
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
            dtype: Dtype::Bf16,
            scales: Scales::None,
            nk: false,
            swiglu: false,
            quantises: false,
            form: Form::OneProduct,
            router: Router::default(),
            tile: Some((64, 128)),
            split_k: None,
            comm_ctas: None,
            max_rows: None,
            puts: None,
            low_latency_tokens: None,
            sms: 5,
            skew: 60,
            pattern: CallPattern::BackToBack,
            calls: Vec::new(),
            call_count: None,
            num_tokens: None,
            edits: Vec::new(),
        }
    }

    /// Adds a call, in which rank `r` has `counts[r]` tokens and its token `t` has the experts `choose(r, t)`.
    #[must_use]
    pub fn call(mut self, counts: &[usize], choose: impl Fn(usize, usize) -> Vec<i32>) -> Self {
        let of_rank =
            |(rank, count): (usize, &usize)| (0..*count).map(|t| choose(rank, t)).collect();
        self.calls
            .push(counts.iter().enumerate().map(of_rank).collect());
        self
    }

    /// Sets elements of e4m3 with these scales. A stage has 128 elements of K, and the last stage of a token has fewer.
    #[must_use]
    pub fn scaled(mut self, scales: Scales) -> Self {
        (self.dtype, self.scales, self.nk, self.hidden) = (Dtype::E4m3, scales, true, 208);
        self
    }

    /// Makes one operator of the whole layer.
    #[must_use]
    pub fn whole(mut self) -> Self {
        (self.swiglu, self.form, self.tile) = (true, Form::Whole, Some((64, 256)));
        self
    }

    /// Makes the same layer of `dispatch_gemm` and `gemm_combine`. Rows between the operators have the scales of tokens.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.form = Form::TwoProducts;
        self.quantises = self.scales != Scales::None;
        self
    }

    /// Returns whether experts have a down projection.
    pub(super) fn has_down(&self) -> bool {
        self.form != Form::OneProduct
    }

    /// Returns whether the layer makes sums, and does not end with rows of e4m3.
    pub(super) fn sums(&self) -> bool {
        self.has_down() || !self.quantises
    }

    /// Returns the number of elements of a sum.
    pub(super) fn sum_cols(&self) -> usize {
        match self.has_down() {
            true => self.hidden as usize,
            false => self.intermediate as usize,
        }
    }

    /// Divides the ranks into `nodes` nodes, whose network has these faults.
    #[must_use]
    pub fn across(mut self, nodes: u32, faults: Faults) -> Self {
        (self.nodes, self.faults) = (nodes, faults);
        // One SM communicates and two compute. The time of a simulated GPU grows with its number of threads.
        self.sms = 3;
        self
    }

    /// Returns the number of experts of a rank.
    pub(super) fn local_experts(&self) -> usize {
        self.experts as usize / self.world as usize
    }

    fn configs(&self) -> (KernelConfig, KernelConfig) {
        let dispatch = DispatchConfig {
            experts: Dim::Static(self.experts),
            top_k: Dim::Static(self.top_k),
            max_tokens: Dim::Dynamic,
            hidden: Dim::Static(self.hidden),
            intermediate: Dim::Static(self.intermediate),
            dtype: self.dtype,
            scales: self.scales,
            b_layout: if self.nk { BLayout::Nk } else { BLayout::Kn },
            swiglu: self.swiglu,
            result_scales: match self.quantises {
                true => Scales::Block,
                false => Scales::None,
            },
            router: self.router,
            max_rows: self.max_rows,
            tile_m: self.tile.map(|tile| tile.0),
            tile_n: self.tile.map(|tile| tile.1),
            split_k: self.split_k,
            comm_ctas: self.comm_ctas,
            put_tokens: self.puts.map(|puts| puts.0),
            puts_in_flight: self.puts.map(|puts| puts.1),
            ..DispatchConfig::new(match self.form {
                Form::Whole => DispatchOp::MoeLayer,
                Form::OneProduct | Form::TwoProducts => DispatchOp::DispatchGemm,
            })
        };
        let gemm_combine = DispatchConfig {
            op: DispatchOp::GemmCombine,
            swiglu: false,
            result_scales: Scales::None,
            router: Router::default(),
            split_k: None,
            comm_ctas: None,
            ..dispatch
        };
        let combine = CombineConfig {
            experts: Dim::Static(self.experts),
            top_k: Dim::Static(self.top_k),
            max_tokens: Dim::Dynamic,
            hidden: Dim::Static(self.intermediate),
            dtype: self.dtype.of_results(),
            max_rows: self.max_rows,
            low_latency_tokens: self.low_latency_tokens,
            put_tokens: self.puts.map(|puts| puts.0),
            puts_in_flight: self.puts.map(|puts| puts.1),
            ..CombineConfig::new(CombineOp::Combine)
        };
        let on_nodes = |config| KernelConfig {
            nodes: self.nodes,
            ..config
        };
        let second = match self.has_down() {
            true => KernelConfig::new(self.world, gemm_combine),
            false => KernelConfig::new(self.world, combine),
        };
        (
            on_nodes(KernelConfig::new(self.world, dispatch)),
            on_nodes(second),
        )
    }

    pub(super) fn machine(&self) -> Machine {
        Machine {
            world: self.world,
            sms: self.sms,
            skew: self.skew,
        }
    }

    /// Runs the layer on simulated GPUs and returns the outcome of each rank: the bits of its sums, or its error. The
    /// error of a rank does not abort the other ranks.
    ///
    /// # Panics
    /// The simulated GPUs cannot be created.
    pub fn run_ranks(&self, seed: u64) -> Vec<Result<ResultBits, String>> {
        self.run_ranks_on(Backend::Simulated { seed })
    }

    /// Runs the layer on this backend, as [`run_ranks`](Self::run_ranks) does on simulated GPUs.
    ///
    /// # Panics
    /// The communicators cannot be created.
    pub fn run_ranks_on(&self, backend: Backend) -> Vec<Result<ResultBits, String>> {
        let transport = emulated(&self.faults, backend);
        let outcomes = self.machine().run_ranks(backend, |ranks, _| {
            ranks.set_transport(transport.clone());
            self.rank(ranks)
        });
        outcomes.expect("communicators")
    }

    fn shapes(&self) -> (DispatchShape, Shape) {
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
        match self.has_down() {
            true => (dispatch, dispatch.into()),
            false => (dispatch, combine.into()),
        }
    }

    /// Returns the specs of `dispatch_gemm` and of the operator behind it.
    ///
    /// # Errors
    /// The layer is not possible.
    pub fn specs(&self) -> Result<[SizedSpec; 2], Diagnostics> {
        let ((dispatch, second), shapes) = (self.configs(), self.shapes());
        Ok([
            SizedSpec::for_sizes(dispatch, shapes.0)?,
            SizedSpec::for_sizes(second, shapes.1)?,
        ])
    }

    /// Prepares `dispatch_gemm` and the operator behind it. The operator of a whole layer stands for both.
    pub(super) fn prepare(&self, ranks: &Communicator) -> Result<(Operator, Operator), Error> {
        let ((dispatch, second), shapes) = (self.configs(), self.shapes());
        let first = || {
            // SAFETY: as below.
            unsafe {
                prepare_edited(ranks, &dispatch, shapes.0, |text| {
                    apply_edits(ranks, &self.edits, text);
                })
            }
        };
        if self.form == Form::Whole {
            return Ok((first()?, first()?)); // both share one kernel
        }
        // SAFETY: mutated kernels run on simulated GPUs only, which check every access.
        unsafe {
            Ok((
                first()?,
                prepare_edited(ranks, &second, shapes.1, |text| {
                    apply_edits(ranks, &self.edits, text);
                })?,
            ))
        }
    }
}

impl SimulatedJob for Layer {
    fn run(&self, seed: u64) -> Result<Results, String> {
        let backend = Backend::Simulated { seed };
        let transport = emulated(&self.faults, backend);
        self.machine().run(backend, |ranks| {
            ranks.set_transport(transport.clone());
            Ok(vec![self.rank(ranks)?])
        })
    }

    /// Sets the edits of both kernels.
    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.edits = edits;
    }
}
