//! The operands of tensor-core products in shared memory, and their matrix descriptors.

use super::clock::Clock;
use super::machine::Machine;
use super::shadow::AccessFault;
use super::stamp::{Accessor, NO_SLOT};
use super::state::launch::SHARED_START;
use super::state::mma::{Element, Product};
use super::tensor::swizzled;

/// The bytes of a chunk: elements that are contiguous in shared memory.
const CHUNK_BYTES: usize = 16;

impl Machine {
    /// Reads a K-major ([lines][k]) or MN-major ([k][lines]) operand through its descriptor. Calls `put` with the
    /// line, the k and the value of each element.
    pub fn operand(
        &mut self,
        descriptor: u64,
        lines: usize,
        mn_major: bool,
        product: &Product,
        stamp: u32,
        mut put: impl FnMut(usize, usize, f32),
    ) {
        let generic: Vec<&Clock> = product.known.iter().map(|view| &view.generic).collect();
        let proxy: Vec<&Clock> = product.known.iter().map(|view| &view.shared).collect();
        let by = Accessor {
            stamp,
            generic: &generic,
            proxy: Some(&proxy),
            slot: NO_SLOT,
            own: 0,
            fenced: 0,
        };
        let layout = match MatrixDescriptor::of(descriptor) {
            Ok(layout) => layout,
            Err(text) => {
                self.report_at(product.pc, "matrix descriptor", text);
                return;
            }
        };
        let cta = self.threads[self.current].cta;
        let memory = &mut self.ctas[cta];
        let mut found = None;
        let mut outside = None;
        let element = product.shape.element;
        let per_chunk = CHUNK_BYTES / element.bytes();
        let mut unwritten = vec![UnwrittenChunks::default(); lines / per_chunk];
        for (line, k, address) in layout.chunks(lines, mn_major, element) {
            let offset = address.wrapping_sub(SHARED_START) as usize;
            if offset + CHUNK_BYTES > memory.smem.bytes.len() {
                outside = Some(address);
                break;
            }
            let mut was_written = true;
            let note = |fault, earlier, _| {
                if fault == AccessFault::Uninitialised {
                    was_written = false;
                } else {
                    found.get_or_insert((fault, earlier, address));
                }
            };
            let cells = &mut memory.smem.cells[offset / 4..][..CHUNK_BYTES / 4];
            self.shadow.read(cells, &by, note);
            let chunks = &mut unwritten[line / per_chunk];
            chunks.count += u32::from(!was_written);
            chunks.first_address.get_or_insert(address);
            let bytes = &memory.smem.bytes[offset..][..CHUNK_BYTES];
            put_values(bytes, element, (line, k), mn_major, &mut put);
        }
        if let Some(address) = outside {
            self.fail(format!(
                "wgmma reads {address:#x}, which is outside of shared memory (matrix descriptor {descriptor:#x})"
            ));
        }
        let chunks_per_line = element.depth() / if mn_major { 1 } else { per_chunk };
        let mut groups = unwritten.iter();
        let unwritten = groups.find_map(|chunks| chunks.mistake(chunks_per_line));
        let unwritten = unwritten.map(|address| (AccessFault::Uninitialised, 0, address));
        if let Some((fault, earlier, address)) = found.or(unwritten) {
            let what = format!("shared memory at {address:#x}");
            self.report_access_fault(fault, earlier, stamp, &what);
        }
    }
}

/// Passes on the values of a chunk: `put` gets the line, the k and the value of each element.
fn put_values(
    bytes: &[u8],
    element: Element,
    (line, k): (usize, usize),
    mn_major: bool,
    put: &mut impl FnMut(usize, usize, f32),
) {
    let (words, _) = bytes.as_chunks::<4>();
    let values = words
        .iter()
        .flat_map(|word| element.values(u32::from_le_bytes(*word)));
    for (i, value) in values.enumerate() {
        if mn_major {
            put(line + i, k, value);
        } else {
            put(line, k + i, value);
        }
    }
}

/// The chunks that were never written, of the lines that an MN-major chunk crosses.
///
/// If a kernel loads fewer rows than a tile has, all chunks of a line may be unwritten. The line then reads as NaN,
/// which only affects its own row or column of the result. So only a line with some unwritten chunks is a mistake.
#[derive(Clone, Copy, Debug, Default)]
struct UnwrittenChunks {
    count: u32,
    /// The address of the first chunk of the lines.
    first_address: Option<u32>,
}

impl UnwrittenChunks {
    /// Returns the address of the lines if some lines are only partly written.
    fn mistake(&self, chunks_per_line: usize) -> Option<u32> {
        let partly = !self.count.is_multiple_of(chunks_per_line as u32);
        self.first_address.filter(|_| partly)
    }
}

/// A decoded matrix descriptor (PTX ISA, "Matrix Descriptor Format").
#[derive(Clone, Copy, Debug)]
struct MatrixDescriptor {
    start: u32,
    leading_bytes: u32,
    stride_bytes: u32,
    swizzle_bytes: u32,
}

impl MatrixDescriptor {
    fn of(descriptor: u64) -> Result<Self, String> {
        let field = |shift: u32, bits: u32| ((descriptor >> shift) & ((1 << bits) - 1)) as u32;
        let swizzle_bytes = match field(62, 2) {
            1 => 128,
            2 => 64,
            3 => 32,
            _ => {
                return Err(format!(
                    "matrix descriptor {descriptor:#x} without a swizzle, which is not simulated"
                ));
            }
        };
        if field(49, 3) != 0 {
            return Err(format!(
                "matrix descriptor {descriptor:#x} with a base offset, which is not simulated"
            ));
        }
        Ok(Self {
            start: field(0, 14) << 4,
            leading_bytes: field(16, 14) << 4,
            stride_bytes: field(32, 14) << 4,
            swizzle_bytes,
        })
    }

    /// Returns the line and the k of the first element of each chunk, and its address.
    fn chunks(
        self,
        lines: usize,
        mn_major: bool,
        element: Element,
    ) -> impl Iterator<Item = (usize, usize, u32)> {
        let (depth, bytes) = (element.depth(), element.bytes());
        let starts = (0..lines * depth).step_by(CHUNK_BYTES / bytes);
        starts.map(move |first| {
            let (line, k) = if mn_major {
                (first % lines, first / lines)
            } else {
                (first / depth, first % depth)
            };
            let address = self.address(line as u32, k as u32, mn_major, bytes as u32);
            (line, k, address)
        })
    }

    /// Returns the address of element (line, k). Lines are rows of A or columns of B.
    fn address(&self, line: u32, k: u32, mn_major: bool, element_bytes: u32) -> u32 {
        let width = self.swizzle_bytes;
        let logical = if mn_major {
            let per_row = width / element_bytes;
            line / per_row * self.leading_bytes
                + k / 8 * self.stride_bytes
                + k % 8 * width
                + line % per_row * element_bytes
        } else {
            line / 8 * self.stride_bytes + line % 8 * width + k * element_bytes
        };
        swizzled(self.start + logical, width)
    }
}
