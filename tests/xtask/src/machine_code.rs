//! Compiles every golden kernel, and compares the machine code with the machine code of another revision.
//!
//! A change that must not affect kernels keeps their machine code, or at least the order of the instructions that other
//! threads, SMs and GPUs can observe: fences, barriers, TMA, wgmma, atomics, loads, stores and waits. Address
//! arithmetic may differ, since the compiler chooses its order.

use mkernel_compile::Nvrtc;
use mkernel_testing::golden::Golden;
use object::{Object, ObjectSection};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Mutex;
use std::{fs, thread};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(clap::Args)]
pub struct Flags {
    /// Write the figures to this file, for a comparison with another revision
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with the figures of another revision, and fail if observable instructions or their order differ
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Only golden kernels whose name contains one of these texts
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

/// The figures of a compiled kernel.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Figures {
    /// The number of lines of the kernel's text.
    lines: usize,
    /// Registers per thread.
    registers: u32,
    /// Bytes of registers that are spilled: stored to and loaded from memory.
    spill_bytes: u32,
    /// The machine code in hexadecimal digits.
    code: String,
    /// The instructions that other threads can observe, in the order of the PTX.
    visible: Vec<String>,
}

impl Figures {
    fn code_bytes(&self) -> usize {
        self.code.len() / 2
    }
}

type Table = BTreeMap<String, Figures>;

/// Compiles the kernels and prints their figures. Returns whether no kernel differs from the other revision.
pub fn run(flags: &Flags) -> Result<bool> {
    let old: Option<Table> = match &flags.against {
        Some(path) => Some(serde_json::from_slice(&fs::read(path)?)?),
        None => None,
    };
    let goldens: Vec<Golden> = (Golden::all().into_iter())
        .filter(|golden| flags.wants(&golden.name))
        .collect();
    let table = compile_all(&goldens)?;
    if let Some(path) = &flags.save {
        fs::write(path, serde_json::to_vec(&table)?)?;
    }
    println!(
        "{:28} {:>11} {:>9} {:>6} {:>16}  instructions that others can observe",
        "kernel", "lines", "registers", "spills", "code bytes"
    );
    let mut is_same = true;
    for (name, new) in &table {
        let old = old.as_ref().map(|old| old.get(name));
        let (verdict, fits) = verdict(old, new);
        is_same &= fits;
        let before = old.flatten();
        let both = |figure: &dyn Fn(&Figures) -> usize| match before {
            Some(old) if figure(old) != figure(new) => format!("{} > {}", figure(old), figure(new)),
            _ => figure(new).to_string(),
        };
        println!(
            "{name:28} {:>11} {:>9} {:>6} {:>16}  {}, {verdict}",
            both(&|f| f.lines),
            both(&|f| f.registers as usize),
            both(&|f| f.spill_bytes as usize),
            both(&Figures::code_bytes),
            new.visible.len(),
        );
    }
    let sum = |table: &Table, figure: &dyn Fn(&Figures) -> usize| -> usize {
        (table.iter().filter(|(name, _)| flags.wants(name)))
            .map(|(_, figures)| figure(figures))
            .sum()
    };
    let both = |figure: &dyn Fn(&Figures) -> usize| match &old {
        Some(old) => format!("{} > {}", sum(old, figure), sum(&table, figure)),
        None => sum(&table, figure).to_string(),
    };
    println!(
        "{} kernels, lines {}, code bytes {}",
        table.len(),
        both(&|f| f.lines),
        both(&Figures::code_bytes)
    );
    Ok(is_same)
}

impl Flags {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }
}

/// Returns the verdict on a kernel, and whether it equals the old kernel. A new kernel counts as equal.
fn verdict(old: Option<Option<&Figures>>, new: &Figures) -> (String, bool) {
    match old {
        None => ("not compared".into(), true),
        Some(None) => ("new".into(), true),
        Some(Some(old)) if old.code == new.code => ("same machine code".into(), true),
        Some(Some(old)) if old.visible == new.visible => ("same order".into(), true),
        Some(Some(old)) => (difference(&old.visible, &new.visible), false),
    }
}

/// Describes the number of added and removed instructions of each kind, and the position of the first difference.
fn difference(old: &[String], new: &[String]) -> String {
    let mut counts = BTreeMap::<&str, i64>::new();
    for (instructions, sign) in [(old, -1), (new, 1)] {
        for instruction in instructions {
            *counts.entry(instruction).or_default() += sign;
        }
    }
    let changed: Vec<_> = (counts.into_iter())
        .filter(|(_, count)| *count != 0)
        .map(|(instruction, count)| format!("{count:+} {instruction}"))
        .collect();
    let first = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    if changed.is_empty() {
        format!("OTHER ORDER from instruction {first} on")
    } else {
        format!("OTHER from {first} on: {}", changed.join(", "))
    }
}

