//! Prints a guest's events as lines: for people, and for scripts.

use std::io::{self, Write};

use anyhow::{Context, bail};
use beeline_btf::OwnedBtf;
use beeline_object::Object;
use beeline_vm_loader::decode::{decode, hex, named};
use beeline_vm_loader::{Event, Map};
use beeline_vm_protocol::text::printable;
use serde_json::{Map as Members, Value};

/// Prints events.
pub struct Printer {
    /// The file's types; none if it has none.
    types: Option<OwnedBtf>,
    /// The type of records.
    record: Option<u32>,
    json: bool,
}

impl Printer {
    /// Creates a printer; `record` is a type's name.
    ///
    /// # Errors
    /// Fails if the file does not have the type.
    pub fn new(object: &Object, record: Option<&str>, json: bool) -> anyhow::Result<Self> {
        let types = OwnedBtf::parse(object.btf.clone());
        let record = match (record, &types) {
            (None, _) => None,
            (Some(name), Some(types)) => {
                let found = named(&types.view(), name);
                Some(found.with_context(|| format!("its types have no {name}"))?)
            }
            (Some(name), None) => bail!("it has no types, and so no {name}; compile it with -g"),
        };
        Ok(Self {
            types,
            record,
            json,
        })
    }

    /// Prints an event as a line.
    ///
    /// # Errors
    ///
    /// Those of writing to `out`.
    pub fn print(&self, event: &Event, maps: &[Map], out: &mut impl Write) -> io::Result<()> {
        let (Event::Record { map, .. }
        | Event::Lost { map, .. }
        | Event::Set { map, .. }
        | Event::Deleted { map, .. }) = event;
        let Some(map) = maps.get(*map) else {
            return Ok(());
        };
        let mut line = self.line(event, map);
        let line = if self.json {
            line.object.insert("map".into(), map.name().into());
            Value::Object(line.object).to_string()
        } else {
            format!("{}{}", map.name(), line.text)
        };
        // Names are the file's, and texts the guest's.
        writeln!(out, "{}", printable(&line))?;
        // A reader may wait for it at the other end of a pipe.
        out.flush()
    }

    fn line(&self, event: &Event, map: &Map) -> Line {
        let key_type = Some(map.definition().key_type);
        match event {
            Event::Record { cpu, data, .. } => {
                let mut line = Line::new("record");
                line.word("cpu", cpu.map(Value::from));
                line.bytes("data", data);
                line.decoded(self.decode(self.record, data));
                line
            }
            Event::Lost { cpu, count, .. } => {
                let mut line = Line::new("lost");
                line.word("cpu", Some((*cpu).into()));
                line.word("count", Some((*count).into()));
                line
            }
            Event::Set {
                key, value, before, ..
            } => {
                let mut line = Line::new("set");
                line.bytes("key", key);
                line.bytes("value", value);
                if let Some(before) = before {
                    line.object.insert("before".into(), hex(before).into());
                }
                line.decoded(both(self.decode(key_type, key), self.value(map, value)));
                line
            }
            Event::Deleted { key, before, .. } => {
                let mut line = Line::new("deleted");
                line.bytes("key", key);
                line.object.insert("before".into(), hex(before).into());
                line.decoded(both(self.decode(key_type, key), None));
                line
            }
        }
    }

    /// Returns a value; for per-CPU maps a list.
    fn value(&self, map: &Map, bytes: &[u8]) -> Option<Value> {
        let value_type = Some(map.definition().value_type);
        let Some(stride) = map.stride() else {
            return self.decode(value_type, bytes);
        };
        let values = bytes.chunks(stride);
        let values: Option<Vec<Value>> =
            values.map(|bytes| self.decode(value_type, bytes)).collect();
        values.map(Value::from)
    }

    fn decode(&self, type_id: Option<u32>, bytes: &[u8]) -> Option<Value> {
        let type_id = type_id.filter(|id| *id != 0)?;
        decode(&self.types.as_ref()?.view(), type_id, bytes)
    }
}

/// Combines the known parts of an element.
fn both(key: Option<Value>, value: Option<Value>) -> Option<Value> {
    let parts = [("key", key), ("value", value)].into_iter();
    let parts = parts.filter_map(|(name, part)| Some((name.to_owned(), part?)));
    let parts: Members<String, Value> = parts.collect();
    (!parts.is_empty()).then_some(Value::Object(parts))
}

/// A line in both forms.
struct Line {
    /// The text behind the map's name.
    text: String,
    object: Members<String, Value>,
}

impl Line {
    fn new(event: &str) -> Self {
        let mut object = Members::new();
        object.insert("event".into(), event.into());
        Self {
            text: format!(" {event}"),
            object,
        }
    }

    fn word(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.text += &format!(" {name} {value}");
            self.object.insert(name.into(), value);
        }
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        self.text += &format!(" {name} {}", hex(bytes));
        self.object.insert(name.into(), hex(bytes).into());
    }

    fn decoded(&mut self, value: Option<Value>) {
        if let Some(value) = value {
            self.text += &format!(" {value}");
            self.object.insert("decoded".into(), value);
        }
    }
}
