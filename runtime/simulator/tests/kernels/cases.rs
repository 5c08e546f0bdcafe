//! The table of kernels. Each entry has a correct kernel, and the mistakes that tests plant in this kernel.

mod cluster;
mod fabric;
mod mma;
mod order;
mod shared;
mod tma;

use super::data::{Data, MATRIX_BYTES};
use super::harness::{SHAPE, Shape};

/// A correct kernel of `cu/`.
pub struct Case {
    pub name: &'static str,
    pub text: &'static str,
    /// The replacements in the text of the file that give the correct kernel.
    pub edits: &'static [(&'static str, &'static str)],
    pub shape: Shape,
    pub wrong: &'static [Wrong],
}

/// A mistake, and the finding that it must cause.
pub struct Wrong {
    pub what: &'static str,
    /// The replacements that plant the mistake. Each replaces the first occurrence.
    pub edits: &'static [(&'static str, &'static str)],
    /// The kind of the finding, or `failure` if the kernel fails with a reason instead.
    pub kind: &'static str,
    /// Texts that the finding must contain, such as lines of the kernel.
    pub words: &'static [&'static str],
}

/// Declares cases. A case is `"name": "file", shape, [replacements] { mistakes }`, and a mistake is
/// `"what": [replacements], "kind of finding", ["words of the finding", ...];`.
macro_rules! cases {
    ($($name:literal: $file:literal, $shape:expr, [$($from:literal => $to:literal),*] {
        $($what:literal: [$($before:literal => $after:literal),*], $kind:literal, [$($words:literal),*];)*
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
                words: &[$($words),*],
            }),*],
        }),*];
    };
}
use cases;

/// Returns all cases.
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
