//! The policy: which virtual CPUs are pinned, and where. It is a function only of the guest's
//! wishes and of what the operator allows.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpus::{Core, CpuList};

/// The treatment of a guest's wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Guest CPU n runs on the n-th CPU that was given.
    #[default]
    Mirror,
    /// As [`Policy::Mirror`], with the CPUs in such an order that guest CPUs 2n and 2n + 1 are
    /// threads of one core, as long as there are such pairs.
    Remap,
    /// Nothing is pinned; wishes are only reported.
    Deny,
}

/// Guest CPUs, a bit each: bit n of byte n / 8, as `sched_setaffinity` has them.
pub type Mask = Vec<u8>;

/// The CPUs where virtual CPUs may run, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    hosts: Vec<u32>,
    vcpus: BTreeSet<u32>,
    policy: Policy,
}

impl Plan {
    /// Creates a plan for a guest with CPUs of these numbers, on the given CPUs and the cores that
    /// they belong to ([`crate::cpus::cores`]).
    pub fn new(
        policy: Policy,
        vcpus: impl IntoIterator<Item = u32>,
        cpus: &CpuList,
        cores: &[Core],
    ) -> Self {
        let hosts = match policy {
            Policy::Mirror => cpus.0.clone(),
            Policy::Remap => in_pairs(cores),
            Policy::Deny => Vec::new(),
        };
        Self {
            hosts,
            vcpus: vcpus.into_iter().collect(),
            policy,
        }
    }

    /// Returns where each virtual CPU that is to be pinned is to run, when the guest's threads have
    /// these masks.
    ///
    /// A virtual CPU is pinned if a thread is bound to it. A thread that may run on all of the
    /// guest's CPUs, or on none that exists, binds nothing. No virtual CPU is pinned to a CPU that
    /// was not given, and no two to one. Those for which there is none stay as they are.
    pub fn pins<'a>(&self, masks: impl IntoIterator<Item = &'a Mask>) -> BTreeMap<u32, u32> {
        let wanted = masks.into_iter().flat_map(|mask| self.bound(mask));
        let pins = wanted.filter_map(|vcpu| Some((vcpu, self.host(vcpu)?)));
        pins.collect()
    }

    /// Returns the CPU that a virtual one is pinned to.
    pub fn host(&self, vcpu: u32) -> Option<u32> {
        let place = usize::try_from(vcpu).ok()?;
        let host = self.hosts.get(place).copied();
        host.filter(|_| self.vcpus.contains(&vcpu))
    }

    /// Returns the guest's CPUs that a mask binds a thread to; none if it is free.
    pub fn bound(&self, mask: &Mask) -> Vec<u32> {
        let in_mask = |vcpu: &u32| {
            let byte = usize::try_from(*vcpu / 8).ok().and_then(|at| mask.get(at));
            byte.is_some_and(|byte| byte >> (vcpu % 8) & 1 != 0)
        };
        let bound: Vec<u32> = self.vcpus.iter().copied().filter(in_mask).collect();
        match bound.len() == self.vcpus.len() {
            true => Vec::new(),
            false => bound,
        }
    }

    /// Returns the policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }
}

