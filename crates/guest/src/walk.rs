//! Elements of a map, many in one answer.

use beeline_wire::info::Kind;
use beeline_wire::layout::command;
use beeline_wire::messages::{Walk, Walked};
use rustix::io::Errno;

use crate::bpf::element;
use crate::handles::Handles;
use crate::refusal::Refusal;

/// Bytes of one answer's keys and values.
const MOST: usize = 8 << 20;

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
    if !key.is_empty() && key.len() != key_len {
        let why = format!("a key of {} bytes in place of {key_len}", key.len());
        return Err(Refusal::new(libc::EINVAL, why));
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
