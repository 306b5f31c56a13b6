//! [`ModelSpec`]: the standard's keys as typed fields.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::keys::{KEYS, PREFIX, VERSION_KEY, form_of};
use super::value::{List, Resolution, Sha256, TimestepRange, Value, Version};
use crate::error::{Error, ErrorKind, Result};
use crate::header::Metadata;
#[cfg(feature = "std")]
use crate::header::SHA256_KEY;

/// What a file says of its model. Each field is one key of the standard, by the same name without
/// `modelspec.`
///
/// A key that is absent is `None`, or an empty list. Values are read and written in their exact
/// form only: [`validate`](super::validate()) lists what is wrong with a file that departs from it.
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::modelspec::ModelSpec;
///
/// let mut metadata = Metadata::from([("format".into(), "pt".into())]);
/// assert_eq!(ModelSpec::from_metadata(&metadata)?, None);
///
/// let mut spec = ModelSpec::new("stable-diffusion-v1/lora", "diffusers", "My Cat");
/// spec.date = Some("2023-07-16".into());
/// spec.tags = vec!["Style".into(), "Cat".into()];
/// spec.insert_into(&mut metadata)?;
/// assert_eq!(metadata["modelspec.sai_model_spec"], "1.0.1");
/// assert_eq!(metadata["modelspec.tags"], "Style,Cat");
/// assert_eq!(ModelSpec::from_metadata(&metadata)?, Some(spec));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelSpec {
    /// `sai_model_spec`: the version of the standard.
    pub version: Version,
    /// The class of the architecture: two models that need different code have two. After a `/` may
    /// stand what kind of adapter or component it is.
    pub architecture: String,
    /// The code base that the tensors' names come from: a name, or the address of its repository.
    pub implementation: String,
    /// The title of this model.
    pub title: String,
    /// What the model is and can do, for people. Markdown, of any length.
    pub description: Option<String>,
    /// The person or company that made the model.
    pub author: Option<String>,
    /// When the model was made or published: a date of ISO 8601 by year, month and day, with or
    /// without a time.
    pub date: Option<String>,
    /// The SHA-256 of all bytes after the header.
    pub hash_sha256: Option<Sha256>,
    /// The least version of the implementation that the model needs, or a commit.
    pub implementation_version: Option<String>,
    /// The name, the address or the text of the license.
    pub license: Option<String>,
    /// A short hint for whoever uses the model.
    pub usage_hint: Option<String>,
    /// A very small picture as a data URL: `data:image/jpeg;base64,...`. 256 by 256 pixels is
    /// recommended.
    pub thumbnail: Option<String>,
    /// Labels.
    pub tags: Vec<String>,
    /// The titles of the models that this one was merged from.
    pub merged_from: Vec<String>,
    /// Images: the size that the model is meant to generate.
    pub resolution: Option<Resolution>,
    /// Images: words that make an adapter work.
    pub trigger_phrase: Option<String>,
    /// Images: what the model predicts, such as `v` or `epsilon`.
    pub prediction_type: Option<String>,
    /// Images: the timesteps that the model is tuned on.
    pub timestep_range: Option<TimestepRange>,
    /// Images: which layer of the text encoder to use ("clip skip").
    pub encoder_layer: Option<u32>,
    /// Images: the kind of preprocessing, such as `depth` or `canny`.
    pub preprocessor: Option<String>,
    /// Images: whether an embedding is meant for negative prompts.
    pub is_negative_embedding: Option<bool>,
    /// Images: dtypes that the UNet works with, such as `bf16`.
    pub unet_dtype: Vec<String>,
    /// Images: dtypes that the VAE works with.
    pub vae_dtype: Vec<String>,
    /// Text: how the weights are stored, such as `fp16` or `gptq-4bit`.
    pub data_format: Option<String>,
    /// Text: what the model writes: `general`, `writing`, `chat`, `code` or `technical`.
    pub format_type: Option<String>,
    /// Text: the languages that the model understands, such as `en/US`.
    pub language: Vec<String>,
    /// Text: the template, with `%%SYSTEM%%`, `%%USER%%` and `%%AI%%`.
    pub format_template: Option<String>,
    /// Keys under `modelspec.` that the standard does not list, without the prefix. They are kept
    /// as they are.
    pub other: BTreeMap<String, String>,
}

impl ModelSpec {
    /// The version of the standard that [`new`](ModelSpec::new) declares.
    pub const VERSION: Version = Version { major: 1, minor: 0, patch: 1 };

    /// A description with what every model must have. See the fields for what the three are.
    pub fn new(
        architecture: impl Into<String>,
        implementation: impl Into<String>,
        title: impl Into<String>,
    ) -> Self {
        Self {
            version: Self::VERSION,
            architecture: architecture.into(),
            implementation: implementation.into(),
            title: title.into(),
            description: None,
            author: None,
            date: None,
            hash_sha256: None,
            implementation_version: None,
            license: None,
            usage_hint: None,
            thumbnail: None,
            tags: Vec::new(),
            merged_from: Vec::new(),
            resolution: None,
            trigger_phrase: None,
            prediction_type: None,
            timestep_range: None,
            encoder_layer: None,
            preprocessor: None,
            is_negative_embedding: None,
            unet_dtype: Vec::new(),
            vae_dtype: Vec::new(),
            data_format: None,
            format_type: None,
            language: Vec::new(),
            format_template: None,
            other: BTreeMap::new(),
        }
    }

