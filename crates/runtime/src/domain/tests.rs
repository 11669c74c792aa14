use super::*;

const USER: u32 = 1000;

fn credentials() -> Credentials {
    Credentials {
        users: [USER; 3],
        groups: [USER; 3],
        capabilities: 0,
        namespaces: [1, 2],
        alone: None,
    }
}

fn enter(domains: &Domains, credentials: &Credentials, tag: u32) -> io::Result<Arc<Domain>> {
    domains.enter(credentials, (0, tag), |_| {})
}

#[test]
fn a_domain_lives_as_long_as_its_targets() {
    let domains = Domains::new().unwrap();
    let first = enter(&domains, &credentials(), 7).unwrap();
    let again = enter(&domains, &credentials(), 8).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    let retire = || domains.retire(Duration::ZERO).len();
    assert_eq!(retire(), 0);
    first.dismiss(7);
    assert!(!first.has(7) && first.has(8));
    assert_eq!(retire(), 0);
    first.dismiss(8);
    assert_eq!(domains.retire(Duration::from_secs(3600)).len(), 0);
    first.page().missed.store(5, SeqCst);
    assert_eq!(retire(), 1);
    assert!(first.is_retired() && !first.admit(9));
    assert_eq!(domains.home().page().missed.load(SeqCst), 5);
    let next = enter(&domains, &credentials(), 9).unwrap();
    assert!(next.id != first.id && next.is_like(&first));
    assert_eq!(domains.all().len(), 2);
}

#[test]
fn all_slots_are_taken_or_none() {
    let domains = Domains::new().unwrap();
    let home = domains.home();
    let owner = |slot: usize| home.page().leases[slot].owner();
    let taken = home.take_all_slots(2).unwrap();
    assert_eq!(
        (owner(0), owner(1), owner(2)),
        (MOVING_OWNER, MOVING_OWNER, 0)
    );
    drop(taken);
    assert_eq!((owner(0), owner(1)), (0, 0));
    home.page().leases[1].holder.store(7, SeqCst);
    assert!(home.take_all_slots(2).is_none());
    assert_eq!((owner(0), owner(1)), (0, 7));
}

#[test]
fn a_user_has_only_so_many_domains() {
    let domains = Domains::new().unwrap();
    let one = |number: usize| Credentials {
        alone: Some((1, number as u64)),
        ..credentials()
    };
    for number in 0..MOST_OF_USER {
        enter(&domains, &one(number), 7).unwrap();
    }
    let more = enter(&domains, &one(MOST_OF_USER), 7).map(drop);
    assert_eq!(more.unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    let other = Credentials {
        users: [USER + 1; 3],
        ..credentials()
    };
    assert!(enter(&domains, &other, 7).is_ok());
}

#[test]
fn a_process_leaves_its_domain_when_it_cannot_go_back() {
    let root = Credentials {
        users: [0; 3],
        groups: [0; 3],
        capabilities: 1 << 7,
        ..credentials()
    };
    let visitor = Credentials {
        users: [0, USER, 0],
        alone: Some((1, 2)),
        ..root.clone()
    };
    assert!(root.can_return_to(&root) && visitor.can_return_to(&root));
    let gone = [
        credentials(),
        Credentials {
            users: [0, USER, USER],
            ..root.clone()
        },
        Credentials {
            groups: [USER; 3],
            ..root.clone()
        },
        Credentials {
            capabilities: 0,
            ..root.clone()
        },
        Credentials {
            namespaces: [1, 3],
            ..root.clone()
        },
        // It is not dumpable any more.
        Credentials {
            alone: Some((1, 2)),
            ..root.clone()
        },
    ];
    for now in gone {
        assert!(!now.can_return_to(&root), "{now:?}");
    }
}
