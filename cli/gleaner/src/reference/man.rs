//! Manual pages. In: the command lines, and the keys of the config files ([`super::keys`]). Out: pages in a folder for each
//! package: section 1 for the operator's command, 8 for the daemons, 5 for their config files. Called by [`super`].

use std::path::Path;

use anyhow::Context as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use gleaner_planner::forecast::METHODS;

use super::keys::{Daemon, daemons};

/// Writes every page.
///
/// # Errors
/// A folder or file that cannot be written.
pub(super) fn write(folder: &Path) -> anyhow::Result<()> {
    let programs = [
        (gleaner_cli::command_line(), "1"),
        (gleaner_agent::command_line(), "8"),
        (gleaner_aggregator::command_line(), "8"),
    ];
    for (program, section) in programs {
        let folder = folder.join(program.get_name());
        let mut program = program.disable_help_subcommand(true);
        program.build();
        std::fs::create_dir_all(&folder)
            .and_then(|()| commands(program, section, &folder))
            .with_context(|| format!("failed to write man pages into {}", folder.display()))?;
    }
    for daemon in daemons()? {
        let file = folder.join(daemon.program).join(format!("{}.toml.5", daemon.program));
        std::fs::write(&file, config_file(&daemon)?).with_context(|| format!("failed to write {}", file.display()))?;
    }
    Ok(())
}

/// The page of a command and those of its commands, but for hidden ones.
fn commands(command: clap::Command, section: &str, folder: &Path) -> std::io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        commands(command.clone(), section, folder)?;
    }
    Man::new(command).section(section).manual("Gleaner").generate_to(folder)?;
    Ok(())
}

/// The page of a daemon's config file.
fn config_file(daemon: &Daemon) -> anyhow::Result<String> {
    let name = format!("{}.toml", daemon.program);
    let source = format!("gleaner {}", env!("CARGO_PKG_VERSION"));
    let mut page = Roff::new();
    page.control("TH", [name.as_str(), "5", "", source.as_str(), "Gleaner"]);
    page.control("SH", ["NAME"]).text([roman(format!("{name} - config file of {}", daemon.program))]);
    page.control("SH", ["SYNOPSIS"]).text([bold(daemon.file)]);
    page.control("SH", ["DESCRIPTION"]).text([roman(format!(
        "The file is TOML. A missing key has its default. A key that is unknown, misspelt or out of its range is an error; \
         `{0} --check` reports all errors at once. `systemctl reload {0}` applies the keys of which it is said here, and \
         logs those that need a restart.",
        daemon.program
    ))]);
    for (section, rows) in daemon.sections()? {
        match section {
            "" => page.control("SH", ["ABOVE THE FIRST SECTION"]),
            section => page.control("SH", [format!("[{section}]").as_str()]),
        };
        for row in rows {
            page.control("TP", []).text([bold(row.name)]);
            page.text([roman(row.meaning)]);
            page.control("br", []);
            // Where there is none, the sentence says what holds then.
            let default = row.default.map_or("Must be".to_owned(), |default| format!("Default: {default}; must be"));
            let reload = if row.at_run_time { "; applied by a reload" } else { "" };
            page.text([roman(format!("{default} {}{reload}.", row.allowed))]);
        }
        if section == "forecast" {
            page.control("PP", []).text([roman("The methods:")]);
            for method in METHODS {
                page.control("TP", []).text([bold(method.config_word())]);
                page.text([roman(method.meaning())]);
            }
        }
    }
    page.control("SH", ["SEE ALSO"]).text([bold(daemon.program), roman("(8)")]);
    Ok(page.render())
}
