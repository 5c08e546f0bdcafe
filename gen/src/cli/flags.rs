//! `--op`, `--world`, … : one flag per field of a kernel, and the device's figures.

use super::failure::Failure;
use super::files::read_text;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use mkernel_declare::{Declared, Draft, Mistake, Value};
use mkernel_spec::{Device, Field, Limits, Op, OptionSpec, Values};
use std::path::PathBuf;
use std::sync::LazyLock;

/// Every option of every operator.
static OPTIONS: LazyLock<Vec<(Op, OptionSpec)>> = LazyLock::new(|| {
    let of = |op: Op| op.options().into_iter().map(move |option| (op, option));
    Op::ALL.into_iter().flat_map(of).collect()
});

/// The options of this name, with the operators that have them.
fn options(field: Field) -> impl Iterator<Item = &'static (Op, OptionSpec)> {
    OPTIONS
        .iter()
        .filter(move |(_, option)| option.field == field)
}

fn takes(field: Field, values: &Values) -> bool {
    options(field).any(|(_, option)| option.values == *values)
}

/// Whether a field is a dimension of some operator: its flag also gives sizes to kernels that are declared elsewhere.
fn is_dim(field: Field) -> bool {
    takes(field, &Values::Size)
}

/// What was given for each field; of a dimension perhaps several sizes.
#[derive(Clone, Debug, Default)]
pub struct KernelFlags(Vec<(Field, Vec<String>)>);

impl KernelFlags {
    /// Fields that kernels which are declared elsewhere do not take.
    pub fn declare_a_kernel(&self) -> bool {
        let goes_elsewhere = |field| is_dim(field) || field == Field::NODES;
        self.0.iter().any(|(field, _)| !goes_elsewhere(*field))
    }

    /// Over how many nodes ranks are to be spread, if it was said.
    pub fn nodes(&self) -> Option<u32> {
        let (_, values) = self.0.iter().find(|(field, _)| *field == Field::NODES)?;
        values.first()?.parse().ok()
    }

