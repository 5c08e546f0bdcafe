//! Kernels as text: the options of `#[fused_kernel(...)]`.

use mkernel::spec::Field;
use mkernel::{Communicator, ErrorKind, KernelConfig};
use mkernel_declare::{SpannedDiagnostic, parse_attribute};
use proc_macro2::TokenStream;
use pyo3::PyErr;

/// Returns the configuration that `options` declare, such as `op = ag_gemm, m = 4096, n = 1024, k = 8192`, for the ranks and
/// hosts of `communicator` unless the options give others.
pub fn config(communicator: &Communicator, options: &str) -> Result<KernelConfig, PyErr> {
    let tokens: TokenStream = options
        .parse()
        .map_err(|error| mistake(format!("{options:?} cannot be read: {error}")))?;
    let declaration = parse_attribute(tokens)
        .finish(TokenStream::new())
        .map_err(|found| mistake(lines(&found)))?;
    let mut config = declaration.spec.config().clone();
    if !declaration.gives(Field::WORLD) {
        config.world = communicator.world();
    }
    if !declaration.gives(Field::NODES) {
        config.nodes = communicator.hosts();
    }
    Ok(config)
}

fn mistake(text: String) -> PyErr {
    let text = format!("this kernel cannot be made:\n{text}");
    crate::error::of(ErrorKind::Configuration, text, None, None)
}

fn lines(found: &[SpannedDiagnostic<TokenStream>]) -> String {
    let lines = found
        .iter()
        .map(|diagnostic| format!("{}; {}", diagnostic.reason, diagnostic.help));
    lines.collect::<Vec<_>>().join("\n")
}
