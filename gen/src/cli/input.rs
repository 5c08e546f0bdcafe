//! Which kernels a command is about: from TOML files, a user's crate or flags.

use super::flags::{DIMS, DeviceFlags, KernelFlags, flag_of};
use super::{Failure, read_text, toml_file};
use crate::scan;
use mkernel_declare::{Declaration, Declared, Mistake};
use mkernel_spec::{Device, Dim, Field, KernelPlan, KernelSpec, Shape};
use std::path::PathBuf;

/// Where kernels are declared, and for which device.
#[derive(Debug, clap::Args)]
pub struct Input {
    /// TOML files with [[kernel]] tables; - is standard input
    files: Vec<PathBuf>,
    /// Folder of a crate whose #[fused_kernel]s are meant (its src/ and examples/)
    #[arg(long = "crate", value_name = "DIR")]
    crate_dir: Option<PathBuf>,
    #[command(flatten)]
    flags: KernelFlags,
    #[command(flatten)]
    device: DeviceFlags,
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
        let unknown = dims(&self.spec).into_iter().filter(|(_, dim)| dim.fixed().is_none());
        unknown.map(|(field, _)| field.name()).collect()
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

impl Input {
    /// Reads, checks and plans; mistakes in a configuration are part of the answer.
    pub fn load(&self) -> Result<Loaded, Failure> {
        let device = self.device.device()?;
        let mut loaded = Loaded::default();
        for (name, declared) in self.declarations(&mut loaded.mistakes)? {
            match declared {
                Ok(declaration) => self.specialise(name, declaration, &device, &mut loaded),
                Err(mistakes) => loaded.mistakes.extend(mistakes),
            }
        }
        Ok(loaded)
    }

    /// The same, for commands that do nothing if there is a mistake.
    pub fn load_valid(&self) -> Result<Vec<Kernel>, Failure> {
        let Loaded { kernels, mistakes } = self.load()?;
        if mistakes.is_empty() { Ok(kernels) } else { Err(Failure::Mistakes(mistakes)) }
    }

    /// The same, for commands that need the sizes of every kernel.
    pub fn load_planned(&self) -> Result<Vec<(Kernel, KernelPlan)>, Failure> {
        let mut planned = Vec::new();
        let mut mistakes = Vec::new();
        for mut kernel in self.load_valid()? {
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
        if mistakes.is_empty() { Ok(planned) } else { Err(Failure::Mistakes(mistakes)) }
    }

    fn declarations(
        &self,
        mistakes: &mut Vec<Mistake<String>>,
    ) -> Result<Vec<(Option<String>, Declared<String>)>, Failure> {
        let elsewhere = !self.files.is_empty() || self.crate_dir.is_some();
        match (elsewhere, self.flags.declare_a_kernel()) {
            (true, true) => {
                return Err(Failure::Usage(
                    "beside files or --crate only --m, --n and --k can be given; other flags declare a kernel",
                ));
            }
            (false, _) if self.flags.is_empty() => {
                return Err(Failure::Usage(
                    "no kernel given: name TOML files, or use --crate DIR, or --op, --world, --m, --n and --k",
                ));
            }
            (false, _) => return Ok(vec![(None, self.flags.declaration())]),
            (true, false) => {}
        }
        let mut declarations = Vec::new();
        for path in &self.files {
            let (found, wrong) = toml_file::read(path, &read_text(path)?);
            declarations.extend(found.into_iter().map(|declared| (None, declared)));
            mistakes.extend(wrong);
        }
        if let Some(dir) = &self.crate_dir {
            let (found, wrong) = scan::scan_crate(dir)
                .map_err(|source| Failure::Read { path: dir.clone(), source })?;
            if found.is_empty() && wrong.is_empty() {
                mistakes.push(Mistake {
                    place: dir.display().to_string(),
                    reason: "no #[fused_kernel] in its src/ or examples/".to_owned(),
                    help: "name the folder of a crate that declares kernels".to_owned(),
                });
            }
            declarations.extend(found.into_iter().map(|f| (Some(f.type_name), f.declared)));
            mistakes.extend(wrong);
        }
        Ok(declarations)
    }

    /// One kernel for each combination of the sizes that the flags give to dynamic dimensions.
    fn specialise(
        &self,
        type_name: Option<String>,
        mut declaration: Declaration<String>,
        device: &Device,
        loaded: &mut Loaded,
    ) {
        let [m, n, k] = dims(&declaration.spec).map(|(field, dim)| match dim.fixed() {
            Some(size) => vec![size],
            None => {
                declaration.set_place(field, flag_of(field));
                self.flags.sizes(field)
            }
        });
        let shapes = m.iter().flat_map(|&m| n.iter().map(move |&n| (m, n)));
        let shapes = shapes.flat_map(|(m, n)| k.iter().map(move |&k| Some(Shape { m, n, k })));
        let mut shapes: Vec<_> = shapes.collect();
        if shapes.is_empty() {
            shapes.push(None); // Some dimension stays dynamic.
        }
        let several = shapes.len() > 1;
        for shape in shapes {
            match plan(&declaration.spec, shape, device) {
                Ok((spec, plan)) => {
                    let name = type_name.clone().or_else(|| spec.config().name.clone());
                    let label = label(name, &spec, several);
                    loaded.kernels.push(Kernel { label, place: declaration.place().clone(), spec, plan });
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

fn plan(
    spec: &KernelSpec,
    shape: Option<Shape>,
    device: &Device,
) -> Result<(KernelSpec, Option<KernelPlan>), mkernel_spec::Violations> {
    let Some(shape) = shape else {
        return Ok((spec.clone(), None));
    };
    let spec = spec.specialise(shape)?;
    let plan = KernelPlan::new(&spec, device)?;
    Ok((spec, Some(plan)))
}

fn label(name: Option<String>, spec: &KernelSpec, several: bool) -> String {
    let config = spec.config();
    let sizes = format!("m={} n={} k={}", config.m, config.n, config.k);
    match name {
        Some(name) if several => format!("{name} {sizes}"),
        Some(name) => name,
        None => format!("{} {sizes}", config.op),
    }
}

fn dims(spec: &KernelSpec) -> [(Field, Dim); 3] {
    let config = spec.config();
    let [m, n, k] = DIMS;
    [(m, config.m), (n, config.n), (k, config.k)]
}
