//! An authority made for a test, with a server's and a client's certificate of it. In: a folder. Out: files. Called by the
//! tests of sources over TLS.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Files of an authority and of who is of it.
pub(crate) struct Site {
    pub(crate) ca: PathBuf,
    pub(crate) server: (PathBuf, PathBuf),
    pub(crate) client: (PathBuf, PathBuf),
}

impl Site {
    /// In this folder; the server is 127.0.0.1, the client `gleaner`.
    pub(crate) fn make(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the site's authority");
        let key = KeyPair::generate().unwrap();
        let ca = write(folder, "ca.pem", &params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        let issue = |name: &str, hosts: Vec<String>| {
            let mut params = CertificateParams::new(hosts).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap().pem();
            let file = |kind: &str, text: &str| write(folder, &format!("{name}.{kind}"), text);
            (file("pem", &certificate), file("key", &key.serialize_pem()))
        };
        let (server, client) = (issue("server", vec!["127.0.0.1".to_owned()]), issue("gleaner", Vec::new()));
        Self { ca, server, client }
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file
}
