//! The guest owner's policy for hosts: a TOML file. Everything that it does not mention is allowed,
//! except for objects of others.

use std::sync::Arc;

use beeline_uapi::{HelperId, ProgramType};
use beeline_vm_protocol::instructions;
use beeline_vm_protocol::peer::Peer;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;

use crate::attach_points;
use crate::glob;
use crate::limits::{Limit, Portion};
use crate::refusal::Refusal;

/// The file's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Policy {
    /// Its name in messages to hosts' users.
    pub name: String,
    /// The programs that may be loaded.
    pub programs: Programs,
    /// The places that they may be attached to.
    pub attach: Attach,
    /// The memory that maps may take.
    pub maps: Maps,
    /// Objects made by others.
    pub objects: Objects,
    /// The guest's processes.
    pub processes: Processes,
}

/// `[programs]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Programs {
    /// `kprobe`, `tracing`, ...
    pub types: Option<Vec<String>>,
    /// Patterns of helpers' names without `bpf_`, and of the kernel's functions as `kfunc:NAME`.
    pub helpers: Option<Vec<String>>,
    /// Helpers that are not allowed, whatever `helpers` says.
    pub deny_helpers: Vec<String>,
    /// Ed25519 public keys, 64 hexadecimal digits each: a program needs a signature by one of them.
    pub signed_by: Vec<String>,
}

/// `[attach]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Attach {
    /// Patterns of places, such as `kprobe:vfs_*`.
    pub allow: Option<Vec<String>>,
    /// Places that are not allowed, whatever `allow` says.
    pub deny: Vec<String>,
}

/// `[maps]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Maps {
    /// The most bytes of one map.
    pub bytes: Option<u64>,
    /// The most bytes of all maps of one peer: the host by vsock, a user, an address.
    pub peer_bytes: Option<u64>,
    /// The most bytes of all maps of all hosts together.
    pub total_bytes: Option<u64>,
}

/// `[objects]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Objects {
    /// True if hosts may see and open, by their ids, programs, maps and links that are not their
    /// tool's own.
    pub foreign: bool,
}

/// `[processes]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Processes {
    /// True if hosts may read names, command lines and maps of memory of all processes. The default
    /// is true for a policy without other rules, and false for any other.
    pub visible: Option<bool>,
}

/// The reason why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file cannot be read, and it has none of the names of policies.
    #[error("the policy {0} cannot be read: {2}; it is a file, or one of {1}")]
    Unreadable(String, String, std::io::Error),
    /// Its text is malformed; the error says where.
    #[error("the policy makes no sense: {0}")]
    Malformed(toml::de::Error),
    /// A word of it is wrong.
    #[error("the policy makes no sense: {0}")]
    Word(String),
}

