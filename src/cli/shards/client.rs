//! Asking the admin port of a running gateway.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::shards::views::ErrorView;
use crate::admin::token;
use crate::config::Config;

/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running gateway.
pub struct Client {
    agent: ureq::Agent,
    base: String,
}

impl Client {
    /// The gateway whose admin port listens at `address`, `HOST:PORT`, or where the configuration
    /// says. An answer may take as long as `patience` says, if it does.
    pub fn of(address: Option<&str>, config: &Config, patience: Option<Duration>) -> Self {
        let own = format!("127.0.0.1:{}", config.admin.port);
        let address = address.unwrap_or(&own);
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(patience)
            .build();
        Self {
            agent: agent.into(),
            base: format!("http://{address}"),
        }
    }

    /// What stands at a path, whose query is given as names and values.
    pub fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, String> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (name, value) in query {
            request = request.query(name, value);
        }
        self.read(request.call())
    }

    /// Asks for a change, with the token that the gateway keeps in its data directory.
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        data_dir: &Path,
    ) -> Result<T, String> {
        let token = token::read(data_dir)?;
        let body = serde_json::to_string(body).map_err(|e| e.to_string())?;
        let request = self
            .agent
            .post(format!("{}{path}", self.base))
            .header("Content-Type", "application/json")
            .header("Authorization", format!("Bearer {token}"));
        self.read(request.send(body))
    }

    fn read<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, String> {
        let mut answer = answer.map_err(|error| {
            format!(
                "{}: {error}; is the gateway running, and is this its admin port (admin.port)? \
                 Name another one with --admin HOST:PORT",
                self.base
            )
        })?;
        let status = answer.status();
        // All shards of a large gateway are tens of megabytes.
        let text = answer
            .body_mut()
            .with_config()
            .limit(u64::MAX)
            .read_to_string()
            .map_err(|e| e.to_string())?;
        if status.is_success() {
            let unknown = |e| {
                format!(
                    "{}: the answer is not one that this build knows: {e}",
                    self.base
                )
            };
            return serde_json::from_str(&text).map_err(unknown);
        }
        match serde_json::from_str::<ErrorView>(&text) {
            Ok(refusal) => Err(refusal.error),
            Err(_) => Err(format!("{}: {status}: {text}", self.base)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_about_very_many_shards_is_read_whole() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let length = 32 << 20;
        let server = std::thread::spawn(move || {
            let (mut stream, _) = socket.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n\"",
                length + 2
            );
            let body = vec![b'x'; length];
            // Whoever asks may hang up before all of it is read.
            let _ = stream.write_all(&[head.as_bytes(), &body, b"\""].concat());
        });
        let client = Client::of(Some(&address), &Config::default(), Some(PATIENCE));
        let answer = client.get::<String>("/shards", &[]);
        assert_eq!(answer.map(|text| text.len()), Ok(length));
        server.join().unwrap();
    }
}
