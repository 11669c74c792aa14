//! The types of perf events for probes: `/sys/bus/event_source/devices/*`.

use std::fs;

/// The directory of the devices that have perf events.
pub(crate) const DEVICES: &str = "/sys/bus/event_source/devices";

/// The types of `perf_event_open` for probes, which the kernel assigns as it boots.
#[derive(Debug)]
pub(crate) struct EventTypes {
    /// The type of user-space probes; a number of our own where the kernel has none.
    pub(crate) uprobe: u32,
    /// The type of kernel probes; a number of our own where the kernel has none.
    pub(crate) kprobe: u32,
}

impl EventTypes {
    /// Far above all numbers that kernels assign.
    const OWN_UPROBE: u32 = 0x0bee_0000;
    const OWN_KPROBE: u32 = 0x0bee_0001;

    pub(crate) fn read() -> Self {
        EventTypes {
            uprobe: event_type("uprobe").unwrap_or(Self::OWN_UPROBE),
            kprobe: event_type("kprobe").unwrap_or(Self::OWN_KPROBE),
        }
    }

    /// Returns whether the kernel of this machine has kprobes.
    pub(crate) fn has_kprobes(&self) -> bool {
        self.kprobe != Self::OWN_KPROBE
    }

    /// Returns the type of a device's events, if they are for probes.
    pub(crate) fn of(&self, device: &str) -> Option<u32> {
        match device {
            "uprobe" => Some(self.uprobe),
            "kprobe" => Some(self.kprobe),
            _ => None,
        }
    }
}

fn event_type(device: &str) -> Option<u32> {
    fs::read_to_string(format!("{DEVICES}/{device}/type"))
        .ok()?
        .trim()
        .parse()
        .ok()
}