    /// Whether a file's metadata has keys of the standard, rightly or wrongly.
    pub fn is_in(metadata: &Metadata) -> bool {
        metadata.keys().any(|key| key.starts_with(PREFIX))
    }

    /// Sets the field of a key by its name, without `modelspec.`, and its text. What the standard
    /// does not list goes into [`other`](ModelSpec::other).
    ///
    /// ```
    /// use safetensors_core::modelspec::{ModelSpec, Resolution};
    ///
    /// let mut spec = ModelSpec::new("stable-diffusion-v1", "diffusers", "My Model");
    /// spec.set("resolution", "512x768")?;
    /// assert_eq!(spec.resolution, Some(Resolution { width: 512, height: 768 }));
    /// assert!(spec.set("resolution", "large").is_err());
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModelSpec`] for a value that does not have its form. The field is then as it
    /// was.
    pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
        check_form(name, text)?;
        let mut setter = Setter { name, text, is_set: false };
        self.each_field(&mut setter)?;
        if !setter.is_set {
            self.other.insert(name.into(), text.into());
        }
        Ok(())
    }

    /// Reads the keys from a file's metadata; `None` if there is no `modelspec.sai_model_spec`,
    /// which means that the file does not follow the standard.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModelSpec`], naming the key, for a key that every model must have and that
    /// is missing, and for a value that does not have its form. What only some models must have
    /// (`resolution`, `data_format`) may be missing.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        if !metadata.contains_key(&full_name(VERSION_KEY)) {
            return Ok(None);
        }
        let mut texts = BTreeMap::new();
        for (key, text) in metadata {
            if let Some(name) = key.strip_prefix(PREFIX) {
                check_form(name, text)?;
                texts.insert(name, text.as_str());
            }
        }
        let mut spec = Self::new("", "", "");
        spec.each_field(&mut Reader { texts: &mut texts })?;
        spec.other = texts.into_iter().map(|(name, text)| (name.into(), text.into())).collect();
        Ok(Some(spec))
    }

    /// The keys with their prefix, as a file's metadata.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModelSpec`], naming the key, for a value that could not be read back: an
    /// empty title, a date that is none, a list item with a comma in it, one of the standard's keys
    /// in [`other`](ModelSpec::other).
    pub fn to_metadata(&self) -> Result<Metadata> {
        let mut metadata = Metadata::new();
        self.clone().each_field(&mut Writer { metadata: &mut metadata })?;
        for (name, text) in &self.other {
            if KEYS.iter().any(|key| key.name == name) {
                return Err(bad(name, "in its own field, and not in other", Some(text)));
            }
            check_form(name, text)?;
            metadata.insert(full_name(name), text.clone());
        }
        Ok(metadata)
    }

    /// Writes the keys into a file's metadata, in place of all keys under `modelspec.` that are
    /// there. Other keys stay.
    ///
    /// # Errors
    ///
    /// Those of [`to_metadata`](ModelSpec::to_metadata). `metadata` is then as it was.
    pub fn insert_into(&self, metadata: &mut Metadata) -> Result<()> {
        let new = self.to_metadata()?;
        metadata.retain(|key, _| !key.starts_with(PREFIX));
        metadata.extend(new);
        Ok(())
    }

    /// Every field that is a key of the standard, with the name of the key. For reading and for
    /// writing alike.
    fn each_field(&mut self, visitor: &mut impl Visitor) -> Result<()> {
        visitor.must(VERSION_KEY, &mut self.version)?;
        visitor.must("architecture", &mut self.architecture)?;
        visitor.must("implementation", &mut self.implementation)?;
        visitor.must("title", &mut self.title)?;
        visitor.may("description", &mut self.description)?;
        visitor.may("author", &mut self.author)?;
        visitor.may("date", &mut self.date)?;
        visitor.may("hash_sha256", &mut self.hash_sha256)?;
        visitor.may("implementation_version", &mut self.implementation_version)?;
        visitor.may("license", &mut self.license)?;
        visitor.may("usage_hint", &mut self.usage_hint)?;
        visitor.may("thumbnail", &mut self.thumbnail)?;
        visitor.list("tags", &mut self.tags)?;
        visitor.list("merged_from", &mut self.merged_from)?;
        visitor.may("resolution", &mut self.resolution)?;
        visitor.may("trigger_phrase", &mut self.trigger_phrase)?;
        visitor.may("prediction_type", &mut self.prediction_type)?;
        visitor.may("timestep_range", &mut self.timestep_range)?;
        visitor.may("encoder_layer", &mut self.encoder_layer)?;
        visitor.may("preprocessor", &mut self.preprocessor)?;
        visitor.may("is_negative_embedding", &mut self.is_negative_embedding)?;
        visitor.list("unet_dtype", &mut self.unet_dtype)?;
        visitor.list("vae_dtype", &mut self.vae_dtype)?;
        visitor.may("data_format", &mut self.data_format)?;
        visitor.may("format_type", &mut self.format_type)?;
        visitor.list("language", &mut self.language)?;
        visitor.may("format_template", &mut self.format_template)
    }
}

