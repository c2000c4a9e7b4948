//! Requests that a web page in somebody's browser sends to the admin port are refused: the port
//! stands on loopback, where a browser on the same machine reaches it for any page that it shows.

use std::net::{Ipv4Addr, SocketAddr};

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Lets only requests through that no web page can have caused.
pub async fn refuse_pages(request: Request, next: Next) -> Response {
    match is_of_page(request.headers()) {
        true => (
            StatusCode::FORBIDDEN,
            "the admin port answers no web pages: ask it by address or as localhost\n",
        )
            .into_response(),
        false => next.run(request).await,
    }
}

/// Whether the request names the port by a name that a page's owner could let point here (DNS
/// rebinding), or says itself that another site caused it (Fetch Metadata).
fn is_of_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let foreign = |host: &str| !is_local(host);
    let caused = |site: &str| !matches!(site, "none" | "same-origin");
    text(header::HOST.as_str()).is_some_and(foreign) || text("sec-fetch-site").is_some_and(caused)
}

/// Whether a host with or without a port is an address, or the name that always means loopback.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok()
        || host.parse::<SocketAddr>().is_ok()
        || (name.starts_with('[') && format!("{name}:0").parse::<SocketAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn addresses_and_localhost_are_answered_and_other_names_are_not() {
        for host in [
            "localhost",
            "LOCALHOST:9644",
            "127.0.0.1",
            "127.0.0.1:9644",
            "10.1.2.3:80",
            "[::1]:9644",
            "[::1]",
        ] {
            assert!(!is_of_page(&headers(&[("host", host)])), "{host}");
        }
        for host in [
            "rebound.example:9644",
            "localhost.example",
            "127.0.0.1.example:9644",
            "[::1].example",
            "",
            ":9644",
        ] {
            assert!(is_of_page(&headers(&[("host", host)])), "{host}");
        }
        assert!(!is_of_page(&headers(&[])), "HTTP/1.0 names no host");
    }

    #[test]
    fn what_another_site_caused_is_not_answered() {
        let from = |site| headers(&[("host", "127.0.0.1:9644"), ("sec-fetch-site", site)]);
        assert!(!is_of_page(&from("none")), "typed into the browser");
        assert!(!is_of_page(&from("same-origin")));
        assert!(is_of_page(&from("cross-site")));
        assert!(
            is_of_page(&from("same-site")),
            "another port is another program"
        );
    }
}
