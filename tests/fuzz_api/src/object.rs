//! Object files: reads them, and judges and compiles their programs.

use beeline_object::{Contents, Kernel, MapDefinition, Object};
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::{FileTypes, ProgramTypes};

use crate::bytecode::judge;

/// A kernel with the types of the given file, so that relocations have a target.
struct Same(Vec<u8>);

impl Kernel for Same {
    fn btf(&self) -> Option<&[u8]> {
        (!self.0.is_empty()).then_some(&self.0)
    }

    fn version(&self) -> u32 {
        6 << 16 | 18 << 8
    }

    fn config(&self, name: &str) -> Option<String> {
        let value = match name.len() % 3 {
            0 => "y",
            1 => "17",
            _ => "\"text\"",
        };
        Some(value.to_owned())
    }

    fn symbol(&self, _: &str) -> Option<u64> {
        None
    }
}

/// Reads an eBPF object file.
pub fn object(data: &[u8]) {
    let Ok(first) = Object::parse(data, &Same(Vec::new())) else {
        return;
    };
    use_object(&first);
    if !first.btf.is_empty()
        && let Ok(relocated) = Object::parse(data, &Same(first.btf))
    {
        use_object(&relocated);
    }
}

fn use_object(object: &Object) {
    let types = FileTypes::parse(object.btf.clone());
    let maps: Vec<(i32, Map)> = (0..)
        .zip(&object.maps)
        .map(|(place, definition)| (place, map(place, definition)))
        .collect();
    let maps: Vec<(i32, &Map)> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
    for program in &object.programs {
        assert!(!program.insns.is_empty());
        let kind = Kind {
            prog_type: program.kind.prog_type,
            attach_type: program.kind.expected_attach_type,
            flags: program.kind.flags,
            attach_btf_id: program.target.btf_id(),
            ..Kind::default()
        };
        let starts: Vec<usize> = program.functions.iter().map(|(start, _)| *start).collect();
        let of_program = types.as_ref().map(|types| {
            let (functions, lines) = (&program.func_info, &program.line_info);
            ProgramTypes::of(
                types,
                functions,
                lines,
                &kind,
                &program.insns,
                &starts,
                None,
            )
        });
        let of_program = of_program.and_then(Result::ok);
        judge(&Program {
            kind,
            gpl: true,
            insns: &program.insns,
            maps: &maps,
            types: of_program.as_ref(),
            kernel: None,
            ..Default::default()
        });
    }
}

fn map(place: i32, definition: &MapDefinition) -> Map {
    Map {
        id: place.cast_unsigned() + 1,
        name: definition.name.clone(),
        map_type: definition.map_type,
        key_size: definition.key_size,
        value_size: definition.value_size,
        max_entries: definition.max_entries,
        flags: definition.flags,
        constant: match &definition.contents {
            Contents::Value(value) if definition.flags & 1 << 7 != 0 => Some(value.clone()),
            _ => None,
        },
        inner: definition
            .inner
            .as_ref()
            .map(|inner| Box::new(map(place, inner))),
        fields: Vec::new(),
    }
}
