//! [`Proxies`]: chooses the proxy of a request.
//!
//! The feature `remote` needs `reqwest` on `tokio`, some 130 crates; `download` uses `ureq`, 22.
//! Neither may read the environment: they do so differently, and silently ignore unsupported
//! proxies.

use std::net::IpAddr;

use safetensors_core::framework::Quoted;

use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};

#[derive(Default)]
pub(crate) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    direct: Vec<Direct>,
}

/// `Debug` would show its password.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) ureq: ureq::Proxy,
    #[cfg(feature = "remote")]
    pub(crate) url: url::Url,
}

impl Proxies {
    /// Like Python: `HTTPS_PROXY` or `HTTP_PROXY` by scheme, otherwise `ALL_PROXY`, except for
    /// `NO_PROXY`. Lower case takes precedence.
    pub(crate) fn of_environment(environment: &Environment<'_>) -> Result<Self> {
        let direct = parse_all(&environment.proxy("NO_PROXY").unwrap_or_default());
        // A user who wants no proxy at all need not correct its variables.
        if direct.iter().any(Direct::is_everything) {
            return Ok(Self::default());
        }
        let proxy = |name: &'static str| {
            let named = |name| Some((name, environment.proxy(name)?));
            let found = [name, "ALL_PROXY"].into_iter().find_map(named);
            found.map(|(name, value)| Proxy::parse(name, &value)).transpose()
        };
        Ok(Self { http: proxy("HTTP_PROXY")?, https: proxy("HTTPS_PROXY")?, direct })
    }

    /// `except` is like `NO_PROXY`. `setting` names the option in errors.
    #[cfg(feature = "remote")]
    pub(crate) fn through(setting: &'static str, address: &str, except: &str) -> Result<Self> {
        let proxy = Some(Proxy::parse(setting, address)?);
        Ok(Self { http: proxy.clone(), https: proxy, direct: parse_all(except) })
    }

    pub(crate) fn choose(&self, scheme: &str, host: &str, port: Option<u16>) -> Option<&Proxy> {
        let is_encrypted = scheme == "https";
        let proxy = if is_encrypted { &self.https } else { &self.http }.as_ref()?;
        let port = port.unwrap_or(if is_encrypted { 443 } else { 80 });
        let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        let is_direct = self.direct.iter().any(|direct| direct.covers(scheme, &host, port));
        (!is_direct).then_some(proxy)
    }
}

impl Proxy {
    fn parse(setting: &'static str, value: &str) -> Result<Self> {
        let bad = |problem: String| Error::from(ErrorKind::BadSetting { setting, problem });
        let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
        let scheme = match &*scheme.to_ascii_lowercase() {
            "http" => "http",
            "https" => "https",
            // The proxy looks names up for both, as in Python's client. An outside host may have no
            // name inside.
            "socks5" | "socks5h" => "socks5h",
            _ => {
                return Err(bad(format!(
                    "a proxy of the scheme {} cannot be used; expected http, https, socks5 or \
                     socks5h",
                    Quoted(scheme)
                )));
            }
        };
        // The value may have a password, and is not shown.
        let malformed = || bad("it is not the address of a proxy, such as http://host:3128".into());
        let text = format!("{scheme}://{rest}");
        let ureq = ureq::Proxy::new(&text).map_err(|_| malformed())?;
        // The client takes a port that is no number for none.
        let authority = ureq.uri().authority().ok_or_else(malformed)?;
        let has_port = !authority.as_str().ends_with(authority.host());
        if authority.host().is_empty() || has_port && authority.port_u16().is_none() {
            return Err(malformed());
        }
        Ok(Self {
            ureq,
            #[cfg(feature = "remote")]
            url: url::Url::parse(&text).map_err(|_| malformed())?,
        })
    }
}

struct Direct {
    scheme: Option<String>,
    hosts: Hosts,
    port: Option<u16>,
}

enum Hosts {
    All,
    /// With the number of equal first bits.
    Network(IpAddr, u32),
    Domain(String),
}

fn parse_all(list: &str) -> Vec<Direct> {
    list.split(',').filter_map(Direct::from_entry).collect()
}

impl Direct {
    fn from_entry(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        let (scheme, rest) = match entry.split_once("://") {
            Some((scheme, rest)) => (Some(scheme).filter(|it| *it != "all"), rest),
            None => (None, &*entry),
        };
        let (host, port) = match rest.rsplit_once(':') {
            // An address of IPv6 with a port has brackets.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                port.parse().map_or((rest, None), |port| (host, Some(port)))
            }
            _ => (rest, None),
        };
        let host = host.trim_matches(['[', ']']);
        let hosts = match host {
            "*" => Hosts::All,
            _ => match network(host) {
                Some((address, bits)) => Hosts::Network(address, bits),
                None => Hosts::Domain(host.trim_start_matches('*').trim_matches('.').into()),
            },
        };
        let is_empty = matches!(&hosts, Hosts::Domain(domain) if domain.is_empty());
        (!is_empty).then(|| Self { scheme: scheme.map(str::to_owned), hosts, port })
    }

    fn is_everything(&self) -> bool {
        matches!(self, Self { scheme: None, hosts: Hosts::All, port: None })
    }

    fn covers(&self, scheme: &str, host: &str, port: u16) -> bool {
        let is_host = match (&self.hosts, host.parse::<IpAddr>()) {
            (Hosts::All, _) => true,
            (Hosts::Network(network, bits), Ok(address)) => is_in(address, *network, *bits),
            (Hosts::Domain(domain), Err(_)) => host
                .strip_suffix(domain.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
            _ => false,
        };
        is_host
            && self.scheme.as_deref().is_none_or(|it| it == scheme)
            && self.port.is_none_or(|it| it == port)
    }
}

