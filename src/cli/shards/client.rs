//! Asking the admin port of a running gateway.

use std::io::ErrorKind;
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
        let answer = request.send(body);
        let is_unknown = answer.as_ref().is_err_and(may_have_arrived);
        self.read(answer).map_err(|error| match is_unknown {
            true => format!("{error}. The change may be done all the same; repeating it is safe"),
            false => error,
        })
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

/// Whether what could not be asked may have been understood.
fn may_have_arrived(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => error.kind() != ErrorKind::ConnectionRefused,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_change_whose_answer_is_lost_is_told_from_one_that_was_not_asked() {
        let directory = tempfile::tempdir().unwrap();
        token::open(directory.path()).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let client = Client::of(Some(&address), &Config::default(), Some(PATIENCE));
        let ask = || client.post::<String>("/topics/t/reshape", &1, directory.path());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = socket.accept().unwrap();
            stream.read_exact(&mut [0; 40]).unwrap();
        });
        let lost = ask().unwrap_err();
        server.join().unwrap();
        assert!(lost.contains("may be done all the same"), "{lost}");
        let refused = ask().unwrap_err();
        assert!(refused.contains("is the gateway running") && !refused.contains("may be done"));
    }

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
