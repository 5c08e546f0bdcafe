//! Mutants: mistakes that are generated from the text of a kernel, to see that the simulator finds each.
//!
//! A kernel is compiled once with all its mutants in it. A [`Switch`] in the memory of the test says which one is active, and
//! the kernel notes there which ones it reaches. Mutants are found in the text by `operators::points`, and nothing in
//! the headers names them.

pub mod exceptions;
pub mod finders;
mod operators;
mod scan;
mod tokens;

pub use operators::Operator;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The edit of a kernel that plants all mutants. The address of their switch follows.
pub const PLANT: &str = "all mutants";

/// The most mutants of all kernels.
const MOST: usize = 1 << 16;

/// A mistake that a kernel may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mutant {
    /// The header, or `kernel` for the text that the templates emit.
    pub file: String,
    /// The line of the header, or 0.
    pub line: u32,
    /// The function that is changed.
    pub function: String,
    /// The change of the statement or call.
    pub operator: Operator,
    /// The text of the statement or call, with single spaces.
    pub what: String,
    /// The number of mutants before this one in the text that agree in everything but the line.
    pub before: usize,
}

/// Writes the file, the function, the operator and the text, by which lists name a mutant. Mutants that agree in these are
/// numbered from the second one on. In the text that the templates emit, such mutants are one mutant of all buckets.
impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            function,
            operator,
            what,
            before,
            ..
        } = self;
        write!(f, "{file} | {function} | {} | {what}", operator.name())?;
        match before {
            0 => Ok(()),
            before => write!(f, " | {}", before + 1),
        }
    }
}

/// The mutants of all texts so far. A mutant has the same number in every kernel.
#[derive(Default)]
struct Numbers {
    numbers: HashMap<Mutant, u32>,
    mutants: Vec<Mutant>,
}

static NUMBERS: LazyLock<Mutex<Numbers>> = LazyLock::new(Mutex::default);

impl Numbers {
    fn of(&mut self, mutant: Mutant) -> u32 {
        if let Some(number) = self.numbers.get(&mutant) {
            return *number;
        }
        self.mutants.push(mutant.clone());
        let number = self.mutants.len() as u32;
        assert!((number as usize) < MOST, "too many mutants");
        self.numbers.insert(mutant, number);
        number
    }
}

/// Returns all mutants of the kernels that were compiled so far. The number of a mutant is 1 more than its index.
pub fn all() -> Vec<Mutant> {
    NUMBERS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .mutants
        .clone()
}

/// The word that activates a mutant of a kernel, and the marks of mutants that the kernel has reached.
#[repr(C)]
pub struct Switch {
    active: AtomicU32,
    is_reached: [AtomicU8; MOST],
    steps: AtomicU64,
}

impl Switch {
    /// Creates a switch that lives as long as the process, since kernels have its address.
    pub fn leak() -> &'static Self {
        let is_reached = [const { AtomicU8::new(0) }; MOST];
        Box::leak(Box::new(Self {
            active: AtomicU32::new(0),
            is_reached,
            steps: AtomicU64::new(0),
        }))
    }

    /// Activates the mutant with this number, or none with 0.
    pub fn activate(&self, number: u32) {
        self.steps.store(0, Ordering::Relaxed);
        self.active.store(number, Ordering::Relaxed);
    }

    /// Returns the numbers of the mutants that kernels with this switch have reached.
    pub fn reached(&self) -> Vec<u32> {
        let is_reached =
            |number: &u32| self.is_reached[*number as usize].load(Ordering::Relaxed) != 0;
        (1..MOST as u32).filter(is_reached).collect()
    }
}

