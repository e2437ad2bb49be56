//! `pg_service.conf`: connection settings under a name, as libpq reads them. A setting's value is never repeated in an
//! error: it may be a password.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::settings::Settings;

/// The settings of `[service]`. An error names the file.
pub(super) fn read(path: &Path, service: &str) -> Result<Settings> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read the service file {name} for service `{service}`"))?;
    let header = format!("[{service}]");
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != header);
    ensure!(lines.next().is_some(), "the service file {name} has no section {header}");
    let mut settings = Settings::new();
    for line in lines.take_while(|line| !line.starts_with('[')) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.split_once('=');
        let (key, value) = pair.with_context(|| format!("section {header} of {name} holds a line without `=`"))?;
        settings.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(settings)
}
