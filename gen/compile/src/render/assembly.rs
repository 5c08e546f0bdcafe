//! The variables of `templates/kernel.cu.tera`.

use super::roles::{Ctas, outside_roles, role_table};
use super::text::{COLUMNS, layout_assertion, shared_memory_line};
use mkernel_spec::plan::{Body, Network, Region};
use mkernel_spec::{Dtype, KernelPlan};
use serde::Serialize;
use std::collections::BTreeMap;

/// The parts of a kernel's source that depend on its operator.
pub(super) struct Assembly {
    /// A summary of the operator for the banner.
    pub title: &'static str,
    /// The headers that the kernel includes.
    pub headers: Vec<&'static str>,
    /// The constants for which the headers are instantiated.
    pub config: Config,
    /// Names of C++ templates and functions, by the variables of the operator's template.
    pub policies: BTreeMap<&'static str, String>,
    /// Lines of the banner about the computation and the exchange between ranks.
    pub banner: Vec<String>,
}

/// Constants and types in sections.
#[derive(Default)]
pub(super) struct Config(Vec<Section>);

/// Constants and types under a heading.
#[derive(Serialize)]
struct Section {
    heading: &'static str,
    constants: Vec<Constant>,
}

/// The constant or type `kind name = value;  // note`.
#[derive(Serialize)]
struct Constant {
    kind: &'static str,
    name: &'static str,
    value: String,
    /// The comment with the blanks before it, or an empty text.
    comment: String,
}

impl Config {
    /// Begins a section.
    pub fn section(&mut self, heading: &'static str) -> &mut Self {
        self.0.push(Section {
            heading,
            constants: Vec::new(),
        });
        self
    }

    /// Constants of puts to other nodes.
    pub fn network(&mut self, network: &Network) -> &mut Self {
        let channels = network.channels.into();
        self.u32("kChannels", channels, "channels to a peer on another node")
            .u32(
                "kPutsPerPeer",
                network.puts,
                "puts of a call to a peer, per channel",
            )
    }

    /// Adds a constant of type u32.
    pub fn u32(&mut self, name: &'static str, value: u32, note: &'static str) -> &mut Self {
        self.push("static constexpr u32", name, value.to_string(), note)
    }

    /// Adds a constant of type float.
    pub fn float(&mut self, name: &'static str, value: f64, note: &'static str) -> &mut Self {
        // The Debug form always has a point or an exponent, which C++ requires before the suffix.
        self.push(
            "static constexpr float",
            name,
            format!("{:?}f", value as f32),
            note,
        )
    }

    /// Adds a constant of type bool.
    pub fn bool(&mut self, name: &'static str, value: bool, note: &'static str) -> &mut Self {
        self.push("static constexpr bool", name, value.to_string(), note)
    }

    /// Adds the constant of kernels whose results do not depend on the batch.
    pub fn batch_invariant(&mut self) -> &mut Self {
        let note = "the bits of a row do not depend on other rows, nor on their number";
        self.bool("kBatchInvariant", true, note)
    }

    /// Adds a constant with the value and the type of another constant.
    pub fn name(
        &mut self,
        name: &'static str,
        value: &'static str,
        note: &'static str,
    ) -> &mut Self {
        self.push("static constexpr auto", name, value.to_owned(), note)
    }

    /// Adds the type of elements.
    pub fn element(&mut self, name: &'static str, dtype: Dtype, note: &'static str) -> &mut Self {
        self.push("using", name, dtype.info().cxx.to_owned(), note)
    }

    /// Adds the name of a policy.
    pub fn policy(
        &mut self,
        name: &'static str,
        policy: &'static str,
        note: &'static str,
    ) -> &mut Self {
        self.push("using", name, policy.to_owned(), note)
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

/// The variables of the template, which have the names of the fields.
#[derive(Serialize)]
pub(super) struct AssemblyContext<'a> {
    /// The namespace of a bucket, if the kernel has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    /// The calls that run the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<String>,
    id: &'a str,
    op: &'a str,
    pub title: &'a str,
    banner: Vec<String>,
    /// Whether the kernel is traced. Absent if not, so that the variables of other kernels stay as they were.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    traced: bool,
    pub headers: Vec<&'a str>,
    sections: Vec<Section>,
    args: Vec<String>,
    args_assertion: String,
    workspace: Vec<Accessor<'a>>,
    smem: Vec<Accessor<'a>>,
    outside_roles: Vec<String>,
    ctas: Vec<Ctas>,
    #[serde(flatten)]
    policies: BTreeMap<&'static str, String>,
}

impl<'a> AssemblyContext<'a> {
    /// The code as the body of a bucket, in a namespace.
    pub fn in_bucket(self, namespace: String, about: String) -> Self {
        Self {
            bucket: Some(namespace),
            about: Some(about),
            ..self
        }
    }

    pub fn new(plan: &'a KernelPlan, body: &'a Body, assembly: Assembly) -> Self {
        let args = body.args.args.iter();
        let mut banner = assembly.banner;
        if !body.smem.is_empty() {
            banner.push(shared_memory_line(plan, body));
        }
        Self {
            bucket: None,
            about: None,
            id: &plan.id,
            op: plan.spec.op().name(),
            title: assembly.title,
            banner,
            traced: plan.spec.config().traced,
            headers: assembly.headers,
            sections: assembly.config.0,
            args: args.clone().map(|arg| arg.kind.declare(arg.name)).collect(),
            args_assertion: layout_assertion(
                "Args",
                body.args.size_bytes,
                args.map(|arg| (arg.name, arg.offset_bytes)),
            ),
            // The first region is the state, which has a type of its own.
            workspace: body.workspace.regions[1..]
                .iter()
                .map(Accessor::in_workspace)
                .collect(),
            smem: body
                .smem
                .iter()
                .chain(&body.comm_smem)
                .map(Accessor::in_shared_memory)
                .collect(),
            outside_roles: outside_roles(body),
            ctas: role_table(body),
            policies: assembly.policies,
        }
    }
}

/// The accessor of a region in the source of a kernel.
#[derive(Serialize)]
struct Accessor<'a> {
    /// The comment, by sentences.
    doc: &'a [&'static str],
    /// The member function, on one line if it is short enough.
    accessor: String,
}

impl<'a> Accessor<'a> {
    /// A function that returns a typed symmetric address, which does not include the rank.
    fn in_workspace(region: &'a Region) -> Self {
        let (name, element) = (region.name, region.element.cxx());
        let (parameters, indices) = (parameters(region), indices(region));
        Self::new(
            region,
            &format!("static MK_DEVICE mk::Symmetric<{element}> {name}({parameters})"),
            &format!("mk::Region<{element}, {}>::at({indices})", layout(region)),
        )
    }

    /// A function that returns an address relative to the CTA's `base`.
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

/// The parameters of an accessor.
fn parameters(region: &Region) -> String {
    let parameters = region.indices.iter().map(|i| format!("u32 {}", i.name));
    parameters.collect::<Vec<_>>().join(", ")
}

/// The names of the indices of a region.
fn indices(region: &Region) -> String {
    let names: Vec<_> = region.indices.iter().map(|index| index.name).collect();
    names.join(", ")
}

/// The offset, the stride and the extents of a region, as template arguments.
fn layout(region: &Region) -> String {
    let numbers = [region.offset_bytes, region.element.stride_bytes()];
    let extents = region.indices.iter().map(|index| index.extent);
    let numbers = numbers.into_iter().chain(extents).map(|n| n.to_string());
    numbers.collect::<Vec<_>>().join(", ")
}
