//! The rows of experts, and the sums of their outputs per token.

use super::router::Chosen;
use super::sums::{size, with_scales};
use super::{Element, Job, adding, rounding};
use mkernel::Operand;
use mkernel::spec::{BLayout, CombineConfig, DispatchConfig, Dtype, Scales};

/// The expert, and the row index, of a choice that a token does not have.
const NO_CHOICE: i32 = -1;

/// The experts and weights that the kernel chooses, C, the expert offsets and the row indices.
pub fn dispatch(job: &Job, config: &DispatchConfig, rank: usize) -> Vec<Vec<Element>> {
    let cols = size(config.intermediate);
    let (top_k, max_tokens) = (size(config.top_k), size(config.max_tokens));
    let here = size(config.experts) / job.world;
    let most = max_tokens * top_k.min(here) * job.world;
    let max_rows = config.max_rows.map_or(most, |rows| most.min(rows as usize));
    let product = product_of(job, config, rank);
    let is_narrow = config.dtype == Dtype::E4m3;
    let dtype = match config.dtype {
        _ if config.quantises_results() => Dtype::Fp32,
        _ if is_narrow => Dtype::Bf16,
        dtype => dtype,
    };
    let mut rows = Vec::new();
    let mut offsets = vec![Some((0.0, 0.0))];
    let chosen = Chosen::of(job, config);
    let mut row_indices = without_rows(job, &chosen, top_k, rank);
    // Rows of a rank are in the order of expert, source and token.
    for owner in 0..job.world {
        let mut row = 0;
        for expert in 0..here {
            for (source, token, choice) in choices(job, &chosen, top_k, owner * here + expert) {
                if source == rank {
                    let number = owner * max_rows + row;
                    row_indices[token * top_k + choice] = Some((number as f64, 0.0));
                }
                row += 1;
                if owner != rank {
                    continue;
                }
                let token = (source, token);
                rows.extend((0..cols).map(|col| {
                    let (value, error) = hidden(&product, config, token, expert, col);
                    Some((value, error + rounding(value, dtype)))
                }));
            }
            if owner == rank {
                offsets.push(Some((row as f64, 0.0)));
            }
        }
    }
    let mut c = with_scales(vec![rows], cols, config.result_scales);
    for (of_rows, cols) in c.iter_mut().zip([cols, cols.div_ceil(128)]) {
        of_rows.resize(max_rows * cols, None);
    }
    let scales = c.split_off(1);
    let mut results = chosen.written(job, config, rank);
    results.extend(c);
    results.extend([offsets, row_indices]);
    results.extend(scales);
    results
}

/// An element of a row of an expert: a product, or `silu(gate) · up`.
fn hidden(
    product: &impl Fn((usize, usize), usize, usize) -> (f64, f64),
    config: &DispatchConfig,
    token: (usize, usize),
    expert: usize,
    col: usize,
) -> (f64, f64) {
    let (x, error) = product(token, expert, col);
    if !config.swiglu {
        return (x, error);
    }
    let (up, error_of_up) = product(token, expert, size(config.intermediate) + col);
    let gate = x / (1.0 + (-x).exp());
    let error = 1.2 * error * up.abs() + error_of_up * gate.abs() + 1e-6;
    (gate * up, error)
}

