//! Tests of in-place results, which have the memory of an input, and of operands whose overlap is refused.

use mkernel::half::bf16;
use mkernel::operands::{RawOperand, RawSlice, Rows};
use mkernel::spec::{
    CollectiveConfig, CollectiveOp, CollectiveShape, Dim, Norm, Protocol, SumEpilogue,
};
use mkernel::{Error, KernelConfig, Operand, fused_kernel};
use mkernel_testing::jobs::collective::CollectiveJob;
use mkernel_testing::jobs::collective::cases::in_place;
use mkernel_testing::jobs::collective::norm::NormJob;
use mkernel_testing::jobs::prepared::{Prepared, all_succeed, expect_refused};
use mkernel_testing::jobs::{all_are_right, bad_network, share};
use mkernel_testing::lab::Failure;

/// Removes jobs whose loads and stores are covered by other jobs: jobs of fp16, of one row, and in graphs.
fn different(
    jobs: impl IntoIterator<Item = (String, CollectiveJob)>,
) -> Vec<(String, CollectiveJob)> {
    let is_like_others = |name: &str| {
        let parts = ["fp16", "a row", "graph"];
        parts.iter().any(|part| name.contains(part))
    };
    let jobs = jobs.into_iter();
    jobs.filter(|(name, _)| !is_like_others(name)).collect()
}

/// Half of the jobs in two worlds suffice, since the place of a result does not change the messages of ranks.
#[test]
fn in_place_results_are_right_on_one_node() {
    let worlds = [1, 4].into_iter();
    let jobs = worlds.flat_map(|world| in_place(world, 1, &bad_network()));
    all_are_right(&share(different(jobs), "", (0, 2)), 1);
}

#[test]
fn in_place_results_are_right_on_several_nodes() {
    all_are_right(&different(in_place(4, 2, &bad_network())), 1);
}

/// The result of a block, which is the input of the next block.
#[fused_kernel(op = all_reduce, m = 3, n = 136, residual = true, norm = rms)]
struct EndOfBlock;

/// Checks that in-place and separate calls have equal results, and that the new residual has replaced the residual.
fn replace_the_residual(rank: &Prepared<'_>) -> Result<(), Failure> {
    let stream = &rank.stream;
    let end = EndOfBlock::prepare(rank.ranks)?;
    let elems = |step: usize| (0..3 * 136).map(move |i| bf16::from_f32((i % step) as f32));
    let upload = |step| stream.clone_htod(&elems(step).collect::<Vec<_>>());
    let (x, mut residual, weight) = (&upload(7)?, upload(5)?, &upload(3)?);
    let [mut y, mut y_in_place, mut residual_out] = [upload(1)?, upload(1)?, upload(1)?];
    let operands = EndOfBlockOperands {
        x,
        y: &mut y,
        residual: &residual,
        weight,
        residual_out: &mut residual_out,
    };
    end.launch(stream, operands)?;
    let operands = EndOfBlockInPlace {
        x,
        y: &mut y_in_place,
        residual: &mut residual,
        weight,
    };
    end.launch_in_place(stream, operands)?;
    rank.ranks.synchronize(stream)?;
    let sum: Vec<_> = elems(7).zip(elems(5)).collect();
    let sum = sum
        .iter()
        .map(|(x, r)| bf16::from_f32(2.0 * x.to_f32() + r.to_f32()));
    assert_eq!(stream.clone_dtoh(&residual)?, sum.collect::<Vec<_>>());
    assert_eq!(
        stream.clone_dtoh(&residual)?,
        stream.clone_dtoh(&residual_out)?
    );
    assert_eq!(stream.clone_dtoh(&y)?, stream.clone_dtoh(&y_in_place)?);
    Ok(())
}

#[test]
fn a_residual_is_replaced_by_safe_code() {
    let body = |rank: &Prepared<'_>| {
        replace_the_residual(rank).expect("calls");
        Ok(())
    };
    let config = CollectiveConfig::new(CollectiveOp::AllReduce);
    let shape = CollectiveShape { m: 3, n: 136 };
    all_succeed(&KernelConfig::new(2, config), shape, (2, 0), body);
}

