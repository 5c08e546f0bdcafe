//! [`Value`], and what it can be read as: an error is what would work.

use mkernel_spec::Dim;
use std::fmt;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `128`
    Integer(i128),
    /// `0.125`, as it is written
    Fraction(String),
    /// `copy_engine` or `"copy_engine"`
    Word(String),
    /// `true`
    Boolean(bool),
    /// What no field takes, described: `a date`.
    Other(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Fraction(text) => f.write_str(text),
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Boolean(_) => f.write_str("a boolean"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

pub(crate) fn boolean(value: &Value) -> Result<bool, String> {
    match value {
        Value::Boolean(value) => Ok(*value),
        _ => Err("write `true` or `false`".to_owned()),
    }
}

pub(crate) fn integer<T: TryFrom<i128>>(value: &Value) -> Result<T, String> {
    let Value::Integer(number) = value else {
        return Err(match whole(value) {
            Some(number) => format!("write {number}"),
            None => "write an integer, as a plain number".to_owned(),
        });
    };
    T::try_from(*number).map_err(|_| {
        format!(
            "write an integer from 0 to {}",
            (1_u128 << (8 * size_of::<T>())) - 1
        )
    })
}

/// The integer that `1e3` or `128.0` is.
fn whole(value: &Value) -> Option<u64> {
    let Value::Fraction(text) = value else {
        return None;
    };
    let number: f64 = text.replace('_', "").parse().ok()?;
    let is_whole = number.fract() == 0.0 && (0.0..1e15).contains(&number);
    is_whole.then_some(number as u64)
}

pub(crate) fn number(value: &Value) -> Result<f32, String> {
    let read = match value {
        Value::Integer(number) => Some(*number as f32),
        Value::Fraction(text) => text.replace('_', "").parse().ok(),
        _ => None,
    };
    read.ok_or_else(|| "write a number, as in 0.125".to_owned())
}

pub(crate) fn dim(value: &Value) -> Result<Dim, String> {
    match value {
        Value::Word(word) if word == "dynamic" => Ok(Dim::DYNAMIC),
        // Which sizes a dimension can have is the spec's to say, and why.
        Value::Integer(number) => u64::try_from(*number).map(Dim::Static).map_err(|_| {
            let help = if *number < 0 {
                "1 or more"
            } else {
                "less than 2^64"
            };
            format!("write a size of {help}")
        }),
        _ => Err(match whole(value) {
            Some(number) => format!("write {number}"),
            None => "write an integer, as a plain number, or `dynamic`".to_owned(),
        }),
    }
}

pub(crate) fn word(value: &Value) -> Result<&str, String> {
    match value {
        Value::Word(word) => Ok(word),
        _ => Err("write a word or a string".to_owned()),
    }
}

pub(crate) fn choice<T: Copy>(value: &Value, all: &[(&str, T)]) -> Result<T, String> {
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
    fn advice_on_numbers_can_be_followed() {
        let fraction = |text: &str| Value::Fraction(text.to_owned());
        for (value, help) in [
            (fraction("1e3"), "write 1000"),
            (fraction("1_024.0"), "write 1024"),
            (
                fraction("1.5"),
                "write an integer, as a plain number, or `dynamic`",
            ),
            (Value::Integer(-3), "write a size of 1 or more"),
            (Value::Integer(1 << 64), "write a size of less than 2^64"),
        ] {
            assert_eq!(dim(&value), Err(help.to_owned()), "{value}");
        }
        assert_eq!(integer::<u32>(&fraction("128.0")), Err("write 128".into()));
    }
}
