//! Which kernels a command is about: from TOML files, a user's crate or flags.

use super::failure::Failure;
use super::files::read_text;
use super::flags::{DeviceFlags, KernelFlags, flag_of};
use super::toml_file;
use crate::scan;
use mkernel_declare::{Declaration, Declared, Mistake};
use mkernel_spec::{Device, Dim, Field, KernelConfig, KernelPlan, KernelSpec, Violations};
use std::path::{Path, PathBuf};

/// Where kernels are declared, and for which device.
#[derive(Debug, clap::Args)]
pub struct Input {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    device: DeviceFlags,
}

/// Where kernels are declared.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// TOML files with [[kernel]] tables; - is standard input
    files: Vec<PathBuf>,
    /// Folder of a crate whose #[fused_kernel]s are meant (its src/ and examples/)
    #[arg(long = "crate", value_name = "DIR")]
    crate_dir: Option<PathBuf>,
    #[command(flatten)]
    flags: KernelFlags,
}

/// What a command does to declared kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Their ranks, and the flag that says so.
    pub world: Option<(u32, &'static str)>,
    /// Sizes that flags give hold for dimensions whose size is declared, too.
    pub resize: bool,
    /// Name and text of the TOML file that is read if no kernel is given.
    pub default: Option<(&'static str, &'static str)>,
}

/// A kernel that a command is about.
#[derive(Debug)]
pub struct Kernel {
    /// What a person calls it.
    pub label: String,
    /// Where it is declared.
    pub place: String,
    /// What it computes.
    pub spec: KernelSpec,
    /// How; none while a dimension is dynamic.
    pub plan: Option<KernelPlan>,
}

impl Kernel {
    /// The dimensions whose sizes are not known.
    pub fn unknown_dims(&self) -> Vec<&'static str> {
        self.spec.unknown_dims().map(Field::name).collect()
    }
}

/// Valid kernels, and all that is wrong with the others.
#[derive(Debug, Default)]
pub struct Loaded {
    /// In the order of files, and in them.
    pub kernels: Vec<Kernel>,
    /// In the same order.
    pub mistakes: Vec<Mistake<String>>,
}

impl Loaded {
    /// The kernels, if there is no mistake.
    pub fn valid(self) -> Result<Vec<Kernel>, Failure> {
        if self.mistakes.is_empty() {
            Ok(self.kernels)
        } else {
            Err(Failure::Mistakes(self.mistakes))
        }
    }

    /// The same, if the sizes of every kernel are known, too.
    pub fn planned(self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        let mut planned = Vec::new();
        let mut mistakes = Vec::new();
        for mut kernel in self.valid()? {
            match kernel.plan.take() {
                Some(plan) => planned.push((kernel, plan)),
                None => mistakes.push(Mistake {
                    reason: format!(
                        "{}: no plan before the size of {} is known",
                        kernel.label,
                        kernel.unknown_dims().join(" and ")
                    ),
                    place: kernel.place,
                    help: "give sizes, as in --m 4096,8192".to_owned(),
                }),
            }
        }
        if mistakes.is_empty() {
            Ok(planned)
        } else {
            Err(Failure::Mistakes(mistakes))
        }
    }
}

/// What declares a kernel.
struct Declarant {
    /// The struct's name, if it is one.
    type_name: Option<String>,
    declared: Declared<String>,
}

impl Declarant {
    fn nameless(declared: Declared<String>) -> Self {
        Self {
            type_name: None,
            declared,
        }
    }
}

impl From<scan::Found> for Declarant {
    fn from(found: scan::Found) -> Self {
        Self {
            type_name: Some(found.type_name),
            declared: found.declared,
        }
    }
}

impl Input {
    /// Reads, checks and plans; mistakes in a configuration are part of the answer.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let device = self.device.device()?;
        self.sources.load(&device, Changes::default())
    }

    /// Whether kernels of a crate are meant.
    pub fn is_crate(&self) -> bool {
        self.sources.crate_dir.is_some()
    }

    /// As [`Self::load`], for commands that do nothing if there is a mistake.
    pub fn load_valid(&self) -> Result<Vec<Kernel>, Failure> {
        self.load()?.valid()
    }

    /// The same, for commands that need the sizes of every kernel.
    pub fn load_planned(&self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        self.load()?.planned()
    }
}

impl Sources {
    /// Reads, changes, checks and plans; mistakes in a configuration are part of the answer.
    pub fn load(&self, device: &Device, changes: Changes) -> Result<Loaded, Failure> {
        let mut loaded = Loaded::default();
        for Declarant {
            type_name,
            declared,
        } in self.declarations(changes.default, &mut loaded.mistakes)?
        {
            match declared {
                Ok(declaration) => {
                    self.specialise(type_name, declaration, (device, changes), &mut loaded);
                }
                Err(mistakes) => loaded.mistakes.extend(mistakes),
            }
        }
        Ok(loaded)
    }

