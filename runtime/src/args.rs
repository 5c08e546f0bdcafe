//! From operands to the bytes of the kernel's parameter, as the plan's table says.

use crate::error::Error;
use mkernel_spec::abi::{
    ArgKind, ArgLayout, Extent, MAX_RANKS, Operand, OperandSpec, Source, Stride, TensorMapSpec,
};

/// Bytes of a bf16.
pub(crate) const ELEM_BYTES: u64 = 2;

/// Tensor maps have byte strides below this.
const MAX_STRIDE_BYTES: u64 = 1 << 40;

/// A matrix of bf16 in device memory, row-major.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOperand {
    /// Address of the first element, a multiple of 16.
    pub ptr: u64,
    /// Elements from one row to the next: at least the columns, a multiple of 8.
    pub row_stride_elems: u64,
}

/// Why an operand cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandFault {
    /// No memory.
    #[error("the pointer is null; pass device memory")]
    Null,
    /// An address that TMA does not take.
    #[error(
        "address {address:#x} is not a multiple of 16 bytes (TMA); start views at a multiple of 8 elements"
    )]
    Misaligned {
        /// The address.
        address: u64,
    },
    /// Rows would overlap.
    #[error("row stride {row_stride_elems} is less than the {cols} columns")]
    StrideShort {
        /// The stride.
        row_stride_elems: u64,
        /// The columns.
        cols: u64,
    },
    /// A stride that TMA does not take.
    #[error(
        "row stride {row_stride_elems} is not a multiple of 8 elements below 2^39 (TMA); pad the rows"
    )]
    StrideStep {
        /// The stride.
        row_stride_elems: u64,
    },
    /// A slice of another size.
    #[error("the slice has {elems} elements, {rows} rows of {cols} columns are {}; pass a view of that size", .rows * .cols)]
    Length {
        /// Elements of the slice.
        elems: u64,
        /// Rows on this rank.
        rows: u64,
        /// Columns.
        cols: u64,
    },
}

/// All that the arguments of one launch are made of.
pub(crate) struct Bindings<'a> {
    pub specs: &'a [OperandSpec],
    /// In the order of `specs`.
    pub operands: &'a [RawOperand],
    /// By rank, as this rank sees them.
    pub workspaces: [u64; MAX_RANKS],
    pub host_page: u64,
    pub deadline_ns: u64,
    pub rank: u32,
}

/// What `cuTensorMapEncodeTiled` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub address: u64,
    pub dims: Vec<u64>,
    pub strides_bytes: Vec<u64>,
    pub box_elems: Vec<u32>,
}

/// Checks operands: all mistakes at once. An operand without rows on this rank is not looked at.
pub(crate) fn check(
    specs: &[OperandSpec],
    operands: &[RawOperand],
    rank: u32,
) -> Result<(), Error> {
    if operands.len() != specs.len() {
        let names = specs.iter().map(|spec| spec.operand.name()).collect();
        return Err(Error::OperandCount {
            given: operands.len(),
            expected: specs.len(),
            names,
        });
    }
    let mut faults = Vec::new();
    for (spec, operand) in specs
        .iter()
        .zip(operands)
        .filter(|(spec, _)| spec.rows.on(rank) > 0)
    {
        let RawOperand {
            ptr: address,
            row_stride_elems,
        } = *operand;
        let mut require = |ok: bool, fault| {
            if !ok {
                faults.push((spec.operand, fault));
            }
        };
        require(address != 0, OperandFault::Null);
        require(
            address.is_multiple_of(16),
            OperandFault::Misaligned { address },
        );
        require(
            row_stride_elems >= spec.cols,
            OperandFault::StrideShort {
                row_stride_elems,
                cols: spec.cols,
            },
        );
        let takes =
            row_stride_elems.is_multiple_of(8) && row_stride_elems < MAX_STRIDE_BYTES / ELEM_BYTES;
        require(takes, OperandFault::StrideStep { row_stride_elems });
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Error::Operands(faults))
    }
}

/// Checks that a dense slice of `elems` elements is the operand of `spec` on `rank`.
pub(crate) fn check_length(
    spec: &OperandSpec,
    elems: usize,
    rank: u32,
) -> Option<(Operand, OperandFault)> {
    let (rows, elems) = (spec.rows.on(rank), elems as u64);
    // An allocation cannot be empty, so any slice stands for no rows.
    let fits = rows == 0 || elems == rows * spec.cols;
    (!fits).then_some((
        spec.operand,
        OperandFault::Length {
            elems,
            rows,
            cols: spec.cols,
        },
    ))
}

