//! Tests of the operands that may share memory.

use super::*;
use mkernel_spec::Dtype;
use mkernel_spec::abi::Extent;

const ROWS: u64 = 10;
const COLS: u64 = 32;
/// The number of ranks. The last rank has fewer rows than the other ranks.
const SHARD: Extent = Extent::ShardRows {
    total: ROWS,
    per_rank: 4,
};

fn spec(operand: Operand, rows: Extent) -> OperandSpec {
    OperandSpec::new(operand, rows, COLS, Dtype::Bf16)
}

/// Matrices of ten rows.
fn specs<const N: usize>(operands: [Operand; N]) -> [OperandSpec; N] {
    operands.map(|operand| spec(operand, Extent::Fixed(ROWS)))
}

fn in_place_of(input: Operand, result: OperandSpec) -> OperandSpec {
    OperandSpec {
        in_place_of: Some(input),
        ..result
    }
}

const fn at(ptr: u64, row_stride_elems: u64) -> RawOperand {
    RawOperand {
        ptr,
        row_stride_elems,
    }
}

/// Returns the mistakes on the given rank.
fn faults_on(
    rank: u32,
    specs: &[OperandSpec],
    operands: &[RawOperand],
) -> Vec<(Operand, OperandFault)> {
    let mut faults = Vec::new();
    check(specs, operands, rank, Rows::Most, &mut faults);
    faults
}

/// Returns the pairs of operands that overlap.
fn pairs(specs: &[OperandSpec], operands: &[RawOperand]) -> Vec<(Operand, Operand)> {
    let pair = |(result, fault)| match fault {
        OperandFault::Overlaps { other, .. } => (result, other),
        other => panic!("{other:?}"),
    };
    faults_on(0, specs, operands)
        .into_iter()
        .map(pair)
        .collect()
}

/// Results must not overlap any other operand in any way. Inputs may share memory.
#[test]
fn results_are_apart_from_everything() {
    use Operand::{A, B, C, K, Lse, O, Q, ResidualOut, V};
    let gemm = specs([A, B, C]);
    let apart = [at(0x1000, 32), at(0x2000, 32), at(0x3000, 40)];
    assert_eq!(pairs(&gemm, &apart), []);
    assert_eq!(pairs(&gemm, &[apart[0], apart[0], apart[2]]), [], "A is B");
    assert_eq!(pairs(&gemm, &[apart[2], apart[1], apart[2]]), [(C, A)]);
    assert_eq!(pairs(&gemm, &[apart[2]; 3]), [(C, A), (C, B)]);
    // C has ten rows of 64 bytes, 80 bytes apart, and ends at 0x3310.
    let places = [0x3310 - 16, 0x3000 + 16, 0x3000 - 10 * 64 + 16];
    for place in places {
        let places = [apart[0], at(place, 32), apart[2]];
        assert_eq!(pairs(&gemm, &places), [(C, B)], "{place:#x}");
    }
    for place in [0x3310, 0x3000 - 10 * 64] {
        assert_eq!(pairs(&gemm, &[apart[0], at(place, 32), apart[2]]), []);
    }
    let attention = specs([Q, K, V, O, Lse]);
    let of = |o: u64, lse: u64| {
        let inputs = [0x1000, 0x2000, 0x3000];
        let all: Vec<_> = inputs.into_iter().chain([o, lse]).collect();
        pairs(
            &attention,
            &all.iter().map(|ptr| at(*ptr, 32)).collect::<Vec<_>>(),
        )
    };
    assert_eq!(of(0x4000, 0x5000), []);
    for (place, input) in [(0x1000, Q), (0x2000, K), (0x3010, V)] {
        assert_eq!(of(place, 0x5000), [(O, input)]);
        assert_eq!(of(0x4000, place), [(Lse, input)]);
    }
    assert_eq!(of(0x4000, 0x4000), [(O, Lse)], "once for two results");
    assert_eq!(
        pairs(&specs([C, ResidualOut]), &[at(0x1000, 32); 2]),
        [(C, ResidualOut)]
    );
}

