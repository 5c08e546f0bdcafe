//! Every figure has one author. A table that quotes rows of another file follows the line `<!-- rows of <file> -->`.

use crate::documents;
use mkernel_testing::documents::Document;

#[test]
fn quoted_rows_match_their_file() {
    let mut count = 0;
    for document in documents() {
        for part in document.text.split("<!-- rows of ").skip(1) {
            let (file, table) = part.split_once(" -->\n\n").expect("the end of the mark");
            let file = Document::read(file).expect("the file that is quoted");
            let rows = table.lines().take_while(|line| line.starts_with('|'));
            // The heading and the line below it may differ.
            for row in rows.skip(2) {
                let place = document.path.display();
                assert!(file.text.contains(row), "{place} has another row: {row}");
                count += 1;
            }
        }
    }
    assert!(count > 0, "no document quotes figures");
}
