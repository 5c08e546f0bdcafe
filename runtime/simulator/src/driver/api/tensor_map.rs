//! Tensor maps, which a program passes among a kernel's arguments.

use super::call::{driver_call, write_out};
use crate::driver::result::{Code, Result};
use crate::tensor_map::{MAX_RANK, TensorMap};
use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle as Swizzle,
};
use std::ffi::c_void;

pub(super) unsafe extern "C" fn cuTensorMapEncodeTiled(
    to: *mut CUtensorMap,
    data_type: DataType,
    rank: u32,
    address: *mut c_void,
    dims: *const u64,
    strides_bytes: *const u64,
    box_elems: *const u32,
    element_strides: *const u32,
    interleave: CUtensorMapInterleave,
    swizzle: Swizzle,
    _promotion: CUtensorMapL2promotion,
    fill: CUtensorMapFloatOOBfill,
) -> Code {
    driver_call(|| {
        let count = rank as usize;
        if !(1..=MAX_RANK).contains(&count) || !(to as usize).is_multiple_of(64) {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller passes arrays of `rank` values, and `rank` - 1 strides.
        let (dims, strides_bytes, box_elems, element_strides) = unsafe {
            (
                array(dims, count)?,
                // A map of rank 1 has no strides, so the pointer may have any value.
                if count == 1 {
                    &[]
                } else {
                    array(strides_bytes, count - 1)?
                },
                array(box_elems, count)?,
                array(element_strides, count)?,
            )
        };
        let is_plain = interleave == CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE
            && fill == CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
            && element_strides.iter().all(|stride| *stride == 1);
        let form = elem_bytes(data_type).zip(swizzle_bytes(swizzle));
        let form = form
            .filter(|_| is_plain)
            .ok_or(Code::CUDA_ERROR_NOT_SUPPORTED)?;
        let map = TensorMap::new(address as u64, form, dims, strides_bytes, box_elems).map_err(
            |fault| {
                tracing::error!(%fault, "cuTensorMapEncodeTiled");
                Code::CUDA_ERROR_INVALID_VALUE
            },
        )?;
        // SAFETY: the caller passes null or memory for a map of 128 bytes.
        unsafe { write_out(to.cast(), map.to_bytes()) }
    })
}

/// Returns an array of the caller.
///
/// # Safety
/// `start` must be null or point to `count` values.
unsafe fn array<'a, T>(start: *const T, count: usize) -> Result<&'a [T]> {
    if start.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the contract of the driver's function, which the caller upholds.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

fn elem_bytes(data_type: DataType) -> Option<u8> {
    use DataType as T;
    Some(match data_type {
        T::CU_TENSOR_MAP_DATA_TYPE_UINT8 => 1,
        T::CU_TENSOR_MAP_DATA_TYPE_UINT16
        | T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16
        | T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 => 2,
        T::CU_TENSOR_MAP_DATA_TYPE_UINT32
        | T::CU_TENSOR_MAP_DATA_TYPE_INT32
        | T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32 => 4,
        T::CU_TENSOR_MAP_DATA_TYPE_UINT64
        | T::CU_TENSOR_MAP_DATA_TYPE_INT64
        | T::CU_TENSOR_MAP_DATA_TYPE_FLOAT64 => 8,
        _ => return None,
    })
}

fn swizzle_bytes(swizzle: Swizzle) -> Option<u8> {
    Some(match swizzle {
        Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE => 0,
        Swizzle::CU_TENSOR_MAP_SWIZZLE_32B => 32,
        Swizzle::CU_TENSOR_MAP_SWIZZLE_64B => 64,
        Swizzle::CU_TENSOR_MAP_SWIZZLE_128B => 128,
        _ => return None,
    })
}
