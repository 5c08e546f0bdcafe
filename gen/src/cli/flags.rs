//! Flags such as `--op` and `--world`, one for each field of a kernel, and flags that describe the device.

use super::failure::Failure;
use super::files::read_text;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use mkernel_declare::{Declared, Parser, SpannedDiagnostic};
use mkernel_spec::{Device, Dim, Field, Limits, Op, OptionSpec, Value, Values};
use std::path::PathBuf;
use std::sync::LazyLock;

/// All options of all operators.
static OPTIONS: LazyLock<Vec<(Op, OptionSpec)>> = LazyLock::new(|| {
    let of = |op: Op| op.options().into_iter().map(move |option| (op, option));
    Op::ALL.into_iter().flat_map(of).collect()
});

/// The options that set `field`, with their operators.
fn options(field: Field) -> impl Iterator<Item = &'static (Op, OptionSpec)> {
    OPTIONS
        .iter()
        .filter(move |(_, option)| option.field == field)
}

fn takes(field: Field, values: &Values) -> bool {
    options(field).any(|(_, option)| option.values == *values)
}

/// Whether `field` is a dimension of some operator. Its flag also gives sizes to kernels in files and crates.
fn is_dim(field: Field) -> bool {
    takes(field, &Values::Size)
}

/// The values that were given for each field. A dimension can have several sizes.
#[derive(Clone, Debug, Default)]
pub struct KernelFlags(Vec<(Field, Vec<String>)>);

impl KernelFlags {
    /// Whether some flags do more than change kernels of files and crates, so that the flags declare a kernel
    /// themselves.
    pub fn declare_a_kernel(&self) -> bool {
        let changes_others = |field| is_dim(field) || [Field::WORLD, Field::NODES].contains(&field);
        self.0.iter().any(|(field, _)| !changes_others(*field))
    }

    /// The value of `--world`, if it was given. It applies to kernels that do not fix their ranks.
    pub fn world(&self) -> Option<u32> {
        self.count(Field::WORLD)
    }

    /// The value of `--nodes`, if it was given.
    pub fn nodes(&self) -> Option<u32> {
        self.count(Field::NODES)
    }

    /// The numbers of nodes that `--nodes` gives, separated by commas.
    ///
    /// # Errors
    /// Words that are no numbers, and a number of ranks.
    pub fn node_counts(&self) -> Result<Vec<u32>, Vec<SpannedDiagnostic<String>>> {
        let of = |field: Field| {
            let given = self.0.iter().filter(move |(given, _)| *given == field);
            given.flat_map(|(_, values)| values)
        };
        let mistake = |field, reason, help: &str| SpannedDiagnostic {
            span: flag_of(field),
            reason,
            help: help.to_owned(),
        };
        let (mut nodes, mut wrong) = (Vec::new(), Vec::new());
        for text in of(Field::NODES).flat_map(|value| value.split(',')) {
            match text.trim().parse() {
                Ok(count) => nodes.push(count),
                Err(_) => wrong.push(mistake(
                    Field::NODES,
                    format!("`{text}` is not a number of nodes"),
                    "write numbers separated by commas, such as 2,4,8",
                )),
            }
        }
        wrong.extend(of(Field::WORLD).map(|world| {
            let reason =
                format!("the nodes and their GPUs give the number of ranks, not `{world}`");
            mistake(Field::WORLD, reason, "remove it, and use --gpus-per-node")
        }));
        if wrong.is_empty() {
            Ok(nodes)
        } else {
            Err(wrong)
        }
    }

    /// The flags with these numbers of nodes and ranks.
    pub fn on(&self, nodes: u32, world: u32) -> Self {
        let given = [(Field::NODES, nodes), (Field::WORLD, world)];
        let others = self
            .0
            .iter()
            .filter(|(field, _)| given.iter().all(|(of, _)| of != field));
        let given = given.map(|(field, count)| (field, vec![count.to_string()]));
        Self(others.cloned().chain(given).collect())
    }

    fn count(&self, field: Field) -> Option<u32> {
        let (_, values) = self.0.iter().find(|(given, _)| *given == field)?;
        values.first()?.parse().ok()
    }

    /// Whether a flag that is on or off was given. The flag and its value must be joined by `=`.
    pub fn has_switch(&self) -> bool {
        self.0
            .iter()
            .any(|(field, _)| takes(*field, &Values::Switch))
    }

