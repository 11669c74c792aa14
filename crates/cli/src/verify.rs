//! `beeline verify`: reports for each program of an object file if it is accepted, and the reason
//! if not.

mod beeline;
mod hints;
mod kernel;
mod report;
mod target;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use beeline_btf::Joined;
use beeline_object::{AttachTarget, Kernel, Object, ObjectProgram, RunningKernel};
use beeline_trusted_dir::{MOST, read_bounded};
use beeline_uapi::Errno;
use beeline_verifier::program::{Kind, Policy};
use beeline_verifier::verdict::ProgramSummary;
use clap::{ArgAction, Args, ValueEnum};

use crate::prog::file::select;
use crate::say;
use beeline::{Replaced, Verifier};
use kernel::Loader;
use report::{Judged, print, print_json};
use target::{Wanted, replaces};

#[derive(Debug, Args)]
pub struct Arguments {
    /// An object file of clang -target bpf
    file: PathBuf,
    /// Only this program
    #[arg(long)]
    program: Option<String>,
    /// Only the programs of this section
    #[arg(long)]
    section: Option<String>,
    /// Print JSON, for scripts: an object for each program, one a line
    #[arg(long)]
    json: bool,
    /// The types of the kernel that the programs are for, then those of its modules [default:
    /// /sys/kernel/btf/*]
    #[arg(long, value_name = "FILE")]
    btf: Vec<PathBuf>,
    /// The attach target of programs whose section names none, or one that the kernel does not have
    #[arg(long, value_name = "NAME")]
    attach: Option<String>,
    /// The program that freplace programs replace a function of, if it is not in the same file
    #[arg(long, value_name = "FILE[:PROGRAM]")]
    target: Option<String>,
    /// The verifier to ask; the kernel's needs privilege, and the kernel keeps nothing
    #[arg(long, value_enum, default_value_t)]
    verifier: VerifierName,
    /// Print the verifier's log: bits of log_level, 1 for the path that failed, 2 for all, 4 for
    /// statistics
    #[arg(long, value_name = "BITS", default_value_t = 0)]
    log_level: u32,
    /// Print the log of the path that failed; of all paths if given twice
    #[arg(short, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum VerifierName {
    /// The running kernel's
    Kernel,
    /// Beeline's own, on any machine
    #[default]
    Beeline,
    /// Both; differences are reported
    Both,
}

