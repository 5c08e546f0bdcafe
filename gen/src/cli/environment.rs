//! Environment variables that take the place of flags.

use super::failure::Failure;
use clap::ValueEnum;
use std::ops::RangeInclusive;

/// Reads a variable that has the same values as a flag.
pub fn choice<T: ValueEnum>(name: &'static str) -> Result<Option<T>, Failure> {
    let Some(value) = read(name) else {
        return Ok(None);
    };
    T::from_str(&value, false).map(Some).map_err(|_| {
        let values = T::value_variants().iter();
        let names: Vec<_> = values.filter_map(ValueEnum::to_possible_value).collect();
        let names: Vec<_> = names.iter().map(|value| value.get_name()).collect();
        Failure::Variable {
            name,
            value,
            expected: format!("one of {}", names.join(", ")),
        }
    })
}

/// Reads a variable that is a number in `range`.
pub fn number(name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, Failure> {
    let Some(value) = read(name) else {
        return Ok(None);
    };
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| Failure::Variable {
        name,
        value,
        expected: format!("a number from {} to {}", range.start(), range.end()),
    })
}

/// The value of a variable. An empty variable counts as unset.
fn read(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    let value = value.to_string_lossy().trim().to_owned();
    (!value.is_empty()).then_some(value)
}