impl Policy {
    /// Parses a policy's text.
    ///
    /// # Errors
    ///
    /// The error names the line, or the word.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let policy: Self = toml::from_str(text).map_err(Error::Malformed)?;
        let known: Vec<_> = ProgramType::ALL
            .iter()
            .map(|of| attach_points::program_type(*of))
            .collect();
        for name in policy.programs.types.iter().flatten() {
            if !known.contains(name) {
                let known = known[1..].join(", ");
                let why = format!("there is no program type {name:?}; there are {known}");
                return Err(Error::Word(why));
            }
        }
        // A pattern that fits nothing is mistyped, and would deny nothing.
        let helpers = policy.programs.helpers.iter().flatten();
        for pattern in helpers.chain(&policy.programs.deny_helpers) {
            if !is_for_helpers(pattern) {
                let why = format!(
                    "{pattern:?} fits no helper; they are named without bpf_, and the kernel's functions kfunc:NAME"
                );
                return Err(Error::Word(why));
            }
        }
        let places = policy.attach.allow.iter().flatten();
        for pattern in places.chain(&policy.attach.deny) {
            if !is_for_places(pattern) {
                let kinds = attach_points::KINDS.join(":, ");
                let why = format!("{pattern:?} fits no place; these begin with {kinds}:");
                return Err(Error::Word(why));
            }
        }
        for key in &policy.programs.signed_by {
            if public_key(key).is_none() {
                let why = format!("{key:?} in signed-by is no key: it has 64 hexadecimal digits");
                return Err(Error::Word(why));
            }
        }
        Ok(policy)
    }

    /// True if it has no rules for programs, places and memory.
    pub fn is_unlimited(&self) -> bool {
        let Self {
            programs,
            attach,
            maps,
            ..
        } = self;
        *programs == Programs::default() && *attach == Attach::default() && *maps == Maps::default()
    }

    /// True if hosts may see the guest's processes.
    pub fn shows_processes(&self) -> bool {
        let by_default = self.is_unlimited();
        self.processes.visible.unwrap_or(by_default)
    }

    /// Returns its name, or that it has rules; empty if it allows all.
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "" if *self == Self::default() => String::new(),
            "" => "unnamed".into(),
            name => name.to_owned(),
        }
    }

    /// Fails unless a program of that type, with these instructions, may be loaded.
    ///
    /// # Errors
    ///
    /// `EPERM`, with the rule.
    pub fn program(
        &self,
        program_type: ProgramType,
        insns: &[u8],
        signature: &[u8],
    ) -> Result<(), Refusal> {
        let rules = &self.programs;
        let name = attach_points::program_type(program_type);
        if let Some(types) = &rules.types
            && !types.contains(&name)
        {
            let why = format!("programs of type {name} are not allowed");
            return Err(Refusal::forbidden("programs.types", why));
        }
        if rules.helpers.is_some() || !rules.deny_helpers.is_empty() {
            for called in called(insns) {
                self.helper(&called)?;
            }
        }
        if !rules.signed_by.is_empty() {
            signed(&rules.signed_by, insns, signature)?;
        }
        Ok(())
    }

    /// Fails unless programs may call a helper.
    pub(crate) fn helper(&self, name: &str) -> Result<(), Refusal> {
        let rules = &self.programs;
        let any = |patterns: &[String]| patterns.iter().any(|pattern| glob::fits(pattern, name));
        if any(&rules.deny_helpers) {
            let why = format!("{name} is not allowed");
            return Err(Refusal::forbidden("programs.deny-helpers", why));
        }
        if rules.helpers.as_ref().is_some_and(|helpers| !any(helpers)) {
            let why = format!("{name} is not among the helpers that are allowed");
            return Err(Refusal::forbidden("programs.helpers", why));
        }
        Ok(())
    }

    /// Fails unless programs may be attached there.
    ///
    /// # Errors
    ///
    /// `EPERM`, with the rule.
    pub fn attach(&self, place: &str) -> Result<(), Refusal> {
        let readable = attach_points::readable(place);
        let fits = |pattern: &String| {
            let mut names = [Some(place), readable.as_deref()].into_iter().flatten();
            names.any(|name| glob::fits(pattern, name))
        };
        let any = |patterns: &[String]| patterns.iter().any(fits);
        let place = match &readable {
            Some(readable) => format!("{readable} ({place})"),
            None => place.to_owned(),
        };
        if any(&self.attach.deny) {
            let why = format!("{place} is not allowed");
            return Err(Refusal::forbidden("attach.deny", why));
        }
        if self.attach.allow.as_ref().is_some_and(|allow| !any(allow)) {
            let why = format!("{place} is not among the places that are allowed");
            return Err(Refusal::forbidden("attach.allow", why));
        }
        Ok(())
    }

    /// Fails unless the peer may make a map, or an event's ring, of that many bytes. They are counted until the result is
    /// dropped.
    ///
    /// # Errors
    ///
    /// `EPERM`, with the rule.
    pub fn map(&self, bytes: u64, peer: &Peer, taken: &Arc<Limit>) -> Result<Portion, Refusal> {
        if let Some(most) = self.maps.bytes
            && bytes > most
        {
            let why = format!("a map or ring of {bytes} bytes is not allowed, only of {most}");
            return Err(Refusal::forbidden("maps.bytes", why));
        }
        let (portion, all, its) = taken.count(peer, bytes);
        let more = |before: u64, whose: &str, most: u64| {
            format!(
                "{bytes} bytes more than the {before} that {whose} have already are not allowed: {most} in all"
            )
        };
        if let Some(most) = self.maps.peer_bytes
            && its.saturating_add(bytes) > most
        {
            let why = more(its, &format!("the maps of {peer}"), most);
            return Err(Refusal::forbidden("maps.peer-bytes", why));
        }
        if let Some(most) = self.maps.total_bytes
            && all.saturating_add(bytes) > most
        {
            return Err(Refusal::forbidden(
                "maps.total-bytes",
                more(all, "maps", most),
            ));
        }
        Ok(portion)
    }
}

/// True if the pattern fits a helper, or may fit a kernel function.
fn is_for_helpers(pattern: &str) -> bool {
    let mut known = (0..HelperId::COUNT).filter_map(|id| HelperId(id).name());
    let is_other = ["kfunc:", "helper:"]
        .iter()
        .any(|kind| pattern.starts_with(kind));
    is_other || known.any(|name| glob::fits(pattern, name))
}