/// Returns whole pairs of threads first, then the rest of the cores.
fn in_pairs(cores: &[Core]) -> Vec<u32> {
    let pairs = cores.iter().flat_map(|core| core.chunks_exact(2)).flatten();
    let single = cores
        .iter()
        .flat_map(|core| core.chunks_exact(2).remainder());
    pairs.chain(single).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mask(vcpus: &[u32]) -> Mask {
        let mut mask = vec![0; 128];
        for vcpu in vcpus {
            mask[*vcpu as usize / 8] |= 1 << (vcpu % 8);
        }
        mask
    }

    fn mirror(vcpus: u32, cpus: &str) -> Plan {
        Plan::new(Policy::Mirror, 0..vcpus, &cpus.parse().unwrap(), &[])
    }

    fn pins(plan: &Plan, masks: &[Mask]) -> Vec<(u32, u32)> {
        plan.pins(masks).into_iter().collect()
    }

    #[test]
    fn mirrored_is_one_to_one() {
        let plan = mirror(4, "8-11");
        assert_eq!(pins(&plan, &[mask(&[1])]), [(1, 9)]);
        assert_eq!(pins(&plan, &[mask(&[0, 2])]), [(0, 8), (2, 10)]);
        assert_eq!(
            pins(&plan, &[mask(&[3]), mask(&[0]), mask(&[3])]),
            [(0, 8), (3, 11)]
        );
        assert_eq!(pins(&plan, &[]), []);
    }

    #[test]
    fn a_thread_that_is_free_binds_nothing() {
        let plan = mirror(2, "0-1");
        assert_eq!(pins(&plan, &[mask(&[0, 1])]), []);
        assert_eq!(pins(&plan, &[mask(&[0, 1, 2, 900])]), []);
        assert_eq!(pins(&plan, &[mask(&[0, 1]), mask(&[1])]), [(1, 1)]);
    }

    #[test]
    fn numbers_may_have_gaps() {
        let plan = Plan::new(Policy::Mirror, [0, 1, 3], &"4-7".parse().unwrap(), &[]);
        assert_eq!(pins(&plan, &[mask(&[1, 2, 3])]), [(1, 5), (3, 7)]);
        assert_eq!(pins(&plan, &[mask(&[0, 1, 3])]), [], "all that there are");
        assert_eq!(plan.host(2), None);
    }

    #[test]
    fn values_that_were_not_given_are_never_used() {
        // More guest CPUs than given ones.
        let plan = mirror(8, "5,3");
        assert_eq!(pins(&plan, &[mask(&[0, 1, 2, 3])]), [(0, 5), (1, 3)]);
        assert_eq!(pins(&plan, &[mask(&[7])]), []);
        // Fewer.
        let plan = mirror(1, "4-6");
        assert_eq!(
            pins(&plan, &[mask(&[0])]),
            [],
            "its only CPU is all of them"
        );
        let plan = mirror(2, "4-6");
        assert_eq!(pins(&plan, &[mask(&[1, 2])]), [(1, 5)]);
    }

    #[test]
    fn masks_of_any_length_do_no_harm() {
        let plan = mirror(16, "0-15");
        for bad in [vec![], vec![0; 128], vec![0xff; 4096], vec![0, 0, 0xff]] {
            assert_eq!(pins(&plan, &[bad]), []);
        }
        assert_eq!(pins(&plan, &[vec![0x02]]), [(1, 1)]);
        assert_eq!(pins(&plan, &[vec![0, 0x80]]), [(15, 15)]);
    }

    #[test]
    fn neighbours_come_to_threads_of_one_core() {
        let cores = [vec![0, 4], vec![1, 5], vec![2], vec![3, 7, 9]];
        let cpus = "0-5,7,9".parse().unwrap();
        let plan = Plan::new(Policy::Remap, 0..8, &cpus, &cores);
        let hosts: Vec<_> = (0..8).map(|vcpu| plan.host(vcpu)).collect();
        let expected = [0, 4, 1, 5, 3, 7, 2, 9].map(Some);
        assert_eq!(hosts, expected);
        assert_eq!(pins(&plan, &[mask(&[2]), mask(&[3])]), [(2, 1), (3, 5)]);
    }

    #[test]
    fn denied_is_denied() {
        let plan = Plan::new(
            Policy::Deny,
            0..4,
            &"0-3".parse().unwrap(),
            &[vec![0, 1, 2, 3]],
        );
        assert_eq!(pins(&plan, &[mask(&[1])]), []);
        assert_eq!(plan.bound(&mask(&[1])), [1]);
    }

    proptest! {
        /// Whatever a guest says, it gets only CPUs that were given, each for one virtual CPU, and
        /// only for existing ones.
        #[test]
        fn a_hostile_guest_gets_what_was_given_and_no_more(
            vcpus in 0u32..70,
            given in proptest::collection::btree_set(0u32..1024, 0..70),
            masks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..130), 0..8),
            remap in any::<bool>(),
        ) {
            let cpus = CpuList(given.iter().copied().collect());
            let cores: Vec<Core> = cpus.0.chunks(3).map(<[u32]>::to_vec).collect();
            let policy = if remap { Policy::Remap } else { Policy::Mirror };
            let plan = Plan::new(policy, 0..vcpus, &cpus, &cores);
            let pins = plan.pins(&masks);
            let mut used: Vec<u32> = pins.values().copied().collect();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len(), pins.len());
            for (vcpu, host) in &pins {
                prop_assert!(*vcpu < vcpus && given.contains(host));
                // A thread asked for it.
                prop_assert!(masks.iter().any(|mask| plan.bound(mask).contains(vcpu)));
            }
        }
    }
}
