//! Programs that run here in the interpreter, which takes the place of their code meanwhile.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::Link;
use beeline_codegen::{Context, Engine, Fault, Interpreter, Runnable};
use beeline_isa::abi::Run;

use crate::engines::Source;
use crate::error::Error;

/// A program that the interpreter has made ready.
pub struct Checked {
    program: Box<dyn Runnable>,
    /// The size of its context.
    bytes: usize,
    fault: RefCell<Option<Fault>>,
}

thread_local! {
    /// The program that [`interpret`] is to run.
    static CURRENT: Cell<*const Checked> = const { Cell::new(ptr::null()) };
}

impl Checked {
    /// Makes a program ready that may reach this many bytes of context.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`] if the interpreter does not take the program.
    pub fn new(source: &Source, bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            program: Interpreter::default().load(&source.program())?,
            bytes,
            fault: RefCell::default(),
        })
    }

    /// Runs `work` while a link leads to the interpreter. A program that tail-calls leaves for the
    /// next one's code.
    ///
    /// # Errors
    ///
    /// [`Error::Fault`] if the program did something that it must not.
    pub fn instead<T>(&self, link: &Link, work: impl FnOnce() -> T) -> Result<T, Error> {
        let entry = interpret as *const () as usize;
        let before = link.entry.swap(entry, SeqCst);
        CURRENT.set(self);
        let result = work();
        CURRENT.set(ptr::null());
        link.entry.store(before, SeqCst);
        match self.fault.take() {
            Some(fault) => Err(Error::Fault(fault)),
            None => Ok(result),
        }
    }
}

/// Stands for a program's code, in the runner's thread only.
unsafe extern "sysv64" fn interpret(context: *const u8, run: *const Run) -> u64 {
    // SAFETY: `CURRENT` is only set while `instead` works, which keeps what it points to alive.
    let Some(checked) = (unsafe { CURRENT.get().as_ref() }) else {
        return 0;
    };
    let context = Context {
        start: context.cast_mut(),
        bytes: checked.bytes,
    };
    // SAFETY: the agent enters code with a whole `Run`, and with the context that the runner was
    // given.
    let result = unsafe { checked.program.run(context, &*run) };
    result.unwrap_or_else(|fault| {
        checked.fault.borrow_mut().get_or_insert(fault);
        0
    })
}
