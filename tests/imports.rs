//! No circles of imports: a file must not import, directly or through re-exports, from a file that imports from it.
//!
//! The test parses every source file of a crate and resolves `use` items and paths such as `crate::a::b` to the files
//! that define the items. It ignores test modules and documentation. A module file may import from its children. Their
//! imports through it count as imports from the file that defines the item, so a parent that only re-exports is fine.
//! Imports that a macro generates are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Ident, Item, Lit, Meta, UseTree};

/// Returns the folders of all crates of the workspace but the root package, which has no library.
fn crates(workspace: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(workspace.join("Cargo.toml")).expect("the workspace's manifest");
    let manifest: toml::Table = text.parse().expect("TOML");
    let members = manifest["workspace"]["members"].as_array();
    let members = members.expect("the members of the workspace").iter();
    members
        .map(|member| workspace.join(member.as_str().expect("a folder")))
        .collect()
}

#[derive(Default)]
struct Module {
    parent: usize,
    file: usize,
    children: BTreeMap<String, usize>,
    /// The names of items that the module defines.
    items: BTreeSet<String>,
    /// The names that `use` items bind, and their paths.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    source: Vec<Item>,
}

#[derive(Default)]
struct Crate {
    files: Vec<PathBuf>,
    modules: Vec<Module>,
    /// The files of macros that are exported, and so belong to the root of the crate wherever they are defined.
    macros: BTreeMap<String, usize>,
}

impl Crate {
    /// Reads the crate whose root file is `root`.
    fn read(root: &Path) -> Self {
        let mut this = Self::default();
        this.read_file(root.to_owned(), 0, &root.with_file_name(""));
        this
    }

    /// Reads a file as a new module. `folder` holds the files of its children.
    fn read_file(&mut self, path: PathBuf, parent: usize, folder: &Path) -> usize {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.files.push(path);
        let file = self.files.len() - 1;
        self.add_module(parent, file, parsed.items, folder)
    }

    fn add_module(&mut self, parent: usize, file: usize, items: Vec<Item>, at: &Path) -> usize {
        let id = self.modules.len();
        self.modules.push(Module::default());
        (self.modules[id].parent, self.modules[id].file) = (parent, file);
        for item in items.into_iter().filter(|item| !is_test(item)) {
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let child = match module.content {
                        Some((_, items)) => self.add_module(id, file, items, &at.join(&name)),
                        None => self.read_child(id, &name, &module.attrs, at),
                    };
                    self.modules[id].children.insert(name, child);
                }
                Item::Use(item) => {
                    for (path, name) in leaves(Vec::new(), &item.tree) {
                        match name {
                            Some(name) => drop(self.modules[id].imports.insert(name, path)),
                            None => self.modules[id].globs.push(path),
                        }
                    }
                    self.modules[id].source.push(Item::Use(item));
                }
                item => {
                    let (ident, attrs) = parts(&item);
                    let name = ident.map(Ident::to_string);
                    if let Some(name) = &name
                        && attrs.iter().any(|a| a.path().is_ident("macro_export"))
                    {
                        self.macros.insert(name.clone(), file);
                    }
                    self.modules[id].items.extend(name);
                    self.modules[id].source.push(item);
                }
            }
        }
        id
    }

    fn read_child(&mut self, id: usize, name: &str, attrs: &[Attribute], at: &Path) -> usize {
        let given = attrs.iter().find_map(|attribute| {
            if let Meta::NameValue(pair) = &attribute.meta
                && pair.path.is_ident("path")
                && let Expr::Lit(literal) = &pair.value
                && let Lit::Str(path) = &literal.lit
            {
                return Some(path.value());
            }
            None
        });
        if let Some(given) = given {
            let path = self.files[self.modules[id].file].with_file_name(given);
            let folder = path.with_file_name("");
            return self.read_file(path, id, &folder);
        }
        let (folder, flat) = (at.join(name), at.join(format!("{name}.rs")));
        let nested = folder.join("mod.rs");
        let path = if flat.exists() { flat } else { nested };
        self.read_file(path, id, &folder)
    }

    /// The file that defines what `path` means in module `at`, if it belongs to this crate.
    fn resolve(&self, mut at: usize, path: &[String], depth: usize) -> Option<usize> {
        if depth > 16 {
            return None;
        }
        if let [root, name] = path
            && root == "crate"
            && let Some(file) = self.macros.get(name)
        {
            return Some(*file);
        }
        for (i, segment) in path.iter().enumerate() {
            let (module, is_last) = (&self.modules[at], i + 1 == path.len());
            at = match segment.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => module.parent,
                name if is_last && module.items.contains(name) => return Some(module.file),
                name => match (module.children.get(name), module.imports.get(name)) {
                    (Some(child), _) => *child,
                    _ if module.items.contains(name) => return Some(module.file),
                    (None, Some(import)) => {
                        return self.resolve(at, &[import, &path[i + 1..]].concat(), depth + 1);
                    }
                    _ => {
                        let rest = |glob: &Vec<String>| [glob, &path[i..]].concat();
                        let found = |glob| self.resolve(at, &rest(glob), depth + 1);
                        // A name that a module of this crate does not declare comes from a macro.
                        let from_macro = (i > 0 && depth == 0).then_some(module.file);
                        return module.globs.iter().find_map(found).or(from_macro);
                    }
                },
            };
        }
        Some(self.modules[at].file)
    }

    /// One line for each import that is part of a circle.
    fn circles(&self) -> Vec<String> {
        let mut edges = BTreeMap::<(usize, usize), BTreeSet<String>>::new();
        for (at, module) in self.modules.iter().enumerate() {
            let mut paths = Paths::default();
            module.source.iter().for_each(|item| paths.visit_item(item));
            for path in paths.0 {
                if let Some(to) = self.resolve(at, &path, 0).filter(|to| *to != module.file) {
                    let items = edges.entry((module.file, to)).or_default();
                    items.insert(path.join("::"));
                }
            }
        }
        let count = self.files.len();
        let mut reaches = vec![vec![false; count]; count];
        edges
            .keys()
            .for_each(|(from, to)| reaches[*from][*to] = true);
        for via in 0..count {
            let next = reaches[via].clone();
            for from in reaches.iter_mut().filter(|from| from[via]) {
                (0..count).for_each(|to| from[to] |= next[to]);
            }
        }
        edges.retain(|(from, to), _| reaches[*to][*from]);
        let line = |((from, to), items): (&(usize, usize), &BTreeSet<String>)| {
            let (from, to) = (self.files[*from].display(), self.files[*to].display());
            format!("{from} imports from {to}: {items:?}")
        };
        edges.iter().map(line).collect()
    }
}

