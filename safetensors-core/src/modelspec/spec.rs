//! [`ModelSpec`]: the standard's keys as typed fields.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::keys::{KEYS, PREFIX, VERSION_KEY, form_of};
use super::value::{List, Resolution, Sha256, TimestepRange, Value, Version};
use crate::error::{Error, ErrorKind, Result};
use crate::header::Metadata;

/// The description of a model. Each field is one key of the standard, and has its name without
/// `modelspec.`
///
/// A field is `None`, or an empty list, if the key is absent. A value that does not have the form
/// of its key is an error. To list all such values of a file, use [`validate`](super::validate()).
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
    /// The class of the architecture. Models that need different code have different classes. For
    /// an adapter or a component, its kind follows after a `/`.
    pub architecture: String,
    /// The code base that defines the names of the tensors: its name, or the address of its
    /// repository.
    pub implementation: String,
    /// The title of this model.
    pub title: String,
    /// A description of the model for people. Markdown, of any length.
    pub description: Option<String>,
    /// The person or company that made the model.
    pub author: Option<String>,
    /// The ISO 8601 date when the model was made or published, such as `2023-07-16`, with or
    /// without a time.
    pub date: Option<String>,
    /// The SHA-256 of all bytes after the header.
    pub hash_sha256: Option<Sha256>,
    /// The lowest version of the implementation that the model needs, or a commit.
    pub implementation_version: Option<String>,
    /// The name, the address or the text of the license.
    pub license: Option<String>,
    /// A short hint for users of the model.
    pub usage_hint: Option<String>,
    /// A very small picture as a data URL: `data:image/jpeg;base64,...`. The recommended size is
    /// 256 by 256 pixels.
    pub thumbnail: Option<String>,
    /// Labels. An item must not contain a comma.
    pub tags: Vec<String>,
    /// The titles of the models that this one was merged from.
    pub merged_from: Vec<String>,
    /// Images: the size of the images that the model is meant to generate.
    pub resolution: Option<Resolution>,
    /// Images: the words in a prompt that activate an adapter.
    pub trigger_phrase: Option<String>,
    /// Images: what the model predicts, such as `v` or `epsilon`.
    pub prediction_type: Option<String>,
    /// Images: the timesteps that the model was tuned on.
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
    /// Text: the kind of text that the model writes: `general`, `writing`, `chat`, `code` or
    /// `technical`.
    pub format_type: Option<String>,
    /// Text: the languages that the model understands, such as `en/US`.
    pub language: Vec<String>,
    /// Text: the template of a prompt, with the placeholders `%%SYSTEM%%`, `%%USER%%` and `%%AI%%`.
    pub format_template: Option<String>,
    /// Keys under `modelspec.` that the standard does not list, without the prefix. Their values
    /// are kept unchanged.
    pub other: BTreeMap<String, String>,
}

impl ModelSpec {
    /// The version of the standard that [`new`](ModelSpec::new) declares.
    pub(super) const VERSION: Version = Version { major: 1, minor: 0, patch: 1 };

    /// A description with the three keys that every model must have, and no others. See the fields
    /// for their meaning.
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

    /// Whether a file's metadata has any key under `modelspec.`, valid or not.
    pub fn is_in(metadata: &Metadata) -> bool {
        metadata.keys().any(|key| key.starts_with(PREFIX))
    }

    /// Sets a field by the name of its key, without `modelspec.`, and the text of its value. A key
    /// that the standard does not list is put into [`other`](ModelSpec::other).
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
    /// [`ErrorKind::BadModelSpec`] for a value that does not have the form of its key. The field is
    /// then unchanged.
    pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
        check_form(name, text)?;
        let mut setter = Setter { name, text, is_set: false };
        self.each_field(&mut setter)?;
        if !setter.is_set {
            self.other.insert(name.into(), text.into());
        }
        Ok(())
    }

    /// Reads the keys from a file's metadata. `None` if the key `modelspec.sai_model_spec` is
    /// missing, because then the file does not follow the standard.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModelSpec`], which names the key, if a value does not have the form of its
    /// key, or if a key is missing that every model must have. Keys that only some models must have
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

    /// Returns the keys with their prefix, for a file's metadata.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModelSpec`], which names the key, for a value that could not be read back.
    /// Examples are an empty title, a malformed date, a list item that contains a comma, and a key
    /// of the standard in [`other`](ModelSpec::other).
    pub fn to_metadata(&self) -> Result<Metadata> {
        let mut metadata = Metadata::new();
        self.clone().each_field(&mut Writer { metadata: &mut metadata })?;
        for (name, text) in &self.other {
            if KEYS.iter().any(|key| key.name == name) {
                return Err(bad(name, "in its own field, not in other", Some(text)));
            }
            check_form(name, text)?;
            metadata.insert(full_name(name), text.clone());
        }
        Ok(metadata)
    }

    /// Writes the keys into a file's metadata. All earlier keys under `modelspec.` are removed;
    /// other keys stay.
    ///
    /// # Errors
    ///
    /// The errors of [`to_metadata`](ModelSpec::to_metadata). `metadata` is then unchanged.
    pub fn insert_into(&self, metadata: &mut Metadata) -> Result<()> {
        let new = self.to_metadata()?;
        metadata.retain(|key, _| !key.starts_with(PREFIX));
        metadata.extend(new);
        Ok(())
    }

    /// Passes every field that is a key of the standard to `visitor`, with the name of the key.
    /// Reading and writing share this list.
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

/// Visits each field: required ones, optional ones and lists.
trait Visitor {
    fn must<V: Value>(&mut self, name: &'static str, field: &mut V) -> Result<()>;
    fn may<V: Value>(&mut self, name: &'static str, field: &mut Option<V>) -> Result<()>;
    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()>;
}

/// Sets the fields from texts, and removes each text that it has read. The forms of the texts have
/// been checked.
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
        *field = Some(V::from_text(text).ok_or_else(|| bad(name, expected(name), Some(text)))?);
        Ok(())
    }

    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()> {
        let mut found = None;
        self.may(name, &mut found)?;
        *field = found.unwrap_or_default();
        Ok(())
    }
}

/// Sets the field of this name. The form of the text has been checked.
struct Setter<'a> {
    name: &'a str,
    text: &'a str,
    is_set: bool,
}

impl Visitor for Setter<'_> {
    fn must<V: Value>(&mut self, name: &'static str, field: &mut V) -> Result<()> {
        if name == self.name {
            *field = V::from_text(self.text)
                .ok_or_else(|| bad(name, expected(name), Some(self.text)))?;
            self.is_set = true;
        }
        Ok(())
    }

    fn may<V: Value>(&mut self, name: &'static str, field: &mut Option<V>) -> Result<()> {
        if name == self.name {
            *field = Some(
                V::from_text(self.text)
                    .ok_or_else(|| bad(name, expected(name), Some(self.text)))?,
            );
            self.is_set = true;
        }
        Ok(())
    }

    fn list(&mut self, name: &'static str, field: &mut List) -> Result<()> {
        self.must(name, field)
    }
}

/// Adds the fields to the metadata.
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
                "a list of items without commas inside and white space around them",
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

/// The name of a key with its prefix, as in a file's metadata.
pub(super) fn full_name(name: &str) -> String {
    [PREFIX, name].concat()
}

fn bad(name: &str, expected: &'static str, found: Option<&str>) -> Error {
    ErrorKind::BadModelSpec { key: full_name(name), expected, found: found.map(Into::into) }.into()
}
