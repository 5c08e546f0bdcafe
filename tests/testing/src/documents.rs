//! The documents for users: README.md and the chapters of the book. The documents contain the tables of options, each
//! after a line `<!-- options of <struct> -->`.

use mkernel_spec::OptionTable;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A document in Markdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The path from the root of the repository.
    pub path: PathBuf,
    /// The contents.
    pub text: String,
}

impl Document {
    /// Reads the document at a path from the root of the repository.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let text = fs::read_to_string(root().join(&path));
        let text = text.map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
        Ok(Self { path, text })
    }

    /// Writes the document.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> io::Result<()> {
        fs::write(root().join(&self.path), &self.text)
    }
}

/// Returns the root of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the documents in a folder, in the order of their paths.
///
/// # Errors
/// The folder or a file cannot be read.
pub fn in_folder(folder: &str) -> io::Result<Vec<Document>> {
    let entries = fs::read_dir(root().join(folder))?;
    let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let paths = names?
        .into_iter()
        .map(|name| Path::new(folder).join(name))
        .filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut documents = paths.map(Document::read).collect::<io::Result<Vec<_>>>()?;
    documents.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(documents)
}

/// Returns README.md and the files of the book.
///
/// # Errors
/// A file cannot be read.
pub fn for_users() -> io::Result<Vec<Document>> {
    let mut documents = vec![Document::read("README.md")?];
    documents.extend(in_folder("docs/book/src")?);
    Ok(documents)
}

/// Returns the documents with their tables of options replaced by the tables that the code declares.
///
/// # Errors
/// The documents lack a table, or have a table twice. The error names the line that marks it.
pub fn with_tables(mut documents: Vec<Document>) -> Result<Vec<Document>, String> {
    for table in OptionTable::all() {
        let marker = format!("<!-- options of {} -->\n\n", table.of);
        let count = documents
            .iter()
            .map(|document| document.text.matches(&marker).count());
        match count.sum::<usize>() {
            1 => {}
            count => return Err(format!("{count} documents have the line {marker:?}, not 1")),
        }
        for document in &mut documents {
            if let Some((before, after)) = document.text.split_once(&marker) {
                let after = without_table(after);
                document.text = format!("{before}{marker}{table}{after}");
            }
        }
    }
    Ok(documents)
}

/// Returns what follows the table at the start of a text, with an empty line before it.
fn without_table(text: &str) -> String {
    let is_row = |line: &&str| line.starts_with('|');
    let rows = text.split_inclusive('\n').take_while(is_row);
    let rest = &text[rows.map(str::len).sum()..];
    match rest.is_empty() || rest.starts_with('\n') {
        true => rest.to_owned(),
        false => format!("\n{rest}"),
    }
}