/// Disjoint columns of one buffer do not overlap, such as the columns of Q, K, V and O.
#[test]
fn columns_of_one_buffer_may_interleave() {
    use Operand::{K, O, Q, V};
    let specs = specs([Q, K, V, O]);
    let of = |columns: [u64; 4], stride| {
        let column = |column: u64| at(0x1000 + column * 2, stride);
        pairs(&specs, &columns.map(column))
    };
    assert_eq!(of([0, 32, 64, 96], 128), []);
    assert_eq!(of([96, 64, 32, 0], 128), []);
    assert_eq!(of([0, 32, 64, 88], 128), [(O, V)]);
    assert_eq!(of([8, 40, 72, 112], 128), [(O, Q)], "of the next row");
    // O begins after the last row of the other operands, and then inside their last row.
    assert_eq!(of([0, 32, 64, 128 * 10], 128), []);
    assert_eq!(of([0, 32, 64, 128 * 9 + 64], 128), [(O, V)]);
}

/// Two operands overlap if they share a byte. Operands with different strides may be reported although they share no byte.
#[test]
fn regions_overlap_if_they_share_a_byte() {
    let mut state = 7u64;
    let mut random = |most: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % most
    };
    let (mut overlapping, mut interleaved) = (0, 0);
    for _ in 0..20_000 {
        let row_bytes = 1 + random(5);
        let stride = row_bytes + random(9);
        let mut region = |stride_bytes: u64| {
            let region = Region {
                start: 100 + random(60),
                row_bytes: 1 + random(stride_bytes.min(6)),
                stride_bytes,
                rows: 1 + random(5),
            };
            match region.row_bytes == stride_bytes {
                true => Region::contiguous(region.start, region.rows * stride_bytes),
                false => region,
            }
        };
        let (one, two) = (region(stride), region(stride));
        let bytes = |region: Region| {
            let row = move |row| region.start + row * region.stride_bytes;
            let bytes = (0..region.rows)
                .flat_map(move |index| (0..region.row_bytes).map(move |byte| row(index) + byte));
            bytes.collect::<Vec<_>>()
        };
        let share = |one: Region, two: Region| {
            let two = bytes(two);
            bytes(one).iter().any(|byte| two.contains(byte))
        };
        assert_eq!(one.overlaps(&two), share(one, two), "{one:?}, {two:?}");
        assert_eq!(two.overlaps(&one), share(one, two), "{one:?}, {two:?}");
        overlapping += u32::from(share(one, two));
        interleaved +=
            u32::from(!share(one, two) && one.start < two.end() && two.start < one.end());
        let other = region(stride + 1);
        assert!(
            one.overlaps(&other) || !share(one, other),
            "{one:?}, {other:?}"
        );
    }
    assert!(
        overlapping > 2_000 && interleaved > 200,
        "{overlapping}, {interleaved}"
    );
}

#[test]
fn a_result_may_be_in_the_place_of_its_input_only() {
    use Operand::{Residual, ResidualOut, X, Y};
    let mut all = specs([X, Y, Residual, ResidualOut]);
    all[1] = in_place_of(X, all[1]);
    all[3] = in_place_of(Residual, all[3]);
    let of = |places: [u64; 4]| pairs(&all, &places.map(|ptr| at(ptr, 32)));
    assert_eq!(of([0x1000, 0x2000, 0x3000, 0x4000]), []);
    assert_eq!(of([0x1000, 0x1000, 0x3000, 0x3000]), [], "both in place");
    for (places, expected) in [
        ([0x1000, 0x2000, 0x3000, 0x1000], (ResidualOut, X)),
        ([0x1000, 0x2000, 0x3000, 0x2000], (Y, ResidualOut)),
        ([0x1000, 0x2000, 0x2000, 0x4000], (Y, Residual)),
        ([0x1000, 0x2000, 0x3000, 0x3010], (ResidualOut, Residual)),
        ([0x1000, 0x1040, 0x3000, 0x4000], (Y, X)),
    ] {
        assert_eq!(of(places), [expected], "{places:x?}");
    }
    // Each element of the result must be at the place of the corresponding element of the input.
    let pair = [all[0], all[1]];
    assert_eq!(pairs(&pair, &[at(0x1000, 40), at(0x1000, 40)]), []);
    assert_eq!(pairs(&pair, &[at(0x1000, 40), at(0x1000, 48)]), [(Y, X)]);
    let other_type = OperandSpec {
        dtype: Dtype::Fp32,
        ..pair[1]
    };
    let [(_, fault)] = &faults_on(0, &[pair[0], other_type], &[at(0x1000, 40); 2])[..] else {
        panic!("one overlap")
    };
    assert_eq!(
        fault.to_string(),
        "it overlaps x. Pass separate memory",
        "elements of another type have other places"
    );
}

