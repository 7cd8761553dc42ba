//! `gleaner-agent join`: joins a site, once per host. In: a token. Out: a certificate and key on disk, and the
//! aggregator's address in `agent.toml`. Called by the command line.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gleaner_daemon::config::Source;
use gleaner_daemon::durable::make_folders;
use gleaner_net::join::{JoinToken, MAX_TOKEN};
use gleaner_net::stream::{read_short_message, write_message};
use gleaner_net::tls::{CertificateRequest, IdentityFiles, write_file};
use gleaner_net::transport;
use gleaner_wire::{FromJoiner, JoinRequest, MAX_JOIN_MESSAGE, Purpose, ToJoiner};

use crate::config::Config;
use gleaner_types::error::Chain;

/// Longest wait for each step with the aggregator.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The placeholder for the aggregator's address in the packaged config.
const PLACEHOLDER: &str = "aggregator.example.org:7441";

/// Longest text read for a token.
const LONGEST: u64 = MAX_TOKEN as u64 + 1_024;

/// The token: from the command line, from standard input for `-`, or from a file.
pub(crate) fn read_token(token: Option<String>, file: Option<&Path>) -> anyhow::Result<JoinToken> {
    let mut text = String::new();
    match (token, file) {
        (_, Some(file)) => {
            let open = std::fs::File::open(file).with_context(|| format!("failed to open {}", file.display()))?;
            open.take(LONGEST)
                .read_to_string(&mut text)
                .with_context(|| format!("failed to read {}", file.display()))?;
        }
        (Some(token), None) if token == "-" => {
            if std::io::stdin().is_terminal() {
                _ = write!(std::io::stderr(), "token: ");
            }
            // A line: whoever pastes one ends it with Enter, not with the end of all input.
            let mut input = std::io::stdin().lock().take(LONGEST);
            while text.trim().is_empty() {
                if input.read_line(&mut text).context("failed to read standard input")? == 0 {
                    break;
                }
            }
        }
        (Some(token), None) => text = token,
        (None, None) => bail!("a token is needed, or --token-file"),
    }
    Ok(JoinToken::from_text(&text)?)
}

/// Joins, and says what was done.
pub(crate) fn join(config_file: &Path, token: &JoinToken) -> anyhow::Result<String> {
    let config_file = std::path::absolute(config_file)?;
    let (files, configured) = destination(&config_file, token)?;
    for file in [&files.ca, &files.certificate, &files.key] {
        let folder = file.parent().unwrap_or(Path::new("/"));
        make_folders(folder, 0o777).with_context(|| format!("failed to make the folder {}", folder.display()))?;
        // A token serves once, so what can fail is tried before.
        try_writing(folder).with_context(|| format!("failed to write to the folder {}", folder.display()))?;
    }
    let request = CertificateRequest::new(&token.host)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let certificate = runtime.block_on(ask(token, &request.der))?;
    let issued = request.complete(&token.authority, certificate, &token.host)?;
    write_file(&files.ca, &pem(&token.authority), 0o644)?;
    files.replace(&issued)?;
    let mut summary = format!(
        "host {} has joined\ncertificate {}\nkey         {}",
        token.host,
        files.certificate.display(),
        files.key.display()
    );
    let shown = config_file.display();
    match configured {
        Configured::No => {
            write_file(&config_file, &config_text(token, &files), 0o644)?;
            summary.push_str(&format!("\nconfig      {shown} (new)"));
        }
        Configured::With(known) if known.iter().any(|known| token.addresses.contains(known)) => {}
        Configured::With(known) if !known.is_empty() && known != [PLACEHOLDER] => summary.push_str(&format!(
            "\n{shown} says that the aggregator is at {}; the token says otherwise: change it to\n{}",
            known.join(", "),
            where_to(token)
        )),
        Configured::With(_) | Configured::WithoutAggregator => match say_where(&config_file, token, &files)? {
            true => summary.push_str(&format!("\nconfig      {shown} (now with {})", where_to(token))),
            false => summary.push_str(&format!("\nadd to {shown}:\n{}", aggregator_text(token, &files))),
        },
    }
    Ok(summary)
}

/// Writes the aggregator's address into a config that names none: in place of the packaged placeholder, or else into the
/// section `[aggregator]`, or else as that section. False where the file would not say it then, and is left as it was.
fn say_where(config_file: &Path, token: &JoinToken, files: &IdentityFiles) -> anyhow::Result<bool> {
    let text =
        std::fs::read_to_string(config_file).with_context(|| format!("failed to read {}", config_file.display()))?;
    let placeholder = format!("address = \"{PLACEHOLDER}\"");
    let is_header = |line: &&str| line.split('#').next().is_some_and(|line| line.trim() == "[aggregator]");
    let (found, by) = match (text.lines().find(|line| *line == placeholder), text.lines().find(is_header)) {
        (Some(placeholder), _) => (placeholder, where_to(token)),
        (None, Some(header)) => (header, format!("{header}\n{}", where_to(token))),
        (None, None) => ("", format!("{}\n{}", text.trim_end(), aggregator_text(token, files))),
    };
    let changed = match found {
        "" => by,
        found => {
            let lines = text.lines().map(|line| if line == found { by.as_str() } else { line });
            lines.flat_map(|line| [line, "\n"]).collect()
        }
    };
    let says = Config::from_source(&Source::from_text(config_file, &changed)).ok().and_then(|config| config.aggregator);
    if says.is_none_or(|aggregator| aggregator.addresses != token.addresses || aggregator.files != *files) {
        return Ok(false);
    }
    let mode = std::fs::metadata(config_file)?.permissions().mode() & 0o777;
    write_file(config_file, &changed, mode)?;
    Ok(true)
}