/// True if the pattern begins with a kind of places.
fn is_for_places(pattern: &str) -> bool {
    let (kind, rest) = match pattern.split_once(':') {
        Some((kind, rest)) => (kind, rest),
        // Only stars take the rest.
        None if pattern.ends_with('*') => (pattern, "*"),
        None => (pattern, ""),
    };
    let mut kinds = attach_points::KINDS.iter();
    !rest.is_empty() && kinds.any(|known| glob::fits(kind, known))
}

/// No kernel has helpers from here on. A program that can get to such a call is rejected: libbpf
/// puts one in place of code that is for another kernel.
const NO_HELPER: u32 = 1 << 16;

/// Returns the helpers and the kernel functions that instructions call.
fn called(insns: &[u8]) -> Vec<String> {
    let all = instructions::calls(insns);
    all.filter(|called| !matches!(called, instructions::Called::Helper(id) if *id >= NO_HELPER))
        .map(|called| match called {
            instructions::Called::Helper(id) => match HelperId(id).name() {
                Some(name) => name.to_owned(),
                None => format!("helper:{id}"),
            },
            instructions::Called::Function { id, module: 0 } => {
                match attach_points::kernel_type_name(id) {
                    Some(name) => format!("kfunc:{name}"),
                    None => format!("kfunc:#{id}"),
                }
            }
            // Named by types with a descriptor that the host has chosen.
            instructions::Called::Function { id, .. } => format!("kfunc:module:#{id}"),
        })
        .collect()
}

fn public_key(text: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(key)
}

