//! The Rust programs in README.md and in the book, which are compiled and run as the documentation tests of this crate:
//! `cargo test -p mkernel-testing --doc`. The test `readme` checks that no chapter is missing here.

macro_rules! chapters {
    ($($name:ident: $path:literal),+ $(,)?) => {$(
        #[doc = include_str!(concat!("../../../", $path))]
        mod $name {}
    )+};
}

chapters! {
    readme: "README.md",
    introduction: "docs/book/src/introduction.md",
    getting_started: "docs/book/src/getting-started.md",
    guide: "docs/book/src/guide.md",
    sizes: "docs/book/src/sizes.md",
    nodes: "docs/book/src/nodes.md",
    candle: "docs/book/src/candle.md",
    python: "docs/book/src/python.md",
    deployment: "docs/book/src/deployment.md",
    errors: "docs/book/src/errors.md",
    performance: "docs/book/src/performance.md",
    operators: "docs/book/src/operators.md",
    gemm: "docs/book/src/gemm.md",
    attention: "docs/book/src/attention.md",
    experts: "docs/book/src/experts.md",
    collectives: "docs/book/src/collectives.md",
    batch_invariance: "docs/book/src/batch-invariance.md",
    command_line: "docs/book/src/command-line.md",
    environment: "docs/book/src/environment.md",
    limits: "docs/book/src/limits.md",
    simulator: "docs/book/src/simulator.md",
    glossary: "docs/book/src/glossary.md",
}
