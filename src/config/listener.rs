//! `listeners`, `advertised.listeners` and the map from listener names to security protocols.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::value::{ConfigError, Raw, split_list};

/// How bytes on a listener are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecurityProtocol {
    /// Neither encrypted nor authenticated.
    Plaintext,
}

impl SecurityProtocol {
    /// Kafka's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
        }
    }
}

/// A host and a port. An empty host means every interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Whether it stands for every interface.
    pub fn is_wildcard(&self) -> bool {
        self.host.is_empty()
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.is_unspecified())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// One client listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name, in upper case as Kafka keeps it.
    pub name: String,
    /// How its bytes are protected.
    pub protocol: SecurityProtocol,
    /// What it binds.
    pub bind: Address,
    /// What clients that came through it are told to connect to.
    pub advertised: Address,
}

impl Listener {
    /// A plaintext listener that advertises what it binds.
    pub fn plaintext(name: &str, host: &str, port: u16) -> Self {
        let bind = Address {
            host: host.to_owned(),
            port,
        };
        Self {
            name: name.to_owned(),
            protocol: SecurityProtocol::Plaintext,
            advertised: bind.clone(),
            bind,
        }
    }
}

/// The keys that together say where the gateway listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerKeys<'a> {
    /// `listeners`.
    pub listeners: Option<Raw<'a>>,
    /// `advertised.listeners`.
    pub advertised: Option<Raw<'a>>,
    /// `listener.security.protocol.map`.
    pub protocols: Option<Raw<'a>>,
    /// `controller.listener.names`.
    pub controllers: Option<Raw<'a>>,
    /// `allow.insecure.listeners`.
    pub allow_insecure: bool,
}

/// The client listeners and the names of the controller listeners that were skipped.
pub fn resolve(keys: ListenerKeys<'_>) -> Result<(Vec<Listener>, Vec<String>), ConfigError> {
    let Some(raw) = keys.listeners else {
        let default = Raw {
            key: "listeners",
            value: DEFAULT_LISTENERS,
            origin: "default",
        };
        return resolve(ListenerKeys {
            listeners: Some(default),
            ..keys
        });
    };
    let protocols = protocol_map(keys.protocols)?;
    let controllers: Vec<String> = keys
        .controllers
        .map_or_else(Vec::new, |raw| upper(&raw.list()));
    let is_controller = |name: &str| controllers.iter().any(|c| c == name);
    let advertised = match keys.advertised {
        Some(raw) if !raw.value.trim().is_empty() => endpoints(raw)?,
        _ => Vec::new(),
    };

    let mut listeners: Vec<Listener> = Vec::new();
    let mut skipped = Vec::new();
    for (name, bind) in endpoints(raw)? {
        if is_controller(&name) {
            skipped.push(name);
            continue;
        }
        check_free(raw, &listeners, &name, &bind)?;
        let protocol = protocol_of(raw, &protocols, &name)?;
        if !bind.is_loopback() && !keys.allow_insecure {
            return Err(raw.error(format!(
                "listener {name} is plaintext and reachable from other machines, where anybody \
                 could read and write everything; bind a loopback address (127.0.0.1, [::1], \
                 localhost) or say so with allow.insecure.listeners=true"
            )));
        }
        let told = advertised
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, a)| a.clone());
        let advertised = match (told, keys.advertised) {
            (Some(told), Some(source)) => check_advertised(source, told)?,
            _ => default_advertised(raw, &bind)?,
        };
        listeners.push(Listener {
            name,
            protocol,
            bind,
            advertised,
        });
    }
    if let (Some(source), Some((name, _))) = (
        keys.advertised,
        advertised
            .iter()
            .find(|(n, _)| !is_controller(n) && listeners.iter().all(|l| l.name != *n)),
    ) {
        return Err(source.error(format!(
            "{name} is not among the listeners; use their names only"
        )));
    }
    if listeners.is_empty() {
        return Err(raw.error(
            "no listener for clients is left once controller listeners are skipped; add one, \
             for example PLAINTEXT://127.0.0.1:9092",
        ));
    }
    Ok((listeners, skipped))
}

/// Where the gateway listens when nobody says otherwise.
pub const DEFAULT_LISTENERS: &str = "PLAINTEXT://127.0.0.1:9092";

fn upper(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| n.to_ascii_uppercase()).collect()
}