/// Returns the text of a kernel with all its mutants, which the switch at this address activates.
pub fn with_mutants(text: &str, switch: &str) -> String {
    let points = operators::points(text);
    let mut insertions = Vec::new();
    let mut alike = HashMap::new();
    let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    for point in &points {
        let is_header = point.file.starts_with("mk/");
        let of_point = point.operators.iter().map(|operator| {
            let mut mutant = Mutant {
                file: if is_header { point.file } else { "kernel" }.into(),
                line: if is_header { point.line } else { 0 },
                function: point.function.into(),
                operator: *operator,
                what: point.what.clone(),
                before: 0,
            };
            if is_header {
                let alike = alike.entry(mutant.to_string()).or_insert(0);
                (mutant.before, *alike) = (*alike, *alike + 1);
            }
            format!("{}u", numbers.of(mutant))
        });
        let joined = of_point.collect::<Vec<_>>().join(", ");
        let texts = point.insertions.iter();
        insertions.extend(texts.map(|(at, text)| (*at, text.replace('%', &joined))));
    }
    // An outer statement or call comes before what it contains. All that ends at the same place ends in the same way.
    insertions.sort_by_key(|(at, _)| *at);
    let mut out = include_str!("mutants/prelude.cuh").replace("SWITCH", switch);
    out.push_str("#line 1 \"kernel.cu\"\n");
    let mut copied = 0;
    for (at, insertion) in insertions {
        out.push_str(&text[copied..at]);
        out.push_str(&insertion);
        copied = at;
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mutants of a function whose body has this text.
    fn mutants_of(body: &str) -> Vec<(Operator, String)> {
        let text = format!(
            "#line 1 \"mk/x.cuh\"\nnamespace mk {{\ntemplate <class T>\nstruct X {{\n  static constexpr bool kIs = \
             requires {{ T::wait(1); }};\n  MK_DEVICE void run(u32 n) const {{\n{body}\n  }}\n}};\n}}\n"
        );
        let points = operators::points(&text);
        let of_point = |point: &operators::Point<'_>| {
            assert_eq!(
                (point.file, point.line, point.function),
                ("mk/x.cuh", 6, "run")
            );
            let what = point.what.clone();
            let named = |operator: &Operator| (*operator, what.clone());
            point.operators.iter().map(named).collect::<Vec<_>>()
        };
        points.iter().flat_map(of_point).collect()
    }

    #[test]
    fn statements_that_order_threads_have_mutants() {
        use Operator::{Deleted, Flipped, OneLess, OneMore, Weaker};
        let mutants = |body: &str| -> Vec<Operator> {
            mutants_of(body)
                .into_iter()
                .map(|(operator, _)| operator)
                .collect()
        };
        assert_eq!(mutants("if (n < 3) fence_sys();"), [Deleted, Weaker]);
        assert_eq!(mutants("for (;;) { __syncwarp(); }"), [Deleted]);
        assert_eq!(
            mutants("wait(ctx, {1, a<2>(n)});"),
            [Deleted, OneMore, OneLess]
        );
        assert_eq!(
            mutants("each([&](u32 i) { ++count; });"),
            [Deleted, Deleted]
        );
        assert_eq!(mutants("const u32 x = buffer(ctx.parity());"), [Flipped]);
        assert_eq!(mutants("return load_relaxed_sys(p);"), []);
        assert_eq!(
            mutants("arrived.at(n) = 1; Deadline wait; using Fence = X; x = y;"),
            [Deleted]
        );
        assert_eq!(mutants("// wait(1);"), []);
    }

    #[test]
    fn a_mutant_keeps_its_number_and_its_line() {
        let text = "#line 8 \"mk/x.cuh\"\nvoid f() {\n  x.wait();\n}\n";
        let [first, second] = [0, 1].map(|_| with_mutants(text, "0x10"));
        assert_eq!(first, second);
        let mutant = all().into_iter().find(|mutant| mutant.what == "x.wait()");
        assert_eq!(mutant.map(|mutant| mutant.line), Some(9));
        let lines = first
            .lines()
            .skip_while(|line| !line.starts_with("#line 8"));
        let planted = lines
            .clone()
            .nth(2)
            .is_some_and(|line| line.ends_with(") x.wait(); }"));
        assert!(planted && lines.count() == 4, "{first}");
    }
}
