//! Measurements as a page of HTML with plots, which needs no other file and no network.

use super::measurement::{self, Measurement};
use super::plot;
use super::series::{self, Series};
use super::table::{beside, number};
use std::error::Error;
use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1320px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right}\
td:first-child,th:first-child{text-align:left}.plots{display:flex;flex-wrap:wrap}h2{margin-top:2em;font-size:1.1em}";

const ABOUT: &str = "A time is the median over rounds of a call on its slowest rank; bars and the column min..max show the spread. SM MHz are the clocks of rank 0 before and after the rounds. \
The bound is the least time in which the GPUs can compute and move the data of a call. Behind the time of a rival stands its ratio to the \
time of the kernel. Calls are timed in CUDA graphs, in turns with the rivals.";

/// The page.
pub fn page(all: &[Measurement]) -> Result<String, Box<dyn Error>> {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>mkernel-gen bench</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>Times of mkernel's kernels</h1>\n<p>{ABOUT}</p>\n"
    );
    for series in series::divide(all) {
        let (times, shares) = (plot::times(&series)?, plot::shares(&series)?);
        let title = escaped(&series.title);
        write!(
            html,
            "<h2>{title}</h2>\n<div class=\"plots\">\n{times}\n{shares}\n</div>\n"
        )?;
        html += &rows(&series);
    }
    html += "<h2>Notes</h2>\n<ul>\n";
    for note in measurement::notes(all) {
        writeln!(html, "<li>{}</li>", escaped(&note))?;
    }
    html += "</ul>\n</body>\n</html>\n";
    Ok(html)
}

/// The table of a series.
fn rows(series: &Series) -> String {
    let rivals = measurement::rivals(series.points.iter().copied());
    let columns = [
        "µs",
        "min..max",
        "bound µs",
        "of bound",
        "bound by",
        "SM MHz",
        "plan",
    ];
    let mut heading = vec![series.size];
    heading.extend(columns);
    heading.extend(&rivals);
    let mut html = "<table>\n".to_owned() + &line("th", heading.into_iter().map(str::to_owned));
    for point in &series.points {
        let time = point.time;
        let mut cells = vec![
            series.x(point).to_string(),
            number(time.us),
            format!("{}..{}", number(time.min_us), number(time.max_us)),
            number(point.bound_us),
            format!("{:.0} %", 100.0 * point.share_of_bound()),
            point.bound_reason.clone(),
            point.clock(),
            point.id.clone(),
        ];
        cells.extend(rivals.iter().map(|name| {
            let rival = point.rival(name);
            rival.map_or("-".to_owned(), |rival| beside(rival, time))
        }));
        html += &line("td", cells.into_iter());
    }
    html + "</table>\n"
}

fn line(tag: &str, cells: impl Iterator<Item = String>) -> String {
    let cells = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell)));
    format!("<tr>{}</tr>\n", cells.collect::<String>())
}

/// Text with the characters that have a meaning in HTML escaped.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::measurement::example;
    use super::*;

    #[test]
    fn a_page_has_plots_tables_and_notes_and_needs_no_other_file() {
        let mut all: Vec<_> = [1, 16, 4096].map(|m| example(m, 10.0 + m as f64)).into();
        all[0].notes.push("<b> & co".to_owned());
        let html = page(&all).expect("plots");
        assert_eq!(html.matches("<svg").count(), 2);
        // A line with its points for the kernel, the bound and each rival, and the shares.
        assert_eq!(html.matches("<circle").count(), 3 * (4 + 1));
        assert!(html.contains("cuBLAS, then NCCL</th>"), "{html}");
        assert!(html.contains("<td>4096</td><td>4106</td>"), "{html}");
        assert!(html.contains("&lt;b&gt; &amp; co (gemm_ar m=1 "), "{html}");
        let addresses = html.matches("http").count();
        let namespaces = html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count();
        assert_eq!(addresses, namespaces, "nothing is loaded");
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn a_single_point_has_plots() {
        let mut measured = example(16, 20.0);
        for bound_us in [10.0, 0.0] {
            measured.bound_us = bound_us;
            let html = page(std::slice::from_ref(&measured)).expect("plots");
            assert_eq!(html.matches("<svg").count(), 2);
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        }
    }
}