/// The place of a shard is the place of its rows among all rows.
#[test]
fn a_shard_is_in_place_among_the_rows_of_all_ranks() {
    use Operand::{X, Y};
    let gather = [spec(X, SHARD), in_place_of(X, spec(Y, Extent::Fixed(ROWS)))];
    let scatter = [spec(X, Extent::Fixed(ROWS)), in_place_of(X, spec(Y, SHARD))];
    let whole = at(0x1000, 40);
    for rank in 0..3 {
        for row in 0..ROWS {
            let part = at(0x1000 + row * 80, 40);
            let is_own = row == u64::from(rank) * 4;
            let gathered = faults_on(rank, &gather, &[part, whole]);
            let scattered = faults_on(rank, &scatter, &[whole, part]);
            assert_eq!(gathered.is_empty(), is_own, "rank {rank}, row {row}");
            assert_eq!(scattered.is_empty(), is_own, "rank {rank}, row {row}");
        }
    }
    assert_eq!(faults_on(3, &gather, &[whole, whole]), [], "no rows");
    let text = |specs, operands: [RawOperand; 2]| {
        let [(_, fault)] = &faults_on(1, specs, &operands)[..] else {
            panic!("one overlap")
        };
        fault.to_string()
    };
    assert_eq!(
        text(&gather, [whole, whole]),
        "it overlaps x. Pass separate memory, or x at 0x1140 with a row stride of 40 elements, so that the result takes the \
         place of x"
    );
    // X would have to begin four rows before Y.
    let text = text(&scatter, [whole, whole]);
    assert!(text.contains("or x at 0xec0 with"), "{text}");
}

/// If a word of device memory has the number of rows, only the kernel knows the place of a shard.
#[test]
fn a_shard_of_rows_in_memory_has_no_place() {
    use Operand::{X, Y};
    let shard = Extent::RowsOfShard {
        most: ROWS,
        ranks: 1,
    };
    let whole = Extent::Rows { most: ROWS };
    let gather = [spec(X, shard), in_place_of(X, spec(Y, whole))];
    let reduce = [spec(X, whole), in_place_of(X, spec(Y, whole))];
    let same = [at(0x1000, 40); 2];
    assert_eq!(pairs(&gather, &same), [(Y, X)]);
    assert_eq!(pairs(&reduce, &same), []);
    for (word, overlaps) in [
        (0x1000 - 4, false),
        (0x1000, true),
        (0x1000 + 64, false),
        (0x1000 + 76, false),
        (0x1000 + 80, true),
    ] {
        let mut faults = Vec::new();
        check(&reduce, &same, 0, Rows::At(word), &mut faults);
        let expected = overlaps.then_some((Y, OperandFault::OverlapsRows));
        assert_eq!(faults, Vec::from_iter(expected), "{word:#x}");
    }
}

/// Numbers are contiguous, whatever their stride.
#[test]
fn numbers_have_no_stride() {
    use Operand::{C, RowIndices};
    let numbers = OperandSpec {
        cols: 1,
        dtype: Dtype::Int32,
        ..spec(RowIndices, Extent::Fixed(16))
    };
    let specs = [spec(C, Extent::Fixed(ROWS)), numbers];
    for stride in [1, 8, 1 << 20] {
        let of = |address| pairs(&specs, &[at(0x1000, 32), at(address, stride)]);
        assert_eq!(of(0x1000 - 64), []);
        assert_eq!(of(0x1000 - 48), [(C, RowIndices)]);
    }
}

/// An operand with another fault is not reported as overlapping.
#[test]
fn operands_with_faults_are_left_out() {
    let specs = specs([Operand::A, Operand::C]);
    let mut faults = vec![(Operand::A, OperandFault::Null)];
    check(&specs, &[at(0, 32); 2], 0, Rows::Most, &mut faults);
    assert_eq!(faults.len(), 1, "{faults:?}");
    // The strides exceed the address space.
    let most = [at(0x1000, u64::MAX), at(0x1010, u64::MAX)];
    assert_eq!(pairs(&specs, &most).len(), 1);
}
