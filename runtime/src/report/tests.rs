//! Tests of the conversion of reports into errors, and of the page's layout.

use super::*;

const REPORT: Report = Report {
    valid: 1,
    rank: 2,
    cta: 77,
    role: abi::Role::Load as u32,
    wait: abi::Wait::Chunk as u32,
    peer: 5,
    index: 11,
    wanted: 9,
    seen: 8,
    epoch: 9,
    aborted_by: 0,
    waited_ns: 30_000_000_000,
};

/// Returns the error for a report about operator 5 of 11 operators.
fn error(report: &Report) -> Error {
    let names = OperatorNames::default();
    let all: Vec<_> = (1..=11)
        .map(|number| names.add(&format!("op{number}")))
        .collect();
    timeout(report, &all[4], &names)
}

#[test]
fn a_report_becomes_an_error_with_all_its_fields() {
    let text = error(&REPORT).to_string();
    for part in [
        "timed out after 30s: rank 2 was waiting in call 9 of operator 5 (op5) for",
        "chunk",
        "index 11",
        "rank 5",
        "expected 9",
        "found 8",
        "role=load",
        "cta=77",
        "Check that rank 5 is alive",
    ] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

#[test]
fn an_aborted_wait_names_the_rank_that_caused_it() {
    let text = error(&Report {
        aborted_by: 4,
        ..REPORT
    })
    .to_string();
    assert!(text.contains("Rank 3 failed first"), "{text}");
    let text = error(&Report {
        aborted_by: HEARD | 12,
        ..REPORT
    })
    .to_string();
    assert!(text.contains("Rank 12 failed first"), "{text}");
    let text = error(&Report {
        aborted_by: HEARD | LOST | 11,
        ..REPORT
    })
    .to_string();
    assert!(text.ends_with("Rank 11 was lost"), "{text}");
    let error = error(&Report {
        aborted_by: HOST_ABORT,
        ..REPORT
    });
    assert!(matches!(error, Error::Aborted { cause: None }), "{error}");
}

#[test]
fn faults_of_tokens_name_rank_and_value() {
    let fault = |wait, aborted_by| {
        let report = Report {
            wait: wait as u32,
            aborted_by,
            ..REPORT
        };
        let (rank, fault) = RoutingFault::of(&report).expect("a fault");
        let operator = OperatorId::new(3, "dispatch_gemm Up");
        let epoch = report.epoch;
        let error = Error::Routing {
            rank,
            operator,
            epoch,
            fault,
        };
        error.to_string()
    };
    let text = fault(abi::Wait::Expert, 4);
    for part in [
        "rank 3, call 9 of operator 3 (dispatch_gemm Up): ",
        "token 11",
        "expert 8",
        "choice 5",
        "from 0 to 8",
    ] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    assert!(fault(abi::Wait::ExpertTwice, 0).contains("(dispatch_gemm Up): token 11"));
    assert!(fault(abi::Wait::RowIndex, 0).contains("row index 8, but there are 9"));
    let of = |wait, index, wanted, seen| {
        let report = Report {
            wait: wait as u32,
            index,
            wanted,
            seen,
            ..REPORT
        };
        RoutingFault::of(&report).expect("a fault").1.to_string()
    };
    let offset = |index, wanted, seen| of(abi::Wait::Offset, index, wanted, seen);
    assert!(offset(0, 0, 3).contains("offset 0 is 3, but the first one is 0"));
    assert!(offset(4, 9, 8).contains("offset 4 is 8, less than the previous offset 9"));
    assert!(offset(4, 9, 10).contains("offset 4 is 10, but the operator was prepared for 9"));
    assert!(offset(1, 9, u32::MAX).contains("offset 1 is -1, a negative number"));
    // Words of operands are signed.
    for (wait, text) in [
        (abi::Wait::CallRows, "has -1 rows, but 0 to 9 are possible"),
        (abi::Wait::Tokens, "is -1, but 0 to 9 are possible"),
        (abi::Wait::Expert, "has expert -1 as"),
        (abi::Wait::RowIndex, "has row index -1, but"),
        (
            abi::Wait::CachedRows,
            "has -1 cached rows of sequence 0, but 0 to 9 are possible",
        ),
    ] {
        let found = of(wait, 0, 9, u32::MAX);
        assert!(found.contains(text), "{text:?} in {found:?}");
    }
    assert!(offset(0, 0, u32::MAX).contains("offset 0 is -1, but the first one is 0"));
}

#[test]
fn calls_that_overlap_are_named() {
    let text = error(&Report {
        wait: abi::Wait::Overlap as u32,
        ..REPORT
    })
    .to_string();
    for part in [
        "rank 2: call 9 of operator 5 (op5)",
        "call 8 of operator 11 (op11)",
    ] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

#[test]
fn a_call_that_begins_together_with_another_call_does_not_know_its_name() {
    let text = error(&Report {
        wait: abi::Wait::Overlap as u32,
        index: 0,
        ..REPORT
    });
    let text = text.to_string();
    assert!(
        text.contains("operator 5 (op5) began while another call was running"),
        "{text}"
    );
}

#[test]
fn unknown_codes_do_not_panic() {
    let odd = Report {
        role: 99,
        wait: 98,
        ..REPORT
    };
    assert!(error(&odd).to_string().contains("unknown role"));
    assert!(RoutingFault::of(&odd).is_none());
}

#[test]
fn the_page_holds_its_contents() {
    assert!(size_of::<HostPage>() <= FLAG_WORDS_OFFSET_BYTES);
    assert!(FLAG_WORDS_OFFSET_BYTES + 4 * FLAG_WORDS as usize <= PAGE_BYTES);
    for report in [offset_of!(HostPage, report), offset_of!(HostPage, fault)] {
        assert_eq!((report + offset_of!(Report, waited_ns)) % 8, 0);
    }
}