/// The experts and weights that the kernel chooses, and C of `moe_layer`.
pub fn moe_layer(job: &Job, config: &DispatchConfig, rank: usize) -> Vec<Vec<Element>> {
    let (width, cols, top_k) = (
        size(config.hidden),
        size(config.intermediate),
        size(config.top_k),
    );
    let here = size(config.experts) / job.world;
    let count = job.inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let chosen = Chosen::of(job, config);
    let (ids, weights) = (&chosen.ids[rank], &chosen.weights[rank]);
    let of_weight = match config.router.chooses() {
        true => 1.0 / f64::from(1 << 16),
        false => 0.0,
    };
    let mut c = vec![(0.0, 0.0); count * width];
    let is_narrow = config.dtype == Dtype::E4m3;
    let dtype = if is_narrow { Dtype::Bf16 } else { config.dtype };
    for owner in 0..job.world {
        let product = product_of(job, config, owner);
        let scale = down_scale(job, config, owner);
        let down = job.floats(Operand::Down, owner);
        for (entry, id) in ids.iter().enumerate().take(count * top_k) {
            if *id == NO_CHOICE || *id as usize / here != owner {
                continue;
            }
            let (token, expert) = (entry / top_k, *id as usize % here);
            let row: Vec<(f64, f64)> = (0..cols)
                .map(|col| hidden(&product, config, (rank, token), expert, col))
                .collect();
            let row = as_elements(row, config.dtype);
            for out in 0..width {
                let (mut value, mut magnitude, mut error) = (0.0, 0.0, 0.0);
                for (col, (h, of_h)) in row.iter().enumerate() {
                    let at = match config.b_layout {
                        BLayout::Kn => col * width + out,
                        BLayout::Nk => out * cols + col,
                    };
                    let weight = down[expert * width * cols + at] * scale(expert, out, col);
                    value += h * weight;
                    magnitude += (h * weight).abs();
                    error += of_h * weight.abs();
                }
                let narrow = if is_narrow { magnitude / 1024.0 } else { 0.0 };
                let error = error + adding(magnitude) + narrow + rounding(value, dtype);
                let (sum, of_sum) = &mut c[token * width + out];
                *sum += weights[entry] * value;
                let error = error + adding(value.abs()) + of_weight * value.abs();
                *of_sum += weights[entry].abs() * error;
            }
        }
    }
    let rounded = |(value, error): (f64, f64)| Some((value, error + rounding(value, dtype)));
    let mut c: Vec<Element> = c.into_iter().map(rounded).collect();
    c.resize(size(config.max_tokens) * width, None);
    let mut results = chosen.written(job, config, rank);
    results.push(c);
    results
}

/// A hidden row, with the errors of its elements after rounding. Blocks of e4m3 have scales with which their greatest element is 448.
fn as_elements(row: Vec<(f64, f64)>, dtype: Dtype) -> Vec<(f64, f64)> {
    let blocks = row.chunks(128).map(|block| {
        let greatest = block.iter().map(|(h, of_h)| h.abs() + of_h);
        let scale = match dtype {
            Dtype::E4m3 => greatest.fold(0.0, f64::max) / 448.0,
            _ => 1.0,
        };
        let error = move |h: f64| scale * rounding(h / scale.max(f64::MIN_POSITIVE), dtype);
        block.iter().map(move |(h, of_h)| (*h, of_h + error(*h)))
    });
    blocks.flatten().collect()
}

/// The function of an expert of `rank`, a column of the result and a column of the hidden rows that gives the scale of the weight.
fn down_scale(
    job: &Job,
    config: &DispatchConfig,
    rank: usize,
) -> impl Fn(usize, usize, usize) -> f64 {
    let [rows, cols] = [config.hidden, config.intermediate].map(|dim| size(dim).div_ceil(128));
    let scales = match config.scales {
        Scales::None => Vec::new(),
        _ => job.floats(Operand::DownScales, rank),
    };
    move |expert, out, col| match scales.get((expert * rows + out / 128) * cols + col / 128) {
        Some(scale) => *scale,
        None => 1.0,
    }
}

