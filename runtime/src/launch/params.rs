//! Packs operands and addresses into the kernel's parameter, in the layout of the plan.

use crate::error::Error;
use crate::launch::operands::RawOperand;
use mkernel_spec::Dtype;
use mkernel_spec::abi::{
    ArgKind, ArgLayout, Extent, MAX_RANKS, Operand, OperandSpec, Source, Stride, TensorMapSpec,
};
use mkernel_spec::fabric::KernelEndpoint;
use std::mem::offset_of;

/// The values from which the parameter of one launch is packed.
pub(crate) struct ParamInputs<'a> {
    pub specs: &'a [OperandSpec],
    /// The operands, in the order of `specs`.
    pub operands: &'a [RawOperand],
    /// The workspaces of this node's ranks, including this one, as addresses in this process.
    pub workspaces: [u64; MAX_RANKS],
    /// The index of this rank's workspace.
    pub local_rank: u32,
    pub host_page: u64,
    pub gate: u64,
    pub operator_number: u32,
    pub deadline_ns: u64,
    pub rank: u32,
    /// The rows of the call, and the address of a word with them or 0.
    pub rows: (u32, u64),
    /// What the kernel needs for puts to other nodes.
    pub endpoint: KernelEndpoint,
}

/// The arguments of `cuTensorMapEncodeTiled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub address: u64,
    pub dims: Vec<u64>,
    pub strides_bytes: Vec<u64>,
    pub dtype: Dtype,
    pub box_elems: Vec<u32>,
}

impl ParamInputs<'_> {
    /// Returns the operand. An operand without rows on this rank is replaced by a valid address, which the kernel does
    /// not access.
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

    fn row_bytes(&self, wanted: Operand) -> u64 {
        let spec = self.specs.iter().find(|spec| spec.operand == wanted);
        let elem_bytes = spec.map_or(Dtype::default(), |spec| spec.dtype).bytes();
        self.operand(wanted).row_stride_elems * elem_bytes
    }

    fn workspace(&self) -> u64 {
        self.workspaces[self.local_rank as usize % MAX_RANKS]
    }

    pub(crate) fn tensor_map(&self, spec: &TensorMapSpec) -> TensorMap {
        // With rows in memory, an operand has the most of them.
        let on = |extent: &Extent| match self.rows {
            (rows, 0) => extent.in_call(rows.into()).on(self.rank),
            _ => extent.on(self.rank),
        };
        let empty = spec.extents.iter().any(|extent| on(extent) == 0);
        let start = |operand| match empty {
            true => self.workspace(),
            false => self.operand(operand).ptr,
        };
        let address = match spec.source {
            Source::Operand(operand) => start(operand),
            // An address is only the start of a sum.
            Source::BeforeOperand { operand, rows } => {
                start(operand).wrapping_sub(rows * self.row_bytes(operand))
            }
            Source::Workspace { offset_bytes } => self.workspace() + offset_bytes,
        };
        let size = |extent: &Extent| on(extent).max(1);
        let stride = |stride: &Stride| match *stride {
            Stride::Bytes(bytes) => bytes,
            Stride::RowOf(operand) => self.row_bytes(operand),
            Stride::RowsOf { operand, rows } => self.row_bytes(operand) * size(&rows),
        };
        TensorMap {
            address,
            dims: spec.extents.iter().map(size).collect(),
            strides_bytes: spec.strides.iter().map(stride).collect(),
            dtype: spec.dtype,
            box_elems: spec.box_elems.clone(),
        }
    }

    /// Returns the bytes of the kernel's parameter. `encode` encodes a tensor map.
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
                ArgKind::Pointer(operand) | ArgKind::Result(operand) => {
                    put(to, &self.operand(*operand).ptr.to_ne_bytes());
                }
                ArgKind::RowStrideBytes(operand) => {
                    put(to, &self.row_bytes(*operand).to_ne_bytes());
                }
                ArgKind::Workspaces => {
                    for (to, address) in to.chunks_exact_mut(8).zip(self.workspaces) {
                        put(to, &address.to_ne_bytes());
                    }
                }
                ArgKind::HostPage => put(to, &self.host_page.to_ne_bytes()),
                ArgKind::Gate => put(to, &self.gate.to_ne_bytes()),
                ArgKind::OperatorNumber => put(to, &self.operator_number.to_ne_bytes()),
                ArgKind::DeadlineNs => put(to, &self.deadline_ns.to_ne_bytes()),
                ArgKind::Rank => put(to, &self.rank.to_ne_bytes()),
                ArgKind::Rows => put(to, &self.rows.0.to_ne_bytes()),
                ArgKind::RowsAddress => put(to, &self.rows.1.to_ne_bytes()),
                ArgKind::Endpoint => put_endpoint(to, &self.endpoint),
            }
        }
        Ok(bytes)
    }
}

