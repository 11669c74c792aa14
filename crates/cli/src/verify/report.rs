//! Prints verdicts for people and for scripts.

use beeline_object::{AttachTarget, Line, Object, ObjectProgram};
use beeline_uapi::{Errno, HelperId, MapType, ProgramType};
use beeline_verifier::verdict::ProgramSummary;
use beeline_vm_protocol::text::printable;
use serde_json::{Value, json};

use super::hints::hint;
use super::target::replaces;
use super::{Judgement, Verdict, VerifierName};
use crate::prog::disasm::instruction;

/// A program with the judgements on it.
pub struct Judged<'a> {
    pub object: &'a Object,
    pub program: &'a ObjectProgram,
    pub verifier: VerifierName,
    /// Beeline's judgement, unless only the kernel was asked.
    pub first: &'a Judgement,
    /// The kernel's judgement, beside Beeline's.
    pub other: Option<&'a Judgement>,
    pub with_log: bool,
}

impl Judged<'_> {
    /// Returns whether all verifiers that looked at it accept it.
    pub fn is_accepted(&self) -> bool {
        let refuses = |it: &Judgement| it.verdict == Verdict::Reject;
        self.first.verdict == Verdict::Accept && !self.other.is_some_and(refuses)
    }

    /// Returns whether both have a verdict, and disagree.
    pub fn differ(&self) -> bool {
        self.other.is_some_and(|other| {
            other.verdict != Verdict::Unknown && other.verdict != self.first.verdict
        })
    }

    fn line(&self, judgement: &Judgement) -> Option<&Line> {
        let insn = judgement.insn?;
        let mut lines = self.program.lines.iter().rev();
        lines.find(|line| line.insn <= insn && line.line > 0)
    }

    fn hint(&self, judgement: &Judgement) -> Option<String> {
        if judgement.verdict == Verdict::Accept {
            return None;
        }
        if let AttachTarget::Missing(why) = &self.program.target {
            if !replaces(self.program) {
                return Some(format!(
                    "{why}; say what it attaches to by --attach, or behind the section's slash"
                ));
            }
            if judgement.reason == "Tracing programs must provide btf_id" {
                return Some(
                    "no program of the file has the function that it replaces; name one by --target FILE:PROGRAM".to_owned(),
                );
            }
        }
        if self.program.kind.prog_type == ProgramType::UNSPEC {
            let section = &self.program.section;
            return Some(format!(
                "libbpf knows no kind of program by the section's name {section}; call it after what the program is for, such as uprobe, tp/... or xdp"
            ));
        }
        let function = judgement.reason.strip_prefix("invalid func unknown#");
        let function = function.and_then(|it| it.parse().ok());
        if let Some(why) = function.and_then(|it| self.object.why_absent(it)) {
            return Some(why.to_owned());
        }
        let lacks = |(insn, _): &&(usize, String)| Some(*insn) == judgement.insn;
        if let Some((_, what)) = self.program.unrelocated.iter().find(lacks) {
            return Some(format!(
                "the kernel has no {what}, or not one alone (CO-RE): test with bpf_core_field_exists() or its like before"
            ));
        }
        if let Some(name) = self.map_of_unknown_maps(judgement) {
            return Some(format!(
                "the file does not say what maps {name} holds, so nothing is known of them: describe one as its values (__array)"
            ));
        }
        let known = hint(&judgement.reason, judgement.errno);
        let unknown = || (!self.with_log).then_some("-v prints the path that led there");
        known.or_else(unknown).map(str::to_owned)
    }

    /// Returns the map of maps with the element that was used, if the tool sets its kind of maps
    /// when it runs.
    fn map_of_unknown_maps(&self, judgement: &Judgement) -> Option<&str> {
        // Beeline takes an element for a value; the kernel does not make such a map.
        let is_used = judgement
            .reason
            .ends_with("type=map_value expected=map_ptr");
        let found = self.object.maps.iter().find(|map| {
            let is_of_maps = matches!(map.map_type, MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS);
            let name = &map.name;
            let said = is_used && judgement.state.contains(&format!("map={name},"))
                || judgement.reason.starts_with(&format!("map {name} "));
            is_of_maps && map.inner.is_none() && said
        });
        found.map(|map| map.name.as_str())
    }

    fn instruction(&self, insn: usize) -> Option<String> {
        let insns = self.program.insns.get(insn..)?;
        let first = insns.first()?;
        let slots = if first.is_imm64() { 2 } else { 1 };
        Some(format!(
            "({:02x}) {}",
            first.code,
            instruction(self.object, insns.get(..slots)?)
        ))
    }
}

