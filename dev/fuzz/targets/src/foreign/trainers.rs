//! Directories of PyTorch's trainers.

use super::pickle::{self, Pickle, SHARED, TENSOR};
use super::pytorch::{pickled, saved};
use super::{FOREIGN, Files, Format, Part};

/// Distributed checkpoints.
pub(super) const DCP: Format = Format {
    name: "DCP directory",
    repeated: "tensors, chunks, empty, values, settings, paths, files, deflated",
    shared: "one chunk, one list of chunks, one shape, one place, one name, one path",
    each: 700,
    write: dcp,
    ..FOREIGN
};

/// Directories of DeepSpeed.
pub(super) const DEEPSPEED: Format = Format {
    name: "DeepSpeed directory",
    repeated: "shapes, frozen, buffers, names, groups, flats, moments, paddings, others, module, \
        files",
    shared: "one group, one shape, one buffer, one kept name, one list of flats, one padding, \
        one flat, kept name, one name",
    write: deepspeed,
    ..FOREIGN
};

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const FILESYSTEM: &str = "torch.distributed.checkpoint.filesystem";

/// The pickles that become the dictionaries of `.metadata`.
struct Listed {
    entries: Pickle,
    places: Pickle,
    paths: Pickle,
    file: Vec<u8>,
}

fn chunk(pickle: &mut Pickle, offset: usize, size: usize) {
    pickle.object(METADATA, "ChunkStorageMetadata", |pickle| {
        pickle.text("offsets").numbers(&[offset]).text("sizes").numbers(&[size]);
    });
}

/// Adds a tensor with a list of chunks that `chunks` writes.
fn listed(pickle: &mut Pickle, name: &str, size: &[usize], chunks: impl FnOnce(&mut Pickle)) {
    pickle.text(name).object(METADATA, "TensorStorageMetadata", |pickle| {
        pickle.text("properties").global(METADATA, "TensorProperties").op(b")\x81(");
        pickle.global("torch", "float32").op(b"tb").text("size").numbers(size).text("chunks");
        chunks(pickle);
    });
}

fn info(pickle: &mut Pickle, start: usize, len: usize) {
    pickle.object(FILESYSTEM, "_StorageInfo", |pickle| {
        pickle.text("relative_path").text("__0_0.distcp");
        pickle.text("offset").int(start).text("length").int(len);
    });
}

impl Listed {
    /// Adds the place of a value or a chunk.
    fn place(&mut self, name: &str, offset: Option<usize>, bytes: &[u8]) {
        let start = self.file.len();
        self.file.extend(bytes);
        self.index(name, offset);
        info(&mut self.places, start, bytes.len());
    }

    fn index(&mut self, name: &str, offset: Option<usize>) {
        self.places.object(METADATA, "MetadataIndex", |pickle| {
            pickle.text("fqn").text(name);
            if let Some(offset) = offset {
                pickle.text("offset").numbers(&[offset]);
            }
        });
    }

    fn value(&mut self, name: &str) {
        self.entries.text(name).object(METADATA, "BytesStorageMetadata", |_| ());
    }

