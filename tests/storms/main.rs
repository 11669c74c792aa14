//! Beeline, the kernel's probes, debuggers and killers come and go at real servers, and not one
//! answer changes.
//!
//! `BEELINE_SOAK` makes it run for so many seconds at each server.

mod clients;
mod servers;
mod storm;

use beeline_e2e::{Turn, need};

/// A test for each server, so that each can be run alone.
macro_rules! storms {
    ($($test:ident: $server:ident,)*) => {
        $(#[test]
        fn $test() {
            let _turn = Turn::take();
            storm::Storm::over(stringify!($server), need!(servers::$server()));
        })*
    };
}

storms! {
    nginx_answers_in_a_storm: nginx,
    redis_answers_in_a_storm: redis,
    postgres_answers_in_a_storm: postgres,
    node_answers_in_a_storm: node,
    java_answers_in_a_storm: java,
    go_answers_in_a_storm: go,
}
