//! Finds the `#[fused_kernel]`s of a crate by reading its source, without building it.
//!
//! Seen are attributes whose last path segment is `fused_kernel`, on structs anywhere in `src/` and `examples/`.
//! Not seen: what macros generate, and attributes inside `cfg_attr`.

use mkernel_declare::{Declared, Mistake, parse_attribute};
use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemStruct, Meta};

/// A place is `file:line:column`.
type Place = String;

/// A `#[fused_kernel]` struct.
pub struct Found {
    /// Name of the struct.
    pub type_name: String,
    /// What its attribute says.
    pub declared: Declared<Place>,
}

/// Every `#[fused_kernel]` struct of the crate in `dir`, and mistakes outside of them.
pub fn scan_crate(dir: &Path) -> io::Result<(Vec<Found>, Vec<Mistake<Place>>)> {
    fs::read_dir(dir)?; // Else a folder that is not there has no kernels.
    let mut paths = Vec::new();
    for part in ["src", "examples"] {
        let part = dir.join(part);
        if part.is_dir() {
            collect_rust_files(&part, &mut paths)?;
        }
    }
    paths.sort();
    let (mut found, mut mistakes) = (Vec::new(), Vec::new());
    for path in paths {
        let bytes = fs::read(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let Ok(text) = String::from_utf8(bytes) else {
            mistakes.push(Mistake {
                place: path.display().to_string(),
                reason: "cannot be read as Rust: it is not UTF-8".to_owned(),
                help: "see what `cargo check` says".to_owned(),
            });
            continue;
        };
        // Most files declare no kernel; they need not be valid Rust of this syn's edition either.
        if text.contains("fused_kernel") {
            match syn::parse_file(&text) {
                Ok(file) => {
                    let mut finder = Finder {
                        path: &path,
                        found: &mut found,
                    };
                    finder.visit_file(&file);
                }
                Err(error) => mistakes.push(Mistake {
                    place: place(&path, error.span()),
                    reason: format!("cannot be read as Rust: {error}"),
                    help: "see what `cargo check` says".to_owned(),
                }),
            }
        }
    }
    Ok((found, mistakes))
}

fn collect_rust_files(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Not followed: a link to a parent folder would never end.
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() {
            collect_rust_files(&path, paths)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

struct Finder<'a> {
    path: &'a Path,
    found: &'a mut Vec<Found>,
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if let Some(attribute) = item.attrs.iter().find(|a| is_fused_kernel(a)) {
            let tokens = match &attribute.meta {
                Meta::List(list) => list.tokens.clone(),
                _ => TokenStream::new(),
            };
            let at = |tokens: &TokenStream| place(self.path, tokens.span());
            let declared = parse_attribute(tokens)
                .finish(TokenTree::from(item.ident.clone()).into())
                .map(|declaration| declaration.at(at))
                .map_err(|mistakes| mistakes.into_iter().map(|m| m.at(at)).collect());
            self.found.push(Found {
                type_name: item.ident.to_string(),
                declared,
            });
        }
        visit::visit_item_struct(self, item);
    }
}

fn is_fused_kernel(attribute: &Attribute) -> bool {
    attribute
        .path()
        .segments
        .last()
        .is_some_and(|segment| segment.ident == "fused_kernel")
}

fn place(path: &Path, span: proc_macro2::Span) -> Place {
    let start = span.start();
    format!("{}:{}:{}", path.display(), start.line, start.column + 1)
}
