//! [`is_secret`]: names of files with credentials.

/// Parts of the names of files with credentials, in lower case.
const SECRET: [&str; 11] = [
    "access_key",
    "api_key",
    "apikey",
    "credential",
    "id_ed25519",
    "id_rsa",
    "kaggle.json",
    "passw",
    "private_key",
    "secret",
    "service_account",
];

const SECRET_ENDS: [&str; 7] = [".env", ".kdbx", ".key", ".p12", ".pem", ".pfx", ".ppk"];

pub(super) fn is_secret(name: &str) -> bool {
    let name = name.replace('-', "_");
    let stem = name.split('.').next().unwrap_or(&name);
    SECRET.iter().any(|part| name.contains(part))
        || SECRET_ENDS.iter().any(|end| name.ends_with(end))
        || stem == "token"
        || stem.ends_with("_token")
}