/// A verifier's judgement on a program.
#[derive(Debug, Clone, Default)]
struct Judgement {
    verdict: Verdict,
    /// The errno for a program that is not accepted, positive.
    errno: i32,
    /// The verifier's line with the reason.
    reason: String,
    /// The instruction that the verifier looked at.
    insn: Option<usize>,
    /// The registers and the stack before that instruction.
    state: String,
    log: String,
    insns_processed: u32,
    microseconds: u128,
    /// The facts about an accepted program, where they are known.
    facts: Option<ProgramSummary>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Verdict {
    Accept,
    Reject,
    /// The kernel did not look at the program, for want of privilege or because it is locked down.
    #[default]
    Unknown,
}

/// Returns the reason of a refusal for which a verifier has only an error.
fn in_words(errno: i32) -> String {
    // No C library has a text for this one.
    match Errno(errno) {
        Errno::ENOTSUPP => "the kernel does not support this".to_owned(),
        Errno(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// The exit code for a file that cannot be judged, or a wrong command line.
const UNUSABLE: u8 = 2;

/// Judges the selected programs of a file and prints the verdicts.
///
/// # Errors
///
/// None: a failure is printed and becomes the exit code.
pub fn verify(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match judge_file(arguments) {
        Ok(all_accepted) => Ok(ExitCode::from(u8::from(!all_accepted))),
        Err(error) => {
            say(&format!("{error:#}"));
            Ok(ExitCode::from(UNUSABLE))
        }
    }
}

/// Prints a verdict for each selected program, and returns whether all are accepted.
fn judge_file(arguments: &Arguments) -> anyhow::Result<bool> {
    let kernel = ChosenKernel::new(&arguments.btf)?;
    let file = arguments.file.display();
    let data = read_bounded(&arguments.file, MOST).with_context(|| file.to_string())?;
    let mut object = Object::parse(&data, &kernel).with_context(|| file.to_string())?;
    if let Some(name) = &arguments.attach {
        attach(&mut object, name, &kernel);
    }
    let (section, name) = (arguments.section.as_deref(), arguments.program.as_deref());
    let programs = select(&object, section, name).with_context(|| file.to_string())?;
    let wanted = arguments.target.as_deref();
    let wanted = wanted.map(|it| Wanted::new(it, &kernel)).transpose()?;
    let judges = Judges::new(&object, wanted.as_ref(), arguments.verifier, &kernel);
    let log_level = arguments.log_level | u32::from(arguments.verbose.min(2));
    let (mut accepted, mut differ) = (0, 0);
    for program in &programs {
        let (first, other) = match judges.judge(program, log_level) {
            (Some(ours), theirs) => (ours, theirs),
            (None, Some(theirs)) => (theirs, None),
            (None, None) => bail!("no verifier is asked"),
        };
        let judged = Judged {
            object: &object,
            program,
            verifier: arguments.verifier,
            first: &first,
            other: other.as_ref(),
            with_log: log_level != 0,
        };
        if arguments.json {
            print_json(&judged);
        } else {
            print(&judged);
        }
        accepted += usize::from(judged.is_accepted());
        differ += usize::from(judged.differ());
    }
    if !arguments.json {
        println!("{accepted} of {} programs are accepted", programs.len());
        if differ > 0 {
            println!("beeline and the kernel differ on {differ}");
        }
    }
    Ok(accepted == programs.len() && differ == 0)
}

/// The verifiers that judge the programs of a file.
struct Judges<'a> {
    object: &'a Object,
    /// The file with the programs in which those of this file replace functions, if it is another
    /// one.
    wanted: Option<&'a Wanted>,
    ours: Option<Verifier<'a>>,
    theirs: Option<Loader<'a>>,
    /// The verifiers for that other file.
    of_target: (Option<Verifier<'a>>, Option<Loader<'a>>),
}

impl<'a> Judges<'a> {
    fn new(
        object: &'a Object,
        wanted: Option<&'a Wanted>,
        wanted_verifier: VerifierName,
        kernel: &dyn Kernel,
    ) -> Self {
        let (we, they) = (
            wanted_verifier != VerifierName::Kernel,
            wanted_verifier != VerifierName::Beeline,
        );
        let other = wanted.map(Wanted::object);
        Self {
            object,
            wanted,
            ours: we.then(|| Verifier::new(object, kernel)),
            theirs: they.then(|| Loader::new(object)),
            of_target: (
                other.filter(|_| we).map(|it| Verifier::new(it, kernel)),
                other.filter(|_| they).map(Loader::new),
            ),
        }
    }

    /// Returns each verifier's judgement on a program.
    fn judge(
        &self,
        program: &ObjectProgram,
        log_level: u32,
    ) -> (Option<Judgement>, Option<Judgement>) {
        let (ours, theirs) = (self.ours.as_ref(), self.theirs.as_ref());
        let found = match self.wanted {
            _ if !replaces(program) => None,
            Some(wanted) => target::find(wanted.object(), wanted.program(), program),
            None => target::find(self.object, None, program),
        };
        let Some((target, function)) = found else {
            return (
                ours.map(|it| it.judge(program, None, log_level)),
                theirs.map(|it| it.judge(program, None, log_level)),
            );
        };
        let ours = ours.map(|it| {
            let verifier = self.of_target.0.as_ref().unwrap_or(it);
            let replaced = Replaced {
                verifier,
                program: target,
                function,
            };
            it.judge(program, Some(&replaced), log_level)
        });
        let theirs = theirs.map(|it| {
            let loader = self.of_target.1.as_ref().unwrap_or(it);
            match loader.load(target, None, 0) {
                (_, Some(loaded)) => it.judge(program, Some((&loaded, function)), log_level),
                (refused, None) => Judgement {
                    verdict: Verdict::Unknown,
                    reason: format!("{} is not taken: {}", target.name, refused.reason),
                    ..refused
                },
            }
        });
        (ours, theirs)
    }
}

/// Gives a target to programs that have none, as tools do by `bpf_program__set_attach_target`.
fn attach(object: &mut Object, name: &str, kernel: &dyn Kernel) {
    for program in &mut object.programs {
        if let AttachTarget::Missing(_) = program.target {
            let kind = program.section.split('/').next().unwrap_or_default();
            let section = format!("{kind}/{name}");
            program.target = AttachTarget::of_section(&section, kernel, &mut object.modules);
        }
    }
}

/// Returns the kind that a program of an object file is loaded as, without its target.
fn kind(program: &ObjectProgram) -> Kind {
    Kind {
        prog_type: program.kind.prog_type,
        attach_type: program.kind.expected_attach_type,
        flags: program.kind.flags,
        attach_btf_id: program.target.btf_id(),
        policy: Policy::ObserveOnly,
    }
}

/// The running kernel, or its stand-in with the types of another.
#[derive(Debug, Default)]
struct ChosenKernel {
    running: RunningKernel,
    types: Option<GivenTypes>,
}

/// Types that the user named.
#[derive(Debug)]
struct GivenTypes {
    btf: Vec<u8>,
    /// The modules' types by name.
    modules: Vec<(String, Vec<u8>)>,
}

impl ChosenKernel {
    /// Reads the files: the first has the types of the kernel itself, the others those of modules,
    /// by their names.
    fn new(files: &[PathBuf]) -> anyhow::Result<Self> {
        let [file, modules @ ..] = files else {
            return Ok(Self::default());
        };
        let named = |path: &Path| path.display().to_string();
        let btf = read_bounded(file, MOST).with_context(|| named(file))?;
        let Some(mut joined) = Joined::new(&btf) else {
            bail!(
                "{}: this is no BTF; give a file such as /sys/kernel/btf/vmlinux",
                named(file)
            );
        };
        let read = |path: &PathBuf| {
            let btf = read_bounded(path, MOST).with_context(|| named(path))?;
            if joined.add(&btf).is_none() {
                bail!(
                    "{}: these are no types of a module that goes with {}",
                    named(path),
                    named(file)
                );
            }
            let name = path.file_stem().unwrap_or_default();
            Ok((name.to_string_lossy().into_owned(), btf))
        };
        let modules = modules.iter().map(read).collect::<anyhow::Result<_>>()?;
        Ok(Self {
            running: RunningKernel::default(),
            types: Some(GivenTypes { btf, modules }),
        })
    }
}

impl Kernel for ChosenKernel {
    fn btf(&self) -> Option<&[u8]> {
        match &self.types {
            Some(types) => Some(&types.btf),
            None => self.running.btf(),
        }
    }

    fn modules(&self) -> &[(String, Vec<u8>)] {
        match &self.types {
            Some(types) => &types.modules,
            None => self.running.modules(),
        }
    }

    fn version(&self) -> u32 {
        self.running.version()
    }

    fn config(&self, name: &str) -> Option<String> {
        self.running.config(name)
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        self.running.symbol(name)
    }
}
