//! [`Operator`]: a prepared kernel.

use crate::detached::Detached;
use crate::error::{exception, of};
use crate::memory::{self, Tensor};
use crate::symmetric::HostTensors;
use mkernel::operands::Rows;
use mkernel::spec::Dtype;
use mkernel::spec::abi::OperandSpec;
use mkernel::{Communicator, ErrorKind};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use std::sync::{Arc, Weak};

/// A kernel that is ready to be called, with its memory on every rank.
#[pyclass(frozen, module = "mkernel._native")]
pub struct Operator {
    operator: Detached<mkernel::Operator>,
    communicator: Weak<Communicator>,
    symmetric: Arc<HostTensors>,
}

/// An operand of a call: its name, rows and columns on this rank, the type of its elements, and whether the kernel writes it.
type OperandTuple = (&'static str, u64, u64, &'static str, bool);

/// A tensor: the name of the operand, the address, the number of elements, and their type.
type TensorTuple = (PyBackedStr, u64, usize, PyBackedStr);

impl Operator {
    pub fn new(
        operator: mkernel::Operator,
        communicator: &Arc<Communicator>,
        symmetric: Arc<HostTensors>,
    ) -> Self {
        Self {
            operator: Detached::new(operator),
            communicator: Arc::downgrade(communicator),
            symmetric,
        }
    }

    fn get(&self) -> PyResult<(&mkernel::Operator, Arc<Communicator>)> {
        let communicator = self.communicator.upgrade();
        self.operator.get().zip(communicator).ok_or_else(closed)
    }

    /// Returns the tensors of a call. Names that the kernel does not have, and types that no kernel has, are errors.
    fn tensors(&self, given: &[TensorTuple]) -> PyResult<Vec<Tensor>> {
        let (operator, _) = self.get()?;
        let specs = operator.plan().operands();
        let (mut tensors, mut mistakes) = (Vec::with_capacity(given.len()), Vec::new());
        for (name, address, elems, dtype) in given {
            let operand = specs.iter().map(|spec| spec.operand);
            let operand = operand
                .into_iter()
                .find(|operand| *operand.name() == **name);
            let known = Dtype::ALL
                .into_iter()
                .find(|known| known.name() == &**dtype);
            match (operand, known) {
                (Some(operand), Some(dtype)) => tensors.push(Tensor {
                    operand,
                    dtype,
                    address: *address,
                    elems: *elems,
                }),
                (None, _) => {
                    let names: Vec<_> = specs.iter().map(|spec| spec.operand.name()).collect();
                    let names = names.join(", ");
                    mistakes.push(format!(
                        "operand {name}: the kernel has only {names}. Leave it out"
                    ));
                }
                (_, None) => mistakes.push(format!(
                    "operand {name}: kernels do not take elements of {dtype}"
                )),
            }
        }
        match mistakes.is_empty() {
            true => Ok(tensors),
            false => Err(of(ErrorKind::Operands, mistakes.join("\n"), None, None)),
        }
    }
}

#[pymethods]
impl Operator {
    /// The name of the kernel.
    #[getter]
    fn id(&self) -> PyResult<String> {
        Ok(self.get()?.0.plan().id.clone())
    }

    /// The most rows of a call, or None if calls do not give rows.
    #[getter]
    fn max_rows(&self) -> PyResult<Option<u64>> {
        Ok(self.get()?.0.plan().max_rows())
    }

    /// Returns the operands of a call with `rows` rows: name, rows and columns on this rank, type of elements, whether the
    /// kernel writes the operand.
    #[pyo3(signature = (rows=None))]
    fn operands(&self, rows: Option<u64>) -> PyResult<Vec<OperandTuple>> {
        let (operator, communicator) = self.get()?;
        let plan = operator.plan();
        let rows = rows.or(plan.max_rows());
        let in_call = |spec: &OperandSpec| rows.map_or(*spec, |rows| spec.in_call(rows));
        let specs = plan.operands().iter().map(in_call);
        let rank = communicator.rank();
        let tuple = |spec: OperandSpec| {
            let (name, dtype) = (spec.operand.name(), spec.dtype.name());
            (name, spec.rows.on(rank), spec.cols, dtype, spec.written)
        };
        Ok(specs.map(tuple).collect())
    }

    /// Calls the operator with contiguous tensors, each a tuple of name, address, number of elements and type of elements.
    ///
    /// On a GPU the call is enqueued on the stream with this handle. On a simulated GPU the addresses are of host memory, and the
    /// call has ended when this method returns. `rows` is the number of rows, and `rows_at` the address of an int32 that
    /// has it.
    #[pyo3(signature = (stream, tensors, rows=None, rows_at=None))]
    fn call(
        &self,
        py: Python<'_>,
        stream: u64,
        tensors: Vec<TensorTuple>,
        rows: Option<u64>,
        rows_at: Option<u64>,
    ) -> PyResult<()> {
        let tensors = self.tensors(&tensors)?;
        let rows = match (rows, rows_at) {
            (_, Some(address)) => Rows::At(address),
            (Some(rows), None) => Rows::Count(rows),
            (None, None) => Rows::Most,
        };
        let (operator, communicator) = self.get()?;
        let called = py.detach(move || {
            // SAFETY: the Python sources pass tensors that live, of the communicator's device, and orders of streams are the
            // program's.
            unsafe {
                match communicator.is_simulated() {
                    true => {
                        let symmetric = &self.symmetric;
                        memory::run_on_host(&communicator, operator, &tensors, rows, symmetric)
                    }
                    false => {
                        let place = (communicator.context(), stream);
                        memory::enqueue(operator, place, &tensors, rows)
                    }
                }
            }
        });
        called.map_err(exception)
    }

    fn __repr__(&self) -> String {
        let operator = self.operator.get();
        operator.map_or_else(String::new, |operator| format!("{operator:?}"))
    }
}

/// Returns the error of a call after the communicator was closed.
pub fn closed() -> PyErr {
    let text = "the communicator is closed. Create a new one on every rank".to_owned();
    of(ErrorKind::Aborted, text, None, None)
}
