//! A stack of Llama blocks. Each rank has a part of the heads and of the hidden features.

use super::parallel::{Layer, Parallel, batched};
use super::weights::{EMBEDDING, HEAD, Part, Sizes, Weights};
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;

/// The model on one rank.
pub struct Model<'a> {
    parallel: &'a dyn Parallel,
    sizes: Sizes,
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    /// This rank's rows of the weight of the logits.
    head: Layer,
    /// Cosines and sines for each position, `[steps, head_dim / 2]`.
    rotations: (Tensor, Tensor),
    /// The causal mask `[steps, steps]`: 0 for a position and all earlier ones, -inf for later ones.
    masks: Tensor,
}

struct Block {
    input_norm: Tensor,
    /// Q, K and V of this rank's heads.
    qkv: Layer,
    output: Layer,
    hidden_norm: Tensor,
    gate_up: Layer,
    down: Layer,
}

/// The state that changes from token to token. All its tensors exist before a step, so that a graph can capture the step.
pub struct State {
    /// The last token of each sequence, `[batch]`.
    tokens: Tensor,
    /// The position of these tokens, `[1]`.
    position: Tensor,
    one: Tensor,
    start: Tensor,
    /// K and V of each block, `[batch, kv_heads, steps, head_dim]`.
    caches: Vec<(Tensor, Tensor)>,
    /// The logits of the last step, `[batch, vocab]`.
    logits: Tensor,
    /// The tokens that follow each position, `[batch, steps]`.
    history: Tensor,
}

impl State {
    pub fn new(model: &Model<'_>, batch: usize, steps: usize, start: u32) -> Result<Self> {
        let (ranks, sizes) = (model.parallel.ranks(), &model.sizes);
        let device = ranks.device();
        let kv_heads = sizes.num_key_value_heads / ranks.world();
        let cache = || {
            Tensor::zeros(
                (batch, kv_heads, steps, sizes.head_dim()),
                DType::BF16,
                device,
            )
        };
        let caches = (0..sizes.num_hidden_layers).map(|_| Ok((cache()?, cache()?)));
        // Sequences begin with different tokens.
        let first = (0..batch as u32).map(|sequence| (start + sequence) % sizes.vocab_size as u32);
        let start = Tensor::from_iter(first, device)?;
        Ok(Self {
            tokens: start.force_contiguous()?,
            position: Tensor::zeros(1, DType::U32, device)?,
            one: Tensor::ones(1, DType::U32, device)?,
            start,
            caches: caches.collect::<Result<Vec<_>>>()?,
            logits: Tensor::zeros((batch, sizes.vocab_size), DType::BF16, device)?,
            history: Tensor::zeros((batch, steps), DType::U32, device)?,
        })
    }

    /// Goes back to the first token.
    pub fn reset(&self) -> Result<()> {
        self.tokens.slice_set(&self.start, 0, 0)?;
        self.position.slice_set(&self.position.zeros_like()?, 0, 0)
    }

    /// Returns the last token of each sequence.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        self.tokens.to_vec1()
    }

    /// Returns the tokens of each sequence.
    pub fn history(&self) -> Result<Vec<Vec<u32>>> {
        self.history.to_vec2()
    }

    /// Returns the logits of the last step for each sequence.
    pub fn logits(&self) -> Result<Vec<Vec<f32>>> {
        self.logits.to_dtype(DType::F32)?.to_vec2()
    }
}

impl<'a> Model<'a> {
    /// Loads this rank's parts of the weights, for sequences of `steps` tokens.
    pub fn new(
        parallel: &'a dyn Parallel,
        sizes: Sizes,
        weights: &Weights,
        steps: usize,
    ) -> Result<Self> {
        let ranks = parallel.ranks();
        let (device, own) = (ranks.device(), (ranks.rank(), ranks.world()));
        let embeddings = [sizes.vocab_size, sizes.hidden_size];
        let blocks =
            (0..sizes.num_hidden_layers).map(|layer| Block::new(parallel, &sizes, weights, layer));
        Ok(Self {
            parallel,
            sizes,
            embedding: weights.get(EMBEDDING, &embeddings, Part::Whole, device)?,
            blocks: blocks.collect::<Result<Vec<_>>>()?,
            norm: weights.get(
                "model.norm.weight",
                &[sizes.hidden_size],
                Part::Whole,
                device,
            )?,
            head: parallel.column(weights.get(
                HEAD,
                &embeddings,
                Part::Rows(own.0, own.1),
                device,
            )?)?,
            rotations: rotations(&sizes, steps, device)?,
            masks: masks(steps, device)?,
        })
    }

    /// Computes the next token of each sequence, and writes it to the state.
    pub fn step(&self, state: &State) -> Result<()> {
        let position = &state.position;
        let (cos, sin) = &self.rotations;
        let at = At {
            cos: cos.index_select(position, 0)?,
            sin: sin.index_select(position, 0)?,
            mask: self.masks.index_select(position, 0)?,
            position,
        };
        let eps = self.sizes.rms_norm_eps as f32;
        let mut x = self.embedding.index_select(&state.tokens, 0)?;
        for (block, cache) in self.blocks.iter().zip(&state.caches) {
            let attended = block.attend(
                &rms_norm(&x, &block.input_norm, eps)?,
                &at,
                cache,
                self.own_heads(),
            )?;
            x = (x + block.output.forward(&attended)?)?;
            let hidden = block
                .gate_up
                .forward(&rms_norm(&x, &block.hidden_norm, eps)?)?;
            let hidden = candle_nn::ops::swiglu(&hidden)?;
            x = (x + block.down.forward(&hidden)?)?;
        }
        let logits = self.logits(&rms_norm(&x, &self.norm, eps)?)?;
        let next = logits.argmax(D::Minus1)?;
        state.logits.slice_set(&logits, 0, 0)?;
        let (batch, _) = logits.dims2()?;
        let column = position.broadcast_as((batch, 1))?.contiguous()?;
        state
            .history
            .scatter_set(&column, &next.reshape((batch, 1))?, 1)?;
        state.tokens.slice_set(&next, 0, 0)?;
        state.position.slice_set(&(position + &state.one)?, 0, 0)
    }

