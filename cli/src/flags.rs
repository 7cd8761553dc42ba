//! Refusals in the words of the command line. In: an answer of the aggregator about a field of a request. Out: the same about
//! the option that sets the field. Called by the commands whose options become fields.

use gleaner_api::{ApiError, ClientError};

/// Fields of requests, and the options that set them.
const OPTIONS: [(&str, &str); 9] = [
    ("dedicated_slots", "--dedicated-slots"),
    ("for_s", "--for"),
    ("goal.deadline.within_s", "--deadline"),
    ("max_attempts", "--attempts"),
    ("max_slots", "--slots"),
    ("name", "--name"),
    ("output_dir", "--output"),
    ("risk", "--risk"),
    ("task_timeout_s", "--task-timeout"),
];

/// The refusal with the option in place of the field that each line is about.
pub(crate) fn named(error: ClientError) -> ClientError {
    let option = |line: &str| {
        let (field, rest) = line.split_once(':')?;
        let (_, option) = OPTIONS.iter().find(|(own, _)| *own == field)?;
        Some(format!("{option}:{rest}"))
    };
    match error {
        ClientError::Refused(ApiError { code, message }) => {
            let lines: Vec<String> =
                message.lines().map(|line| option(line).unwrap_or_else(|| line.to_owned())).collect();
            ClientError::Refused(ApiError { code, message: lines.join("\n") })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use gleaner_api::ErrorCode;

    use super::*;

    #[test]
    fn a_refusal_names_the_option_as_it_was_written() {
        let message = "max_slots: is 2000; it must be 1 to 1024\ntask 3: is empty\nmax_attempts: is 0".to_owned();
        let said = named(ClientError::Refused(ApiError { code: ErrorCode::Invalid, message })).to_string();
        assert!(said.contains("--slots: is 2000; it must be 1 to 1024\ntask 3: is empty\n--attempts: is 0"), "{said}");
    }

    #[test]
    fn every_option_exists() {
        fn options(command: &clap::Command, all: &mut Vec<String>) {
            all.extend(command.get_arguments().filter_map(|own| Some(format!("--{}", own.get_long()?))));
            command.get_subcommands().for_each(|own| options(own, all));
        }
        let mut all = Vec::new();
        options(&crate::args::Arguments::command(), &mut all);
        for (field, option) in OPTIONS {
            assert!(all.iter().any(|own| own == option), "{field}: {option}");
        }
    }
}
