//! The states that later ones are compared with (`struct bpf_verifier_state_list`).

use crate::state::{State, StateId};

/// A state with the use that was made of it.
struct ExploredState {
    state: State,
    hits: u32,
    misses: u32,
    /// The bytes of the state when it was kept.
    weight: usize,
    /// True if it is not compared any more; it is dropped when no path needs it.
    retired: bool,
}

/// The states that were kept while one function is walked.
pub(super) struct ExploredStates {
    kept: Vec<Option<Box<ExploredState>>>,
    free: Vec<StateId>,
    /// The states that are compared, by instruction, the oldest first.
    by_insn: Vec<Vec<StateId>>,
    bytes: usize,
}

impl ExploredStates {
    /// Prepares for a program of so many instructions.
    pub(super) fn new(insns: usize) -> Self {
        Self {
            kept: Vec::new(),
            free: Vec::new(),
            by_insn: vec![Vec::new(); insns],
            bytes: 0,
        }
    }

    /// Drops all states.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.free.clear();
        self.by_insn.iter_mut().for_each(Vec::clear);
        self.bytes = 0;
    }

    /// Returns the bytes of all states that are there.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of states that are there.
    pub(super) fn count(&self) -> u32 {
        (self.kept.len() - self.free.len()) as u32
    }

    /// Returns whether a state is still there.
    pub(super) fn has(&self, id: StateId) -> bool {
        self.kept[id as usize].is_some()
    }

    /// Returns a state that is there.
    pub(super) fn state(&self, id: StateId) -> &State {
        match &self.kept[id as usize] {
            Some(kept) => &kept.state,
            None => unreachable!("a state that paths come from is kept"),
        }
    }

    /// Returns a state that is there, for changes.
    pub(super) fn state_mut(&mut self, id: StateId) -> &mut State {
        match &mut self.kept[id as usize] {
            Some(kept) => &mut kept.state,
            None => unreachable!("a state that paths come from is kept"),
        }
    }

    /// Returns the states at an instruction that are compared, the oldest first.
    pub(super) fn at(&self, insn: usize) -> &[StateId] {
        self.by_insn.get(insn).map_or(&[], Vec::as_slice)
    }

    /// Keeps a state at an instruction.
    pub(super) fn keep(&mut self, insn: usize, state: State) -> StateId {
        let weight = state.weight();
        self.bytes += weight;
        let kept = Some(Box::new(ExploredState {
            state,
            weight,
            hits: 0,
            misses: 0,
            retired: false,
        }));
        let id = match self.free.pop() {
            Some(id) => {
                self.kept[id as usize] = kept;
                id
            }
            None => {
                self.kept.push(kept);
                self.kept.len() as StateId - 1
            }
        };
        self.by_insn[insn].push(id);
        id
    }

    /// Counts a state that covered a later one.
    pub(super) fn hit(&mut self, id: StateId) {
        if let Some(kept) = &mut self.kept[id as usize] {
            kept.hits += 1;
        }
    }

    /// Counts a miss if it `counts`. Retires states that are often compared and never equal:
    /// returns `true` for such a one.
    pub(super) fn missed(&mut self, id: StateId, counts: bool, checkpoint: bool) -> bool {
        let Some(kept) = &mut self.kept[id as usize] else {
            return false;
        };
        kept.misses += u32::from(counts);
        let patience = if checkpoint && kept.state.branches > 0 {
            64
        } else {
            3
        };
        kept.retired = kept.misses > kept.hits * patience + patience;
        kept.retired
    }

    /// Compares the retired states at an instruction no more.
    pub(super) fn forget_retired(&mut self, insn: usize) {
        let kept = &self.kept;
        self.by_insn[insn].retain(|&id| kept[id as usize].as_ref().is_some_and(|it| !it.retired));
    }

    /// Returns whether a state is retired, and all paths from it are done.
    pub(super) fn is_over(&self, id: StateId) -> bool {
        let kept = self.kept[id as usize].as_ref();
        kept.is_some_and(|kept| kept.retired && kept.state.branches == 0)
    }

    /// Drops a state.
    pub(super) fn remove(&mut self, id: StateId) {
        if let Some(gone) = self.kept[id as usize].take() {
            self.bytes -= gone.weight;
            self.free.push(id);
        }
    }
}
