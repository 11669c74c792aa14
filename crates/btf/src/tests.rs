use proptest::prelude::*;

use super::*;

/// Returns the BTF of this structure:
///
/// ```c
/// struct outer {
///     int a;
///     union { int b; struct { int c; struct upid { int nr; } numbers[2]; }; };
/// };
/// ```
fn sample() -> Vec<u8> {
    let strings = b"\0int\0outer\0a\0b\0c\0upid\0nr\0numbers\0";
    let name = |wanted: &str| {
        let all: Vec<_> = strings.split(|b| *b == 0).collect();
        let before = all.iter().position(|s| *s == wanted.as_bytes()).unwrap();
        all[..before]
            .iter()
            .map(|s| s.len() as u32 + 1)
            .sum::<u32>()
    };
    let mut types = Vec::new();
    let mut put = |words: &[u32]| types.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    let info = |kind: u8, count: u32| u32::from(kind) << 24 | count;
    put(&[name("int"), info(kind::INT, 0), 4, 32]); // 1
    put(&[name("upid"), info(kind::STRUCT, 1), 4, name("nr"), 1, 0]); // 2
    put(&[0, info(kind::ARRAY, 0), 0, 2, 1, 2]); // 3
    put(&[0, info(kind::STRUCT, 2), 12, name("c"), 1, 0]); // 4
    put(&[name("numbers"), 3, 32]);
    put(&[0, info(kind::UNION, 2), 12, name("b"), 1, 0, 0, 4, 0]); // 5
    put(&[
        name("outer"),
        info(kind::STRUCT, 2),
        16,
        name("a"),
        1,
        0,
        0,
        5,
        32,
    ]); // 6
    let mut btf = vec![0x9f, 0xeb, 1, 0];
    let header = [
        24,
        0,
        types.len() as u32,
        types.len() as u32,
        strings.len() as u32,
    ];
    btf.extend(header.iter().flat_map(|w: &u32| w.to_le_bytes()));
    btf.extend(types);
    btf.extend(strings);
    btf
}

#[test]
fn fields_are_found_through_anonymous_members_and_arrays() {
    let data = OwnedBtf::parse(sample()).unwrap();
    let btf = data.view();
    let [outer, none] = btf.find([(kind::STRUCT, "outer"), (kind::UNION, "outer")]);
    assert_eq!((outer, none), (6, 0));
    let at = |path| {
        btf.field(outer, path)
            .map(|field| (field.offset, field.size))
    };
    assert_eq!(at("a"), Some((0, 4)));
    assert_eq!(at("b"), Some((4, 4)));
    assert_eq!(at("c"), Some((4, 4)));
    assert_eq!(at("numbers"), Some((8, 8)));
    assert_eq!(at("numbers.nr"), Some((8, 4)));
    assert_eq!(at("numbers.none"), None);
    assert_eq!(btf.size(outer), Some(16));
}

proptest! {
    #[test]
    fn no_data_makes_the_parser_panic(flips in proptest::collection::vec((0usize..320, any::<u8>()), 0..12)) {
        let mut data = sample();
        for (at, byte) in flips {
            if let Some(place) = data.get_mut(at) {
                *place = byte;
            }
        }
        if let Some(btf) = Btf::parse(&data) {
            for id in 0..8 {
                let _ = (btf.size(id), btf.field(id, "numbers.nr"), btf.field(id, "c"));
            }
        }
    }
}
