//! Helpers: their numbers, their arguments and results (`struct bpf_func_proto`), the maps that
//! they work on, and the programs that may call them.
//!
//! The tables hold every helper of Linux 6.18. A helper whose arguments depend on the program type
//! has an entry for each form.

mod id;
mod prototype;
mod sets;
mod table;

pub mod availability;
pub mod cgroup;
pub mod general;
pub mod hooks;
pub mod maps;
pub mod packet;
pub mod socket;
pub mod tracing;

pub use id::HelperId;
pub use prototype::{Arg, Dynptr, Helper, Ret};
pub use sets::Sets;

/// Returns the helper with this number. If it has several forms, returns the one for tracing
/// programs.
pub fn prototype(id: HelperId) -> Option<&'static Helper> {
    FORMS.get(id.0 as usize).and_then(|forms| forms[0])
}

const TABLES: [&[&Helper]; 5] = [
    general::ALL,
    tracing::ALL,
    packet::ALL,
    socket::ALL,
    cgroup::ALL,
];

/// The most forms of one helper.
const MOST_FORMS: usize = 3;

/// The forms of each helper, by number, in the order of the tables.
static FORMS: [[Option<&Helper>; MOST_FORMS]; HelperId::COUNT as usize] = {
    let mut forms = [[None; MOST_FORMS]; HelperId::COUNT as usize];
    let mut table = 0;
    while table < TABLES.len() {
        let mut at = 0;
        while at < TABLES[table].len() {
            let helper = TABLES[table][at];
            let places: &mut [Option<&Helper>; MOST_FORMS] = &mut forms[helper.id.0 as usize];
            let mut free = 0;
            while places[free].is_some() {
                free += 1;
            }
            places[free] = Some(helper);
            at += 1;
        }
        table += 1;
    }
    forms
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_helper_has_a_prototype() {
        for id in (1..HelperId::COUNT).map(HelperId) {
            let found = prototype(id).map(|helper| helper.id);
            assert_eq!(found, Some(id));
        }
        assert_eq!(prototype(HelperId(0)), None);
        assert_eq!(prototype(HelperId(HelperId::COUNT)), None);
    }

    #[test]
    fn forms_of_tracing_programs_come_first() {
        let form = |id| prototype(id).expect("a helper");
        let expected = [
            &general::GET_CGROUP_CLASSID_CURRENT,
            &tracing::GET_STACKID,
            &tracing::GET_FUNC_IP,
            &tracing::GET_SOCKET_COOKIE_SOCK,
            &tracing::SK_STORAGE_GET_TRACING,
        ];
        for helper in expected {
            assert_eq!(form(helper.id), helper);
        }
    }

    #[test]
    fn a_set_has_one_form_of_a_helper() {
        for set in Sets::ALL {
            for forms in FORMS {
                let of_set = forms
                    .into_iter()
                    .flatten()
                    .filter(|helper| helper.sets.meets(*set));
                assert!(of_set.count() <= 1, "{:?}", forms[0]);
            }
        }
    }

    #[test]
    fn every_size_follows_what_it_is_the_size_of() {
        for helper in TABLES.concat() {
            let mut before = None;
            for arg in helper.args {
                let is_size = matches!(arg, Arg::Size | Arg::SizeOrZero);
                let is_sized = matches!(before, Some(Arg::Mem { fixed: None, .. }));
                assert_eq!(is_size, is_sized, "{:?}", helper.id);
                before = Some(*arg);
            }
            assert!(helper.args.len() <= 5);
        }
    }
}