/// Compiles kernels on all cores.
fn compile_all(goldens: &[Golden]) -> Result<Table> {
    let (left, table) = (Mutex::new(goldens.iter()), Mutex::new(Table::new()));
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                loop {
                    let golden = left.lock().expect("no panic").next();
                    let Some(golden) = golden else { break };
                    match figures(golden) {
                        Ok(figures) => {
                            let mut table = table.lock().expect("no panic");
                            table.insert(golden.name.clone(), figures);
                        }
                        Err(error) => {
                            let mut failures = failures.lock().expect("no panic");
                            failures.push(format!("{}: {error}", golden.name));
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    if failures.is_empty() {
        Ok(table.into_inner().expect("no panic"))
    } else {
        Err(failures.join("\n").into())
    }
}

/// Compiles a kernel and returns its figures.
fn figures(golden: &Golden) -> Result<Figures> {
    let nvrtc = Nvrtc::load()?;
    let cubin = nvrtc.compile(&golden.source)?;
    let resources = cubin
        .resources
        .ok_or("the output of ptxas does not mention the kernel")?;
    let image = object::File::parse(&*cubin.bytes)?;
    let mut code = String::new();
    for section in image.sections() {
        if section.name()?.starts_with(".text.") {
            code.extend(section.data()?.iter().map(|byte| format!("{byte:02x}")));
        }
    }
    Ok(Figures {
        lines: golden.source.text.lines().count(),
        registers: resources.registers,
        spill_bytes: resources.spill_store_bytes + resources.spill_load_bytes,
        code,
        visible: visible(&nvrtc.ptx(&golden.source)?),
    })
}

/// The prefixes of instructions that other threads can observe, or that wait for other threads.
const VISIBLE: [&str; 30] = [
    "fence",
    "mbarrier",
    "bar.",
    "barrier",
    "wgmma",
    "cp.",
    "ld.acquire",
    "ld.relaxed",
    "ld.volatile",
    "ld.weak",
    "ld.shared",
    "ld.global",
    "st.relaxed",
    "st.release",
    "st.volatile",
    "st.weak",
    "st.shared",
    "st.global",
    "red.",
    "atom.",
    "stmatrix",
    "ldmatrix",
    "prefetch",
    "setmaxnreg",
    "nanosleep",
    "trap",
    "elect",
    "shfl",
    "redux",
    "griddepcontrol",
];

/// Returns the instructions of a PTX text that other threads can observe, without operands and predicates.
fn visible(ptx: &str) -> Vec<String> {
    let instruction = |line: &str| {
        let line = line.trim().trim_start_matches(['{', ' ']);
        let line = match line.strip_prefix('@') {
            Some(predicated) => predicated.split_once(' ')?.1.trim_start(),
            None => line,
        };
        let name = line.split([' ', ';', '\t']).next()?;
        VISIBLE
            .iter()
            .any(|start| name.starts_with(start))
            .then(|| name.to_owned())
    };
    ptx.lines().filter_map(instruction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "\
        // cp. is no instruction here\n\
        \tmov.u32 \t%r1, %tid.x;\n\
        \tfence.acq_rel.sys;\n\
        \t@%p1 ld.acquire.sys.global.u32 %r2, [%rd1];\n\
        {\n\
        \tcp.async.bulk.commit_group;\n\
        $L__BB0_1:\n\
        \tadd.s32 %r3, %r2, 1;\n";

    #[test]
    fn arithmetic_is_left_out_and_order_kept() {
        let expected = [
            "fence.acq_rel.sys",
            "ld.acquire.sys.global.u32",
            "cp.async.bulk.commit_group",
        ];
        assert_eq!(visible(PTX), expected);
    }

    #[test]
    fn a_removed_or_moved_fence_is_a_difference() {
        let figures = |visible: &[&str], code: &str| Figures {
            lines: 1,
            registers: 168,
            spill_bytes: 0,
            code: code.into(),
            visible: visible.iter().map(|&v| v.to_owned()).collect(),
        };
        let old = figures(&["fence", "red", "fence"], "00");
        let of = |new: &Figures| verdict(Some(Some(&old)), new);
        assert_eq!(
            of(&figures(&["red"], "00")),
            ("same machine code".into(), true)
        );
        assert_eq!(
            of(&figures(&["fence", "red", "fence"], "01")),
            ("same order".into(), true)
        );
        let gone = of(&figures(&["fence", "red"], "01"));
        assert_eq!(gone, ("OTHER from 2 on: -1 fence".into(), false));
        let moved = of(&figures(&["red", "fence", "fence"], "01"));
        assert_eq!(moved, ("OTHER ORDER from instruction 0 on".into(), false));
    }
}
