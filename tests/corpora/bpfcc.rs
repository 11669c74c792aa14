//! Arguments for bcc's tools: most need none, some a function, a process or a directory.

/// A placeholder for the process id of a Python process, which has probes for bcc's tools to find.
pub const PYTHON: &str = "{python}";

/// Tools that load no program, or would change more than they load.
const LEFT_OUT: &[&str] = &["bpflist", "reset-trace", "tplist"];

/// Arguments for tools that do not run without any.
const WORDS: &[(&str, &[&str])] = &[
    ("argdist", &["-H", "p:c:malloc(size_t size):size_t:size"]),
    ("biolatpcts", &["/dev/vda"]),
    ("cobjnew", &[PYTHON]),
    ("deadlock", &[PYTHON]),
    ("dirtop", &["-d", "/tmp"]),
    ("funccount", &["c:malloc"]),
    ("funcinterval", &["c:malloc"]),
    ("funclatency", &["c:malloc"]),
    ("funcslower", &["c:malloc"]),
    ("inject", &["kmalloc", "vfs_read()"]),
    ("javacalls", &[PYTHON]),
    ("javaflow", &[PYTHON]),
    ("javagc", &[PYTHON]),
    ("javaobjnew", &[PYTHON]),
    ("javastat", &[PYTHON]),
    ("javathreads", &[PYTHON]),
    ("mysqld_qslower", &[PYTHON]),
    ("netqtop", &["-n", "lo"]),
    ("nodegc", &[PYTHON]),
    ("nodestat", &[PYTHON]),
    ("perlcalls", &[PYTHON]),
    ("perlflow", &[PYTHON]),
    ("perlstat", &[PYTHON]),
    ("phpcalls", &[PYTHON]),
    ("phpflow", &[PYTHON]),
    ("phpstat", &[PYTHON]),
    ("ppchcalls", &[PYTHON]),
    ("pythoncalls", &[PYTHON]),
    ("pythonflow", &[PYTHON]),
    ("pythongc", &[PYTHON]),
    ("pythonstat", &[PYTHON]),
    ("rubycalls", &[PYTHON]),
    ("rubyflow", &[PYTHON]),
    ("rubygc", &[PYTHON]),
    ("rubyobjnew", &[PYTHON]),
    ("rubystat", &[PYTHON]),
    ("stackcount", &["c:malloc"]),
    ("tclcalls", &[PYTHON]),
    ("tclflow", &[PYTHON]),
    ("tclobjnew", &[PYTHON]),
    ("tclstat", &[PYTHON]),
    ("trace", &["p:c:open \"%s %d\", arg1, arg2"]),
    ("ttysnoop", &["/dev/console"]),
];

/// Returns the arguments after a tool's file; `None` for a tool that is not run.
pub fn words(file: &str) -> Option<&'static [&'static str]> {
    let tool = file.strip_suffix("-bpfcc").unwrap_or(file);
    if LEFT_OUT.contains(&tool) {
        return None;
    }
    let known = WORDS.iter().find(|(name, _)| *name == tool);
    Some(known.map_or(&[], |(_, words)| words))
}
