//! Command lines that mean processes of this machine, and so something else for a guest.

use std::ffi::OsString;
use std::path::Path;

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
        match word.as_ref() {
            // A script may begin with anything.
            "-e" | "-f" | "-o" | "-B" | "-I" | "--include" => drop(words.next()),
            "-c" | "--cmd" => return Some(of_command()),
            "-p" | "--pid" => return Some(of_process()),
            word if word.starts_with("--cmd=") => return Some(of_command()),
            word if word.starts_with("--pid=") => return Some(of_process()),
            word if word.starts_with("-p") && is_number(&word[2..]) => return Some(of_process()),
            _ => {}
        }
    }
    None
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit())
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
        ] {
            assert!(refused(line).unwrap().contains("-c"), "{line}");
        }
        for line in [
            "bpftrace -p 12 -e x",
            "bpftrace -e x -p12",
            "bpftrace --pid=12 x.bt",
        ] {
            assert!(refused(line).unwrap().contains("-p"), "{line}");
        }
        for line in [
            "bpftrace -e -c",
            "bpftrace x.bt -- -p 12",
            "bpftrace -e x -print",
            "opensnoop -p 12",
            "sh -c bpftrace",
            "cachestat -c",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
