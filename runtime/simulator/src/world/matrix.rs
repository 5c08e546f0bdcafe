//! `stmatrix` and `ldmatrix`: 8 x 8 matrices between the registers of a warp and shared memory.
//!
//! Row r of matrix m has 16 bytes, at the address that lane 8 m + r passes. Lane l holds the two elements from column
//! 2 (l % 4) on of row l / 4 of each matrix.

use super::machine::Machine;

impl Machine {
    /// Stores `count` matrices.
    pub fn store_matrices(&mut self, lanes: &[usize], count: u32, pc: u64) {
        for matrix in 0..count as usize {
            for row in 0..8 {
                let mut bytes = [0; 16];
                for (pair, to) in bytes.chunks_exact_mut(4).enumerate() {
                    let value = self.threads[lanes[row * 4 + pair]].exchange[1 + matrix];
                    to.copy_from_slice(&value.to_le_bytes());
                }
                let address = self.threads[lanes[matrix * 8 + row]].exchange[0];
                let caller = std::mem::replace(&mut self.current, lanes[matrix * 8 + row]);
                if self.check_row(address, pc) {
                    self.store_shared(address, &bytes, pc);
                }
                self.current = caller;
            }
        }
    }

    /// Loads `count` matrices, each transposed if `transpose` is set.
    pub fn load_matrices(&mut self, lanes: &[usize], count: u32, transpose: bool, pc: u64) {
        for matrix in 0..count as usize {
            let mut elems = [[0u16; 8]; 8];
            for (row, to) in elems.iter_mut().enumerate() {
                let lane = lanes[matrix * 8 + row];
                let address = self.threads[lane].exchange[0];
                let caller = std::mem::replace(&mut self.current, lane);
                let mut bytes = [0; 16];
                if self.check_row(address, pc) {
                    self.load_shared(address, &mut bytes, pc);
                }
                for (elem, pair) in to.iter_mut().zip(bytes.chunks_exact(2)) {
                    *elem = u16::from_le_bytes([pair[0], pair[1]]);
                }
                self.current = caller;
            }
            for (lane, thread) in lanes.iter().enumerate() {
                let (row, column) = (lane / 4, lane % 4 * 2);
                let pair = if transpose {
                    [elems[column][row], elems[column + 1][row]]
                } else {
                    [elems[row][column], elems[row][column + 1]]
                };
                self.threads[*thread].exchange[1 + matrix] =
                    u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
        }
    }

    /// Reports a mistake and returns false if the address of a row is not aligned.
    fn check_row(&mut self, address: u32, pc: u64) -> bool {
        let aligned = address.is_multiple_of(16);
        if !aligned {
            self.report_at(
                pc,
                "alignment",
                format!("a matrix row lies at {address:#x}, which is not a multiple of 16"),
            );
        }
        aligned
    }
}
