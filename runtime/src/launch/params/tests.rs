//! Tests of the packing of the parameter.

use super::*;
use crate::launch::operands::check;
use crate::launch::operands::tests::{SPECS, operands};
use crate::launch::rows::Rows;
use mkernel_spec::fabric::CommandRing;

fn bindings(operands: &[RawOperand], rank: u32) -> ParamInputs<'_> {
    let workspaces = [0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000, 0, 0, 0, 0];
    ParamInputs {
        specs: &SPECS,
        operands,
        places: &[],
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
        trace: TraceBuffer {
            address: 0x61,
            ctas: 0x62,
            warps: 0x63,
            events: 0x64,
            first_events: 8,
            other_events: 9,
        },
    }
}

fn axes<T: Copy + Default, const N: usize>(values: [T; N]) -> Axes<T> {
    values.into_iter().collect()
}

fn map_of_a() -> TensorMapSpec {
    TensorMapSpec {
        source: Source::Operand(Operand::A),
        dtype: Dtype::Bf16,
        extents: vec![Extent::Fixed(64), SPECS[0].rows],
        strides: vec![Stride::RowOf(Operand::A)],
        box_elems: vec![64, 128],
        box_of_call: false,
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
        ("trace", ArgKind::Trace),
    ]);
    let operands = operands();
    let mut maps = Vec::new();
    let mut bytes = vec![0; layout.size_bytes];
    bindings(&operands, 1)
        .fill(&layout, &mut bytes, |map| {
            maps.push(*map);
            Ok([0xee; 128])
        })
        .expect("filled");
    let at = |name: &str| {
        layout
            .args
            .iter()
            .find(|arg| arg.name == name)
            .expect("an argument")
            .offset_bytes
    };
    let word =
        |offset: usize| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"));
    assert_eq!(bytes[at("rank")..at("rank") + 4], 1u32.to_ne_bytes());
    assert_eq!(bytes[at("own_a")..at("own_a") + 128], [0xee; 128]);
    assert_eq!(word(at("shard")), 0x1000);
    assert_eq!(word(at("shard_row_bytes")), 144);
    assert_eq!(word(at("c_row_bytes")), 160, "of fp32");
    assert_eq!(word(at("workspaces") + 16), 0x30_0000);
    assert_eq!(word(at("workspaces") + 32), 0);
    assert_eq!(word(at("host")), 0xabc0);
    let of_trace = (0..5).map(|i| word(at("trace") + 8 * i));
    assert!(of_trace.eq([0x61, 0x62, 0x63, 0x64, 9 << 32 | 8]));
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
        dims: axes([64, 4]),
        strides_bytes: axes([144]),
        dtype: Dtype::Bf16,
        box_elems: axes([64, 128]),
    };
    assert_eq!(maps, [expected]);
}

#[test]
fn a_rank_without_rows_gets_valid_addresses_that_are_not_the_callers() {
    let mut operands = operands();
    operands[0] = RawOperand::default();
    let on_rank_3 = (3, &crate::tensors::Tensors::default());
    check(&SPECS, &operands, Rows::Most, on_rank_3).expect("rank 3 has no rows of A");
    let bindings = bindings(&operands, 3);
    let map = bindings.tensor_map(&map_of_a());
    let expected = TensorMap {
        address: 0x40_0000,
        dims: axes([64, 1]),
        strides_bytes: axes([128]),
        dtype: Dtype::Bf16,
        box_elems: axes([64, 128]),
    };
    assert_eq!(map, expected);
    assert_eq!(bindings.operand(Operand::A).ptr, 0x40_0000);
}

/// A map of rows that each call gives. As in attention, two of its dimensions have the stride of a row.
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
        box_of_call: false,
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
    assert_eq!(map(1, (18, 0)), (before, 5, axes([144, 144, 5 * 144])));
    assert_eq!(map(1, (40, 0)), (before, 10, axes([144, 144, 10 * 144])));
    assert_eq!(
        map(1, (0, 0x1234)),
        (before, 10, axes([144, 144, 10 * 144]))
    );
    // The map of a rank without rows does not point to the caller's memory.
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
        box_of_call: false,
    };
    let map = bindings(&operands, 2).tensor_map(&spec);
    assert_eq!(
        (map.address, map.strides_bytes),
        (0x30_1000, axes([128, 1280]))
    );
}

#[test]
fn an_operand_in_symmetric_memory_has_addresses_on_all_ranks() {
    let operands = operands();
    let mut addresses = [0; MAX_RANKS];
    addresses[..2].copy_from_slice(&[0x3000, 0x7000]);
    let place = SymmetricPlace {
        addresses,
        number: 0x1_0002_0003,
    };
    let places = [SymmetricPlace::default(), SymmetricPlace::default(), place];
    let inputs = ParamInputs {
        places: &places,
        ..bindings(&operands, 0)
    };
    let map = TensorMapSpec {
        source: Source::Operand(Operand::C),
        ..map_of_a()
    };
    let layout = ArgLayout::new(vec![
        ("c_of_peers", ArgKind::TensorMapsOnPeers { map, count: 2 }),
        ("results", ArgKind::OnPeers(Operand::C)),
        ("result_place", ArgKind::SymmetricPlace(Operand::C)),
    ]);
    let mut encoded = Vec::new();
    let mut bytes = vec![0; layout.size_bytes];
    let filled = inputs.fill(&layout, &mut bytes, |map| {
        encoded.push(map.address);
        Ok([encoded.len() as u8; 128])
    });
    filled.expect("encoded");
    assert_eq!(encoded, [0x3000, 0x7000]);
    assert_eq!((bytes[0], bytes[127], bytes[128]), (1, 1, 2));
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!([word(256), word(264), word(272)], [0x3000, 0x7000, 0]);
    assert_eq!(word(256 + 8 * MAX_RANKS), 0x1_0002_0003);
}
