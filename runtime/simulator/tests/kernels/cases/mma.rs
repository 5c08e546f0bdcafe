//! Products of tensor cores: correct kernels, and the mistakes that must be found.

use super::*;

const PRODUCT: Shape = Shape {
    threads: 160,
    swizzle_bytes: 128,
    bytes: MATRIX_BYTES,
    ..SHAPE
};
const TRANSPOSED: Shape = Shape {
    data: Data::Transposed,
    ..PRODUCT
};

/// The sums of 64 rows after a product of e4m3.
const fn sums(columns: usize, accumulate: bool) -> Shape {
    Shape {
        threads: 128,
        smem_bytes: (64 + columns as u32) * 128 + 1024,
        data: Data::Sums {
            columns,
            accumulate,
        },
        bytes: 64 * columns * 4,
        ..SHAPE
    }
}

cases! {
    "products, B along N": "product", PRODUCT, [] {
        "no fence before them": ["mk::mma_fence();" => ""],
            "missing fence", ["no wgmma.fence", "descriptor<kMnMajor>(b + slice)"];
        "A is not visible to tensor cores": ["mk::fence_proxy_async_shared();" => ""],
            "missing proxy fence", ["descriptor<kMnMajor>(b + slice)", "mk::store_shared(a + i * 4"];
        "B is overwritten before they are done": [
            "mk::mma_wait<0>();\n    if (mk::lane_index() == 0) mk::barrier_arrive(free);"
                => "if (mk::lane_index() == 0) mk::barrier_arrive(free);\n    mk::mma_wait<0>();"
        ],
            "race", ["mk::tma_load_2d(b", "descriptor<kMnMajor>(b + slice)"];
        "a thread with another operand": [
            "descriptor<kMnMajor>(b + slice)" => "descriptor<kMnMajor>(b + slice + (threadIdx.x == 77 ? 1024 : 0))"
        ],
            "warpgroup diverged", ["another thread of its warpgroup"];
        "a warp that does not commit": ["mk::mma_commit();" => "if (warp != 2) mk::mma_commit();"],
            "deadlock", ["products"];
    }
    "products, A from registers": "fragments", PRODUCT, [] {
        "no fence before them": ["mk::mma_fence();" => ""],
            "missing fence", ["no wgmma.fence", "Mma<mk::Bf16, 64, true>::issue"];
        "A changes before they are done": ["mk::mma_commit();" => "mk::mma_commit();\n    a[1][2] ^= 0x3f80;"],
            "register", ["a register of A changed", "Mma<mk::Bf16, 64, true>::issue"];
        "B is overwritten before they are done": [
            "mk::mma_wait_after<0>(static_cast<float>(round));" => "if (mk::lane_index() == 0) mk::barrier_arrive(free);\n    mk::mma_wait<0>();",
            "mk::mma_hold(d);\n    if (mk::lane_index() == 0) mk::barrier_arrive(free);" => ""
        ],
            "race", ["mk::tma_load_2d(b", "Mma<mk::Bf16, 64, true>::issue"];
        "a thread with another operand": ["(b + k16 * 2048)" => "(b + k16 * 2048 + (threadIdx.x == 77 ? 1024 : 0))"],
            "warpgroup diverged", ["another thread of its warpgroup"];
    }
    "products, rows of 64 bytes, B along N": "product", Shape { swizzle_bytes: 64, ..PRODUCT }, ["kRow = 128" => "kRow = 64"] {
    }
    "products, rows of 32 bytes, B along N": "product", Shape { swizzle_bytes: 32, ..PRODUCT }, ["kRow = 128" => "kRow = 32"] {
    }
    "products of fp16, B along N": "product", PRODUCT, ["mk::Bf16, 64" => "mk::Fp16, 64", "0x3f80 :" => "0x3c00 :", "0x3f800000" => "0x3c000000", "mk::Bf16::pack" => "mk::Fp16::pack", "mk::Bf16::pack" => "mk::Fp16::pack"] {
    }
    "products of fp16, A from registers": "fragments", PRODUCT, ["mk::Bf16, 64" => "mk::Fp16, 64", "0x3f80 :" => "0x3c00 :", "0x3f800000" => "0x3c000000", "mk::Bf16::pack" => "mk::Fp16::pack", "mk::Bf16::pack" => "mk::Fp16::pack"] {
    }
    "products, B along K": "product", TRANSPOSED, ["kMnMajor = true" => "kMnMajor = false"] {
    }
    "products, rows of 64 bytes, B along K": "product", Shape { swizzle_bytes: 64, ..TRANSPOSED }, ["kMnMajor = true" => "kMnMajor = false", "kRow = 128" => "kRow = 64"] {
    }
    "products, rows of 32 bytes, B along K": "product", Shape { swizzle_bytes: 32, ..TRANSPOSED }, ["kMnMajor = true" => "kMnMajor = false", "kRow = 128" => "kRow = 32"] {
    }
    "products of e4m3, 64 columns": "e4m3", sums(64, true), [] {
        "a vector of A that nobody writes": ["mk::store_shared_vec16(" => "if (i != 77) mk::store_shared_vec16("],
            "uninitialised read", ["mma_descriptor<false>(a + k)"];
        "A is not visible to tensor cores": ["mk::fence_proxy_async_shared();" => ""],
            "missing proxy fence", ["mma_descriptor<false>(a + k)", "mk::store_shared_vec16(a + line"];
    }
    "products of e4m3, 128 columns": "e4m3", sums(128, true), ["kCols = 64" => "kCols = 128"] {
    }
    "products of e4m3, 256 columns": "e4m3", sums(256, true), ["kCols = 64" => "kCols = 256"] {
    }
    "products of e4m3, without sums before them": "e4m3", sums(64, false), ["kAccumulate = true" => "kAccumulate = false"] {
    }
}
