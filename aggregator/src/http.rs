//! The HTTP client, for machines of the same site. In: an address. Out: an answer, limited in time and size. It uses no
//! proxy (even where the environment names one) and follows no redirect. Called by engines, sources of response times
//! and etcd's gateway.

mod tls;

use std::time::Duration;

use ureq::tls::TlsConfig;

pub(crate) use self::tls::{TlsError, TlsFiles, read_regular};

/// A client. A status other than success is an answer, not an error.
pub(crate) fn client(tls: Option<TlsConfig>) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_response_header_size(16 << 10)
        .max_idle_connections(1);
    let config = match tls {
        Some(tls) => config.tls_config(tls),
        None => config,
    };
    config.build().new_agent()
}

/// Gets `url` with headers, and with `query` as the parameter of this name if there is one.
///
/// # Errors
/// No answer within the time limit.
pub(crate) fn get(
    client: &ureq::Agent,
    url: &str,
    query: Option<&str>,
    headers: &[(&str, &str)],
    time_limit: Duration,
) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
    let request = headers.iter().fold(client.get(url), |request, (name, value)| request.header(*name, *value));
    let request = query.into_iter().fold(request, |request, query| request.query("query", query));
    request.config().timeout_global(Some(time_limit)).build().call()
}

/// Posts `body` to `url`.
///
/// # Errors
/// No answer within the time limit.
pub(crate) fn post(
    client: &ureq::Agent,
    url: &str,
    body: &[u8],
    time_limit: Duration,
) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
    client.post(url).config().timeout_global(Some(time_limit)).build().send(body)
}

/// The body of an answer.
///
/// # Errors
/// [`ureq::Error::BodyExceedsLimit`] for one of more than `longest` bytes; any error on the way.
pub(crate) fn body(answer: &mut ureq::http::Response<ureq::Body>, longest: u64) -> Result<Vec<u8>, ureq::Error> {
    answer.body_mut().with_config().limit(longest).read_to_vec()
}
