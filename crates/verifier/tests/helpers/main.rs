//! Every helper in programs of every type: the running kernel's answer, and the tables'.

mod call;
mod load;
mod memory;

use std::collections::HashSet;

use beeline_isa::Insn;
use beeline_uapi::HelperId;
use beeline_verifier::helpers::{Arg, Helper, Missing, Ret, helper};

use call::{Call, Given};
use load::{GPL, Loaded, PROPRIETARY, Subject, subjects};

/// The number of helpers to try: all that exist, and some more.
fn ids() -> impl Iterator<Item = HelperId> {
    (0..215).map(HelperId)
}

/// Helpers of kernels that are not locked down, or are built with them.
const ELSEWHERE: [HelperId; 2] = [HelperId::PROBE_WRITE_USER, HelperId::OVERRIDE_RETURN];

/// Returns the program types here; says why there are none, or fewer than there could be.
fn usable() -> Vec<Subject> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !release.starts_with("6.18.") {
        eprintln!(
            "skipped: the tables are those of Linux 6.18, and this is {}",
            release.trim()
        );
        return Vec::new();
    }
    let minimal = Insn::decode_all(&[0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])
        .expect("two instructions")
        .collect::<Vec<_>>();
    subjects(&minimal)
}

/// Returns the helpers that programs of these types have: each once for a type, unless an attach
/// type has another form.
fn forms(subjects: &[Subject]) -> Vec<(&Subject, &'static Helper)> {
    let mut seen = HashSet::new();
    let mut forms = Vec::new();
    for subject in subjects
        .iter()
        .filter(|subject| call::has_prologue(subject))
    {
        for found in ids().filter_map(|id| helper(id, &subject.kind, subject.target).ok()) {
            if (!found.might_sleep || subject.kind.is_sleepable())
                && seen.insert((subject.kind.prog_type, std::ptr::from_ref(found)))
            {
                forms.push((subject, found));
            }
        }
    }
    forms
}

/// The kernel's message on a call whose result was not given back.
const LEAK: &str = "BPF_EXIT instruction in main prog would lead to reference leak";

/// Collects differences, so that one run shows all.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn note(&mut self, what: String) {
        self.0.push(what);
    }

    fn about(&mut self, subject: &Subject, found: &Helper, at: usize, words: &str) {
        let name = found.id.name().unwrap_or_default();
        let (subject, arg) = (&subject.name, found.args.get(at));
        self.note(format!(
            "{subject} {name}, argument {}, {arg:?}: {words}",
            at + 1
        ));
    }

    fn report(self, tried: usize) {
        println!("{tried} programs, {} differences", self.0.len());
        assert!(self.0.is_empty(), "\n{}", self.0.join("\n"));
    }
}

#[test]
fn helpers_are_allowed_by_program_type() {
    let mut differences = Differences::default();
    let subjects = usable();
    for subject in &subjects {
        for id in ids().filter(|id| !ELSEWHERE.contains(id)) {
            let kernel = subject.load(&call::bare(id), GPL);
            let theirs = match kernel.reason() {
                words if words.starts_with("program of this type cannot use helper") => {
                    Err(Missing::NotForThisType)
                }
                words if words.starts_with("invalid func") => Err(Missing::Unknown),
                "helper call is not allowed in probe" => Err(Missing::NotAtThisTarget),
                _ => Ok(()),
            };
            let ours = helper(id, &subject.kind, subject.target).map(drop);
            if ours != theirs {
                differences.note(format!(
                    "{} #{}: {theirs:?}, not {ours:?}",
                    subject.name, id.0
                ));
            }
        }
    }
    differences.report(subjects.len() * ids().count());
}

#[test]
fn licences_and_sleep() {
    let mut differences = Differences::default();
    let mut tried = 0;
    for subject in &usable() {
        for found in ids().filter_map(|id| helper(id, &subject.kind, subject.target).ok()) {
            let name = found.id.name().unwrap_or_default();
            let unfree = subject.load(&call::bare(found.id), PROPRIETARY);
            let gpl_only = unfree
                .log
                .contains("cannot call GPL-restricted function from non-GPL compatible program");
            if gpl_only != found.gpl_only && !unfree.log.contains("must have a GPL compatible") {
                differences.note(format!("{} {name}: gpl_only is {gpl_only}", subject.name));
            }
            let awake = subject.load(&call::bare(found.id), GPL);
            let refused = awake
                .log
                .contains("helper call might sleep in a non-sleepable prog");
            if refused != (found.might_sleep && !subject.kind.is_sleepable()) {
                differences.note(format!("{} {name}: might_sleep is {refused}", subject.name));
            }
            tried += 2;
        }
    }
    differences.report(tried);
}

/// The value for one argument, and the tables' answer to it.
struct Trial {
    given: Given,
    /// `None`: accepted. `Some`: refused, with these words.
    refusal: Option<String>,
}

