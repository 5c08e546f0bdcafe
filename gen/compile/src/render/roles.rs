//! The table of roles in the source of a kernel: the roles of the warps of each CTA.

use super::text::{COLUMNS, comment};
use mkernel_spec::plan::{Body, Role};
use serde::Serialize;

/// The blanks before an entry of a role.
const INDENT: usize = 8;

/// A range of CTAs that have the same roles. The range begins where the range of the previous entry ends.
#[derive(Serialize)]
pub(super) struct Ctas {
    /// The C++ type of the entry: `CtaRoles`, or `FirstPhase` if the CTAs have other roles afterwards.
    kind: &'static str,
    /// The numeric template arguments. The first argument is the end of the range.
    numbers: String,
    comma_before_roles: &'static str,
    roles: Vec<Warps>,
    /// A comma after all entries except the last.
    comma: &'static str,
}

/// The warps of a CTA that have a role.
#[derive(Serialize)]
struct Warps {
    first_warp: u32,
    end_warp: u32,
    /// The C++ type of the role.
    role: String,
    about: String,
    /// The waits and signals of the role as lines of a comment, if they do not fit behind `about`.
    waits: Vec<String>,
    /// A comma after all entries except the last.
    comma: &'static str,
}

/// The roles of a body by ranges of CTAs, in the order of warps. CTAs that share a role are in one range, so that the
/// code of the role exists once.
pub(super) fn role_table(body: &Body) -> Vec<Ctas> {
    let is_first = |role: &&Role| body.roles.iter().any(|other| precedes(body, role, other));
    let (first, then): (Vec<_>, Vec<_>) = body.roles.iter().partition(is_first);
    let mut table = Vec::new();
    for (_, end_cta) in ranges(&first, 0) {
        table.push(Ctas {
            kind: "FirstPhase",
            numbers: end_cta.to_string(),
            comma_before_roles: ",",
            roles: list(body, &first, end_cta),
            comma: ",",
        });
    }
    for (first_cta, end_cta) in ranges(&then, body.launch.grid_ctas) {
        let of_ctas: Vec<_> = then
            .iter()
            .copied()
            .filter(|role| is_within(role, first_cta, end_cta))
            .collect();
        let registers = body.launch.registers;
        // Registers are reallocated only if there are consumer warpgroups.
        let (producer, consumer) = match of_ctas.iter().any(|role| role.kind.holds_accumulators()) {
            true => (registers.producer, registers.consumer),
            false => (registers.entry, registers.entry),
        };
        table.push(Ctas {
            kind: "CtaRoles",
            numbers: format!("{end_cta}, {producer}, {consumer}"),
            comma_before_roles: comma_if(!of_ctas.is_empty()),
            roles: list(body, &of_ctas, end_cta),
            comma: comma_if(end_cta < body.launch.grid_ctas),
        });
    }
    table
}

const fn comma_if(is_followed: bool) -> &'static str {
    if is_followed { "," } else { "" }
}

/// Whether some warp has `role` first and `other` later.
fn precedes(body: &Body, role: &Role, other: &Role) -> bool {
    let index = |role: &Role| {
        body.roles
            .iter()
            .position(|listed| std::ptr::eq(listed, role))
    };
    index(role) < index(other) && role.shares_warps_with(other)
}

fn is_within(role: &Role, first_cta: u32, end_cta: u32) -> bool {
    first_cta <= role.ctas.0 && role.ctas.1 <= end_cta
}

/// Divides CTAs at the ends of roles, except for ends that are within the CTAs of another role.
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

/// The roles of a range of CTAs that ends at `end_cta`, in the order of warps.
fn list(body: &Body, roles: &[&Role], end_cta: u32) -> Vec<Warps> {
    let mut roles = roles.to_vec();
    roles.sort_by_key(|role| role.warps);
    let count = roles.len();
    let warps = |(number, role): (usize, &Role)| {
        let name = format!("Kernel::{}", role.kind.cxx());
        let role_type = match role.ctas.1 == end_cta {
            true => name,
            false => format!("mk::OnCtas<{}, {name}>", role.ctas.1),
        };
        let comma = comma_if(number < count);
        let (first_warp, end_warp) = role.warps;
        let waits = body.describe(&role.steps).join(" ");
        let about = format!("{}. {waits}", role.about);
        let entry = format!("mk::Warps<{first_warp}, {end_warp}, {role_type}>{comma}  // {about}");
        let (about, waits) = match INDENT + entry.len() <= COLUMNS {
            true => (about.trim_end().to_owned(), Vec::new()),
            false => (role.about.clone(), comment(&waits, INDENT)),
        };
        Warps {
            first_warp,
            end_warp,
            role: role_type,
            about,
            waits,
            comma,
        }
    };
    (1..).zip(roles).map(warps).collect()
}

/// The waits and signals of CTAs before and after their roles, as lines of a comment.
pub(super) fn outside_roles(body: &Body) -> Vec<String> {
    let functions = [("begin", &body.call.begin), ("end", &body.call.end)];
    let lines = functions.into_iter().flat_map(|(name, steps)| {
        let sentences = body.describe(steps).join(" ");
        match sentences.is_empty() {
            true => Vec::new(),
            false => comment(&format!("Kernel::{name}. {sentences}"), 0),
        }
    });
    lines.collect()
}
