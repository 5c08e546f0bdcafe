//! Signal handlers that turn a processor fault of a kernel into a finding with a source line. Without them, an access
//! to unmapped memory or a division by zero would end the process.
//!
//! The handler runs on the alternate stack of the thread if it has one, and otherwise on the stack of the fiber. It
//! only changes the context so that the fiber continues in [`calls::faulted`], on its own stack. That function reports
//! the fault and suspends the fiber for good: the kernel has failed, and its fibers are never resumed. Faults of other
//! code go to the handlers that were installed before.

use super::calls;
use super::processor_fault::ProcessorFault;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

const SIGNALS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// The handlers that were installed before, in the order of `SIGNALS`.
static BEFORE: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Installs the handlers, once per process.
pub(super) fn install_handlers() {
    BEFORE.get_or_init(|| SIGNALS.map(install));
}

fn install(signal: c_int) -> libc::sigaction {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros are a valid sigaction. The handler has the type that SA_SIGINFO requires, and lives forever.
    unsafe {
        let mut ours = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        ours.sa_sigaction = on_signal as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &ours, before.as_mut_ptr());
        before.assume_init()
    }
}

fn fault_of(signal: c_int) -> ProcessorFault {
    match signal {
        libc::SIGFPE => ProcessorFault::Arithmetic,
        libc::SIGILL | libc::SIGTRAP => ProcessorFault::Instruction,
        _ => ProcessorFault::Memory,
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if calls::in_kernel() {
        // SAFETY: the operating system passes the context of the thread, and restores it afterwards.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        return continue_in_faulted(context, fault_of(signal));
    }
    let index = SIGNALS.iter().position(|handled| *handled == signal);
    let before = index.and_then(|index| Some(BEFORE.get()?[index]));
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        // The instruction runs again without a handler.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action is always valid.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: with SA_SIGINFO, the handler was installed as a function of this type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO, the handler was installed as a function of this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Changes the context as if the faulting instruction had called [`calls::faulted`].
#[cfg(target_arch = "x86_64")]
fn continue_in_faulted(context: &mut libc::ucontext_t, fault: ProcessorFault) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RDI as usize] = registers[libc::REG_RIP as usize];
    registers[libc::REG_RSI as usize] = fault as i64;
    registers[libc::REG_RIP as usize] = calls::faulted as *const () as i64;
    // The new frame is below the red zone. As after a call, the stack pointer is 8 bytes below a multiple of 16.
    let stack = &mut registers[libc::REG_RSP as usize];
    *stack = ((*stack - 128) & !15) - 8;
}

/// Changes the context as if the faulting instruction had called [`calls::faulted`].
#[cfg(target_arch = "aarch64")]
fn continue_in_faulted(context: &mut libc::ucontext_t, fault: ProcessorFault) {
    let machine = &mut context.uc_mcontext;
    machine.regs[0] = machine.pc;
    machine.regs[1] = fault as u64;
    machine.pc = calls::faulted as *const () as u64;
    machine.sp &= !15;
}
