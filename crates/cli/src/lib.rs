//! The `beeline` command, for the program of that name and for what makes its manual pages.

mod compile;
mod detach;
mod doctor;
mod ending;
mod engines;
mod fallback;
mod fatal;
mod guest_commands;
mod guest_load;
mod guests;
mod log;
mod memory;
mod preload;
mod prog;
mod proxy;
mod ps;
mod run;
mod run_guest;
mod signals;
mod stacks;
mod start;
mod vcpu_pin;
mod verify;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use beeline_runtime::{Isolation, Place, Rules, SystemCalls};
use beeline_verifier::program::Policy;
use beeline_vm_protocol::text::printable;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};

/// Run eBPF tools where the event happens: inside the traced process, without a kernel trap.
#[derive(Debug, Parser)]
#[command(name = "beeline", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Where the programs of a tool run.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Programs {
    #[default]
    Auto,
    User,
    Functions,
    Kernel,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an eBPF tool: its programs run in user space, inside the processes it traces
    Run {
        /// Reach every process that the tool asks for, even if its command line names one with -p
        #[arg(long, conflicts_with = "pid")]
        all: bool,
        /// Reach only this process when the tool asks for every process (may be repeated; the
        /// default is the PID that the tool's own -p names)
        #[arg(long)]
        pid: Vec<i32>,
        /// Let programs change what system calls do (bpf_override_return, fmod_ret), write into the
        /// processes that they run in (bpf_probe_write_user), and decide in the kernel about
        /// packets, sockets and permissions (XDP, tc, cgroups, LSM)
        #[arg(long = "unsafe")]
        destructive: bool,
        /// Let the processes of all users share the memory of maps and events. Each can then read
        /// and forge what programs collect in the others; maps that cannot be kept apart work for
        /// all
        #[arg(long)]
        no_isolation: bool,
        /// Where programs run. `auto`: in the traced processes; those at the kernel's own events
        /// (tracepoints, samples, kprobes) in this machine's kernel, which takes CAP_BPF and
        /// CAP_PERFMON. `user`: never in the kernel. `functions`: as `auto`, but those at system
        /// calls run in the kernel too, for the calls of all processes and of the tool itself.
        /// `kernel`: all of them, as without Beeline
        #[arg(long = "where", value_enum, default_value_t)]
        programs: Programs,
        /// The way by which the callers of a function are found, for stack traces
        #[arg(long, value_name = "WAY", default_value = "unwind-tables")]
        stacks: stacks::Way,
        #[command(flatten)]
        engines: engines::Options,
        #[command(flatten)]
        memory: memory::Options,
        #[command(flatten)]
        place: run_guest::Where,
        /// The tool and its arguments
        #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
        tool: Vec<OsString>,
    },
    /// Start a command so that the running sessions see it from its first system call on, and that
    /// later ones may trace it where Yama lets only a process's ancestors do so
    Start {
        /// Milliseconds to wait for a session to reach it; with 0 it begins at once
        #[arg(long, default_value_t = 1000)]
        wait: u64,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },
    /// List the processes that Beeline is present in, and what it has mapped and hooked there
    Ps {
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Compile an object file's programs, for machines without a compiler
    Compile(compile::Arguments),
    /// Report for each program of an object file if it is accepted, and the reason if not
    Verify(verify::Arguments),
    /// Run programs of an object file for their result, or list them
    #[command(subcommand)]
    Prog(prog::Command),
    /// Take Beeline out of a process: restore its code and unmap everything
    Detach {
        /// The process
        #[arg(required_unless_present = "dead", conflicts_with = "dead")]
        pid: Option<i32>,
        /// Remove the leftovers of killed sessions from all processes that you may trace
        #[arg(long)]
        dead: bool,
    },
    /// Report what works here and what does not, and the one thing to change; with a process, if
    /// that one can be traced
    Doctor(doctor::Arguments),
    /// Serve tools that the host of this virtual machine runs with `beeline run --guest`
    Guest(beeline_vm_proxy::Options),
    /// List the virtual machines of this host, and which of them serve tools: by which address, and
    /// under which policy
    Guests {
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Run programs of an object file in a virtual machine's kernel, and print what they write and
    /// what changes in their maps
    Inject(guest_load::Arguments),
    /// Let the kernel make the calls of processes that a tool has left behind: started by `beeline
    /// run`
    #[command(hide = true, name = fallback::COMMAND)]
    Fallback,
    /// Pin a virtual machine's CPUs to CPUs of this host, if threads in it are bound to them
    VcpuPin(vcpu_pin::Arguments),
}

/// Returns the definition of all commands and options.
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// Carries out the command that this process was started with.
pub fn main() -> ExitCode {
    memory::reserve_little();
    let arguments = Arguments::parse();
    beeline_trusted_dir::report_to(say);
    if let Err(why) = log::start() {
        say(&why);
        return ExitCode::FAILURE;
    }
    let outcome = match arguments.command {
        Command::Run {
            all,
            pid,
            destructive,
            no_isolation,
            programs,
            stacks,
            engines,
            memory,
            place,
            tool,
        } => match &place.guest {
            Some(address) => run_guest::run(&tool, address, &place),
            None if matches!(programs, Programs::Kernel) => {
                let limits = all || !pid.is_empty() || no_isolation;
                run::run_in_kernel(&tool, limits)
            }
            None => {
                let rules = Rules {
                    policy: match destructive {
                        true => Policy::AllowDestructive,
                        false => Policy::ObserveOnly,
                    },
                    isolation: match no_isolation {
                        true => Isolation::None,
                        false => Isolation::ByUser,
                    },
                    place: match programs {
                        Programs::Auto | Programs::Functions => Place::Auto,
                        Programs::User | Programs::Kernel => Place::User,
                    },
                    system_calls: match programs {
                        Programs::Functions => SystemCalls::InKernel,
                        _ => SystemCalls::InProcesses,
                    },
                    stacks: stacks.into(),
                };
                run::run(tool, all, pid, rules, &engines, &memory)
            }
        },
        Command::Start { wait, command } => start::start(&command, Duration::from_millis(wait)),
        Command::Ps { json } => {
            end_with_the_reader();
            ps::ps(json)
        }
        Command::Doctor(arguments) => {
            end_with_the_reader();
            doctor::doctor(&arguments)
        }
        Command::Compile(arguments) => compile::compile(&arguments),
        Command::Verify(arguments) => {
            end_with_the_reader();
            verify::verify(&arguments)
        }
        Command::Prog(command) => {
            end_with_the_reader();
            prog::prog(&command)
        }
        Command::Detach { pid: Some(pid), .. } => detach::detach(pid),
        Command::Detach { pid: None, .. } => detach::detach_dead(),
        Command::Guests { json } => {
            end_with_the_reader();
            guests::guests(json)
        }
        Command::Inject(arguments) => guest_load::inject(&arguments),
        Command::Fallback => fallback::serve(),
        Command::VcpuPin(arguments) => vcpu_pin::pin(&arguments),
        Command::Guest(options) => {
            beeline_vm_proxy::serve(&options, say).map(|()| ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        say(&in_words(&error));
        ExitCode::FAILURE
    })
}

/// Returns an error with its causes, except for those that it has reported itself.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain() {
        let cause = match cause.downcast_ref::<std::io::Error>() {
            Some(cause) if words.contains(&cause.to_string()) => continue,
            Some(cause) => beeline_inject::with_remedy(cause),
            None => cause.to_string(),
        };
        if !words.contains(&cause) {
            let between = if words.is_empty() { "" } else { ": " };
            words = format!("{words}{between}{cause}");
        }
    }
    words
}

/// Lets `beeline ps | head` end quietly. Not for a session, which must clean up.
fn end_with_the_reader() {
    // SAFETY: this only sets a disposition; no handler of ours is involved.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Prints one line for the user on stderr, apart from the tool's output.
///
/// Words in it may be a file's, a process's or a guest's: they cannot control the terminal.
fn say(line: &str) {
    let line = printable(line);
    let mut stderr = std::io::stderr();
    // Even if nothing reads it any more, there is still a session to clean up.
    let _ = if stderr.is_terminal() {
        writeln!(stderr, "\x1b[1mbeeline:\x1b[0m {line}")
    } else {
        writeln!(stderr, "beeline: {line}")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks that clap makes in builds for debugging only.
    #[test]
    fn options_do_not_contradict_each_other() {
        definition().debug_assert();
    }
}
