//! The jumps over instructions by which a tool calls `bpf`, and the code that those jumps lead to.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beeline_agent::abi::{ORIGINAL_BYTES, Site};
use beeline_agent::fast_path::DECLINED;
use beeline_hook::{Function, Kind, Plan, SYSCALL, SystemCall, TrampolineSpec};
use beeline_inject::{MapFlags, Mapping, Process, ProtFlags, Stopped};
use parking_lot::Mutex;

use crate::agent::Agent;
use crate::error::{Error, os};
use crate::link::Files;
use crate::liveness::SessionId;
use crate::memory::{Memory, pages};
use crate::patch;
use crate::target::{OURS, mapping};
use crate::trampoline_pool::{POOL_BYTES, Pool};

use super::copies::{Image, Images};
use super::lookup_channel::{self, ProcessImage};

/// The processes of a tool that have fast paths, or could not be given any.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// Processes that were looked at, by id.
    processes: Mutex<HashMap<i32, Arc<Mutex<Visited>>>>,
    pub images: Images,
}

/// The code that jumps lead to.
pub(super) struct Code<'a> {
    pub agent: &'a Agent,
    /// The function's offset in the agent.
    pub function: u64,
    pub files: &'a Files,
    /// The memory that the tool's processes share, with their rights to it.
    pub shared: &'a [(&'a Memory, ProtFlags)],
    /// The size in bytes of the memory that each process has for itself, which begins as zeros.
    pub private_len: usize,
    /// The number of its bytes, from the first on, that are zero again in a forked child.
    pub wiped_len: usize,
    /// The offset there of a number that tells a forked child's copy.
    pub token: Option<usize>,
}

/// The bytes that are written to a process's own memory, by offset, once the shared memory is
/// mapped.
pub(super) type Fill = Vec<(usize, Vec<u8>)>;

/// The outcome for one process.
#[derive(Debug)]
struct Visited {
    process: Option<ProcessImage>,
    /// The program that it runs.
    program: PathBuf,
    /// Instructions that were tried.
    tried: HashSet<u64>,
    /// True once there is a jump in the process.
    is_open: bool,
}

/// The most instructions of one process that are tried. A function or two make all the calls of a
/// tool.
const TRIES: usize = 8;

