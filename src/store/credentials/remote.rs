//! Credentials of the role that this container or machine has, asked of a service nearby: the container's endpoint
//! where its variables are set, else the machine's metadata service (IMDSv2: a token first).

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;

use super::{CredentialsError, Environment, Keys, parse_document};
use crate::store::agent::{AgentOptions, Network, Patience};

/// Away from the cloud nobody answers, so it must not be waited for.
const WAITED: Duration = Duration::from_secs(2);

const NO_CREDENTIALS: &str = "there are no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
     AWS_PROFILE, or give this machine a role; for a public bucket, --s3-unsigned";

/// Whom to ask.
pub(super) enum Endpoint {
    Container { url: String, authorization: Authorization, network: Arc<Network> },
    Machine { base: String, network: Arc<Network> },
    Nobody,
}

/// What the container's endpoint wants to see.
pub(super) enum Authorization {
    None,
    Token(String),
    /// Read anew each time: it changes.
    File(String),
}

impl Endpoint {
    pub(super) fn find(environment: Environment, network: &Arc<Network>) -> Endpoint {
        let variable = |name| environment(name).filter(|value| !value.is_empty());
        let network = Arc::clone(network);
        let relative =
            variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").map(|path| format!("http://169.254.170.2{path}"));
        if let Some(url) = relative.or_else(|| variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
            let file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(Authorization::File);
            let token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Authorization::Token);
            return Endpoint::Container { url, authorization: file.or(token).unwrap_or(Authorization::None), network };
        }
        if variable("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Endpoint::Nobody;
        }
        let base = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| "http://169.254.169.254".into());
        Endpoint::Machine { base: base.trim_end_matches('/').into(), network }
    }

    pub(super) fn load(&self) -> Result<Keys, CredentialsError> {
        match self {
            Endpoint::Container { url, authorization, network } => from_container(url, authorization, network),
            Endpoint::Machine { base, network } => from_machine(base, network),
            Endpoint::Nobody => Err(CredentialsError(NO_CREDENTIALS.into())),
        }
    }
}

fn from_container(url: &str, authorization: &Authorization, network: &Network) -> Result<Keys, CredentialsError> {
    let of = "the container's credentials endpoint";
    let mut request = agent(url, network).get(url);
    let token = match authorization {
        Authorization::None => None,
        Authorization::Token(token) => Some(token.clone()),
        Authorization::File(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            CredentialsError(format!("failed to read {path}, named by AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: {error}"))
        })?),
    };
    if let Some(token) = token {
        request = request.header("authorization", token.trim());
    }
    match answer(request.call(), of)? {
        Some(document) => parse_document(&document, of),
        None => Err(CredentialsError(format!("{of} has no credentials for this container"))),
    }
}

fn from_machine(base: &str, network: &Network) -> Result<Keys, CredentialsError> {
    let of = "the machine's metadata service";
    let agent = agent(base, network);
    let lifetime = ("x-aws-ec2-metadata-token-ttl-seconds", "21600");
    let token = agent.put(format!("{base}/latest/api/token")).header(lifetime.0, lifetime.1).send_empty();
    // Nobody there: not a machine of the cloud.
    let none = || CredentialsError(NO_CREDENTIALS.into());
    let token = text(answer(Ok(token.map_err(|_| none())?), of)?.ok_or_else(none)?);
    let get = |path: &str| {
        let request = agent.get(format!("{base}/latest/meta-data/iam/security-credentials/{path}"));
        answer(request.header("x-aws-ec2-metadata-token", &token).call(), of)?.ok_or_else(none)
    };
    let roles = text(get("")?);
    let role = roles.lines().next().ok_or_else(none)?;
    parse_document(&get(role)?, of)
}

fn agent(url: &str, network: &Network) -> Agent {
    let patience = Patience { connect: WAITED, read: WAITED, write: WAITED, ..Patience::default() };
    network.agent(url, AgentOptions { idle_max: 1, redirects_max: 0, patience })
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

/// The body of a good answer, nothing for a 404. The library's error is not passed on: it may quote a url.
fn answer(answer: Answer, of: &str) -> Result<Option<Vec<u8>>, CredentialsError> {
    let mut response = answer.map_err(|_| CredentialsError(format!("{of} does not answer")))?;
    match response.status().as_u16() {
        200 => match response.body_mut().read_to_vec() {
            Ok(body) => Ok(Some(body)),
            Err(_) => Err(CredentialsError(format!("{of} broke off its answer"))),
        },
        404 => Ok(None),
        status => Err(CredentialsError(format!("{of} answered {status}"))),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
