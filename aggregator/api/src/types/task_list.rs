//! The list of tasks in a submission. In: JSON. Out: tasks. A list that is too long is refused while it is read, before
//! it takes memory. Called while a request is decoded.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error as _, SeqAccess, Visitor};

/// Most tasks of a job.
pub const MAX_TASKS: usize = 100_000;

/// Reads the list.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Tasks;

    impl<'de> Visitor<'de> for Tasks {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX_TASKS} tasks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<String>, A::Error> {
            let mut tasks = Vec::new();
            while let Some(task) = elements.next_element()? {
                if tasks.len() == MAX_TASKS {
                    return Err(A::Error::custom(format!("tasks: there are more than {MAX_TASKS}; split the job")));
                }
                tasks.push(task);
            }
            Ok(tasks)
        }
    }

    deserializer.deserialize_seq(Tasks)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Submission {
        #[serde(deserialize_with = "read")]
        tasks: Vec<String>,
    }

    fn of(tasks: usize) -> serde_json::Result<Submission> {
        let list = vec!["\"\""; tasks].join(",");
        serde_json::from_str(&format!("{{\"tasks\":[{list}]}}"))
    }

    #[test]
    fn a_list_of_millions_of_empty_tasks_ends_where_it_is_too_long() {
        assert_eq!(of(MAX_TASKS).unwrap().tasks.len(), MAX_TASKS);
        let error = of(3_000_000).unwrap_err();
        assert!(error.to_string().contains("tasks: there are more than 100000"), "{error}");
        assert!(error.column() < 400_000, "the rest is not read: {error}");
    }
}
