//! From what was typed and the environment to a connection's settings, in libpq's order: the connection string, the
//! service file, the PG* variables, defaults. libpq's rules are ours, so what works with psql works here.
//! Nothing shown from here holds a password: `Conninfo` prints as `postgres://user@host:port/db`.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use postgres::Config;
use postgres::config::SslMode;

use super::passfile::{self, Lookup};
use super::service;
use super::settings::{self, Settings};

/// Reads an environment variable; a parameter, so that tests need not change the process's own.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// PG* variables and the settings they stand for.
const VARIABLES: [(&str, &str); 17] = [
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGPORT", "port"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGDATABASE", "dbname"),
    ("PGSERVICE", "service"),
    ("PGPASSFILE", "passfile"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGLOADBALANCEHOSTS", "load_balance_hosts"),
    ("PGAPPNAME", "application_name"),
    ("PGOPTIONS", "options"),
];

/// Settings that the client library takes as they are.
const PASSED_ON: [&str; 18] = [
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "sslnegotiation",
    "load_balance_hosts",
];

/// What TLS must prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Nothing: the traffic is encrypted, the server may be anybody.
    Anyone,
    /// The certificate is signed by a root we trust.
    Chain,
    /// And it is the host's.
    ChainAndName,
}

/// How to reach and trust one database.
#[derive(Clone)]
pub(super) struct Conninfo {
    /// For the client library; its sslmode says whether there is TLS at all.
    pub(super) config: Config,
    /// What TLS must prove, where there is TLS.
    pub(super) trust: Trust,
    /// The file of trusted roots, or none: the system's.
    pub(super) root_cert: Option<PathBuf>,
    /// Whether a password was found.
    pub(super) has_password: bool,
    /// Why a password file was ignored.
    pub(super) passfile_ignored: Option<String>,
    /// For messages.
    pub(super) user: String,
    /// For messages: `host:port`, or several.
    pub(super) address: String,
    /// For messages.
    pub(super) database: String,
}

impl fmt::Display for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}@{}/{}", self.user, self.address, self.database)
    }
}

/// Whether `text` is a connection string: a URL, or pairs as in `host=db dbname=x`.
pub(super) fn is_conninfo(text: &str) -> bool {
    settings::is_url(text)
        || settings::parse(text).is_ok_and(|settings| {
            let known =
                |key: &String| PASSED_ON.contains(&key.as_str()) || VARIABLES.iter().any(|(_, ours)| ours == key);
            !settings.is_empty() && settings.keys().all(known)
        })
}

impl Conninfo {
    /// Resolves `--manifest`, else DATABASE_URL, else the PG* variables. An error names the setting, never its value
    /// where that could be secret.
    pub(super) fn resolve(typed: Option<&str>, env: Env<'_>) -> Result<Conninfo> {
        let url = typed.map(str::to_owned).or_else(|| env("DATABASE_URL").filter(|url| !url.is_empty()));
        let source = if typed.is_some() { "--manifest" } else { "DATABASE_URL" };
        let typed = match &url {
            Some(text) => settings::parse(text).with_context(|| format!("failed to read {source}"))?,
            None => Settings::new(),
        };
        let mut settings = with_environment(typed, env)?;
        ensure!(
            url.is_some() || ["host", "hostaddr", "dbname"].iter().any(|key| settings.contains_key(*key)),
            "no manifest is named: give --manifest postgres://user@host/db, or set DATABASE_URL or PGHOST and PGDATABASE"
        );
        fill_defaults(&mut settings, env)?;
        build(settings, env)
    }
}

fn with_environment(mut settings: Settings, env: Env<'_>) -> Result<Settings> {
    let from_env = |key: &str| {
        let (variable, _) = VARIABLES.iter().find(|(_, known)| *known == key)?;
        env(variable).filter(|value| !value.is_empty())
    };
    if let Some(service) = settings.remove("service").or_else(|| from_env("service")) {
        for (key, value) in service::read(&service_file(env)?, &service)? {
            settings.entry(key).or_insert(value);
        }
    }
    for (_, key) in VARIABLES.iter().filter(|(_, key)| *key != "service") {
        if !settings.contains_key(*key)
            && let Some(value) = from_env(key)
        {
            settings.insert((*key).to_owned(), value);
        }
    }
    Ok(settings)
}

