//! Kernels with a plan for many ranks have a plan for one rank with the same options, so that a program for many GPUs runs on
//! one.

use mkernel_compile::render;
use mkernel_spec::{
    Device, Diagnostics, Field, KernelConfig, KernelPlan, Limits, Op, Options, SizedSpec, Value,
    Values,
};
use mkernel_testing::golden::Golden;

/// Some valid values of an option.
fn some_values(values: &Values) -> Vec<Value> {
    let counts = |counts: &mut dyn Iterator<Item = u32>| {
        counts.map(|count| Value::Integer(count.into())).collect()
    };
    match values {
        Values::Size | Values::Name => Vec::new(),
        Values::Count(Some(Limits::OneOf(all, _))) => counts(&mut all.iter().copied()),
        Values::Count(limits) => {
            let (low, high) = match limits {
                Some(Limits::Range(low, high)) => (*low, *high),
                _ => (1, u32::MAX),
            };
            let some = [low, 1, 2, 4, 8, 128, 4096, high].into_iter();
            counts(&mut some.filter(|count| (low..=high).contains(count)))
        }
        Values::Number => vec![Value::Fraction("0.5".to_owned())],
        Values::Switch => [true, false].map(Value::Boolean).into(),
        Values::Words(words) => {
            let word = |word: &&str| Value::Word((*word).to_owned());
            words.iter().map(word).collect()
        }
    }
}

fn on_one_rank(config: &KernelConfig) -> KernelConfig {
    KernelConfig {
        world: 1,
        nodes: 1,
        ..config.clone()
    }
}

fn plan(config: KernelConfig) -> Result<KernelPlan, Diagnostics> {
    KernelPlan::new(&SizedSpec::validate(config)?, &Device::h200())
}

#[test]
fn every_golden_kernel_is_possible_on_one_rank() {
    let mut refused = Vec::new();
    for golden in Golden::all() {
        match plan(on_one_rank(golden.plan.spec.config())) {
            Ok(plan) => {
                assert!(
                    plan.body().network.is_none() && plan.body().copies.is_none(),
                    "{}",
                    golden.name
                );
                render(&plan).unwrap_or_else(|error| panic!("{}: {error:?}", golden.name));
            }
            Err(found) => refused.push(format!("{}: {found}", golden.name)),
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Covers each option of each operator, with some of its values, in kernels that have a plan for many ranks.
#[test]
fn every_option_is_possible_on_one_rank() {
    let goldens = Golden::all();
    let (mut tried, mut refused) = (0, Vec::new());
    for op in Op::ALL {
        let of_op = goldens.iter().map(|golden| golden.plan.spec.config());
        let of_op: Vec<_> = of_op
            .filter(|config| config.op() == op && config.world > 1)
            .collect();
        // A kernel of one node, and a kernel of several nodes.
        let one = of_op.iter().find(|config| config.nodes == 1);
        let several = of_op.iter().find(|config| config.nodes > 1);
        for config in one.into_iter().chain(several) {
            for option in op.options() {
                if [Field::OP, Field::WORLD, Field::NODES].contains(&option.field) {
                    continue;
                }
                for value in some_values(&option.values) {
                    let mut config = (*config).clone();
                    assert_eq!(config.assign(option.field, &value), Ok(true));
                    if plan(config.clone()).is_err() {
                        continue;
                    }
                    tried += 1;
                    if let Err(found) = plan(on_one_rank(&config)) {
                        let name = option.field.name();
                        refused.push(format!("{op}, {name} {value:?}: {found}"));
                    }
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tried > 300, "{tried}");
}