impl Bindings<'_> {
    /// The operand; one without rows on this rank stands for a valid place that nobody accesses.
    fn operand(&self, wanted: Operand) -> RawOperand {
        let found = self
            .specs
            .iter()
            .zip(self.operands)
            .find(|(spec, _)| spec.operand == wanted);
        match found {
            Some((spec, operand)) if spec.rows.on(self.rank) > 0 => *operand,
            Some((spec, _)) => RawOperand {
                ptr: self.workspace(),
                row_stride_elems: spec.cols.next_multiple_of(8),
            },
            None => RawOperand {
                ptr: self.workspace(),
                row_stride_elems: 8,
            },
        }
    }

    fn workspace(&self) -> u64 {
        self.workspaces[self.rank as usize % MAX_RANKS]
    }

    pub(crate) fn tensor_map(&self, spec: &TensorMapSpec) -> TensorMap {
        let empty = spec.extents.iter().any(|extent| extent.on(self.rank) == 0);
        let address = match spec.source {
            Source::Operand(operand) if !empty => self.operand(operand).ptr,
            Source::Workspace { offset_bytes } => self.workspace() + offset_bytes,
            Source::Operand(_) => self.workspace(),
        };
        let size = |extent: &Extent| extent.on(self.rank).max(1);
        let stride = |stride: &Stride| match *stride {
            Stride::Bytes(bytes) => bytes,
            Stride::RowOf(operand) => self.operand(operand).row_stride_elems * ELEM_BYTES,
        };
        TensorMap {
            address,
            dims: spec.extents.iter().map(size).collect(),
            strides_bytes: spec.strides.iter().map(stride).collect(),
            box_elems: spec.box_elems.clone(),
        }
    }

    /// The bytes of the kernel's parameter. `encode` makes tensor maps.
    pub(crate) fn fill(
        &self,
        layout: &ArgLayout,
        mut encode: impl FnMut(&TensorMap) -> Result<[u8; 128], Error>,
    ) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; layout.size_bytes];
        for arg in &layout.args {
            let to = &mut bytes[arg.offset_bytes..];
            match &arg.kind {
                ArgKind::TensorMap(spec) => put(to, &encode(&self.tensor_map(spec))?),
                ArgKind::Pointer(operand) => put(to, &self.operand(*operand).ptr.to_ne_bytes()),
                ArgKind::RowStrideBytes(operand) => {
                    put(
                        to,
                        &(self.operand(*operand).row_stride_elems * ELEM_BYTES).to_ne_bytes(),
                    );
                }
                ArgKind::Workspaces => {
                    for (to, address) in to.chunks_exact_mut(8).zip(self.workspaces) {
                        put(to, &address.to_ne_bytes());
                    }
                }
                ArgKind::HostPage => put(to, &self.host_page.to_ne_bytes()),
                ArgKind::DeadlineNs => put(to, &self.deadline_ns.to_ne_bytes()),
                ArgKind::Rank => put(to, &self.rank.to_ne_bytes()),
            }
        }
        Ok(bytes)
    }
}

