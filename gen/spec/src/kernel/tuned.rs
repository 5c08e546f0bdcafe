//! [`Tuned`]: choices that were measured to be faster than the choices of the cost model.

#[cfg(test)]
mod tests;

use super::config::KernelConfig;
use super::problem::Problem;
use super::sized::SizedSpec;
use super::spec::KernelSpec;
use crate::config::Dim;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;
use toml::{Table, Value};

/// Rows of the largest tile. Kernels whose rows fill equally many tiles have equal grids.
const TILE_ROWS: u64 = 128;

/// Measured choices of kernels, which precede the choices of the cost model. The default is none.
///
/// `mkernel-gen tune` writes them as a TOML file with a `[[tuned]]` table for each kernel:
///
/// ```
/// use mkernel_spec::{KernelPlan, SizedSpec, Device, Tuned, KernelConfig, GemmConfig, GemmOp, BLayout, Dim};
///
/// let tuned = Tuned::read(r#"
///     [[tuned]]
///     gpu = "NVIDIA H200"
///     sm_count = 132
///     link_gb_s = 344.0
///     us = 20.0
///     untuned_us = 25.0
///     [tuned.kernel]
///     op = "gemm"
///     world = 1
///     m = 512
///     n = 4096
///     k = 4096
///     b_layout = "nk"
///     tuning = { tile_m = 128, tile_n = 128 }
/// "#)?;
/// let gemm = GemmConfig {
///     m: Dim::Static(500), // fills as many tiles as 512 rows
///     n: Dim::Static(4096),
///     k: Dim::Static(4096),
///     b_layout: BLayout::Nk,
///     ..GemmConfig::new(GemmOp::Gemm)
/// };
/// let spec = SizedSpec::validate(KernelConfig::new(1, gemm))?;
/// let plan = KernelPlan::with_tuned(&spec, &Device::h200(), &tuned)?;
/// assert_eq!(plan.tuned.map(|times| times.us), Some(20.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    #[serde(rename = "tuned", default)]
    kernels: Vec<TunedKernel>,
}

/// A kernel with the choices that were fastest on a kind of GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedKernel {
    /// The name of the GPU.
    pub gpu: String,
    /// The number of its SMs.
    pub sm_count: u32,
    /// Its [`Device::link_gb_s`].
    pub link_gb_s: f64,
    /// The times that the choices are justified by.
    #[serde(flatten)]
    pub times: TunedTimes,
    /// The kernel. Options of it fix choices; without such options, the choices of the cost model are the fastest.
    pub kernel: KernelConfig,
}

/// The times of a call, each the median on the slowest rank, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedTimes {
    /// The time with the measured choices.
    pub us: f64,
    /// The time with the choices of the cost model, in the same run.
    pub untuned_us: f64,
}

/// The reason why a text is not [`Tuned`].
#[derive(Debug, thiserror::Error)]
pub enum TunedError {
    /// The text is not TOML of this form.
    #[error("not a file of `mkernel-gen tune`: {0}")]
    Form(#[from] toml::de::Error),
    /// A kernel is not valid.
    #[error("[[tuned]] number {number}: {found}")]
    Kernel {
        /// The number of the table, from 1.
        number: usize,
        /// The mistakes.
        found: Diagnostics,
    },
    /// Rows must be known, since the times are for these rows.
    #[error("[[tuned]] number {number}: a dimension of the kernel is dynamic; write its size")]
    Dynamic {
        /// The number of the table, from 1.
        number: usize,
    },
}

impl Tuned {
    /// The choices that mkernel ships.
    #[must_use]
    pub fn shipped() -> &'static Self {
        static SHIPPED: LazyLock<Tuned> = LazyLock::new(|| {
            let tuned = Tuned::read(include_str!("../../tuned.toml"));
            debug_assert!(tuned.is_ok(), "{tuned:?}");
            tuned.unwrap_or_default()
        });
        &SHIPPED
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// The text has another form, or a kernel is not valid.
    pub fn read(text: &str) -> Result<Self, TunedError> {
        let tuned: Self = toml::from_str(text)?;
        for (number, of) in (1..).zip(&tuned.kernels) {
            let spec = KernelSpec::validate(of.kernel.clone());
            let spec = spec.map_err(|found| TunedError::Kernel { number, found })?;
            if spec.unknown_dims().next().is_some() {
                return Err(TunedError::Dynamic { number });
            }
        }
        Ok(tuned)
    }

    /// The text of a file, which [`Self::read`] reads. Options at their defaults are left out.
    ///
    /// # Errors
    /// A name has no form in TOML.
    pub fn text(&self) -> Result<String, toml::ser::Error> {
        let mut text = String::new();
        for kernel in &self.kernels {
            text += "[[tuned]]\n";
            let mut entries = Table::try_from(kernel)?;
            // No kernel has no ranks, and dimensions are constant, so ranks and sizes are always written.
            let usual = KernelConfig::new(0, kernel.kernel.op().problem());
            let mut given = options_beside(&kernel.kernel, &usual)?;
            given.insert("op".to_owned(), kernel.kernel.op().name().into());
            entries.insert("kernel".to_owned(), given.into());
            for (name, value) in entries {
                text += &format!("{name} = {value}\n");
            }
            text += "\n";
        }
        Ok(text)
    }

