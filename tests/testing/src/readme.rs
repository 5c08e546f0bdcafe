//! The tables of options in README.md. Each table follows a line `<!-- options of <struct> -->`.

use mkernel_spec::OptionTable;

/// Returns README.md with its tables replaced by those that the code declares.
///
/// # Errors
/// README.md lacks the marker of a table. The error names the marker.
pub fn with_tables(readme: &str) -> Result<String, String> {
    let mut text = readme.to_owned();
    for table in OptionTable::all() {
        let marker = format!("<!-- options of {} -->\n\n", table.of);
        let lacks = || format!("README.md has no line {marker:?}");
        let (before, after) = text.split_once(&marker).ok_or_else(lacks)?;
        let is_row = |line: &&str| line.starts_with('|');
        let old: usize = after
            .split_inclusive('\n')
            .take_while(is_row)
            .map(str::len)
            .sum();
        text = format!("{before}{marker}{table}{}", &after[old..]);
    }
    Ok(text)
}
