//! The command that repeats one run.

use std::ffi::OsString;

/// Flags that are removed together with their values: the flags of seeds, of concurrent runs, and of files that the first
/// run has written.
const LEFT_OUT: [&str; 6] = ["--seed", "--seeds", "--trace", "--junit", "--jobs", "-j"];

/// The flag that chooses kernels.
const KERNEL: &str = "--kernel";

/// The command with the arguments `words` but with one seed, quoted for a shell, and with one kernel if `kernel` names it. If
/// the first run chose the device itself, `--device` is added, except for a rank whose launcher chooses the device.
pub fn command(
    words: impl IntoIterator<Item = OsString>,
    kernel: Option<&str>,
    seed: u64,
    device: &str,
) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut words = words
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned());
    let mut has_device = false;
    while let Some(word) = words.next() {
        let (flag, value) = word
            .split_once('=')
            .map_or((&*word, None), |(flag, value)| (flag, Some(value)));
        if LEFT_OUT.contains(&flag) || flag == KERNEL && kernel.is_some() {
            if value.is_none() {
                words.next();
            }
            continue;
        }
        if flag == "--device" {
            let value = value.map(str::to_owned).or_else(|| words.next());
            has_device = true;
            let value = value.filter(|value| value != "auto");
            kept.extend(["--device".to_owned(), value.unwrap_or(device.to_owned())]);
            continue;
        }
        // `-j4`, unlike `-j 4`, is one word.
        let is_jobs = |count: &str| count.parse::<u8>().is_ok();
        if flag == "--fail-fast" || word.strip_prefix("-j").is_some_and(is_jobs) {
            continue;
        }
        has_device |= flag == "--from-env";
        kept.push(word);
    }
    if !has_device {
        kept.extend(["--device".to_owned(), device.to_owned()]);
    }
    if let Some(kernel) = kernel {
        kept.extend([KERNEL.to_owned(), kernel.to_owned()]);
    }
    kept.extend(["--seed".to_owned(), seed.to_string()]);
    let quoted: Vec<_> = kept.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

/// Quotes a word for a shell if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(words: &[&str]) -> String {
        command(words.iter().map(OsString::from), None, 7, "sim")
    }

    #[test]
    fn one_seed_instead_of_many() {
        assert_eq!(
            repeated(&[
                "mkernel-gen",
                "run",
                "--seeds",
                "0..9",
                "a.toml",
                "--skew=3"
            ]),
            "mkernel-gen run a.toml --skew=3 --device sim --seed 7"
        );
        assert_eq!(
            repeated(&[
                "target/mkernel-gen",
                "run",
                "--device=auto",
                "--trace=t",
                "--seed=1"
            ]),
            "target/mkernel-gen run --device sim --seed 7"
        );
        assert_eq!(
            repeated(&[
                "m",
                "run",
                "--junit",
                "t",
                "--device",
                "gpu",
                "my kernel's.toml"
            ]),
            r"m run --device gpu 'my kernel'\''s.toml' --seed 7"
        );
    }

    #[test]
    fn one_kernel_instead_of_many() {
        let words = [
            "m",
            "run",
            "-j4",
            "-j",
            "2",
            "--fail-fast",
            "--kernel=a",
            "--kernel",
            "b",
        ];
        let words = words.iter().map(OsString::from);
        assert_eq!(
            command(words, Some("up m=8"), 7, "sim"),
            "m run --device sim --kernel 'up m=8' --seed 7"
        );
    }
}