fn put_endpoint(to: &mut [u8], endpoint: &KernelEndpoint) {
    let ring = &endpoint.ring;
    let long_words = [
        (offset_of!(KernelEndpoint, ring.slots), ring.slots),
        (offset_of!(KernelEndpoint, ring.words), ring.words),
        (offset_of!(KernelEndpoint, ring.state), ring.state),
        (offset_of!(KernelEndpoint, arrivals), endpoint.arrivals),
        (offset_of!(KernelEndpoint, network), endpoint.network),
        (
            offset_of!(KernelEndpoint, workspace_offset),
            endpoint.workspace_offset,
        ),
    ];
    let words = [
        (
            offset_of!(KernelEndpoint, ring.capacity_log2),
            ring.capacity_log2,
        ),
        (offset_of!(KernelEndpoint, region), endpoint.region),
    ];
    for (at, word) in long_words {
        put(&mut to[at..], &word.to_ne_bytes());
    }
    for (at, word) in words {
        put(&mut to[at..], &word.to_ne_bytes());
    }
}

fn put(to: &mut [u8], value: &[u8]) {
    to[..value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::operands::check;
    use crate::launch::operands::tests::{SPECS, operands};
    use mkernel_spec::fabric::CommandRing;

    fn bindings(operands: &[RawOperand], rank: u32) -> ParamInputs<'_> {
        let workspaces = [0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000, 0, 0, 0, 0];
        ParamInputs {
            specs: &SPECS,
            operands,
            workspaces,
            local_rank: rank,
            host_page: 0xabc0,
            gate: 0xdef0,
            operator_number: 3,
            deadline_ns: 7_000_000_000,
            rank,
            rows: (12, 0x1234),
            endpoint: KernelEndpoint {
                ring: CommandRing {
                    slots: 0x51,
                    words: 0x52,
                    state: 0x53,
                    capacity_log2: 10,
                },
                arrivals: 0x54,
                network: 0x55,
                workspace_offset: 0x56,
                region: 7,
            },
        }
    }

    fn map_of_a() -> TensorMapSpec {
        TensorMapSpec {
            source: Source::Operand(Operand::A),
            dtype: Dtype::Bf16,
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
            ("c_row_bytes", ArgKind::RowStrideBytes(Operand::C)),
            ("workspaces", ArgKind::Workspaces),
            ("host", ArgKind::HostPage),
            ("gate", ArgKind::Gate),
            ("operator_number", ArgKind::OperatorNumber),
            ("deadline_ns", ArgKind::DeadlineNs),
            ("endpoint", ArgKind::Endpoint),
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
        assert_eq!(word(at("c_row_bytes")), 160, "of fp32");
        assert_eq!(word(at("workspaces") + 16), 0x30_0000);
        assert_eq!(word(at("workspaces") + 32), 0);
        assert_eq!(word(at("host")), 0xabc0);
        assert_eq!(word(at("gate")), 0xdef0);
        let number = at("operator_number");
        assert_eq!(bytes[number..number + 4], 3u32.to_ne_bytes());
        assert_eq!(
            [0, 8, 16, 24, 32, 40, 48, 56].map(|offset| word(at("endpoint") + offset)),
            [0x51, 0x52, 0x53, 10, 0x54, 0x55, 0x56, 7]
        );
        assert_eq!(word(at("deadline_ns")), 7_000_000_000);
        let expected = TensorMap {
            address: 0x1000,
            dims: vec![64, 4],
            strides_bytes: vec![144],
            dtype: Dtype::Bf16,
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
            dtype: Dtype::Bf16,
            box_elems: vec![64, 128],
        };
        assert_eq!(map, expected);
        assert_eq!(bindings.operand(Operand::A).ptr, 0x40_0000);
    }

    /// A map of rows that each call gives, with two dimensions that have the stride of a row, as attention has them.
    fn map_of_call() -> TensorMapSpec {
        let rows = Extent::RowsOfChunks {
            most: 40,
            chunks: 4,
            mirror: None,
            times: 1,
        };
        TensorMapSpec {
            source: Source::BeforeOperand {
                operand: Operand::A,
                rows: 3,
            },
            dtype: Dtype::Bf16,
            extents: vec![Extent::Fixed(64), Extent::Fixed(4), rows, Extent::Fixed(2)],
            strides: vec![
                Stride::RowOf(Operand::A),
                Stride::RowOf(Operand::A),
                Stride::RowsOf {
                    operand: Operand::A,
                    rows,
                },
            ],
            box_elems: vec![64, 4, 1, 1],
        }
    }

    #[test]
    fn a_map_has_the_rows_of_the_call_if_the_host_knows_them() {
        let operands = operands();
        let map = |rank, rows| {
            let inputs = ParamInputs {
                rows,
                ..bindings(&operands, rank)
            };
            let map = inputs.tensor_map(&map_of_call());
            (map.address, map.dims[2], map.strides_bytes)
        };
        let before = 0x1000 - 3 * 144;
        // Of 18 rows, the four ranks have 5, 5, 5 and 3.
        assert_eq!(map(1, (18, 0)), (before, 5, vec![144, 144, 5 * 144]));
        assert_eq!(map(1, (40, 0)), (before, 10, vec![144, 144, 10 * 144]));
        assert_eq!(map(1, (0, 0x1234)), (before, 10, vec![144, 144, 10 * 144]));
        // A rank without rows has a map that is not the caller's.
        assert_eq!(map(2, (2, 0)).0, 0x30_0000 - 3 * 144);
    }

    #[test]
    fn a_map_over_the_workspace_starts_in_the_own_one() {
        let operands = operands();
        let spec = TensorMapSpec {
            source: Source::Workspace { offset_bytes: 4096 },
            dtype: Dtype::Bf16,
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
}
