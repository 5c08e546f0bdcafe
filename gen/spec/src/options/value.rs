//! [`Value`]: a value of an option as the user writes it, and how each type of option reads it.

use super::dim::Dim;
use std::fmt;

/// The value of an option as the user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `128`
    Integer(i128),
    /// `0.125`, as text
    Fraction(String),
    /// `copy_engine` or `"copy_engine"`
    Word(String),
    /// `true`
    Boolean(bool),
    /// A description of a value that no field accepts, such as `a date`.
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

/// Conversions to the values that options take. An error describes the values that would work.
impl Value {
    pub(crate) fn size(&self) -> Result<Dim, String> {
        match self {
            Self::Word(word) if word == "dynamic" || word.starts_with("..=") => word.parse(),
            // The spec checks which sizes a dimension can have, and gives the reason.
            Self::Integer(number) => u64::try_from(*number).map(Dim::Static).map_err(|_| {
                let help = if *number < 0 {
                    "1 or more"
                } else {
                    "less than 2^64"
                };
                format!("write a size of {help}")
            }),
            _ => Err(match self.whole() {
                Some(number) => format!("write {number}"),
                None => "write an integer, as a plain number, or `dynamic`".to_owned(),
            }),
        }
    }

    pub(crate) fn count(&self) -> Result<u32, String> {
        let Self::Integer(number) = self else {
            return Err(match self.whole() {
                Some(number) => format!("write {number}"),
                None => "write an integer, as a plain number".to_owned(),
            });
        };
        u32::try_from(*number).map_err(|_| format!("write an integer from 0 to {}", u32::MAX))
    }

    pub(crate) fn number(&self) -> Result<f32, String> {
        let read = match self {
            Self::Integer(number) => Some(*number as f32),
            Self::Fraction(text) => text.replace('_', "").parse().ok(),
            _ => None,
        };
        read.ok_or_else(|| "write a number, as in 0.125".to_owned())
    }

    pub(crate) fn switch(&self) -> Result<bool, String> {
        match self {
            Self::Boolean(value) => Ok(*value),
            _ => Err("write `true` or `false`".to_owned()),
        }
    }

    pub(crate) fn name(&self) -> Result<String, String> {
        match self {
            Self::Word(word) => Ok(word.clone()),
            _ => Err("write a word or a string".to_owned()),
        }
    }

    /// The index in `of` of the word.
    pub(crate) fn word(&self, of: &[&str]) -> Result<usize, String> {
        let Self::Word(given) = self else {
            return Err(one_of(of));
        };
        let index = of.iter().position(|word| word == given);
        index.ok_or_else(|| nearest(given, of))
    }

    /// The integer that is equal to a fraction such as `1e3` or `128.0`.
    fn whole(&self) -> Option<u64> {
        let Self::Fraction(text) = self else {
            return None;
        };
        let number: f64 = text.replace('_', "").parse().ok()?;
        let is_whole = number.fract() == 0.0 && (0.0..1e15).contains(&number);
        is_whole.then_some(number as u64)
    }
}

/// Suggests the names in `known` that are similar to `given`, or lists all names if none is similar.
#[must_use]
pub fn nearest(given: &str, known: &[&str]) -> String {
    let given = given.to_lowercase();
    let similarity = |name: &&str| strsim::jaro(&given, &name.to_lowercase());
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
    fn names_in_other_letters_are_recognised() {
        assert_eq!(nearest("OP", &["op", "world"]), "did you mean `op`?");
        assert_eq!(nearest("Up", &["Up2", "Down"]), "did you mean `Up2`?");
    }

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
            assert_eq!(value.size(), Err(help.to_owned()), "{value}");
        }
        assert_eq!(fraction("128.0").count(), Err("write 128".into()));
        let large = Value::Integer(1 << 32).count();
        assert_eq!(
            large,
            Err("write an integer from 0 to 4294967295".to_owned())
        );
    }
}