fn service_file(env: Env<'_>) -> Result<PathBuf> {
    let path = env("PGSERVICEFILE").map(PathBuf::from).or_else(|| in_home(env, ".pg_service.conf"));
    path.context("a service is named, but neither PGSERVICEFILE nor HOME says where the service file is")
}

fn fill_defaults(settings: &mut Settings, env: Env<'_>) -> Result<()> {
    // libpq treats an empty value as not given.
    settings.retain(|_, value| !value.is_empty());
    if !settings.contains_key("host") {
        let sockets = "/var/run/postgresql";
        let host = match settings.get("hostaddr") {
            Some(address) => address.clone(),
            None if Path::new(sockets).is_dir() => sockets.to_owned(),
            None => "localhost".to_owned(),
        };
        settings.insert("host".to_owned(), host);
    }
    if !settings.contains_key("user") {
        let user = env("USER").or_else(|| env("LOGNAME"));
        let user = user.context("no user is named: write postgres://user@host/db or set PGUSER")?;
        settings.insert("user".to_owned(), user);
    }
    for (key, value) in [("dbname", settings["user"].clone()), ("port", "5432".to_owned())] {
        settings.entry(key.to_owned()).or_insert(value);
    }
    let defaults = [
        ("application_name", "compact-local"),
        ("connect_timeout", "10"),
        // A connection that a firewall has forgotten is noticed within two minutes, not after two hours.
        ("keepalives_idle", "60"),
        ("keepalives_interval", "10"),
        ("keepalives_retries", "6"),
    ];
    for (key, value) in defaults {
        settings.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    Ok(())
}

#[expect(clippy::indexing_slicing, reason = "`fill_defaults` has put them in")]
fn build(mut settings: Settings, env: Env<'_>) -> Result<Conninfo> {
    let lookup = find_password(&mut settings, env);
    if let Some(password) = lookup.password {
        settings.insert("password".to_owned(), password);
    }
    let root_cert = settings.remove("sslrootcert").map(PathBuf::from);
    let root_cert = root_cert.or_else(|| in_home(env, ".postgresql/root.crt").filter(|path| path.is_file()));
    let (mode, trust) = tls_mode(settings.remove("sslmode").as_deref().unwrap_or("prefer"), root_cert.is_some())?;
    let mut config = client_config(&settings)?;
    // As libpq: no TLS over a Unix socket, whatever the mode.
    let local = settings["host"].split(',').all(|host| host.starts_with('/'));
    config.ssl_mode(if local { SslMode::Disable } else { mode });
    Ok(Conninfo {
        config,
        trust,
        root_cert: root_cert.filter(|path| path.as_os_str() != "system"),
        has_password: settings.contains_key("password"),
        passfile_ignored: lookup.ignored,
        address: address(&settings["host"], &settings["port"]),
        user: settings["user"].clone(),
        database: settings["dbname"].clone(),
    })
}

/// The password file's word for the first host, where no password is set.
fn find_password(settings: &mut Settings, env: Env<'_>) -> Lookup {
    let path = settings.remove("passfile").map(PathBuf::from).or_else(|| in_home(env, ".pgpass"));
    let Some(path) = path.filter(|_| !settings.contains_key("password")) else { return Lookup::default() };
    let first = |key: &str| settings[key].split(',').next().unwrap_or_default();
    let host = if first("host").starts_with('/') { "localhost" } else { first("host") };
    passfile::look_up(&path, [host, first("port"), &settings["dbname"], &settings["user"]])
}

fn tls_mode(mode: &str, has_root: bool) -> Result<(SslMode, Trust)> {
    Ok(match mode {
        "disable" => (SslMode::Disable, Trust::Anyone),
        "prefer" => (SslMode::Prefer, Trust::Anyone),
        // As libpq: with a root certificate at hand, require means verify-ca.
        "require" if has_root => (SslMode::Require, Trust::Chain),
        "require" => (SslMode::Require, Trust::Anyone),
        "verify-ca" => (SslMode::Require, Trust::Chain),
        "verify-full" => (SslMode::Require, Trust::ChainAndName),
        _ => bail!("sslmode is `{mode}`: use disable, prefer, require, verify-ca or verify-full"),
    })
}

fn client_config(settings: &Settings) -> Result<Config> {
    let mut text = String::new();
    for (key, value) in settings {
        ensure!(
            PASSED_ON.contains(&key.as_str()),
            "`{key}` is no connection setting that compact-local knows: leave it out"
        );
        let value = value.replace('\\', r"\\").replace('\'', r"\'");
        text.push_str(&format!("{key}='{value}' "));
    }
    text.parse().context("the connection settings cannot be used")
}

fn address(hosts: &str, ports: &str) -> String {
    let ports: Vec<&str> = ports.split(',').collect();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or("5432");
    let with_port = |(at, host): (usize, &str)| match host.contains(':') {
        true => format!("[{host}]:{}", port(at)),
        false => format!("{host}:{}", port(at)),
    };
    hosts.split(',').enumerate().map(with_port).collect::<Vec<_>>().join(",")
}

fn in_home(env: Env<'_>, file: &str) -> Option<PathBuf> {
    env("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves as with these variables, and no others.
    fn resolve(typed: Option<&str>, variables: &[(&str, &str)]) -> Result<Conninfo> {
        let env = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Conninfo::resolve(typed, &env)
    }

    fn shown(typed: Option<&str>, variables: &[(&str, &str)]) -> String {
        resolve(typed, variables).unwrap().to_string()
    }

    #[test]
    fn what_is_typed_goes_before_database_url_and_that_before_the_variables() {
        let variables = [("DATABASE_URL", "postgres://b@b/b"), ("PGHOST", "c"), ("PGPORT", "7"), ("PGUSER", "c")];
        assert_eq!(shown(Some("postgres://a/a"), &variables), "postgres://c@a:7/a");
        assert_eq!(shown(None, &variables), "postgres://b@b:7/b");
        assert_eq!(shown(None, &variables[1..]), "postgres://c@c:7/c");
        assert_eq!(shown(Some("host=a,b port=1,2 dbname=d user=u"), &[]), "postgres://u@a:1,b:2/d");
        assert_eq!(shown(Some("postgres://[::1]/d"), &[("USER", "me")]), "postgres://me@[::1]:5432/d");
    }

    #[test]
    fn nothing_named_is_an_error_that_says_what_to_name() {
        let error = resolve(None, &[("USER", "me")]).err().unwrap().to_string();
        assert!(error.contains("--manifest") && error.contains("DATABASE_URL"), "{error}");
    }

    #[test]
    fn a_service_stands_between_what_is_typed_and_the_variables() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "# ours\n[other]\nhost=x\n[prod]\nhost = s\nport=9\ndbname=no\n\n[more]\nhost=no\n")
            .unwrap();
        let variables = [("PGSERVICEFILE", file.path().to_str().unwrap()), ("PGPORT", "7"), ("PGUSER", "u")];
        assert_eq!(shown(Some("service=prod dbname=d"), &variables), "postgres://u@s:9/d");
        let error = format!("{:#}", resolve(Some("service=absent"), &variables).err().unwrap());
        assert!(error.contains("no section [absent]"), "{error}");
    }

    #[test]
    fn a_setting_that_is_not_known_is_named_and_its_value_is_not() {
        let error = format!("{:#}", resolve(Some("postgres://u@h/d?pasword=hunter2"), &[]).err().unwrap());
        assert!(error.contains("`pasword`") && !error.contains("hunter2"), "{error}");
        let error = format!("{:?}", resolve(Some("postgres://u:hunter2@h/d?connect_timeout=soon"), &[]).err().unwrap());
        assert!(error.contains("connect_timeout") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_unix_socket_has_no_tls_and_require_with_a_root_means_verify_ca() {
        let mode = |typed: &str| {
            let conninfo = resolve(Some(typed), &[]).unwrap();
            (conninfo.config.get_ssl_mode(), conninfo.trust)
        };
        assert_eq!(mode("host=/run/x user=u sslmode=require").0, SslMode::Disable);
        assert_eq!(mode("postgres://u@h/d"), (SslMode::Prefer, Trust::Anyone));
        assert_eq!(mode("postgres://u@h/d?sslmode=require"), (SslMode::Require, Trust::Anyone));
        assert_eq!(mode("postgres://u@h/d?sslmode=require&sslrootcert=x"), (SslMode::Require, Trust::Chain));
        assert_eq!(mode("postgres://u@h/d?sslmode=verify-full"), (SslMode::Require, Trust::ChainAndName));
    }
}
