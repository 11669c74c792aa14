//! `beeline ps`: lists the processes that Beeline is present in, and what sessions have in the
//! kernel.

mod in_kernel;

use std::process::ExitCode;

use beeline_runtime::detach::{Presence, SiteFacts, everywhere};
use beeline_vm_protocol::text::printable_line;
use serde_json::json;

use in_kernel::InKernel;

/// Lists every process with something of Beeline's in it.
///
/// # Errors
///
/// Fails if the list cannot be written as JSON.
pub fn ps(as_json: bool) -> anyhow::Result<ExitCode> {
    let found = everywhere();
    let in_kernel = in_kernel::sessions();
    if as_json {
        let sessions = in_kernel.iter().map(InKernel::as_value);
        let list: Vec<_> = found.iter().map(as_value).chain(sessions).collect();
        println!("{}", serde_json::to_string_pretty(&list)?);
    } else if found.is_empty() && in_kernel.is_empty() {
        println!("Beeline is in no process that you may trace.");
    } else {
        println!(
            "{:>8}  {:<16} {:>8}  {:<8} {:>5}  TOOL",
            "PID", "COMM", "SESSION", "STATE", "SITES"
        );
        for presence in &found {
            print(presence);
        }
        in_kernel.iter().for_each(InKernel::print);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(presence: &Presence) {
    let state = if presence.is_live { "live" } else { "dead" };
    let (pid, session) = (presence.pid, presence.session.pid);
    let sites = presence.sites.iter().filter(|site| is_tools(site)).count();
    println!(
        "{pid:>8}  {:<16} {session:>8}  {state:<8} {sites:>5}  {}",
        comm(pid),
        printable_line(&presence.tool)
    );
    for site in &presence.sites {
        let kind = if site.is_breakpoint {
            "breakpoint"
        } else {
            "jump"
        };
        let owner = if is_tools(site) {
            ""
        } else {
            ", Beeline's own"
        };
        let place = place(presence, site.address);
        println!("{:>10}{:#x} {kind} {place}{owner}", "", site.address);
        for program in &site.programs {
            println!("{:>12}program {}, {}", "", program.name, program.engine);
        }
    }
    print_calls(presence);
    for mapping in &presence.mappings {
        println!(
            "{:>10}{:#x}-{:#x} {}",
            "",
            mapping.start,
            mapping.end,
            mapping.path.display()
        );
    }
    if !presence.is_live {
        println!(
            "{:>10}its session was killed: the next session that comes here restores it, or `beeline detach {pid}`",
            ""
        );
    }
}

/// Prints how many `syscall` instructions are hooked, and which are not.
fn print_calls(presence: &Presence) {
    let calls = &presence.calls;
    if calls.hooked == 0 && calls.unhookable.is_empty() {
        return;
    }
    let (hooked, unhookable) = (calls.hooked, calls.unhookable.len());
    println!("{:>10}system calls: {hooked} hooked, {unhookable} not", "");
    for mapping in &calls.mappings {
        let (hooked, unhookable) = (mapping.hooked, mapping.unhookable);
        let name = match mapping.name.to_string_lossy() {
            name if name.is_empty() => "code without a file".into(),
            name => name,
        };
        println!("{:>12}{name}: {hooked} hooked, {unhookable} not", "");
    }
    for (address, why) in &calls.unhookable {
        let place = place(presence, *address);
        println!("{:>12}{address:#x} not hooked: {why}; {place}", "");
    }
    for (range, why) in &calls.unseen {
        let (start, end) = (range.start, range.end);
        println!("{:>12}{start:#x}-{end:#x} not looked through: {why}", "");
    }
}

/// Returns whether the site runs a program of the tool's. Others are Beeline's own, such as the one
/// at the C library's `sigaction`.
fn is_tools(site: &SiteFacts) -> bool {
    !site.programs.is_empty()
}

fn as_value(presence: &Presence) -> serde_json::Value {
    let (sites, own): (Vec<_>, Vec<_>) = presence.sites.iter().partition(|site| is_tools(site));
    json!({
        "pid": presence.pid,
        "comm": comm(presence.pid),
        "session": presence.session.pid,
        "live": presence.is_live,
        "tool": presence.tool,
        "own_sites": own.iter().map(|site| json!({
            "address": site.address,
            "place": place(presence, site.address),
        })).collect::<Vec<_>>(),
        "sites": sites.iter().map(|site| json!({
            "address": site.address,
            "kind": if site.is_breakpoint { "breakpoint" } else { "jump" },
            "place": place(presence, site.address),
            "programs": site.programs.iter().map(|program| json!({
                "name": program.name,
                "engine": program.engine,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "calls": json!({
            "hooked": presence.calls.hooked,
            "unhookable": presence.calls.unhookable.iter().map(|(address, why)| json!({
                "address": address,
                "place": place(presence, *address),
                "why": why,
            })).collect::<Vec<_>>(),
            "mappings": presence.calls.mappings.iter().map(|mapping| json!({
                "name": mapping.name,
                "hooked": mapping.hooked,
                "unhookable": mapping.unhookable,
            })).collect::<Vec<_>>(),
            "unseen": presence.calls.unseen.iter().map(|(range, why)| json!({
                "start": range.start,
                "end": range.end,
                "why": why,
            })).collect::<Vec<_>>(),
        }),
        "mappings": presence.mappings.iter().map(|mapping| json!({
            "start": mapping.start,
            "end": mapping.end,
            "name": mapping.path,
        })).collect::<Vec<_>>(),
    })
}

fn comm(pid: i32) -> String {
    let comm = beeline_runtime::proc::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable_line(comm.trim()).into_owned()
}

/// Returns the file and offset that an address belongs to.
fn place(presence: &Presence, address: u64) -> String {
    presence.place_of(address).unwrap_or_else(|| "?".to_owned())
}
