//! No import cycles: a file must not import, directly or through re-exports, from a file that imports from it.
//!
//! The test parses every source file of a crate and resolves `use` items and paths such as `crate::a::b` to the files
//! that define the items. It ignores test modules and documentation. A module file may import from its children. Imports
//! of the children through the module count as imports from the file that defines the item, so a parent that only
//! re-exports is fine. Sibling folders also import in one direction; there a re-export counts as an import. The test does
//! not see imports that a macro generates.

mod source;

use source::{Paths, is_test, leaves, parts};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::Visit;
use syn::{Attribute, Expr, Ident, Item, Lit, Meta};

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

/// The file of a crate from which its modules are read.
fn root_file(folder: &Path) -> PathBuf {
    let lib = folder.join("src/lib.rs");
    match lib.exists() {
        true => lib,
        false => lib.with_file_name("main.rs"),
    }
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
    /// The files of exported macros, which belong to the root of the crate wherever they are defined.
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

    /// The file that defines the item of `path` in module `at`, if the item belongs to this crate.
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
                        // A name without a declaration in this crate comes from a macro.
                        let from_macro = (i > 0 && depth == 0).then_some(module.file);
                        return module.globs.iter().find_map(found).or(from_macro);
                    }
                },
            };
        }
        Some(self.modules[at].file)
    }

    /// The paths that modules mention, each with its module.
    fn mentions(&self) -> Vec<(usize, Vec<String>)> {
        let mut all = Vec::new();
        for (at, module) in self.modules.iter().enumerate() {
            let mut paths = Paths::default();
            module.source.iter().for_each(|item| paths.visit_item(item));
            all.extend(paths.0.into_iter().map(|path| (at, path)));
        }
        all
    }

    /// One line for each import that is part of a cycle.
    fn cycles(&self) -> Vec<String> {
        let mut edges = BTreeMap::<(usize, usize), BTreeSet<String>>::new();
        for (at, path) in self.mentions() {
            let from = self.modules[at].file;
            if let Some(to) = self.resolve(at, &path, 0).filter(|to| *to != from) {
                let items = edges.entry((from, to)).or_default();
                items.insert(path.join("::"));
            }
        }
        retain_cycles(&mut edges);
        let line = |((from, to), items): (&(usize, usize), &BTreeSet<String>)| {
            let (from, to) = (self.files[*from].display(), self.files[*to].display());
            format!("{from} imports from {to}: {items:?}")
        };
        edges.iter().map(line).collect()
    }

    /// The place of a file among folders, such as `["plan", "region"]` for `plan/region.rs`. `plan.rs` and `plan/mod.rs`
    /// have the place of the folder `plan`.
    fn place(&self, file: usize) -> Vec<String> {
        let root = self.files[0].parent().expect("a folder");
        let path = self.files[file].strip_prefix(root);
        let path = path.unwrap_or(&self.files[file]).with_extension("");
        let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
        let mut parts: Vec<_> = parts.collect();
        parts.pop_if(|name| file == 0 || name == "mod");
        parts
    }

    /// The imports between sibling folders, or a folder and a sibling file, that are part of a cycle, such as
    /// `plan -> config`, and the paths that cause each import.
    ///
    /// An import counts twice, from the folder in its path and from the folder that defines the item, so that a re-export
    /// hides nothing.
    fn cycles_of_folders(&self) -> BTreeMap<(String, String), BTreeSet<String>> {
        let mut edges = BTreeMap::<(String, String), BTreeSet<String>>::new();
        for (at, path) in self.mentions() {
            let from = self.place(self.modules[at].file);
            let ends = [&path[..], &path[..path.len() - 1]];
            for to in ends.into_iter().filter_map(|end| self.resolve(at, end, 0)) {
                let to = self.place(to);
                let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if shared < from.len().min(to.len()) {
                    let ends = (from[..=shared].join("/"), to[..=shared].join("/"));
                    edges.entry(ends).or_default().insert(path.join("::"));
                }
            }
        }
        retain_cycles(&mut edges);
        edges
    }
}

