//! The limits of `combine`.

use super::config::CombineConfig;
use crate::diagnostic::Diagnostics;
use crate::ops::dispatch::check::{Sizes, check_dims, check_rows};
use crate::options::OperatorConfig;

/// Records every mistake.
pub(crate) fn check(config: &CombineConfig, world: u32, found: &mut Diagnostics) {
    config.check_limits(found);
    check_dims(&config.dims(), (config.dtype, config.dtype), world, found);
    let sizes = Sizes {
        experts: config.experts,
        top_k: config.top_k,
        max_tokens: config.max_tokens,
        cols: [config.hidden; 2],
    };
    check_rows(sizes, config.max_rows, world, found);
}