impl Hooks {
    /// Puts a jump over the `syscall` instruction before `ip`, if possible and if it has not been
    /// tried in vain. `fill` is given the addresses of the shared memory. `release` is called, or
    /// dropped, once the process's threads may run no farther than to the end of their calls.
    /// Returns whether there is a jump in the process now.
    ///
    /// # Errors
    ///
    /// Those of [`super::FastPaths::open`].
    pub fn open(
        &self,
        process: &Process,
        ip: u64,
        code: &Code<'_>,
        fill: impl FnOnce(&[u64]) -> Fill + Send,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<bool, Error> {
        let site = site_before(ip);
        let visited = self.visited(process.pid());
        // Another thread may just be stopping the process, and wait until this call is released.
        let Some(mut visited) = visited.try_lock() else {
            return Ok(false);
        };
        // A call from Beeline's own code has been declined there.
        let is_ours = self.images.holds(site);
        if !is_ours && visited.tried.len() < TRIES && visited.tried.insert(site) {
            let hooked = hook(process, site, code, fill, release);
            // An obstacle to a stop may not be there the next time.
            if let Err(Error::Inject(_)) = hooked {
                visited.tried.remove(&site);
            }
            self.images.add(hooked?);
            visited.is_open = true;
        }
        Ok(visited.is_open)
    }

    /// Returns what is known of a process.
    fn visited(&self, pid: i32) -> Arc<Mutex<Visited>> {
        let process = ProcessImage::of(pid);
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let mut processes = self.processes.lock();
        if processes.len() == processes.capacity() {
            processes.retain(|_, visited| {
                // One that is being hooked is there.
                let process = visited.try_lock().map(|visited| visited.process);
                process.is_none_or(lookup_channel::is_alive)
            });
        }
        let new = || {
            Arc::new(Mutex::new(Visited {
                process,
                program: program.clone(),
                tried: HashSet::new(),
                is_open: false,
            }))
        };
        let visited = processes.entry(pid).or_insert_with(new);
        let is_same = |known: &Visited| known.process == process && known.program == program;
        // Nothing is left of an earlier program.
        if visited.try_lock().is_some_and(|known| !is_same(&known)) {
            *visited = new();
        }
        visited.clone()
    }
}

/// Returns the address of the `syscall` instruction that ends at `ip`.
pub(super) fn site_before(ip: u64) -> u64 {
    ip.wrapping_sub(SYSCALL.len() as u64)
}

fn hook(
    process: &Process,
    site: u64,
    code: &Code<'_>,
    fill: impl FnOnce(&[u64]) -> Fill,
    release: impl FnOnce() + Send + 'static,
) -> Result<Image, Error> {
    let fail = |why: String| failed(process, why);
    let plan = plan(process, site, code.files)?;
    let reach = plan
        .reach()
        .ok_or_else(|| fail("its instructions are too far apart".into()))?;
    let mut pool = Pool::new(&SessionId::own().name("fast-path")).map_err(os("creating a pool"))?;
    let near = process.find_gap(reach, POOL_BYTES as u64)?;
    let near = near.ok_or_else(|| fail("there is no free address range near".into()))?;
    let runs = ProtFlags::READ | ProtFlags::EXEC;
    let mut mappings = vec![
        Mapping {
            flags: OURS | MapFlags::FIXED_NOREPLACE,
            address: near,
            ..mapping(pool.file(), POOL_BYTES, runs)
        },
        mapping(code.agent.file(), code.agent.len(), runs),
    ];
    let shared = code.shared.iter();
    mappings.extend(shared.map(|(memory, may)| mapping(memory.file(), memory.len(), *may)));
    let mut stopped = process.stop_releasing(release)?;
    let placed = stopped.map_files(&mappings)?;
    let [near, agent, shared @ ..] = &placed[..] else {
        return Err(fail("it did not map what it was asked to".into()));
    };
    let token = Image::new_token();
    let mut filled = fill(shared);
    filled.extend(code.token.map(|at| (at, token.to_ne_bytes().to_vec())));
    let private = private_memory(&mut stopped, code, filled)?;
    pool.placed(*near);
    let spec = TrampolineSpec::SystemCall(SystemCall {
        number: libc::SYS_bpf as u32,
        function: *agent + code.function,
        data: private,
        declined: DECLINED,
    });
    let trampoline =
        beeline_hook::emit(&plan, pool.next(64), &spec).map_err(|why| fail(why.to_string()))?;
    let at = pool
        .bytes(&trampoline.bytes, 64)
        .map_err(os("filling a pool"))?;
    let jump =
        beeline_hook::jump_patch(site, plan.window_len, at).map_err(|why| fail(why.to_string()))?;
    let mut patch = [0; ORIGINAL_BYTES];
    patch[..jump.len()].copy_from_slice(&jump);
    let record = Site {
        target: std::ptr::null(),
        address: site,
        entry: 0.into(),
        returns: 0.into(),
        return_entry: 0,
        body: trampoline.body,
        flags: 0,
        next: 0,
        patched: 0.into(),
        original_len: plan.window_len as u32,
        original: [0; ORIGINAL_BYTES],
        patch,
        file: [0; ORIGINAL_BYTES],
        layer: 0,
        level: 0,
        traps: Default::default(),
    };
    patch::apply(&mut stopped, &plan, &record, &trampoline.resume_map)?;
    stopped.resume()?;
    Ok(Image {
        code: *near..*near + POOL_BYTES as u64,
        private,
        token,
    })
}

/// Returns the plan for a jump over the instruction.
fn plan(process: &Process, site: u64, files: &Files) -> Result<Plan, Error> {
    let fail = |why: String| failed(process, why);
    let regions = process.regions()?;
    let region = regions
        .iter()
        .find(|region| (region.start..region.end).contains(&site) && !region.permissions.shared)
        .ok_or_else(|| fail("its system calls come from nowhere".into()))?;
    let mut path = PathBuf::from(format!("/proc/{}/root", process.pid()));
    path.push(region.path.strip_prefix("/").unwrap_or(Path::new("")));
    let place = files.place(&path, region.offset + (site - region.start))?;
    if place.has_small_stacks() {
        return Err(fail(
            "its stacks have no room: map operations take more than a kilobyte".into(),
        ));
    }
    let (start, code) = place.function_at(site);
    let mut now = vec![0; code.len()];
    process.read_memory(start, &mut now)?;
    if now != code || !code[(site - start) as usize..].starts_with(&SYSCALL) {
        return Err(fail("its code is not what the file holds".into()));
    }
    let function = Function { start, code };
    let plan = beeline_hook::plan_system_call(site, &function, &place.incoming_at(site));
    let plan = plan.map_err(|why| fail(why.to_string()))?;
    match &plan.kind {
        Kind::Breakpoint { reason } => Err(fail(format!(
            "its system call cannot be jumped over: {reason}"
        ))),
        _ => Ok(plan),
    }
}

/// Maps memory of which a forked child gets a copy, or an empty one.
fn private_memory(stopped: &mut Stopped, code: &Code<'_>, fill: Fill) -> Result<u64, Error> {
    let len = pages(code.private_len) as u64;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let private = stopped.mmap_anonymous(len, protection, MapFlags::empty(), 0)?;
    let wiped = pages(code.wiped_len) as u64;
    stopped.madvise(private, wiped, libc::MADV_WIPEONFORK)?;
    for (offset, bytes) in fill {
        stopped.write(private + offset as u64, &bytes)?;
    }
    Ok(private)
}

fn failed(process: &Process, why: String) -> Error {
    Error::Target {
        pid: process.pid(),
        why,
    }
}
