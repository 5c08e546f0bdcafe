//! [`NicFlags`]: one flag for each setting of NICs, as [`NIC_SETTINGS`] lists them.

use crate::cli::failure::Failure;
use clap::{Arg, ArgMatches, Command};
use mkernel::Error;
use mkernel::error::EnvironmentError;
use mkernel::network::{NIC_SETTINGS, NicOptions, NicSetting};

/// The settings that were given, with their values. A value is possible.
#[derive(Clone, Debug, Default)]
pub struct NicFlags {
    given: Vec<(&'static NicSetting, String)>,
}

impl NicFlags {
    /// Whether any of the flags was given.
    pub fn any(&self) -> bool {
        !self.given.is_empty()
    }

    /// Whether a flag was given that applies to RC only.
    pub fn has_rc_only(&self) -> bool {
        self.given.iter().any(|(setting, _)| setting.is_rc_only)
    }

    /// The settings as environment variables.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let variable =
            |(setting, value): &(&'static NicSetting, String)| (setting.variable, value.clone());
        self.given.iter().map(variable).collect()
    }

    /// The settings of environment variables, with those of flags in their place.
    pub fn options(&self) -> Result<NicOptions, Failure> {
        let mut options = NicOptions::from_env().map_err(|error| match error {
            Error::Environment(EnvironmentError::Variable {
                name,
                value,
                expected,
            }) => Failure::Variable {
                name,
                value: value.unwrap_or_default(),
                expected: expected.to_owned(),
            },
            other => Failure::Connect(other),
        })?;
        for (setting, value) in &self.given {
            setting.set(&mut options, value);
        }
        Ok(options)
    }
}

/// The flag of a setting.
fn flag(setting: &'static NicSetting) -> Arg {
    let NicSetting {
        name,
        variable,
        about,
        values,
        default,
        is_rc_only,
        ..
    } = setting;
    let only = if *is_rc_only { "; rc only" } else { "" };
    Arg::new(*name)
        .long(*name)
        .value_name("VALUE")
        .allow_negative_numbers(true)
        .help(format!(
            "{about}: {values}{only} [default: {variable}, else {default}]"
        ))
        .value_parser(move |text: &str| {
            let is_possible = setting.set(&mut NicOptions::default(), text);
            is_possible
                .then(|| text.to_owned())
                .ok_or_else(|| format!("write {values}"))
        })
}

impl clap::Args for NicFlags {
    fn augment_args(command: Command) -> Command {
        command.args(NIC_SETTINGS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for NicFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in NIC_SETTINGS {
            if let Some(value) = matches.get_one::<String>(setting.name) {
                self.given.push((setting, value.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    fn parse(words: &[&str]) -> Result<NicFlags, String> {
        let command = NicFlags::augment_args(Command::new("test"));
        let words = [&["test"], words].concat();
        let matches = command.try_get_matches_from(words);
        let flags = matches.and_then(|matches| clap::FromArgMatches::from_arg_matches(&matches));
        flags.map_err(|error| error.to_string())
    }

    #[test]
    fn each_setting_has_a_flag() {
        let flags = parse(&[
            "--queue-pairs",
            "3",
            "--flush=always",
            "--partition-key",
            "7",
        ]);
        let flags = flags.expect("possible");
        let options = flags.options().expect("no variable is set");
        assert_eq!((options.queue_pairs, options.partition_key), (3, 7));
        assert_eq!(options.flush, mkernel::network::Flush::Always);
        assert!(flags.any() && flags.has_rc_only());
        let none = parse(&[]).expect("no flags");
        assert!(!none.any() && !none.has_rc_only());
        let error = parse(&["--service-level", "16"]).expect_err("too large");
        assert!(error.contains("16") && error.contains("0 to 15"), "{error}");
        let error = parse(&["--gid-index", "-1"]).expect_err("negative");
        assert!(error.contains("0 to 255"), "{error}");
    }

    /// The book lists each variable as the table of settings describes it.
    #[test]
    fn the_book_lists_each_setting() {
        let book = include_str!("../../../../../docs/book/src/environment.md");
        for setting in NIC_SETTINGS {
            let NicSetting {
                variable,
                about,
                values,
                default,
                is_rc_only,
                ..
            } = setting;
            let only = if *is_rc_only { " RC only." } else { "" };
            let row = format!("| `{variable}` | {about}: {values}.{only} | {default} |\n");
            assert!(book.contains(&row), "environment.md needs the row {row}");
        }
    }
}
