//! [`Preset`]: kernels that come with the program.

/// The kernels of a file in `presets`, for any number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// All operators, at the sizes of README.md and benches/README.md
    Mission,
    /// Square products, attention and experts over the grid of sizes with which the project began
    Seed,
}

impl Preset {
    /// The name and the text of the file.
    pub const fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Mission => ("mission.toml", include_str!("presets/mission.toml")),
            Self::Seed => ("seed.toml", include_str!("presets/seed.toml")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;
    use crate::cli::toml_file;
    use clap::ValueEnum;
    use mkernel_spec::{Device, KernelPlan, Op, WORLDS};
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn presets_have_plans_for_all_worlds_and_mission_has_all_operators() {
        for preset in Preset::value_variants() {
            let (name, text) = preset.file();
            let (kernels, wrong) = toml_file::read(Path::new(name), text);
            assert!(wrong.is_empty(), "{wrong:?}");
            let mut ops = BTreeSet::new();
            for kernel in kernels {
                let mut config = kernel.expect("valid").spec.config().clone();
                ops.insert(config.op().name());
                for world in WORLDS {
                    config.world = world;
                    let spec = mkernel_spec::SizedSpec::validate(config.clone());
                    let spec = spec.unwrap_or_else(|error| panic!("{config:?}: {error}"));
                    let plan = KernelPlan::new(&spec, &Device::default());
                    plan.unwrap_or_else(|error| panic!("{config:?}: {error}"));
                }
            }
            if *preset == Preset::Mission {
                let all = Op::ALL.into_iter().map(Op::name).collect();
                assert_eq!(ops, all, "mission lacks operators");
            }
        }
    }
}