/// Prints for people.
pub fn print(judged: &Judged<'_>) {
    let program = judged.program;
    // Names and the words of verifiers on them are the file's.
    let named = format!("{} ({})", program.section, program.name);
    println!("{}  {}", word(judged.first.verdict), printable(&named));
    let name = |it| match it {
        VerifierName::Kernel => "kernel",
        VerifierName::Beeline | VerifierName::Both => "beeline",
    };
    match judged.other {
        None => print_judgement(judged, judged.first, None),
        Some(other) if judged.differ() => {
            println!("  beeline and the kernel differ:");
            print_judgement(judged, judged.first, Some(name(judged.verifier)));
            println!("  kernel: {}", word(other.verdict));
            print_judgement(judged, other, Some("kernel"));
        }
        Some(other) => {
            print_judgement(judged, judged.first, None);
            if other.reason != judged.first.reason {
                println!("  kernel: {}", printable(&because(other)));
            }
        }
    }
}

fn print_judgement(judged: &Judged<'_>, judgement: &Judgement, heading: Option<&str>) {
    let indent = if heading.is_some() { "    " } else { "  " };
    let say = |line: &str| println!("{indent}{}", printable(line));
    if judgement.verdict != Verdict::Accept {
        say(&because(judgement));
        if let Some(insn) = judgement.insn {
            let text = judged.instruction(insn).unwrap_or_default();
            say(&format!("at insn {insn}: {text}"));
        }
        if let Some(line) = judged.line(judgement) {
            let place = format!("from {}:{}: {}", line.file, line.line, line.text);
            // Some files do not have the text.
            say(place.trim_end_matches(": "));
        }
        if !judgement.state.is_empty() {
            say(&format!("with {}", judgement.state));
        }
        if let Some(hint) = judged.hint(judgement) {
            say(&format!("hint: {hint}"));
        }
    }
    if let Some(facts) = &judgement.facts {
        print_facts(judged, facts);
    }
    say(&format!(
        "{} insns processed in {} us",
        judgement.insns_processed, judgement.microseconds
    ));
    if judged.with_log {
        for line in judgement.log.lines() {
            say(&format!("| {line}"));
        }
    }
}

/// Returns the reason, and the error that the tool would get.
fn because(judgement: &Judgement) -> String {
    match judgement.verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Unknown => format!("not asked: {}", judgement.reason),
        Verdict::Reject => {
            let error = error_name(judgement.errno);
            format!("{} [{error}]", judgement.reason)
        }
    }
}

/// Returns the name of the error that a tool gets.
fn error_name(errno: i32) -> String {
    let known = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::ESRCH, "ESRCH"),
        (libc::E2BIG, "E2BIG"),
        (libc::EBADF, "EBADF"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBUSY, "EBUSY"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ERANGE, "ERANGE"),
        (libc::EDEADLK, "EDEADLK"),
        (libc::EPROTO, "EPROTO"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (Errno::ENOTSUPP.0, "ENOTSUPP"),
    ];
    let found = known.iter().find(|(number, _)| *number == errno);
    found.map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Accept => "accept ",
        Verdict::Reject => "reject ",
        Verdict::Unknown => "unknown",
    }
}

