//! Bytes as the values that their type says they are.

use beeline_btf::{Btf, Type, kind};
use serde_json::{Map, Value, json};

/// How deep structures are followed, and how many values one record may have: types of a file may hold each other many times over.
const DEEPEST: u32 = 16;
const MOST: u32 = 4096;
/// Bits of an integer's encoding.
const SIGNED: u32 = 1;
const BOOL: u32 = 4;

/// The value that the bytes are by a type. Structures are objects, by their members' names; characters that end with a zero, texts;
/// enumerators, their names; pointers, `"0x..."`. `None` if the type has no size or another one than the bytes: one that is shorter
/// by less than 8 bytes fits, as records of perf events have zeros behind them.
pub fn decode(types: &Btf<'_>, type_id: u32, bytes: &[u8]) -> Option<Value> {
    let size = types.size(type_id)? as usize;
    if size == 0 || size > bytes.len() || bytes.len() - size >= 8 {
        return None;
    }
    Decoder { types, left: MOST }.value(type_id, &bytes[..size], 0)
}

/// The number of a structure, union or type's name.
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
                // Members of an anonymous one are the outer one's.
                (b"", Value::Object(inner)) => members.extend(inner),
                (b"", _) => {}
                (name, value) => {
                    members.insert(String::from_utf8_lossy(name).into_owned(), value);
                }
            }
        }
        Some(members)
    }

    /// A field of at most 64 bits, of a little-endian machine's.
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

/// Little-endian, of 1 to 8 bytes.
fn unsigned(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 8 {
        return None;
    }
    let bytes = bytes.iter().rev();
    Some(bytes.fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// What ends with a zero, or is full, and is to be read.
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

/// Two digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
