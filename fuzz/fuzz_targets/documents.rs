#![no_main]
//! Fuzz target: documents of operators: applications, scenarios, what-if questions. In: any text, read as TOML and as
//! JSON. Out: nothing; no input may make it panic. Started by `fuzz/run.sh`.
use gleaner_planner::sharing::input::Workload;
use gleaner_planner::snapshot::balance::{ArbitrateQuestion, BalanceQuestion, arbitrate_question, balance_question};
use gleaner_planner::snapshot::share::ShareQuestion;
use gleaner_planner::snapshot::tune::{TuneQuestion, tune};
use gleaner_planner::snapshot::{SizeQuestion, size};
use gleaner_simulator::scenario::ClusterScenario;
use gleaner_types::application::ApplicationSpec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(spec) = toml::from_str::<ApplicationSpec>(text) {
        gleaner_aggregator::fuzzing::application(&spec);
    }
    if let Ok(scenario) = toml::from_str::<ClusterScenario>(text) {
        _ = scenario.problems();
    }
    if let Ok(question) = serde_json::from_str::<SizeQuestion>(text) {
        _ = size(&question);
    }
    if let Ok(question) = serde_json::from_str::<TuneQuestion>(text) {
        _ = tune(&question, &gleaner_planner::single_resource::CONTROLLERS);
    }
    if let Ok(question) = serde_json::from_str::<BalanceQuestion>(text) {
        _ = balance_question(&question);
    }
    if let Ok(question) = serde_json::from_str::<ArbitrateQuestion>(text) {
        _ = arbitrate_question(&question);
    }
    if let Ok(question) = serde_json::from_str::<ShareQuestion>(text) {
        _ = Workload::new(question.cluster, question.jobs);
    }
});
