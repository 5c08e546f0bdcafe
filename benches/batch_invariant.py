"""A GEMM whose bits do not depend on the number of rows, as in today's inference engines: Triton, with one configuration for all sizes.

Each program takes tiles in turn and adds up the whole of K for a tile, so a row has the same sum in every batch.
"""
import torch
import triton
import triton.language as tl

TILE = dict(tile_m=128, tile_n=128, tile_k=64, raster_rows=8)


@triton.jit
def matmul_kernel(a, b, c, m, n, k, a_row, b_row, b_col, c_row, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
                  raster_rows: tl.constexpr):
    row_tiles, col_tiles = tl.cdiv(m, tile_m), tl.cdiv(n, tile_n)
    for tile in tl.range(tl.program_id(0), row_tiles * col_tiles, tl.num_programs(0), flatten=True):
        first = tile // (raster_rows * col_tiles) * raster_rows
        height = min(row_tiles - first, raster_rows)
        row = first + tile % (raster_rows * col_tiles) % height
        col = tile % (raster_rows * col_tiles) // height
        rows = row * tile_m + tl.arange(0, tile_m)
        cols = col * tile_n + tl.arange(0, tile_n)
        # Rows and columns beyond the matrix repeat the first ones, and are not stored.
        safe_rows, safe_cols = tl.where(rows < m, rows, 0), tl.where(cols < n, cols, 0)
        depth = tl.arange(0, tile_k)
        total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
        for step in range(tl.cdiv(k, tile_k)):
            at = step * tile_k + depth
            left = tl.load(a + safe_rows[:, None] * a_row + at[None, :], mask=at[None, :] < k, other=0.0)
            right = tl.load(b + at[:, None] * b_row + safe_cols[None, :] * b_col, mask=at[:, None] < k, other=0.0)
            total = tl.dot(left, right, total)
        tl.store(c + rows[:, None] * c_row + cols[None, :], total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


def matmul(a, b, out):
    """Computes out = a b."""
    (m, k), n = a.shape, b.shape[1]
    tiles = triton.cdiv(m, TILE["tile_m"]) * triton.cdiv(n, TILE["tile_n"])
    programs = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count)
    matmul_kernel[(programs,)](a, b, out, m, n, k, a.stride(0), b.stride(0), b.stride(1), out.stride(0), **TILE, num_warps=8, num_stages=3)
    return out
