//! Requests that only a kernel can serve: the sentence that the user reads when a tool makes one,
//! and the names by which the kernel and its tools know them.

use beeline_uapi::perf::{
    HARDWARE_EVENTS, PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE, SOFTWARE_EVENTS,
};

/// The reason for requests that are never passed on.
pub(crate) const NOT_YET: &str = "Beeline does not pass such requests on";

/// Returns the sentence: what the tool asked for, that it is the kernel's own, why Beeline does not
/// ask the kernel of this machine for it, and what serves it.
///
/// Where the kernel might be asked, [`NOT_YET`] is the reason.
pub(crate) fn by_kernel_only(what: &str, why: &str) -> String {
    format!(
        "{what}: only a kernel has this, and {why}; run the tool as root without `beeline run`, or for a \
         virtual machine's kernel by `beeline run --guest`"
    )
}

/// Returns the name of a perf event that counts or samples, as perf(1) lists it.
pub(crate) fn event_name(kind: u32, config: u64) -> String {
    let named = |names: &[&str]| {
        let name = usize::try_from(config)
            .ok()
            .and_then(|at| names.get(at).copied());
        name.map_or_else(|| config.to_string(), str::to_owned)
    };
    match kind {
        PERF_TYPE_SOFTWARE => format!("software event {}", named(SOFTWARE_EVENTS)),
        PERF_TYPE_HARDWARE => format!("hardware event {}", named(HARDWARE_EVENTS)),
        _ => format!("perf events of type {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_uapi::perf::PERF_COUNT_SW_BPF_OUTPUT;

    #[test]
    fn events_have_the_names_of_perf() {
        assert_eq!(
            event_name(PERF_TYPE_SOFTWARE, 2),
            "software event page-faults"
        );
        let output = event_name(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_BPF_OUTPUT);
        assert_eq!(output, "software event bpf-output");
        assert_eq!(
            event_name(PERF_TYPE_HARDWARE, 3),
            "hardware event cache-misses"
        );
        assert_eq!(event_name(PERF_TYPE_HARDWARE, 99), "hardware event 99");
        assert_eq!(event_name(99, 0), "perf events of type 99");
    }
}
