//! The operands of tensor-core products in shared memory, and their matrix descriptors.

use super::clock::Clock;
use super::machine::Machine;
use super::shadow::AccessFault;
use super::stamp::{Accessor, NO_SLOT};
use super::state::launch::SHARED_START;
use super::state::mma::{DEPTH, Product, Unpack};
use super::tensor::swizzled;

impl Machine {
    /// Reads a K-major ([lines][16 k]) or MN-major ([16 k][lines]) operand through its descriptor. Calls `put` with the
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
        let mut unwritten = vec![UnwrittenChunks::default(); lines / 8];
        for chunk in 0..lines * DEPTH / 8 {
            let (line, k) = chunk_start(chunk, lines, mn_major);
            let address = layout.address(line as u32, k as u32, mn_major);
            let offset = address.wrapping_sub(SHARED_START) as usize;
            if offset + 16 > memory.smem.bytes.len() {
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
            let cells = &mut memory.smem.cells[offset / 4..offset / 4 + 4];
            self.shadow.read(cells, &by, note);
            let chunks = &mut unwritten[line / 8];
            chunks.count += u32::from(!was_written);
            chunks.first_address.get_or_insert(address);
            let bytes = &memory.smem.bytes[offset..offset + 16];
            put_values(bytes, product.shape.unpack, (line, k), mn_major, &mut put);
        }
        if let Some(address) = outside {
            self.fail(format!(
                "wgmma reads {address:#x}, which is outside of shared memory (matrix descriptor {descriptor:#x})"
            ));
        }
        let unwritten = unwritten.iter();
        let mut mistakes = unwritten.filter_map(|chunks| chunks.mistake(mn_major));
        let unwritten = mistakes
            .next()
            .map(|address| (AccessFault::Uninitialised, 0, address));
        if let Some((fault, earlier, address)) = found.or(unwritten) {
            let what = format!("shared memory at {address:#x}");
            self.report_access_fault(fault, earlier, stamp, &what);
        }
    }
}

/// Returns the line and the k of the first element of a chunk: eight elements that are contiguous in shared memory.
const fn chunk_start(chunk: usize, lines: usize, mn_major: bool) -> (usize, usize) {
    if mn_major {
        (chunk * 8 % lines, chunk * 8 / lines)
    } else {
        (chunk / 2, chunk % 2 * 8)
    }
}

/// Passes on the values of a chunk: `put` gets the line, the k and the value of each element.
fn put_values(
    bytes: &[u8],
    unpack: Unpack,
    (line, k): (usize, usize),
    mn_major: bool,
    put: &mut impl FnMut(usize, usize, f32),
) {
    let (words, _) = bytes.as_chunks::<4>();
    let values = words
        .iter()
        .flat_map(|word| unpack.values(u32::from_le_bytes(*word)));
    for (i, value) in values.enumerate() {
        if mn_major {
            put(line + i, k, value);
        } else {
            put(line, k + i, value);
        }
    }
}

/// The chunks of eight lines that were never written.
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
    fn mistake(&self, mn_major: bool) -> Option<u32> {
        let whole_lines = if mn_major { DEPTH } else { DEPTH / 8 };
        let partly = !self.count.is_multiple_of(whole_lines as u32);
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

    /// Returns the address of element (line, k). Lines are rows of A or columns of B.
    fn address(&self, line: u32, k: u32, mn_major: bool) -> u32 {
        let width = self.swizzle_bytes;
        let logical = if mn_major {
            let per_row = width / 2;
            line / per_row * self.leading_bytes
                + k / 8 * self.stride_bytes
                + k % 8 * width
                + line % per_row * 2
        } else {
            line / 8 * self.stride_bytes + line % 8 * width + k * 2
        };
        swizzled(self.start + logical, width)
    }
}
