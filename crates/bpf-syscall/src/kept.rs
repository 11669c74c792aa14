//! Objects that live without a descriptor, because others keep them: a link its program, a program
//! its maps and its types. The tool may know them by their ids alone.

use std::sync::Arc;

use crate::objects::{Btf, Object, ProgramObject};

impl Object {
    /// Calls `each` with it and with all that it keeps alive, but for the elements of maps.
    pub(crate) fn each_kept(&self, each: &mut impl FnMut(&Object)) {
        each(self);
        let of_program = |program: &Arc<ProgramObject>| Object::Program(Arc::clone(program));
        let of_btf = |btf: &Arc<Btf>| Object::Btf(Arc::clone(btf));
        let kept: Vec<Object> = match self {
            Object::Link(link) => vec![of_program(&link.program)],
            Object::Event(event) => event
                .program()
                .as_ref()
                .map(of_program)
                .into_iter()
                .collect(),
            Object::Program(program) => {
                let maps = program.maps.lock().clone().into_iter().map(Object::Map);
                program.btf.iter().map(of_btf).chain(maps).collect()
            }
            Object::Map(map) => map.btf.iter().map(|(btf, ..)| of_btf(btf)).collect(),
            Object::Btf(_) | Object::Ring(_) => Vec::new(),
        };
        kept.iter().for_each(|object| object.each_kept(each));
    }
}