fn print_facts(judged: &Judged<'_>, facts: &ProgramSummary) {
    let list = |what: &str, items: Vec<String>| {
        if !items.is_empty() {
            println!("  {what}: {}", printable(&items.join(", ")));
        }
    };
    list("helpers", helpers(facts));
    list("maps", maps(judged.object, facts));
    let context = facts.context.iter().map(|(offset, size, written)| {
        let how = if *written { "written" } else { "read" };
        format!("{offset}..{} {how}", offset + size)
    });
    list("context", context.collect());
    let stack = judged.program.functions.iter().zip(&facts.stack_bytes);
    let used = stack.filter(|(_, bytes)| **bytes > 0);
    let stack = used.map(|((_, name), bytes)| format!("{bytes} bytes in {name}"));
    list("stack", stack.collect());
    if facts.frame_depth > 1 {
        println!("  calls: {} functions deep", facts.frame_depth);
    }
    if !facts.dead.is_empty() {
        println!("  dead: {} insns", facts.dead.len());
    }
}

fn helpers(facts: &ProgramSummary) -> Vec<String> {
    let name = |id: &HelperId| {
        id.name()
            .map_or_else(|| format!("#{}", id.0), str::to_owned)
    };
    facts.helpers.iter().map(name).collect()
}

fn maps(object: &Object, facts: &ProgramSummary) -> Vec<String> {
    let name = |fd: i32| {
        let map = object.maps.get(usize::try_from(fd).ok()?)?;
        Some(map.name.clone())
    };
    let maps = facts.maps.iter();
    maps.filter_map(|it| name(it.fd)).collect()
}

/// Prints for scripts: one object a line.
pub fn print_json(judged: &Judged<'_>) {
    let mut value = as_value(judged, judged.first);
    let more = [
        ("program", json!(judged.program.name)),
        ("section", json!(judged.program.section)),
        ("prog_type", json!(judged.program.kind.prog_type.0)),
        ("insns", json!(judged.program.insns.len())),
    ];
    if let Some(fields) = value.as_object_mut() {
        fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
        if let Some(other) = judged.other {
            fields.insert("kernel".to_owned(), as_value(judged, other));
            fields.insert("differ".to_owned(), json!(judged.differ()));
        }
    }
    println!("{}", printable(&value.to_string()));
}

fn as_value(judged: &Judged<'_>, judgement: &Judgement) -> Value {
    let mut value = json!({
        "verdict": word(judgement.verdict).trim_end(),
        "reason": judgement.reason,
        "insns_processed": judgement.insns_processed,
        "us": judgement.microseconds as u64,
    });
    let line = judged.line(judgement);
    let of_refusal = [
        ("errno", json!(judgement.errno)),
        ("insn", json!(judgement.insn)),
        ("source", json!(line.map(|it| &it.text))),
        ("file", json!(line.map(|it| &it.file))),
        ("line", json!(line.map(|it| it.line))),
        ("state", json!(judgement.state)),
        ("hint", json!(judged.hint(judgement))),
    ];
    let Some(fields) = value.as_object_mut() else {
        return value;
    };
    let mut put = |name: &str, value| fields.insert(name.to_owned(), value);
    if judgement.verdict != Verdict::Accept {
        for (name, value) in of_refusal {
            put(name, value);
        }
    }
    if let Some(facts) = &judgement.facts {
        let context = facts.context.iter();
        let context = context.map(
            |(offset, size, written)| json!({ "offset": offset, "size": size, "write": written }),
        );
        put("helpers", json!(helpers(facts)));
        put("maps", json!(maps(judged.object, facts)));
        put("context", context.collect());
        put("stack_bytes", json!(facts.stack_bytes));
        put("stack_depth", json!(facts.stack_bytes.iter().max()));
        put("frame_depth", json!(facts.frame_depth));
        put("dead_insns", json!(facts.dead.len()));
    }
    if judged.with_log {
        put("log", json!(judgement.log));
    }
    value
}
