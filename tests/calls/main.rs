//! Traced system calls: a tool sees the same on Beeline as on the kernel, and the target does not
//! notice.

mod asleep;
mod cancelled;
mod children;
mod confined;
mod execs;
mod killed;
mod kinds;
mod policy;
mod returns;
mod signals;
mod starts;
mod surroundings;
mod tools;
mod trace;
mod users;
mod vdso;
