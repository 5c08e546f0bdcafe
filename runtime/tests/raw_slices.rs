//! Operands that another library has allocated, on simulated GPUs.

#![cfg(feature = "simulator")]

mod rank;

use mkernel::Operand;
use mkernel::cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use mkernel::half::bf16;
use mkernel::{Error, error::OperandFault, operands::RawSlice};
use rank::{Rank, alone};

/// Returns the memory of a slice, which outlives the calls of a test. All calls of a test are on one stream.
fn raw(rank: &Rank, slice: &CudaSlice<bf16>) -> RawSlice<bf16> {
    let address = slice.device_ptr(&rank.stream).0;
    // SAFETY: as above.
    unsafe { RawSlice::new(&rank.stream, address, slice.len()) }
}

#[test]
fn operands_can_be_memory_of_another_library() {
    let rank = alone();
    let (a, b) = (raw(&rank, &rank.a), raw(&rank, &rank.b));
    let mut c = rank.poisoned();
    let elems = c.len();
    let address = c.device_ptr_mut(&rank.stream).0;
    // SAFETY: the slice outlives the call, and nothing else uses it meanwhile.
    let mut raw_c = unsafe { RawSlice::<bf16>::new(&rank.stream, address, elems) };
    let call = rank.operator.call(&rank.stream).read(Operand::A, &a);
    let call = call.read(Operand::B, &b).write(Operand::C, &mut raw_c);
    call.launch().expect("launched");
    rank.check(&c);
    assert_eq!(rank.ranks.findings(), []);
}

#[test]
fn their_gpu_and_their_length_are_checked() {
    let (rank, other) = (alone(), alone());
    let foreign = raw(&other, &other.a);
    // SAFETY: no call is made with it.
    let short = unsafe { RawSlice::<bf16>::new(&rank.stream, 256, rank.b.len() - 1) };
    let mut c = rank.poisoned();
    let call = rank.operator.call(&rank.stream).read(Operand::A, &foreign);
    let call = call.read(Operand::B, &short).write(Operand::C, &mut c);
    match call.launch() {
        Err(Error::Operands(faults)) => assert!(
            matches!(
                faults[..],
                [
                    (Operand::A, OperandFault::WrongDevice { .. }),
                    (Operand::B, OperandFault::Length { .. })
                ]
            ),
            "{faults:?}"
        ),
        other => panic!("{other:?}"),
    }
}