fn trials(found: &Helper, at: usize) -> Vec<Trial> {
    let register = at + 1;
    let trial = |given, refusal: Option<String>| Trial { given, refusal };
    let not = |given, kinds: &str| trial(given, Some(format!("R{register} type={kinds}")));
    let scalar = |kinds: &str| not(Given::Number(1), &format!("scalar expected={kinds}"));
    let null = |or_null: bool, kinds: &str| {
        let words = format!("R{register} type=scalar expected={kinds}");
        trial(Given::Null, (!or_null).then_some(words))
    };
    const MEMORY: &str = "fp, pkt, pkt_meta, map_key, map_value";
    const SOCKS: &str = "sock_common, sock, tcp_sock, xdp_sock";
    const OBJECTS: &str = "ptr_, trusted_ptr_, rcu_ptr_";
    match found.args[at] {
        Arg::Any => vec![trial(Given::Number(1), None), trial(Given::Task, None)],
        Arg::Context => vec![
            scalar("ctx"),
            null(false, "ctx"),
            not(Given::Stack, "fp expected=ctx"),
        ],
        Arg::ContextOrNull => vec![scalar("ctx"), null(true, "ctx")],
        Arg::Map => vec![scalar("map_ptr"), null(false, "map_ptr")],
        Arg::Key | Arg::Value | Arg::UninitValue => vec![scalar(MEMORY), null(false, MEMORY)],
        Arg::ValueOrNull => vec![scalar(MEMORY), null(true, MEMORY)],
        Arg::Mem { or_null, .. } => vec![scalar(MEMORY), null(or_null, MEMORY)],
        Arg::Size => vec![trial(
            Given::Null,
            Some(format!("R{register} invalid zero-sized read")),
        )],
        Arg::SizeOrZero => vec![trial(Given::Null, None)],
        Arg::AllocSizeOrZero => vec![
            trial(Given::Null, None),
            trial(
                Given::Unknown,
                Some(format!("R{register} is not a known constant")),
            ),
        ],
        Arg::SpinLock | Arg::KptrXchgDest => vec![scalar("map_value, ptr_")],
        Arg::Timer | Arg::ConstStr => vec![
            scalar("map_value"),
            not(Given::Stack, "fp expected=map_value"),
        ],
        Arg::SockCommon => vec![
            scalar(SOCKS),
            null(false, SOCKS),
            not(Given::Task, &format!("trusted_ptr_ expected={SOCKS}")),
        ],
        Arg::Socket { or_null } => vec![scalar("sock"), null(or_null, "sock")],
        Arg::BtfSockCommon { or_null, .. } => vec![
            scalar(&format!("{SOCKS}, ptr_, trusted_ptr_")),
            null(or_null, SOCKS),
            trial(
                Given::Task,
                Some(format!(
                    "R{register} is of type task_struct but sock_common is expected"
                )),
            ),
        ],
        Arg::Btf { name, or_null } => {
            let words = format!("R{register} is of type task_struct but {name} is expected");
            vec![
                scalar(OBJECTS),
                null(or_null, OBJECTS),
                trial(Given::Task, (name != "task_struct").then_some(words)),
            ]
        }
        Arg::PerCpuBtf => vec![scalar("percpu_ptr_, percpu_rcu_ptr_, percpu_trusted_ptr_")],
        Arg::RingbufMem => vec![scalar("ringbuf_mem")],
        Arg::Func => vec![scalar("func")],
        Arg::Stack { or_null } => vec![scalar("fp"), null(or_null, "fp")],
        Arg::Dynptr(_) => vec![scalar("fp, dynptr_ptr")],
        Arg::KptrXchgSource => vec![],
    }
}

/// Returns whether the kernel says that all arguments up to this one are good.
fn is_content(kernel: &Loaded, at: usize) -> bool {
    // The checks that follow those of all arguments.
    const LATER: [&str; 7] = [
        "cannot pass map_type",
        "expected prog array map for tail call",
        LEAK,
        "get_local_storage() doesn't support non-zero flags",
        "Unreleased reference",
        "func bpf_get_func_ip#173",
        "Unsupported reg type fp for bpf_dynptr_from_mem data",
    ];
    let words = kernel.reason();
    let is_behind =
        (at + 2..=5).any(|register| words.starts_with(&format!("R{register} !read_ok")));
    kernel.accepted || is_behind || LATER.iter().any(|later| words.starts_with(later))
}

/// Returns valid arguments, up to and without this one; `None` if we cannot give that.
fn right(call: &Call<'_>, upto: usize) -> Option<Vec<Given>> {
    let given = vec![Given::Right; upto];
    call.program(&given).map(|_| given)
}

