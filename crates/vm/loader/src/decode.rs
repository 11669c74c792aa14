//! Decoding bytes into the values that their type describes.

use beeline_btf::int::{BOOL, SIGNED};
use beeline_btf::{Btf, Type, kind};
use serde_json::{Map, Value, json};

/// The depth to which structures are followed, and the most values of one record: types of a file
/// may hold each other many times over.
const DEEPEST: u32 = 16;
const MOST: u32 = 4096;

/// Returns the value that the bytes have by a type.
///
/// Structures become objects, by their members' names; characters that end with a zero, texts;
/// enumerators, their names; pointers, `"0x..."`. Returns `None` if the type has no size or a size
/// that does not fit the bytes. A type that is shorter by less than 8 bytes fits, as records of
/// perf events have zeros behind them.
pub fn decode(types: &Btf<'_>, type_id: u32, bytes: &[u8]) -> Option<Value> {
    let size = types.size(type_id)? as usize;
    if size == 0 || size > bytes.len() || bytes.len() - size >= 8 {
        return None;
    }
    Decoder { types, left: MOST }.value(type_id, &bytes[..size], 0)
}

/// Returns the number of a structure, union or type's name.
pub fn named(types: &Btf<'_>, name: &str) -> Option<u32> {
    let kinds = [kind::STRUCT, kind::TYPEDEF, kind::UNION];
    let found = types.find(kinds.map(|kind| (kind, name)));
    found.into_iter().find(|id| *id != 0)
}

struct Decoder<'a, 'b> {
    types: &'b Btf<'a>,
    left: u32,
}

impl<'a> Decoder<'a, '_> {
    fn value(&mut self, type_id: u32, bytes: &[u8], depth: u32) -> Option<Value> {
        self.left = self.left.checked_sub(1)?;
        if depth > DEEPEST {
            return None;
        }
        let (_, it) = self.types.resolve(type_id)?;
        Some(match it.kind {
            kind::INT => integer(it, bytes),
            kind::ENUM | kind::ENUM64 => self.enumerator(it, bytes),
            kind::PTR => Value::from(format!("{:#x}", unsigned(bytes)?)),
            kind::FLOAT => float(bytes),
            kind::ARRAY => self.array(it, bytes, depth)?,
            kind::STRUCT | kind::UNION => Value::Object(self.members(it, bytes, depth)?),
            kind::DATASEC => Value::Object(self.variables(it, bytes, depth)?),
            _ => Value::Null,
        })
    }

    fn enumerator(&self, it: Type<'a>, bytes: &[u8]) -> Value {
        let value = match bytes.len() {
            8 => unsigned(bytes),
            // Those of 32 bits have their sign extended.
            _ => unsigned(bytes).map(|it| i64::from(it as u32 as i32) as u64),
        };
        let mut names = self.types.enumerators(it);
        let name = names.find(|it| Some(it.value) == value);
        match (name, value) {
            (Some(name), _) => text(name.name),
            (None, Some(value)) => value.cast_signed().into(),
            (None, None) => hex(bytes).into(),
        }
    }

    fn array(&mut self, it: Type<'a>, bytes: &[u8], depth: u32) -> Option<Value> {
        let (element, count) = it.array()?;
        let size = self.types.size(element)? as usize;
        if size == 0 || count == 0 {
            return Some(json!([]));
        }
        if size == 1
            && self.is_character(element)
            && let Some(text) = as_text(bytes)
        {
            return Some(text);
        }
        let elements = bytes.chunks_exact(size).take(count as usize);
        let elements: Option<Vec<Value>> = elements
            .map(|bytes| self.value(element, bytes, depth + 1))
            .collect();
        elements.map(Value::from)
    }

    fn is_character(&self, type_id: u32) -> bool {
        let found = self.types.resolve(type_id);
        found.is_some_and(|(_, it)| {
            it.kind == kind::INT && it.int_encoding().is_some_and(|it| it & BOOL == 0)
        })
    }

    fn members(&mut self, it: Type<'a>, bytes: &[u8], depth: u32) -> Option<Map<String, Value>> {
        let mut members = Map::new();
        let types = self.types;
        for member in types.bit_members(it) {
            let value = if member.bits > 0 {
                self.bits(member.type_id, bytes, member.bit_offset, member.bits)
            } else {
                let start = member.bit_offset as usize / 8;
                let size = types.size(member.type_id).unwrap_or(0) as usize;
                let bytes = bytes.get(start..start.checked_add(size)?)?;
                self.value(member.type_id, bytes, depth + 1)?
            };
            match (member.name, value) {
                // Members of an anonymous structure belong to the outer one.
                (b"", Value::Object(inner)) => members.extend(inner),
                (b"", _) => {}
                (name, value) => {
                    members.insert(String::from_utf8_lossy(name).into_owned(), value);
                }
            }
        }
        Some(members)
    }

    /// Returns a field of at most 64 bits, of a little-endian machine's.
    fn bits(&self, type_id: u32, bytes: &[u8], offset: u32, count: u32) -> Value {
        let (first, shift) = (offset as usize / 8, offset % 8);
        if count > 64 {
            return Value::Null;
        }
        let word = bytes.iter().skip(first).take(9).rev();
        let word = word.fold(0u128, |word, byte| word << 8 | u128::from(*byte));
        let value = (word >> shift & ((1u128 << count) - 1)) as u64;
        let found = self.types.resolve(type_id).map(|(_, it)| it);
        let encoding = found.and_then(|it| it.int_encoding()).unwrap_or(0);
        match encoding & SIGNED {
            0 => value.into(),
            _ => {
                let unused = 64 - count;
                (value << unused).cast_signed().wrapping_shr(unused).into()
            }
        }
    }

    fn variables(&mut self, it: Type<'a>, bytes: &[u8], depth: u32) -> Option<Map<String, Value>> {
        let mut variables = Map::new();
        let types = self.types;
        for variable in types.variables(it) {
            let (start, size) = (variable.offset as usize, variable.size as usize);
            let bytes = bytes.get(start..start.checked_add(size)?)?;
            let Some(of) = types.get(variable.type_id) else {
                continue;
            };
            let value = self.value(of.refers_to(), bytes, depth + 1)?;
            variables.insert(String::from_utf8_lossy(of.name).into_owned(), value);
        }
        Some(variables)
    }
}

