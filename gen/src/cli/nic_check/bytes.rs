//! Checks of bytes: on 1, 2 and 4 NICs, with and without flushes and relaxed ordering, and while processes are created.

use super::job::Job;
use super::outcome::{Figure, Outcome};
use super::traffic::{self, Tally};
use crate::cli::format::bytes;
use mkernel::Error;
use mkernel::network::{FabricTestLoad, FabricTestOptions, Flush, NicOptions, Transport};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The remedy for wrong bytes that no other setting avoids.
const WRONG_BYTES: &str = "run `mkernel-gen doctor` and look at its lines on PCIe and the IOMMU; update the driver and the firmware \
                           of the NIC; try other NICs by --nics";

fn summary(tally: &Tally) -> String {
    let Tally {
        puts,
        wrong_puts,
        wrong_words,
        poisoned_words,
        spills,
        ..
    } = tally;
    let all = format!("{puts} puts with {}", bytes(tally.bytes));
    match wrong_puts + spills {
        0 => format!("{all}, all bytes right"),
        _ => format!(
            "{all}, {wrong_puts} puts WRONG ({wrong_words} words, of which {poisoned_words} had not arrived), {spills} puts \
             changed memory behind their end"
        ),
    }
}

fn is_right(tally: &Tally) -> bool {
    tally.wrong_puts + tally.spills == 0
}

/// Traffic over the first NIC, the first two and the first four, as far as there are so many.
pub fn rails(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let load = job.load();
    let all = job.probe(job.transport, &load)?.stats().rails.len();
    let mut lines = Vec::new();
    let mut is_fine = true;
    for count in [1, 2, 4] {
        let transport = match job.transport {
            Transport::Emulated { nic, faults } => {
                let (mut nic, faults) = (nic.clone(), faults.clone());
                nic.rails = count as u32;
                Transport::Emulated { nic, faults }
            }
            // All ranks must agree on the number, and peers have equal numbers of NICs.
            _ if count > all => break,
            real => with_options(real, |options| options.rails = Some(count as u8)),
        };
        let probe = job.probe(&transport, &load)?;
        let tally = traffic::run(job, &probe, load)?;
        let rails = probe.stats().rails;
        let used = rails.iter().filter(|rail| rail.writes > 0).count();
        is_fine &= is_right(&tally) && used == count;
        let unused = match used {
            all if all == count => String::new(),
            used => format!(", but only {used} NICs were USED"),
        };
        lines.push(format!(
            "{count} of {} NICs: {}{unused}",
            all.max(count),
            summary(&tally)
        ));
    }
    let found = lines.join("\n");
    Ok(Some(match is_fine {
        true => Outcome::pass(found),
        false => Outcome::fail(found, WRONG_BYTES),
    }))
}

/// A transport over NICs with other options.
fn with_options(transport: &Transport, edit: impl FnOnce(&mut NicOptions)) -> Transport {
    let mut transport = transport.clone();
    match &mut transport {
        Transport::Emulated { .. } => {}
        Transport::Rc(options) | Transport::Efa(options) => edit(options),
    }
    transport
}

/// Traffic into memory of NaNs with each combination of flushes and relaxed ordering.
pub fn poison(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let load = job.load();
    let is_emulated = matches!(job.transport, Transport::Emulated { .. });
    let relaxed_values = if is_emulated {
        &[false][..]
    } else {
        &[false, true]
    };
    let (mut lines, mut figures, mut right) = (Vec::new(), Vec::new(), Vec::new());
    for &relaxed in relaxed_values {
        for flush in [false, true] {
            let probe = job.probe(&ordered(job.transport, flush, relaxed), &load)?;
            let start = Instant::now();
            let tally = traffic::run(job, &probe, load)?;
            let seconds = start.elapsed().as_secs_f64();
            let setting = format!(
                "flush {}, relaxed ordering {}",
                if flush { "always" } else { "never" },
                u8::from(relaxed)
            );
            let flushes: u64 = probe.stats().rails.iter().map(|rail| rail.flushes).sum();
            let is_flushed = (flushes > 0) == flush;
            lines.push(format!("{setting}: {}, {flushes} flushes", summary(&tally)));
            figures.push(Figure {
                name: setting,
                value: tally.bytes as f64 / seconds / 1e9,
                unit: "GB/s into a rank, with the comparison".into(),
            });
            right.push((flush, relaxed, is_right(&tally) && is_flushed));
        }
    }
    let found = lines.join("\n");
    let outcome = match remedy(&right) {
        None => Outcome::pass(found),
        Some(remedy) => Outcome::fail(found, remedy),
    };
    let is_first = job.ranks.rank() == 0;
    Ok(Some(outcome.with_figures(if is_first {
        figures
    } else {
        Vec::new()
    })))
}

/// The transport with or without flushes and relaxed ordering.
fn ordered(transport: &Transport, flush: bool, relaxed: bool) -> Transport {
    let mut transport = with_options(transport, |options| {
        options.flush = if flush { Flush::Always } else { Flush::Never };
        options.relaxed_ordering = relaxed;
    });
    if let Transport::Emulated { nic, .. } = &mut transport {
        nic.flushes_arrivals = flush;
    }
    transport
}