/// Does one thing with each field.
trait Visitor {
    fn must<V: Value>(&mut self, name: &'static str, field: &mut V) -> Result<()>;
    fn may<V: Value>(&mut self, name: &'static str, field: &mut Option<V>) -> Result<()>;
    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()>;
}

/// Fills the fields, and takes what it has read out of the texts. Their forms have been checked.
struct Reader<'a, 'm> {
    texts: &'a mut BTreeMap<&'m str, &'m str>,
}

impl Visitor for Reader<'_, '_> {
    fn must<V: Value>(&mut self, name: &'static str, field: &mut V) -> Result<()> {
        let mut found = None;
        self.may(name, &mut found)?;
        *field = found.ok_or_else(|| bad(name, expected(name), None))?;
        Ok(())
    }

    fn may<V: Value>(&mut self, name: &'static str, field: &mut Option<V>) -> Result<()> {
        let Some(text) = self.texts.remove(name) else { return Ok(()) };
        *field = Some(V::parse(text).ok_or_else(|| bad(name, expected(name), Some(text)))?);
        Ok(())
    }

    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()> {
        let mut found = None;
        self.may(name, &mut found)?;
        *field = found.unwrap_or_default();
        Ok(())
    }
}

/// Fills the one field of this name. The form of the text has been checked.
struct Setter<'a> {
    name: &'a str,
    text: &'a str,
    is_set: bool,
}

impl Visitor for Setter<'_> {
    fn must<V: Value>(&mut self, name: &'static str, field: &mut V) -> Result<()> {
        if name == self.name {
            *field =
                V::parse(self.text).ok_or_else(|| bad(name, expected(name), Some(self.text)))?;
            self.is_set = true;
        }
        Ok(())
    }

    fn may<V: Value>(&mut self, name: &'static str, field: &mut Option<V>) -> Result<()> {
        if name == self.name {
            *field = Some(
                V::parse(self.text).ok_or_else(|| bad(name, expected(name), Some(self.text)))?,
            );
            self.is_set = true;
        }
        Ok(())
    }

    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()> {
        self.must(name, field)
    }
}

/// Turns the fields into metadata.
struct Writer<'a> {
    metadata: &'a mut Metadata,
}

impl Visitor for Writer<'_> {
    fn must<V: Value>(&mut self, name: &'static str, field: &mut V) -> Result<()> {
        let text = field.text();
        check_form(name, &text)?;
        self.metadata.insert(full_name(name), text);
        Ok(())
    }

    fn may<V: Value>(&mut self, name: &'static str, field: &mut Option<V>) -> Result<()> {
        match field {
            Some(value) => self.must(name, value),
            None => Ok(()),
        }
    }

    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()> {
        if let Some(item) =
            field.iter().find(|item| item.contains(',') || item.trim() != item.as_str())
        {
            return Err(bad(
                name,
                "a list of items without commas in them and white space around them",
                Some(item),
            ));
        }
        if field.is_empty() { Ok(()) } else { self.must(name, field) }
    }
}

fn check_form(name: &str, text: &str) -> Result<()> {
    match form_of(name) {
        Some(form) if !form.accepts(text) => Err(bad(name, form.words(), Some(text))),
        _ => Ok(()),
    }
}

fn expected(name: &str) -> &'static str {
    form_of(name).map_or("text", |form| form.words())
}

/// The SHA-256 of all data that a file's metadata records, whatever else of the standard is there.
#[cfg(feature = "std")]
pub(crate) fn recorded_sha256(metadata: &Metadata) -> Result<Option<Sha256>> {
    let Some(text) = metadata.get(SHA256_KEY) else { return Ok(None) };
    match <Sha256 as Value>::parse(text) {
        Some(hash) => Ok(Some(hash)),
        None => Err(bad("hash_sha256", expected("hash_sha256"), Some(text))),
    }
}

/// The entry of a file's metadata that records the SHA-256 of all data.
#[cfg(feature = "std")]
pub(crate) fn sha256_entry(hash: Sha256) -> (&'static str, String) {
    (SHA256_KEY, hash.text())
}

/// The name of a key in a file's metadata.
pub(super) fn full_name(name: &str) -> String {
    [PREFIX, name].concat()
}

fn bad(name: &str, expected: &'static str, found: Option<&str>) -> Error {
    ErrorKind::BadModelSpec { key: full_name(name), expected, found: found.map(Into::into) }.into()
}
