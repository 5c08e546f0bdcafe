//! The kernels that a command processes, from TOML files, a crate or flags.

use super::combinations::combinations;
use super::crate_kernels;
use super::failure::Failure;
use super::files::read_text;
use super::flags::{DeviceFlags, KernelFlags, flag_of};
use super::toml_file;
use super::unused_sizes::unused_sizes;
use crate::scan;
use mkernel_declare::{Declaration, Declared, SpannedDiagnostic};
use mkernel_spec::{
    Device, Diagnostics, Dim, Field, KernelConfig, KernelPlan, KernelSpec, Tuned, config::nearest,
};
use std::path::{Path, PathBuf};

/// Flags and files that declare kernels, and flags of the device.
#[derive(Debug, clap::Args)]
pub struct Input {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    device: DeviceFlags,
}

/// Flags and files that declare kernels.
#[derive(Clone, Debug, clap::Args)]
pub struct Sources {
    /// TOML files with [[kernel]] tables; - is standard input
    files: Vec<PathBuf>,
    /// Folder of a crate, whose #[fused_kernel]s in src/ and examples/ are taken
    #[arg(long = "crate", value_name = "DIR")]
    crate_dir: Option<PathBuf>,
    /// Take only the kernels with this name, label or place, as `check` prints labels and places; can be given several
    /// times
    #[arg(long = "kernel", value_name = "NAME")]
    chosen: Vec<String>,
    #[command(flatten)]
    pub flags: KernelFlags,
}

/// How a command changes declared kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// The number of ranks, and the flag that gives it.
    pub world: Option<(u32, &'static str)>,
    /// Whether sizes that flags give also replace declared sizes, not only `dynamic`.
    pub resize: bool,
    /// The name and the text of the TOML file that is read if no kernel is given.
    pub default: Option<(&'static str, &'static str)>,
}

/// A valid kernel.
#[derive(Debug)]
pub struct Kernel {
    /// The name in messages.
    pub label: String,
    /// The place of the declaration, such as `file:line:column`.
    pub location: String,
    /// The checked configuration.
    pub spec: KernelSpec,
    /// The plan. `None` if a dimension or the number of ranks is unknown.
    pub plan: Option<KernelPlan>,
    /// Whether the kernel takes its ranks from the communicator, and no flag gives their number.
    pub is_for_any_world: bool,
}

impl Kernel {
    /// The dimensions whose sizes are unknown, and `world` if the number of ranks is unknown.
    pub fn unknown_dims(&self) -> Vec<&'static str> {
        let world = self.is_for_any_world.then_some(Field::WORLD);
        let unknown = world.into_iter().chain(self.spec.unknown_dims());
        unknown.map(Field::name).collect()
    }
}

/// Valid kernels, and the errors of the other kernels.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The valid kernels, in the order of files and of their lines.
    pub kernels: Vec<Kernel>,
    /// The errors, in the same order.
    pub diagnostics: Vec<SpannedDiagnostic<String>>,
    /// The names that `--kernel` can give: of all kernels that were declared.
    names: Vec<[String; 3]>,
}

impl Loaded {
    /// The kernels, or a failure if there is an error.
    pub fn valid(self) -> Result<Vec<Kernel>, Failure> {
        if self.diagnostics.is_empty() {
            Ok(self.kernels)
        } else {
            Err(Failure::Diagnostics(self.diagnostics))
        }
    }

    /// The kernels with their plans, or a failure if there is an error or the size of a kernel is unknown.
    pub fn planned(self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        let mut planned = Vec::new();
        let mut diagnostics = Vec::new();
        for mut kernel in self.valid()? {
            match kernel.plan.take() {
                Some(plan) => planned.push((kernel, plan)),
                None => diagnostics.push(SpannedDiagnostic {
                    reason: format!(
                        "{}: there is no plan, since the size of {} is unknown",
                        kernel.label,
                        kernel.unknown_dims().join(" and ")
                    ),
                    span: kernel.location,
                    help: "give sizes, as in --m 4096,8192, and ranks, as in --world 8".to_owned(),
                }),
            }
        }
        if diagnostics.is_empty() {
            Ok(planned)
        } else {
            Err(Failure::Diagnostics(diagnostics))
        }
    }
}

/// A kernel that was read but not yet planned.
struct DeclaredKernel {
    /// The name of the struct, if the kernel is declared by `#[fused_kernel]`.
    type_name: Option<String>,
    declared: Declared<String>,
}

impl DeclaredKernel {
    fn nameless(declared: Declared<String>) -> Self {
        Self {
            type_name: None,
            declared,
        }
    }
}

