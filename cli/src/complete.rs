//! Names for the shell to complete: hosts, jobs and applications that an aggregator knows now. In: nothing but the socket, from
//! the words on the command line so far. Out: names. Called by clap's completion engine, which the scripts of
//! `gleaner completions` ask while somebody types: so it is quick, and silent where no aggregator answers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use gleaner_api::{Client, DEFAULT_SOCKET, Request, Response};

/// Longest wait for the aggregator. Chosen: whoever types waits for it.
const LONGEST_WAIT: Duration = Duration::from_millis(300);

/// Hosts.
pub(crate) fn hosts() -> Vec<CompletionCandidate> {
    candidates(names(&Request::Hosts))
}

/// Hosts that have an open invitation.
pub(crate) fn invited() -> Vec<CompletionCandidate> {
    candidates(names(&Request::Invitations))
}

/// Jobs.
pub(crate) fn jobs() -> Vec<CompletionCandidate> {
    candidates(names(&Request::Jobs))
}

/// Applications.
pub(crate) fn applications() -> Vec<CompletionCandidate> {
    candidates(names(&Request::Applications))
}

/// What `gleaner explain` takes.
pub(crate) fn jobs_and_applications() -> Vec<CompletionCandidate> {
    let mut names = names(&Request::Jobs);
    names.extend(self::names(&Request::Applications));
    candidates(names)
}

fn candidates(names: Vec<String>) -> Vec<CompletionCandidate> {
    names.into_iter().map(CompletionCandidate::new).collect()
}

fn names(request: &Request) -> Vec<String> {
    let socket = socket(std::env::args_os(), std::env::var_os("GLEANER_SOCKET"));
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let asked = async {
        let client = Client::connect(&socket).await.ok()?;
        client.call(request).await.ok()
    };
    let answer = runtime.block_on(async { tokio::time::timeout(LONGEST_WAIT, asked).await.ok().flatten() });
    match answer {
        Some(Response::Hosts(hosts)) => hosts.iter().map(|view| view.host.to_string()).collect(),
        Some(Response::Jobs(jobs)) => jobs.iter().map(|job| job.spec.id.to_string()).collect(),
        Some(Response::Applications(all)) => all.iter().map(|own| own.spec.name.to_string()).collect(),
        Some(Response::Invitations { invitations, .. }) => invitations.iter().map(|own| own.host.to_string()).collect(),
        _ => Vec::new(),
    }
}

/// The socket that the command would ask: of its option, of the environment, or the usual one.
fn socket(words: impl IntoIterator<Item = OsString>, environment: Option<OsString>) -> PathBuf {
    let mut words = words.into_iter();
    let mut named = None;
    while let Some(word) = words.next() {
        if word == "--socket" {
            named = words.next();
        } else if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--socket=")) {
            named = Some(path.into());
        }
    }
    named.or(environment).map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_the_one_the_command_would_ask() {
        let of = |words: &[&str], environment: Option<&str>| {
            socket(words.iter().map(OsString::from), environment.map(OsString::from))
        };
        assert_eq!(of(&["gleaner", "--", "gleaner", "hosts"], None), PathBuf::from(DEFAULT_SOCKET));
        assert_eq!(of(&["gleaner", "hosts"], Some("/e")), PathBuf::from("/e"));
        assert_eq!(of(&["gleaner", "--socket", "/a", "host"], Some("/e")), PathBuf::from("/a"));
        assert_eq!(of(&["gleaner", "host", "--socket=/b"], None), PathBuf::from("/b"));
    }
}
