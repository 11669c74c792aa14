//! Extensions of processors that code may need, by their names in `/proc/cpuinfo`.
//!
//! Only those that work on general registers count, as code uses no others.

use crate::engine::Machine;

/// Returns the extensions that this processor has, ascending.
pub fn here() -> Vec<&'static str> {
    let mut features = found_here();
    features.sort_unstable();
    features
}

/// Returns the extensions that code uses, ascending.
///
/// Data among the code may look like instructions, so the list may have one too many.
pub fn needed(machine: Machine, code: &[u8]) -> Vec<&'static str> {
    let mut features = match machine {
        Machine::X86_64 => x86_64_needs(code),
        Machine::Aarch64 => aarch64_needs(code),
    };
    features.sort_unstable();
    features.dedup();
    features
}

#[cfg(target_arch = "x86_64")]
fn found_here() -> Vec<&'static str> {
    let table = [
        ("adx", is_x86_feature_detected!("adx")),
        ("bmi1", is_x86_feature_detected!("bmi1")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("cx16", is_x86_feature_detected!("cmpxchg16b")),
        ("lzcnt", is_x86_feature_detected!("lzcnt")),
        ("movbe", is_x86_feature_detected!("movbe")),
        ("popcnt", is_x86_feature_detected!("popcnt")),
        ("rdpid", has_rdpid()),
    ];
    let present = table.into_iter().filter(|(_, is_there)| *is_there);
    present.map(|(name, _)| name).collect()
}

/// Returns whether CPUID leaf 7 has ECX bit 22 set (Intel SDM volume 2).
#[cfg(target_arch = "x86_64")]
fn has_rdpid() -> bool {
    let leaves = std::arch::x86_64::__cpuid(0).eax;
    leaves >= 7 && std::arch::x86_64::__cpuid_count(7, 0).ecx >> 22 & 1 != 0
}

#[cfg(target_arch = "aarch64")]
fn found_here() -> Vec<&'static str> {
    // SAFETY: getauxval only reads the auxiliary vector.
    let bits = unsafe { libc::getauxval(libc::AT_HWCAP) };
    let table = [
        ("atomics", libc::HWCAP_ATOMICS),
        ("lrcpc", libc::HWCAP_LRCPC),
    ];
    let present = table.into_iter().filter(|(_, bit)| bits & bit != 0);
    present.map(|(name, _)| name).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn found_here() -> Vec<&'static str> {
    Vec::new()
}

fn x86_64_needs(code: &[u8]) -> Vec<&'static str> {
    use iced_x86::{CpuidFeature, Decoder, DecoderOptions};
    let name = |feature: &CpuidFeature| {
        Some(match *feature {
            CpuidFeature::ADX => "adx",
            CpuidFeature::BMI1 => "bmi1",
            CpuidFeature::BMI2 => "bmi2",
            CpuidFeature::CMPXCHG16B => "cx16",
            CpuidFeature::LZCNT => "lzcnt",
            CpuidFeature::MOVBE => "movbe",
            CpuidFeature::POPCNT => "popcnt",
            CpuidFeature::RDPID => "rdpid",
            _ => return None,
        })
    };
    let insns = Decoder::new(64, code, DecoderOptions::NONE).into_iter();
    insns
        .flat_map(|insn| insn.cpuid_features().iter().filter_map(name))
        .collect()
}

/// Encodings of the Arm architecture reference manual, section C4.1 (loads and stores).
fn aarch64_needs(code: &[u8]) -> Vec<&'static str> {
    let name = |insn: u32| {
        let is_memory_operation = insn & 0x3f20_0c00 == 0x3820_0000;
        // LDAPR is among them.
        let is_ldapr = is_memory_operation && insn & 0x00a0_f000 == 0x00a0_c000;
        let is_compare_and_swap = insn & 0x3fa0_7c00 == 0x08a0_7c00;
        match () {
            () if is_ldapr => Some("lrcpc"),
            () if is_memory_operation || is_compare_and_swap => Some("atomics"),
            () => None,
        }
    };
    let (words, _) = code.as_chunks();
    let insns = words.iter().map(|word| u32::from_le_bytes(*word));
    insns.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_says_what_it_needs() {
        let x86_64 = |code: &[u8]| needed(Machine::X86_64, code);
        assert_eq!(x86_64(&[0x31, 0xc0, 0xc3]), [""; 0]); // xor eax, eax; ret
        // shlx rax, rcx, rdx; popcnt eax, ecx; shlx again
        let code = [
            0xc4, 0xe2, 0xe9, 0xf7, 0xc1, 0xf3, 0x0f, 0xb8, 0xc1, 0xc4, 0xe2, 0xe9, 0xf7, 0xc1,
        ];
        assert_eq!(x86_64(&code), ["bmi2", "popcnt"]);
        let aarch64 = |insn: u32| needed(Machine::Aarch64, &insn.to_le_bytes());
        assert_eq!(aarch64(0xd65f_03c0), [""; 0]); // ret
        assert_eq!(aarch64(0xf940_0000), [""; 0]); // ldr x0, [x0]
        assert_eq!(aarch64(0xc85f_fc20), [""; 0]); // ldaxr x0, [x1]
        assert_eq!(aarch64(0xf8e0_0021), ["atomics"]); // ldaddal x0, x1, [x1]
        assert_eq!(aarch64(0xc8e0_fc41), ["atomics"]); // casal x0, x1, [x2]
        assert_eq!(aarch64(0xf8bf_c020), ["lrcpc"]); // ldapr x0, [x1]
    }

    #[test]
    fn here_is_what_the_kernel_says() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = cpuinfo
            .lines()
            .find(|line| line.starts_with("flags") || line.starts_with("Features"));
        let Some(flags) = line else { return };
        let words: Vec<&str> = flags.split_whitespace().collect();
        for feature in here() {
            // The kernel names LZCNT by AMD's set that introduced it.
            let name = if feature == "lzcnt" { "abm" } else { feature };
            assert!(words.contains(&name), "{feature}");
        }
    }
}