    /// Whether no flag was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sizes that were given for `field`, as they were written.
    pub fn sizes(&self, field: Field) -> Vec<Dim> {
        let given = self
            .0
            .iter()
            .filter(|(f, _)| *f == field)
            .flat_map(|(_, values)| values);
        given.filter_map(|text| text.parse().ok()).collect()
    }

    /// The kernel that the flags declare. A dimension with several sizes is dynamic in this kernel. See
    /// [`Self::sizes`].
    pub fn declaration(&self) -> Declared<String> {
        let mut parser = Parser::default();
        for (field, values) in &self.0 {
            let flag = flag_of(*field);
            let value = match values.as_slice() {
                [one] => read(one),
                _ => Value::Word("dynamic".to_owned()),
            };
            parser.set(field.name(), flag.clone(), value, flag);
        }
        parser.finish("flags".to_owned())
    }
}

/// Reads a value as a boolean, a number or a word.
fn read(text: &str) -> Value {
    if let Ok(boolean) = text.parse() {
        return Value::Boolean(boolean);
    }
    if let Ok(integer) = text.parse() {
        return Value::Integer(integer);
    }
    // `inf` and `nan` are words, although `f64` parses them.
    let is_fraction = text.contains(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok();
    match is_fraction {
        true => Value::Fraction(text.to_owned()),
        false => Value::Word(text.to_owned()),
    }
}

/// The flag of a field, such as `--tile-m` for `tile_m`.
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
                .value_name(value_names(field))
                .help(summary(option))
                .long_help(help(field))
                .help_heading(heading(field))
                // A negative number is read as a value, so that the error message states the possible values.
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
    match text.parse::<Dim>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(
            "write a size of 1 or more, several sizes separated by commas, `dynamic`, or `..=4096` for the most rows of a call",
        ),
    }
}

/// The heading of a field in the help: its operators.
fn heading(field: Field) -> String {
    let mut ops: Vec<_> = options(field).map(|(op, _)| op.name()).collect();
    ops.dedup();
    let others = Op::ALL.iter().map(|op| op.name());
    let others: Vec<_> = others.filter(|name| !ops.contains(name)).collect();
    match others.as_slice() {
        [] => "Kernels declared by flags (sizes, --world and --nodes also apply to kernels of files and crates)".to_owned(),
        [other] => format!("Options of all operators except {other}"),
        _ => format!("Options of {}", ops.join(", ")),
    }
}

/// The values of a field, over all operators.
fn value_names(field: Field) -> String {
    let mut names: Vec<String> = Vec::new();
    for (_, option) in options(field) {
        for name in value_name(&option.values).split('|') {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    names.join("|")
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

/// The help of an option for `-h`.
fn summary(option: &OptionSpec) -> String {
    let text = plain(&option.doc[0]);
    let text = text.trim_end_matches('.');
    match &option.default {
        Some(word) => format!("{text} [default: {word}]"),
        None => text.to_owned(),
    }
}

/// The help of a field for `--help`. Text that does not apply to all operators is followed by the operators' names, and so are
/// the values of an operator that does not take all values of the field.
fn help(field: Field) -> String {
    let all_values = value_names(field);
    let mut texts: Vec<(String, Vec<&str>)> = Vec::new();
    for (op, option) in options(field) {
        let mut text = plain(&option.doc.join(" "));
        let values = value_name(&option.values);
        if values != all_values {
            text = format!("{text} Values: {values}.");
        }
        if let Some(default) = &option.default {
            text = format!("{text} Default: {default}.");
        }
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

/// Removes Markdown's backquotes.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// The GPU to plan for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device to plan for (default: NVIDIA H200)")]
pub struct DeviceFlags {
    /// TOML file with the figures that differ from those of the default device
    #[arg(long, value_name = "FILE")]
    device_file: Option<PathBuf>,
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
    /// The default device with the changes of the file, and then with the changes of the flags.
    pub fn device(&self) -> Result<Device, Failure> {
        let mut device = match &self.device_file {
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
            .map(|figure| SpannedDiagnostic {
                span: "device".to_owned(),
                reason: format!("{}: {} is not possible", figure.name, figure.value),
                help: figure.help.to_owned(),
            })
            .collect();
        if wrong.is_empty() {
            Ok(device)
        } else {
            Err(Failure::Diagnostics(wrong))
        }
    }
}
