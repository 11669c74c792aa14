//! The libbpf tools that do not go without arguments, or want other work than system calls.

use crate::entry::Compare::{All, Distinct, Histogram, Holding, Ours, Sum};
use crate::entry::Work::{Calls, Functions, Language, Leaks, Shell};
use crate::entry::{CALLS, Words};

/// Tool, arguments, work, comparison.
pub const TABLE: &[Words] = &[
    ("bashreadline", "-s /bin/bash", Shell, Holding(&["echo "])),
    ("execsnoop", "-x", CALLS, Ours),
    ("fsdist", "-t ext4", CALLS, Ours),
    ("fsslower", "-t ext4", CALLS, Ours),
    ("funclatency", "-p {pid} :wl_pause", Functions, Histogram),
    ("funclatency", "-p {pid} c:nanosleep", Functions, Histogram),
    (
        "futexctn",
        "-s -T -p {pid} 1",
        Calls(&["waits"]),
        Holding(&[" contended "]),
    ),
    (
        "gethostlatency",
        "-p {pid}",
        Language("resolver"),
        Holding(&["localhost"]),
    ),
    ("javagc", "-p {pid}", Language("java"), All),
    ("killsnoop", "-p {pid}", CALLS, Ours),
    ("ksnoop", "trace ip_send_skb", CALLS, Ours),
    ("memleak", "-o 1 -p {pid} 1", Leaks, Distinct(&["bytes in"])),
    ("mountsnoop", "-p {pid}", CALLS, Ours),
    ("opensnoop", "-p {pid}", CALLS, Ours),
    ("sigsnoop", "-p {pid}", CALLS, Ours),
    ("statsnoop", "-p {pid}", CALLS, Ours),
    ("syscount", "-i 1 -p {pid}", CALLS, Sum("getppid")),
];
