//! Plans: rules, their refusals, and their JSON.

use std::str::FromStr;

use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{Division, RankPlan, RankRules};

use super::{plan, problem};
use crate::support::*;

fn refused(rule: &str, dtype: Dtype, shape: &[usize], world_size: usize) -> Error {
    let rules = RankRules::new().parse_rule(&format!("*={rule}")).unwrap();
    let error = rules.plan_tensors([("w", dtype, shape.to_vec())], world_size).unwrap_err();
    if !matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::WorldSize { .. } }) {
        assert_eq!(error.tensor(), Some("w"), "{error}");
    }
    error
}

#[test]
fn the_first_rule_counts_and_none_is_an_error() {
    let rules = RankRules::new()
        .parse_rule("a.*=replicate")
        .and_then(|rules| rules.parse_rule("*.w=split:0"))
        .unwrap();
    let tensors = ["a.w", "b.w"].map(|name| (name, Dtype::U8, vec![2]));
    let plan = rules.plan_tensors(tensors, 2).unwrap();
    let divisions = plan.tensors().map(|tensor| tensor.division().clone());
    assert!(divisions.eq([Division::Replicate, Division::Split { dim: 0 }]));
    let error = rules.plan_tensors([("b", Dtype::U8, vec![2])], 2).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::NoRule));
    assert_eq!(error.tensor(), Some("b"));
    for rule in ["", "w", "w=", "w=split", "[=replicate", "w=replicate=x"] {
        let error = RankRules::new().parse_rule(rule).unwrap_err();
        assert!(matches!(problem(&error), RankProblem::BadRule { .. }), "{rule}: {error}");
    }
}

#[test]
fn rules_that_do_not_fit_a_tensor_are_refused() {
    let uneven = refused("split:0", Dtype::U8, &[10, 2], 4);
    assert!(matches!(uneven.kind(), ErrorKind::UnevenParts { dim: 0, len: 10, world_size: 4 }));
    refused("split:2", Dtype::U8, &[10, 2], 2);
    refused("split:0", Dtype::U8, &[], 2);
    refused("shared:0:3", Dtype::U8, &[12], 4);
    refused("offsets:0:0,2,10", Dtype::U8, &[10], 3);
    refused("offsets:0:0,11", Dtype::U8, &[10], 1);
    refused("replicate", Dtype::U8, &[u32::MAX as usize; 3], 2);
    let inside = refused("split:1", Dtype::F4, &[2, 2], 2);
    assert!(matches!(inside.kind(), ErrorKind::SliceInsideByte { .. }), "{inside}");
    for world_size in [0, (1 << 20) + 1, usize::MAX] {
        refused("replicate", Dtype::U8, &[1], world_size);
    }
    let twice = [("w", Dtype::U8, vec![1]), ("w", Dtype::U8, vec![1])];
    let rules = RankRules::new().parse_rule("*=replicate").unwrap();
    refused!(rules.plan_tensors(twice, 2), ErrorKind::DuplicateTensor);
}

#[test]
fn bytes_of_ranks() {
    let plan = plan(4);
    // Parts of 2, 2, 2 and 1 columns.
    let lens: Vec<_> = (0..4).map(|rank| plan.byte_len(rank).unwrap()).collect();
    assert_eq!(lens, [6 + 4 + 5, 6 + 4 + 5, 6 + 4 + 5, 6 + 2 + 5]);
    assert_eq!(plan.total_size(), 24 + 14 + 5);
    assert_eq!(plan.byte_lens().unwrap(), lens);
    assert!(matches!(plan.byte_len(4).unwrap_err().kind(), ErrorKind::NoSuchRank { .. }));
}

/// Results for many ranks at once equal the results one after another.
#[test]
fn bytes_of_all_ranks_at_once() {
    for len in 0..20_usize {
        for world_size in 1..9 {
            let offsets: Vec<_> =
                (0..=world_size).map(|rank| (rank * len / world_size).to_string()).collect();
            let offsets = format!("offsets:0:{}", offsets.join(","));
            let mut all = RankRules::new();
            let mut tensors = Vec::new();
            for rule in ["replicate", "split:0", "uneven:0", "shared:0:2", &offsets] {
                let is_possible = match rule {
                    "split:0" => len.is_multiple_of(world_size),
                    "shared:0:2" => world_size.is_multiple_of(2) && len.is_multiple_of(2),
                    _ => true,
                };
                if is_possible {
                    all = all.parse_rule(&format!("{}={rule}", tensors.len())).unwrap();
                    tensors.push((tensors.len().to_string(), Dtype::U16, vec![len, 3]));
                }
            }
            let named = tensors.iter().map(|(name, dtype, shape)| (&**name, *dtype, shape.clone()));
            let plan = all.plan_tensors(named, world_size).unwrap();
            let each: Vec<_> = (0..world_size).map(|rank| plan.byte_len(rank).unwrap()).collect();
            assert_eq!(plan.byte_lens().unwrap(), each, "{len} {world_size}");
            for tensor in plan.tensors() {
                let lens = tensor.byte_lens().unwrap().into_iter();
                let lens = lens.flat_map(|(ranks, len)| ranks.map(move |rank| (rank, len)));
                let each = (0..world_size).map(|rank| (rank, tensor.byte_len(rank).unwrap()));
                assert_eq!(lens.collect::<Vec<_>>(), each.collect::<Vec<_>>(), "{tensor:?}");
            }
        }
    }
}