/// The function of a token (source and number), an expert of `rank` and a column that gives their product and its error.
fn product_of(
    job: &Job,
    config: &DispatchConfig,
    rank: usize,
) -> impl Fn((usize, usize), usize, usize) -> (f64, f64) {
    let (hidden, cols, layout) = (
        size(config.hidden),
        size(config.intermediate),
        config.b_layout,
    );
    let (tokens, weights) = (
        job.floats_of_ranks(Operand::Tokens),
        job.floats(Operand::B, rank),
    );
    let weight_cols = if config.swiglu { 2 * cols } else { cols };
    let scale = scale_of(job, config, rank);
    let is_narrow = config.dtype == Dtype::E4m3;
    move |(source, token), expert, col| {
        let weight = &weights[expert * hidden * weight_cols..][..hidden * weight_cols];
        let elements = &tokens[source][token * hidden..(token + 1) * hidden];
        let terms = elements.iter().enumerate().map(|(i, x)| {
            let weight = match layout {
                BLayout::Kn => weight[i * weight_cols + col],
                BLayout::Nk => weight[col * hidden + i],
            };
            x * weight * scale((source, token), (expert, col), i)
        });
        let terms: Vec<f64> = terms.collect();
        let magnitudes: f64 = terms.iter().copied().map(f64::abs).sum();
        // Sums of e4m3 keep 13 bits behind the leading bit of the largest product.
        let narrow = if is_narrow { magnitudes / 1024.0 } else { 0.0 };
        (terms.iter().sum::<f64>(), adding(magnitudes) + narrow)
    }
}

/// The function of a token (source and number), a column of an expert of `rank`, and k that gives the product of both scales.
fn scale_of(
    job: &Job,
    config: &DispatchConfig,
    rank: usize,
) -> impl Fn((usize, usize), (usize, usize), usize) -> f64 {
    let (scales, blocks) = (config.scales, size(config.hidden).div_ceil(128));
    let (cols, parts) = (size(config.intermediate), if config.swiglu { 2 } else { 1 });
    let a = job.floats_of_ranks(Operand::AScales);
    let b = job.floats(Operand::BScales, rank);
    move |(source, token), (expert, col), depth| match scales {
        Scales::None => 1.0,
        Scales::Tensor => a[source][0] * b[expert],
        Scales::Row => a[source][token] * b[expert * parts * cols + col],
        Scales::Block => {
            let of_part = cols.div_ceil(128);
            let block = (expert * parts + col / cols) * of_part + col % cols / 128;
            a[source][token * blocks + depth / 128] * b[block * blocks + depth / 128]
        }
    }
}

/// The row indices of a rank's choices if none of them had a row.
fn without_rows(job: &Job, chosen: &Chosen, top_k: usize, rank: usize) -> Vec<Element> {
    let ids = &chosen.ids[rank];
    let count = job.inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let no_row = |(entry, id): (usize, &i32)| {
        (entry < count * top_k && *id == NO_CHOICE).then_some((f64::from(NO_CHOICE), 0.0))
    };
    ids.iter().enumerate().map(no_row).collect()
}

/// The tokens that have an expert: source rank, token, and which of the token's choices it is.
fn choices(job: &Job, chosen: &Chosen, top_k: usize, expert: usize) -> Vec<(usize, usize, usize)> {
    let ids = &chosen.ids;
    let mut found = Vec::new();
    let counts = job.inputs.numbers(Operand::NumTokens);
    for (source, (ids, count)) in ids.iter().zip(counts).enumerate() {
        let count = count[0] as usize;
        for (entry, id) in ids.iter().enumerate().take(count * top_k) {
            if *id as usize == expert {
                found.push((source, entry / top_k, entry % top_k));
            }
        }
    }
    found
}

/// C of `combine`.
pub fn combine(job: &Job, config: &CombineConfig, rank: usize) -> Vec<Vec<Element>> {
    let (hidden, top_k) = (size(config.hidden), size(config.top_k));
    let rows = job.floats_of_ranks(Operand::Rows);
    let (row_indices, weights) = (
        &job.inputs.numbers(Operand::RowIndices)[rank],
        job.floats(Operand::TopkWeights, rank),
    );
    let max_rows = rows[0].len() / hidden;
    let count = job.inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let mut c = Vec::new();
    for token in 0..count {
        for col in 0..hidden {
            let (mut value, mut magnitude) = (0.0, 0.0);
            for entry in token * top_k..(token + 1) * top_k {
                if row_indices[entry] == NO_CHOICE {
                    continue;
                }
                let row = row_indices[entry] as usize;
                let term = weights[entry] * rows[row / max_rows][row % max_rows * hidden + col];
                value += term;
                magnitude += f64::abs(term);
            }
            // The sum of each rank is rounded, and on several nodes the sum of each node is rounded too.
            let error = rounding(value, config.dtype) + rounding(magnitude, config.dtype);
            c.push(Some((value, error + adding(magnitude))));
        }
    }
    c.resize(size(config.max_tokens) * hidden, None);
    vec![c]
}

