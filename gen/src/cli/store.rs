//! `mkernel-gen list` and `clean`: list the kernels in the cache or in a bundle, and remove the kernels in the cache.

use super::failure::Failure;
use super::format::{bytes, count, table};
use super::output::{Line, print, print_json};
use mkernel_compile::{Bundle, BundledKernel, Entry, Env, Store};
use mkernel_spec::{Arch, Backend};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Arguments of `mkernel-gen list`.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Folder of a bundle [default: the cache]
    bundle: Option<PathBuf>,
}

#[derive(Serialize, JsonSchema)]
pub struct Listed<'a> {
    id: &'a str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registers: Option<u32>,
    #[schemars(with = "String")]
    arch: Arch,
    #[schemars(with = "String")]
    backend: Backend,
    #[serde(skip_serializing_if = "Option::is_none")]
    compiler: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_unix_s: Option<u64>,
    /// The reason why the kernel cannot be used. All other kernels have the fields above.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<&'a str>,
}

impl Line for Listed<'_> {
    const KIND: &'static str = "kernel";
}

/// Arguments of `mkernel-gen clean`.
#[derive(Debug, clap::Args)]
pub struct Clean {
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct CleanedLine<'a> {
    dry_run: bool,
    kernels: usize,
    others: usize,
    bytes: u64,
    left: &'a [PathBuf],
}

impl Line for CleanedLine<'_> {
    const KIND: &'static str = "cleaned";
}

/// The cache that environment variables give. `MKERNEL_BUNDLE` and `MKERNEL_JIT` have no effect here, since they are
/// for the runtime.
pub fn cache() -> Result<Store, Failure> {
    let env = Env::valid().map_err(Failure::Variables)?;
    Ok(match env.cache_root().filter(|_| env.cache) {
        Some(root) => Store::open(root),
        None => Store::without_cache(),
    })
}

impl List {
    /// Prints a line for each kernel.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        match &self.bundle {
            Some(path) => list_bundle(path, json),
            None => {
                let entries = cache()?.entries();
                print_list(entries.iter().map(listed).collect(), json)
            }
        }
    }
}

/// Prints a line for each kernel of the bundle in `path`, with the damage if the kernel is damaged.
pub fn list_bundle(path: &Path, json: bool) -> Result<(), Failure> {
    let kernels = Bundle::open(path).map_err(Failure::Gen)?.kernels();
    print_list(kernels.iter().map(of_bundle).collect(), json)
}

fn of_bundle(kernel: &BundledKernel) -> Listed<'_> {
    match &kernel.entry {
        Ok(entry) => listed(entry),
        Err(damage) => Listed {
            id: &kernel.id,
            key: kernel.key.to_string(),
            path: None,
            bytes: None,
            registers: None,
            arch: kernel.arch,
            backend: kernel.backend,
            compiler: None,
            stored_unix_s: None,
            damage: Some(damage),
        },
    }
}

fn print_list(kernels: Vec<Listed>, json: bool) -> Result<(), Failure> {
    if json {
        return kernels.iter().try_for_each(print_json);
    }
    if kernels.is_empty() {
        return print("no kernels\n");
    }
    let mut rows = vec![
        ["size", "registers", "arch", "stored (UTC)", "id"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(kernels.iter().map(Listed::row));
    print(&table(&rows, &[0, 1]))
}

impl Listed<'_> {
    fn row(&self) -> Vec<String> {
        let id = match self.damage {
            None => self.id.to_owned(),
            Some(damage) => format!("{}: damaged: {damage}", self.id),
        };
        let arch = match self.backend {
            Backend::Nvrtc => self.arch.to_string(),
            Backend::HostCxx => format!("{}, simulated", self.arch),
        };
        let or_unknown = |text: Option<String>| text.unwrap_or("-".to_owned());
        vec![
            or_unknown(self.bytes.map(bytes)),
            or_unknown(self.registers.map(|count| count.to_string())),
            arch,
            or_unknown(self.stored_unix_s.map(date)),
            id,
        ]
    }
}

impl Clean {
    /// Removes everything that mkernel has stored in the cache, and prints its size. Other files stay, and are listed.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let cleaned = cache()?.clean(self.dry_run).map_err(Failure::Gen)?;
        if json {
            return print_json(&CleanedLine {
                dry_run: self.dry_run,
                kernels: cleaned.kernels,
                others: cleaned.others,
                bytes: cleaned.bytes,
                left: &cleaned.left,
            });
        }
        let removed = if self.dry_run {
            "would remove"
        } else {
            "removed"
        };
        let kernels = count(cleaned.kernels, "kernel");
        let others = match cleaned.others {
            0 => String::new(),
            others => format!(
                ", {} of failed, damaged or unfinished kernels",
                count(others, "folder")
            ),
        };
        let mut text = format!("{removed} {kernels}{others}, {}\n", bytes(cleaned.bytes));
        for path in &cleaned.left {
            text.push_str(&format!(
                "not removed, since mkernel did not create it: {}\n",
                path.display()
            ));
        }
        print(&text)
    }
}

fn listed(entry: &Entry) -> Listed<'_> {
    Listed {
        id: &entry.id,
        key: entry.key.to_string(),
        path: Some(&entry.path),
        bytes: Some(entry.bytes),
        registers: entry.resources.map(|used| used.registers),
        arch: entry.arch,
        backend: entry.backend,
        compiler: Some(&entry.compiler),
        stored_unix_s: Some(unix_seconds(entry.stored)),
        damage: None,
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Formats seconds since 1970 as a date and time, such as `2026-03-01 12:00` (Hinnant, "chrono-compatible date
/// algorithms").
fn date(unix_s: u64) -> String {
    let (days, minutes) = (unix_s / 86_400, unix_s % 86_400 / 60);
    // Days are counted from 1 March of year 0, so that the leap day is the last day of a year. An era has 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02}",
        minutes / 60,
        minutes % 60
    )
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_868_800, "2000-03-01 00:00"),
            (1_709_164_800, "2024-02-29 00:00"),
            (1_798_761_599, "2026-12-31 23:59"),
        ] {
            assert_eq!(date(unix_s), text);
        }
    }
}
