//! The imports in the text of a module, and the items that are compiled for tests only.

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, Meta, Token, UseTree};

/// The paths that items mention outside of attributes and test code.
#[derive(Default)]
pub struct Paths(pub Vec<Vec<String>>);

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
pub fn leaves(mut prefix: Vec<String>, tree: &UseTree) -> Vec<(Vec<String>, Option<String>)> {
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
pub fn parts(item: &Item) -> (Option<&Ident>, &[Attribute]) {
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
pub fn is_test(item: &Item) -> bool {
    let is_test = |cfg: Meta| {
        let all = |list: &syn::MetaList| {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            list.path.is_ident("all")
                && parts.is_ok_and(|parts| parts.iter().any(|part| part.path().is_ident("test")))
        };
        cfg.path().is_ident("test") || cfg.require_list().is_ok_and(all)
    };
    let mut cfgs = parts(item)
        .1
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.any(|cfg| cfg.parse_args().is_ok_and(is_test))
}