/// Parses `10.0.0.1`, or `10.0.0.0/8`, with the number of bits that count.
fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some((address, bits))
}

fn is_in(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let (difference, len) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
        _ => return false,
    };
    difference.checked_shr(len - bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::with;

    fn proxy(pairs: &[(&str, &str)], scheme: &str, host: &str, port: Option<u16>) -> String {
        let proxies = with(pairs, |environment| Proxies::of_environment(&environment)).unwrap();
        let found = proxies.choose(scheme, host, port);
        found.map_or("none".into(), |proxy| proxy.ureq.host().to_owned())
    }

    #[test]
    fn variables_are_chosen_as_python_chooses_them() {
        let all = ("ALL_PROXY", "socks5://all");
        for (pairs, [http, https]) in [
            (&[all][..], ["all", "all"]),
            (&[all, ("HTTPS_PROXY", "s:1")], ["all", "s"]),
            (&[all, ("HTTP_PROXY", "http://h/"), ("https_proxy", "https://s")], ["h", "s"]),
            (&[("HTTPS_PROXY", "upper"), ("https_proxy", "lower")], ["none", "lower"]),
            (&[all, ("HTTPS_PROXY", "upper"), ("https_proxy", "")], ["all", "all"]),
            (&[("HTTP_PROXY", ""), ("HTTPS_PROXY", " ")], ["none", "none"]),
            // A program that a web server runs gets this variable from the client.
            (&[("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "evil")], ["none", "none"]),
            (&[("REQUEST_METHOD", "GET"), ("http_proxy", "good")], ["good", "none"]),
            (&[("HTTP_PROXY", "socks4://x"), ("NO_PROXY", "a, *")], ["none", "none"]),
        ] {
            for (scheme, expected) in [("http", http), ("https", https)] {
                assert_eq!(proxy(pairs, scheme, "hub.test", None), expected, "{pairs:?} {scheme}");
            }
        }
    }

    #[test]
    fn hosts_are_reached_directly_on_the_boundaries_of_domains() {
        for (list, host, port, is_direct) in [
            ("corp.test", "hub.corp.test", None, true),
            ("corp.test", "corp.test", None, true),
            ("corp.test", "CORP.test.", None, true),
            ("corp.test", "evilcorp.test", None, false),
            ("corp.test", "corp.test.evil.test", None, false),
            (".corp.test", "hub.corp.test", None, true),
            (".corp.test", "corp.test", None, true),
            ("*.Corp.test", "a.hub.corp.test", None, true),
            ("a.test, corp.test", "hub.corp.test", None, true),
            ("hub.test:8080", "hub.test", Some(8080), true),
            ("hub.test:8080", "hub.test", None, false),
            ("hub.test:443", "hub.test", None, true),
            ("https://hub.test", "hub.test", None, true),
            ("http://hub.test", "hub.test", None, false),
            ("127.0.0.1", "127.0.0.1", None, true),
            ("0.0.1", "127.0.0.1", None, false),
            ("10.0.0.0/8", "10.1.2.3", None, true),
            ("10.0.0.0/8", "11.1.2.3", None, false),
            ("0.0.0.0/0", "11.1.2.3", None, true),
            ("10.0.0.0/33", "10.0.0.0", None, false),
            ("::1", "[::1]", None, true),
            ("[::1]:8080", "[::1]", Some(8080), true),
            ("[::1]:8080", "[::1]", None, false),
            ("fe80::/10", "[fe80::7]", None, true),
            ("::/0", "[fe80::7]", None, true),
            ("", "hub.test", None, false),
            (" , .", "hub.test", None, false),
        ] {
            let pairs = [("HTTPS_PROXY", "proxy.test"), ("NO_PROXY", list)];
            let expected = if is_direct { "none" } else { "proxy.test" };
            assert_eq!(proxy(&pairs, "https", host, port), expected, "{list:?} {host}");
        }
    }

    #[test]
    fn an_invalid_proxy_is_an_error_without_the_password() {
        for bad in [
            "socks4://h:1",
            "socks://h",
            "ftp://h",
            "://h",
            "http://",
            "http://:80",
            "h:99999",
            "h:port",
            "http://u:pa#ss@h",
            "http://u:pa ss@h",
            "https://1.2.3.999.\u{fffd}",
        ] {
            for name in ["HTTPS_PROXY", "all_proxy"] {
                let pairs = [(name, bad)];
                let error = with(&pairs, |env| Proxies::of_environment(&env)).err().unwrap();
                assert!(error.to_string().contains(&name.to_uppercase()), "{bad}: {error}");
                assert!(!format!("{error:?}").contains("pa"), "{error:?}");
            }
        }
    }
}
