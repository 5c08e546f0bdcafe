//! Reads one environment variable, and builds the error for an invalid value.

use crate::error::{EnvironmentError, Error};
use std::str::FromStr;

pub(super) fn read(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

pub(super) fn parse<T: FromStr>(
    lookup: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    expected: &'static str,
) -> Result<Option<T>, Error> {
    lookup(name)
        .map(|value| {
            value
                .trim()
                .parse()
                .map_err(|_| wrong(name, Some(value.clone()), expected))
        })
        .transpose()
}

pub(super) fn wrong(name: &'static str, value: Option<String>, expected: &'static str) -> Error {
    Error::Environment(EnvironmentError::Variable {
        name,
        value,
        expected,
    })
}
