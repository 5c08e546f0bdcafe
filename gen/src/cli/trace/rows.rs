//! [`Rows`]: the rows of a rank in Perfetto. The spans of a row nest.

use mkernel::spec::abi::Activity;
use mkernel::trace::{Span, Trace};

/// The most rows of a warp: one for each thread that can wait for another flag than its neighbours.
const ROWS_OF_WARP: u64 = 64;

/// The rows of a rank, and the row of each of its spans.
pub struct Rows {
    /// The number and the name of each row.
    pub names: Vec<(u64, String)>,
    /// The number of the row of each span.
    pub of_spans: Vec<u64>,
}

impl Rows {
    /// Gives each warp a row. If threads of the warp wait for different flags, their spans overlap, and the warp has more rows.
    pub fn new(trace: &Trace) -> Self {
        let (mut names, mut of_spans) = (Vec::new(), Vec::with_capacity(trace.spans.len()));
        for of_warp in trace
            .spans
            .chunk_by(|a, b| (a.cta, a.warp) == (b.cta, b.warp))
        {
            let first = &of_warp[0];
            let number = (u64::from(first.cta) * 32 + u64::from(first.warp)) * ROWS_OF_WARP;
            let mut open: Vec<Vec<u64>> = Vec::new();
            for span in of_warp {
                let row = row_of(&mut open, span);
                of_spans.push(number + (row as u64).min(ROWS_OF_WARP - 1));
            }
            let name = name(of_warp);
            names.extend((0..open.len() as u64).map(|row| match row {
                0 => (number, name.clone()),
                _ => (number + row, format!("{name} ({})", row + 1)),
            }));
        }
        Self { names, of_spans }
    }
}

/// The first row in which the span nests. `open` holds the ends of spans that have not ended in each row.
fn row_of(open: &mut Vec<Vec<u64>>, span: &Span) -> usize {
    for row in &mut *open {
        row.retain(|end| *end > span.begin_ns);
    }
    let nests = |ends: &Vec<u64>| ends.last().is_none_or(|end| *end >= span.end_ns);
    let row = open.iter().position(nests).unwrap_or_else(|| {
        open.push(Vec::new());
        open.len() - 1
    });
    open[row].push(span.end_ns);
    row
}

/// The name of the row of a warp: its SM, its CTA, its number and its roles.
fn name(of_warp: &[Span]) -> String {
    let first = &of_warp[0];
    let roles = of_warp
        .iter()
        .filter(|span| span.activity == Activity::RunRole);
    let mut roles: Vec<_> = roles
        .filter_map(|span| span.role)
        .map(|role| role.cxx())
        .collect();
    roles.dedup();
    let Span { sm, cta, warp, .. } = first;
    format!("SM {sm:03} CTA {cta} warp {warp} {}", roles.join(", "))
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_do_not_nest_have_rows_of_their_own() {
        let span = |begin_ns, end_ns| Span {
            cta: 0,
            sm: 5,
            warp: 1,
            role: None,
            activity: Activity::Await,
            wait: None,
            peer: 0,
            index: 0,
            begin_ns,
            end_ns,
        };
        let spans = vec![
            span(0, 100),
            span(10, 50),
            span(20, 60),
            span(50, 70),
            span(60, 60),
        ];
        let trace = Trace {
            rank: 0,
            call: 1,
            begin_ns: 0,
            spans,
            dropped: 0,
            clock_step_ns: 1,
        };
        let rows = Rows::new(&trace);
        assert_eq!(rows.of_spans, [64, 64, 65, 64, 64]);
        let names: Vec<_> = rows.names.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["SM 005 CTA 0 warp 1", "SM 005 CTA 0 warp 1 (2)"]);
    }
}