fn signed(keys: &[String], insns: &[u8], signature: &[u8]) -> Result<(), Refusal> {
    let digest = instructions::digest(insns);
    let good = keys.iter().filter_map(|key| public_key(key)).any(|key| {
        let key = UnparsedPublicKey::new(&ED25519, key);
        key.verify(&digest, signature).is_ok()
    });
    if good {
        return Ok(());
    }
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let what = if signature.is_empty() {
        "is not signed"
    } else {
        "is not signed by a key that the policy names"
    };
    let why = format!("the program with the SHA-256 {digits} {what}");
    Err(Refusal::forbidden("programs.signed-by", why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{Ed25519KeyPair, KeyPair};

    const TEXT: &str = r#"
        name = "observability"
        [programs]
        types = ["kprobe", "tracing"]
        helpers = ["map_*", "get_current_*", "probe_*"]
        deny-helpers = ["probe_write_user"]
        [attach]
        allow = ["kprobe:vfs_*", "fentry:*"]
        deny = ["kprobe:vfs_write"]
        [maps]
        bytes = 1000
        peer-bytes = 1200
        total-bytes = 1500
    "#;

    fn call(helper: HelperId) -> [u8; 8] {
        [0x85, 0, 0, 0, helper.0 as u8, 0, 0, 0]
    }

    fn rule(outcome: Result<(), Refusal>) -> String {
        outcome.unwrap_err().rule
    }

    #[test]
    fn programs_are_held_to_it() {
        let policy = Policy::parse(TEXT).unwrap();
        assert_eq!(
            policy.program(ProgramType::KPROBE, &call(HelperId::MAP_LOOKUP_ELEM), &[]),
            Ok(())
        );
        assert_eq!(
            rule(policy.program(
                ProgramType::SOCKET_FILTER,
                &call(HelperId::MAP_LOOKUP_ELEM),
                &[]
            )),
            "programs.types"
        );
        assert_eq!(
            rule(policy.program(ProgramType(99), &call(HelperId::MAP_LOOKUP_ELEM), &[])),
            "programs.types"
        );
        assert_eq!(
            rule(policy.program(ProgramType::KPROBE, &call(HelperId::TRACE_PRINTK), &[])),
            "programs.helpers"
        );
        assert_eq!(
            rule(policy.program(ProgramType::KPROBE, &call(HelperId::PROBE_WRITE_USER), &[])),
            "programs.deny-helpers"
        );
        // What libbpf writes over code that this kernel is not to run.
        let mut poison = call(HelperId(0));
        poison[4..].copy_from_slice(&0xbad_2310_u32.to_le_bytes());
        assert_eq!(policy.program(ProgramType::KPROBE, &poison, &[]), Ok(()));
        poison[4..].copy_from_slice(&(NO_HELPER - 1).to_le_bytes());
        assert_eq!(
            rule(policy.program(ProgramType::KPROBE, &poison, &[])),
            "programs.helpers"
        );
        assert_eq!(policy.attach("kprobe:vfs_read"), Ok(()));
        assert_eq!(rule(policy.attach("kprobe:vfs_write")), "attach.deny");
        assert_eq!(rule(policy.attach("kprobe:do_exit")), "attach.allow");
    }

    #[test]
    fn events_have_readable_names() {
        let policy = Policy::parse(
            "[attach]\nallow = [\"perf_event:software:*\", \"perf_event:0:*\"]\n\
             deny = [\"perf_event:software:page-faults\", \"perf_event:hardware:cycles\"]",
        );
        let policy = policy.unwrap();
        assert_eq!(policy.attach("perf_event:1:0x0"), Ok(()));
        assert_eq!(policy.attach("perf_event:1:0xa"), Ok(()));
        assert_eq!(policy.attach("perf_event:0:0x1"), Ok(()));
        assert_eq!(rule(policy.attach("perf_event:1:0x2")), "attach.deny");
        let refused = policy.attach("perf_event:0:0x0").unwrap_err();
        assert_eq!(refused.rule, "attach.deny");
        assert!(
            refused.why.contains("perf_event:hardware:cycles"),
            "{refused:?}"
        );
        assert_eq!(rule(policy.attach("perf_event:4:0x0")), "attach.allow");
    }

    #[test]
    fn memory_is_given_back() {
        let policy = Policy::parse(TEXT).unwrap();
        let taken = Limit::new(0);
        let [one, two] = [1, 2].map(|user| Peer::User(Some(user)));
        let map = |bytes, peer| policy.map(bytes, peer, &taken);
        assert_eq!(map(1001, &one).unwrap_err().rule, "maps.bytes");
        let share = map(900, &one).unwrap();
        let refused = map(400, &one).unwrap_err();
        assert_eq!(refused.rule, "maps.peer-bytes");
        assert!(refused.why.contains("the user 1"), "{}", refused.why);
        assert_eq!(map(700, &two).unwrap_err().rule, "maps.total-bytes");
        drop(share);
        drop(map(900, &two).unwrap());
        assert_eq!(taken.taken(), 0);
    }

    #[test]
    fn signatures_are_checked() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let digits: String = pair
            .public_key()
            .as_ref()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let text = format!("[programs]\nsigned-by = [\"{digits}\"]");
        let policy = Policy::parse(&text).unwrap();
        let insns = call(HelperId::MAP_LOOKUP_ELEM);
        let good = pair.sign(&instructions::digest(&insns));
        assert_eq!(
            policy.program(ProgramType::KPROBE, &insns, good.as_ref()),
            Ok(())
        );
        for (insns, signature) in [
            (insns, &[][..]),
            (insns, &[1; 64]),
            (call(HelperId::MAP_UPDATE_ELEM), good.as_ref()),
        ] {
            let refused = policy.program(ProgramType::KPROBE, &insns, signature);
            assert_eq!(rule(refused), "programs.signed-by");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (text, said) in [
            ("[program]", "program"),
            ("[programs]\ntypes = [\"kprobes\"]", "tracepoint"),
            ("[programs]\nsigned-by = [\"12\"]", "64"),
            (
                "[programs]\ndeny-helpers = [\"perf_event_outptu\"]",
                "perf_event_outptu",
            ),
            ("[programs]\nhelpers = [\"bpf_map_*\"]", "without bpf_"),
            (
                "[attach]\ndeny = [\"raw_tracepoints:*\"]",
                "raw_tracepoint:,",
            ),
            ("[attach]\ndeny = [\"kretprobe:do_exit\"]", "kprobe:"),
            ("[attach]\nallow = [\"kprobe\"]", "no place"),
            ("[attach]\nallow = [\"[\"]", "no place"),
            ("[maps]\nbytes = -1", "bytes"),
            ("x", "line 1"),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        for text in [
            "[programs]\nhelpers = [\"*\", \"kfunc:bpf_*\", \"helper:300\"]\ndeny-helpers = [\"probe_*\"]",
            "[attach]\nallow = [\"**\", \"*:*\", \"f*:vfs_*\", \"uprobe*\"]\ndeny = [\"lsm:*\"]",
        ] {
            let policy = Policy::parse(text);
            assert!(policy.is_ok(), "{text}: {policy:?}");
        }
        assert_eq!(Policy::parse("").unwrap(), Policy::default());
        assert_eq!(Policy::default().title(), "");
    }
}
