//! The policies that come with the proxy let tools do what they say, and nothing else.

use super::*;
use crate::proxy::{PORT, Proxy};
use beeline_e2e::{Ended, PATIENCE, Tool, beeline_wanted, find_program, until};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const OBSERVE: &str = "observe";
const WITH_UPROBES: &str = "observe-and-uprobes";
const EVERYTHING: &str = "everything";

/// Starts the proxy with a policy, by its name.
fn under<'a>(guest: &'a Guest, policy: &str) -> Proxy<'a> {
    let address = format!("uds:{}:{PORT}", guest.vsock().display());
    let options = ["--policy", policy].map(str::to_owned);
    Proxy::listen(guest, &format!("vsock:any:{PORT}"), address, &options)
}

fn command(proxy: &Proxy, words: &[&str]) -> Result<Command, String> {
    let mut command = proxy.command(&find_program(words[0])?);
    command.args(&words[1..]);
    Ok(command)
}

/// Runs a tool until it has printed a line with these words, while something happens in the guest.
#[track_caller]
fn sees(guest: &Guest, proxy: &Proxy, words: &[&str], work: &str, seen: &str) {
    let command = command(proxy, words).unwrap_or_else(|why| panic!("{why}"));
    let tool = Tool::start_on_terminal(command);
    let printed = until(PATIENCE, || {
        guest.check(work);
        tool.stdout.so_far().iter().any(|line| line.contains(seen))
    });
    let ended = tool.interrupt();
    assert!(printed, "{words:?}: {ended:?}");
    let refused = refusals(&ended);
    assert!(refused.is_empty(), "{words:?}: {refused:?}");
}

fn refusals(ended: &Ended) -> Vec<&String> {
    let all = ended.stdout.iter().chain(&ended.stderr);
    all.filter(|line| line.contains("the guest's policy"))
        .collect()
}

const OPENS: &str = "cat /etc/inittab >/dev/null";
/// Counts calls by a uprobe, and prints them once a second.
const UPROBE: [&str; 4] = [
    "funclatency",
    "-i",
    "1",
    "/lib/x86_64-linux-gnu/libc.so.6:malloc",
];

#[test]
fn tools_work_under_each_policy() {
    need!(beeline_wanted());
    let guest = need!(shared());
    need!(find_program("opensnoop"));
    let proxy = under(&guest, OBSERVE);
    sees(&guest, &proxy, &["opensnoop"], OPENS, "/etc/inittab");
    // A uprobe is refused, by its rule, once, with a count.
    let ended = Tool::start(command(&proxy, &UPROBE).expect("it is there")).wait();
    let refused = refusals(&ended);
    assert!(!refused.is_empty(), "{ended:?}");
    assert!(refused[0].contains("attach.deny"), "{ended:?}");
    // Objects that others have made are not listed, and the user is told why.
    let bpftool = need!(find_program("bpftool"));
    let other = guest.start("opensnoop");
    assert!(
        until(PATIENCE, || place::attached(&guest) > 0),
        "{:?}",
        other.stderr()
    );
    let lists = |proxy: &Proxy| {
        let mut command = proxy.command(&bpftool);
        command.args(["prog", "list"]);
        Tool::start(command).wait()
    };
    let ended = lists(&proxy);
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let told = |line: &&String| line.contains("foreign = true");
    assert_eq!(ended.stderr.iter().filter(told).count(), 1, "{ended:?}");
    drop(proxy);

    let proxy = under(&guest, EVERYTHING);
    sees(&guest, &proxy, &["execsnoop"], "/bin/true needle", "needle");
    let ended = lists(&proxy);
    assert!(!ended.stdout.is_empty(), "{ended:?}");
    other.interrupt();
    drop(proxy);

    let proxy = under(&guest, WITH_UPROBES);
    // A program of the guest's that is linked with the C library.
    sees(
        &guest,
        &proxy,
        &UPROBE,
        "/usr/sbin/opensnoop --version",
        "nsec",
    );
}

/// The libbpf tools with the arguments that they need.
const WITH_ARGUMENTS: [&[&str]; 5] = [
    &["fsdist", "-t", "ext4"],
    &["fsslower", "-t", "ext4"],
    &["funclatency", "vfs_read"],
    &["ksnoop", "trace", "vfs_read"],
    &["biostacks", "-d", "vda"],
];

/// The tools of Debian's package.
fn libbpf_tools() -> Vec<Vec<String>> {
    let mut list = Command::new("dpkg");
    let list = list.args(["-L", "libbpf-tools"]).output();
    let list = String::from_utf8(list.expect("dpkg is there").stdout).expect("text");
    let paths = list.lines().map(Path::new);
    let programs =
        paths.filter(|path| path.is_file() && path.parent().is_some_and(|of| of.ends_with("sbin")));
    let command = |path: &Path| {
        let name = path.file_name().expect("a name").to_string_lossy();
        let known = WITH_ARGUMENTS.iter().find(|words| words[0] == name);
        let words = known.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        words.unwrap_or_else(|| vec![name.into_owned()])
    };
    programs.map(command).collect()
}

/// Runs a tool for a moment.
fn outcome(guest: &Guest, proxy: &Proxy, words: &[String]) -> Ended {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let tool = Tool::start(command(proxy, &words).unwrap_or_else(|why| panic!("{why}")));
    let moment = Duration::from_millis(2500);
    let has_ended = until(moment, || !beeline_e2e::is_alive(tool.pid()));
    guest.check(OPENS);
    match has_ended {
        true => tool.wait(),
        false => tool.interrupt(),
    }
}

/// Some of them find no module, no trace of Java or no function of their kernel, with or without a
/// policy.
#[test]
#[ignore = "every libbpf tool under each policy: seven minutes"]
fn every_libbpf_tool_that_works_without_a_policy_works_with_one() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let tools = libbpf_tools();
    let run = |policy: &str| {
        let proxy = under(&guest, policy);
        let run = |words: &Vec<String>| {
            let ended = outcome(&guest, &proxy, words);
            let code = ended.status.code();
            beeline_e2e::remark(&format!("{policy}: {words:?} ends with {code:?}"));
            ended
        };
        tools.iter().map(run).collect::<Vec<_>>()
    };
    let free = run(EVERYTHING);
    assert!(free.iter().filter(|ended| ended.status.success()).count() > 30);
    let mut hindered = Vec::new();
    for policy in [OBSERVE, WITH_UPROBES] {
        for ((words, free), held) in tools.iter().zip(&free).zip(run(policy)) {
            let refused = refusals(&held);
            let is_meant = |line: &&String| policy == OBSERVE && line.contains("uprobe:");
            if !refused.is_empty() && refused.iter().all(is_meant) {
                continue;
            }
            if !refused.is_empty() || free.status.success() && !held.status.success() {
                hindered.push(format!("{words:?} under {policy}: {held:?}"));
            }
        }
    }
    assert!(hindered.is_empty(), "{}", hindered.join("\n"));
}