    fn add(&mut self, part: Part) {
        let Part { what, count, len } = part;
        let mut tensor = Pickle::new();
        tensor.prelude("0", 1).get(TENSOR).op(b".");
        let tensor = saved(&tensor.0, &[], false);
        match what {
            "tensors" => part.names().for_each(|name| {
                listed(&mut self.entries, &name, &[1], |pickle| {
                    pickle.op(b"](");
                    chunk(pickle, 0, 1);
                    pickle.op(b"e");
                });
                self.place(&name, Some(0), &tensor);
            }),
            "chunks" => {
                let name = part.text();
                listed(&mut self.entries, &name, &[count], |pickle| {
                    pickle.op(b"](");
                    (0..count).for_each(|at| chunk(pickle, at, 1));
                    pickle.op(b"e");
                });
                (0..count).for_each(|at| self.place(&name, Some(at), &tensor));
            }
            "empty" => part.names().for_each(|name| {
                listed(&mut self.entries, &name, &[0], |pickle| {
                    pickle.op(b"](");
                    chunk(pickle, 0, 0);
                    pickle.op(b"e");
                });
            }),
            "values" => part.names().for_each(|name| {
                let text = Part { what: "texts", count: 1, len: 1 };
                self.value(&name);
                self.place(&name, None, &saved(&pickled(&[text]), &[], false));
            }),
            // Each archive says far more than it weighs.
            "deflated" => part.names().for_each(|name| {
                let aliases = Part { what: "aliases", count: len, len: 6 };
                self.value(&name);
                self.place(&name, None, &saved(&pickled(&[aliases]), &[], true));
            }),
            "settings" => part.names().enumerate().for_each(|(number, name)| {
                let path = format!("optimizer.param_groups.{number}.{name}");
                self.value(&path);
                self.paths.text(&path).op(b"(").text("optimizer").text("param_groups");
                self.paths.int(number).text(&name).op(b"t");
                let mut value = Pickle::new();
                value.text(&part.text()).op(b".");
                self.place(&path, None, &saved(&value.0, &[], true));
            }),
            "paths" => part.names().for_each(|name| {
                self.paths.text(&name).op(b"(").text("a").text("b").op(b"t");
            }),
            "one path" => {
                self.paths.text("path").op(b"(").text(&part.text()).text("b").op(b"t").put(SHARED);
                self.paths.named(count, SHARED);
            }
            "one chunk" => listed(&mut self.entries, "chunk", &vec![0; len.min(60)], |pickle| {
                let zeros = vec![0; len.min(60)];
                pickle.object(METADATA, "ChunkStorageMetadata", |pickle| {
                    pickle.text("offsets").numbers(&zeros).text("sizes").numbers(&zeros);
                });
                pickle.again(count);
            }),
            "one list of chunks" => {
                listed(&mut self.entries, "list", &[0], |pickle| {
                    pickle.op(b"](");
                    (0..len / 80).for_each(|_| chunk(pickle, 0, 0));
                    pickle.op(b"e").put(SHARED);
                });
                for number in 0..count {
                    let name = format!("l{number:x}");
                    listed(&mut self.entries, &name, &[0], |pickle| _ = pickle.get(SHARED));
                }
            }
            "one shape" => {
                self.entries.numbers(&vec![1; len.min(60)]).share();
                for number in 0..count {
                    let name = format!("s{number:x}");
                    self.entries.text(&name).object(METADATA, "TensorStorageMetadata", |pickle| {
                        pickle.text("properties").global(METADATA, "TensorProperties");
                        pickle.op(b")\x81(").global("torch", "float32").op(b"tb");
                        pickle.text("size").get(SHARED).text("chunks").op(b"]");
                    });
                }
            }
            "one place" => {
                self.value("place");
                self.place("place", None, &tensor);
                self.places.put(SHARED);
                for number in 0..count {
                    self.value(&format!("p{number:x}"));
                    self.index(&format!("p{number:x}"), None);
                    self.places.get(SHARED);
                }
            }
            // "one name" in a file that lists it often.
            "one name" => {
                self.places.text(&part.text()).share();
                for number in 0..count {
                    self.places.object(METADATA, "MetadataIndex", |pickle| {
                        pickle.text("fqn").get(SHARED).text("offset").numbers(&[number]);
                    });
                    info(&mut self.places, 0, 0);
                }
            }
            _ => {}
        }
    }
}

fn dcp(parts: &[Part]) -> Files {
    let empty = || Pickle(Vec::new());
    let mut listed = Listed { entries: empty(), places: empty(), paths: empty(), file: Vec::new() };
    parts.iter().for_each(|part| listed.add(*part));
    let Listed { entries, places, paths, file } = listed;
    let mut metadata = Pickle::new();
    metadata.object(METADATA, "Metadata", |pickle| {
        for (field, entries) in
            [("state_dict_metadata", entries), ("planner_data", paths), ("storage_data", places)]
        {
            pickle.text(field).op(b"}(").op(&entries.0).op(b"u");
        }
    });
    metadata.op(b".");
    let mut files = Files::default().with("d/.metadata", metadata.0).with("d/__0_0.distcp", file);
    for part in parts.iter().filter(|part| part.what == "files") {
        for name in part.at_most(200).names() {
            files = files.with(format!("d/{name}.distcp"), b"PK");
        }
    }
    Files { path: "d", ..files }
}

