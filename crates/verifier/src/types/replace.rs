//! Checks by their types whether one function may stand in for another
//! (`btf_check_func_type_match`).

use beeline_btf::{Type, kind, linkage};
use beeline_uapi::Errno;

use super::table::{TypeTable, is_number, is_struct, kind_name, text};
use super::{ProgramTypes, Refused};

impl ProgramTypes {
    /// Checks that this program's first function may replace `function` of the other program.
    ///
    /// `function` is the number of a `FUNC`.
    ///
    /// # Errors
    /// `EINVAL` if one of the two is not global, this program's types describe no function, or
    /// their prototypes differ. `EFAULT` if one of them has no prototype.
    pub fn may_replace(&self, other: &Self, function: u32) -> Result<(), Refused> {
        let Some(own) = self.function(0) else {
            return refuse("Program extension requires BTF".to_owned());
        };
        let one = Side::of(&self.types, own.id)?;
        let two = Side::of(&other.types, function)?;
        one.check(&two)
    }
}

fn refuse(line: String) -> Result<(), Refused> {
    Err((Errno::EINVAL, line))
}

/// One of the two functions.
struct Side<'a> {
    types: &'a TypeTable,
    name: &'a str,
    prototype: Type<'a>,
}

impl<'a> Side<'a> {
    fn of(types: &'a TypeTable, function: u32) -> Result<Self, Refused> {
        let name = types.name(function);
        if types.at(function).linkage() != Some(linkage::GLOBAL) {
            return Err((Errno::EINVAL, format!("{name}() is not a global function")));
        }
        let prototype = types.prototype(function);
        Ok(Self {
            types,
            name,
            prototype: prototype.ok_or((Errno::EFAULT, String::new()))?,
        })
    }

    fn check(&self, other: &Self) -> Result<(), Refused> {
        let (name, other_name) = (self.name, other.name);
        let (count, other_count) = (self.prototype.count(), other.prototype.count());
        if count != other_count {
            return refuse(format!(
                "{name}() has {count} args while {other_name}() has {other_count} args"
            ));
        }
        let (result, other_result) = (self.result(), other.result());
        if !alike(result, other_result) {
            let (result, other_result) = (kind_name(result), kind_name(other_result));
            return refuse(format!(
                "Return type {result} of {name}() doesn't match type {other_result} of {other_name}()"
            ));
        }
        let own = self.types.params(self.prototype);
        let others = other.types.params(other.prototype);
        for (index, (one, two)) in own.zip(others).enumerate() {
            self.check_argument(other, index, (one.type_id, two.type_id))?;
        }
        Ok(())
    }

    fn result(&self) -> Type<'a> {
        self.types.skip_modifiers(self.prototype.refers_to()).1
    }

    fn check_argument(&self, other: &Self, index: usize, ids: (u32, u32)) -> Result<(), Refused> {
        let (name, other_name) = (self.name, other.name);
        let one = self.types.skip_modifiers(ids.0).1;
        let two = other.types.skip_modifiers(ids.1).1;
        if !alike(one, two) {
            let (one, two) = (kind_name(one), kind_name(two));
            return refuse(format!(
                "arg{index} in {name}() is {one} while {other_name}() has {two}"
            ));
        }
        if (is_number(one) || is_struct(one)) && one.size() != two.size() {
            let (one, two) = (one.size(), two.size());
            return refuse(format!(
                "arg{index} in {name}() has size {one} while {other_name}() has {two}"
            ));
        }
        if is_number(one) {
            return Ok(());
        }
        if one.kind != kind::PTR {
            return refuse(format!("arg{index} in {name}() has unrecognized type"));
        }
        let (one, two) = (self.types.target(one).1, other.types.target(two).1);
        for (it, name) in [(one, name), (two, other_name)] {
            if !is_struct(it) {
                return refuse(format!(
                    "arg{index} in {name}() is not a pointer to context"
                ));
            }
        }
        if one.name != two.name {
            let (one, two) = (text(one.name), text(two.name));
            return refuse(format!(
                "arg{index} {name}(struct {one} *) doesn't match {other_name}(struct {two} *)"
            ));
        }
        Ok(())
    }
}

/// Returns whether the words that describe the types are equal (`btf_type::info`).
fn alike(one: Type<'_>, two: Type<'_>) -> bool {
    one.kind == two.kind && one.count() == two.count() && one.is_flagged() == two.is_flagged()
}