    /// The kernels. Of several alike kernels, the first one counts.
    #[must_use]
    pub fn kernels(&self) -> &[TunedKernel] {
        &self.kernels
    }

    /// Adds a kernel, in place of an alike kernel that was measured on such a GPU.
    pub fn replace(&mut self, kernel: TunedKernel) {
        self.kernels.retain(|known| !known.is_alike(&kernel));
        self.kernels.push(kernel);
    }

    /// The kernels of `self`, and after them those of `other`.
    #[must_use]
    pub fn followed_by(mut self, other: &Self) -> Self {
        self.kernels.extend_from_slice(&other.kernels);
        self
    }

    /// The measured kernel that is alike `config` on `device`.
    #[must_use]
    pub fn find(&self, config: &KernelConfig, device: &Device) -> Option<&TunedKernel> {
        let mut on_device = self.kernels.iter().filter(|known| known.is_on(device));
        let class = class(config)?;
        on_device.find(|known| self::class(&known.kernel).as_ref() == Some(&class))
    }

    /// The spec with the measured choices, and the times of these. `None` if `spec` fixes a choice, or nothing was measured.
    pub(super) fn choices(
        &self,
        spec: &SizedSpec,
        device: &Device,
    ) -> Option<(SizedSpec, TunedTimes)> {
        let config = spec.config();
        if config.problem.without_choices() != config.problem {
            return None;
        }
        let known = self.find(config, device)?;
        let mut problem = known.kernel.problem;
        for ((_, dim), (_, own)) in problem.dims_mut().into_iter().zip(config.problem.dims()) {
            *dim = own;
        }
        let chosen = KernelConfig {
            problem,
            ..config.clone()
        };
        Some((SizedSpec::validate(chosen).ok()?, known.times))
    }
}

impl TunedKernel {
    /// A kernel that was measured on `device`.
    #[must_use]
    pub fn new(kernel: KernelConfig, device: &Device, times: TunedTimes) -> Self {
        Self {
            gpu: device.name.clone(),
            sm_count: device.sm_count,
            link_gb_s: device.link_gb_s,
            times,
            kernel: KernelConfig {
                name: None,
                ..kernel
            },
        }
    }

    /// Whether the kernel was measured on such a GPU with such links.
    fn is_on(&self, device: &Device) -> bool {
        (self.gpu.as_str(), self.sm_count) == (&device.name, device.sm_count)
            && self.link_gb_s.round() == device.link_gb_s.round()
    }

    fn is_alike(&self, other: &Self) -> bool {
        (&self.gpu, self.sm_count) == (&other.gpu, other.sm_count)
            && self.link_gb_s.round() == other.link_gb_s.round()
            && class(&self.kernel) == class(&other.kernel)
    }
}

impl KernelConfig {
    /// The options that fix choices of the planner, as in `split_k = 2, tile_m = 128`.
    #[must_use]
    pub fn fixed_choices(&self) -> String {
        let plain = Self {
            problem: self.problem.without_choices(),
            ..self.clone()
        };
        let options = options_beside(self, &plain).unwrap_or_default();
        let options = options.into_iter().flat_map(|option| match option {
            (_, Value::Table(group)) => group.into_iter().collect(),
            option => vec![option],
        });
        let options = options.map(|(name, value)| format!("{name} = {value}"));
        options.collect::<Vec<_>>().join(", ")
    }
}

/// The options of `config` that `other` does not have, or has with other values.
fn options_beside(config: &KernelConfig, other: &KernelConfig) -> Result<Table, toml::ser::Error> {
    fn differing(table: Table, other: &Table) -> Table {
        let given = table.into_iter().filter_map(|(name, value)| {
            let value = match (value, other.get(&name)) {
                (Value::Table(group), Some(Value::Table(other))) => differing(group, other).into(),
                (value, _) => value,
            };
            let is_empty = value.as_table().is_some_and(Table::is_empty);
            (other.get(&name) != Some(&value) && !is_empty).then_some((name, value))
        });
        given.collect()
    }
    let other = Table::try_from(other)?;
    Ok(differing(Table::try_from(config)?, &other))
}

/// A configuration that stands for all kernels for which the same choices are fastest. `None` if a dimension is not a constant.
fn class(config: &KernelConfig) -> Option<KernelConfig> {
    let mut problem: Problem = config.problem.without_choices();
    let rows = problem.run_time_dim();
    for (field, dim) in problem.dims_mut() {
        let Dim::Static(size) = *dim else { return None };
        if Some(field) == rows {
            *dim = Dim::Static(class_of_rows(size));
        }
    }
    Some(KernelConfig {
        name: None,
        traced: false,
        problem,
        ..config.clone()
    })
}

/// The most rows that have the same plans: a multiple of [`TILE_ROWS`], or a power of two below.
const fn class_of_rows(rows: u64) -> u64 {
    match rows {
        ..TILE_ROWS => rows.next_power_of_two(),
        _ => rows.next_multiple_of(TILE_ROWS),
    }
}
