//! The parts of manual pages that the command's own help lacks.

/// The additions to one command's page. In all texts, words between backticks are set in bold.
pub struct Text {
    /// The paragraphs under DESCRIPTION.
    pub description: &'static [&'static str],
    /// The text under EXAMPLES.
    pub examples: &'static [Example],
    /// The sections behind the examples: a heading each, and its paragraphs.
    pub sections: &'static [Section],
    /// Further pages, with their sections of the manual.
    pub see_also: &'static [&'static str],
}

/// A purpose, and the lines to type.
pub type Example = (&'static str, &'static str);
/// A heading and its paragraphs.
pub type Section = (&'static str, &'static [&'static str]);

/// The sections of a command that says nothing else.
pub const COMMON: &[Section] = &[EXIT_STATUS];

/// Returns the additions to the page of that name, if there are some.
pub fn text(page: &str) -> Option<&'static Text> {
    let found = TEXTS.iter().find(|(name, _)| *name == page);
    found.map(|(_, text)| text)
}

const EXIT_STATUS: Section = (
    "EXIT STATUS",
    &[
        "0 if the command did its work; 1 if it failed, with the reason on standard error; 2 if its \
       options are wrong.",
    ],
);

const STATUS_OF_THE_TOOL: Section = (
    "EXIT STATUS",
    &[
        "That of the tool, or 128 and the signal's number if a signal has ended it. 127 if the tool \
       was not found, 126 if it cannot be run, 125 if Beeline cannot intercept its calls; 1 for \
       other failures of Beeline's, with the reason on standard error; 2 if its options are wrong.",
    ],
);

const STATUS_OF_THE_DOCTOR: Section = (
    "EXIT STATUS",
    &[
        "0 if `beeline run` works fully here, for the process if one is named; 1 if something that \
         it needs is missing; 2 if the options are wrong.",
    ],
);

const ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[
        "`BEELINE_ENGINE` is the default of `--engine`.",
        "`BEELINE_LOG` has a session log its decisions on standard error: `info` for programs and \
         processes, `debug` for each hooked site, `trace` for each bpf(2) command of the tool, or \
         directives such as `beeline_runtime::target=debug`.",
        "`BEELINE_CACHE` is the directory for compiled code. If it is empty, none is kept.",
        "`XDG_RUNTIME_DIR` has the session's own small files, unless it is another user's.",
    ],
);

const FILES: Section = (
    "FILES",
    &[
        "`/var/cache/beeline`, and `~/.cache/beeline` for users other than root: compiled code, and \
         large files of guests' kernels. Directories and files that another user could write are \
         not used, and Beeline says so.",
        "`beeline-llvm`, beside `beeline`: the optimizing compiler. Without it, programs run the \
         baseline compiler's code.",
    ],
);