fn put(to: &mut [u8], value: &[u8]) {
    to[..value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: [OperandSpec; 3] = [
        OperandSpec {
            operand: Operand::A,
            rows: Extent::ShardRows {
                total: 10,
                per_rank: 4,
            },
            cols: 64,
            written: false,
        },
        OperandSpec {
            operand: Operand::B,
            rows: Extent::Fixed(64),
            cols: 32,
            written: false,
        },
        OperandSpec {
            operand: Operand::C,
            rows: Extent::Fixed(10),
            cols: 32,
            written: true,
        },
    ];

    fn operands() -> [RawOperand; 3] {
        [
            RawOperand {
                ptr: 0x1000,
                row_stride_elems: 72,
            },
            RawOperand {
                ptr: 0x2000,
                row_stride_elems: 32,
            },
            RawOperand {
                ptr: 0x3000,
                row_stride_elems: 40,
            },
        ]
    }

    fn bindings(operands: &[RawOperand], rank: u32) -> Bindings<'_> {
        let workspaces = [0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000, 0, 0, 0, 0];
        Bindings {
            specs: &SPECS,
            operands,
            workspaces,
            host_page: 0xabc0,
            deadline_ns: 7_000_000_000,
            rank,
        }
    }

    fn map_of_a() -> TensorMapSpec {
        TensorMapSpec {
            source: Source::Operand(Operand::A),
            extents: vec![Extent::Fixed(64), SPECS[0].rows],
            strides: vec![Stride::RowOf(Operand::A)],
            box_elems: vec![64, 128],
        }
    }

    #[test]
    fn every_kind_lands_at_its_offset() {
        let layout = ArgLayout::new(vec![
            ("rank", ArgKind::Rank),
            ("own_a", ArgKind::TensorMap(map_of_a())),
            ("shard", ArgKind::Pointer(Operand::A)),
            ("shard_row_bytes", ArgKind::RowStrideBytes(Operand::A)),
            ("workspaces", ArgKind::Workspaces),
            ("host", ArgKind::HostPage),
            ("deadline_ns", ArgKind::DeadlineNs),
        ]);
        let operands = operands();
        let mut maps = Vec::new();
        let bytes = bindings(&operands, 1)
            .fill(&layout, |map| {
                maps.push(map.clone());
                Ok([0xee; 128])
            })
            .expect("filled");
        assert_eq!(bytes.len(), layout.size_bytes);
        let at = |name: &str| {
            layout
                .args
                .iter()
                .find(|arg| arg.name == name)
                .expect("an argument")
                .offset_bytes
        };
        let word = |offset: usize| {
            u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
        };
        assert_eq!(bytes[at("rank")..at("rank") + 4], 1u32.to_ne_bytes());
        assert_eq!(bytes[at("own_a")..at("own_a") + 128], [0xee; 128]);
        assert_eq!(word(at("shard")), 0x1000);
        assert_eq!(word(at("shard_row_bytes")), 144);
        assert_eq!(word(at("workspaces") + 16), 0x30_0000);
        assert_eq!(word(at("workspaces") + 32), 0);
        assert_eq!(word(at("host")), 0xabc0);
        assert_eq!(word(at("deadline_ns")), 7_000_000_000);
        let expected = TensorMap {
            address: 0x1000,
            dims: vec![64, 4],
            strides_bytes: vec![144],
            box_elems: vec![64, 128],
        };
        assert_eq!(maps, [expected]);
    }

    #[test]
    fn a_rank_without_rows_gets_valid_addresses_that_are_not_the_callers() {
        let mut operands = operands();
        operands[0] = RawOperand::default();
        check(&SPECS, &operands, 3).expect("rank 3 has no rows of A");
        let bindings = bindings(&operands, 3);
        let map = bindings.tensor_map(&map_of_a());
        let expected = TensorMap {
            address: 0x40_0000,
            dims: vec![64, 1],
            strides_bytes: vec![128],
            box_elems: vec![64, 128],
        };
        assert_eq!(map, expected);
        assert_eq!(bindings.operand(Operand::A).ptr, 0x40_0000);
    }

    #[test]
    fn a_map_over_the_workspace_starts_in_the_own_one() {
        let operands = operands();
        let spec = TensorMapSpec {
            source: Source::Workspace { offset_bytes: 4096 },
            extents: vec![Extent::Fixed(64), Extent::Fixed(10), Extent::Fixed(2)],
            strides: vec![Stride::Bytes(128), Stride::Bytes(1280)],
            box_elems: vec![64, 128, 1],
        };
        let map = bindings(&operands, 2).tensor_map(&spec);
        assert_eq!(
            (map.address, map.strides_bytes),
            (0x30_1000, vec![128, 1280])
        );
    }

    #[test]
    fn all_faults_of_all_operands_come_at_once() {
        let operands = [
            RawOperand {
                ptr: 0x1008,
                row_stride_elems: 60,
            },
            RawOperand {
                ptr: 0,
                row_stride_elems: 32,
            },
            RawOperand {
                ptr: 0x3000,
                row_stride_elems: 1 << 40,
            },
        ];
        let Err(Error::Operands(faults)) = check(&SPECS, &operands, 0) else {
            panic!("four faults")
        };
        let expected = [
            (Operand::A, OperandFault::Misaligned { address: 0x1008 }),
            (
                Operand::A,
                OperandFault::StrideShort {
                    row_stride_elems: 60,
                    cols: 64,
                },
            ),
            (
                Operand::A,
                OperandFault::StrideStep {
                    row_stride_elems: 60,
                },
            ),
            (Operand::B, OperandFault::Null),
            (
                Operand::C,
                OperandFault::StrideStep {
                    row_stride_elems: 1 << 40,
                },
            ),
        ];
        assert_eq!(faults, expected);
        let text = Error::Operands(faults).to_string();
        assert_eq!(text.lines().count(), 5, "{text}");
    }

    #[test]
    fn the_number_of_operands_is_checked() {
        let error = check(&SPECS, &operands()[..2], 0).expect_err("two of three");
        assert_eq!(
            error.to_string(),
            "2 operands were given, the kernel has 3: a, b, c"
        );
    }

    #[test]
    fn slices_have_exactly_the_operands_size() {
        assert_eq!(check_length(&SPECS[0], 256, 0), None);
        assert_eq!(
            check_length(&SPECS[0], 128, 2),
            None,
            "the last shard is shorter"
        );
        assert_eq!(check_length(&SPECS[0], 5, 3), None, "no rows: any slice");
        let fault = check_length(&SPECS[0], 255, 0).expect("too short");
        assert_eq!(
            fault,
            (
                Operand::A,
                OperandFault::Length {
                    elems: 255,
                    rows: 4,
                    cols: 64
                }
            )
        );
    }
}
