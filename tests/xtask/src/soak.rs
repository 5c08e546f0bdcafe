//! Runs test programs repeatedly while other threads keep the cores busy. A test that depends on timing passes on an
//! idle machine, and fails where its threads rarely get a core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(clap::Args)]
pub struct Flags {
    /// Number of runs of each program
    #[arg(long, default_value_t = 20)]
    runs: u32,
    /// Number of threads that keep the cores busy
    #[arg(long, default_value_t = 4)]
    busy: u32,
    /// Number of concurrent runs of a program, which load the cores for each other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    /// Number of cores for the program and the busy threads
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Seconds after which a run counts as hanging
    #[arg(long, default_value_t = 3600)]
    limit_s: u64,
    /// Only programs whose name contains one of these texts
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Skip programs whose name contains one of these texts
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// Folder for the output of runs that failed
    #[arg(long, default_value = "target/soak", value_name = "DIR")]
    out: PathBuf,
    /// Arguments for each program, such as the name of one test
    #[arg(last = true)]
    args: Vec<String>,
}

/// A test program as cargo builds it.
struct Program {
    /// The package and the target, as `package/target`.
    name: String,
    executable: PathBuf,
    /// The folder of the program's package, where cargo runs the program.
    folder: PathBuf,
}

/// Runs the programs. Returns whether all runs have passed.
pub fn run(flags: &Flags) -> Result<bool> {
    let programs: Vec<Program> = (build()?.into_iter())
        .filter(|program| flags.wants(&program.name))
        .collect();
    if programs.is_empty() {
        return Err("no test program matches --only and --skip".into());
    }
    std::fs::create_dir_all(&flags.out)?;
    restrict_to_cores(flags.cores)?;
    let _busy = Busy::start(flags.busy);
    let mut all_passed = true;
    println!(
        "{:40} {:>6} {:>6} {:>8} {:>8}",
        "program", "runs", "failed", "least s", "most s"
    );
    for program in &programs {
        let runs = program.run_all(flags)?;
        let failed = runs.iter().filter(|run| !run.has_passed).count();
        let seconds = || runs.iter().map(|run| run.seconds);
        let (least, most) = (
            seconds().fold(f64::INFINITY, f64::min),
            seconds().fold(0.0, f64::max),
        );
        println!(
            "{:40} {:>6} {failed:>6} {least:>8.1} {most:>8.1}",
            program.name, flags.runs
        );
        all_passed &= failed == 0;
    }
    Ok(all_passed)
}

impl Flags {
    fn wants(&self, name: &str) -> bool {
        let has = |texts: &[String]| texts.iter().any(|text| name.contains(text.as_str()));
        (self.only.is_empty() || has(&self.only)) && !has(&self.skip)
    }
}

/// Builds all tests of the workspace.
fn build() -> Result<Vec<Program>> {
    let mut cargo = Command::new(cargo())
        .args([
            "test",
            "--workspace",
            "--no-run",
            "--locked",
            "--message-format=json",
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut programs = BTreeMap::new();
    let output = cargo.stdout.take().ok_or("cargo has no output")?;
    for line in BufReader::new(output).lines() {
        let message: serde_json::Value = serde_json::from_str(&line?)?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        let (Some(executable), true) = (message["executable"].as_str(), is_test) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().unwrap_or(Path::new("."));
        let package = package_of(message["package_id"].as_str().unwrap_or_default());
        let target = message["target"]["name"].as_str().unwrap_or("?");
        let name = format!("{package}/{target}");
        let program = Program {
            name: name.clone(),
            executable: executable.into(),
            folder: folder.into(),
        };
        programs.insert((name, executable.to_owned()), program);
    }
    if !cargo.wait()?.success() {
        return Err("the tests do not build".into());
    }
    Ok(programs.into_values().collect())
}

/// Returns the name of a package from its id, such as `path+file:///src/mkernel/gen/spec#mkernel-spec@0.1.0`. An id omits the
/// name if it equals the name of the folder.
fn package_of(id: &str) -> &str {
    let (url, version) = id.rsplit_once('#').unwrap_or((id, ""));
    let folder = url.rsplit('/').next().unwrap_or(url);
    version.split_once('@').map_or(folder, |(name, _)| name)
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or("cargo".into())
}

/// A run of a program that has ended.
struct Run {
    has_passed: bool,
    seconds: f64,
}

impl Program {
    /// Makes all runs of the program.
    fn run_all(&self, flags: &Flags) -> Result<Vec<Run>> {
        let next = AtomicU32::new(0);
        let runs = || -> std::io::Result<Vec<Run>> {
            std::iter::from_fn(|| {
                let run = next.fetch_add(1, Ordering::Relaxed);
                (run < flags.runs).then(|| self.run(flags, run))
            })
            .collect()
        };
        let by_thread: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..flags.at_once).map(|_| scope.spawn(runs)).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let mut all = Vec::new();
        for runs in by_thread {
            all.extend(runs.map_err(|_| "a thread has panicked")??);
        }
        Ok(all)
    }

    /// Runs the program once. Keeps its output if it fails.
    fn run(&self, flags: &Flags, run: u32) -> std::io::Result<Run> {
        let name = self.name.replace('/', "-");
        let log = flags.out.join(format!("{name}-{run}.log"));
        let started = Instant::now();
        let status = self.run_to_end(flags, &log)?;
        let has_passed = status.is_some_and(|status| status.success());
        if has_passed {
            std::fs::remove_file(&log)?;
        } else {
            let how = status.map_or("it did not end in time".to_owned(), |status| {
                status.to_string()
            });
            println!("{}: run {run}: {how}; see {}", self.name, log.display());
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Run {
            has_passed,
            seconds,
        })
    }

    /// Runs the program with its output in `log`. Returns none if it did not end within the limit.
    fn run_to_end(&self, flags: &Flags, log: &Path) -> std::io::Result<Option<ExitStatus>> {
        let output = File::create(log)?;
        let mut child = Command::new(&self.executable)
            .args(&flags.args)
            .current_dir(&self.folder)
            // Cargo sets this variable for tests as well.
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let status = wait(&mut child, Duration::from_secs(flags.limit_s))?;
        if status.is_none() {
            child.kill()?;
            child.wait()?;
        }
        Ok(status)
    }
}

/// Waits for the end of a process. Returns none after `limit`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

/// Restricts this process, and the processes that it starts, to `cores` of its cores.
fn restrict_to_cores(cores: usize) -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut few = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .take(cores)
        .for_each(|core| few.set(core));
    sched_setaffinity(None, &few)?;
    Ok(())
}

/// Threads that compute until this value is dropped.
struct Busy {
    is_over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Busy {
    fn start(count: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let spin = |is_over: Arc<AtomicBool>| {
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..count)
            .map(|_| thread::spawn(spin(is_over.clone())))
            .collect();
        Self { is_over, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_ids_give_names() {
        let named = "path+file:///src/mkernel/gen/spec#mkernel-spec@0.1.0";
        assert_eq!(package_of(named), "mkernel-spec");
        assert_eq!(package_of("path+file:///src/tests/xtask#0.1.0"), "xtask");
    }
}