const TEXTS: &[(&str, Text)] = &[
    (
        "beeline",
        Text {
            description: &[
                "Beeline runs eBPF programs where the event happens: inside the traced process. An \
                 unmodified eBPF tool (bpftrace, a tool of bcc or libbpf, a Go program) is started \
                 under `beeline run`. Its programs are verified, compiled, mapped into the processes \
                 that it traces, and called by a jump at the probed function. That takes no kernel \
                 trap, no kernel BPF and, for the user's own processes, no root.",
                "With `--guest`, the programs run in the kernel of a virtual machine instead, in \
                 which `beeline guest` runs.",
            ],
            examples: &[
                (
                    "Count the calls of malloc in process 5495:",
                    "beeline run -- bpftrace -p 5495 -e \\\n    'uprobe:/lib/x86_64-linux-gnu/libc.so.6:malloc { @[comm] = count(); }'",
                ),
                (
                    "List where Beeline is, and how each site is hooked:",
                    "beeline ps",
                ),
            ],
            sections: &[EXIT_STATUS, ENVIRONMENT, FILES],
            see_also: &["bpf(2)", "seccomp_unotify(2)", "ptrace(2)"],
        },
    ),
    (
        "beeline-doctor",
        Text {
            description: &[
                "Tries what Beeline does, on processes that it makes for that, and prints a line for \
                 each check: `ok`, `warn` for what `beeline run` does without or with less, or `no` \
                 for what it needs. The last lines say what does not work and the one thing to \
                 change.",
                "With a process, it also checks that process: its owner, tracer, seccomp filters, \
                 namespaces and sessions. It holds the process for a moment, as a session would.",
                "`--json` prints an object: `checks` is an array of objects with `name`, `status`, \
                 `detail` and `fix`; `conclusion` is an object with `works`, `text` and `fix`.",
            ],
            examples: &[
                (
                    "Find out what a container allows:",
                    "docker run --rm IMAGE beeline doctor",
                ),
                (
                    "Find out why process 5495 cannot be traced:",
                    "beeline doctor 5495",
                ),
            ],
            sections: &[STATUS_OF_THE_DOCTOR],
            see_also: &[
                "beeline-run(1)",
                "ptrace(2)",
                "seccomp(2)",
                "capabilities(7)",
            ],
        },
    ),
    (
        "beeline-run",
        Text {
            description: &[
                "Starts the tool and answers its bpf(2) and perf_event_open(2) calls in place of \
                 the kernel. Options before the tool's name are Beeline's, those behind it are the \
                 tool's. Ctrl-C goes to the tool. When it ends, each traced process gets its code \
                 back, byte for byte, and goes on.",
                "Some tools ask for every process, even if they are given one with `-p`. Beeline \
                 then traces the process that the tool's own `-p` names or, with `bpftrace -c`, the \
                 command that the tool starts. Without either, it traces all processes that the \
                 user may trace and that map the probed file.",
                "What Beeline does not serve gets the errno of an older kernel, and a line on \
                 standard error.",
            ],
            examples: &[
                (
                    "Name the files that a command opens:",
                    "beeline run -- bpftrace -c \"/bin/cat /etc/hostname\" -e \\\n    \
                     'tracepoint:syscalls:sys_enter_openat { printf(\"%s\\n\", str(args->filename)); }'",
                ),
                (
                    "Measure how long calls of malloc take, with a tool of bcc:",
                    "beeline run -- funclatency -p 5495 c:malloc",
                ),
                (
                    "Run the programs in a virtual machine's kernel:",
                    "beeline run --guest vsock:3 -- bpftrace -e \\\n    'kprobe:vfs_read { @[comm] = count(); }'",
                ),
            ],
            sections: &[STATUS_OF_THE_TOOL, ENVIRONMENT, FILES],
            see_also: &["beeline-start(1)", "beeline-ps(1)", "beeline-detach(1)"],
        },
    ),
    (
        "beeline-start",
        Text {
            description: &[
                "Starts a command, and holds it until the running sessions have reached it: they \
                 see it from its first system call on. If none comes in time, the command runs \
                 untraced, and Beeline says so.",
                "The command has also asked to be traced by any process of its user \
                 (`PR_SET_PTRACER`), so that later sessions may trace it where \
                 `kernel.yama.ptrace_scope` is 1. There, `libbeeline_start.so` is added to its \
                 `LD_PRELOAD`, so that its children ask as well.",
            ],
            examples: &[
                (
                    "Trace a server from its start, while a session runs in another terminal:",
                    "beeline start -- /usr/sbin/nginx -g 'daemon off;'",
                ),
                (
                    "Start a server that is to be traced later, on a machine with Yama:",
                    "beeline start --wait 0 -- ./server",
                ),
            ],
            sections: &[
                (
                    "EXIT STATUS",
                    &[
                        "That of the command, or 128 and the signal's number if a signal has ended it; 1 if \
                         the command cannot be started; 2 if the options are wrong.",
                    ],
                ),
                (
                    "FILES",
                    &[
                        "`libbeeline_start.so`, beside `beeline` or in `../lib/beeline`: has a program ask \
                         to be traced when it is loaded, and when it forks.",
                    ],
                ),
            ],
            see_also: &["beeline-run(1)", "prctl(2)", "ptrace(2)"],
        },
    ),
    (
        "beeline-ps",
        Text {
            description: &[
                "Lists the processes that sessions are present in: the session and its tool, each \
                 hooked site with its hook (a jump or a breakpoint) and the programs that run \
                 there, system calls that cannot be hooked, and what is mapped. It is read from the \
                 processes themselves, so it also shows what a killed session has left.",
            ],
            examples: &[(
                "List the processes that sessions are in, for a script:",
                "beeline ps --json",
            )],
            sections: COMMON,
            see_also: &["beeline-detach(1)"],
        },
    ),
    (
        "beeline-compile",
        Text {
            description: &[
                "Compiles the programs of an object file ahead of time. `beeline prog run` and \
                 `beeline run --aot` take the file, and need no compiler then. The file is as \
                 dangerous as the programs in it: it is used only if no other user but root could \
                 write it.",
            ],
            examples: &[(
                "Compile with the optimizing compiler, and use the code in a session:",
                "beeline compile --engine llvm tool.bpf.o -o tool.aot\nbeeline run --aot tool.aot -- ./tool",
            )],
            sections: COMMON,
            see_also: &["beeline-prog-run(1)", "beeline-run(1)"],
        },
    ),
    (
        "beeline-verify",
        Text {
            description: &[
                "Says of each program in an object file if it is accepted; if not, why, at which \
                 instruction and source line, and what to do. Beeline's verifier gives the kernel's \
                 verdicts and log, and needs no privilege.",
            ],
            examples: &[
                (
                    "Check a file before it is shipped:",
                    "beeline verify tool.bpf.o",
                ),
                (
                    "Compare with the running kernel, as root:",
                    "beeline verify --verifier both tool.bpf.o",
                ),
            ],
            sections: &[(
                "EXIT STATUS",
                &[
                    "0 if all programs are accepted, 1 if one is not, 2 if the file cannot be used or \
                   the options are wrong.",
                ],
            )],
            see_also: &[],
        },
    ),
    (
        "beeline-prog",
        Text {
            description: &[
                "Works on single programs of an object file, without a tool and without anything to \
                 attach to.",
            ],
            examples: &[],
            sections: COMMON,
            see_also: &["beeline-compile(1)", "beeline-verify(1)"],
        },
    ),
    (
        "beeline-prog-run",
        Text {
            description: &[
                "Runs a program and prints its result and the time that it takes. Register r1 points \
                 to the bytes of `--data`. The interpreter checks every access of memory.",
            ],
            examples: &[(
                "Measure a program over a million runs:",
                "beeline prog run filter.bpf.o --section uprobe --repeat 1000000",
            )],
            sections: COMMON,
            see_also: &[],
        },
    ),
    (
        "beeline-prog-disasm",
        Text {
            description: &[
                "Prints a program's instructions with their source lines, and with `--jited` the \
                 machine code beside them.",
            ],
            examples: &[(
                "Show the machine code that the optimizing compiler makes:",
                "beeline prog disasm tool.bpf.o --jited --engine llvm",
            )],
            sections: COMMON,
            see_also: &[],
        },
    ),
    (
        "beeline-detach",
        Text {
            description: &[
                "Restores a process's code and unmaps everything of Beeline's. If the session runs \
                 on, it does not come back to that process.",
                "A session that was killed leaves its processes hooked. They run on correctly, and \
                 the next session that comes to one clears it; `--dead` does so at once, in all \
                 processes that the user may trace.",
            ],
            examples: &[("Clean up after killed sessions:", "beeline detach --dead")],
            sections: COMMON,
            see_also: &["beeline-ps(1)"],
        },
    ),
    (
        "beeline-guest",
        Text {
            description: &[
                "Runs in a virtual machine, as root, and lets tools on its host use this machine's \
                 kernel by `beeline run --guest`. Without `--policy` hosts may do everything that \
                 root may do here, and Beeline warns of that.",
                "`beeline-guest` is the same command in a smaller static file of its own.",
            ],
            examples: &[(
                "Let the host observe this machine, and log what it does:",
                "beeline guest --policy observe --audit /var/log/beeline/guest.json",
            )],
            sections: COMMON,
            see_also: &["beeline-run(1)", "beeline-inject(1)"],
        },
    ),
    (
        "beeline-guests",
        Text {
            description: &[
                "Lists the virtual machines of this host that it finds by the command lines of QEMU, Cloud \
                 Hypervisor, Firecracker and vhost-device-vsock, and in libvirt's directories. Each \
                 address where a proxy may listen is asked, all at once and for a second: a proxy's \
                 audit log notes that. A serial port is asked only if `beeline` is in its name and no \
                 client is connected, and a socket only if it belongs to the user of the process that \
                 names it. Monitors (`--qmp`) are not connected to.",
            ],
            examples: &[(
                "Print the addresses that serve tools:",
                "beeline guests --json | jq -r '.[].guests[] | select(.state == \"serves\").address'",
            )],
            sections: COMMON,
            see_also: &["beeline-guest(1)", "beeline-run(1)"],
        },
    ),
    (
        "beeline-inject",
        Text {
            description: &[
                "Loads programs of an object file into the kernel of a virtual machine in which \
                 `beeline guest` runs, attaches them as their sections say, and prints the records \
                 of their rings and the changes in their maps, a line each, until it is ended.",
            ],
            examples: &[(
                "Print what programs report for ten seconds, as JSON:",
                "beeline inject --guest vsock:3 --duration 10 --json watch.bpf.o",
            )],
            sections: &[(
                "EXIT STATUS",
                &[
                    "0 at the end; 1 if the guest cannot be reached, refuses a program or is lost; 2 if \
                   the file cannot be used or the options are wrong.",
                ],
            )],
            see_also: &["beeline-guest(1)"],
        },
    ),
    (
        "beeline-vcpu-pin",
        Text {
            description: &[
                "Pins virtual CPUs of a machine of QEMU's to CPUs of the host where threads in the \
                 guest are bound to them, until it is ended.",
            ],
            examples: &[(
                "Give the guest's bound threads the CPUs 4 to 7:",
                "beeline vcpu-pin --guest vsock:3 --qmp /run/vm.qmp --cpus 4-7",
            )],
            sections: COMMON,
            see_also: &["beeline-guest(1)"],
        },
    ),
];
