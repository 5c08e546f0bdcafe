//! Tests that README.md and the book agree with the code and with each other. Their Rust programs are documentation tests
//! of mkernel-testing. Tests of mkernel-gen check their commands of `mkernel-gen` and their plans.

mod chapters;
mod figures;
mod links;
mod manifests;
mod names;
mod tables;

use mkernel_testing::documents::{self, Document};

/// Returns README.md and the files of the book.
fn documents() -> Vec<Document> {
    documents::for_users().expect("README.md and the book")
}

/// Returns a chapter of the book.
fn chapter(name: &str) -> Document {
    Document::read(format!("docs/book/src/{name}")).expect("a chapter")
}
