//! TorchScript: finds the parameters and buffers among an object's attributes.
//!
//! Of the code in the archive, this module reads names of classes, and two lists of names in each:
//!
//! ```text
//! class Linear(Module):
//!   __parameters__ = ["weight", "bias", ]
//!   __buffers__ = []
//! ```

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;

use super::Members;
use super::values::{Class, Values};
use crate::error::{Error, ErrorKind, Result};
use crate::zipped::Zipped;

const PREFIX: &str = "__torch__";

/// Classes in C++, without code in the archive.
const NATIVE: &str = "__torch__.torch.classes";

impl Class {
    pub(super) fn has(&self, attribute: &str) -> bool {
        !self.lists_buffers || self.state.contains(attribute)
    }
}

impl Values {
    pub(super) fn module_class(&self, (module, name): (&str, &str)) -> Option<&Class> {
        if !is_of_code(module) || self.classes.is_empty() {
            return None;
        }
        self.classes.get(&format!("{module}.{name}")).filter(|class| class.is_module)
    }
}

pub(super) fn is_of_code(module: &str) -> bool {
    module.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        && !module.starts_with(NATIVE)
}

pub(super) fn lacks_code(values: &Values, module: &str, name: &str) -> bool {
    is_of_code(module) && !values.classes.contains_key(&format!("{module}.{name}"))
}

/// `root`: the prefix of members. Fails for a list of other things than names.
pub(super) fn read_classes(
    zipped: &Zipped<'_>,
    members: &Members,
    root: &str,
    values: &mut Values,
) -> Result<()> {
    let modules = values.modules().collect::<BTreeSet<_>>().into_iter();
    let modules: BTreeSet<String> =
        modules.filter(|it| is_of_code(it)).map(str::to_owned).collect();
    for module in &modules {
        let file = format!("{root}code/{}.py", module.replace('.', "/"));
        values.budget.work_on(&file)?;
        // A class without code is an error only where a tensor needs it.
        let Some(&index) = members.get(&file) else { continue };
        zipped.check_size(index)?;
        let code = zipped.member(index, |member| values.budget.read(member, u64::MAX))?;
        read_file(&code, module, &file, values)?;
    }
    Ok(())
}

fn read_file(code: &[u8], module: &str, file: &str, values: &mut Values) -> Result<()> {
    let bad = |problem: &str| {
        Error::from(ErrorKind::BadCode { file: file.into(), problem: problem.into() })
    };
    let code = std::str::from_utf8(code).map_err(|_| bad("it is not UTF-8"))?;
    let Values { budget, classes, .. } = values;
    let mut open: Option<&mut Class> = None;
    // Which lists the open class has.
    let mut has = [false; 2];
    for line in code.lines() {
        // The texts in the code have no line breaks, so a class is all that can begin so.
        if let Some(head) = line.strip_prefix("class ") {
            let (name, bases) = head.split_once('(').unwrap_or((head.trim_end_matches(':'), ""));
            let class = Class { is_module: bases.starts_with("Module"), ..Class::default() };
            budget.keep(module.len() + name.len() + size_of::<(String, Class)>())?;
            let Entry::Vacant(vacant) = classes.entry(format!("{module}.{name}")) else {
                return Err(bad(&format!("the class {name} is there twice")));
            };
            (open, has) = (Some(vacant.insert(class)), [false; 2]);
            continue;
        }
        for (list, has) in ["  __parameters__ = ", "  __buffers__ = "].into_iter().zip(&mut has) {
            let (Some(names), Some(class)) = (line.strip_prefix(list), open.as_deref_mut()) else {
                continue;
            };
            if std::mem::replace(has, true) {
                return Err(bad(&format!("a class has {} twice", list.trim())));
            }
            // A name takes four bytes in the text at least, and is in a list and in a table.
            budget.keep_all::<[String; 2]>(names.len() / 4)?;
            let names = quoted(names)
                .ok_or_else(|| bad(&format!("{} is no list of names", list.trim())))?;
            class.lists_buffers |= list.contains("buffers");
            class.state.extend(names);
        }
    }
    Ok(())
}

/// From a list such as `["weight", "bias", ]`.
fn quoted(list: &str) -> Option<Vec<String>> {
    let mut rest = list.trim_end().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix('"')?.split_once('"')?;
        if name.is_empty() || name.contains('\\') {
            return None;
        }
        names.push(name.to_owned());
        rest = match after.trim_start().strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.trim().is_empty() => "",
            None => return None,
        };
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::budget::Budget;

    #[test]
    fn a_list_is_quoted_names_and_nothing_else() {
        assert_eq!(quoted("[]"), Some(vec![]));
        for list in [r#"["a", "b.c", ]"#, r#"["a","b.c"]"#, r#"[ "a" , "b.c" ]  "#] {
            assert_eq!(quoted(list).unwrap(), ["a", "b.c"], "{list}");
        }
        for wrong in ["", "[", r#"["a]"#, r#"["a" "b"]"#, "[a]", r#"["\\n"]"#, r#"[""]"#, "f()"] {
            assert_eq!(quoted(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_class_of_a_file_has_its_own_lists() {
        let code = "class A(Module):\n  __parameters__ = [\"w\", ]\n  __buffers__ = [\"b\"]\n  w : \
                    Tensor\n\n  def forward(self):\n    return 1\nclass P(NamedTuple):\n  x : \
                    Tensor\nclass B(Module):\n  __parameters__ = []\n";
        let budget = Budget::new(&Limits::default());
        budget.grow(0);
        let mut values = Values::new(&budget);
        read_file(code.as_bytes(), "__torch__.net", "net.py", &mut values).unwrap();
        let class = |name: &str| &values.classes[&format!("__torch__.net.{name}")];
        let [a, b, p] = ["A", "B", "P"].map(class);
        assert!(a.is_module && a.has("w") && a.has("b") && !a.has("x"));
        // Its buffers are in no list.
        assert!(b.is_module && b.has("w") && !p.is_module);
        for wrong in ["__parameters__ = f()", "__parameters__ = []\n  __parameters__ = []"] {
            let code = format!("class A(Module):\n  {wrong}\n");
            let mut values = Values::new(&budget);
            let error = read_file(code.as_bytes(), "m", "m.py", &mut values).unwrap_err();
            assert!(error.to_string().starts_with("the code in \"m.py\": "), "{error}");
        }
    }

    #[test]
    fn names_of_classes_that_only_begin_alike_are_others() {
        assert!(is_of_code("__torch__") && is_of_code("__torch__.torch.nn.___torch_mangle_0"));
        assert!(!is_of_code("__torch__x") && !is_of_code("torch"));
        assert!(!is_of_code("__torch__.torch.classes.quantized"));
    }
}
