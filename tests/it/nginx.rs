//! nginx, serving a directory on loopback: the origin of the end-to-end tests. Needs the Debian package nginx.

use std::path::PathBuf;

use crate::supervisor::{self, Server};

/// A running nginx; it ends, and its directory goes, when this is dropped.
pub(crate) struct Nginx {
    _server: Server,
    /// `http://127.0.0.1:port`
    pub(crate) url: String,
    /// What it serves.
    pub(crate) root: PathBuf,
}

/// Serves a new, empty directory.
pub(crate) fn nginx() -> Nginx {
    start("", "")
}

/// Serves a new, empty directory 500 times a second; beyond that it answers 503, and that it be left alone for a second.
/// What it answered is in `answers`, a status a line.
pub(crate) fn nginx_that_pushes_back() -> Nginx {
    start(
        "limit_req_zone all zone=all:32k rate=500r/s; log_format status $status;",
        "limit_req zone=all burst=50 nodelay; limit_req_status 503; add_header Retry-After 1 always; \
         access_log {dir}/answers status;",
    )
}

/// With directives of `http` and of `server`.
fn start(http: &str, server: &str) -> Nginx {
    start_in(supervisor::directory("compact-local-nginx-"), http, server)
}

/// In a directory that may hold what the directives name: `{dir}` there. They may listen elsewhere too, on `{port}`.
pub(crate) fn start_in(dir: PathBuf, http: &str, server: &str) -> Nginx {
    let root = dir.join("root");
    std::fs::create_dir(&root).unwrap();
    let conf = |port: u16| dir.join(format!("{port}.conf"));
    let process = supervisor::start(&dir, "start worker process ", |port| {
        std::fs::write(conf(port), configuration(&dir.display().to_string(), port, http, server)).unwrap();
        ["nginx", "-e", "stderr", "-c", conf(port).to_str().unwrap()].map(str::to_owned).to_vec()
    });
    let url = format!("http://127.0.0.1:{}", process.port);
    Nginx { _server: process, url, root }
}

/// Nothing outside `dir` is read or written.
fn configuration(dir: &str, port: u16, http: &str, server: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("  {name}_temp_path {dir}/{name};\n"))
        .concat();
    format!(
        "daemon off; pid {dir}/nginx.pid; error_log stderr notice; worker_processes 1;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n{temporary}  access_log off; {http} keepalive_requests 100000;\n  \
         server {{ listen 127.0.0.1:{port} backlog=1024; root {dir}/root; {server} }}\n}}\n",
        server = server.replace("{dir}", dir),
        http = http.replace("{dir}", dir).replace("{port}", &port.to_string())
    )
}
