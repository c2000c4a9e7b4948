//! Sockets that are bound, with the ports they really got.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use crate::config::{Address, Listener, NetConfig};

/// A listener whose port is taken and whose sockets wait for connections.
#[derive(Debug)]
pub struct Bound {
    /// The listener, with real ports where it said 0.
    pub listener: Arc<Listener>,
    /// One socket for each address its host stands for.
    pub sockets: Vec<TcpListener>,
}

/// Why a listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("listener {name} cannot listen on {address}: {error}{hint}")]
pub struct BindError {
    name: String,
    address: Address,
    error: io::Error,
    hint: &'static str,
}

/// Opens one listener. Must run inside the runtime.
pub fn bind(listener: &Listener, net: &NetConfig) -> Result<Bound, BindError> {
    let fail = |error: io::Error| BindError {
        name: listener.name.clone(),
        address: listener.bind.clone(),
        hint: match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another process listens there: stop it or choose another port with --set \
                 listeners=NAME://host:port"
            }
            io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
            io::ErrorKind::PermissionDenied => "; ports under 1024 need a privilege",
            _ => "",
        },
        error,
    };
    let mut port = listener.bind.port;
    let mut sockets = Vec::new();
    let mut refused = None;
    for ip in addresses(&listener.bind).map_err(fail)? {
        match open(SocketAddr::new(ip, port), net) {
            Ok(socket) => {
                // All sockets of a listener share the port that the first one got.
                port = socket.local_addr().map_err(fail)?.port();
                sockets.push(socket);
            }
            Err(error) => refused = Some((ip, error)),
        }
    }
    match refused {
        // A name often stands for an IPv6 address that the machine does not have.
        Some((ip, error))
            if sockets.is_empty() || error.kind() != io::ErrorKind::AddrNotAvailable =>
        {
            tracing::debug!(%ip, %error, "address of listener {} not opened", listener.name);
            return Err(fail(error));
        }
        _ => {}
    }
    let mut listener = listener.clone();
    listener.bind.port = port;
    if listener.advertised.port == 0 {
        listener.advertised.port = port;
    }
    Ok(Bound {
        listener: Arc::new(listener),
        sockets,
    })
}

/// The addresses a host stands for. Every interface is one socket for both families where the
/// machine has IPv6.
fn addresses(bind: &Address) -> io::Result<Vec<IpAddr>> {
    if bind.host.is_empty() {
        let both = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok();
        let any: IpAddr = if both {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        return Ok(vec![any]);
    }
    let mut found: Vec<IpAddr> = (bind.host.as_str(), bind.port)
        .to_socket_addrs()?
        .map(|a| a.ip())
        .collect();
    found.sort();
    found.dedup();
    match found.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        )),
        false => Ok(found),
    }
}

fn open(address: SocketAddr, net: &NetConfig) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A restart must not wait for connections of the last run to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Set before listening: accepted sockets inherit them, and the window scale follows.
    if let Some(bytes) = net.receive_buffer {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = net.send_buffer {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(net.backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn port_zero_becomes_the_real_port_in_both_addresses() {
        let bound = bind(
            &Listener::plaintext("A", "127.0.0.1", 0),
            &NetConfig::default(),
        )
        .unwrap();
        let port = bound.sockets[0].local_addr().unwrap().port();
        assert_ne!(port, 0);
        assert_eq!(
            (bound.listener.bind.port, bound.listener.advertised.port),
            (port, port)
        );
    }

    #[tokio::test]
    async fn socket_buffers_are_as_configured() {
        let sizes = |bytes| {
            let net = NetConfig {
                receive_buffer: bytes,
                send_buffer: bytes,
                ..NetConfig::default()
            };
            let bound = bind(&Listener::plaintext("A", "127.0.0.1", 0), &net).unwrap();
            let socket = socket2::SockRef::from(&bound.sockets[0]);
            (
                socket.recv_buffer_size().unwrap(),
                socket.send_buffer_size().unwrap(),
            )
        };
        // Linux doubles what it is asked for.
        let (receive, send) = sizes(Some(20_000));
        assert!((20_000..=40_000).contains(&receive) && (20_000..=40_000).contains(&send));
        assert_ne!(sizes(None), (receive, send));
    }

    #[tokio::test]
    async fn a_taken_port_says_so() {
        let net = NetConfig::default();
        let first = bind(&Listener::plaintext("A", "127.0.0.1", 0), &net).unwrap();
        let again = Listener::plaintext("B", "127.0.0.1", first.listener.bind.port);
        let text = bind(&again, &net).unwrap_err().to_string();
        assert!(
            text.contains("listener B") && text.contains("another process"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn localhost_opens_each_family_on_one_port() {
        let bound = bind(
            &Listener::plaintext("A", "localhost", 0),
            &NetConfig::default(),
        )
        .unwrap();
        let port = bound.listener.bind.port;
        assert!(
            bound
                .sockets
                .iter()
                .all(|s| s.local_addr().unwrap().port() == port)
        );
        assert_eq!(
            bound.listener.advertised.to_string(),
            format!("localhost:{port}")
        );
    }
}
