//! What the processor refuses to do for a kernel (an access to memory that is none, a division by zero) becomes a
//! finding of the kernel, with its line, instead of the end of the process.
//!
//! The handler runs on the thread's alternate stack if it has one, else on the fiber's. It does nothing but send the
//! fiber to [`calls::faulted`], on its own stack, where it reports and gives way for good: the kernel has failed, and
//! its fibers are never resumed. Faults of anything else go to the handlers that were there before.

use super::calls;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Refused {
    Memory,
    Arithmetic,
    Instruction,
}

impl Refused {
    /// A kind and a text.
    pub fn tell(self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => (
                "plain access",
                "an access without a primitive to memory that is the GPU's, or nobody's",
            ),
            Self::Arithmetic => (
                "arithmetic",
                "an integer divided by zero, or a quotient that does not fit",
            ),
            Self::Instruction => (
                "undefined behaviour",
                "the compiler found that the kernel cannot get here without undefined behaviour",
            ),
        }
    }

    fn of(signal: c_int) -> Self {
        match signal {
            libc::SIGFPE => Self::Arithmetic,
            libc::SIGILL | libc::SIGTRAP => Self::Instruction,
            _ => Self::Memory,
        }
    }
}

const SIGNALS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// The handlers before ours, in the same order.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Installs the handler, once per process.
pub(super) fn handle() {
    BEFORE.get_or_init(|| SIGNALS.map(install));
}

fn install(signal: c_int) -> libc::sigaction {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros are a sigaction; the handler has the type that SA_SIGINFO asks for, and lives forever.
    unsafe {
        let mut ours = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        ours.sa_sigaction = on_signal as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &ours, before.as_mut_ptr());
        before.assume_init()
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if calls::in_kernel() {
        // SAFETY: the kernel of this system passes the context of the thread, which it restores afterwards.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        return send_to_report(context, Refused::of(signal));
    }
    let place = SIGNALS.iter().position(|ours| *ours == signal);
    let before = place.and_then(|place| Some(BEFORE.get()?[place]));
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        // Once more without us.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default is always a valid action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: it was installed as a handler of this type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed as a handler of this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// As if the faulting instruction had called [`calls::faulted`].
#[cfg(target_arch = "x86_64")]
fn send_to_report(context: &mut libc::ucontext_t, why: Refused) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RDI as usize] = registers[libc::REG_RIP as usize];
    registers[libc::REG_RSI as usize] = why as i64;
    registers[libc::REG_RIP as usize] = calls::faulted as *const () as i64;
    // Below the red zone; as after a call, 8 bytes off a multiple of 16.
    let stack = &mut registers[libc::REG_RSP as usize];
    *stack = ((*stack - 128) & !15) - 8;
}

/// As if the faulting instruction had called [`calls::faulted`].
#[cfg(target_arch = "aarch64")]
fn send_to_report(context: &mut libc::ucontext_t, why: Refused) {
    let machine = &mut context.uc_mcontext;
    machine.regs[0] = machine.pc;
    machine.regs[1] = why as u64;
    machine.pc = calls::faulted as *const () as u64;
    machine.sp &= !15;
}
