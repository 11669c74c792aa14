//! bpftrace's own scripts that want other work than system calls.

use crate::entry::Compare::{All, Holding, Ours};
use crate::entry::Work::{Language, Shell, Tls};
use crate::entry::{CALLS, Words};

/// Script, arguments, work, comparison.
pub const TABLE: &[Words] = &[
    ("bashreadline.bt", "", Shell, Holding(&["echo "])),
    (
        "gethostlatency.bt",
        "",
        Language("resolver"),
        Holding(&["localhost"]),
    ),
    ("loads.bt", "", CALLS, All),
    ("ssllatency.bt", "", Tls, Holding(&["openssl", "SSL", "@"])),
    ("sslsnoop.bt", "", Tls, Ours),
    ("syscount.bt", "", CALLS, Holding(&["@process[tools]"])),
];