#[test]
fn ranks_and_tensors_are_bounded_together() {
    let rules = RankRules::new().parse_rule("*=replicate").unwrap();
    let names: Vec<_> = (0..954).map(|i| i.to_string()).collect();
    let plan = |tensors: usize, ranks: usize| {
        let tensors = names[..tensors].iter().map(|name| (name.as_str(), Dtype::U8, vec![1]));
        rules.plan_tensors(tensors, ranks)
    };
    let most = plan(953, 1 << 20).unwrap();
    // The size of the largest plan is known at once.
    assert!(most.byte_lens().unwrap().iter().all(|&len| len == 953));
    let error = plan(954, 1 << 20).unwrap_err();
    assert!(matches!(
        problem(&error),
        RankProblem::TooManyParts { limit: 1_000_000_000, tensors: 954, world_size: 1_048_576 }
    ));
    let json = most.to_json();
    let more = r#""tensors": [{"name":"x","dtype":"U8","shape":[1],"division":"replicate"},"#;
    let error = RankPlan::from_str(&json.replace("\"tensors\": [", more)).unwrap_err().to_string();
    assert!(error.contains("954 tensors for 1048576 ranks"), "{error}");
}

#[test]
fn the_text_of_a_plan_reads_back() {
    let rules = RankRules::new()
        .parse_rule("offsets=offsets:0:0,1,4")
        .and_then(|rules| rules.parse_rule("*=shared:1:1"))
        .unwrap();
    let tensors = [
        ("offsets", Dtype::BF16, vec![4, 2]),
        ("\u{202e}\"\\ \n", Dtype::F64, vec![0, 3]),
        ("", Dtype::I8, vec![1, 2, 3]),
    ];
    for plan in [plan(3), plan(1), rules.plan_tensors(tensors, 2).unwrap()] {
        let json = plan.to_json();
        assert_eq!(RankPlan::from_str(&json).unwrap(), plan);
        assert_eq!(RankPlan::from_str(&json).unwrap().to_json(), json);
    }
}

#[test]
fn a_hostile_text_is_refused() {
    let plan = |world_size: &str, tensors: &str| {
        format!(r#"{{"version": 1, "world_size": {world_size}, "tensors": [{tensors}]}}"#)
    };
    let tensor = |fields: &str| plan("2", &format!("{{{fields}}}"));
    let good = r#""name": "w", "dtype": "U8", "shape": [4], "division": "split:0""#;
    RankPlan::from_str(&tensor(good)).unwrap();
    RankPlan::from_str(&tensor(&good.replace("U8", "torch.uint8"))).unwrap();
    let swapped = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        tensor(&good.replace(from, to))
    };
    let twice = format!("{{{good}}}, {{{good}}}");
    for (json, expected) in [
        ("".to_owned(), "EOF"),
        ("[]".to_owned(), "invalid"),
        ("{}".to_owned(), "missing field"),
        (format!("{} x", tensor(good)), "trailing"),
        (tensor(good).replace("\"version\": 1", "\"version\": 2"), "expected version 1"),
        (tensor(good).replace("{\"version\"", "{\"x\": 1, \"version\""), "unknown field"),
        (tensor(&format!("{good}, \"x\": 1")), "unknown field"),
        (tensor(&format!("{good}, \"name\": \"v\"")), "duplicate field"),
        (plan("2", &twice), "duplicate tensor"),
        (plan("-2", ""), "invalid"),
        (plan("0", ""), "world size"),
        (plan("1048577", ""), "world size"),
        (plan("1e2", ""), "invalid"),
        (swapped("U8", "U9"), "unknown dtype"),
        (swapped("[4]", "[5]"), "equal parts"),
        (swapped("[4]", "[-1]"), "invalid"),
        (swapped("[4]", "[4294967295, 4294967295, 2]"), "overflows"),
        (swapped("[4]", "[]"), "no dimension 0"),
        (swapped("[4]", &format!("{:?}", [1; 1025])), "more dimensions"),
        (swapped("split:0", "split:9"), "no dimension 9"),
        (swapped("split:0", "offsets:0:0,9,4"), "offsets that ascend"),
        (swapped("split:0", "offsets:0:0,4"), "offsets that ascend"),
        (swapped("split:0", "half"), "expected replicate"),
    ] {
        let error = RankPlan::from_str(&json).unwrap_err().to_string();
        assert!(error.contains(expected), "{json}: {error}");
        assert!(error.len() < 1500);
    }
    let deep = "[".repeat(100_000);
    RankPlan::from_str(&deep).unwrap_err();
    // A text that is quick to read stays quick to check.
    let offsets: Vec<_> = (0..=200_000).map(|i| i.to_string()).collect();
    let many = format!(
        r#""name": "w", "dtype": "U8", "shape": [200000], "division": "offsets:0:{}""#,
        offsets.join(",")
    );
    let plan = RankPlan::from_str(&plan("200000", &format!("{{{many}}}"))).unwrap();
    assert_eq!(plan.byte_len(199_999).unwrap(), 1);
}
