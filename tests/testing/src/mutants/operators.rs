//! The operators of mutation: what a mutant does to a statement or a call.

use super::scan::{Form, Place, Scan};

/// Parts of the names of functions that order threads, and of words that they count.
const ORDERING: [&str; 17] = [
    "wait",
    "arrive",
    "expect",
    "fence",
    "sync",
    "signal",
    "count",
    "commit",
    "release",
    "acquire",
    "advance",
    "announce",
    "reset",
    "clear",
    "store_relaxed",
    "add_relaxed",
    "exchange_relaxed",
];

/// Primitives that have a weaker form in the namespace `mk::mutants`, see `prelude.cuh`.
const WITH_WEAKER: [&str; 11] = [
    "load_acquire_sys",
    "load_acquire_gpu",
    "store_release_sys",
    "store_release_gpu",
    "add_release_gpu",
    "fetch_add_acq_rel_gpu",
    "fence_sys",
    "wait_flag",
    "wait_mark",
    "tma_wait",
    "mma_wait",
];

/// The change that a mutant makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// Leaves a statement out.
    Deleted,
    /// Calls a primitive with less order.
    Weaker,
    /// Adds one to what is counted or awaited.
    OneMore,
    /// Takes one from what is counted or awaited.
    OneLess,
    /// Takes the other parity.
    Flipped,
    /// Takes the first place of a region for all values of an index.
    OnePlace,
}

impl Operator {
    /// Returns the name of the operator in the list of exceptions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::Weaker => "weaker",
            Self::OneMore => "one more",
            Self::OneLess => "one less",
            Self::Flipped => "flipped",
            Self::OnePlace => "one place",
        }
    }
}

/// A place of a text that mutants change: the operators, the text before the number of each and behind the last one, and
/// where it is inserted.
#[derive(Debug)]
pub struct Point<'t> {
    pub operators: &'static [Operator],
    pub function: &'t str,
    pub file: &'t str,
    pub line: u32,
    /// The statement or call, with single spaces.
    pub what: String,
    /// The insertions: the offset, and the text, in which `%` stands for the numbers of the mutants.
    pub insertions: Vec<(usize, &'static str)>,
}

/// Returns all places of `text` that a mutation may change, in the order of the text.
pub fn points(text: &str) -> Vec<Point<'_>> {
    let scan = Scan::of(text);
    let mut points = Points {
        scan: &scan,
        found: Vec::new(),
    };
    for place in &scan.places {
        match place.form {
            Form::Statement { begin, semicolon } => points.of_statement(place, begin, semicolon),
            Form::Call { name, open } => points.of_call(place, name, open),
        }
    }
    points.found
}

fn is_ordering(name: &str) -> bool {
    ORDERING.iter().any(|part| name.contains(part))
}

struct Points<'s, 't> {
    scan: &'s Scan<'t>,
    found: Vec<Point<'t>>,
}

impl<'t> Points<'_, 't> {
    /// Adds the mutant that leaves out the statement from `begin` to the semicolon.
    fn of_statement(&mut self, place: &Place<'t>, begin: usize, semicolon: usize) {
        let scan = self.scan;
        if !(begin..semicolon).any(|index| is_ordering(scan.word(index))) {
            return;
        }
        let (first, last) = (scan.tokens[begin], scan.tokens[semicolon]);
        let insertions = vec![
            (first.at, "{ if (!mk::mutants::is_active(%)) "),
            (last.end(), " }"),
        ];
        self.add(place, &[Operator::Deleted], (begin, semicolon), insertions);
    }

    /// Adds the mutants of the call of the function named at `name`, with arguments at `open`.
    fn of_call(&mut self, place: &Place<'t>, name: usize, open: usize) {
        let scan = self.scan;
        let (called, before) = (scan.word(name), scan.word(name.wrapping_sub(1)));
        let range = (name, scan.close(open) + 1);
        let arguments = scan.arguments(open);
        if WITH_WEAKER.contains(&called) && !matches!(before, "." | "->" | "::") {
            let number = if arguments.is_empty() { "%" } else { "%, " };
            let insertions = vec![
                (scan.tokens[name].at, "mk::mutants::"),
                (scan.tokens[open].end(), number),
            ];
            self.add(place, &[Operator::Weaker], range, insertions);
        }
        if matches!(called, "parity" | "call_parity") && before == "." {
            let parity = (name - 2, range.1);
            let insertions = self.around(parity, "mk::mutants::flipped<%>(");
            self.add(place, &[Operator::Flipped], parity, insertions);
        }
        if called == "at" && matches!(place.type_name, "Workspace" | "Smem") {
            let skipped = usize::from(place.type_name == "Smem");
            for argument in arguments.iter().skip(skipped) {
                let insertions = self.around(*argument, "mk::mutants::first<%>(");
                self.add(place, &[Operator::OnePlace], *argument, insertions);
            }
        } else if called.starts_with("wait_barrier") && arguments.len() > 2 {
            let insertions = self.around(arguments[2], "mk::mutants::flipped<%>(");
            self.add(place, &[Operator::Flipped], range, insertions);
        } else if is_ordering(called) && !called.starts_with("barrier_arrive") {
            self.of_count(place, &arguments, range);
        }
    }

    /// Adds the mutants that change the last argument, which is what is counted or awaited.
    fn of_count(&mut self, place: &Place<'t>, arguments: &[(usize, usize)], range: (usize, usize)) {
        let scan = self.scan;
        let Some(mut last) = arguments.last().copied() else {
            return;
        };
        // The site of a wait, whose last value is what is awaited.
        let open = (last.0..last.0 + 2).find(|index| scan.word(*index) == "{");
        if let Some(open) = open.filter(|open| scan.close(*open) + 1 == last.1) {
            let values = scan.arguments(open);
            let Some(value) = values.last() else { return };
            last = *value;
        }
        let is_pack = (last.0..last.1).any(|index| scan.word(index) == "...");
        if is_pack || matches!(scan.word(last.0), "[" | "{") {
            return;
        }
        let insertions = self.around(last, "mk::mutants::off<%>(");
        self.add(
            place,
            &[Operator::OneMore, Operator::OneLess],
            range,
            insertions,
        );
    }

    fn around(
        &self,
        (begin, end): (usize, usize),
        call: &'static str,
    ) -> Vec<(usize, &'static str)> {
        let tokens = &self.scan.tokens;
        vec![(tokens[begin].at, call), (tokens[end - 1].end(), ")")]
    }

    fn add(
        &mut self,
        place: &Place<'t>,
        operators: &'static [Operator],
        (begin, end): (usize, usize),
        insertions: Vec<(usize, &'static str)>,
    ) {
        let (first, last) = (self.scan.tokens[begin], self.scan.tokens[end - 1]);
        let text = &self.scan.text[first.at..last.end()];
        let words: Vec<&str> = text.split_whitespace().collect();
        self.found.push(Point {
            operators,
            function: place.function,
            file: first.file,
            line: first.line,
            what: words.join(" "),
            insertions,
        });
    }
}