impl From<scan::FusedKernel> for DeclaredKernel {
    fn from(found: scan::FusedKernel) -> Self {
        Self {
            type_name: Some(found.type_name),
            declared: found.declared,
        }
    }
}

impl Input {
    /// Reads, checks and plans the kernels. Errors in configurations are part of the result.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let device = self.device.device()?;
        self.sources.load(&device, Overrides::default())
    }

    /// Whether the kernels of a crate are processed.
    pub fn is_crate(&self) -> bool {
        self.sources.crate_dir.is_some()
    }

    /// Loads kernels as [`Self::load`] does, but fails if a configuration has an error.
    pub fn load_valid(&self) -> Result<Vec<Kernel>, Failure> {
        self.load()?.valid()
    }

    /// Loads kernels as [`Self::load_valid`] does, but also fails if the size of a kernel is unknown.
    pub fn load_planned(&self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        self.load()?.planned()
    }
}

impl Sources {
    /// Whether no kernel is given, and nothing that changes kernels.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.crate_dir.is_none() && self.flags.is_empty()
    }

    /// Reads, changes, checks and plans the kernels. Errors in configurations are part of the result.
    pub fn load(&self, device: &Device, overrides: Overrides) -> Result<Loaded, Failure> {
        let tuned = mkernel::tuned().map_err(Failure::Tuned)?;
        let mut loaded = Loaded::default();
        let mut configs = Vec::new();
        for DeclaredKernel {
            type_name,
            declared,
        } in self.declarations(overrides.default, &mut loaded.diagnostics)?
        {
            match declared {
                Ok(declaration) => {
                    configs.push(declaration.spec.config().clone());
                    let declared = (type_name, declaration);
                    self.plan_all_sizes(declared, ((device, &tuned), overrides), &mut loaded);
                }
                Err(diagnostics) => loaded.diagnostics.extend(diagnostics),
            }
        }
        if !self.flags.declare_a_kernel() && loaded.diagnostics.is_empty() {
            loaded.diagnostics = unused_sizes(&self.flags, &configs, overrides.resize);
        }
        self.check_chosen(&mut loaded);
        Ok(loaded)
    }

    /// Adds an error for each `--kernel` that names no kernel. A kernel with an error may have any name.
    fn check_chosen(&self, loaded: &mut Loaded) {
        if !loaded.diagnostics.is_empty() {
            return;
        }
        let mut known: Vec<_> = loaded.names.iter().map(|[name, ..]| &**name).collect();
        known.sort_unstable();
        known.dedup();
        for chosen in &self.chosen {
            if !loaded.names.iter().flatten().any(|name| name == chosen) {
                loaded.diagnostics.push(SpannedDiagnostic {
                    span: "--kernel".to_owned(),
                    reason: format!("no kernel has the name, label or place `{chosen}`"),
                    help: nearest(chosen, &known),
                });
            }
        }
    }

    fn declarations(
        &self,
        default: Option<(&'static str, &'static str)>,
        diagnostics: &mut Vec<SpannedDiagnostic<String>>,
    ) -> Result<Vec<DeclaredKernel>, Failure> {
        let is_value = |path: &PathBuf| path.as_os_str() == "true" || path.as_os_str() == "false";
        if self.files.iter().any(is_value) && self.flags.has_switch() {
            return Err(Failure::Usage(
                "`true` or `false` was taken as the name of a file; join the value of a switch to its flag, as in --bias=true",
            ));
        }
        let elsewhere = !self.files.is_empty() || self.crate_dir.is_some();
        match (elsewhere, self.flags.declare_a_kernel()) {
            (true, true) => {
                return Err(Failure::Usage(
                    "flags that declare a kernel cannot be combined with files or --crate; only sizes (--m, --seq, --max-tokens, ...), --world and --nodes can",
                ));
            }
            (false, false) if default.is_some() => {
                let (name, text) = default.unwrap_or_default();
                let (found, wrong) = toml_file::read(Path::new(name), text);
                diagnostics.extend(wrong);
                return Ok(found.into_iter().map(DeclaredKernel::nameless).collect());
            }
            (false, _) if self.flags.is_empty() => {
                return Err(Failure::Usage(
                    "no kernel given: name TOML files, or use --crate DIR, or --op, --world and sizes (--m, --n, --k)",
                ));
            }
            (false, _) => return Ok(vec![DeclaredKernel::nameless(self.flags.declaration())]),
            (true, false) => {}
        }
        let mut declarations = Vec::new();
        for path in &self.files {
            let (found, wrong) = toml_file::read(path, &read_text(path)?);
            declarations.extend(found.into_iter().map(DeclaredKernel::nameless));
            diagnostics.extend(wrong);
        }
        if let Some(dir) = &self.crate_dir {
            let found = crate_kernels::read(dir, diagnostics)?;
            declarations.extend(found.into_iter().map(DeclaredKernel::from));
        }
        Ok(declarations)
    }

    /// Plans a kernel for each combination of the sizes that the flags give to dynamic dimensions.
    fn plan_all_sizes(
        &self,
        (type_name, mut declaration): (Option<String>, Declaration<String>),
        (planner, overrides): (Planner<'_>, Overrides),
        loaded: &mut Loaded,
    ) {
        let mut config = declaration.spec.config().clone();
        let flag_world = || Some((self.flags.world()?, flag_of(Field::WORLD)));
        let world = match overrides.world {
            Some((world, flag)) => Some((world, flag.to_owned())),
            None if declaration.gives(Field::WORLD) => None,
            None => flag_world(),
        };
        if let Some((world, flag)) = world {
            config.world = world;
            declaration.set_span(Field::WORLD, flag);
        }
        let is_for_any_world = !declaration.gives(Field::WORLD);
        if let Some(nodes) = self.flags.nodes() {
            config.nodes = nodes;
            declaration.set_span(Field::NODES, flag_of(Field::NODES));
        }
        let combinations = combinations(&self.sizes(&config, &mut declaration, overrides));
        let several = combinations.len() > 1;
        for dims in combinations {
            for ((_, dim), size) in config.problem.dims_mut().into_iter().zip(&dims) {
                *dim = *size;
            }
            let location = declaration.span().clone();
            let name = type_name.clone().or_else(|| config.name.clone());
            let label = label(name.as_deref(), &config, several);
            let names = [
                name.unwrap_or(label.clone()),
                label.clone(),
                location.clone(),
            ];
            let is_chosen = names.iter().any(|name| self.chosen.contains(name));
            loaded.names.push(names);
            if !is_chosen && !self.chosen.is_empty() {
                continue;
            }
            match plan(config.clone(), planner) {
                Ok((spec, plan)) => {
                    let plan = plan.filter(|_| !is_for_any_world);
                    loaded.kernels.push(Kernel {
                        label,
                        location,
                        spec,
                        plan,
                        is_for_any_world,
                    });
                }
                Err(found) => {
                    for diagnostic in declaration.diagnostics(&found) {
                        // An error in one dimension is found again for each size of another dimension.
                        if !loaded.diagnostics.contains(&diagnostic) {
                            loaded.diagnostics.push(diagnostic);
                        }
                    }
                }
            }
        }
    }

    /// The sizes of each dimension: the sizes that flags give to it, otherwise the declared size.
    fn sizes(
        &self,
        config: &KernelConfig,
        declaration: &mut Declaration<String>,
        overrides: Overrides,
    ) -> Vec<Vec<Dim>> {
        let mut sizes = Vec::new();
        let at_run_time = config.problem.run_time_dim();
        for (field, dim) in config.problem.dims() {
            let given = self.flags.sizes(field);
            if given.is_empty() || dim.fixed().is_some() && !overrides.resize {
                sizes.push(vec![dim]);
                continue;
            }
            declaration.set_span(field, flag_of(field));
            // A kernel of a file or a crate gets a size as `prepare` gives it. A kernel that flags declare has the size
            // as written.
            let size = |given| match given {
                Dim::Static(size) if !self.flags.declare_a_kernel() => {
                    dim.prepared(size, Some(field) == at_run_time)
                }
                given => given,
            };
            sizes.push(given.into_iter().map(size).collect());
        }
        sizes
    }
}

/// The GPU that kernels are planned for, and measured choices.
type Planner<'a> = (&'a Device, &'a Tuned);

/// The kernel, and its plan if all dimensions are known.
fn plan(
    config: KernelConfig,
    (device, tuned): Planner<'_>,
) -> Result<(KernelSpec, Option<KernelPlan>), Diagnostics> {
    let spec = KernelSpec::validate(config)?;
    let plan = match spec.clone().sized() {
        Ok(sized) => Some(KernelPlan::with_tuned(&sized, device, tuned)?),
        Err(_) => None,
    };
    Ok((spec, plan))
}

fn label(name: Option<&str>, config: &KernelConfig, several: bool) -> String {
    let dims = config.problem.dims().into_iter();
    let sizes: Vec<_> = dims.map(|(field, dim)| format!("{field}={dim}")).collect();
    let sizes = sizes.join(" ");
    match name {
        Some(name) if several => format!("{name} {sizes}"),
        Some(name) => name.to_owned(),
        None => format!("{} {sizes}", config.op()),
    }
}