fn integer(it: Type<'_>, bytes: &[u8]) -> Value {
    let encoding = it.int_encoding().unwrap_or(0);
    match unsigned(bytes) {
        Some(value) if encoding & BOOL != 0 => (value != 0).into(),
        Some(value) if encoding & SIGNED != 0 => {
            let unused = 64 - 8 * bytes.len() as u32;
            (value << unused).cast_signed().wrapping_shr(unused).into()
        }
        Some(value) => value.into(),
        None => hex(bytes).into(),
    }
}

fn float(bytes: &[u8]) -> Value {
    if let Ok(bytes) = bytes.try_into() {
        f32::from_le_bytes(bytes).into()
    } else if let Ok(bytes) = bytes.try_into() {
        f64::from_le_bytes(bytes).into()
    } else {
        hex(bytes).into()
    }
}

/// Returns a little-endian number of 1 to 8 bytes.
fn unsigned(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 8 {
        return None;
    }
    let bytes = bytes.iter().rev();
    Some(bytes.fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// Returns bytes as text if they end with a zero, or are full, and are readable.
fn as_text(bytes: &[u8]) -> Option<Value> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let shown = &bytes[..end.unwrap_or(bytes.len())];
    let readable = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace();
    let shown = std::str::from_utf8(shown).ok()?;
    (shown.bytes().all(|byte| readable(&byte))).then(|| shown.into())
}

fn text(name: &[u8]) -> Value {
    String::from_utf8_lossy(name).into()
}

/// Returns two digits per byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types that are written one after the other, as a compiler writes them.
    #[derive(Default)]
    struct Types {
        types: Vec<u32>,
        strings: Vec<u8>,
        last: u32,
    }

    /// Members have sizes in bits.
    const FLAGGED: u32 = 1 << 31;

    impl Types {
        fn name(&mut self, name: &str) -> u32 {
            // The first is the empty one.
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.bytes().chain([0]));
            at
        }

        fn add(&mut self, name: &str, info: u32, size: u32, rest: &[u32]) -> u32 {
            let name = self.name(name);
            self.types.extend([name, info, size]);
            self.types.extend(rest);
            self.last += 1;
            self.last
        }

        fn integer(&mut self, size: u32, encoding: u32) -> u32 {
            let info = u32::from(kind::INT) << 24;
            self.add("", info, size, &[(encoding << 24) | (8 * size)])
        }

        fn array(&mut self, element: u32, count: u32) -> u32 {
            let info = u32::from(kind::ARRAY) << 24;
            self.add("", info, 0, &[element, element, count])
        }

        /// Members: name, type, word of the offset.
        fn structure(&mut self, flags: u32, size: u32, members: &[(&str, u32, u32)]) -> u32 {
            let rest: Vec<u32> = members
                .iter()
                .flat_map(|(name, of, offset)| [self.name(name), *of, *offset])
                .collect();
            let info = u32::from(kind::STRUCT) << 24 | flags | members.len() as u32;
            self.add("record", info, size, &rest)
        }

        fn bytes(&self) -> Vec<u8> {
            let types = (4 * self.types.len()) as u32;
            let strings = self.strings.len() as u32;
            let mut bytes = vec![0x9f, 0xeb, 1, 0];
            for word in [24, 0, types, types, strings] {
                bytes.extend(u32::to_le_bytes(word));
            }
            bytes.extend(self.types.iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(&self.strings);
            bytes
        }
    }

    fn decoded(types: &Types, id: u32, bytes: &[u8]) -> Option<Value> {
        let data = types.bytes();
        decode(&Btf::parse(&data).expect("it is BTF"), id, bytes)
    }

    #[test]
    fn structures_are_objects() {
        let mut types = Types::default();
        let (number, signed) = (types.integer(4, 0), types.integer(4, SIGNED));
        let (character, truth) = (types.integer(1, SIGNED), types.integer(1, BOOL));
        let (text, pair) = (types.array(character, 4), types.array(number, 2));
        let enumeration = u32::from(kind::ENUM) << 24 | 2;
        let (red, blue) = (types.name("RED"), types.name("BLUE"));
        let color = types.add("", enumeration, 4, &[red, 1, blue, u32::MAX]);
        let pointer = types.add("", u32::from(kind::PTR) << 24, 0, &[]);
        let inner = types.structure(0, 4, &[("inside", number, 0)]);
        let members = [
            ("count", number, 0),
            ("less", signed, 32),
            ("text", text, 64),
            ("is", truth, 96),
            ("pair", pair, 128),
            ("color", color, 192),
            ("", inner, 224),
            ("at", pointer, 256),
        ];
        let record = types.structure(0, 40, &members);
        let mut bytes = Vec::new();
        for word in [
            7,
            u32::MAX,
            u32::from_le_bytes(*b"sh\0x"),
            1,
            3,
            4,
            u32::MAX,
            9,
            0x1000,
            0,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        let expected = json!({
            "count": 7, "less": -1, "text": "sh", "is": true, "pair": [3, 4], "color": "BLUE", "inside": 9, "at": "0x1000",
        });
        assert_eq!(decoded(&types, record, &bytes), Some(expected.clone()));
        // Data that are stored in whole 8 bytes have zeros behind them.
        bytes.extend([0; 4]);
        assert_eq!(decoded(&types, record, &bytes), Some(expected));
        bytes.extend([0; 4]);
        assert_eq!(decoded(&types, record, &bytes), None, "another record");
        assert_eq!(decoded(&types, record, &bytes[..39]), None, "too short");
        assert_eq!(decoded(&types, 99, &bytes), None, "no such type");
        let data = types.bytes();
        let btf = Btf::parse(&data).expect("it is BTF");
        assert!(named(&btf, "record").is_some() && named(&btf, "other").is_none());
    }

    #[test]
    fn bit_fields_are_numbers() {
        let mut types = Types::default();
        let (number, signed) = (types.integer(4, 0), types.integer(4, SIGNED));
        let members = [
            ("low", number, 3 << 24),
            ("next", signed, 5 << 24 | 3),
            ("across", number, 10 << 24 | 8),
        ];
        let record = types.structure(FLAGGED, 4, &members);
        let word = 0b101 | (0b11110 << 3) | (0x2a5 << 8);
        let expected = json!({ "low": 5, "next": -2, "across": 0x2a5 });
        assert_eq!(
            decoded(&types, record, &u32::to_le_bytes(word)),
            Some(expected)
        );
    }

    #[test]
    fn types_without_an_end_are_given_up() {
        let mut types = Types::default();
        let number = types.integer(1, 0);
        let many = types.array(number, 100_000);
        let bytes = vec![1; 100_000];
        // No text, and more values than a line may have.
        assert_eq!(decoded(&types, many, &bytes), None);
        // A structure that holds itself.
        let next = types.last + 1;
        let itself = types.structure(0, 8, &[("again", next, 0)]);
        assert_eq!(decoded(&types, itself, &[0; 8]), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_numbers() {
        let mut types = Types::default();
        let character = types.integer(1, 0);
        let text = types.array(character, 3);
        assert_eq!(decoded(&types, text, b"abc"), Some(json!("abc")));
        assert_eq!(decoded(&types, text, &[0, 1, 2]), Some(json!("")));
        assert_eq!(decoded(&types, text, &[1, 2, 0]), Some(json!([1, 2, 0])));
        assert_eq!(
            decoded(&types, text, &[0xff, 65, 0]),
            Some(json!([255, 65, 0]))
        );
    }
}
