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
    let dir = supervisor::directory("compact-local-nginx-");
    let root = dir.join("root");
    std::fs::create_dir(&root).unwrap();
    let conf = |port: u16| dir.join(format!("{port}.conf"));
    let server = supervisor::start(&dir, "start worker process ", |port| {
        std::fs::write(conf(port), configuration(&dir.display().to_string(), port)).unwrap();
        ["nginx", "-e", "stderr", "-c", conf(port).to_str().unwrap()].map(str::to_owned).to_vec()
    });
    let url = format!("http://127.0.0.1:{}", server.port);
    Nginx { _server: server, url, root }
}

/// Nothing outside `dir` is read or written.
fn configuration(dir: &str, port: u16) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("  {name}_temp_path {dir}/{name};\n"))
        .concat();
    format!(
        "daemon off; pid {dir}/nginx.pid; error_log stderr notice; worker_processes 1;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n{temporary}  access_log off; keepalive_requests 100000;\n  \
         server {{ listen 127.0.0.1:{port} backlog=1024; root {dir}/root; }}\n}}\n"
    )
}
