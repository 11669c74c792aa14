//! The walk along a stack: by the unwind tables of the code, and by frame pointers, as the kernel
//! does it, where there is no table.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_uapi::perf::PERF_MAX_STACK_DEPTH;

use super::super::read;
use crate::abi::{
    Context, KNOWN_RULES, KnownRule, Module, ModuleList, SCRATCH_WORDS, SITE_FUNCTION_ENTRY,
};
use crate::arch;
use crate::frames::{Frame, Stack};
use crate::returns::ReturnTable;
use crate::unwind_table::{Rule, UnwindTable};

/// The most addresses of a stack.
pub const MAX_DEPTH: usize = PERF_MAX_STACK_DEPTH as usize;

/// Fills the slot's scratch with the return addresses of the user stack, innermost first, and
/// returns their number.
pub fn walk(context: &mut Context, most: usize) -> usize {
    // SAFETY: each pointer is null, or leads to the registers or the site of this run.
    let (Some(regs), site) = (unsafe { (context.regs.as_ref(), context.site.as_ref()) }) else {
        return 0;
    };
    let most = most.min(MAX_DEPTH).min(SCRATCH_WORDS);
    let modules = modules(context);
    let mut stack = TargetStack {
        returns: context.target().returns(),
        context,
    };
    let mut frame = Frame {
        ip: regs.ip(),
        sp: regs.sp(),
        fp: regs.frame_pointer(),
        is_exact: true,
    };
    // Before the frame is set up, only the stack pointer leads to the caller.
    let mut is_entry =
        site.is_some_and(|site| site.flags & SITE_FUNCTION_ENTRY != 0 && site.address == regs.ip());
    let mut count = 0;
    loop {
        // SAFETY: the slot is leased by this run.
        match unsafe { (*stack.context.slot).scratch.get_mut(count) } {
            Some(place) if count < most => *place = frame.ip,
            _ => return count,
        }
        count += 1;
        if count == most {
            return count;
        }
        let rule = match modules {
            Some(modules) => stack.rule(modules, &frame),
            None => Rule::UNKNOWN,
        };
        let caller = match rule {
            Rule::UNKNOWN if is_entry => stack.caller_at_entry(&frame, regs.return_slot()),
            rule => frame.caller(rule, &mut stack),
        };
        is_entry = false;
        match caller {
            Some(caller) => frame = caller,
            None => return count,
        }
    }
}

/// Returns the modules with known tables, and forgets rules that were found by others. `None` if
/// there are none.
fn modules<'a>(context: &mut Context) -> Option<&'a [Module]> {
    let list = context.target().modules.load(Acquire) as *const ModuleList;
    // SAFETY: the address is 0, or that of a list in the target's pool.
    let (generation, modules) = unsafe {
        let list = list.as_ref()?;
        // Before the modules, which are stored before it.
        let generation = list.generation.load(Acquire);
        (generation, list.modules())
    };
    // SAFETY: the slot is leased by this run.
    let known = unsafe { &mut (*context.slot).known_rules };
    if known.generation != generation {
        // SAFETY: zero is a rule of an address that is looked for nowhere.
        unsafe { arch::zero((&raw mut known.rules).cast(), size_of_val(&known.rules)) };
        known.generation = generation;
    }
    Some(modules)
}

/// The target's memory, as a walk reads it.
struct TargetStack<'a> {
    context: &'a mut Context,
    returns: &'a ReturnTable,
}

impl Stack for TargetStack<'_> {
    #[inline(always)]
    fn word(&mut self, at: u64) -> Option<u64> {
        read::word(self.context, at)
    }

    #[inline]
    fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
        let mut pair = [0u64; 2];
        read::copy_frame(self.context, &mut pair, at).then_some(pair)
    }

    #[inline(always)]
    fn original(&mut self, at: u64, now: u64) -> u64 {
        self.returns.original(at as usize, now)
    }
}

impl TargetStack<'_> {
    /// Returns the rule for the code of a frame.
    #[inline(always)]
    fn rule(&mut self, modules: &[Module], frame: &Frame) -> Rule {
        let address = frame.inside();
        match self.known(address) {
            Some(known) if known.address == address => Rule(known.rule),
            _ => self.find_rule(modules, frame),
        }
    }

    /// Returns the place where the rule for an address is remembered.
    #[inline(always)]
    fn known(&mut self, address: u64) -> Option<&mut KnownRule> {
        // Calls are at any offset, and functions start at multiples of sixteen.
        let place = (address ^ address >> 8) as usize & (KNOWN_RULES - 1);
        // SAFETY: the slot is leased by this run.
        unsafe { (*self.context.slot).known_rules.rules.get_mut(place) }
    }

    #[cold]
    #[inline(never)]
    fn find_rule(&mut self, modules: &[Module], frame: &Frame) -> Rule {
        let address = frame.inside();
        let mut rule = rule_in(modules, address);
        if rule == Rule::UNKNOWN && arch::is_restorer(frame.ip, |at| self.word(at)) {
            rule = Rule::SIGNAL;
        }
        if let Some(known) = self.known(address) {
            *known = KnownRule {
                address,
                rule: rule.0,
            };
        }
        rule
    }

    /// Returns the caller's frame at a function's first instruction.
    fn caller_at_entry(&mut self, frame: &Frame, slot: u64) -> Option<Frame> {
        let caller = self.word(slot)?;
        Some(Frame {
            ip: self.original(slot, caller),
            sp: slot.wrapping_add(8),
            is_exact: false,
            ..*frame
        })
    }
}

fn rule_in(modules: &[Module], address: u64) -> Rule {
    let behind = modules.partition_point(|module| module.start.load(Relaxed) <= address);
    let module = behind.checked_sub(1).and_then(|last| modules.get(last));
    let Some(module) = module.filter(|module| address < module.end.load(Relaxed)) else {
        return Rule::UNKNOWN;
    };
    let offset = address.wrapping_sub(module.origin.load(Relaxed));
    // SAFETY: every module that was ever listed has a table, which stays mapped and unchanged.
    unsafe { UnwindTable::at(module.table.load(Relaxed) as usize) }.rule(offset)
}
