//! Coroutines that move between threads and throw, on stacks that lie side by side: the stack that
//! a thread's unwinder takes for its own reaches over those of others, which run.

extern crate std;

use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::vec::Vec;

use super::tests::table;
use super::*;

/// The trampoline's address in a watched slot.
const HIJACK: u64 = 2;
const FRAMES: usize = 6;
const COROUTINES: usize = 8;
const THREADS: u32 = 4;
const STEPS: u64 = 30_000;

/// A coroutine's stack, the innermost frame first, as stacks grow down.
struct Coroutine<'a> {
    stack: &'a [AtomicU64],
    /// The addresses that its calls return to, the outermost first.
    calls: Vec<u64>,
}

impl Coroutine<'_> {
    /// Returns the slot of the call at this depth.
    fn slot(&self, depth: usize) -> &AtomicU64 {
        &self.stack[FRAMES - 1 - depth]
    }

    fn key(&self, depth: usize) -> usize {
        core::ptr::from_ref(self.slot(depth)).addr()
    }

    fn call(&mut self, table: &ReturnTable, address: u64, owner: u32) {
        let depth = self.calls.len();
        self.calls.push(address);
        self.slot(depth).store(address, SeqCst);
        let slot = self.slot(depth);
        let seen = slot.load(SeqCst);
        let restore = || slot.store(seen, SeqCst);
        let is_watched = table.insert(self.key(depth), seen, HIJACK, owner, restore);
        if is_watched && seen != HIJACK {
            slot.store(HIJACK, SeqCst);
        }
    }

    fn end_call(&mut self, table: &ReturnTable, owner: u32) {
        let expected = self.calls.pop().expect("a call");
        let depth = self.calls.len();
        let mut address = self.slot(depth).load(SeqCst);
        while address == HIJACK {
            address = table.take(self.key(depth), || owner).expect("an entry");
        }
        assert_eq!(address, expected, "a return to somewhere else");
    }

    /// Throws an exception that is caught `kept` frames from the outermost.
    fn throw(&mut self, table: &ReturnTable, area: &Range<usize>, kept: usize, owner: u32) {
        let sp = self.key(self.calls.len() - 1);
        table.put_back(sp, owner, |key, _| (sp..area.end).contains(&key));
        for (depth, address) in self.calls.iter().enumerate() {
            let held = self.slot(depth).load(SeqCst);
            assert_eq!(held, *address, "an unwinder meets this");
        }
        let landing = self.key(kept);
        self.calls.truncate(kept);
        table.watch_again(owner, |key| (landing + 8..area.end).contains(&key));
    }
}

#[test]
fn coroutines_move_and_throw() {
    let table = table();
    let area: Vec<AtomicU64> = (0..COROUTINES * FRAMES)
        .map(|_| AtomicU64::new(0))
        .collect();
    let range = area.as_ptr_range();
    let range = range.start.addr()..range.end.addr();
    let waiting: Mutex<Vec<Coroutine>> = Mutex::new(
        area.chunks(FRAMES)
            .map(|stack| Coroutine {
                stack,
                calls: Vec::new(),
            })
            .collect(),
    );
    std::thread::scope(|scope| {
        for owner in 1..=THREADS {
            let (table, waiting, range) = (&table, &waiting, &range);
            scope.spawn(move || {
                let mut random = u64::from(owner);
                for step in 0..STEPS {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let place = |count: usize| random as usize % count;
                    let mut coroutine = {
                        let mut waiting = waiting.lock().unwrap();
                        let place = place(waiting.len());
                        waiting.swap_remove(place)
                    };
                    for turn in 0..random >> 58 {
                        match coroutine.calls.len() {
                            FRAMES => coroutine.throw(table, range, place(FRAMES), owner),
                            depth if depth != 0 && random >> turn & 1 == 0 => {
                                coroutine.end_call(table, owner);
                            }
                            // Few addresses, as few places call a function.
                            _ => coroutine.call(table, 0x10 + 0x100 * ((step + turn) % 4), owner),
                        }
                    }
                    waiting.lock().unwrap().push(coroutine);
                }
            });
        }
    });
}
