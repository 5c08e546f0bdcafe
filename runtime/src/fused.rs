//! [`FusedKernel`]: a kernel that is declared as a type.

use crate::communicator::Communicator;
use crate::error::{Error, KernelError};
use crate::operator::Operator;
use crate::prepare::Code;
use mkernel_spec::abi::Operand;
use mkernel_spec::{Dtype, KernelConfig, Op, Sizes};

/// An operand, the type of its elements, and whether the kernel writes the operand.
type DeclaredOperand = (Operand, Dtype, bool);

/// A handle of an operator that is declared as a type. `#[fused_kernel(...)]` implements this trait.
pub trait FusedKernel: Sized {
    /// The operands that calls of the handle take.
    #[doc(hidden)]
    const OPERANDS: &'static [DeclaredOperand];

    /// Returns the configuration of the attribute, for these ranks and nodes where the attribute does not fix them. The
    /// configuration was checked at compile time as far as it was known, and
    /// [`Communicator::prepare`](crate::Communicator::prepare) checks it again.
    fn config(world: u32, nodes: u32) -> KernelConfig;

    /// Returns the prepared operator.
    fn operator(&self) -> &Operator;

    /// Makes a handle of an operator whose operands were checked.
    #[doc(hidden)]
    fn wrap(operator: Operator) -> Self;

    /// Makes a handle of an operator that was prepared with another configuration, as `Self::try_from` does.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the operator or its operands differ from the declaration. Sizes may differ.
    fn from_operator(operator: Operator) -> Result<Self, Error> {
        let spec = &operator.plan().spec;
        let declared = (Self::config(spec.world(), 1).op(), Self::OPERANDS.to_vec());
        let operands = operator.plan().operands().iter();
        let operands = operands.map(|spec| (spec.operand, spec.dtype, spec.written));
        let given = (spec.config().op(), operands.collect());
        if given != declared {
            return Err(Error::Kernel(KernelError::OtherHandle {
                handle: name_of::<Self>().to_owned(),
                declared: describe(&declared),
                given: describe(&given),
            }));
        }
        Ok(Self::wrap(operator))
    }
}

/// Returns the name of a type without its path.
fn name_of<K>() -> &'static str {
    let path = std::any::type_name::<K>();
    path.rsplit("::").next().unwrap_or(path)
}

/// Describes an operator with its operands, as in `gemm_rs(a: bf16, b: bf16, mut c: fp32)`.
fn describe((op, operands): &(Op, Vec<DeclaredOperand>)) -> String {
    let operands = operands.iter().map(|(operand, dtype, written)| {
        let written = if *written { "mut " } else { "" };
        format!("{written}{}: {}", operand.name(), dtype.name())
    });
    format!("{op}({})", operands.collect::<Vec<_>>().join(", "))
}

impl Communicator {
    /// Prepares the operator of a type with `#[fused_kernel(...)]`, as [`prepare`](Self::prepare) does for a
    /// configuration.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare).
    pub fn prepare_fused<K: FusedKernel>(&self, sizes: impl Into<Sizes>) -> Result<K, Error> {
        self.prepare_fused_with(sizes, |_| {})
    }

    /// Prepares an operator as [`prepare_fused`](Self::prepare_fused) does, after `options` has set options that are known
    /// only at run time. The operator and the types of its operands must agree with the declaration.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare), and [`Error::Kernel`] if operands differ from the declaration.
    pub fn prepare_fused_with<K: FusedKernel>(
        &self,
        sizes: impl Into<Sizes>,
        options: impl FnOnce(&mut KernelConfig),
    ) -> Result<K, Error> {
        let mut config = K::config(self.world(), self.hosts());
        options(&mut config);
        let named = (&config, Some(name_of::<K>()));
        let operator =
            self.prepare_code(named, sizes.into(), |template| Ok(Code::Template(template)))?;
        K::from_operator(operator)
    }
}

/// Reads the configuration that `#[fused_kernel(...)]` has checked and written as JSON.
#[must_use]
pub fn declared(json: &str) -> KernelConfig {
    serde_json::from_str(json).expect("`#[fused_kernel]` writes configurations that can be read")
}
