//! Elements of a map: one, or many in one answer.

use beeline_wire::info::Kind;
use beeline_wire::layout::command;
use beeline_wire::messages::{Content, LookUp, Walk, Walked};
use rustix::io::Errno;

use crate::bpf::element;
use crate::handles::Handles;
use crate::refusal::Refusal;

/// Bytes of one answer's keys and values.
const MOST: usize = 8 << 20;

/// One value. Errors: `ENOENT`, and what else the kernel says; `EOPNOTSUPP` for a map of another type than the message is for.
pub fn look_up(mut request: LookUp, handles: &Handles, cpus: u32) -> Result<Content, Refusal> {
    let map = handles.of_kind(request.handle, Kind::Map)?;
    let facts = map.facts.unwrap_or_default();
    if !facts.has_plain_elements() {
        let why = "elements of such a map are not looked up in this way";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    check_key(&request.key, facts.key_size as usize)?;
    let mut data = vec![0; facts.value_len(cpus)];
    element(
        command::MAP_LOOKUP_ELEM,
        &map,
        Some(&mut request.key),
        &mut data,
    )?;
    Ok(Content { data, end: false })
}

fn check_key(key: &[u8], len: usize) -> Result<(), Refusal> {
    if key.len() != len {
        let why = format!("a key of {} bytes in place of {len}", key.len());
        return Err(Refusal::new(libc::EINVAL, why));
    }
    Ok(())
}

/// Keys behind one, with their values. An element that is deleted meanwhile is left out.
pub fn walk(request: &Walk, handles: &Handles, cpus: u32) -> Result<Walked, Refusal> {
    let map = handles.of_kind(request.handle, Kind::Map)?;
    let facts = map.facts.unwrap_or_default();
    let (key_len, value_len) = (facts.key_size as usize, facts.value_len(cpus));
    if key_len == 0 || value_len == 0 || value_len > MOST {
        let why = "that map has no elements with keys, or too big ones";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    let mut key = request.after.clone();
    if !key.is_empty() {
        check_key(&key, key_len)?;
    }
    let mut walked = Walked::default();
    let mut next = vec![0; key_len];
    let mut value = vec![0; value_len];
    let mut count = 0;
    while count < request.count && walked.keys.len() + walked.values.len() < MOST {
        let before = (!key.is_empty()).then_some(&mut key[..]);
        match element(command::MAP_GET_NEXT_KEY, &map, before, &mut next) {
            Ok(()) => {}
            Err(Errno::NOENT) => {
                walked.end = true;
                break;
            }
            Err(errno) => return Err(errno.into()),
        }
        match element(command::MAP_LOOKUP_ELEM, &map, Some(&mut next), &mut value) {
            Ok(()) => {
                walked.keys.extend(&next);
                walked.values.extend(&value);
                count += 1;
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        key.clone_from(&next);
    }
    Ok(walked)
}
