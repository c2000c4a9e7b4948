//! The admin port over a plain connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A GET: the status and the body.
pub fn get(address: &str, path: &str) -> io::Result<(u16, String)> {
    ask(address, &format!("GET {path} HTTP/1.1\r\n"), "")
}

/// A POST of JSON with the token that changes need: the status and the body.
pub fn post(address: &str, path: &str, token: &str, body: &str) -> io::Result<(u16, String)> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n",
        body.len()
    );
    ask(address, &head, body)
}

fn ask(address: &str, head: &str, body: &str) -> io::Result<(u16, String)> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        socket,
        "{head}Host: {address}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("the answer has no status"))?;
    let body = text.split_once("\r\n\r\n").map_or("", |parts| parts.1);
    Ok((status, body.to_owned()))
}
