//! Optional fields, and fields of several items.

use safetensors_core::Result;

use super::names::item;
use super::{Checking, InOption, InVec, LoadField, Loading, Names, SaveField, Saving};

impl<F: SaveField + InOption> SaveField for Option<F> {
    fn save_field(&self, name: &str, file: &mut Saving<'_>) -> Result<()> {
        match self {
            Some(value) => file.present(name, |file| value.save_field(name, file)),
            None => Ok(()),
        }
    }
}

impl<'r, F: LoadField<'r> + InOption> LoadField<'r> for Option<F> {
    fn is_in(name: &str, names: &Names<'r>) -> bool {
        F::is_in(name, names)
    }

    fn check(current: Option<&Self>, name: &str, file: &mut Checking<'r>) {
        file.check_or_default(current.and_then(Option::as_ref), name);
    }

    fn load(name: &str, file: &mut Loading<'r>) -> Result<Self> {
        if F::is_in(name, file.names()) { F::load(name, file).map(Some) } else { Ok(None) }
    }

    fn exchange(&mut self, loaded: &mut Self) {
        match (self, loaded) {
            (Some(value), Some(loaded)) => value.exchange(loaded),
            (value, loaded) => std::mem::swap(value, loaded),
        }
    }
}

impl<F: SaveField + InVec> SaveField for Vec<F> {
    fn save_field(&self, name: &str, file: &mut Saving<'_>) -> Result<()> {
        self.iter().enumerate().try_for_each(|(index, value)| {
            let name = item(name, index);
            file.present(&name, |file| value.save_field(&name, file))
        })
    }
}

impl<'r, F: LoadField<'r> + InVec> LoadField<'r> for Vec<F> {
    fn is_in(name: &str, names: &Names<'r>) -> bool {
        names.is_marked(name) || F::is_in(&item(name, 0), names) || names.is_marked(&item(name, 0))
    }

    fn check(current: Option<&Self>, name: &str, file: &mut Checking<'r>) {
        let items = file.names().items(name, F::is_in);
        for index in 0..items {
            let name = item(name, index);
            match current.map(|current| current.get(index)) {
                None => F::check(None, &name, file),
                Some(Some(value)) => F::check(Some(value), &name, file),
                Some(None) => file.extra_item(&name),
            }
        }
        for (index, value) in current.into_iter().flatten().enumerate().skip(items) {
            file.missing_item(value, &item(name, index));
        }
    }

    fn load(name: &str, file: &mut Loading<'r>) -> Result<Self> {
        let items = file.names().items(name, F::is_in);
        (0..items).map(|index| F::load(&item(name, index), file)).collect()
    }

    fn exchange(&mut self, loaded: &mut Self) {
        if self.len() != loaded.len() {
            return std::mem::swap(self, loaded);
        }
        self.iter_mut().zip(loaded).for_each(|(value, loaded)| value.exchange(loaded));
    }
}

impl<F> InVec for Vec<F> {}

impl<F> InOption for Vec<F> {}
