//! Helpers that are a few instructions long: the code in place of their calls, for every compiler.

use std::collections::HashMap;

use beeline_isa::abi::{hash_lookup, sized_read};
use beeline_uapi::HelperId;
use beeline_verifier::Flow;

use crate::constant_arguments::{self, Arguments};
use crate::engine::{Bytecode, MapShape};

/// The value of r0 in place of a call. As behind every call, r1 to r5 are lost then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inline {
    /// 0.
    Null,
    /// The address of a value with a known index: `values[map] + offset`, plus the CPU's number
    /// times `cpu_stride`.
    Value {
        /// The map's index.
        map: u32,
        /// The offset in bytes; below 2 GiB.
        offset: u32,
        /// The bytes between two CPUs' values, below 2 GiB; 0 if the CPUs share the value.
        cpu_stride: u32,
    },
    /// The address for the index in the four bytes at r2; 0 if it is not below `entries`.
    Element {
        /// The map's index.
        map: u32,
        /// The number of elements.
        entries: u32,
        /// The bytes from one value to the next; below 2 GiB.
        stride: u32,
        /// The bytes between two CPUs' values, below 2 GiB; 0 if the CPUs share the value.
        cpu_stride: u32,
    },
    /// The address for the CPU with the number in the low half of r3; 0 if that is not below
    /// `cpus`.
    ElementOfCpu {
        /// The map's index.
        map: u32,
        /// The number of elements.
        entries: u32,
        /// The bytes from one value to the next; below 2 GiB.
        stride: u32,
        /// The bytes between two CPUs' values; below 2 GiB.
        cpu_stride: u32,
        /// The number of CPUs.
        cpus: u32,
    },
    /// The result of another place of the helper table, called in the same way.
    Helper(u32),
    /// [`beeline_isa::abi::CONTEXT_CPU`].
    Cpu,
    /// [`beeline_isa::abi::CONTEXT_COOKIE`].
    Cookie,
    /// [`beeline_isa::abi::SITE_ADDRESS`] of [`beeline_isa::abi::CONTEXT_SITE`], 0 if that is null.
    FuncIp,
    /// The word at [`beeline_isa::abi::TARGET_CONTROL`] above the thread's id, by
    /// [`beeline_isa::abi::TARGET_TID_OFFSET`] of [`beeline_isa::abi::CONTEXT_TARGET`]. The helper
    /// must be called if that is not known.
    PidTgid,
}

/// Returns the calls of a program's helpers that need not be made, by slot.
pub fn inlines(program: &Bytecode<'_>, flow: &Flow) -> HashMap<usize, Inline> {
    let mut found = HashMap::new();
    constant_arguments::at_calls(flow, |index, helper, arguments| {
        if let Some(inline) = inline(program, helper, arguments) {
            found.insert(index, inline);
        }
    });
    found
}

fn inline(program: &Bytecode<'_>, helper: HelperId, arguments: &Arguments) -> Option<Inline> {
    match helper {
        HelperId::MAP_LOOKUP_ELEM => look_up(program, arguments),
        _ if !program.in_agent => None,
        HelperId::MAP_LOOKUP_PERCPU_ELEM => look_up_of_cpu(program, arguments),
        HelperId::PROBE_READ | HelperId::PROBE_READ_USER | HelperId::PROBE_READ_KERNEL => {
            let bytes = arguments.number(2)? & 0xffff_ffff;
            sized_read(bytes).map(Inline::Helper)
        }
        HelperId::GET_SMP_PROCESSOR_ID => Some(Inline::Cpu),
        HelperId::GET_CURRENT_PID_TGID => Some(Inline::PidTgid),
        HelperId::GET_FUNC_IP => Some(Inline::FuncIp),
        HelperId::GET_ATTACH_COOKIE => Some(Inline::Cookie),
        _ => None,
    }
}

fn look_up_of_cpu(program: &Bytecode<'_>, arguments: &Arguments) -> Option<Inline> {
    let map = arguments.map(1)?;
    match *program.maps.get(usize::try_from(map).ok()?)? {
        MapShape::PerCpuArray {
            entries,
            stride,
            cpu_stride,
            cpus,
        } => Some(Inline::ElementOfCpu {
            map,
            entries,
            stride,
            cpu_stride,
            cpus,
        }),
        _ => None,
    }
}

fn look_up(program: &Bytecode<'_>, arguments: &Arguments) -> Option<Inline> {
    let map = arguments.map(1)?;
    let (entries, stride, cpu_stride) = match *program.maps.get(usize::try_from(map).ok()?)? {
        MapShape::Array { entries, stride } => (entries, stride, 0),
        MapShape::PerCpuArray {
            entries,
            stride,
            cpu_stride,
            ..
        } if program.in_agent => (entries, stride, cpu_stride),
        MapShape::Hash {
            key_size,
            per_cpu,
            lru,
        } if program.in_agent => {
            return hash_lookup(key_size, per_cpu, lru).map(Inline::Helper);
        }
        _ => return None,
    };
    let offset = |key: u32| key.checked_mul(stride).filter(|offset| offset >> 31 == 0);
    Some(match arguments.word_at(2) {
        Some(key) if key >= entries => Inline::Null,
        Some(key) if let Some(offset) = offset(key) => Inline::Value {
            map,
            offset,
            cpu_stride,
        },
        _ => Inline::Element {
            map,
            entries,
            stride,
            cpu_stride,
        },
    })
}
