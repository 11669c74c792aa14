//! Splits work over two threads where one alone would keep the tool waiting.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

const NAME: &str = "beeline-reads";

/// Runs both functions, `aside` on another thread if there can be one.
pub fn both<A: Send, B>(aside: impl Fn() -> A + Sync, here: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| {
        let thread = Builder::new().name(NAME.into());
        let thread = thread.spawn_scoped(scope, &aside);
        let here = here();
        let aside = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => aside(),
        };
        (aside, here)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_done() {
        assert_eq!(both(|| 1, || "2"), (1, "2"));
    }

    #[test]
    #[should_panic(expected = "aside")]
    fn a_panic_of_the_other_thread_is_one_here() {
        both(|| panic!("aside"), || ());
    }
}
