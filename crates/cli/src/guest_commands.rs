//! Command lines that mean processes of this machine, and so something else for a guest.

use std::ffi::OsString;
use std::path::Path;

/// bpftrace's options of one letter that take an argument: the rest of the word, or the next word.
const WITH_ARGUMENT: &str = "BefIo";
/// The arguments of `-d` in new versions, the steps of which bpftrace shows what comes out; in old
/// ones `-d` has none.
const STAGES: [&str; 9] = [
    "all",
    "ast",
    "codegen",
    "codegen-opt",
    "dis",
    "disasm",
    "libbpf",
    "types",
    "verifier",
];
/// Long options whose argument is the next word.
const LONG_WITH_ARGUMENT: [&str; 3] = ["--emit-elf", "--emit-llvm", "--include"];

/// Returns why a tool cannot be run for a guest. bpftrace starts a command on this machine, and
/// looks for a process there; its programs in the guest would see neither, and count nothing. Other
/// tools only compare numbers of processes, which are the guest's.
pub fn refusal(tool: &[OsString]) -> Option<String> {
    let is_bpftrace = |word: &&OsString| Path::new(word).ends_with("bpftrace");
    // Something else may start it: `timeout 10 bpftrace`.
    let words = tool.iter().skip_while(|word| !is_bpftrace(word)).skip(1);
    let words = words.map(|word| word.to_string_lossy());
    let mut words = words.take_while(|word| word != "--");
    while let Some(word) = words.next() {
        match meaning(&word) {
            Meaning::Command => return Some(of_command()),
            Meaning::Process => return Some(of_process()),
            // A script may begin with anything.
            Meaning::TakesNext => drop(words.next()),
            Meaning::Other => {}
        }
    }
    None
}

/// The meaning of a word of bpftrace's command line.
enum Meaning {
    Command,
    Process,
    /// The next word is its argument.
    TakesNext,
    Other,
}

fn meaning(word: &str) -> Meaning {
    if LONG_WITH_ARGUMENT.contains(&word) {
        return Meaning::TakesNext;
    }
    match (word.strip_prefix("--"), word.strip_prefix('-')) {
        (Some(option), _) => of_long(option),
        (None, Some(letters)) => of_letters(letters),
        (None, None) => Meaning::Other,
    }
}

/// Looks at a long option, of which getopt_long(3) takes the beginning as well.
fn of_long(option: &str) -> Meaning {
    match option.split('=').next().unwrap_or(option) {
        "" => Meaning::Other,
        name if "cmd".starts_with(name) => Meaning::Command,
        name if "pid".starts_with(name) => Meaning::Process,
        _ => Meaning::Other,
    }
}

/// Looks at options of one letter, which may stand in one word: `-vc COMMAND` is `-v -c COMMAND`.
fn of_letters(letters: &str) -> Meaning {
    for (at, letter) in letters.char_indices() {
        let rest = &letters[at + letter.len_utf8()..];
        match letter {
            'c' => return Meaning::Command,
            'p' => return Meaning::Process,
            'd' if STAGES.contains(&rest) => return Meaning::Other,
            letter if WITH_ARGUMENT.contains(letter) && rest.is_empty() => {
                return Meaning::TakesNext;
            }
            letter if WITH_ARGUMENT.contains(letter) => return Meaning::Other,
            _ => {}
        }
    }
    Meaning::Other
}

fn of_command() -> String {
    "bpftrace -c would start its command on this machine, where no program of the guest sees it; start it in the \
     guest, and choose it by its name: /comm == \"NAME\"/"
        .into()
}

fn of_process() -> String {
    "bpftrace -p would look for its process on this machine; choose the guest's in the script: /pid == NUMBER/".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Option<String> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        refusal(&words)
    }

    #[test]
    fn only_what_means_this_machines_processes_is_refused() {
        for line in [
            "bpftrace -c true -e x",
            "timeout 9 /usr/bin/bpftrace -e x -c true",
            "bpftrace --cmd=x y.bt",
            "bpftrace --cm x y.bt",
            "bpftrace -vc true -e x",
            "bpftrace -ctrue -e x",
            "bpftrace -kqvctrue x.bt",
            "bpftrace -dc true x.bt",
        ] {
            assert!(refused(line).unwrap().contains("-c"), "{line}");
        }
        for line in [
            "bpftrace -p 12 -e x",
            "bpftrace -e x -p12",
            "bpftrace --pid=12 x.bt",
            "bpftrace --pi 12 x.bt",
            "bpftrace -vp 12 x.bt",
            "bpftrace -qvp12 x.bt",
        ] {
            assert!(refused(line).unwrap().contains("-p"), "{line}");
        }
        for line in [
            "bpftrace -e -c",
            "bpftrace x.bt -- -p 12",
            "bpftrace -veprint -f json",
            "bpftrace -ve -c",
            "bpftrace -Bnone -oc -I c x.bt",
            "bpftrace -dcodegen -d codegen x.bt",
            "bpftrace --include -c --info",
            "bpftrace --unsafe x.bt",
            "opensnoop -p 12",
            "sh -c bpftrace",
            "cachestat -c",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
