//! A tool of the matrix: its command, the work that is done while it looks, and what of its output
//! is compared.

/// The work of the traced process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Scenes of `workloads/calls/tools.c` and `others.c`: system calls.
    Calls(&'static [&'static str]),
    /// A round of `workloads/counts.c`: functions with known numbers of calls.
    Functions,
    /// A round of `workloads/leaky.c`: memory that is not freed.
    Leaks,
    /// A program in this language makes calls, objects and garbage.
    Language(&'static str),
    /// Three lines are typed into a bash.
    Shell,
    /// A TLS client talks to a server on the loopback.
    Tls,
    /// Nothing: the tool works by itself and ends.
    None,
}

/// The part of the output that two runs of a tool must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The lines that name the traced process, or its children by their names.
    Ours,
    /// All lines.
    All,
    /// All lines that hold one of these words.
    Holding(&'static [&'static str]),
    /// Those lines, each once: of tools that print all again and again.
    Distinct(&'static [&'static str]),
    /// The number of events in all histograms.
    Histogram,
    /// The sum of the last numbers of the lines that hold this text.
    Sum(&'static str),
}

/// One line of the matrix.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The tool's name, as users type it.
    pub tool: String,
    /// The arguments; `{pid}` is the traced process, `{prog}` its program, `{scratch}` a directory.
    pub args: Vec<String>,
    /// The work while it looks.
    pub work: Work,
    /// The part that is compared.
    pub compare: Compare,
}

/// The scenes of a tool that is not known to want others.
pub const CALLS: Work = Work::Calls(&[
    "files", "stats", "kills", "mounts", "ids", "execs", "syncs", "network", "sleeps", "users",
    "removed", "shared", "threads", "rights",
]);

impl Entry {
    /// An entry from a table of words: spaces divide the arguments, `~` is
    /// one inside them.
    pub fn new(tool: &str, args: &str, work: Work, compare: Compare) -> Entry {
        Entry {
            tool: tool.to_owned(),
            args: args
                .split_whitespace()
                .map(|word| word.replace('~', " "))
                .collect(),
            work,
            compare,
        }
    }

    /// A tool without arguments, with all scenes.
    pub fn plain(tool: &str) -> Entry {
        Entry::new(tool, "", CALLS, Compare::Ours)
    }
}

/// A line of a family's table: tool, arguments, work, comparison.
pub type Words = (&'static str, &'static str, Work, Compare);

/// Returns the entries of all `tools`: those that the table has (a newer Debian
/// adds `-libbpf` to their names), and the others without arguments.
pub fn entries(tools: impl IntoIterator<Item = String>, table: &[Words]) -> Vec<Entry> {
    let of = |tool: String| -> Vec<Entry> {
        let plain = tool.trim_end_matches("-libbpf");
        let known = table.iter().filter(|(name, ..)| *name == plain);
        let known: Vec<_> = known
            .map(|&(_, args, work, compare)| Entry::new(&tool, args, work, compare))
            .collect();
        match known.is_empty() {
            true => vec![Entry::plain(&tool)],
            false => known,
        }
    };
    tools.into_iter().flat_map(of).collect()
}
