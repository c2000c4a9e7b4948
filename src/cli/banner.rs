//! What the terminal shows once clients are served.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::Listener;

/// What the banner tells.
#[derive(Debug)]
pub struct Banner<'a> {
    /// With real ports.
    pub listeners: &'a [&'a Listener],
    /// The admin port, if it is on.
    pub admin: Option<u16>,
    /// The data directories.
    pub data: &'a [PathBuf],
    /// Time from the start of the process until ready.
    pub took: Duration,
}

impl Banner<'_> {
    /// The text, with a line feed at its end.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let version = env!("CARGO_PKG_VERSION");
        let took = self.took.as_millis();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "Shardgate {version} is ready after {took} ms\n");
        for listener in self.listeners {
            let Listener {
                name,
                bind,
                advertised,
                ..
            } = listener;
            let bind = match bind.host.is_empty() {
                true => format!("every interface, port {}", bind.port),
                false => bind.to_string(),
            };
            let _ = writeln!(
                out,
                "  {name:<10} listens on {bind}, advertises {advertised}"
            );
        }
        for data in self.data {
            let data = std::path::absolute(data).unwrap_or_else(|_| data.clone());
            let _ = writeln!(out, "  {:<10} {}", "data", data.display());
        }
        if let Some(port) = self.admin {
            let _ = writeln!(
                out,
                "  {:<10} http://127.0.0.1:{port}/readyz, /livez, /metrics",
                "admin"
            );
        }
        if let Some(first) = self.listeners.first() {
            let broker = &first.advertised;
            let _ = writeln!(
                out,
                "\nTry it:\n  echo hello | kcat -b {broker} -P -t greetings"
            );
            let _ = writeln!(out, "  kcat -b {broker} -C -t greetings -o beginning -e");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_where_it_listens_and_what_it_advertises() {
        let mut listener = Listener::plaintext("PLAINTEXT", "::1", 9092);
        listener.advertised.host = "gw.example".to_owned();
        let banner = Banner {
            listeners: &[&listener],
            admin: Some(9644),
            data: &[PathBuf::from("/data")],
            took: Duration::from_millis(42),
        };
        let text = banner.render();
        assert!(text.contains("after 42 ms"), "{text}");
        assert!(
            text.contains("listens on [::1]:9092, advertises gw.example:9092"),
            "{text}"
        );
        assert_eq!(text.matches("kcat -b gw.example:9092").count(), 2, "{text}");
        assert!(text.contains("http://127.0.0.1:9644"), "{text}");
    }
}