    fn declarations(
        &self,
        default: Option<(&'static str, &'static str)>,
        mistakes: &mut Vec<Mistake<String>>,
    ) -> Result<Vec<Declarant>, Failure> {
        let is_value = |path: &PathBuf| path.as_os_str() == "true" || path.as_os_str() == "false";
        if self.files.iter().any(is_value) && self.flags.has_switch() {
            return Err(Failure::Usage(
                "a value of a switch was taken for a file; join it to the flag, as in --bias=true",
            ));
        }
        let elsewhere = !self.files.is_empty() || self.crate_dir.is_some();
        match (elsewhere, self.flags.declare_a_kernel()) {
            (true, true) => {
                return Err(Failure::Usage(
                    "beside files or --crate only sizes (--m, --seq, --max-tokens, ...) and --nodes can be given; other flags declare a kernel",
                ));
            }
            (false, false) if default.is_some() => {
                let (name, text) = default.unwrap_or_default();
                let (found, wrong) = toml_file::read(Path::new(name), text);
                mistakes.extend(wrong);
                return Ok(found.into_iter().map(Declarant::nameless).collect());
            }
            (false, _) if self.flags.is_empty() => {
                return Err(Failure::Usage(
                    "no kernel given: name TOML files, or use --crate DIR, or --op, --world and sizes (--m, --n, --k)",
                ));
            }
            (false, _) => return Ok(vec![Declarant::nameless(self.flags.declaration())]),
            (true, false) => {}
        }
        let mut declarations = Vec::new();
        for path in &self.files {
            let (found, wrong) = toml_file::read(path, &read_text(path)?);
            declarations.extend(found.into_iter().map(Declarant::nameless));
            mistakes.extend(wrong);
        }
        if let Some(dir) = &self.crate_dir {
            let (found, wrong) = scan::scan_crate(dir).map_err(|source| Failure::Read {
                path: dir.clone(),
                source,
            })?;
            if found.is_empty() && wrong.is_empty() {
                mistakes.push(Mistake {
                    place: dir.display().to_string(),
                    reason: "no #[fused_kernel] in its src/ or examples/".to_owned(),
                    help: "name the folder of a crate that declares kernels".to_owned(),
                });
            }
            declarations.extend(found.into_iter().map(Declarant::from));
            mistakes.extend(wrong);
        }
        Ok(declarations)
    }

    /// One kernel for each combination of the sizes that the flags give to dynamic dimensions.
    fn specialise(
        &self,
        type_name: Option<String>,
        mut declaration: Declaration<String>,
        (device, changes): (&Device, Changes),
        loaded: &mut Loaded,
    ) {
        let mut config = declaration.spec.config().clone();
        if let Some((world, flag)) = changes.world {
            config.world = world;
            declaration.set_place(Field::WORLD, flag.to_owned());
        }
        if let Some(nodes) = self.flags.nodes() {
            config.nodes = nodes;
            declaration.set_place(Field::NODES, flag_of(Field::NODES));
        }
        let mut sizes = Vec::new();
        for (field, dim) in config.problem.dims() {
            let given = self.flags.sizes(field);
            if given.is_empty() || dim.fixed().is_some() && !changes.resize {
                sizes.push(vec![dim]);
                continue;
            }
            declaration.set_place(field, flag_of(field));
            sizes.push(given.into_iter().map(Dim::Static).collect());
        }
        let combinations = combinations(&sizes);
        let several = combinations.len() > 1;
        for dims in combinations {
            match plan(&config, &dims, device) {
                Ok((spec, plan)) => {
                    let name = type_name.clone().or_else(|| spec.config().name.clone());
                    let label = label(name, &spec, several);
                    let place = declaration.place().clone();
                    loaded.kernels.push(Kernel {
                        label,
                        place,
                        spec,
                        plan,
                    });
                }
                Err(found) => {
                    for mistake in declaration.mistakes(&found) {
                        // Several sizes of one dimension repeat what is wrong with another.
                        if !loaded.mistakes.contains(&mistake) {
                            loaded.mistakes.push(mistake);
                        }
                    }
                }
            }
        }
    }
}

/// Every choice of a size for each dimension.
fn combinations(sizes: &[Vec<Dim>]) -> Vec<Vec<Dim>> {
    let none = vec![Vec::new()];
    sizes.iter().fold(none, |chosen, sizes| {
        let with = |dims: &Vec<Dim>, size: Dim| [dims.as_slice(), &[size]].concat();
        let chosen = chosen.iter();
        chosen
            .flat_map(|dims| sizes.iter().map(move |size| with(dims, *size)))
            .collect()
    })
}

/// The kernel with these dimensions, and its plan if they are all known.
fn plan(
    config: &KernelConfig,
    dims: &[Dim],
    device: &Device,
) -> Result<(KernelSpec, Option<KernelPlan>), Violations> {
    let mut config = config.clone();
    for ((_, dim), size) in config.problem.dims_mut().into_iter().zip(dims) {
        *dim = *size;
    }
    let spec = KernelSpec::validate(config)?;
    let plan = match spec.shape() {
        Some(_) => Some(KernelPlan::new(&spec, device)?),
        None => None,
    };
    Ok((spec, plan))
}

fn label(name: Option<String>, spec: &KernelSpec, several: bool) -> String {
    let dims = spec.problem().dims().into_iter();
    let sizes: Vec<_> = dims.map(|(field, dim)| format!("{field}={dim}")).collect();
    let sizes = sizes.join(" ");
    match name {
        Some(name) if several => format!("{name} {sizes}"),
        Some(name) => name,
        None => format!("{} {sizes}", spec.op()),
    }
}
