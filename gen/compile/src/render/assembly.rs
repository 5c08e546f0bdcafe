//! What `templates/kernel.cu.tera` prints: numbers, lists and names, all of them the plan's.

use super::roles::{Ctas, role_table};
use super::text::{COLUMNS, layout_assertion, shared_memory_line};
use mkernel_spec::KernelPlan;
use mkernel_spec::plan::Region;
use serde::Serialize;
use std::collections::BTreeMap;

/// A kernel, but for its banner.
pub(super) struct Assembly {
    /// The operator, in a few words.
    pub title: &'static str,
    /// Headers that the kernel includes.
    pub headers: Vec<&'static str>,
    /// What the headers are instantiated for.
    pub config: Config,
    /// Names of C++ templates and functions that the operator's template prints.
    pub policies: BTreeMap<&'static str, String>,
    /// Lines of the banner: what is computed, and what crosses between ranks.
    pub banner: Vec<String>,
}

/// Numbers under headings.
#[derive(Default)]
pub(super) struct Config(Vec<Section>);

/// Numbers under a heading.
#[derive(Serialize)]
struct Section {
    heading: &'static str,
    constants: Vec<Constant>,
}

/// `static constexpr kind name = value;  // note`
#[derive(Serialize)]
struct Constant {
    kind: &'static str,
    name: &'static str,
    value: String,
    /// What follows in the line.
    comment: String,
}

impl Config {
    /// Numbers from now on are about this.
    pub fn section(&mut self, heading: &'static str) -> &mut Self {
        self.0.push(Section {
            heading,
            constants: Vec::new(),
        });
        self
    }

    pub fn u32(&mut self, name: &'static str, value: u32, note: &'static str) -> &mut Self {
        self.push("u32", name, value.to_string(), note)
    }

    /// A literal that rounds to the nearest float.
    pub fn float(&mut self, name: &'static str, value: f64, note: &'static str) -> &mut Self {
        self.push("float", name, format!("{}f", value as f32), note)
    }

    pub fn bool(&mut self, name: &'static str, value: bool, note: &'static str) -> &mut Self {
        self.push("bool", name, value.to_string(), note)
    }

    /// The name of a value, which has its type.
    pub fn name(
        &mut self,
        name: &'static str,
        value: &'static str,
        note: &'static str,
    ) -> &mut Self {
        self.push("auto", name, value.to_owned(), note)
    }

    fn push(
        &mut self,
        kind: &'static str,
        name: &'static str,
        value: String,
        note: &'static str,
    ) -> &mut Self {
        if let Some(section) = self.0.last_mut() {
            section.constants.push(Constant {
                kind,
                name,
                value,
                comment: if note.is_empty() {
                    String::new()
                } else {
                    format!("  // {note}")
                },
            });
        }
        self
    }
}

/// All that the template knows. Field names are its variables.
#[derive(Serialize)]
pub(super) struct AssemblyContext<'a> {
    id: &'a str,
    op: &'a str,
    title: &'a str,
    banner: Vec<String>,
    headers: Vec<&'a str>,
    sections: Vec<Section>,
    args: Vec<String>,
    args_assertion: String,
    workspace: Vec<Accessor<'a>>,
    smem: Vec<Accessor<'a>>,
    ctas: Vec<Ctas<'a>>,
    #[serde(flatten)]
    policies: BTreeMap<&'static str, String>,
}

impl<'a> AssemblyContext<'a> {
    pub fn new(plan: &'a KernelPlan, assembly: Assembly) -> Self {
        let args = plan.args.args.iter();
        let mut banner = assembly.banner;
        if !plan.smem.is_empty() {
            banner.push(shared_memory_line(plan));
        }
        Self {
            id: &plan.id,
            op: plan.spec.op().name(),
            title: assembly.title,
            banner,
            headers: assembly.headers,
            sections: assembly.config.0,
            args: args.clone().map(|arg| arg.kind.declare(arg.name)).collect(),
            args_assertion: layout_assertion(
                "Args",
                plan.args.size_bytes,
                args.map(|arg| (arg.name, arg.offset_bytes)),
            ),
            // The state has a type of its own.
            workspace: plan.workspace.regions[1..]
                .iter()
                .map(Accessor::in_workspace)
                .collect(),
            smem: plan
                .smem
                .iter()
                .chain(&plan.comm_smem)
                .map(Accessor::in_shared_memory)
                .collect(),
            ctas: role_table(plan),
            policies: assembly.policies,
        }
    }
}

/// What a kernel's text says of a region.
#[derive(Serialize)]
struct Accessor<'a> {
    /// Sentences.
    doc: &'a [&'static str],
    /// A member function, on one line if it is short enough.
    accessor: String,
}

impl<'a> Accessor<'a> {
    /// A typed address that lacks the rank.
    fn in_workspace(region: &'a Region) -> Self {
        let (name, element) = (region.name, region.element.cxx());
        let (parameters, indices) = (parameters(region), indices(region));
        Self::new(
            region,
            &format!("static MK_DEVICE mk::Symmetric<{element}> {name}({parameters})"),
            &format!("mk::Region<{element}, {}>::at({indices})", layout(region)),
        )
    }

    /// Relative to the CTA's `base`.
    fn in_shared_memory(region: &'a Region) -> Self {
        let at: Vec<_> = ["base"]
            .into_iter()
            .chain(region.indices.iter().map(|index| index.name))
            .collect();
        Self::new(
            region,
            &format!(
                "MK_DEVICE u32 {}({}) const",
                region.name,
                parameters(region)
            ),
            &format!(
                "mk::SharedRegion<{}>::at({})",
                layout(region),
                at.join(", ")
            ),
        )
    }

    fn new(region: &'a Region, signature: &str, address: &str) -> Self {
        let line = format!("{signature} {{ return {address}; }}");
        let is_short = 2 + line.len() <= COLUMNS;
        Self {
            doc: &region.doc,
            accessor: match is_short {
                true => line,
                false => format!("{signature} {{\n    return {address};\n  }}"),
            },
        }
    }
}

fn parameters(region: &Region) -> String {
    let parameters = region.indices.iter().map(|i| format!("u32 {}", i.name));
    parameters.collect::<Vec<_>>().join(", ")
}

fn indices(region: &Region) -> String {
    let names: Vec<_> = region.indices.iter().map(|index| index.name).collect();
    names.join(", ")
}

/// Offset, stride and extents.
fn layout(region: &Region) -> String {
    let numbers = [region.offset_bytes, region.element.stride_bytes()];
    let extents = region.indices.iter().map(|index| index.extent);
    let numbers = numbers.into_iter().chain(extents).map(|n| n.to_string());
    numbers.collect::<Vec<_>>().join(", ")
}
