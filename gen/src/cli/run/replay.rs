//! The command that repeats one run of many.

use std::ffi::OsString;

/// Flags that replaying leaves out, with their value: those of many seeds, and files, which are for the first run.
const LEFT_OUT: [&str; 4] = ["--seed", "--seeds", "--trace", "--timeline"];

/// The words of this command with another seed, as a person types them. `device` is added if the first run chose for
/// itself.
pub fn command(words: impl IntoIterator<Item = OsString>, seed: u64, device: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut words = words
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned());
    let mut has_device = false;
    while let Some(word) = words.next() {
        let (flag, value) = word
            .split_once('=')
            .map_or((&*word, None), |(flag, value)| (flag, Some(value)));
        if LEFT_OUT.contains(&flag) {
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
        kept.push(word);
    }
    if !has_device {
        kept.extend(["--device".to_owned(), device.to_owned()]);
    }
    kept.extend(["--seed".to_owned(), seed.to_string()]);
    let quoted: Vec<_> = kept.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

/// A word that a shell takes as it is.
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

    fn replayed(words: &[&str]) -> String {
        command(words.iter().map(OsString::from), 7, "sim")
    }

    #[test]
    fn one_seed_instead_of_many() {
        assert_eq!(
            replayed(&[
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
            replayed(&[
                "target/mkernel-gen",
                "run",
                "--device=auto",
                "--trace=t",
                "--seed=1"
            ]),
            "target/mkernel-gen run --device sim --seed 7"
        );
        assert_eq!(
            replayed(&[
                "m",
                "run",
                "--timeline",
                "t",
                "--device",
                "gpu",
                "my kernel's.toml"
            ]),
            r"m run --device gpu 'my kernel'\''s.toml' --seed 7"
        );
    }
}
