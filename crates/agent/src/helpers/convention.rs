//! The calling convention of helpers: the run and five registers become typed arguments, and a
//! typed result becomes r0.
//!
//! A helper is a safe function. Its first parameter is the run ([`FromRun`]): `&mut Context`, or
//! [`Reentrant`] if it calls back into the program. Then comes one parameter for each register from
//! r1 on that it looks at ([`Argument`]). Its result is an [`Outcome`]. [`shim`] makes of it the
//! function that programs call.
//!
//! # Safety
//!
//! The conversions rely on one promise, which [`Helper`]s ask of their callers. A program calls a
//! helper, with its own run, and the verifier has checked the arguments against the helper's
//! prototype in [`beeline_uapi::helper`]: a map is one of the program's own, a function is one of
//! the program's, and memory is there, as much of it as the prototype says. Programs that were not
//! verified are run by an interpreter that checks the same.

use core::ptr::NonNull;

use beeline_isa::abi::{Helper, Run};
use beeline_uapi::Errno;

use super::dynptr::Dynptr;
use crate::abi::{Context, MapHandle};

/// Returns the function that programs call for a helper.
pub const fn shim<F: TypedHelper<A>, A>(_: F) -> Helper {
    const { assert!(size_of::<F>() == 0, "a helper is a function's name") };
    enter::<F, A>
}

beeline_isa::platform_fn! {
    unsafe fn enter<F: TypedHelper<A>, A>(
        r1: u64, r2: u64, r3: u64, r4: u64, r5: u64, run: *const Run
    ) -> u64 {
        // SAFETY: `shim` was given a value of this type, which has no bytes and can be copied.
        let helper = unsafe { NonNull::<F>::dangling().read() };
        // SAFETY: the caller of a `Helper` is a program that the verifier has checked, or the
        // interpreter with the same checks. It passes its own run, and registers that match the
        // prototype of the helper, which `TypedHelper::call` asks for.
        unsafe { helper.call(run, [r1, r2, r3, r4, r5]) }
    }
}

/// A function that can be a helper; `A` lists the types of its parameters.
pub trait TypedHelper<A>: Copy {
    /// Calls it with its arguments from the registers, and returns r0.
    ///
    /// # Safety
    ///
    /// The caller must keep the promise of this module.
    unsafe fn call(self, run: *const Run, registers: [u64; 5]) -> u64;
}

macro_rules! typed_helpers {
    ($(($($argument:ident: $index:literal),*);)*) => {$(
        impl<F, C, $($argument,)* R> TypedHelper<(C, $($argument,)*)> for F
        where
            F: Fn(C, $($argument),*) -> R + Copy,
            C: FromRun,
            $($argument: Argument,)*
            R: Outcome,
        {
            #[inline(always)]
            #[allow(unused_variables, reason = "a helper without arguments")]
            unsafe fn call(self, run: *const Run, registers: [u64; 5]) -> u64 {
                // SAFETY: the caller promises that `run` is the calling program's and that the
                // registers match the helper's prototype. The parameter types are those of the
                // prototype, so each conversion gets the register that it expects.
                unsafe { self(C::from_run(run), $($argument::from_register(registers[$index])),*) }
                    .into_r0()
            }
        }
    )*};
}

typed_helpers! {
    ();
    (A1: 0);
    (A1: 0, A2: 1);
    (A1: 0, A2: 1, A3: 2);
    (A1: 0, A2: 1, A3: 2, A4: 3);
    (A1: 0, A2: 1, A3: 2, A4: 3, A5: 4);
}

/// A view of the run that called a helper.
pub trait FromRun {
    /// Takes the last argument of a [`Helper`].
    ///
    /// # Safety
    ///
    /// The caller must keep the promise of this module.
    unsafe fn from_run(run: *const Run) -> Self;
}

impl FromRun for &mut Context {
    #[inline(always)]
    unsafe fn from_run(run: *const Run) -> Self {
        // SAFETY: a program's run is the first field of a `Context` that only this run uses.
        unsafe { &mut *run.cast::<Context>().cast_mut() }
    }
}

/// The run of a helper that calls back into the program. The program uses the context meanwhile, so
/// it is borrowed between calls only.
pub struct Reentrant(*const Run);

impl FromRun for Reentrant {
    #[inline(always)]
    unsafe fn from_run(run: *const Run) -> Self {
        Self(run)
    }
}

impl Reentrant {
    /// Borrows the context until the next call.
    #[inline(always)]
    pub fn context(&mut self) -> &mut Context {
        // SAFETY: the run is what a helper was called with, and the program does not run now.
        unsafe { FromRun::from_run(self.0) }
    }

