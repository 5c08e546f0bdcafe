//! Tests of futures that are ready when the work of a stream is done.

use crate::ranks::on_ranks;
use mkernel::cudarc::driver::sys::CUstreamCaptureMode;
use mkernel::{Error, ErrorKind, error::CallError};
use mkernel_testing::block_on::block_on;
use mkernel_testing::jobs::Turns;
use mkernel_testing::kinds::ten_kinds;
use mkernel_testing::lab::TimeLimit;
use std::time::Duration;

/// The driver wakes the sleeping task, which is polled again only when the work is done.
#[test]
#[ignore = "needs GPUs"]
fn a_completion_wakes_its_task() {
    let _limit = TimeLimit::start("completion", Duration::from_secs(60));
    on_ranks(1, |ranks| {
        let kinds = ten_kinds(1, 1);
        let order: Vec<_> = (0..200).map(|call| call % kinds.len()).collect();
        let mut turns = Turns::new(ranks, &kinds, &order).map_err(|error| error.to_string())?;
        for _ in &order {
            turns.call().map_err(|error| error.to_string())?;
        }
        let (done, polls) = block_on(ranks.completion(turns.stream())?);
        done?;
        assert!(polls <= 3, "{polls} polls");
        turns.check().map_err(|error| error.to_string())?;

        let stream = ranks.context().new_stream()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let refused = ranks.completion(&stream).expect_err("captured");
        assert!(matches!(refused, Error::Call(CallError::WaitInCapture)));
        assert_eq!(refused.kind(), ErrorKind::Operands);
        Ok(())
    });
}
