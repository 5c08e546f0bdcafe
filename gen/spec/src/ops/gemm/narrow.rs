//! The limits of elements of one byte, which GEMMs and experts have in common.

use super::config::BLayout;
use super::scales::Scales;
use crate::config::{Dtype, Field};
use crate::diagnostic::Diagnostics;

/// Checks scales, which only elements of one byte have, and that K is contiguous for these elements.
pub(crate) fn check(found: &mut Diagnostics, dtype: Dtype, scales: Scales, b_layout: BLayout) {
    check_scales(found, dtype, scales);
    found.require(
        b_layout == BLayout::Nk || dtype.bytes() != 1,
        Field::B_LAYOUT,
        || format!("tensor cores take {dtype} only where K is contiguous"),
        "use b_layout = \"nk\"",
    );
}

/// Checks the columns of normalised rows that become elements of one byte: products take rows in steps of 16 bytes. Other
/// checks refuse columns that are no multiple of `step`.
pub(crate) fn check_result_cols(found: &mut Diagnostics, n: Option<u64>, step: u64) {
    let of_e4m3 = Dtype::E4m3.stride_step();
    let Some(n) = n.filter(|n| n.is_multiple_of(step)) else {
        return;
    };
    found.require(
        n.is_multiple_of(of_e4m3),
        Field::N,
        || format!("{n} is not a multiple of {of_e4m3}, as rows of e4m3 need"),
        "pad it, or remove result_scales",
    );
}

/// Checks scales, which only elements of one byte have.
pub(crate) fn check_scales(found: &mut Diagnostics, dtype: Dtype, scales: Scales) {
    found.require(
        scales == Scales::None || dtype.bytes() == 1,
        Field::SCALES,
        || format!("elements of {dtype} have no scales"),
        "remove it, or use dtype = \"e4m3\"",
    );
}