    /// Calls one of the program's functions, and returns its r0.
    #[inline(always)]
    pub fn call(&mut self, Callback(function): Callback, [a, b, c, d]: [u64; 4]) -> u64 {
        // SAFETY: the function and the run are the program's own, and nothing borrows the context.
        unsafe { function(a, b, c, d, 0, self.0) }
    }
}

/// The meaning that a parameter's type gives to a register.
pub trait Argument {
    /// Takes a register's value.
    ///
    /// # Safety
    ///
    /// The caller must keep the promise of this module.
    unsafe fn from_register(register: u64) -> Self;
}

/// The whole register.
impl Argument for u64 {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        register
    }
}

/// The lower half; a size, above all.
impl Argument for u32 {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        register as u32
    }
}

/// Memory that a helper may read: as much as its prototype says, or null if that allows null.
#[derive(Clone, Copy)]
pub struct Readable(*const u8);

impl Argument for Readable {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        Self(register as *const u8)
    }
}

impl Readable {
    /// Returns the address.
    #[inline(always)]
    pub fn as_ptr(self) -> *const u8 {
        self.0
    }
}

/// Memory that a helper may read and write, likewise.
#[derive(Clone, Copy)]
pub struct Writable(*mut u8);

impl Argument for Writable {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        Self(register as *mut u8)
    }
}

impl Writable {
    /// Returns the address.
    #[inline(always)]
    pub fn as_mut_ptr(self) -> *mut u8 {
        self.0
    }
}

/// One of the program's maps.
impl Argument for &MapHandle {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        // SAFETY: the caller promises a handle, which stays as long as the target's pool.
        unsafe { &*(register as *const MapHandle) }
    }
}

/// A dynptr on the program's stack.
impl Argument for &Dynptr {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        // SAFETY: the caller promises a dynptr there.
        unsafe { &*(register as *const Dynptr) }
    }
}

/// A dynptr on the program's stack that the helper initializes or gives up.
impl Argument for &mut Dynptr {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        // SAFETY: the caller promises room for a dynptr there; any bytes are one.
        unsafe { &mut *(register as *mut Dynptr) }
    }
}

/// One of the program's functions: the address that `LD_IMM64` with `BPF_PSEUDO_FUNC` loads.
#[derive(Clone, Copy)]
pub struct Callback(Helper);

impl Argument for Callback {
    #[inline(always)]
    unsafe fn from_register(register: u64) -> Self {
        // SAFETY: the caller promises the address of a function of this type.
        Self(unsafe { core::mem::transmute::<usize, Helper>(register as usize) })
    }
}

/// A helper's result, as r0 holds it.
pub trait Outcome {
    /// Returns r0.
    fn into_r0(self) -> u64;
}

impl Outcome for u64 {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        self
    }
}

/// Extended by its sign.
impl Outcome for i32 {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        i64::from(self) as u64
    }
}

/// 0.
impl Outcome for () {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        0
    }
}

/// The address, or null.
impl Outcome for *mut u8 {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        self as u64
    }
}

/// The negative number.
impl Outcome for Errno {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        (-self.0).into_r0()
    }
}

/// The value, or the error.
impl<T: Outcome> Outcome for Result<T, Errno> {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        match self {
            Ok(value) => value.into_r0(),
            Err(error) => error.into_r0(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a helper as a program does.
    fn call(helper: Helper, [a, b, c, d, e]: [u64; 5]) -> u64 {
        // SAFETY: these are integers and pointers, for which zero is good.
        let mut context: Context = unsafe { core::mem::zeroed() };
        context.cpu = 7;
        // SAFETY: the helpers of these tests take any number.
        unsafe { helper(a, b, c, d, e, (&raw const context).cast()) }
    }

    #[test]
    fn arguments_come_from_the_registers_in_their_order() {
        fn all(context: &mut Context, a: u64, b: u32, c: u64, d: u64, e: u32) -> u64 {
            assert_eq!((a, b, c, d, e), (u64::MAX, 2, 3, 4, 5));
            context.cpu.into()
        }
        fn none(context: &mut Context) -> u64 {
            context.cpu.into()
        }
        let high = 1 << 32;
        assert_eq!(call(shim(all), [u64::MAX, high | 2, 3, 4, high | 5]), 7);
        assert_eq!(call(shim(none), [0; 5]), 7);
    }

    #[test]
    fn results_are_extended_by_their_sign() {
        fn give(_: &mut Context, number: u32) -> Result<i32, Errno> {
            match number {
                0 => Err(Errno::E2BIG),
                number => Ok(number as i32),
            }
        }
        assert_eq!(call(shim(give), [0; 5]) as i64, -7);
        assert_eq!(call(shim(give), [5; 5]), 5);
        assert_eq!(call(shim(give), [u64::MAX; 5]) as i64, -1);
    }
}
