//! Tests of kernels beside kernels of other libraries, which also hold SMs and wait for other ranks.

mod tenant;

use mkernel::{Error, KernelConfig};
use mkernel_testing::jobs::{Backend, Machine, Turns, none_fails};
use mkernel_testing::kinds::{DISPATCH, ten_kinds};
use std::time::Duration;
use tenant::{Begun, Numbers, Tenant};

/// The SMs of a GPU.
const SMS: u32 = 6;
/// The SMs that a tenant holds.
const TENANT_SMS: u32 = 2;
/// The number of seeds of the usual test.
const SEEDS: u64 = 4;
/// The number of seeds of the ignored test.
const MANY_SEEDS: u64 = 1000;
/// The number of calls of a seed.
const CALLS: u64 = 12;

const MACHINE: Machine = Machine {
    world: 2,
    sms: SMS,
    skew: 60,
};

/// Returns operators of all kinds that use at most `max_sms` SMs.
fn operators(max_sms: Option<u32>) -> Vec<KernelConfig> {
    let mut kinds = ten_kinds(MACHINE.world, 1);
    kinds.iter_mut().for_each(|kind| kind.max_sms = max_sms);
    kinds
}

/// Makes calls of all operators in turn. Beside each call a tenant runs, which some ranks launch before the call and other ranks
/// after it.
fn beside_tenants(seed: u64, max_sms: Option<u32>) -> Result<(), String> {
    let configs = operators(max_sms);
    let begun = Begun::default();
    let mut calls = Numbers(seed);
    let order: Vec<_> = (0..CALLS)
        .map(|_| calls.below(configs.len() as u64) as usize)
        .collect();
    let outcome = MACHINE.run(Backend::Simulated { seed }, |ranks| {
        ranks.set_timeout(Duration::from_secs(20));
        let mut turns = Turns::new(ranks, &configs, &order)?;
        let mut tenant = Tenant::new(ranks, &begun, TENANT_SMS)?;
        // All ranks make these calls, but launch the tenants at different times.
        let mut times = Numbers(seed + 1000 * u64::from(ranks.rank()));
        for _ in &order {
            let is_first = times.below(2) == 0;
            if is_first {
                tenant.launch(times.below(20_000) as u32)?;
            }
            turns.call()?;
            if !is_first {
                tenant.launch(times.below(20_000) as u32)?;
            }
        }
        turns.check()?;
        tenant.synchronize()
    });
    outcome
        .map(drop)
        .map_err(|error| format!("seed {seed}: {error}"))
}

#[test]
fn kernels_run_beside_tenants_on_the_sms_that_they_leave() {
    let seeds: Vec<_> = (0..SEEDS).collect();
    none_fails(&seeds, |seed| beside_tenants(*seed, Some(SMS - TENANT_SMS)));
}

#[test]
#[ignore = "takes about an hour"]
fn kernels_run_beside_tenants_with_many_seeds() {
    let seeds: Vec<_> = (0..MANY_SEEDS).collect();
    none_fails(&seeds, |seed| beside_tenants(*seed, Some(SMS - TENANT_SMS)));
}

/// Makes a call and launches a tenant on all SMs. Returns the error of each rank, if there was one.
fn without_reserve(seed: u64, config: &KernelConfig) -> Vec<Option<Error>> {
    let begun = Begun::default();
    let outcomes = MACHINE.run_ranks(Backend::Simulated { seed }, |ranks, _| {
        ranks.set_timeout(Duration::from_secs(5));
        let mut turns = Turns::new(ranks, std::slice::from_ref(config), &[0])?;
        let mut tenant = Tenant::new(ranks, &begun, TENANT_SMS)?;
        ranks.barrier()?;
        turns.call()?;
        tenant.launch(0)?;
        let outcome = turns.check();
        tenant.synchronize()?;
        let Err(failure) = outcome else {
            return Ok(None);
        };
        Ok(Some(*failure.downcast::<Error>()?))
    });
    let outcomes = outcomes.expect("simulated GPUs").into_iter();
    outcomes
        .map(|error| error.expect("no other error"))
        .collect()
}

/// If the tenant begins first on one rank and the kernel on the other rank, each waits for SMs that the other one holds. The
/// seed decides which one begins first.
#[test]
fn without_a_reserve_the_error_says_what_to_do() {
    let config = &operators(None)[DISPATCH];
    let mut deadlocks = 0;
    for seed in 0..8 {
        let errors: Vec<_> = without_reserve(seed, config)
            .into_iter()
            .flatten()
            .collect();
        if errors.is_empty() {
            continue;
        }
        deadlocks += 1;
        assert_eq!(errors.len(), 2, "seed {seed}: {errors:?}");
        let is_first = |error: &&Error| {
            matches!(
                error,
                Error::Timeout {
                    aborted_by: None,
                    lost: None,
                    ..
                }
            )
        };
        let first: Vec<_> = errors.iter().filter(is_first).collect();
        let [first] = first[..] else {
            panic!("seed {seed}: {errors:?}");
        };
        assert!(first.to_string().contains("max_sms"), "{first}");
    }
    assert!((1..8).contains(&deadlocks), "{deadlocks} of 8");
}