/// Keeps the edges that are part of a cycle.
fn retain_cycles<N: Clone + Ord, T>(edges: &mut BTreeMap<(N, N), T>) {
    let nodes: BTreeSet<N> = edges.keys().flat_map(|(a, b)| [a, b]).cloned().collect();
    let numbers: BTreeMap<N, usize> = nodes.into_iter().zip(0..).collect();
    let count = numbers.len();
    let mut reaches = vec![vec![false; count]; count];
    for (from, to) in edges.keys() {
        reaches[numbers[from]][numbers[to]] = true;
    }
    for via in 0..count {
        let next = reaches[via].clone();
        for from in reaches.iter_mut().filter(|from| from[via]) {
            (0..count).for_each(|to| from[to] |= next[to]);
        }
    }
    edges.retain(|(from, to), _| reaches[numbers[to]][numbers[from]]);
}

#[test]
fn no_file_imports_from_a_file_that_imports_from_it() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cycles = Vec::new();
    for folder in crates(workspace) {
        cycles.extend(Crate::read(&root_file(&folder)).cycles());
    }
    assert!(cycles.is_empty(), "\n{}", cycles.join("\n"));
}

/// `tests/imports/folders.txt` lists the imports between folders that are still part of a cycle. Remove a cycle from the list
/// when its imports are gone, so that the cycle does not come back.
#[test]
fn folders_import_in_one_direction() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(workspace.join("tests/imports/folders.txt")).expect("a list");
    let known: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    let mut found = BTreeMap::new();
    for folder in crates(workspace) {
        let name = folder.strip_prefix(workspace).expect("a member").display();
        for ((from, to), paths) in Crate::read(&root_file(&folder)).cycles_of_folders() {
            found.insert(format!("{name}: {from} -> {to}"), paths);
        }
    }
    let new: Vec<_> = (found.iter().filter(|(line, _)| !known.contains(*line))).collect();
    assert!(new.is_empty(), "cycles of folders: {new:#?}");
    let gone: Vec<_> = known
        .iter()
        .filter(|line| !found.contains_key(*line))
        .collect();
    assert!(
        gone.is_empty(),
        "no longer in cycles, so not for the list: {gone:#?}"
    );
}

fn planted(files: &[(&str, &str)]) -> Crate {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("creates a folder");
        fs::write(path, text).expect("writes a file");
    }
    Crate::read(&folder.path().join("lib.rs"))
}

/// The files have no cycle, but a re-export makes a cycle of two folders.
#[test]
fn planted_cycles_of_folders_are_found() {
    let with = |top: &str| {
        let this = planted(&[
            ("lib.rs", "mod low; mod top; pub use low::Noun;"),
            ("low.rs", &format!("mod noun; pub use noun::Noun; {top}")),
            ("low/noun.rs", "pub struct Noun;"),
            ("top.rs", "mod kind; pub use kind::Kind;"),
            ("top/kind.rs", "pub struct Kind(crate::Noun);"),
        ]);
        assert_eq!(this.cycles(), [""; 0]);
        this.cycles_of_folders().into_keys().collect::<Vec<_>>()
    };
    assert_eq!(with(""), []);
    let both = [("low", "top"), ("top", "low")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(with("pub use crate::top::Kind;"), both);
    assert_eq!(with("#[cfg(all(test, unix))] use crate::top::Kind;"), []);
}

#[test]
fn planted_cycles_are_found() {
    let cycles = |files: &[(&str, &str)]| planted(files).cycles();
    let lib = ("lib.rs", "mod a; mod b; pub use b::B;");
    let a = ("a.rs", "pub struct A(crate::B); pub fn make() {}");
    let tied_by = |b| cycles(&[lib, a, ("b.rs", b)]);
    let free = tied_by("/// [`A`](crate::a::A)\npub struct B; #[cfg(test)] use crate::a::A;");
    assert_eq!(free, [""; 0]);
    // `a` reaches `B` by a re-export of the parent, and `b` calls `a` by an inline path.
    let found = tied_by("pub struct B; fn f() { crate::a::make() }").join("\n");
    assert!(found.contains("b.rs: {\"crate::B\"}\n"), "{found}");
    assert!(found.ends_with("a.rs: {\"crate::a::make\"}"), "{found}");
    // An exported macro belongs to the file that defines it.
    let with_macro = "#[macro_export] macro_rules! m { () => {} } use crate::a::make;";
    let found = cycles(&[
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
        let found = cycles(&[("lib.rs", lib), ("odd/c.rs", &child)]);
        assert_eq!(found.len(), 2, "{import}: {found:?}");
    }
}
