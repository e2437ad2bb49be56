//! How stores are reached: what was typed and what the environment says, checked once. Shared by all stores; nothing is
//! connected to and no credential is asked for before a store needs it.

use std::sync::Arc;

use anyhow::ensure;

use super::agent::{Network, Patience};
use super::credentials::{Environment, Profile, Provider};
use crate::cli::StoreArgs;

/// The smallest part that S3 takes, but for the last.
pub const PART_BYTES_MIN: u64 = 5 << 20;

/// The largest part, and the largest object put in one request.
pub const PART_BYTES_MAX: u64 = 5 << 30;

/// How stores are reached.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// The S3 endpoint where it is not AWS, `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// The S3 region.
    pub region: String,
    /// The bucket stands in the path, not in the host's name.
    pub path_style: bool,
    /// Larger objects are uploaded in parts of this size.
    pub part_bytes: u64,
    /// How long servers are waited for.
    pub patience: Patience,
    /// S3 credentials.
    pub credentials: Arc<Provider>,
    /// Names, TLS and the count of connections.
    pub network: Arc<Network>,
}

impl StoreSettings {
    /// What was typed, completed by this process's environment.
    pub fn from_args(args: &StoreArgs) -> anyhow::Result<StoreSettings> {
        StoreSettings::new(args, &|name| std::env::var(name).ok())
    }

    /// What was typed, completed by `environment`.
    pub fn new(args: &StoreArgs, environment: Environment) -> anyhow::Result<StoreSettings> {
        let part_bytes = args.s3_part_size;
        let fits = (PART_BYTES_MIN..=PART_BYTES_MAX).contains(&part_bytes);
        ensure!(fits, "--s3-part-size is {part_bytes} bytes: S3 takes parts of 5MiB to 5GiB");
        let variable = |name| environment(name).filter(|value| !value.trim().is_empty());
        let endpoint = args.s3_endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL"));
        if let Some(endpoint) = &endpoint {
            let has_scheme = endpoint.starts_with("http://") || endpoint.starts_with("https://");
            ensure!(has_scheme, "--s3-endpoint has no scheme: write http://host:port or https://host");
        }
        let profile = Profile::read(environment);
        let region = args
            .s3_region
            .clone()
            .or_else(|| variable("AWS_REGION"))
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .or_else(|| profile.region().map(str::to_owned))
            .unwrap_or_else(|| "us-east-1".into());
        let network = Arc::new(Network::default());
        let credentials =
            if args.s3_unsigned { Provider::unsigned() } else { Provider::find(environment, &profile, &network) };
        Ok(StoreSettings {
            path_style: args.s3_path_style || endpoint.is_some(),
            endpoint,
            region,
            part_bytes,
            patience: Patience::default(),
            credentials: Arc::new(credentials),
            network,
        })
    }
}
