// Panics through probed functions. Same protocol as counts.c.
use std::hint::black_box;
use std::io::BufRead;
use std::panic::{catch_unwind, set_hook};
use std::process::ExitCode;

const CALLS: u64 = 50;
const DEPTH: u64 = 10;

struct Cleaner<'a>(&'a std::cell::Cell<u64>);

impl Drop for Cleaner<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn r_panics(n: u64) -> u64 {
    if black_box(n) % 2 == 1 {
        panic!("odd");
    }
    n
}

#[unsafe(no_mangle)]
#[inline(never)]
fn r_recurses(n: u64, depth: u64, cleaned: &std::cell::Cell<u64>) -> u64 {
    let _cleaner = Cleaner(cleaned);
    black_box(match depth {
        0 => r_panics(n),
        _ => r_recurses(n, depth - 1, cleaned),
    })
}

#[unsafe(no_mangle)]
#[inline(never)]
fn r_catches(n: u64, cleaned: &std::cell::Cell<u64>) -> u64 {
    let cleaned = std::panic::AssertUnwindSafe(cleaned);
    black_box(catch_unwind(move || r_recurses(n, DEPTH, *cleaned)).unwrap_or(1000))
}

fn main() -> ExitCode {
    set_hook(Box::new(|_| {}));
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        let cleaned = std::cell::Cell::new(0);
        let sum: u64 = (0..CALLS).map(|n| r_catches(n, &cleaned)).sum();
        println!("done {sum} {}", cleaned.get());
    }
    ExitCode::from(7)
}
