//! Which field takes which value.

use crate::value::{Value, boolean, choice, dim, integer, number, word};
use mkernel_spec::{
    Activation, AttentionConfig, BLayout, CombineConfig, DispatchConfig, Dtype, Field, GemmConfig,
    KernelConfig, Layout, Op, Placement, Problem, Scale, Transfer,
};

/// Puts a value into its field; an error is what would work. `op` is only checked: the configuration is of it already.
pub(crate) fn assign(config: &mut KernelConfig, field: Field, value: &Value) -> Result<(), String> {
    match field {
        Field::Op => {
            operator(value)?;
        }
        Field::Name => config.name = Some(word(value)?.to_owned()),
        Field::World => config.world = integer(value)?,
        Field::Nodes => config.nodes = integer(value)?,
        _ => match &mut config.problem {
            Problem::Gemm(gemm) => assign_gemm(gemm, field, value)?,
            Problem::Attention(attention) => assign_attention(attention, field, value)?,
            Problem::Dispatch(dispatch) => assign_dispatch(dispatch, field, value)?,
            Problem::Combine(combine) => assign_combine(combine, field, value)?,
        },
    }
    Ok(())
}

pub(crate) fn operator(value: &Value) -> Result<Op, String> {
    choice(value, &Op::ALL.map(|op| (op.name(), op)))
}

fn assign_gemm(config: &mut GemmConfig, field: Field, value: &Value) -> Result<(), String> {
    let (epilogue, tuning) = (&mut config.epilogue, &mut config.tuning);
    match field {
        Field::M => config.m = dim(value)?,
        Field::N => config.n = dim(value)?,
        Field::K => config.k = dim(value)?,
        Field::BLayout => config.b_layout = layout(value)?,
        Field::Bias => epilogue.bias = boolean(value)?,
        Field::Activation => {
            epilogue.activation = choice(value, &Activation::ALL.map(|a| (a.name(), a)))?;
        }
        Field::Residual => epilogue.residual = boolean(value)?,
        Field::Output => epilogue.output = choice(value, &Dtype::FLOATS.map(|d| (d.name(), d)))?,
        Field::TileM => tuning.tile_m = Some(integer(value)?),
        Field::TileN => tuning.tile_n = Some(integer(value)?),
        Field::Stages => tuning.stages = Some(integer(value)?),
        Field::Transfer => {
            let all = Transfer::ALL.map(|t| (t.name(), t));
            tuning.transfer = Some(choice(value, &all)?);
        }
        Field::CommCtas => tuning.comm_ctas = Some(integer(value)?),
        Field::KSlices => tuning.k_slices = Some(integer(value)?),
        Field::ChunkRows => tuning.chunk_rows = Some(integer(value)?),
        Field::GroupM => tuning.group_m = Some(integer(value)?),
        Field::RoundTiles => tuning.round_tiles = Some(integer(value)?),
        Field::Shots => tuning.shots = Some(integer(value)?),
        Field::PaceSteps => tuning.pace_steps = Some(integer(value)?),
        _ => return unknown(),
    }
    Ok(())
}

fn assign_attention(
    config: &mut AttentionConfig,
    field: Field,
    value: &Value,
) -> Result<(), String> {
    match field {
        Field::Batch => config.batch = dim(value)?,
        Field::Seq => config.seq = dim(value)?,
        Field::Heads => config.heads = dim(value)?,
        Field::KvHeads => config.kv_heads = dim(value)?,
        Field::HeadDim => config.head_dim = dim(value)?,
        Field::Layout => config.layout = choice(value, &Layout::ALL.map(|l| (l.name(), l)))?,
        Field::Causal => config.causal = boolean(value)?,
        Field::Placement => {
            config.placement = choice(value, &Placement::ALL.map(|p| (p.name(), p)))?;
        }
        Field::Scale => config.scale = Scale::new(number(value)?),
        Field::CommCtas => config.tuning.comm_ctas = Some(integer(value)?),
        Field::KvSlots => config.tuning.kv_slots = Some(integer(value)?),
        _ => return unknown(),
    }
    Ok(())
}

fn assign_dispatch(config: &mut DispatchConfig, field: Field, value: &Value) -> Result<(), String> {
    match field {
        Field::Experts => config.experts = dim(value)?,
        Field::TopK => config.top_k = dim(value)?,
        Field::MaxTokens => config.max_tokens = dim(value)?,
        Field::Hidden => config.hidden = dim(value)?,
        Field::Intermediate => config.intermediate = dim(value)?,
        Field::BLayout => config.b_layout = layout(value)?,
        Field::Swiglu => config.swiglu = boolean(value)?,
        Field::MaxRows => config.max_rows = Some(integer(value)?),
        Field::TileM => config.tile_m = Some(integer(value)?),
        Field::TileN => config.tile_n = Some(integer(value)?),
        Field::CommCtas => config.comm_ctas = Some(integer(value)?),
        _ => return unknown(),
    }
    Ok(())
}

fn assign_combine(config: &mut CombineConfig, field: Field, value: &Value) -> Result<(), String> {
    match field {
        Field::Experts => config.experts = dim(value)?,
        Field::TopK => config.top_k = dim(value)?,
        Field::MaxTokens => config.max_tokens = dim(value)?,
        Field::Hidden => config.hidden = dim(value)?,
        Field::MaxRows => config.max_rows = Some(integer(value)?),
        _ => return unknown(),
    }
    Ok(())
}

fn layout(value: &Value) -> Result<BLayout, String> {
    choice(value, &[BLayout::Kn, BLayout::Nk].map(|b| (b.name(), b)))
}

/// `Field` may grow; the test `every_field_is_assigned` fails if the match of its problem does not.
fn unknown() -> Result<(), String> {
    Err("this version does not know the option here".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_field_is_assigned() {
        let mut assigned = BTreeSet::new();
        for op in Op::ALL {
            let plain = KernelConfig::new(8, op.problem());
            for field in Field::ALL.into_iter().filter(|field| op.takes(*field)) {
                let words = [
                    "ag_gemm", "nk", "gelu", "fp32", "sm_push", "bhsd", "zigzag", "name",
                ];
                let values = words.map(|word| Value::Word(word.into()));
                let mut config = plain.clone();
                let taken = values
                    .iter()
                    .chain([&Value::Integer(64), &Value::Boolean(true)])
                    .any(|value| assign(&mut config, field, value).is_ok());
                assert!(taken, "{field} of {op} takes no value");
                assert!(
                    field == Field::Op || config != plain,
                    "{field} of {op} has no effect"
                );
                assigned.insert(field);
            }
        }
        assert!(assigned.into_iter().eq(BTreeSet::from(Field::ALL)));
    }
}