    /// Returns this rank's numbers of heads of Q and of K and V, and the columns of a head.
    fn own_heads(&self) -> (usize, usize, usize) {
        let world = self.parallel.ranks().world();
        let heads = self.sizes.num_attention_heads / world;
        (
            heads,
            self.sizes.num_key_value_heads / world,
            self.sizes.head_dim(),
        )
    }

    /// Returns the logits of the whole vocabulary, `[batch, vocab]`. Each rank computes the logits of its part.
    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let own = self.head.forward(x)?;
        let (batch, tokens) = own.dims2()?;
        let world = self.parallel.ranks().world();
        let all = self.parallel.gather(&own.reshape((1, batch * tokens))?)?;
        let all = all.reshape((world, batch, tokens))?.transpose(0, 1)?;
        all.contiguous()?.reshape((batch, world * tokens))
    }
}

/// Values of a step's position that all blocks share.
struct At<'a> {
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
    position: &'a Tensor,
}

impl Block {
    fn new(
        parallel: &dyn Parallel,
        sizes: &Sizes,
        weights: &Weights,
        layer: usize,
    ) -> Result<Self> {
        let ranks = parallel.ranks();
        let (device, own) = (ranks.device(), (ranks.rank(), ranks.world()));
        let (hidden, wide) = (sizes.hidden_size, sizes.intermediate_size);
        let heads = sizes.num_attention_heads * sizes.head_dim();
        let kv_heads = sizes.num_key_value_heads * sizes.head_dim();
        let get = |name: &str, shape: &[usize], part| {
            let name = format!("model.layers.{layer}.{name}.weight");
            weights.get(&name, shape, part, device)
        };
        let rows = |name: &str, rows| get(name, &[rows, hidden], Part::Rows(own.0, own.1));
        let columns = |name: &str, cols| get(name, &[hidden, cols], Part::Columns(own.0, own.1));
        let norm = |name: &str| get(name, &[hidden], Part::Whole);
        let qkv = [
            rows("self_attn.q_proj", heads)?,
            rows("self_attn.k_proj", kv_heads)?,
            rows("self_attn.v_proj", kv_heads)?,
        ];
        let gate_up = [rows("mlp.gate_proj", wide)?, rows("mlp.up_proj", wide)?];
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            qkv: parallel.column(Tensor::cat(&qkv, 0)?)?,
            output: parallel.row(columns("self_attn.o_proj", heads)?)?,
            hidden_norm: norm("post_attention_layernorm")?,
            gate_up: parallel.column(Tensor::cat(&gate_up, 0)?)?,
            down: parallel.row(columns("mlp.down_proj", wide)?)?,
        })
    }

    /// Computes the attention of this rank's heads for one token of each sequence: `[batch, heads * head_dim]`.
    fn attend(
        &self,
        x: &Tensor,
        at: &At<'_>,
        (keys, values): &(Tensor, Tensor),
        (heads, kv_heads, dim): (usize, usize, usize),
    ) -> Result<Tensor> {
        let qkv = self.qkv.forward(x)?;
        let (batch, _) = qkv.dims2()?;
        let part = |first: usize, count: usize| {
            let part = qkv.narrow(1, first * dim, count * dim)?.contiguous()?;
            part.reshape((batch, count, 1, dim))
        };
        let q = rope(&part(0, heads)?, &at.cos, &at.sin)?;
        let k = rope(&part(heads, kv_heads)?, &at.cos, &at.sin)?;
        let v = part(heads + kv_heads, kv_heads)?;
        let rows = at.position.reshape((1, 1, 1, 1))?;
        let rows = rows.broadcast_as(k.shape())?.contiguous()?;
        keys.scatter_set(&rows, &k, 2)?;
        values.scatter_set(&rows, &v, 2)?;

        // The query heads that share a head of K and V are rows of one product.
        let q = q.reshape((batch, kv_heads, heads / kv_heads, dim))?;
        let scores = batched(&q, &keys.t()?)?.to_dtype(DType::F32)?;
        let scores = (scores / (dim as f64).sqrt())?.broadcast_add(&at.mask)?;
        let weights = softmax_last_dim(&scores)?.to_dtype(DType::BF16)?;
        batched(&weights, values)?.reshape((batch, heads * dim))
    }
}

fn rotations(sizes: &Sizes, steps: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let half = sizes.head_dim() / 2;
    let angles = (0..steps).flat_map(|position| {
        (0..half)
            .map(move |i| (position as f64 / sizes.rope_theta.powf(i as f64 / half as f64)) as f32)
    });
    let angles = Tensor::from_iter(angles, &Device::Cpu)?.reshape((steps, half))?;
    let upload = |x: Tensor| x.to_dtype(DType::BF16)?.to_device(device);
    Ok((upload(angles.cos()?)?, upload(angles.sin()?)?))
}

fn masks(steps: usize, device: &Device) -> Result<Tensor> {
    let masks = (0..steps * steps).map(|i| match i % steps > i / steps {
        true => f32::NEG_INFINITY,
        false => 0.0,
    });
    Tensor::from_iter(masks, device)?.reshape((steps, steps))
}