/// Without a residual, a norm has no new residual that could replace one.
#[test]
fn an_update_of_an_operand_that_the_kernel_lacks_is_refused() {
    let config = CollectiveConfig::new(CollectiveOp::AllReduce);
    let config = CollectiveConfig {
        epilogue: SumEpilogue {
            norm: Norm::Rms,
            ..SumEpilogue::default()
        },
        ..config
    };
    let shape = CollectiveShape { m: 3, n: 136 };
    let body = |rank: &Prepared<'_>| {
        let z = rank.stream.alloc_zeros::<bf16>(3 * 136);
        let mut z = z.expect("memory");
        let call = rank.operator.call(&rank.stream);
        let error = call.update(Operand::ResidualOut, &mut z).launch();
        let text = error
            .expect_err("an operand that the kernel lacks")
            .to_string();
        assert!(text.contains("residual"), "{text}");
        Ok(())
    };
    all_succeed(&KernelConfig::new(1, config), shape, (2, 0), body);
}

fn packets(shots: u32) -> CollectiveJob {
    let job = CollectiveJob::new(CollectiveOp::AllReduce, 4, (3, 136), 2).in_place();
    job.protocol(Protocol::Ll).shots(shots)
}

fn normalised() -> NormJob {
    let job = NormJob::new(2, (3, 1032), 2).in_place();
    job.with(|job| job.protocol(Protocol::Ll).shots(1))
}

/// With packets in two shots, sums arrive after all loads of parts. Under many schedules, no load sees a store of the result.
#[test]
fn packets_are_right_in_place_under_many_schedules() {
    let jobs = [("one shot", packets(1)), ("two shots", packets(2))];
    all_are_right(&jobs, 8);
    all_are_right(&[("a norm", normalised())], 8);
}

const ROWS: u64 = 8;
const COLS: u64 = 264;

