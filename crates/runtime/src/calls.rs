//! The system calls of files: where their code makes them, found once for a file.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use beeline_hook::{CallPlan, CallSites, Function, SparedCall};
use beeline_inject::Region;

use crate::binary::Binary;
use crate::error::Error;
use crate::link::{FileId, file_id};

/// What a file's code does to call the kernel. Addresses are file offsets.
#[derive(Debug)]
pub struct FileCalls(CallSites);

impl FileCalls {
    fn read(path: &Path) -> Result<Self, Error> {
        let bytes = fs::read(path).map_err(|source| Error::Open {
            path: path.into(),
            source,
        })?;
        let binary = Binary::parse(&bytes).map_err(|why| Error::Binary {
            path: path.into(),
            why,
        })?;
        let functions = binary.functions();
        let functions = functions.iter().filter_map(|range| {
            let code = bytes.get(range.start as usize..range.end as usize)?;
            Some(Function {
                start: range.start,
                code,
            })
        });
        let functions: Vec<_> = functions.collect();
        Ok(Self(CallSites::of(&functions)))
    }
}

/// The files of a session, by what identifies their contents.
#[derive(Debug, Default)]
pub struct CallFiles(Mutex<HashMap<FileId, Arc<FileCalls>>>);

impl CallFiles {
    /// The calls of a file, which must be the one with this inode.
    pub fn of(&self, path: &Path, inode: u64) -> Result<Arc<FileCalls>, Error> {
        let key = file_id(path)?;
        if key.1 != inode {
            return Err(Error::Binary {
                path: path.into(),
                why: "it has been replaced since it was mapped".into(),
            });
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = known.get(&key) {
            return Ok(file.clone());
        }
        let file = Arc::new(FileCalls::read(path)?);
        known.insert(key, file.clone());
        Ok(file)
    }
}

impl FileCalls {
    /// The plans for a mapping of the file, at the addresses there.
    pub fn within(&self, region: &Region) -> Vec<CallPlan> {
        let bias = region.start.wrapping_sub(region.offset);
        let inside = |plan: &&CallPlan| is_inside(plan.call, region);
        let plans = self.0.plans.iter().filter(inside);
        plans.map(|plan| plan.at(bias)).collect()
    }

    /// The calls of a mapping that cannot be hooked, with their addresses there.
    pub fn spared_within(&self, region: &Region) -> Vec<(u64, &SparedCall)> {
        let bias = region.start.wrapping_sub(region.offset);
        let inside = |spared: &&SparedCall| is_inside(spared.call, region);
        let spared = self.0.spared.iter().filter(inside);
        spared
            .map(|spared| (spared.call.wrapping_add(bias), spared))
            .collect()
    }
}

/// Is a file offset in a mapping?
fn is_inside(offset: u64, region: &Region) -> bool {
    (region.offset..region.offset + (region.end - region.start)).contains(&offset)
}
