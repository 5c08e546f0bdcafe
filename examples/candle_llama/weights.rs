//! The sizes of a model, and its weights, which are seeded random numbers or read from files.

use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Result, Tensor, bail};
use std::path::{Path, PathBuf};

/// The sizes of a Llama model, over all ranks, with the names of `config.json`.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
pub struct Sizes {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub rms_norm_eps: f64,
    #[serde(default = "default_theta")]
    pub rope_theta: f64,
    /// The columns of a head; 0 means the hidden size divided by the number of heads.
    #[serde(default)]
    pub head_dim: usize,
}

fn default_theta() -> f64 {
    10_000.0
}

impl Sizes {
    /// A model that simulated GPUs run in seconds. Each of 4 ranks has a head of K and V.
    pub const TOY: Self = Self {
        vocab_size: 64,
        hidden_size: 64,
        intermediate_size: 128,
        num_hidden_layers: 2,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        head_dim: 16,
    };

    /// Llama 3 8B.
    pub const LLAMA_8B: Self = Self {
        vocab_size: 128_256,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        head_dim: 128,
    };

    /// Reads `config.json`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let config: serde_json::Value =
            serde_json::from_str(&text).map_err(candle_core::Error::wrap)?;
        if config
            .get("rope_scaling")
            .is_some_and(|scaling| !scaling.is_null())
        {
            bail!(
                "{}: this example does not know rope_scaling; use a model of Llama 3.0 or older",
                path.display()
            );
        }
        serde_json::from_value(config).map_err(candle_core::Error::wrap)
    }

    pub fn head_dim(&self) -> usize {
        match self.head_dim {
            0 => self.hidden_size / self.num_attention_heads,
            given => given,
        }
    }
}

/// The source of weights.
#[derive(Clone, Debug)]
pub enum Source {
    /// Random numbers of this seed, equal on every rank and in every world.
    Seed {
        seed: u64,
        /// Whether the weight of the logits is the embedding, moved by one token. Then the logit of the next number exceeds
        /// all other logits by far.
        successors: bool,
    },
    /// Files in the format of Hugging Face.
    Files(Vec<PathBuf>),
}

/// The weights of a model over all ranks.
pub enum Weights {
    Seed { seed: u64, successors: bool },
    Files(MmapedSafetensors),
}

/// The part of a weight that a rank takes.
#[derive(Clone, Copy)]
pub enum Part {
    Whole,
    /// Part number `.0` of `.1` equal parts of the rows.
    Rows(usize, usize),
    /// Part number `.0` of `.1` equal parts of the columns.
    Columns(usize, usize),
}

impl Weights {
    pub fn open(source: &Source) -> Result<Self> {
        match source {
            Source::Seed { seed, successors } => Ok(Self::Seed {
                seed: *seed,
                successors: *successors,
            }),
            // SAFETY: nobody changes the files while this program runs.
            Source::Files(paths) => unsafe { MmapedSafetensors::multi(paths).map(Self::Files) },
        }
    }

    /// Returns a part of the weight with this name and whole shape, as bf16 on `device`.
    pub fn get(&self, name: &str, shape: &[usize], part: Part, device: &Device) -> Result<Tensor> {
        let whole = match self {
            Self::Seed { seed, successors } => seeded(*seed, *successors, name, shape, device)?,
            Self::Files(files) if name == HEAD && files.get(HEAD).is_err() => {
                files.load(EMBEDDING, &Device::Cpu)?
            }
            Self::Files(files) => files.load(name, &Device::Cpu)?,
        };
        if whole.dims() != shape {
            bail!(
                "{name} has the shape {:?}, but config.json says {shape:?}",
                whole.dims()
            );
        }
        let part = match part {
            Part::Whole => whole,
            Part::Rows(number, count) => divide(&whole, 0, number, count, name)?,
            Part::Columns(number, count) => divide(&whole, 1, number, count, name)?,
        };
        part.to_dtype(DType::BF16)?
            .to_device(device)?
            .force_contiguous()
    }
}

pub const EMBEDDING: &str = "model.embed_tokens.weight";
pub const HEAD: &str = "lm_head.weight";

fn divide(whole: &Tensor, dim: usize, number: usize, count: usize, name: &str) -> Result<Tensor> {
    let size = whole.dim(dim)?;
    if !size.is_multiple_of(count) {
        bail!(
            "{name} has {size} elements in dimension {dim}, which {count} ranks cannot share evenly"
        );
    }
    whole.narrow(dim, number * (size / count), size / count)
}

/// Returns a weight of random numbers with the variance 1 / columns, an embedding with the variance 1, or a norm of ones.
fn seeded(
    seed: u64,
    successors: bool,
    name: &str,
    shape: &[usize],
    device: &Device,
) -> Result<Tensor> {
    let [_, cols] = *shape else {
        return Tensor::ones(shape, DType::BF16, device);
    };
    match name {
        EMBEDDING => uniform(seed, name, shape, 3f64.sqrt(), device),
        HEAD if successors => {
            let embedding = uniform(seed, EMBEDDING, shape, 3f64.sqrt(), device)?;
            let last = embedding.narrow(0, shape[0] - 1, 1)?;
            Tensor::cat(&[&last, &embedding.narrow(0, 0, shape[0] - 1)?], 0)
        }
        _ => uniform(seed, name, shape, (3.0 / cols as f64).sqrt(), device),
    }
}

/// Returns random numbers between `-most` and `most` that depend on the seed and the name.
fn uniform(seed: u64, name: &str, shape: &[usize], most: f64, device: &Device) -> Result<Tensor> {
    // FNV-1a.
    let seed = name
        .bytes()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    let unit = if device.is_cpu() {
        let elems: usize = shape.iter().product();
        let numbers =
            (0..elems as u64).map(|index| super::common::random(seed.wrapping_add(index)).to_f32());
        Tensor::from_iter(numbers, device)?.reshape(shape)?
    } else {
        device.set_seed(seed)?;
        Tensor::rand(-1f32, 1f32, shape, device)?
    };
    (unit * most)?.to_dtype(DType::BF16)
}
