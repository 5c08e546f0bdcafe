//! Text that kernels of several operators share.

use mkernel_spec::plan::{Body, Element, Network};
use mkernel_spec::{KernelPlan, Topology};

/// The largest number of characters in a line of C++.
pub(super) const COLUMNS: usize = 140;

/// The line of the banner about shared memory. Tables of small elements are one sum, and barriers another.
pub(super) fn shared_memory_line(plan: &KernelPlan, body: &Body) -> String {
    // The line of the last body shows the memory of the launch.
    let smem_bytes = match std::ptr::eq(body, plan.body()) {
        true => plan.smem_bytes(),
        false => body.smem_bytes,
    };
    let (mut named, mut tables, mut barriers) = (Vec::new(), 0, 0);
    for region in &body.smem {
        match region.element {
            Element::Barrier => barriers += region.bytes,
            element if element.stride_bytes() <= 16 => tables += region.bytes,
            _ => named.push((region.name, region.bytes)),
        }
    }
    let sums = [("tables", tables), ("barriers", barriers)];
    let sums = sums.into_iter().filter(|(_, bytes)| *bytes > 0);
    let regions = named.into_iter().chain(sums);
    let regions: Vec<_> = regions
        .map(|(name, bytes)| format!("{name} {bytes}"))
        .collect();
    format!(
        "shared  {} = {} of {} bytes",
        regions.join(" | "),
        smem_bytes,
        plan.device.smem_bytes
    )
}

/// The line of the banner about puts.
pub(super) fn puts_line(network: &Network) -> String {
    format!(
        "puts    {} to each other node, of up to {} bytes, on {} channel{}",
        network.puts,
        network.put_bytes,
        network.channels,
        plural(network.channels.into())
    )
}

/// The lines of a comment behind `indent` blanks. The returned lines have neither the blanks nor the slashes.
pub(super) fn comment(text: &str, indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        match &mut lines[last] {
            line if line.is_empty() => line.push_str(word),
            line if indent + "// ".len() + line.len() + 1 + word.len() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The ranks of a kernel, such as `8 ranks` or `4 ranks of 2 nodes`.
pub(super) fn ranks(topology: Topology) -> String {
    let world = topology.world();
    let of_nodes = match topology.nodes {
        1 => String::new(),
        nodes => format!(" of {nodes} nodes"),
    };
    format!("{world} rank{}{of_nodes}", plural(world))
}

/// A C++ assertion that a struct has the same layout on the device and on the host.
pub(crate) fn layout_assertion<'a>(
    name: &str,
    size_bytes: usize,
    offsets: impl IntoIterator<Item = (&'a str, usize)>,
) -> String {
    let mut text = format!("static_assert(sizeof({name}) == {size_bytes}");
    let mut columns = text.len();
    for (field, offset) in offsets {
        let term = format!(" && MK_OFFSET({name}, {field}) == {offset}");
        // The line needs room for a comma.
        if columns + term.len() >= COLUMNS {
            text.push_str("\n             ");
            columns = 13;
        }
        columns += term.len();
        text.push_str(&term);
    }
    text + &format!(",\n              \"{name} differs from the host's\");")
}

/// The ending of a noun after the number `count`.
pub(super) const fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}
