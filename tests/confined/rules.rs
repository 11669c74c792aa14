//! Seccomp filters as `workloads/calls/filters.h` reads them.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_inject::{ENTERING, LEAVING};
use beeline_uapi::foreseen::ForeseenCall;
use serde_json::Value;

/// Where Debian's `golang-github-containers-common` has the profile that podman and, by and large,
/// Docker put on containers.
const PROFILE: &str = "/usr/share/containers/seccomp.json";

/// Operators of `enum scmp_compare` in seccomp_rule_add(3).
const COMPARISONS: [(&str, u32); 7] = [
    ("SCMP_CMP_NE", 1),
    ("SCMP_CMP_LT", 2),
    ("SCMP_CMP_LE", 3),
    ("SCMP_CMP_EQ", EQUAL),
    ("SCMP_CMP_GE", 5),
    ("SCMP_CMP_GT", 6),
    ("SCMP_CMP_MASKED_EQ", MASKED_EQUAL),
];
const EQUAL: u32 = 4;
const MASKED_EQUAL: u32 = 7;

pub const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
pub const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
pub const TRAP: u32 = libc::SECCOMP_RET_TRAP;

/// Returns the answer that makes a call fail.
pub const fn error(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

/// A filter.
pub struct Rules(String);

impl Rules {
    /// A filter with this answer to what no rule is about.
    pub fn new(default: u32) -> Rules {
        Rules(format!("default {default}\n"))
    }

    /// Adds a rule about a call.
    pub fn with(mut self, action: u32, name: &str) -> Rules {
        writeln!(self.0, "{action} {name}").expect("memory");
        self
    }

    /// Adds a rule about mappings of code.
    pub fn about_code(mut self, action: u32) -> Rules {
        let execute = libc::PROT_EXEC;
        let rule = format!("{action} mmap 2 {MASKED_EQUAL} {execute} {execute}");
        writeln!(self.0, "{rule}").expect("memory");
        self
    }

    /// Adds a rule about a call exactly as Beeline foresees it.
    pub fn with_foreseen(mut self, action: u32, call: &ForeseenCall) -> Rules {
        let name = call.name.split(' ').next().unwrap_or_default();
        write!(self.0, "{action} {name}").expect("memory");
        for (at, known) in call.arguments.iter().enumerate() {
            if let Some(value) = known {
                write!(self.0, " {at} {EQUAL} {value} 0").expect("memory");
            }
        }
        self.0.push('\n');
        self
    }

    /// The default profile of containers without capabilities, with its own answer to other calls or
    /// another one.
    ///
    /// # Errors
    /// It is not installed.
    pub fn of_containers(default: Option<u32>) -> Result<Rules, String> {
        let text = fs::read_to_string(PROFILE)
            .map_err(|error| format!("{PROFILE}: {error} (scripts/deps.sh installs it)"))?;
        let profile: Value = serde_json::from_str(&text).expect("the profile is JSON");
        let own = answer(&profile["defaultAction"], &profile["defaultErrnoRet"]);
        let mut rules = Rules::new(default.unwrap_or(own));
        for entry in profile["syscalls"].as_array().expect("a list") {
            rules.add(entry, default);
        }
        Ok(rules)
    }

    fn add(&mut self, entry: &Value, default: Option<u32>) {
        let has = |list: &Value, what: &str| {
            let items = list.as_array();
            items.is_some_and(|items| items.iter().any(|item| item == what))
        };
        let (includes, excludes) = (&entry["includes"], &entry["excludes"]);
        let is_of_capabilities = includes["caps"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        let is_of_others = includes["arches"].is_array() && !has(&includes["arches"], "amd64");
        if is_of_capabilities || is_of_others || has(&excludes["arches"], "amd64") {
            return;
        }
        let action = match answer(&entry["action"], &entry["errnoRet"]) {
            ALLOW => ALLOW,
            other => default.unwrap_or(other),
        };
        for name in entry["names"].as_array().expect("a list") {
            let name = name.as_str().expect("a name");
            write!(self.0, "{action} {name}").expect("memory");
            for argument in entry["args"].as_array().into_iter().flatten() {
                let operator = COMPARISONS.iter().find(|(name, _)| argument["op"] == *name);
                let number = |field: &str| argument[field].as_u64().unwrap_or_default();
                let (_, operator) = operator.expect("a known operator");
                let (index, value, masked) = (number("index"), number("value"), number("valueTwo"));
                write!(self.0, " {index} {operator} {value} {masked}").expect("memory");
            }
            self.0.push('\n');
        }
    }

    /// The filter of systemd's `SystemCallFilter=@system-service`, which kills for all other calls.
    ///
    /// # Errors
    /// There is no systemd.
    pub fn of_services() -> Result<Rules, String> {
        let mut rules = Rules::new(KILL);
        let mut groups = vec!["@system-service".to_owned()];
        while let Some(group) = groups.pop() {
            let mut command = Command::new("systemd-analyze");
            let listed = command.args(["syscall-filter", &group]).output();
            let listed = listed.map_err(|error| format!("systemd-analyze: {error}"))?;
            let text = String::from_utf8_lossy(&listed.stdout).into_owned();
            for word in text.lines().skip(1).map(str::trim) {
                match word.as_bytes().first() {
                    Some(b'@') => groups.push(word.to_owned()),
                    Some(b'#') | None => {}
                    Some(_) => rules = rules.with(ALLOW, word),
                }
            }
        }
        match rules.0.lines().count() {
            0..100 => Err("systemd-analyze does not list system calls".to_owned()),
            _ => Ok(rules),
        }
    }

    /// A filter that kills for everything but these calls and those that Beeline foresees. Calls
    /// that are made while filters are suspended fail, where they are none of these.
    pub fn of_foreseen(names: &[&str]) -> Rules {
        let mut rules = Rules::new(KILL);
        for name in names {
            rules = rules.with(ALLOW, name);
        }
        for call in LEAVING.iter().chain(beeline_agent::foreseen::CALLS) {
            rules = rules.with_foreseen(ALLOW, call);
        }
        for call in ENTERING {
            let name = call.name.split(' ').next().unwrap_or_default();
            if !names.contains(&name) {
                rules = rules.with_foreseen(error(libc::EPERM), call);
            }
        }
        rules
    }

    /// Writes it into a file that any user can read.
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, &self.0).expect("room for a file");
        path
    }
}

fn answer(action: &Value, errno: &Value) -> u32 {
    match action.as_str() {
        Some("SCMP_ACT_ALLOW") => ALLOW,
        Some("SCMP_ACT_ERRNO") => error(errno.as_i64().unwrap_or(libc::EPERM.into()) as i32),
        other => panic!("the profile's action {other:?} is not known"),
    }
}
