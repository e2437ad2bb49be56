//! The shared AWS files, `~/.aws/credentials` and `~/.aws/config`: one profile of them, with what is used of it. What
//! is not supported (SSO, assumed roles) is refused with the way around it, never passed over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CredentialsError, Environment, Keys, Source};

/// One profile's settings, both files together.
#[derive(Clone, Default)]
pub struct Profile {
    name: String,
    is_named: bool,
    settings: BTreeMap<String, String>,
    found: bool,
    unreadable: Option<CredentialsError>,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Profile {
    /// Reads the profile that AWS_PROFILE names, else `default`. A file that is not there is empty; trouble with one is
    /// told when credentials are needed.
    pub fn read(environment: Environment) -> Profile {
        let named = environment("AWS_PROFILE").filter(|name| !name.is_empty());
        let mut profile = Profile {
            is_named: named.is_some(),
            name: named.unwrap_or_else(|| "default".into()),
            ..Profile::default()
        };
        let home = environment("HOME").map(PathBuf::from).unwrap_or_default();
        // The credentials file is read last: its keys win.
        for (variable, file) in
            [("AWS_CONFIG_FILE", ".aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")]
        {
            let path = environment(variable).map_or_else(|| home.join(file), PathBuf::from);
            if let Err(error) = profile.merge(&path) {
                profile.unreadable = Some(error);
            }
        }
        profile
    }

    /// The profile's region.
    pub fn region(&self) -> Option<&str> {
        self.setting("region")
    }

    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn merge(&mut self, path: &Path) -> Result<(), CredentialsError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(CredentialsError(format!("failed to read {}: {error}", path.display()))),
        };
        if let Some(settings) = section(&text, &self.name) {
            self.found = true;
            self.settings.extend(settings);
        }
        Ok(())
    }

    pub(super) fn source(&self) -> Result<Option<Source>, CredentialsError> {
        if let Some(error) = &self.unreadable {
            return Err(error.clone());
        }
        let name = &self.name;
        let token = self.setting("aws_session_token").map(str::to_owned);
        match (self.setting("aws_access_key_id"), self.setting("aws_secret_access_key")) {
            (Some(key), Some(secret)) => {
                return Ok(Some(Source::Fixed(Arc::new(Keys::fixed(key.into(), secret.into(), token)))));
            }
            (None, None) => {}
            _ => return Err(CredentialsError(format!("the profile `{name}` has one half of a key pair only"))),
        }
        if let Some(command) = self.setting("credential_process") {
            return Ok(Some(Source::Process(command.into())));
        }
        let unsupported = ["sso_session", "sso_start_url", "role_arn", "source_profile", "login_session"];
        if let Some(kind) = unsupported.into_iter().find(|kind| self.setting(kind).is_some()) {
            return Err(CredentialsError(format!(
                "the profile `{name}` uses {kind}, which is not supported: add to a profile of your own \
                 `credential_process = aws configure export-credentials --profile {name} --format process`"
            )));
        }
        match self.is_named && !self.found {
            true => Err(CredentialsError(format!("AWS_PROFILE names `{name}`, which is in neither AWS file"))),
            false => Ok(None),
        }
    }
}

/// The settings of `[name]` or `[profile name]`; indented lines (nested settings) are not ours.
fn section(text: &str, name: &str) -> Option<BTreeMap<String, String>> {
    let mut settings: Option<BTreeMap<String, String>> = None;
    let mut inside = false;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            let header = header.trim();
            inside = header.strip_prefix("profile ").map_or(header, str::trim) == name;
            if inside {
                settings.get_or_insert_default();
            }
        } else if inside
            && !is_nested
            && let (Some(settings), Some((key, value))) = (&mut settings, line.split_once('='))
        {
            let value = value.split(" #").next().and_then(|value| value.split(" ;").next()).unwrap_or_default();
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_to_its_end_and_nested_settings_are_not_taken_for_its_own() {
        let text = "\
# a comment
[default]
region = eu-west-1 # Ireland
s3 =
  region = nowhere
[profile other]
region=us-west-2
";
        assert_eq!(section(text, "default").unwrap()["region"], "eu-west-1");
        assert_eq!(section(text, "other").unwrap()["region"], "us-west-2");
        assert_eq!(section(text, "oth"), None);
    }
}