    /// Whether there is one that is on or off, whose value must be joined to it.
    pub fn has_switch(&self) -> bool {
        self.0
            .iter()
            .any(|(field, _)| takes(*field, &Values::Switch))
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sizes given for `field`.
    pub fn sizes(&self, field: Field) -> Vec<u64> {
        let given = self
            .0
            .iter()
            .filter(|(f, _)| *f == field)
            .flat_map(|(_, values)| values);
        given.filter_map(|text| text.parse().ok()).collect()
    }

    /// The one kernel that the flags declare. A dimension with several sizes is dynamic here, see [`Self::sizes`].
    pub fn declaration(&self) -> Declared<String> {
        let mut draft = Draft::default();
        for (field, values) in &self.0 {
            let flag = flag_of(*field);
            let value = match values.as_slice() {
                [one] => read(one),
                _ => Value::Word("dynamic".to_owned()),
            };
            draft.set(field.name(), flag.clone(), value, flag);
        }
        draft.finish("flags".to_owned())
    }
}

fn read(text: &str) -> Value {
    if let Ok(boolean) = text.parse() {
        return Value::Boolean(boolean);
    }
    if let Ok(integer) = text.parse() {
        return Value::Integer(integer);
    }
    // `inf` and `nan` are words.
    let is_fraction = text.contains(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok();
    match is_fraction {
        true => Value::Fraction(text.to_owned()),
        false => Value::Word(text.to_owned()),
    }
}

/// `--tile-m` for `tile_m`.
pub fn flag_of(field: Field) -> String {
    format!("--{}", field.name().replace('_', "-"))
}

impl Args for KernelFlags {
    fn augment_args(command: Command) -> Command {
        Field::all().into_iter().fold(command, |command, field| {
            let Some((_, option)) = options(field).next() else {
                return command;
            };
            let arg = Arg::new(field.name())
                .long(field.name().replace('_', "-"))
                .value_name(value_name(&option.values))
                .help(summary(option))
                .long_help(help(field))
                .help_heading("One kernel by flags (sizes and --nodes also hold for kernels that are declared elsewhere)")
                // So that what reads the value says what is possible.
                .allow_negative_numbers(true);
            command.arg(match option.values {
                Values::Size => arg.value_delimiter(',').value_parser(parse_size),
                Values::Switch => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true"),
                _ => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KernelFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |field: Field| {
            let values = matches.get_many::<String>(field.name())?;
            Some((field, values.cloned().collect()))
        };
        Ok(Self(Field::all().into_iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn parse_size(text: &str) -> Result<String, &'static str> {
    let possible = text == "dynamic" || text.parse::<u64>().is_ok();
    if possible {
        Ok(text.to_owned())
    } else {
        Err("write a size of 1 or more, several with commas, or `dynamic`")
    }
}

fn value_name(values: &Values) -> String {
    match values {
        Values::Size => "SIZES".to_owned(),
        Values::Count(None) => "COUNT".to_owned(),
        Values::Count(Some(Limits::Range(low, high))) => format!("{low}..={high}"),
        Values::Count(Some(Limits::OneOf(counts, _))) => {
            let counts: Vec<_> = counts.iter().map(u32::to_string).collect();
            counts.join("|")
        }
        Values::Number => "NUMBER".to_owned(),
        Values::Switch => "true|false".to_owned(),
        Values::Name => "NAME".to_owned(),
        Values::Words(words) => words.join("|"),
    }
}

/// What `-h` says of an option.
fn summary(option: &OptionSpec) -> String {
    let text = plain(&option.doc[0]);
    let text = text.trim_end_matches('.');
    match &option.default {
        Some(word) => format!("{text} [default: {word}]"),
        None => text.to_owned(),
    }
}

/// What `--help` says: all that there is, and of which operators it is true.
fn help(field: Field) -> String {
    let mut texts: Vec<(String, Vec<&str>)> = Vec::new();
    for (op, option) in options(field) {
        let text = plain(&option.doc.join(" "));
        match texts.iter_mut().find(|(known, _)| *known == text) {
            Some((_, ops)) => ops.push(op.name()),
            None => texts.push((text, vec![op.name()])),
        }
    }
    let of_ops = texts.into_iter().map(|(text, ops)| match ops.len() {
        count if count == Op::ALL.len() => text,
        _ => format!("{text} ({})", ops.join(", ")),
    });
    of_ops.collect::<Vec<_>>().join("\n")
}

/// Markdown as a terminal shows it.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// The GPU to plan for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device to plan for (default: NVIDIA H200)")]
pub struct DeviceFlags {
    /// TOML file with figures that differ from the default device's
    #[arg(long, value_name = "FILE")]
    device: Option<PathBuf>,
    /// Streaming multiprocessors
    #[arg(long, value_name = "COUNT")]
    sm_count: Option<u32>,
    /// NVLink rate of one GPU, one direction, GB/s
    #[arg(long, value_name = "GB/S")]
    link_gb_s: Option<f64>,
    /// Rate of one GPU's NICs, one direction, GB/s
    #[arg(long, value_name = "GB/S")]
    nic_gb_s: Option<f64>,
}

impl DeviceFlags {
    /// The default device, then the file, then the flags.
    pub fn device(&self) -> Result<Device, Failure> {
        let mut device = match &self.device {
            Some(path) => {
                let text = read_text(path)?;
                toml::from_str(&text).map_err(|source| Failure::Device {
                    path: path.clone(),
                    source,
                })?
            }
            None => Device::default(),
        };
        device.sm_count = self.sm_count.unwrap_or(device.sm_count);
        device.link_gb_s = self.link_gb_s.unwrap_or(device.link_gb_s);
        device.nic_gb_s = self.nic_gb_s.unwrap_or(device.nic_gb_s);
        let wrong: Vec<_> = (device.bad_figures().into_iter())
            .map(|figure| Mistake {
                place: "device".to_owned(),
                reason: format!("{}: {} is not possible", figure.name, figure.value),
                help: figure.help.to_owned(),
            })
            .collect();
        if wrong.is_empty() {
            Ok(device)
        } else {
            Err(Failure::Mistakes(wrong))
        }
    }
}