/// The setting that avoids wrong bytes. `right` holds flush, relaxed ordering, and whether the bytes were right.
fn remedy(right: &[(bool, bool, bool)]) -> Option<&'static str> {
    let all = |with: fn(bool, bool) -> bool| {
        let mut these = right
            .iter()
            .filter(|(flush, relaxed, _)| with(*flush, *relaxed));
        these.all(|(_, _, is_right)| *is_right)
    };
    if all(|_, _| true) {
        None
    } else if all(|flush, _| flush) {
        Some("set MKERNEL_FLUSH=always, and report this machine, since auto has to choose it")
    } else if all(|_, relaxed| !relaxed) {
        Some("leave MKERNEL_RELAXED_ORDERING at 0")
    } else if all(|flush, relaxed| flush && !relaxed) {
        Some("set MKERNEL_FLUSH=always, and leave MKERNEL_RELAXED_ORDERING at 0")
    } else {
        Some(WRONG_BYTES)
    }
}

/// Messages of kernels into GPU memory, which kernels check.
pub fn gpu_memory(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    if job.ranks.is_simulated() {
        let reason = "the GPUs are simulated, and no NIC reaches their memory";
        return Ok(Some(Outcome::not_checked(reason)));
    }
    let load = job.load();
    let sizes =
        [8, 4096, 65_536, 1 << 20, load.most_bytes].map(|size: u32| size.min(load.most_bytes));
    let test = job.ranks.fabric_test(&FabricTestOptions {
        nodes: job.nodes,
        message_bytes: load.most_bytes,
        window: 8,
        transport: job.transport.clone(),
    })?;
    let mut wrong = 0;
    for message_bytes in sizes {
        let result = test.run(&FabricTestLoad {
            message_bytes,
            messages: load.puts.next_multiple_of(2),
            untimed: 0,
            window: 8,
            batch: 2,
            check: Some(load.seed),
            probe: false,
        })?;
        wrong += result
            .wrong_words
            .iter()
            .map(|(_, words)| words)
            .sum::<u64>();
    }
    let found = format!("{} messages of each of {} sizes", load.puts, sizes.len());
    Ok(Some(match wrong {
        0 => Outcome::pass(format!("{found}, all words right")),
        wrong => Outcome::fail(
            format!("{found}, {wrong} words WRONG"),
            "run the check again with MKERNEL_FLUSH=always; if the words are right then, keep this setting and report this machine",
        ),
    }))
}

/// Traffic while another thread creates processes all the time.
pub fn forks(job: &Job<'_>) -> Result<Option<Outcome>, Error> {
    let load = job.load();
    let probe = job.probe(job.transport, &load)?;
    let is_over = AtomicBool::new(false);
    let (tally, forks) = std::thread::scope(|scope| {
        let storm = scope.spawn(|| storm(&is_over));
        let tally = traffic::run(job, &probe, load);
        is_over.store(true, Ordering::Relaxed);
        (tally, storm.join().unwrap_or(0))
    });
    let tally = tally?;
    let found = format!("{forks} forks during {}", summary(&tally));
    Ok(Some(match (is_right(&tally), forks) {
        (true, 0) => Outcome::not_checked("no process could be created; check `ulimit -u`"),
        (true, _) => Outcome::pass(found),
        (false, _) => Outcome::fail(
            found,
            "use Linux 5.12 or newer, which copies pinned pages when a process forks, or create no processes while kernels run",
        ),
    }))
}

/// Creates processes until the traffic is over, at least one. Returns their number.
fn storm(is_over: &AtomicBool) -> u64 {
    let mut forks = 0;
    loop {
        let mut child = Command::new("true");
        child.stdin(Stdio::null()).stdout(Stdio::null());
        // With a group, the standard library calls fork instead of posix_spawn, which shares memory with its parent.
        child.gid(rustix::process::getgid().as_raw());
        match child.status() {
            Ok(_) => forks += 1,
            Err(_) => return forks,
        }
        if is_over.load(Ordering::Relaxed) {
            return forks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_the_setting_that_helps() {
        let with = |wrong: fn(bool, bool) -> bool| {
            let both = [false, true];
            let all = both
                .iter()
                .flat_map(|relaxed| both.iter().map(move |flush| (*flush, *relaxed)));
            let right: Vec<_> = all
                .map(|(flush, relaxed)| (flush, relaxed, !wrong(flush, relaxed)))
                .collect();
            remedy(&right)
        };
        assert_eq!(with(|_, _| false), None);
        let text = |wrong| with(wrong).expect("a remedy");
        assert!(text(|flush, _| !flush).contains("FLUSH=always"));
        assert!(text(|_, relaxed| relaxed).contains("RELAXED_ORDERING at 0"));
        let both = text(|flush, relaxed| !flush || relaxed);
        assert!(both.contains("FLUSH=always") && both.contains("ORDERING at 0"));
        assert_eq!(text(|_, _| true), WRONG_BYTES);
    }
}
