//! `--op`, `--world`, … : one flag per field of a kernel, and the device's figures.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use mkernel_declare::{Declared, Draft, Mistake, Value};
use mkernel_spec::{Device, Field, Op};
use std::path::PathBuf;

use super::Failure;

/// Whether a field is a dimension of some operator: its flag also gives sizes to kernels that are declared elsewhere.
fn is_dim(field: Field) -> bool {
    let dims = Op::ALL.into_iter().flat_map(|op| op.problem().dims());
    dims.into_iter().any(|(dim, _)| dim == field)
}

/// What was given for each field; of a dimension perhaps several sizes.
#[derive(Clone, Debug, Default)]
pub struct KernelFlags(Vec<(Field, Vec<String>)>);

impl KernelFlags {
    /// Fields that kernels which are declared elsewhere do not take.
    pub fn declare_a_kernel(&self) -> bool {
        let goes_elsewhere = |field| is_dim(field) || field == Field::Nodes;
        self.0.iter().any(|(field, _)| !goes_elsewhere(*field))
    }

    /// Over how many nodes ranks are to be spread, if it was said.
    pub fn nodes(&self) -> Option<u32> {
        let (_, values) = self.0.iter().find(|(field, _)| *field == Field::Nodes)?;
        values.first()?.parse().ok()
    }

    /// Whether there is one that is on or off, whose value must be joined to it.
    pub fn has_switch(&self) -> bool {
        let is_switch = |field| value_name(field) == "true|false";
        self.0.iter().any(|(field, _)| is_switch(*field))
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
        Field::ALL.into_iter().fold(command, |command, field| {
            let arg = Arg::new(field.name())
                .long(field.name().replace('_', "-"))
                .value_name(value_name(field))
                .help(help(field))
                .help_heading("One kernel by flags")
                // So that what reads the value says what is possible.
                .allow_negative_numbers(true);
            command.arg(match field {
                _ if is_dim(field) => arg.value_delimiter(',').value_parser(parse_size),
                Field::Bias | Field::Residual | Field::Causal | Field::Swiglu => arg
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
        Ok(Self(Field::ALL.into_iter().filter_map(given).collect()))
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

fn value_name(field: Field) -> &'static str {
    match field {
        Field::Op => "OPERATOR",
        Field::Name => "NAME",
        _ if is_dim(field) => "SIZES",
        Field::BLayout => "kn|nk",
        Field::Bias | Field::Residual | Field::Causal | Field::Swiglu => "true|false",
        Field::Activation => "none|relu|gelu|gelu_tanh|silu",
        Field::Output => "bf16|fp32",
        Field::Transfer => "sm_push|copy_engine",
        Field::Layout => "bshd|bhsd",
        Field::Placement => "contiguous|zigzag",
        Field::Scale => "FACTOR",
        _ => "COUNT",
    }
}

fn help(field: Field) -> &'static str {
    match field {
        Field::Op => {
            "Operator: ag_gemm, gemm_rs, gemm_ar, ring_attention, dispatch_gemm or combine"
        }
        Field::Name => "Name for listings",
        Field::World => "Ranks, one GPU each: 1, 2, 4 or 8, or up to 8 for each of several nodes",
        Field::Nodes => {
            "Nodes that the ranks are on, as many on each; also spreads kernels that are declared elsewhere [default: 1]"
        }
        Field::M => {
            "Rows of C over all ranks; also gives a size, or several, to kernels with m = dynamic"
        }
        Field::N => "Columns of this rank's B and C; the same for n = dynamic",
        Field::K => "The contracted dimension; the same for k = dynamic",
        Field::BLayout => {
            "B, or each expert's weight, as [K,N] or as [N,K], a linear layer's weight"
        }
        Field::Bias => "Add a bias [N] to each row of the sum",
        Field::Activation => "Apply this to each element then",
        Field::Residual => "Add a matrix like C last",
        Field::Output => "Elements of C [default: bf16]",
        Field::TileM => "Fix the rows of a tile",
        Field::TileN => "Fix the columns of a tile",
        Field::Stages => "Fix the stages of the shared-memory ring",
        Field::Transfer => "Fix what moves bytes to the peers",
        Field::CommCtas => {
            "Fix the CTAs that send to the peers (ring_attention: before they compute)"
        }
        Field::KSlices => "Fix the parts of K that arrive one after the other",
        Field::ChunkRows => "Fix the rows that arrive under one flag",
        Field::GroupM => "Fix the row tiles that are computed together",
        Field::RoundTiles => "Fix the tiles of each owner in a round (gemm_rs, gemm_ar)",
        Field::Shots => {
            "Fix how partial sums meet: 1 = in registers, 2 = at owners of tiles (gemm_rs, gemm_ar)"
        }
        Field::PaceSteps => {
            "Fix after how many steps of K the CTAs wait for each other, to load together; 0 = never"
        }
        Field::Batch => "Sequences (ring_attention)",
        Field::Seq => "Rows of a sequence over all ranks",
        Field::Heads => "Heads of Q and O",
        Field::KvHeads => "Heads of K and V, a divisor of the heads",
        Field::HeadDim => "Columns of a head: 64 or 128",
        Field::Layout => "How Q, K, V and O lie in memory [default: bshd]",
        Field::Causal => "Attend to no later rows",
        Field::Experts => "Experts over all ranks (dispatch_gemm, combine)",
        Field::TopK => "Experts of each token",
        Field::MaxTokens => "The most tokens that a rank can have",
        Field::Hidden => "Elements of a token",
        Field::Intermediate => "Columns of an expert's result",
        Field::Swiglu => "Weights are a gate and an up projection; the result is silu(gate) * up",
        Field::MaxRows => "The most rows of a rank's result [default: all that there can be]",
        Field::Placement => "Which chunks of a sequence a rank has [default: contiguous]",
        Field::Scale => "What scores are multiplied by [default: 1/√D]",
        Field::KvSlots => "Fix the heads of K and V that there is room for, of each peer",
        _ => "",
    }
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
                let text = super::read_text(path)?;
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
