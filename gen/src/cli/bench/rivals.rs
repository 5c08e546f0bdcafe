//! [`Rival`]: a sequence of products and collectives that computes the sums of a kernel, or moves its data.

#[cfg(test)]
mod tests;

use mkernel::spec::plan::{CollectivePlan, GemmPlan, OpPlan};
use mkernel::spec::{BLayout, CollectiveOp, Dtype, GemmOp, GemmShape, Scales};
use mkernel::{KernelPlan, Operand};

/// A sequence of products of cuBLAS or cuBLASLt and collectives of NCCL.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    pub name: String,
    pub steps: Vec<Step>,
    /// The tensors that are no operands of the kernel.
    pub own: Vec<Own>,
}

/// A tensor of a rival that is no operand of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Own {
    pub bytes: u64,
    /// The operand whose elements the tensor has, repeatedly, before the first call. Otherwise the tensor has zeros, and the first
    /// call writes it.
    pub filled_with: Option<Operand>,
}

impl Own {
    /// A tensor that calls write.
    fn written(bytes: u64) -> Self {
        Self {
            bytes,
            filled_with: None,
        }
    }
}

/// A tensor of a rival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Operand(Operand),
    /// A tensor of the rival, by its index.
    Own(usize),
}

/// A launch of a library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Product(Product),
    Collective(Collective),
}

/// A library that multiplies, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Multiplier {
    /// cuBLAS, with elements of two bytes.
    Cublas,
    /// cuBLASLt, with elements of e4m3, and a scale for each row of A and each column of B. With `fast`, tensor cores accumulate over
    /// all of K.
    Scaled { fast: bool },
}

impl Multiplier {
    fn name(self) -> &'static str {
        match self {
            Self::Cublas => "cuBLAS",
            Self::Scaled { fast: false } => "cuBLASLt",
            Self::Scaled { fast: true } => "cuBLASLt with fast accumulation",
        }
    }

    /// The multipliers for a kernel, or a note if there are none.
    fn of(of: &GemmPlan) -> Result<Vec<Self>, String> {
        let config = &of.config;
        let is_scaled = config.dtype == Dtype::E4m3
            && config.scales == Scales::Row
            && config.b_layout == BLayout::Nk
            && config.op != GemmOp::AgGemm
            && of.types().c == Dtype::Bf16;
        match (config.dtype.bytes(), is_scaled) {
            (2, _) => Ok(vec![Self::Cublas]),
            (_, true) => Ok([false, true].map(|fast| Self::Scaled { fast }).into()),
            (_, false) => Err(format!(
                "cuBLAS was not compared: of {}, only products of gemm, gemm_rs and gemm_ar with scales = row, b_layout = nk and \
                 results of bf16 are",
                config.dtype
            )),
        }
    }
}

/// A product. B and the scales are operands of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    pub by: Multiplier,
    pub a: Place,
    pub c: Place,
    pub shape: GemmShape,
    pub b_is_transposed: bool,
    pub factors: Dtype,
    pub result: Dtype,
}

/// A collective of NCCL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collective {
    pub op: CollectiveOp,
    pub from: Place,
    pub to: Place,
    /// The elements of the tensor for `all_reduce` and `broadcast`, else of the part of one rank.
    pub elems: u64,
    pub dtype: Dtype,
    pub root: u32,
}

impl Rival {
    /// Whether the rival calls cuBLAS.
    pub fn multiplies(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Product(_)))
    }

    /// Whether the rival calls NCCL.
    pub fn communicates(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step, Step::Collective(_)))
    }
}

/// The rivals of a kernel, and notes: differences between the kernel and its rivals, and rivals that are not measured.
pub fn of(plan: &KernelPlan) -> (Vec<Rival>, Vec<String>) {
    let mut notes = vec![
        "torch and packages for it (symmetric memory, FlashAttention, DeepEP) were not compared; benches/README.md has \
         measurements of mkernel's authors"
            .to_owned(),
    ];
    let rivals = match &plan.body().op_plan {
        OpPlan::Gemm(of) => of_gemm(plan, of, &mut notes),
        OpPlan::Collective(of) => of_collective(plan, of, &mut notes),
        _ => {
            let op = plan.spec.op();
            notes.push(format!("cuBLAS and NCCL have no counterpart of {op}"));
            Vec::new()
        }
    };
    (rivals, notes)
}

/// An error with a note if NCCL would not take the network.
fn one_node(plan: &KernelPlan) -> Result<(), String> {
    match plan.spec.topology().nodes {
        1 => Ok(()),
        nodes => Err(format!(
            "NCCL was not compared: on one host it would not take the network between {nodes} nodes"
        )),
    }
}

/// A note if ranks have different numbers of rows.
fn unequal_shards(plan: &KernelPlan, rows: u64) -> Option<String> {
    let world = u64::from(plan.spec.world());
    (!rows.is_multiple_of(world)).then(|| {
        format!(
            "NCCL was not compared: its parts are equal, and {rows} rows are not a multiple of {world} ranks"
        )
    })
}

