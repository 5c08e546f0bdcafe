//! The sections of the book about the `Cargo.toml` of a user's crate and workspace.

use super::chapter;
use mkernel_testing::documents;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use toml::Table;

/// Returns the manifests, or parts of them, in the chapter "Getting started" that have the table `name`.
fn quoted(name: &str) -> Vec<Table> {
    let text = chapter("getting-started.md").text;
    let blocks = text.split("```toml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
    let tables = blocks.map(|block| block.parse::<Table>().expect("TOML"));
    tables.filter(|table| table.contains_key(name)).collect()
}

#[test]
fn profiles_in_the_book_match_the_repository() {
    let manifest = fs::read_to_string(documents::root().join("Cargo.toml")).expect("a manifest");
    let manifest: Table = manifest.parse().expect("TOML");
    let own = &manifest["profile"]["dev"]["package"];
    let [quoted] = &*quoted("profile") else {
        panic!("one manifest with profiles");
    };
    let packages = quoted["profile"]["dev"]["package"].as_table();
    let packages = packages.expect("profiles of packages");
    for name in ["mkernel-sim", "corosensei", "sha2"] {
        assert_eq!(packages.get(name), own.get(name), "{name}");
    }
    assert_eq!(packages.len(), 3);
}

/// Loads a workspace that has this repository in its folder.
fn load(workspace: &str, dependencies: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("temporary folder");
    let at = |path: &str| dir.path().join(path);
    let write = |path: &Path, text: &str| fs::write(path, text).expect("file");
    fs::create_dir_all(at("app/src")).expect("folder");
    fs::create_dir(at("third_party")).expect("folder");
    symlink(documents::root(), at("third_party/mkernel")).expect("link");
    write(&at("Cargo.toml"), workspace);
    write(&at("app/src/main.rs"), "fn main() {}");
    let package = "[package]\nname = \"app\"\nedition = \"2024\"\n\n";
    write(&at("app/Cargo.toml"), &(package.to_owned() + dependencies));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--offline",
        "--no-deps",
        "--format-version",
        "1",
    ]);
    let output = cargo
        .current_dir(dir.path())
        .output()
        .expect("cargo starts");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn a_workspace_that_has_the_repository_in_its_folder_excludes_it() {
    let ([workspace], [dependencies]) = (&*quoted("workspace"), &*quoted("dependencies")) else {
        panic!("one manifest of a workspace and one of a crate in it");
    };
    let dependencies = dependencies.to_string();
    load(&workspace.to_string(), &dependencies).expect("the manifests of the book");
    let mut without = workspace.clone();
    let members = without["workspace"].as_table_mut().expect("a table");
    members.remove("exclude").expect("the line that matters");
    let error = load(&without.to_string(), &dependencies).expect_err("two workspaces");
    let quoted =
        "error inheriting `edition` from workspace root manifest's `workspace.package.edition`";
    assert!(error.contains(quoted), "{error}");
    let book = chapter("getting-started.md").text.replace('\n', " ");
    assert!(book.contains(quoted), "the book quotes what cargo says");
}