/// The config's line that says where the aggregator is.
fn where_to(token: &JoinToken) -> String {
    match token.addresses.as_slice() {
        [one] => format!("address = {one:?}"),
        several => format!("addresses = {several:?}"),
    }
}

/// What the config file says of the aggregator.
enum Configured {
    /// There is no file.
    No,
    WithoutAggregator,
    /// Its address, or several.
    With(Vec<String>),
}

/// Where certificate and key belong.
fn destination(config_file: &Path, token: &JoinToken) -> anyhow::Result<(IdentityFiles, Configured)> {
    let folder = config_file.parent().unwrap_or(Path::new("/"));
    let beside = IdentityFiles {
        ca: folder.join("ca.crt"),
        certificate: folder.join("agent.crt"),
        key: folder.join("agent.key"),
    };
    if !config_file.exists() {
        return Ok((beside, Configured::No));
    }
    let config = Config::load(config_file)?;
    if config.host != token.host {
        bail!(
            "the token is for host {}, and this host is {}: `host.name` in {}, or the machine's own name",
            token.host,
            config.host,
            config_file.display()
        );
    }
    Ok(match config.aggregator {
        Some(aggregator) => (aggregator.files, Configured::With(aggregator.addresses)),
        None => (beside, Configured::WithoutAggregator),
    })
}

/// Whether a file can be made in a folder.
fn try_writing(folder: &Path) -> std::io::Result<()> {
    let file = folder.join(format!(".gleaner-join-{}", std::process::id()));
    std::fs::File::create_new(&file)?;
    std::fs::remove_file(&file)
}

/// Asks at one address after the other until one gives a certificate.
async fn ask(token: &JoinToken, request: &[u8]) -> anyhow::Result<String> {
    let mut failures = Vec::new();
    for (name, address) in addresses(token, &mut failures).await {
        match connect(address, token).await {
            Ok((endpoint, connection)) => {
                let answer = tokio::time::timeout(STEP_TIMEOUT, exchange(&connection, token, request))
                    .await
                    .context("the aggregator does not answer the request")
                    .flatten();
                connection.close(0u8.into(), b"bye");
                _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
                match answer {
                    Ok(certificate) => return Ok(certificate),
                    // It may stand by for another that the token names.
                    Err(error) => failures.push(format!("{name}: {}", Chain(&*error))),
                }
            }
            Err(error) => failures.push(format!("{name} at {address}: {}", Chain(&*error))),
        }
    }
    bail!("no aggregator lets this host join: {}", failures.join("; "))
}

/// Every address of every name of the token; names without one go to the failures.
async fn addresses<'t>(token: &'t JoinToken, failures: &mut Vec<String>) -> Vec<(&'t String, SocketAddr)> {
    let mut all = Vec::new();
    for name in &token.addresses {
        match crate::link::resolve(name).await {
            Ok(found) => all.extend(found.into_iter().map(|address| (name, address))),
            Err(error) => failures.push(Chain(&*error).to_string()),
        }
    }
    all
}

async fn connect(address: SocketAddr, token: &JoinToken) -> anyhow::Result<(quinn::Endpoint, quinn::Connection)> {
    let endpoint = transport::joining_endpoint(address, &token.authority)?;
    let connecting = transport::connect(&endpoint, address)?;
    let connection = tokio::time::timeout(STEP_TIMEOUT, connecting).await.context("it does not answer")??;
    Ok((endpoint, connection))
}

async fn exchange(connection: &quinn::Connection, token: &JoinToken, request: &[u8]) -> anyhow::Result<String> {
    let Some(Purpose::Join(version)) = transport::purpose(connection) else {
        bail!(transport::learn_versions(connection).await);
    };
    let (mut send, mut receive) = connection.open_bi().await?;
    let request = JoinRequest { secret: token.secret.clone(), request: request.to_vec() };
    write_message(&mut send, version, &FromJoiner::Join(request)).await?;
    send.finish()?;
    match read_short_message(&mut receive, version, MAX_JOIN_MESSAGE).await? {
        Some(ToJoiner::Joined(certificate)) => Ok(certificate),
        Some(ToJoiner::Refused(reason)) => bail!("the aggregator refuses: {reason}"),
        Some(ToJoiner::Unknown { tag }) => bail!("the aggregator answers with a message of unknown tag {tag}"),
        None => bail!("the aggregator closed the connection without an answer"),
    }
}

