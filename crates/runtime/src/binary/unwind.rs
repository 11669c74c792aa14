//! Unwind information, which names functions even where symbols have been stripped.

use std::time::{Duration, Instant};

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, UnwindSection,
};
use object::Endianness;
use object::read::elf::SectionHeader;

use super::Sections;

/// The content of the unwind information.
#[derive(Debug, Default)]
pub struct Named {
    /// Functions, by start and end address; in ascending order, each start once.
    pub functions: Vec<(u64, u64)>,
    /// The code that signal handlers return to: its first address, or the one before.
    pub restorers: Vec<u64>,
}

/// Reads it. Parts that make no sense are ignored: they would only sharpen the picture.
pub fn named(bytes: &[u8], sections: &Sections<'_>, endian: Endianness) -> Named {
    let section = sections.section_by_name(endian, b".eh_frame");
    let data = section.and_then(|(_, section)| Some((section, section.data(endian, bytes).ok()?)));
    let Some((section, data)) = data else {
        return Named::default();
    };
    let (mut functions, mut restorers) = (Vec::new(), Vec::new());
    each_entry(data, section.sh_addr(endian), |fde, _, _| {
        let start = fde.initial_address();
        if fde.is_signal_trampoline() {
            // It starts a byte early, for the sake of unwinders.
            restorers.push(start);
        } else if fde.len() > 0 {
            functions.push((start, start.saturating_add(fde.len())));
        }
    });
    functions.sort_unstable();
    // The longest is the last of those that start together.
    functions.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = next.1;
        }
        is_same
    });
    Named {
        functions: without_holders(functions),
        restorers,
    }
}

/// The bytes of the section.
pub type Frames<'a> = EhFrame<EndianSlice<'a, LittleEndian>>;
/// The section's entry for one function.
pub type Entry<'a> = FrameDescriptionEntry<EndianSlice<'a, LittleEndian>>;

/// The longest time that a section is read. A process can map a file that is made to take long, also
/// by entries that make no sense.
const LONGEST_READ: Duration = Duration::from_secs(30);

/// Calls a function with each entry of an `.eh_frame` section that makes sense.
pub fn each_entry<'a>(
    data: &'a [u8],
    address: u64,
    mut each: impl FnMut(&Entry<'a>, &Frames<'a>, &BaseAddresses),
) {
    let frames = EhFrame::new(data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = frames.entries(&bases);
    // Most functions share what they have in common with the one before.
    let mut last: Option<(usize, CommonInformationEntry<_>)> = None;
    let begun = Instant::now();
    while let Ok(Some(entry)) = entries.next() {
        if begun.elapsed() > LONGEST_READ {
            return;
        }
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(|section, bases, offset| match &last {
            Some((known, common)) if *known == offset.0 => Ok(common.clone()),
            _ => {
                let common = section.cie_from_offset(bases, offset)?;
                last = Some((offset.0, common.clone()));
                Ok(common)
            }
        });
        if let Ok(fde) = fde {
            each(&fde, &frames, &bases);
        }
    }
}

/// Drops entries that contain others. One entry spans the whole procedure linkage table; a function
/// has no other inside.
fn without_holders(functions: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let starts = functions.iter().skip(1).map(|(start, _)| Some(*start));
    let nexts: Vec<_> = starts.chain([None]).collect();
    let pairs = functions.into_iter().zip(nexts);
    let alone = pairs.filter(|((_, end), next)| next.is_none_or(|next| next >= *end));
    alone.map(|(function, _)| function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_with_others_inside_is_no_function() {
        let found = vec![(0, 10), (10, 50), (20, 30), (30, 50), (60, 70)];
        let left = [(0, 10), (20, 30), (30, 50), (60, 70)];
        assert_eq!(without_holders(found), left);
        assert_eq!(without_holders(Vec::new()), []);
    }
}