/// C of `gemm_combine`.
pub fn gemm_combine(job: &Job, config: &DispatchConfig, rank: usize) -> Vec<Vec<Element>> {
    let (width, cols, top_k) = (
        size(config.hidden),
        size(config.intermediate),
        size(config.top_k),
    );
    let rows = job.floats_of_ranks(Operand::A);
    let max_rows = rows[0].len() / cols;
    let count = job.inputs.numbers(Operand::NumTokens)[rank][0] as usize;
    let row_indices = &job.inputs.numbers(Operand::RowIndices)[rank][..count * top_k];
    let weights = job.floats(Operand::TopkWeights, rank);
    let dtype = match config.dtype {
        Dtype::E4m3 => Dtype::Bf16,
        dtype => dtype,
    };
    let mut c = vec![(0.0, 0.0); count * width];
    for (entry, index) in row_indices.iter().enumerate() {
        if *index == NO_CHOICE {
            continue;
        }
        let (owner, row) = (*index as usize / max_rows, *index as usize % max_rows);
        let offsets = &job.inputs.numbers(Operand::ExpertOffsets)[owner];
        let is_of =
            |expert: &usize| (offsets[*expert]..offsets[expert + 1]).contains(&(row as i32));
        let mut experts = 0..offsets.len() - 1;
        let expert = experts.find(is_of).expect("an expert has the row");
        let product = product_of_rows(job, config, owner);
        for out in 0..width {
            let (value, error) = product(row, expert, out);
            let (sum, of_sum) = &mut c[entry / top_k * width + out];
            *sum += weights[entry] * value;
            let error = error + rounding(value, dtype) + adding(value.abs());
            *of_sum += weights[entry].abs() * error;
        }
    }
    let rounded = |(value, error): (f64, f64)| Some((value, error + rounding(value, dtype)));
    let mut c: Vec<Element> = c.into_iter().map(rounded).collect();
    c.resize(size(config.max_tokens) * width, None);
    vec![c]
}

/// The function of a row of `rank`, an expert of the rank and a column of the result that gives their product and its error.
fn product_of_rows(
    job: &Job,
    config: &DispatchConfig,
    rank: usize,
) -> impl Fn(usize, usize, usize) -> (f64, f64) {
    let (width, cols, layout) = (
        size(config.hidden),
        size(config.intermediate),
        config.b_layout,
    );
    let [rows, weights] = [Operand::A, Operand::B].map(|operand| job.floats(operand, rank));
    let [of_rows, of_weights] = match config.scales {
        Scales::None => [Vec::new(), Vec::new()],
        _ => [Operand::AScales, Operand::BScales].map(|operand| job.floats(operand, rank)),
    };
    let (scales, blocks) = (config.scales, cols.div_ceil(128));
    let is_narrow = config.dtype == Dtype::E4m3;
    move |row, expert, out| {
        let scale = |depth: usize| match scales {
            Scales::None => 1.0,
            Scales::Tensor => of_rows[0] * of_weights[expert],
            Scales::Row => of_rows[row] * of_weights[expert * width + out],
            Scales::Block => {
                let of_weight = (expert * width.div_ceil(128) + out / 128) * blocks + depth / 128;
                of_rows[row * blocks + depth / 128] * of_weights[of_weight]
            }
        };
        let term = |depth: usize| {
            let at = match layout {
                BLayout::Kn => depth * width + out,
                BLayout::Nk => out * cols + depth,
            };
            rows[row * cols + depth] * weights[expert * width * cols + at] * scale(depth)
        };
        let (mut value, mut magnitude) = (0.0, 0.0);
        for term in (0..cols).map(term) {
            value += term;
            magnitude += f64::abs(term);
        }
        let narrow = if is_narrow { magnitude / 1024.0 } else { 0.0 };
        (value, adding(magnitude) + narrow)
    }
}
