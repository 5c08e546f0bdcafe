//! [`Program`]: one compilation by calls of libnvrtc.
//!
//! The types come from cudarc. The functions are looked up in the library that was found and checked. cudarc itself would load
//! the first `libnvrtc.so` that the loader finds, of any version, and panic if the loader finds no library.

use crate::error::GenError;
use crate::source::{CudaSource, file_name};
use crate::templates::headers;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

/// The status of a call. It is an integer, because a library of another version may return values that [`nvrtcResult`]
/// lacks.
type Status = c_int;

const SUCCESS: Status = nvrtcResult::NVRTC_SUCCESS as Status;
const ERROR_COMPILATION: Status = nvrtcResult::NVRTC_ERROR_COMPILATION as Status;

/// A function that gets the size of an output. The output itself is then read by a [`GetBytes`].
type GetSize = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> Status;
/// A function that reads an output into a buffer of sufficient size.
type GetBytes = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> Status;

/// The functions of nvrtc.h that are used. They are valid while their library is loaded.
pub(crate) struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut nvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut nvrtcProgram) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    log: (GetSize, GetBytes),
    cubin: (GetSize, GetBytes),
    ptx: (GetSize, GetBytes),
}

impl Functions {
    /// Looks up the functions in `library`.
    pub fn find(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: names and signatures are equal to the declarations in nvrtc.h since CUDA 11.1.
        unsafe {
            let log = (
                library.get(c"nvrtcGetProgramLogSize")?,
                library.get(c"nvrtcGetProgramLog")?,
            );
            let cubin = (
                library.get(c"nvrtcGetCUBINSize")?,
                library.get(c"nvrtcGetCUBIN")?,
            );
            let ptx = (
                library.get(c"nvrtcGetPTXSize")?,
                library.get(c"nvrtcGetPTX")?,
            );
            Ok(Self {
                version: *library.get(c"nvrtcVersion")?,
                create: *library.get(c"nvrtcCreateProgram")?,
                compile: *library.get(c"nvrtcCompileProgram")?,
                destroy: *library.get(c"nvrtcDestroyProgram")?,
                error_string: *library.get(c"nvrtcGetErrorString")?,
                log: (*log.0, *log.1),
                cubin: (*cubin.0, *cubin.1),
                ptx: (*ptx.0, *ptx.1),
            })
        }
    }

    /// The major and minor version of the library.
    pub fn version(&self) -> Option<(u32, u32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        let status = unsafe { (self.version)(&raw mut major, &raw mut minor) };
        (status == SUCCESS).then_some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
    }
}

/// A program of libnvrtc, destroyed when dropped.
pub(crate) struct Program<'a> {
    raw: nvrtcProgram,
    id: &'a str,
    functions: &'a Functions,
}

impl<'a> Program<'a> {
    /// Creates a program of `source` and the headers.
    pub fn create(functions: &'a Functions, source: &'a CudaSource) -> Result<Self, GenError> {
        let c_string = |text: &str| {
            CString::new(text).map_err(|_| GenError::Compile {
                id: source.id.clone(),
                log: "the source has a NUL character".into(),
                saved: None,
            })
        };
        let (text, name) = (c_string(&source.text)?, c_string(&file_name(&source.id))?);
        let headers = headers(source.backend);
        let texts = headers
            .iter()
            .map(|(_, text)| c_string(text))
            .collect::<Result<Vec<_>, _>>()?;
        let names = headers
            .iter()
            .map(|(name, _)| c_string(name))
            .collect::<Result<Vec<_>, _>>()?;
        let (texts, names) = (pointers(&texts), pointers(&names));

        let mut program = Self {
            raw: null_mut(),
            id: &source.id,
            functions,
        };
        // SAFETY: all strings end with NUL and outlive the call, which copies them. Both arrays have `texts.len()`
        // elements.
        let status = unsafe {
            (functions.create)(
                &raw mut program.raw,
                text.as_ptr(),
                name.as_ptr(),
                c_len(&texts),
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        program.check("nvrtcCreateProgram", status)?;
        Ok(program)
    }

    /// Compiles the program with these options.
    pub fn compile(&self, options: &[String]) -> Result<(), GenError> {
        let options: Vec<_> = options
            .iter()
            .map(|option| CString::new(option.as_str()).expect("options have no NUL"))
            .collect();
        let options = pointers(&options);
        // SAFETY: the program is not destroyed. The options end with NUL and outlive the call.
        let status =
            unsafe { (self.functions.compile)(self.raw, c_len(&options), options.as_ptr()) };
        match status {
            SUCCESS => Ok(()),
            ERROR_COMPILATION => Err(GenError::Compile {
                id: self.id.into(),
                log: self.log()?,
                saved: None,
            }),
            _ => Err(self.error("nvrtcCompileProgram", status, &self.log()?)),
        }
    }

    /// The log of the compiler.
    pub fn log(&self) -> Result<String, GenError> {
        let mut bytes = self.bytes("nvrtcGetProgramLog", self.functions.log)?;
        bytes.truncate(bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The machine code.
    pub fn cubin(&self) -> Result<Vec<u8>, GenError> {
        self.bytes("nvrtcGetCUBIN", self.functions.cubin)
    }

    /// The PTX, if the program was compiled for a virtual architecture.
    pub fn ptx(&self) -> Result<String, GenError> {
        let bytes = self.bytes("nvrtcGetPTX", self.functions.ptx)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn bytes(
        &self,
        call: &'static str,
        (get_size, get_bytes): (GetSize, GetBytes),
    ) -> Result<Vec<u8>, GenError> {
        let mut size = 0;
        // SAFETY: the program is not destroyed, and `size` is valid for the call.
        self.check(call, unsafe { get_size(self.raw, &raw mut size) })?;
        let mut bytes = vec![0; size];
        // SAFETY: the program is not destroyed, and the buffer has the size that the library has returned.
        self.check(call, unsafe {
            get_bytes(self.raw, bytes.as_mut_ptr().cast())
        })?;
        Ok(bytes)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), GenError> {
        if status == SUCCESS {
            Ok(())
        } else {
            Err(self.error(call, status, ""))
        }
    }

    fn error(&self, call: &'static str, status: Status, log: &str) -> GenError {
        // SAFETY: the function accepts any value.
        let text = unsafe { (self.functions.error_string)(status) };
        let name = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: the pointer is not null, and the string ends with NUL and is valid while the library is loaded.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        let message = format!("{name}\n{log}").trim_end().to_owned();
        GenError::NvrtcCall {
            call,
            id: self.id.into(),
            message,
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program is not destroyed yet, and is not used afterwards.
            let status = unsafe { (self.functions.destroy)(&raw mut self.raw) };
            if status != SUCCESS {
                tracing::warn!(
                    "nvrtcDestroyProgram failed with {status} for kernel {}",
                    self.id
                );
            }
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).collect()
}

fn c_len<T>(list: &[T]) -> c_int {
    c_int::try_from(list.len()).expect("a handful")
}
