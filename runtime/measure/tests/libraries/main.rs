//! The arguments of calls of NCCL and cuBLAS, and libraries that are missing or fail on one rank, on simulated GPUs.

use mkernel::spec::{CollectiveOp, Dtype};
use mkernel::{Communicator, Simulation};
use mkernel_compile::HostCxx;
use mkernel_measure::cublas::Cublas;
use mkernel_measure::nccl::{Exchange, Nccl};
use mkernel_measure::{Failure, View, agreed};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The rank whose connection fails in a library that fails on no rank.
const NO_RANK: i32 = -1;

/// Libraries that write their calls to a file.
struct Fake {
    dir: TempDir,
}

impl Fake {
    /// Compiles libraries in which NCCL cannot connect the rank `failing`.
    fn new(failing: i32) -> Self {
        let dir = TempDir::new().expect("temporary folder");
        let (source, log) = (dir.path().join("fake.cpp"), dir.path().join("log"));
        fs::write(&source, include_str!("fake.cpp")).expect("a file");
        let library = dir.path().join("libnccl.so.2");
        let mut compile = HostCxx::load().expect("a C++ compiler").command();
        compile.args(["-std=c++20", "-shared", "-fPIC", "-w", "-o"]);
        compile.arg(&library).arg(&source);
        compile.arg(format!("-DFAILING={failing}"));
        compile.arg(format!("-DLOG=\"{}\"", log.display()));
        let compiled = compile.output().expect("a compiler");
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{errors}");
        for name in ["libcublasLt.so.13", "libcublas.so.13"] {
            fs::copy(&library, dir.path().join(name)).expect("a copy");
        }
        Self { dir }
    }

    fn path(&self) -> Option<&Path> {
        Some(self.dir.path())
    }

    /// The calls so far, sorted, since ranks make calls at the same time.
    fn calls(&self) -> Vec<String> {
        let log = self.dir.path().join("log");
        let text = fs::read_to_string(log).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

/// Runs `job` on two simulated GPUs.
fn on_ranks<T: Send>(job: impl Fn(&Communicator) -> Result<T, Failure> + Sync) -> Vec<T> {
    let options = Simulation {
        ranks: 2,
        ..Simulation::default()
    };
    let ranks = Communicator::simulated(&options).expect("simulated GPUs");
    mkernel::run(ranks, |ranks| job(&ranks)).expect("no rank fails")
}

fn exchange(op: CollectiveOp, dtype: Dtype) -> Exchange {
    Exchange {
        op,
        from: 1000,
        to: 5000,
        elems: 8,
        dtype,
        root: 1,
    }
}

#[test]
fn collectives_of_nccl_get_their_arguments() {
    let fake = Fake::new(NO_RANK);
    on_ranks(|ranks| {
        let nccl = Nccl::new(fake.path(), ranks, &ranks.default_stream())?;
        for (op, dtype) in [
            (CollectiveOp::AllReduce, Dtype::Bf16),
            (CollectiveOp::ReduceScatter, Dtype::Fp32),
            (CollectiveOp::AllGather, Dtype::Fp16),
            (CollectiveOp::Broadcast, Dtype::Bf16),
            (CollectiveOp::AllToAll, Dtype::Fp32),
        ] {
            // SAFETY: the library reads no memory.
            unsafe { nccl.enqueue(&exchange(op, dtype)) }?;
        }
        // SAFETY: as above.
        let narrow = unsafe { nccl.enqueue(&exchange(CollectiveOp::AllReduce, Dtype::E4m3)) };
        assert!(
            narrow
                .expect_err("no such type")
                .to_string()
                .contains("e4m3")
        );
        Ok(())
    });
    let of_rank = |rank: u32| {
        [
            format!("init {rank} 2 of id 7"),
            format!("all_reduce 1000 5000 8 type 9 op 0 on 10{rank}"),
            format!("reduce_scatter 1000 5000 8 type 7 op 0 on 10{rank}"),
            format!("all_gather 1000 5000 8 type 6 on 10{rank}"),
            format!("broadcast 1000 5000 8 type 9 root 1 on 10{rank}"),
            format!("send 1000 8 type 7 to 0 on 10{rank}"),
            format!("send 1032 8 type 7 to 1 on 10{rank}"),
            format!("recv 5000 8 type 7 from 0 on 10{rank}"),
            format!("recv 5032 8 type 7 from 1 on 10{rank}"),
            format!("destroy 10{rank}"),
        ]
    };
    let mut expected = [of_rank(0), of_rank(1)].concat();
    expected.sort();
    assert_eq!(fake.calls(), expected);
}

#[test]
fn products_of_cublas_get_their_arguments() {
    let fake = Fake::new(NO_RANK);
    let view = |address, rows, cols, dtype| View {
        rows,
        cols,
        stride: cols,
        dtype,
        address,
    };
    on_ranks(|ranks| {
        if ranks.rank() == 1 {
            return Ok(());
        }
        let cublas = Cublas::new(fake.path(), &ranks.default_stream())?;
        let a = view(10, 2, 8, Dtype::Bf16);
        let transposed = view(20, 4, 8, Dtype::Bf16);
        cublas.gemm(&a, &transposed, &view(30, 2, 4, Dtype::Fp32), true)?;
        let (a, b) = (view(10, 2, 8, Dtype::Fp16), view(20, 8, 4, Dtype::Fp16));
        cublas.gemm(&a, &b, &view(30, 2, 4, Dtype::Fp16), false)
    });
    // Matrices of cuBLAS are column-major, so B is its first factor.
    let expected = [
        "destroy 200",
        "gemm 0 0 of 4 2 8: 20 2 4, 10 2 8, 30 2 4",
        "gemm 1 0 of 4 2 8: 20 14 8, 10 14 8, 30 0 4",
    ];
    assert_eq!(fake.calls(), expected);
}

#[test]
fn a_rank_that_nccl_cannot_connect_fails_all_ranks() {
    let fake = Fake::new(1);
    let errors = on_ranks(|ranks| {
        let nccl = Nccl::new(fake.path(), ranks, &ranks.default_stream());
        Ok(nccl.err().map(|error| error.to_string()))
    });
    let own = "ncclCommInitRank failed with status 5";
    assert_eq!(
        errors,
        [Some(format!("rank 1: {own}")), Some(own.to_owned())]
    );
    assert_eq!(fake.calls(), ["destroy 100", "init 0 2 of id 7"]);
}

#[test]
fn a_library_that_one_rank_lacks_fails_all_ranks() {
    let fake = Fake::new(NO_RANK);
    let empty = TempDir::new().expect("temporary folder");
    let errors = on_ranks(|ranks| {
        let dir: PathBuf = match ranks.rank() {
            0 => fake.dir.path().into(),
            _ => empty.path().into(),
        };
        let nccl = Nccl::new(Some(&dir), ranks, &ranks.default_stream());
        let error = nccl.err().ok_or("NCCL was found")?;
        // The ranks still take part in other steps.
        agreed(ranks, Ok(()))??;
        Ok(error.to_string())
    });
    assert!(
        errors[0].starts_with("rank 1: NCCL was not found"),
        "{errors:?}"
    );
    assert!(errors[1].contains("--nccl-dir"), "{errors:?}");
}