/// The paths that items mention outside of attributes and test code.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(item) {
            visit::visit_item(self, item);
        }
    }
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let leaves = leaves(Vec::new(), &item.tree).into_iter();
        self.0.extend(leaves.map(|(path, _)| path));
    }
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let segments = path.segments.iter().map(|part| part.ident.to_string());
            self.0.push(segments.collect());
        }
        visit::visit_path(self, path);
    }
}

/// Each path of a `use` tree and the name that it binds. A glob has no name.
fn leaves(mut prefix: Vec<String>, tree: &UseTree) -> Vec<(Vec<String>, Option<String>)> {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            leaves(prefix, &path.tree)
        }
        UseTree::Name(name) if name.ident == "self" => vec![(prefix.clone(), prefix.pop())],
        UseTree::Name(name) => {
            prefix.push(name.ident.to_string());
            vec![(prefix, Some(name.ident.to_string()))]
        }
        UseTree::Rename(rename) => {
            prefix.extend((rename.ident != "self").then(|| rename.ident.to_string()));
            vec![(prefix, Some(rename.rename.to_string()))]
        }
        UseTree::Glob(_) => vec![(prefix, None)],
        UseTree::Group(group) => {
            let each = |tree| leaves(prefix.clone(), tree);
            group.items.iter().flat_map(each).collect()
        }
    }
}

/// The name that an item defines, if it defines one, and its attributes.
fn parts(item: &Item) -> (Option<&Ident>, &[Attribute]) {
    match item {
        Item::Const(item) => (Some(&item.ident), &item.attrs),
        Item::Enum(item) => (Some(&item.ident), &item.attrs),
        Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
        Item::Impl(item) => (None, &item.attrs),
        Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
        Item::Mod(item) => (None, &item.attrs),
        Item::Static(item) => (Some(&item.ident), &item.attrs),
        Item::Struct(item) => (Some(&item.ident), &item.attrs),
        Item::Trait(item) => (Some(&item.ident), &item.attrs),
        Item::Type(item) => (Some(&item.ident), &item.attrs),
        Item::Union(item) => (Some(&item.ident), &item.attrs),
        Item::Use(item) => (None, &item.attrs),
        _ => (None, &[]),
    }
}

/// Whether an item is compiled for tests only.
fn is_test(item: &Item) -> bool {
    let is_test = |path: syn::Path| path.is_ident("test");
    let mut cfgs = parts(item)
        .1
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.any(|cfg| cfg.parse_args().is_ok_and(is_test))
}

#[test]
fn no_file_imports_from_a_file_that_imports_from_it() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut circles = Vec::new();
    for folder in crates(workspace) {
        let lib = folder.join("src/lib.rs");
        let main = lib.with_file_name("main.rs");
        let root = if lib.exists() { lib } else { main };
        circles.extend(Crate::read(&root).circles());
    }
    assert!(circles.is_empty(), "\n{}", circles.join("\n"));
}

#[test]
fn planted_circles_are_found() {
    let circles = |files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("creates a folder");
            fs::write(path, text).expect("writes a file");
        }
        Crate::read(&folder.path().join("lib.rs")).circles()
    };
    let lib = ("lib.rs", "mod a; mod b; pub use b::B;");
    let a = ("a.rs", "pub struct A(crate::B); pub fn make() {}");
    let tied_by = |b| circles(&[lib, a, ("b.rs", b)]);
    let free = tied_by("/// [`A`](crate::a::A)\npub struct B; #[cfg(test)] use crate::a::A;");
    assert_eq!(free, [""; 0]);
    // `a` reaches `B` by a re-export of the parent, and `b` calls `a` by an inline path.
    let found = tied_by("pub struct B; fn f() { crate::a::make() }").join("\n");
    assert!(found.contains("b.rs: {\"crate::B\"}\n"), "{found}");
    assert!(found.ends_with("a.rs: {\"crate::a::make\"}"), "{found}");
    // An exported macro belongs to the file that defines it.
    let with_macro = "#[macro_export] macro_rules! m { () => {} } use crate::a::make;";
    let found = circles(&[
        lib,
        ("a.rs", "pub fn make() { crate::m!() }"),
        ("b.rs", &format!("pub struct B; {with_macro}")),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
    // A parent that defines an item which its child imports by a glob or by `super`.
    let lib = "#[path = \"odd/c.rs\"] mod child; pub struct P(child::C);";
    for import in [
        "use super::*;",
        "use super::P as Q;",
        "fn f(_: super::P) {}",
    ] {
        let child = format!("pub struct C; {import}");
        let found = circles(&[("lib.rs", lib), ("odd/c.rs", &child)]);
        assert_eq!(found.len(), 2, "{import}: {found:?}");
    }
}
