//! [`Value`], and which field takes which.

use mkernel_spec::{Activation, BLayout, Dim, Dtype, Field, KernelConfig, Op, Transfer};
use std::fmt;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `128`
    Integer(i128),
    /// `copy_engine` or `"copy_engine"`
    Word(String),
    /// `true`
    Boolean(bool),
    /// What no field takes, described: `a fraction`.
    Other(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Boolean(_) => f.write_str("a boolean"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Puts a value into its field; an error is what would work.
pub(crate) fn assign(config: &mut KernelConfig, field: Field, value: &Value) -> Result<(), String> {
    let (epilogue, tuning) = (&mut config.epilogue, &mut config.tuning);
    match field {
        Field::Op => config.op = choice(value, &Op::ALL.map(|op| (op.name(), op)))?,
        Field::Name => config.name = Some(word(value)?.to_owned()),
        Field::World => config.world = integer(value)?,
        Field::M => config.m = dim(value)?,
        Field::N => config.n = dim(value)?,
        Field::K => config.k = dim(value)?,
        Field::BLayout => {
            config.b_layout = choice(value, &[BLayout::Kn, BLayout::Nk].map(|b| (b.name(), b)))?;
        }
        Field::Bias => epilogue.bias = boolean(value)?,
        Field::Activation => {
            epilogue.activation = choice(value, &Activation::ALL.map(|a| (a.name(), a)))?;
        }
        Field::Residual => epilogue.residual = boolean(value)?,
        Field::Output => epilogue.output = choice(value, &Dtype::ALL.map(|d| (d.name(), d)))?,
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
        // `Field` may grow; the test `every_field_is_assigned` fails if this match does not.
        _ => return Err("this version does not know the option here".to_owned()),
    }
    Ok(())
}

fn boolean(value: &Value) -> Result<bool, String> {
    match value {
        Value::Boolean(value) => Ok(*value),
        _ => Err("write `true` or `false`".to_owned()),
    }
}

fn integer<T: TryFrom<i128>>(value: &Value) -> Result<T, String> {
    let Value::Integer(number) = value else {
        return Err("write an integer, as a plain number".to_owned());
    };
    T::try_from(*number).map_err(|_| {
        format!(
            "write an integer from 0 to {}",
            (1_u128 << (8 * size_of::<T>())) - 1
        )
    })
}

fn dim(value: &Value) -> Result<Dim, String> {
    match value {
        Value::Word(word) if word == "dynamic" => Ok(Dim::DYNAMIC),
        Value::Integer(_) => integer(value).map(Dim::Static),
        _ => Err("write an integer, as a plain number, or `dynamic`".to_owned()),
    }
}

fn word(value: &Value) -> Result<&str, String> {
    match value {
        Value::Word(word) => Ok(word),
        _ => Err("write a word or a string".to_owned()),
    }
}

fn choice<T: Copy>(value: &Value, all: &[(&str, T)]) -> Result<T, String> {
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let Value::Word(given) = value else {
        return Err(one_of(&names));
    };
    all.iter()
        .find_map(|(name, choice)| (name == given).then_some(*choice))
        .ok_or_else(|| nearest(given, &names))
}

/// "did you mean …" if some of `known` are near, else all of them.
pub(crate) fn nearest(given: &str, known: &[&str]) -> String {
    let similarity = |name: &&str| strsim::jaro(given, name);
    let best = known.iter().map(similarity).fold(0.7, f64::max);
    let near: Vec<_> = known
        .iter()
        .filter(|name| similarity(name) >= best)
        .map(|name| format!("`{name}`"))
        .collect();
    if near.is_empty() {
        one_of(known)
    } else {
        format!("did you mean {}?", near.join(" or "))
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [only] => format!("write `{only}`"),
        _ => format!("use one of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_assigned() {
        let plain = KernelConfig {
            name: None,
            op: Op::AgGemm,
            world: 8,
            m: Dim::DYNAMIC,
            n: Dim::DYNAMIC,
            k: Dim::DYNAMIC,
            b_layout: BLayout::default(),
            epilogue: mkernel_spec::Epilogue::default(),
            tuning: mkernel_spec::Tuning::default(),
        };
        for field in Field::ALL {
            let words = ["ag_gemm", "nk", "gelu", "fp32", "sm_push", "name"];
            let values = words.map(|word| Value::Word(word.into()));
            let mut config = plain.clone();
            let taken = values
                .iter()
                .chain([&Value::Integer(64), &Value::Boolean(true)])
                .any(|value| assign(&mut config, field, value).is_ok());
            assert!(taken, "{field} takes no value");
            assert!(
                field == Field::Op || config != plain,
                "{field} has no effect"
            );
        }
    }
}
