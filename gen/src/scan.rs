//! Finds the structs with `#[fused_kernel]` of a crate by reading its source, without building it.
//!
//! The scan finds attributes whose last path segment is `fused_kernel`, on structs anywhere in `src/` and `examples/`.
//! It does not find attributes inside `cfg_attr`, and names macros with such attributes, whose structs it does not find.

use mkernel_declare::{Declared, SpannedDiagnostic, parse_attribute};
use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, ItemStruct, Macro, Meta};

/// A position in a file, as `file:line:column`.
type Location = String;

/// A struct with `#[fused_kernel]`.
pub struct FusedKernel {
    /// The name of the struct.
    pub type_name: String,
    /// The kernel that its attribute declares.
    pub declared: Declared<Location>,
}

/// The parts of a crate.
#[derive(Default)]
pub struct Scan {
    /// The structs with `#[fused_kernel]`.
    pub kernels: Vec<FusedKernel>,
    /// The errors in files as a whole.
    pub diagnostics: Vec<SpannedDiagnostic<Location>>,
    /// The macros that may declare kernels.
    pub macros: Vec<Location>,
}

/// Reads the crate in `dir`.
pub fn scan_crate(dir: &Path) -> io::Result<Scan> {
    fs::read_dir(dir)?; // A missing folder is an error, not a crate without kernels.
    let mut paths = Vec::new();
    for part in ["src", "examples"] {
        let part = dir.join(part);
        if part.is_dir() {
            collect_rust_files(&part, &mut paths)?;
        }
    }
    paths.sort();
    let mut scan = Scan::default();
    for path in paths {
        let bytes = fs::read(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let Ok(text) = String::from_utf8(bytes) else {
            scan.diagnostics.push(SpannedDiagnostic {
                span: path.display().to_string(),
                reason: "cannot be read as Rust: it is not UTF-8".to_owned(),
                help: "run `cargo check` for details".to_owned(),
            });
            continue;
        };
        // Files without kernels need not be valid Rust in the edition that this version of syn parses.
        if text.contains("fused_kernel") {
            match syn::parse_file(&text) {
                Ok(file) => {
                    let mut finder = Finder {
                        path: &path,
                        scan: &mut scan,
                    };
                    finder.visit_file(&file);
                }
                Err(error) => scan.diagnostics.push(SpannedDiagnostic {
                    span: location(&path, error.span()),
                    reason: format!("cannot be read as Rust: {error}"),
                    help: "run `cargo check` for details".to_owned(),
                }),
            }
        }
    }
    Ok(scan)
}

fn collect_rust_files(dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Links are not followed, since a link to a parent folder would make the search endless.
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
    scan: &'a mut Scan,
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if let Some(attribute) = item.attrs.iter().find(|a| is_fused_kernel(a)) {
            let tokens = match &attribute.meta {
                Meta::List(list) => list.tokens.clone(),
                _ => TokenStream::new(),
            };
            let at = |tokens: &TokenStream| location(self.path, tokens.span());
            let declared = parse_attribute(tokens)
                .finish(TokenTree::from(item.ident.clone()).into())
                .map(|declaration| declaration.map_spans(at))
                .map_err(|diagnostics| diagnostics.into_iter().map(|m| m.map_span(at)).collect());
            let is_unit = matches!(item.fields, Fields::Unit) && item.generics.params.is_empty();
            let declared = match is_unit {
                true => declared,
                false => Err(vec![SpannedDiagnostic {
                    span: location(self.path, item.ident.span()),
                    reason: "#[fused_kernel] must be on a unit struct without generic parameters"
                        .to_owned(),
                    help: format!("write `struct {};`", item.ident),
                }]),
            };
            self.scan.kernels.push(FusedKernel {
                type_name: item.ident.to_string(),
                declared,
            });
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_macro(&mut self, found: &'ast Macro) {
        if found.tokens.to_string().contains("fused_kernel") {
            self.scan
                .macros
                .push(location(self.path, found.path.span()));
        }
        visit::visit_macro(self, found);
    }
}

fn is_fused_kernel(attribute: &Attribute) -> bool {
    attribute
        .path()
        .segments
        .last()
        .is_some_and(|segment| segment.ident == "fused_kernel")
}

fn location(path: &Path, span: proc_macro2::Span) -> Location {
    let start = span.start();
    format!("{}:{}:{}", path.display(), start.line, start.column + 1)
}
