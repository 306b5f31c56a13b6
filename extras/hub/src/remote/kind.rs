//! [`AddressKind`]: the schemes of addresses. Code that differs between kinds asks it.

use crate::address::after_scheme;

/// The kind of place in an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressKind {
    /// Amazon S3, and compatible servers.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A web server that sends ranges.
    Web,
    /// A repository on the Hugging Face Hub.
    Hub,
    /// The local disk.
    Local,
    /// The memory of this process, for tests.
    Memory,
}

impl AddressKind {
    pub(super) const SCHEMES: [(&'static str, Self); 13] = [
        ("s3", Self::S3),
        ("s3a", Self::S3),
        ("gs", Self::Gcs),
        ("az", Self::Azure),
        ("adl", Self::Azure),
        ("azure", Self::Azure),
        ("abfs", Self::Azure),
        ("abfss", Self::Azure),
        ("https", Self::Web),
        ("http", Self::Web),
        ("hf", Self::Hub),
        ("file", Self::Local),
        ("memory", Self::Memory),
    ];

    /// Returns the kind of an address, ignoring case (RFC 3986, 3.1); `None` for a path.
    ///
    /// ```
    /// use safetensors_hub::remote::AddressKind;
    ///
    /// assert_eq!(AddressKind::detect("s3://bucket/model"), Some(AddressKind::S3));
    /// assert_eq!(AddressKind::detect("HF://owner/name"), Some(AddressKind::Hub));
    /// assert_eq!(AddressKind::detect("model.safetensors"), None);
    /// assert_eq!(AddressKind::detect("C:\\model"), None);
    /// ```
    pub fn detect(text: &str) -> Option<Self> {
        let row = Self::SCHEMES.iter().find(|(scheme, _)| after_scheme(text, scheme).is_some());
        row.map(|(_, kind)| *kind)
    }

    pub(super) fn variables(self) -> Option<&'static str> {
        match self {
            Self::S3 => Some("AWS_"),
            Self::Gcs => Some("GOOGLE_"),
            Self::Azure => Some("AZURE_"),
            Self::Web | Self::Hub | Self::Local | Self::Memory => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_of_addresses_has_every_scheme() {
        let table = include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let table: String = table.collect();
        // The lists for the command and for Ray are in other packages.
        let [guide, places] =
            ["../../safetensors-cli/README.md", "../../examples/distributed/ray/places.py"].map(
                |file| {
                    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
                    std::fs::read_to_string(path).unwrap()
                },
            );
        for (scheme, _) in AddressKind::SCHEMES {
            for table in [&table, &guide] {
                let is_there = [format!("`{scheme}://"), format!("`{scheme}`")];
                assert!(is_there.iter().any(|written| table.contains(written)), "{scheme}");
            }
            assert!(places.contains(&format!("\"{scheme}\"")), "places.py lacks {scheme}");
        }
    }
}