/// Makes the dictionaries of DeepSpeed's two files.
fn deepspeed(parts: &[Part]) -> Files {
    let mut model = Pickle::new();
    model.prelude("0", 1).op(b"}(");
    let mut optimizer = Pickle::new();
    optimizer.prelude("0", 1).op(b"}(").text("optimizer_state_dict").op(b"}(");
    optimizer.text("zero_stage").int(2).text("partition_count").int(1);
    let mut has = std::collections::BTreeSet::new();
    let mut files = Files { path: "d", ..Files::default() };
    let mut groups = 1;
    for part in parts.iter().filter(|part| has.insert(part.what)) {
        let Part { what, count, len } = *part;
        let shapes = |pickle: &mut Pickle, count, len| {
            pickle.op(b"}(");
            Part { what: "shapes", count, len }
                .names()
                .for_each(|name| _ = pickle.text(&name).numbers(&[0]));
            pickle.op(b"u");
        };
        let model = &mut model;
        match what {
            "shapes" => {
                model.text("param_shapes").op(b"]");
                shapes(model, count, len);
                model.op(b"a");
            }
            "groups" => {
                model.text("param_shapes").list(count, b"}");
                groups = count;
            }
            "one group" => {
                shapes(model, len / 8, 1);
                model.share().text("param_shapes").list(count, b"h\x03");
                groups = count;
            }
            "one shape" => {
                model.numbers(&vec![0; len / 2]).share();
                model.text("param_shapes").op(b"]}(");
                model.named(count, SHARED);
                model.op(b"ua");
            }
            "frozen" => {
                model.text("frozen_param_shapes");
                shapes(model, count, len);
                model.text("frozen_param_fragments").op(b"}(");
                let frozen = Part { what: "shapes", ..*part };
                frozen.names().for_each(|name| _ = model.text(&name).get(TENSOR));
                model.op(b"u");
            }
            "buffers" => {
                model.text("buffer_names").op(b"](");
                part.names().for_each(|name| _ = model.text(&name));
                model.op(b"e");
            }
            "one buffer" => {
                model.text(&part.text()).share().text("buffer_names").list(count, b"h\x03");
            }
            "names" => {
                model.text("shared_params").op(b"}(");
                part.names().for_each(|name| _ = model.text(&name).text("kept"));
                model.op(b"u");
            }
            "one kept name" => {
                model.text(&part.text()).share().text("shared_params").op(b"}(");
                model.named(count, SHARED);
                model.op(b"u");
            }
            "others" => part.names().for_each(|name| _ = model.text(&name).int(1)),
            "module" | "kept name" | "one name" => {
                model.text("module");
                let what = if what == "module" { "aliases" } else { what };
                pickle::write(model, Part { what, ..*part });
            }
            "flats" => {
                optimizer
                    .text("single_partition_of_fp32_groups")
                    .list(count, b"h\x02(h\x01K\0K\0\x85K\x01\x85\x89}tR");
                groups = count;
            }
            "one flat" => {
                optimizer.text("single_partition_of_fp32_groups").list(count, b"h\0");
                groups = count;
            }
            "one list of flats" => {
                optimizer.list(len / 2, b"h\0").share();
                optimizer.text("single_partition_of_fp32_groups").list(count, b"h\x03");
            }
            "moments" => {
                optimizer.text("base_optimizer_state").op(b"](}(");
                part.names().for_each(|name| _ = optimizer.text(&name).get(TENSOR));
                optimizer.op(b"ue");
            }
            "paddings" => {
                optimizer.text("param_alignment_paddings").list(count, b"]K\0a");
            }
            "one padding" => {
                optimizer.numbers(&vec![0; len / 2]).share();
                optimizer.text("param_alignment_paddings").list(count, b"h\x03");
            }
            _ => {
                for name in part.at_most(200).names() {
                    files = files.with(format!("d/{name}"), b"");
                }
            }
        }
    }
    if !["shapes", "groups", "one group", "one shape"].iter().any(|what| has.contains(what)) {
        model.text("param_shapes").list(groups, b"}");
    }
    if !["module", "kept name", "one name"].iter().any(|what| has.contains(what)) {
        model.text("module").op(b"}");
    }
    if !["flats", "one flat", "one list of flats"].iter().any(|what| has.contains(what)) {
        optimizer.text("single_partition_of_fp32_groups").op(b"](");
        (0..groups).for_each(|_| _ = optimizer.row(0));
        optimizer.op(b"e");
    }
    if !has.contains("moments") {
        optimizer.text("base_optimizer_state").op(b"](");
        (0..groups).for_each(|_| _ = optimizer.op(b"}").text("m").row(0).op(b"s"));
        optimizer.op(b"e");
    }
    model.op(b"u.");
    optimizer.op(b"uu.");
    files
        .with("d/mp_rank_00_model_states.pt", saved(&model.0, &[], false))
        .with("d/zero_pp_rank_0_mp_rank_00_optim_states.pt", saved(&optimizer.0, &[], false))
}