fn of_gemm(plan: &KernelPlan, of: &GemmPlan, notes: &mut Vec<String>) -> Vec<Rival> {
    let (config, shape) = (&of.config, of.shape);
    let multipliers = match Multiplier::of(of) {
        Ok(multipliers) => multipliers,
        Err(reason) => {
            notes.push(reason);
            return Vec::new();
        }
    };
    if config.epilogue.formula("C") != "C" || config.epilogue.normalises() {
        notes
            .push("cuBLAS and NCCL compute the sums without the epilogue of the kernel".to_owned());
    }
    let weight_cols = u64::from(config.epilogue.weight_cols());
    let shape = GemmShape {
        n: shape.n * weight_cols,
        ..shape
    };
    let types = of.types();
    let product = |by| Product {
        by,
        a: Place::Operand(Operand::A),
        c: Place::Own(0),
        shape,
        b_is_transposed: config.b_layout == BLayout::Nk,
        factors: config.dtype,
        result: match config.op.reduces() {
            true => types.partial,
            false => types.c,
        },
    };
    let unequal = unequal_shards(plan, shape.m).filter(|_| config.op != GemmOp::GemmAr);
    let without_nccl = match config.op.communicates() {
        true => one_node(plan).err().or(unequal.clone()),
        false => None,
    };
    let rivals = multipliers.into_iter().map(product).flat_map(|product| {
        let unfused = config.op.communicates() && without_nccl.is_none();
        let unfused = unfused.then(|| unfused_of(plan, config.op, product));
        let alone = match (config.op, &unequal) {
            // A rank does not know the rows of all ranks.
            (GemmOp::AgGemm, Some(_)) => None,
            (GemmOp::AgGemm, None) => Some(alone(" alone", gathered(product))),
            (GemmOp::Gemm, _) => Some(alone("", product)),
            (GemmOp::GemmRs | GemmOp::GemmAr, _) => Some(alone(" alone", product)),
        };
        unfused.into_iter().chain(alone)
    });
    let rivals = rivals.collect();
    notes.extend(without_nccl);
    rivals
}

/// The product whose A has the rows of all ranks.
fn gathered(product: Product) -> Product {
    Product {
        a: Place::Own(1),
        ..product
    }
}

/// The product without a collective.
fn alone(suffix: &str, product: Product) -> Rival {
    let GemmShape { m, n, k } = product.shape;
    let gathered = Own {
        bytes: m * k * product.factors.bytes(),
        filled_with: Some(Operand::A),
    };
    let c = Own::written(m * n * product.result.bytes());
    Rival {
        name: format!("{}{suffix}", product.by.name()),
        steps: vec![Step::Product(product)],
        own: match product.a {
            Place::Own(_) => vec![c, gathered],
            Place::Operand(_) => vec![c],
        },
    }
}

/// The product before or behind the collective of NCCL.
fn unfused_of(plan: &KernelPlan, op: GemmOp, product: Product) -> Rival {
    let GemmShape { m, n, k } = product.shape;
    let world = u64::from(plan.spec.world());
    let c = Own::written(m * n * product.result.bytes());
    let sum = |op, to, elems| {
        Step::Collective(Collective {
            op,
            from: Place::Own(0),
            to,
            elems,
            dtype: product.result,
            root: 0,
        })
    };
    let by = product.by.name();
    let product_first = format!("{by}, then NCCL");
    let (name, steps, own) = match op {
        GemmOp::AgGemm => {
            let gather = Collective {
                op: CollectiveOp::AllGather,
                from: Place::Operand(Operand::A),
                to: Place::Own(1),
                elems: m / world * k,
                dtype: product.factors,
                root: 0,
            };
            let steps = vec![Step::Collective(gather), Step::Product(gathered(product))];
            let a = Own::written(m * k * product.factors.bytes());
            (format!("NCCL, then {by}"), steps, vec![c, a])
        }
        GemmOp::GemmRs => {
            let scatter = sum(CollectiveOp::ReduceScatter, Place::Own(1), m / world * n);
            let own = vec![c, Own::written(c.bytes / world)];
            (product_first, vec![Step::Product(product), scatter], own)
        }
        GemmOp::GemmAr | GemmOp::Gemm => {
            let reduce = sum(CollectiveOp::AllReduce, Place::Own(0), m * n);
            (product_first, vec![Step::Product(product), reduce], vec![c])
        }
    };
    Rival { name, steps, own }
}

fn of_collective(plan: &KernelPlan, of: &CollectivePlan, notes: &mut Vec<String>) -> Vec<Rival> {
    let (config, shape) = (&of.config, of.shape);
    let has_shards = !matches!(config.op, CollectiveOp::AllReduce | CollectiveOp::Broadcast);
    let unequal = unequal_shards(plan, shape.m).filter(|_| has_shards);
    if let Some(reason) = one_node(plan).err().or(unequal) {
        notes.push(reason);
        return Vec::new();
    }
    if config.epilogue.normalises() {
        notes.push("NCCL adds up without the norm of the kernel".to_owned());
    }
    let world = plan.spec.world();
    let elems = shape.m * shape.n;
    let part = elems / u64::from(world);
    let collective = Collective {
        op: config.op,
        from: Place::Operand(Operand::X),
        to: Place::Own(0),
        elems: if has_shards { part } else { elems },
        dtype: config.dtype,
        root: config.root(world).unwrap_or(0),
    };
    vec![Rival {
        name: "NCCL".to_owned(),
        steps: vec![Step::Collective(collective)],
        own: vec![Own::written(elems * config.dtype.bytes())],
    }]
}