/// Runs `body` on two ranks with an operator, with rows at run time if `m` is dynamic.
fn on_two_ranks(op: CollectiveOp, m: Dim, body: impl Fn(&Prepared<'_>) + Sync) {
    let config = CollectiveConfig {
        m,
        n: Dim::Static(COLS),
        ..CollectiveConfig::new(op)
    };
    let config = KernelConfig::new(2, config);
    let shape = CollectiveShape { m: ROWS, n: COLS };
    all_succeed(&config, shape, (2, 0), |rank| {
        body(rank);
        Ok(())
    });
}

/// Passes X and Y that begin at these elements of one buffer, as slices and as raw operands.
fn refusals(rank: &Prepared<'_>, rows: Rows, [x, y]: [u64; 2]) -> Vec<Error> {
    let Prepared {
        operator, stream, ..
    } = rank;
    let buffer = stream.alloc_zeros::<bf16>(3 * (ROWS * COLS) as usize);
    let buffer = buffer.expect("memory");
    let start = mkernel::cudarc::driver::DevicePtr::device_ptr(&buffer, stream).0;
    let [x, y] = [x, y].map(|elems| start + 2 * elems);
    let slice = |address| {
        // SAFETY: nothing uses the memory, since no call is made.
        unsafe { RawSlice::<bf16>::new(stream, address, (ROWS * COLS) as usize) }
    };
    let raw = |ptr| RawOperand {
        ptr,
        row_stride_elems: COLS,
    };
    let (input, mut output) = (slice(x), slice(y));
    let call = operator.call(stream).read(Operand::X, &input);
    let call = call.write(Operand::Y, &mut output);
    let launched = match rows {
        Rows::Count(rows) => call.rows(rows).launch(),
        _ => call.launch(),
    };
    // SAFETY: as above.
    let by_address =
        unsafe { operator.launch_raw_rows(stream.cu_stream(), &[raw(x), raw(y)], rows) };
    [launched, by_address]
        .into_iter()
        .map(|result| result.expect_err("an overlap"))
        .collect()
}

fn expect_overlap(errors: Vec<Error>, parts: &[&str]) {
    for error in errors {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        expect_refused(Err(error), "operand y: it overlaps x");
    }
}

#[test]
fn an_overlap_that_is_not_in_place_is_an_error_that_names_both() {
    on_two_ranks(CollectiveOp::AllReduce, Dim::Static(ROWS), |rank| {
        let hint = "with a row stride of 264 elements, so that the result takes the place of x";
        for places in [[0, 8], [8, 0], [0, ROWS * COLS - 8]] {
            expect_overlap(refusals(rank, Rows::Most, places), &["or x at 0x", hint]);
        }
    });
    // X may lie only at the place of this rank's rows of Y.
    on_two_ranks(CollectiveOp::AllGather, Dim::Static(ROWS), |rank| {
        let other = 1 - u64::from(rank.ranks.rank());
        let places = [other * ROWS / 2 * COLS, 0];
        expect_overlap(refusals(rank, Rows::Most, places), &["or x at 0x"]);
    });
    on_two_ranks(CollectiveOp::ReduceScatter, Dim::Dynamic, |rank| {
        // With six rows, a shard has three.
        let own = u64::from(rank.ranks.rank()) * 3 * COLS;
        let errors = refusals(rank, Rows::Count(6), [0, own + COLS]);
        expect_overlap(errors, &["or x at 0x"]);
    });
    // Other ranks store to places that this rank has not sent yet.
    on_two_ranks(CollectiveOp::AllToAll, Dim::Static(ROWS), |rank| {
        expect_overlap(
            refusals(rank, Rows::Most, [0, 0]),
            &["Pass separate memory"],
        );
    });
}

/// With the number of rows in device memory, only the kernel knows the place of a shard.
#[test]
fn in_place_shards_are_refused_with_rows_in_device_memory() {
    on_two_ranks(CollectiveOp::AllGather, Dim::Dynamic, |rank| {
        let Prepared {
            operator, stream, ..
        } = rank;
        let mut all = stream.alloc_zeros::<bf16>((ROWS * COLS) as usize);
        let mut all = all.as_mut().expect("memory").as_view_mut();
        let address = mkernel::cudarc::driver::DevicePtr::device_ptr(&all, stream).0;
        // SAFETY: nothing uses the memory, since no call is made.
        let x = unsafe { RawSlice::<bf16>::new(stream, address, (ROWS / 2 * COLS) as usize) };
        let rows = stream.clone_htod(&[8]).expect("memory");
        let call = operator.call(stream).read(Operand::X, &x);
        let refused = call.write(Operand::Y, &mut all).rows_in(&rows).launch();
        let text = refused.as_ref().expect_err("an overlap").to_string();
        assert!(!text.contains("or x at"), "{text}");
        expect_refused(refused, "operand y: it overlaps x. Pass separate memory");
    });
}

#[test]
fn the_word_with_the_rows_must_not_overlap_results() {
    on_two_ranks(CollectiveOp::AllReduce, Dim::Dynamic, |rank| {
        let Prepared {
            operator, stream, ..
        } = rank;
        let x = stream.alloc_zeros::<bf16>((ROWS * COLS) as usize);
        let (x, mut y) = (x.expect("memory"), stream.alloc_zeros::<bf16>(4096));
        let y = y.as_mut().expect("memory");
        let address = mkernel::cudarc::driver::DevicePtr::device_ptr(y, stream).0;
        // SAFETY: nothing uses the memory, since no call is made.
        let word = unsafe { RawSlice::<i32>::new(stream, address + 512, 1) };
        let call = operator
            .call(stream)
            .read(Operand::X, &x)
            .write(Operand::Y, y);
        let refused = call.rows_in(&word).launch();
        expect_refused(
            refused,
            "operand y: it overlaps the word that has the rows of the call",
        );
    });
}
