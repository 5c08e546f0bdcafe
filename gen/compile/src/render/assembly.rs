//! What `templates/kernel.cu.tera` prints: numbers, lists and names, all of them the plan's.

use super::Declaration;
use mkernel_spec::plan::{Region, Role};
use mkernel_spec::{KernelPlan, abi::ArgKind};
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
    args: Vec<Declaration<'a>>,
    args_bytes: usize,
    workspace: Vec<Accessor<'a>>,
    smem: Vec<Accessor<'a>>,
    ctas: Vec<Ctas<'a>>,
    #[serde(flatten)]
    policies: BTreeMap<&'static str, String>,
}

impl<'a> AssemblyContext<'a> {
    pub fn new(plan: &'a KernelPlan, assembly: Assembly) -> Self {
        let mut banner = assembly.banner;
        banner.push(super::shared_memory_line(plan));
        let args = plan.args.args.iter();
        Self {
            id: &plan.id,
            op: plan.spec.op().name(),
            title: assembly.title,
            banner,
            headers: assembly.headers,
            sections: assembly.config.0,
            args: args
                .map(|a| Declaration {
                    declaration: a.kind.declare(a.name),
                    name: a.name,
                    offset_bytes: a.offset_bytes,
                    is_tensor_map: matches!(a.kind, ArgKind::TensorMap(_)),
                })
                .collect(),
            args_bytes: plan.args.size_bytes,
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

/// What a kernel's text says of a region: sentences, and the accessor by its signature and its result.
#[derive(Serialize)]
struct Accessor<'a> {
    doc: &'a [&'static str],
    signature: String,
    address: String,
}

impl<'a> Accessor<'a> {
    /// A typed address that lacks the rank.
    fn in_workspace(region: &'a Region) -> Self {
        let (name, element) = (region.name, region.element.cxx());
        let (parameters, indices) = (parameters(region), indices(region));
        Self {
            doc: &region.doc,
            signature: format!("static MK_DEVICE mk::Symmetric<{element}> {name}({parameters})"),
            address: format!("mk::Region<{element}, {}>::at({indices})", layout(region)),
        }
    }

    /// Relative to the CTA's `base`.
    fn in_shared_memory(region: &'a Region) -> Self {
        let at: Vec<_> = ["base"]
            .into_iter()
            .chain(region.indices.iter().map(|index| index.name))
            .collect();
        Self {
            doc: &region.doc,
            signature: format!(
                "MK_DEVICE u32 {}({}) const",
                region.name,
                parameters(region)
            ),
            address: format!(
                "mk::SharedRegion<{}>::at({})",
                layout(region),
                at.join(", ")
            ),
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

/// CTAs before `end_cta`, from those of the entry before on.
#[derive(Serialize)]
struct Ctas<'a> {
    /// What they are listed as: `CtaRoles`, or `FirstPhase` if they have other roles afterwards.
    kind: &'static str,
    /// Where they end, and what else the kind wants to know.
    numbers: String,
    comma_before_roles: &'static str,
    roles: Vec<Warps<'a>>,
    /// Behind all but the last.
    comma: &'static str,
}

/// Warps of a CTA that have a role.
#[derive(Serialize)]
struct Warps<'a> {
    first_warp: u32,
    end_warp: u32,
    /// The role's type.
    role: String,
    about: &'a str,
    /// Behind all but the last.
    comma: &'static str,
}

/// The plan's roles, by CTAs and in the order of warps. CTAs that share a role are listed together, so that its code exists
/// once.
fn role_table(plan: &KernelPlan) -> Vec<Ctas<'_>> {
    let is_first = |role: &&Role| plan.roles.iter().any(|other| precedes(plan, role, other));
    let (first, then): (Vec<_>, Vec<_>) = plan.roles.iter().partition(is_first);
    let mut table = Vec::new();
    for (_, end_cta) in ranges(&first, 0) {
        table.push(Ctas {
            kind: "FirstPhase",
            numbers: end_cta.to_string(),
            comma_before_roles: ",",
            comma: ",",
            roles: list(&first, end_cta),
        });
    }
    for (first_cta, end_cta) in ranges(&then, plan.grid_ctas) {
        let of_ctas: Vec<_> = then
            .iter()
            .copied()
            .filter(|role| is_within(role, first_cta, end_cta))
            .collect();
        let registers = plan.registers;
        // Only warpgroups that multiply need more registers than others.
        let (producer, consumer) = match of_ctas.iter().any(|role| role.name == "multiply") {
            true => (registers.mover, registers.math),
            false => (registers.entry, registers.entry),
        };
        table.push(Ctas {
            kind: "CtaRoles",
            numbers: format!("{end_cta}, {producer}, {consumer}"),
            comma_before_roles: comma_if(!of_ctas.is_empty()),
            comma: comma_if(end_cta < plan.grid_ctas),
            roles: list(&of_ctas, end_cta),
        });
    }
    table
}

const fn comma_if(is_followed: bool) -> &'static str {
    if is_followed { "," } else { "" }
}

/// Whether a warp has this role and afterwards the other one.
fn precedes(plan: &KernelPlan, role: &Role, other: &Role) -> bool {
    let index = |role: &Role| {
        plan.roles
            .iter()
            .position(|listed| std::ptr::eq(listed, role))
    };
    let overlap = |a: (u32, u32), b: (u32, u32)| a.0 < b.1 && b.0 < a.1;
    index(role) < index(other) && overlap(role.ctas, other.ctas) && overlap(role.warps, other.warps)
}

fn is_within(role: &Role, first_cta: u32, end_cta: u32) -> bool {
    first_cta <= role.ctas.0 && role.ctas.1 <= end_cta
}

/// CTAs from each end of a role to the next one, but for ends that lie within the CTAs of another role.
fn ranges(roles: &[&Role], grid_ctas: u32) -> Vec<(u32, u32)> {
    let is_split = |end: &u32| {
        roles
            .iter()
            .any(|role| role.ctas.0 < *end && *end < role.ctas.1)
    };
    let ends = roles.iter().flat_map(|role| [role.ctas.0, role.ctas.1]);
    let mut ends: Vec<u32> = ends
        .chain([0, grid_ctas])
        .filter(|end| !is_split(end))
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Roles of CTAs before `end_cta`, in the order of warps.
fn list<'a>(roles: &[&'a Role], end_cta: u32) -> Vec<Warps<'a>> {
    let mut roles = roles.to_vec();
    roles.sort_by_key(|role| role.warps);
    let count = roles.len();
    let warps = |(number, role): (usize, &'a Role)| {
        let name = format!("Kernel::{}", camel_case(role.name));
        Warps {
            first_warp: role.warps.0,
            end_warp: role.warps.1,
            role: match role.ctas.1 == end_cta {
                true => name,
                false => format!("mk::OnCtas<{}, {name}>", role.ctas.1),
            },
            about: &role.about,
            comma: comma_if(number < count),
        }
    };
    (1..).zip(roles).map(warps).collect()
}

/// `put_sums` → `PutSums`
fn camel_case(name: &str) -> String {
    let capitalised = name.split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    });
    capitalised.collect()
}