fn pem(certificates: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        // RFC 7468: lines of 64 characters.
        for line in STANDARD.encode(certificate).as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

fn config_text(token: &JoinToken, files: &IdentityFiles) -> String {
    format!(
        "# Made by `gleaner-agent join`. Every key that is not here has its default.\n\n[host]\nname = \"{}\"\n{}",
        token.host,
        aggregator_text(token, files)
    )
}

/// The section `[aggregator]`.
fn aggregator_text(token: &JoinToken, files: &IdentityFiles) -> String {
    let quoted = |path: &Path| toml_text(&path.display().to_string());
    format!(
        "\n[aggregator]\n{}\nca = {}\ncertificate = {}\nkey = {}\n",
        where_to(token),
        quoted(&files.ca),
        quoted(&files.certificate),
        quoted(&files.key)
    )
}

/// A text as a TOML string.
fn toml_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use gleaner_net::join::new_secret;
    use gleaner_net::tls::Authority;
    use gleaner_types::id::HostId;

    use super::*;

    fn token(authority: Vec<Vec<u8>>) -> JoinToken {
        JoinToken {
            addresses: vec!["10.0.0.5:7441".to_owned()],
            authority,
            host: HostId::new("h1").unwrap(),
            secret: new_secret().unwrap(),
        }
    }

    #[test]
    fn what_is_written_is_what_an_agent_reads() {
        let folder = tempfile::tempdir().unwrap();
        let (ca, _) = Authority::create().unwrap().write(folder.path()).unwrap();
        let files =
            IdentityFiles { ca: ca.clone(), certificate: folder.path().join("a b.crt"), key: folder.path().join("k") };
        let authority = files.authority().unwrap();
        let rewritten = IdentityFiles { ca: folder.path().join("again.crt"), ..files.clone() };
        std::fs::write(&rewritten.ca, pem(&authority)).unwrap();
        assert_eq!(rewritten.authority().unwrap(), authority);

        let text = config_text(&token(authority), &files);
        let config = Config::from_source(&Source::from_text(Path::new("agent.toml"), &text)).unwrap();
        let aggregator = config.aggregator.unwrap();
        assert_eq!((config.host.as_str(), aggregator.addresses), ("h1", vec!["10.0.0.5:7441".to_owned()]));
        assert_eq!(aggregator.files, files);
        assert!(!config.act, "a host that joins only observes");
    }

    #[test]
    fn the_placeholder_of_the_packaged_config_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let packaged = include_str!("../../systemd/agent.toml");
        std::fs::write(&file, packaged).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let mut token = token(vec![vec![0]]);
        token.addresses.push("b.example:7441".to_owned());
        let files = Config::load(&file).unwrap().aggregator.unwrap().files;
        assert!(say_where(&file, &token, &files).unwrap());
        let aggregator = Config::load(&file).unwrap().aggregator.unwrap();
        assert_eq!(aggregator.addresses, token.addresses);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        let changed = std::fs::read_to_string(&file).unwrap();
        assert_eq!(changed.lines().zip(packaged.lines()).filter(|(new, old)| new != old).count(), 1);
        assert!(!say_where(&file, &token, &files).unwrap(), "it is not there any more");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), changed);
    }

    #[test]
    fn a_config_without_an_address_gets_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let beside = |name: &str| folder.path().join(name);
        let own = IdentityFiles { ca: beside("ca.crt"), certificate: beside("agent.crt"), key: beside("agent.key") };
        let packaged = IdentityFiles {
            ca: "/etc/gleaner/ca.crt".into(),
            certificate: "/etc/gleaner/agent.crt".into(),
            key: "/etc/gleaner/agent.key".into(),
        };
        let token = token(vec![vec![0]]);
        for (text, files) in [
            ("", &own),
            ("[host]\nname = 'h1'", &own),
            ("[aggregator]\n\n[act]\nenabled = true\n", &packaged),
            ("[aggregator] # here\nca = '/etc/gleaner/ca.crt'\n", &packaged),
        ] {
            std::fs::write(&file, text).unwrap();
            assert!(say_where(&file, &token, files).unwrap(), "{text}");
            let config = Config::load(&file).unwrap();
            assert_eq!(config.act, text.contains("enabled"), "the rest stays");
            assert_eq!(config.aggregator.unwrap().addresses, token.addresses, "{text}");
        }
    }

    #[test]
    fn a_token_for_another_host_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("agent.toml");
        std::fs::write(&config, "[host]\nname = 'h2'\n").unwrap();
        let error = join(&config, &token(vec![vec![0]])).unwrap_err().to_string();
        assert!(error.contains("is for host h1, and this host is h2"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is written");
    }
}