fn check_free(
    raw: Raw<'_>,
    listeners: &[Listener],
    name: &str,
    bind: &Address,
) -> Result<(), ConfigError> {
    if listeners.iter().any(|l| l.name == name) {
        return Err(raw.error(format!("the name {name} is used twice; names must differ")));
    }
    match listeners
        .iter()
        .find(|l| l.bind.port != 0 && l.bind == *bind)
    {
        Some(other) => Err(raw.error(format!(
            "{} and {name} both bind {bind}; give each its own port",
            other.name
        ))),
        None => Ok(()),
    }
}

fn check_advertised(source: Raw<'_>, told: Address) -> Result<Address, ConfigError> {
    if told.host.is_empty() {
        return Ok(Address {
            host: host_name(),
            port: told.port,
        });
    }
    if told.is_wildcard() {
        return Err(source.error(format!(
            "{} cannot be reached by clients; use a name or an address that leads here",
            told.host
        )));
    }
    Ok(told)
}

/// A listener without a host advertises this machine's name, as Kafka does.
fn default_advertised(raw: Raw<'_>, bind: &Address) -> Result<Address, ConfigError> {
    if bind.host.is_empty() {
        return Ok(Address {
            host: host_name(),
            port: bind.port,
        });
    }
    if bind.is_wildcard() {
        return Err(raw.error(format!(
            "{} is every interface and cannot be told to clients; set advertised.listeners to a \
             name or an address that leads here",
            bind.host
        )));
    }
    Ok(bind.clone())
}

/// This machine's name, or `localhost` where it has none.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty() && name != "(none)")
        .unwrap_or_else(|| "localhost".to_owned())
}

/// Kafka's own map, overlaid by `listener.security.protocol.map`.
fn protocol_map(raw: Option<Raw<'_>>) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut map: BTreeMap<String, String> = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
        .into_iter()
        .map(|name| (name.to_owned(), name.to_owned()))
        .collect();
    let Some(raw) = raw else { return Ok(map) };
    for pair in split_list(raw.value) {
        let Some((name, protocol)) = pair.split_once(':') else {
            return Err(raw.error("pairs NAME:PROTOCOL with commas between them are allowed"));
        };
        map.insert(
            name.trim().to_ascii_uppercase(),
            protocol.trim().to_ascii_uppercase(),
        );
    }
    Ok(map)
}

fn protocol_of(
    raw: Raw<'_>,
    map: &BTreeMap<String, String>,
    name: &str,
) -> Result<SecurityProtocol, ConfigError> {
    match map.get(name).map(String::as_str) {
        Some("PLAINTEXT") => Ok(SecurityProtocol::Plaintext),
        Some(other) => Err(raw.error(format!(
            "listener {name} asks for {other}, which this version cannot serve; PLAINTEXT is \
             allowed"
        ))),
        None => Err(raw.error(format!(
            "listener {name} has no security protocol; add {name}:PLAINTEXT to \
             listener.security.protocol.map"
        ))),
    }
}

/// `NAME://host:port` with commas between them.
fn endpoints(raw: Raw<'_>) -> Result<Vec<(String, Address)>, ConfigError> {
    let parts = raw.list();
    if parts.is_empty() {
        return Err(raw.error(SYNTAX));
    }
    parts
        .into_iter()
        .map(|part| endpoint(part).ok_or_else(|| raw.error(SYNTAX)))
        .collect()
}

const SYNTAX: &str = "NAME://host:port with commas between listeners is allowed; IPv6 in brackets \
                      (PLAINTEXT://[::1]:9092), no host for every interface";