#[test]
fn arguments_get_the_kernels_verdicts() {
    let subjects = usable();
    let mut differences = Differences::default();
    let mut tried = 0;
    for (subject, found) in forms(&subjects) {
        let Some(call) = Call::new(subject, found) else {
            differences.note(format!("no map for #{}", found.id.0));
            continue;
        };
        let name = found.id.name().unwrap_or_default();
        let name = format!("{} {name}", subject.name);
        for at in 0..found.args.len() {
            let Some(before) = right(&call, at) else {
                break;
            };
            for Trial { given, refusal } in trials(found, at) {
                let mut all = before.clone();
                all.push(given);
                // A null pointer is good for no bytes.
                all.extend(
                    (at + 1..found.args.len()).map(|later| match found.args[later] {
                        Arg::SizeOrZero if given == Given::Null && later == at + 1 => Given::Null,
                        _ => Given::Right,
                    }),
                );
                let insns = call.program(&all).or_else(|| call.program(&all[..=at]));
                let kernel = subject.load(&insns.expect("was given before"), GPL);
                tried += 1;
                let agreed = match &refusal {
                    None => is_content(&kernel, at),
                    Some(refusal) => kernel.reason().starts_with(refusal.as_str()),
                };
                if !agreed {
                    differences.note(format!(
                        "{name} argument {}, {:?}, {given:?}: {}",
                        at + 1,
                        found.args[at],
                        kernel.reason()
                    ));
                }
            }
        }
    }
    differences.report(tried);
}

/// Checks the number of arguments, no more and no fewer, and the result.
#[test]
fn counts_and_results() {
    let subjects = usable();
    let mut differences = Differences::default();
    let mut tried = 0;
    for (subject, found) in forms(&subjects) {
        let name = found.id.name().unwrap_or_default();
        let count = found.args.len();
        let call = Call::new(subject, found).expect("a map");
        let Some(all) = right(&call, count) else {
            continue;
        };
        let kernel = subject.load(&call.program(&all).expect("was given before"), GPL);
        tried += 1;
        if !is_content(&kernel, count) {
            differences.note(format!("{} {name}: {}", subject.name, kernel.reason()));
        }
        let result = returned(&kernel.log, found.id);
        if (kernel.accepted || kernel.reason().starts_with(LEAK)) && !is_result(found.ret, result) {
            differences.note(format!(
                "{} {name}: {:?}, {result:?}",
                subject.name, found.ret
            ));
        }
        if count >= 2 {
            let fewer = call.program(&all[..count - 1]).expect("was given before");
            let kernel = subject.load(&fewer, GPL);
            if kernel.reason() != format!("R{count} !read_ok") {
                differences.note(format!(
                    "{} {name} has fewer: {}",
                    subject.name,
                    kernel.reason()
                ));
            }
        }
    }
    differences.report(tried);
}

/// Returns the log's description of r0 after the last call of a helper.
fn returned(log: &str, id: HelperId) -> Option<&str> {
    let lines: Vec<&str> = log.lines().collect();
    let is_call =
        |line: &&str| line.contains("(85) call bpf_") && !line.starts_with("mark_precise");
    let called = format!("#{} ", id.0);
    let at = lines
        .iter()
        .rposition(|line| is_call(line) && format!("{line} ").contains(&called))?;
    // Beside the call, or on a line of its own, with the next instruction's number, if more was
    // said of the call.
    let beside = lines[at].split_once("; ").map(|(_, state)| state);
    let below = || {
        let (number, state) = lines[at + 1..]
            .iter()
            .find(|line| !line.starts_with("mark_precise"))?
            .split_once(": ")?;
        (number.parse::<u32>().is_ok() && !state.starts_with('(')).then_some(state)
    };
    let state = beside.or_else(below)?;
    state
        .split(' ')
        .find_map(|word| word.strip_prefix("R0=").or(word.strip_prefix("R0_w=")))
}

fn is_result(ret: Ret, printed: Option<&str>) -> bool {
    let starts = |with: &str| printed.is_some_and(|printed| printed.starts_with(with));
    let nullable = |or_null: bool, name: &str| {
        starts(&format!("{name}{}(", if or_null { "_or_null" } else { "" }))
    };
    match ret {
        Ret::Integer => starts("scalar("),
        Ret::Void => printed.is_none(),
        Ret::Value { or_null } => nullable(or_null, "map_value"),
        Ret::SocketOrNull => nullable(true, "sock"),
        Ret::SockCommonOrNull => nullable(true, "sock_common"),
        Ret::TcpSockOrNull => nullable(true, "tcp_sock"),
        Ret::RingbufMemOrNull => nullable(true, "ringbuf_mem"),
        Ret::DynptrMemOrNull => nullable(true, "mem"),
        Ret::Btf {
            name,
            or_null,
            trusted,
        } => starts(&format!(
            "{}ptr_{}{name}(",
            if trusted { "trusted_" } else { "" },
            if or_null { "or_null_" } else { "" }
        )),
        Ret::MemOrBtf { .. } | Ret::KptrOrNull => false,
    }
}
