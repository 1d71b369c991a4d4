//! The certificate authority of one sandbox: made with it, trusted in it, and its key never seen there.
//!
//! Allowed connections are tunnelled and never meet it. It speaks to a denied HTTPS client, who would
//! otherwise see a broken connection instead of the reason.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sbx_policy::Host;
use thiserror::Error;

/// Certificates are remembered for that many hosts.
const REMEMBERED: usize = 64;
const YEARS: i32 = 10;
/// Clocks inside and outside are the same, those of an image's tools need not be.
const BACKDATED_DAYS: i32 = 2;
const LEAF_DAYS: i32 = 7;
/// HTTP/2, for clients that speak nothing else.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// What is spoken to a denied client: the first of these that it knows.
pub(crate) const ALPN: [&[u8]; 2] = [b"http/1.1", ALPN_H2];

#[derive(Debug, Error)]
pub enum CaError {
    #[error("cannot make or use a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// A new authority, as it is kept in files.
#[derive(Clone)]
pub struct NewAuthority {
    pub certificate_pem: String,
    /// For a file that only its owner can read (mode 0600).
    pub key_pem: String,
}

impl std::fmt::Debug for NewAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewAuthority").finish_non_exhaustive()
    }
}

/// `label` tells the authorities of different sandboxes apart; the same one is needed for [`Authority::load`].
pub fn create(label: &str, now: Timestamp) -> Result<NewAuthority, CaError> {
    let key = KeyPair::generate()?;
    let certificate = authority_params(label, now)?.self_signed(&key)?;
    Ok(NewAuthority {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    crypto: Arc<CryptoProvider>,
    remembered: Mutex<VecDeque<(Host, Arc<ServerConfig>)>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub fn load(label: &str, key_pem: &str, now: Timestamp) -> Result<Self, CaError> {
        let params = authority_params(label, now)?;
        Ok(Self {
            issuer: Issuer::new(params, KeyPair::from_pem(key_pem)?),
            crypto: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            remembered: Mutex::default(),
        })
    }

    /// How to be `host` in a TLS handshake.
    pub fn impersonate(&self, host: &Host, now: Timestamp) -> Result<Arc<ServerConfig>, CaError> {
        if let Some(config) = self.recall(host) {
            return Ok(config);
        }
        let config = Arc::new(self.issue(host, now)?);
        let mut remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        remembered.truncate(REMEMBERED - 1);
        remembered.push_front((host.clone(), Arc::clone(&config)));
        Ok(config)
    }

    fn recall(&self, host: &Host) -> Option<Arc<ServerConfig>> {
        let remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        remembered
            .iter()
            .find(|(known, _)| known == host)
            .map(|(_, config)| Arc::clone(config))
    }

    fn issue(&self, host: &Host, now: Timestamp) -> Result<ServerConfig, CaError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Ip(ip) => SanType::IpAddress(*ip as IpAddr),
        }];
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "denied by sbx");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        set_validity(&mut params, now, LEAF_DAYS);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.crypto))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }
}

fn authority_params(label: &str, now: Timestamp) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "sbx");
    name.push(DnType::CommonName, format!("sbx Proxy CA {label}"));
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    set_validity(&mut params, now, YEARS * 365);
    Ok(params)
}

/// Year, month and day of that many days from now.
fn day(now: Timestamp, days: i32) -> (i32, u8, u8) {
    let at = now.to_zoned(TimeZone::UTC).date();
    let at = at.saturating_add(days.days());
    let (month, day) = (at.month().unsigned_abs(), at.day().unsigned_abs());
    (i32::from(at.year()), month, day)
}

fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i32) {
    let (year, month, date) = day(now, -BACKDATED_DAYS);
    params.not_before = rcgen::date_time_ymd(year, month, date);
    let (year, month, date) = day(now, days);
    params.not_after = rcgen::date_time_ymd(year, month, date);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

    const NOW: &str = "2026-11-15T12:00:00Z";

    fn handshake(host: &str, trusted: &str, authority: &Authority) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap())
            .unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&authority.crypto))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name)?;
        let config = authority
            .impersonate(&Host::parse(host).unwrap(), NOW.parse().unwrap())
            .unwrap();
        let mut server = ServerConnection::new(config)?;
        for _ in 0..4 {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking());
        Ok(())
    }

    #[test]
    fn a_client_that_trusts_the_authority_accepts_any_host_and_others_none() {
        let now = Timestamp::now();
        let made = create("one", now).unwrap();
        let other = create("two", now).unwrap();
        let authority = Authority::load("one", &made.key_pem, now).unwrap();
        for host in ["example.org", "192.0.2.7"] {
            handshake(host, &made.certificate_pem, &authority).unwrap();
            handshake(host, &other.certificate_pem, &authority).unwrap_err();
        }
        assert!(!format!("{made:?} {authority:?}").contains("PRIVATE"));
    }

    #[test]
    fn certificates_are_made_once_and_not_without_bound() {
        let now = Timestamp::now();
        let made = create("one", now).unwrap();
        let authority = Authority::load("one", &made.key_pem, now).unwrap();
        let get = |n: usize| {
            authority
                .impersonate(&Host::parse(&format!("h{n}.test")).unwrap(), now)
                .unwrap()
        };
        let first = get(0);
        assert!(Arc::ptr_eq(&first, &get(0)));
        for n in 1..=REMEMBERED {
            get(n);
        }
        assert!(!Arc::ptr_eq(&first, &get(0)));
        assert_eq!(authority.remembered.lock().unwrap().len(), REMEMBERED);
    }
}