fn endpoint(text: &str) -> Option<(String, Address)> {
    let (name, rest) = text.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    let port: u16 = port.trim().parse().ok()?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    if name.is_empty() || !name.chars().all(word) {
        return None;
    }
    let host = match host.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']')?;
            inner.split('%').next()?.parse::<Ipv6Addr>().ok()?;
            inner
        }
        None => host,
    };
    let bracketed = rest.starts_with('[');
    if !bracketed && (host.contains(':') || host.contains('/') || host.contains(' ')) {
        return None;
    }
    Some((
        name.to_ascii_uppercase(),
        Address {
            host: host.to_owned(),
            port,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<'a>(pairs: &[(&'a str, &'a str)]) -> ListenerKeys<'a> {
        let find = |key: &'a str| {
            pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| Raw {
                key,
                value,
                origin: "test",
            })
        };
        ListenerKeys {
            listeners: find("listeners"),
            advertised: find("advertised.listeners"),
            protocols: find("listener.security.protocol.map"),
            controllers: find("controller.listener.names"),
            allow_insecure: find("allow.insecure.listeners").is_some(),
        }
    }

    fn one(text: &str) -> Result<Listener, ConfigError> {
        resolve(keys(&[("listeners", text)])).map(|(mut all, _)| all.remove(0))
    }

    #[test]
    fn the_default_is_loopback_and_advertises_itself() {
        let (all, skipped) = resolve(ListenerKeys::default()).unwrap();
        assert_eq!(
            all,
            vec![Listener::plaintext("PLAINTEXT", "127.0.0.1", 9092)]
        );
        assert!(skipped.is_empty());
    }

    #[test]
    fn ipv6_is_written_in_brackets_and_shown_so() {
        let listener = one("PLAINTEXT://[::1]:9092").unwrap();
        assert_eq!(listener.bind.host, "::1");
        assert_eq!(listener.advertised.to_string(), "[::1]:9092");
        assert!(one("PLAINTEXT://::1:9092").is_err());
        assert!(one("PLAINTEXT://[::1:9092").is_err());
        assert!(one("PLAINTEXT://[nonsense]:9092").is_err());
    }

    #[test]
    fn nonsense_is_refused_with_the_syntax() {
        for text in [
            "",
            "9092",
            "PLAINTEXT",
            "PLAINTEXT://x",
            "PLAINTEXT://x:99999",
            "://x:1",
        ] {
            let error = one(text).unwrap_err().to_string();
            assert!(error.contains("NAME://host:port"), "{text}: {error}");
        }
    }

    #[test]
    fn controller_listeners_are_skipped() {
        let (all, skipped) = resolve(keys(&[
            ("listeners", "PLAINTEXT://localhost:9092,CONTROLLER://:9093"),
            (
                "advertised.listeners",
                "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            ),
            ("controller.listener.names", "CONTROLLER"),
            (
                "listener.security.protocol.map",
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            ),
        ]))
        .unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(skipped, vec!["CONTROLLER"]);
        let only = keys(&[
            ("listeners", "CONTROLLER://:9093"),
            ("controller.listener.names", "CONTROLLER"),
        ]);
        assert!(
            resolve(only)
                .unwrap_err()
                .to_string()
                .contains("no listener for clients")
        );
    }

    #[test]
    fn a_reachable_plaintext_listener_needs_a_word() {
        for text in [
            "PLAINTEXT://:9092",
            "PLAINTEXT://10.0.0.7:9092",
            "PLAINTEXT://host:9092",
        ] {
            let error = one(text).unwrap_err().to_string();
            assert!(error.contains("allow.insecure.listeners=true"), "{error}");
        }
        let open = keys(&[
            ("listeners", "PLAINTEXT://:9092"),
            ("allow.insecure.listeners", "true"),
        ]);
        let (all, _) = resolve(open).unwrap();
        assert!(!all[0].advertised.host.is_empty());
        for text in [
            "PLAINTEXT://127.0.0.5:1",
            "PLAINTEXT://[::1]:1",
            "PLAINTEXT://localhost:1",
        ] {
            assert!(one(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_wildcard_is_never_advertised() {
        let open = [
            ("listeners", "A://0.0.0.0:9092"),
            ("allow.insecure.listeners", "true"),
            ("listener.security.protocol.map", "A:PLAINTEXT"),
        ];
        assert!(
            resolve(keys(&open))
                .unwrap_err()
                .to_string()
                .contains("advertised.listeners")
        );
        let mut told = open.to_vec();
        told.push(("advertised.listeners", "A://gw.example:19092"));
        let (all, _) = resolve(keys(&told)).unwrap();
        assert_eq!(all[0].advertised.to_string(), "gw.example:19092");
        told[3].1 = "A://0.0.0.0:19092";
        assert!(resolve(keys(&told)).is_err());
    }

    #[test]
    fn names_and_ports_must_differ_and_protocols_be_served() {
        let map = (
            "listener.security.protocol.map",
            "A:PLAINTEXT,B:PLAINTEXT,C:SASL_SSL",
        );
        let listen = |text| resolve(keys(&[("listeners", text), map]));
        assert!(listen("A://localhost:1,A://localhost:2").is_err());
        assert!(listen("A://localhost:1,B://localhost:1").is_err());
        assert!(listen("A://localhost:0,B://localhost:0").is_ok());
        assert!(
            listen("C://localhost:1")
                .unwrap_err()
                .to_string()
                .contains("SASL_SSL")
        );
        assert!(
            listen("D://localhost:1")
                .unwrap_err()
                .to_string()
                .contains("protocol.map")
        );
        let stray = [
            ("listeners", "A://localhost:1"),
            map,
            ("advertised.listeners", "B://h:1"),
        ];
        assert!(resolve(keys(&stray)).is_err());
    }
}
