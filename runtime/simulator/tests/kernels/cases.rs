//! The table of kernels: each right, then its wrong relatives.

mod cluster;
mod fabric;
mod mma;
mod order;
mod shared;
mod tma;

use super::lab::{MATRIX_BYTES, SHAPE, Shape};

/// A right kernel of `cu/`.
pub struct Case {
    pub name: &'static str,
    pub text: &'static str,
    /// What is replaced in it first.
    pub edits: &'static [(&'static str, &'static str)],
    pub shape: Shape,
    pub wrong: &'static [Wrong],
}

/// A mistake, and what is said of it.
pub struct Wrong {
    pub what: &'static str,
    /// What makes it, once each.
    pub edits: &'static [(&'static str, &'static str)],
    /// Of the finding; `failure` if the kernel's failure says it.
    pub kind: &'static str,
    /// Words of the finding, lines of the kernel among them.
    pub says: &'static [&'static str],
}

/// `"a right kernel": "its file", its shape, [replacements] { its mistakes }`, where a mistake is
/// `"what": [replacements], "kind of finding", ["words of it", ...];`.
macro_rules! cases {
    ($($name:literal: $file:literal, $shape:expr, [$($from:literal => $to:literal),*] {
        $($what:literal: [$($before:literal => $after:literal),*], $kind:literal, [$($says:literal),*];)*
    })*) => {
        pub const CASES: &[Case] = &[$(Case {
            name: $name,
            text: include_str!(concat!("../cu/", $file, ".cu")),
            edits: &[$(($from, $to)),*],
            shape: $shape,
            wrong: &[$(Wrong {
                what: $what,
                edits: &[$(($before, $after)),*],
                kind: $kind,
                says: &[$($says),*],
            }),*],
        }),*];
    };
}
use cases;

/// All of them.
pub fn all() -> Vec<&'static Case> {
    let tables = [
        order::CASES,
        shared::CASES,
        tma::CASES,
        mma::CASES,
        cluster::CASES,
        fabric::CASES,
    ];
    tables.into_iter().flatten().collect()
}
