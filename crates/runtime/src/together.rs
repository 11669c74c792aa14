//! Work that several threads do together, where one alone would keep a target's tool waiting.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, available_parallelism, scope};

const NAME: &str = "beeline-reads";
/// Threads, at the most: the machine has other work.
const MOST: usize = 4;

/// Does both, `aside` by another thread if there can be one.
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

/// Does `work` for each item once, those in front first.
pub fn each<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let help = || {
        while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
            work(item);
        }
    };
    let threads = match items {
        [] | [_] => 1,
        _ => available_parallelism().map_or(1, NonZero::get),
    };
    scope(|scope| {
        for _ in 1..threads.min(MOST).min(items.len()) {
            // Without it the others do its part.
            let _ = Builder::new().name(NAME.into()).spawn_scoped(scope, help);
        }
        help();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once() {
        for count in [0, 1, 2, 3, 1000] {
            let items: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            each(&items, |item| {
                item.fetch_add(1, Relaxed);
            });
            assert!(items.iter().all(|item| item.load(Relaxed) == 1));
        }
    }

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
