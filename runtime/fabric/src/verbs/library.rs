//! Function tables of libibverbs and libefa, which are opened when a transport needs them. A program starts without these
//! libraries.
//!
//! Only functions that the libraries export are listed. Functions that `verbs.h` declares as inline are called
//! through the tables that the libraries fill: [`ibv_context::ops`] and the members of [`ibv_qp_ex`].

use super::efadv::{AddressAttributes, DeviceAttributes, QueuePairAttributes};
use crate::error::FabricError;
use ibverbs_sys::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_event_type, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr,
    ibv_wc_status,
};
use libloading::Library;
use std::error::Error;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// Declares a table of a library's functions, and how to fill it.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$about])*
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            /// Looks up every function. An error names the first one that is missing.
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $(
                        // SAFETY: the library's header declares the function with this signature.
                        $field: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?,
                    )*
                })
            }
        }
    };
}

functions! {
    /// Functions of libibverbs. Calls follow the manual pages. The caller frees the pointers that these functions
    /// return.
    Verbs {
        get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list = "ibv_free_device_list": fn(*mut *mut ibv_device);
        get_device_name = "ibv_get_device_name": fn(*mut ibv_device) -> *const c_char;
        open_device = "ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
        close_device = "ibv_close_device": fn(*mut ibv_context) -> c_int;
        query_device = "ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        // `ibv_query_port` fills the members up to `flags`. Older programs have no further members.
        query_port = "ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        query_gid_table = "_ibv_query_gid_table": fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        get_async_event = "ibv_get_async_event": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event = "ibv_ack_async_event": fn(*mut ibv_async_event);
        event_type_str = "ibv_event_type_str": fn(ibv_event_type) -> *const c_char;
        wc_status_str = "ibv_wc_status_str": fn(ibv_wc_status::Type) -> *const c_char;
        alloc_pd = "ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd = "ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
        reg_mr = "ibv_reg_mr_iova2": fn(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr;
        reg_dmabuf_mr = "ibv_reg_dmabuf_mr": fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        dereg_mr = "ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
        create_cq = "ibv_create_cq": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq = "ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
        create_srq = "ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        destroy_srq = "ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
        create_qp = "ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp = "ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        destroy_qp = "ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
        qp_to_qp_ex = "ibv_qp_to_qp_ex": fn(*mut ibv_qp) -> *mut ibv_qp_ex;
        create_ah = "ibv_create_ah": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        destroy_ah = "ibv_destroy_ah": fn(*mut ibv_ah) -> c_int;
    }
}

functions! {
    /// Functions of libefa.
    Efadv {
        query_device = "efadv_query_device": fn(*mut ibv_context, *mut DeviceAttributes, u32) -> c_int;
        query_ah = "efadv_query_ah": fn(*mut ibv_ah, *mut AddressAttributes, u32) -> c_int;
        create_qp_ex = "efadv_create_qp_ex":
            fn(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut QueuePairAttributes, u32) -> *mut ibv_qp;
    }
}

/// Opens a library, fills its table, and keeps both until the process ends.
fn open<T>(
    file: &str,
    find: fn(&Library) -> Result<T, libloading::Error>,
    package: &str,
) -> Result<T, FabricError> {
    let nic = |error: libloading::Error| {
        let cause = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        FabricError::Nic {
            reason: format!(
                "{cause}; install {file} of rdma-core 34 or newer (on Debian and Ubuntu: {package})"
            ),
        }
    };
    // SAFETY: on loading, the libraries of rdma-core only initialise their own tables.
    let library = unsafe { Library::new(file) }.map_err(nic)?;
    let table = find(&library).map_err(nic)?;
    std::mem::forget(library);
    Ok(table)
}

/// Returns the functions of libibverbs.
///
/// # Errors
///
/// [`FabricError::Nic`] if the host has no libibverbs.
pub(super) fn verbs() -> Result<&'static Verbs, FabricError> {
    static VERBS: OnceLock<Result<Verbs, FabricError>> = OnceLock::new();
    VERBS
        .get_or_init(|| {
            open(
                "libibverbs.so.1",
                Verbs::find,
                "libibverbs1 and ibverbs-providers",
            )
        })
        .as_ref()
        .map_err(Clone::clone)
}

/// Returns the functions of libefa.
///
/// # Errors
///
/// [`FabricError::Nic`] if the host has no libefa.
pub(super) fn efadv() -> Result<&'static Efadv, FabricError> {
    static EFADV: OnceLock<Result<Efadv, FabricError>> = OnceLock::new();
    EFADV
        .get_or_init(|| open("libefa.so.1", Efadv::find, "ibverbs-providers"))
        .as_ref()
        .map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::{Verbs, open};

    #[test]
    fn the_error_of_a_missing_library_names_the_package() {
        let error = open("libibverbs.so.99", Verbs::find, "libibverbs1")
            .err()
            .unwrap()
            .to_string();
        for word in ["libibverbs.so.99", "install", "rdma-core", "libibverbs1"] {
            assert!(error.contains(word), "{word} in {error}");
        }
        // This library lacks the functions.
        let error = open("libc.so.6", Verbs::find, "libibverbs1")
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("ibv_get_device_list"), "{error}");
    }
}
