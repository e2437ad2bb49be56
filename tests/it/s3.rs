//! A real S3 server in this process (s3s over a directory): it checks signatures, If-None-Match and part sizes. Child
//! processes reach it by `environment`.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use compact_local::cli::StoreArgs;
use compact_local::store::StoreSettings;
use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::access::S3Access;
use s3s::auth::SimpleAuth;
use s3s::dto::PutObjectInput;
use s3s::service::S3ServiceBuilder;
use s3s::{S3Request, S3Result, s3_error};
use tempfile::TempDir;

pub(crate) const ACCESS_KEY: &str = "AKIDACCESSKEY";
pub(crate) const SECRET_KEY: &str = "s3cr3t/k3y+that=never.shows";

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| tokio::runtime::Runtime::new().unwrap());

/// A server of its own; its objects are files under `root`.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    pub(crate) root: TempDir,
    connections: Arc<AtomicUsize>,
    refusals: Arc<AtomicUsize>,
}

/// Refuses to put so many objects.
struct Busy(Arc<AtomicUsize>);

#[async_trait::async_trait]
impl S3Access for Busy {
    async fn put_object(&self, _: &mut S3Request<PutObjectInput>) -> S3Result<()> {
        let refused = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if refused.is_ok() { Err(s3_error!(SlowDown, "so it is")) } else { Ok(()) }
    }
}

pub(crate) fn server() -> Server {
    let root = tempfile::tempdir().unwrap();
    let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root.path()).unwrap());
    service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let refusals = Arc::<AtomicUsize>::default();
    service.set_access(Busy(Arc::clone(&refusals)));
    let service = service.build();
    let listener = RUNTIME.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::<AtomicUsize>::default();
    let open = Arc::clone(&connections);
    RUNTIME.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (service, open) = (service.clone(), Arc::clone(&open));
            open.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                // As with a store in the cloud, a request that has come is carried out, whether its client lives or not.
                server.http1().half_close(true);
                // A client that hangs up is none of the server's business.
                let _ = server.serve_connection(TokioIo::new(socket), service).await;
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    Server { endpoint, root, connections, refusals }
}

impl Server {
    /// Makes a bucket; its name.
    pub(crate) fn bucket<'a>(&self, name: &'a str) -> &'a str {
        std::fs::create_dir(self.root.path().join(name)).unwrap();
        name
    }

    /// Answers so many requests to put an object, from now on, with 503 SlowDown.
    pub(crate) fn refuse_puts(&self, count: usize) {
        self.refusals.store(count, Ordering::SeqCst);
    }

    /// What a child process needs to reach it.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into()),
            ("AWS_ENDPOINT_URL_S3", self.endpoint.clone()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    pub(crate) fn settings(&self) -> StoreSettings {
        settings(&self.endpoint)
    }

    /// Waits until what dead clients have asked for is done.
    pub(crate) fn settle(&self) {
        while self.connections.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Files of uploads in parts that are neither completed nor aborted.
    pub(crate) fn unfinished(&self) -> usize {
        names(self.root.path()).iter().filter(|name| name.starts_with(".upload")).count()
    }
}

/// Settings for any S3 endpoint, with the keys above.
pub(crate) fn settings(endpoint: &str) -> StoreSettings {
    settings_with(endpoint, &[("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)])
}

/// Settings as a process with just these variables has them.
pub(crate) fn settings_with(endpoint: &str, variables: &[(&str, &str)]) -> StoreSettings {
    let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    StoreSettings::new(&args(Some(endpoint)), &find).unwrap()
}

pub(crate) fn args(endpoint: Option<&str>) -> StoreArgs {
    StoreArgs {
        s3_endpoint: endpoint.map(str::to_owned),
        s3_region: None,
        s3_path_style: false,
        s3_unsigned: false,
        s3_part_size: 5 << 20,
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
