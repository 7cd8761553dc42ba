//! What commands read and print. In: files of an operator, and lines for standard output. Out: typed documents with
//! errors that name the field, and text without terminal control characters. Every command that reads a document or
//! prints calls it.

use anyhow::Context;
use gleaner_daemon::output::OutputError;

/// Reads a document: JSON, or TOML when its name ends so; `-` is JSON on standard input. An error names the file, the
/// field and what is wrong.
pub(crate) fn read_document<T: serde::de::DeserializeOwned>(path: &std::path::Path) -> anyhow::Result<T> {
    use std::io::Read;
    /// Longest document: some 100,000 hosts.
    const LONGEST: u64 = 64 << 20;
    let name = path.display();
    let failed = || format!("failed to read {name}");
    let mut text = String::new();
    if path == std::path::Path::new("-") {
        std::io::stdin().take(LONGEST).read_to_string(&mut text).with_context(failed)?;
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text)).with_context(failed)?;
    }
    // The mark that some editors put at the begin of a file of UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let wrong = |field: String, why: String| match field.as_str() {
        "." | "" => anyhow::anyhow!("{name}: {why}"),
        field => anyhow::anyhow!("{name}: {field}: {why}"),
    };
    if path.extension().is_some_and(|ending| ending == "toml") {
        let document = toml::Deserializer::parse(text).map_err(|error| wrong(String::new(), error.to_string()))?;
        return serde_path_to_error::deserialize(document)
            .map_err(|error| wrong(error.path().to_string(), error.inner().message().to_owned()));
    }
    let mut document = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize(&mut document)
        .map_err(|error| wrong(error.path().to_string(), error.inner().to_string()))?;
    document.end().map_err(|error| wrong(String::new(), format!("after the document: {error}")))?;
    Ok(read)
}

/// Prints a line without what acts on a terminal, but for our own colours: texts were cleaned of theirs, and JSON has them as
/// numbers. Colours are left out where the output is no terminal, where it can show none (`TERM=dumb`), and where nobody wants
/// them (`NO_COLOR`, `--color never`). An error (a closed pipe) ends the command instead of panicking.
///
/// # Errors
/// [`gleaner_daemon::output::OutputError`].
pub fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let write = || {
        let mut out = anstream::stdout().lock();
        writeln!(out, "{}", harmless(text))?;
        out.flush()
    };
    write().map_err(OutputError::from)?;
    Ok(())
}

/// Prints a text over the one before, from the upper left corner of the terminal.
pub(crate) fn print_over(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let text = match anstream::AutoStream::choice(&out) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => harmless(text),
    };
    // Home, the text with each line's old rest erased, then everything below erased: no flicker.
    let lines: Vec<String> = text.lines().map(|line| format!("{line}\x1b[K")).collect();
    let mut write = || {
        writeln!(out, "\x1b[H{}\x1b[J", lines.join("\n"))?;
        out.flush()
    };
    write().map_err(OutputError::from)?;
    Ok(())
}

fn harmless(text: &str) -> String {
    let text: Vec<String> = text.split('\x1b').map(gleaner_types::text::harmless_json).collect();
    text.join("\x1b")
}
