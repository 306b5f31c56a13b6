//! Manages files with the command `safetensors`: inspect, verify, convert, compare, and change
//! metadata.
//!
//! ```console
//! cargo install safetensors-bridge-cli
//! ```
//!
//! The command reads headers, and only the tensors' bytes that an answer needs, piece by piece. So
//! it takes a few MiB of memory per thread, and several times the size of the headers, for a model
//! of any size. A path is a file, a directory or the index of a sharded model; files of PyTorch,
//! GGUF and NumPy are read, too. Every line with a `$` runs as a test. The output is a terminal's.
//!
//! # A new model
//!
//! A model has arrived: `model.safetensors`. First check that it is complete:
//!
//! ```console
//! $ safetensors verify --strict model.safetensors
//! model.safetensors: ok, 2 tensors, 48 parameters, 192 B
//! $ safetensors inspect model.safetensors
//! module        dtype  shape   tensors  parameters   size
//! ───────────────────────────────────────────────────────
//! embed.weight  F32    [8, 4]        1          32  128 B
//! head.weight   F32    [4, 4]        1          16   64 B
//!
//! dtype  tensors  parameters   size
//! ─────────────────────────────────
//! F32          2          48  192 B
//! total        2          48  192 B
//!
//! metadata  value
//! ───────────────
//! format    pt
//!
//! model.safetensors: 1 file, 376 B
//! ```
//!
//! `verify` reads only headers. It finds files that are cut off, tensors that overlap, and missing
//! shards. It cannot find changed values: see [digests](#metadata-and-digests).
//!
//! # Convert
//!
//! `convert` casts, splits, renames, merges and selects. It reads and writes piece by piece. Its
//! output is complete or not there, even if the command is killed. With `--dry-run`, it only shows
//! the result.
//!
//! ```console
//! $ safetensors convert model.safetensors half --dtype bf16 --max-shard-size 80
//! half: 2 tensors, 96 B, in 2 files
//! $ ls half
//! model-00001-of-00002.safetensors
//! model-00002-of-00002.safetensors
//! model.safetensors.index.json
//! ```
//!
//! A directory is converted as a model: all its files except other weights are copied, such as the
//! tokenizer and the licence, and `config.json` gets the new dtype:
//!
//! ```console
//! $ mkdir llama; cp model.safetensors llama; touch llama/LICENSE llama/optimizer.pt
//! $ echo '{"model_type": "llama", "torch_dtype": "float32"}' > llama/config.json
//! $ safetensors convert llama llama-bf16 --dtype bf16
//! llama-bf16: 2 tensors, 96 B, in 1 file, with config.json and 1 other file; copied: LICENSE; not copied: optimizer.pt
//! $ cat llama-bf16/config.json
//! {"model_type": "llama", "torch_dtype": "bfloat16"}
//! ```
//!
//! A pattern that matches nothing is an error, so that a misspelling is noticed:
//!
//! ```console
//! $ safetensors convert model.safetensors small --cast 'embedd*=f16'
//! error: no tensor matches --cast 'embedd*'; similar: embed.weight; --ignore-unmatched allows it
//! ```
//!
//! # Compare
//!
//! `diff` ignores how files are divided. Its exit code is 0 if all is equal, 1 if something differs,
//! and 2 if it cannot compare.
//!
//! ```console
//! $ safetensors diff model.safetensors half || echo "exit code $?"
//!    name          differs  A → B               values  max abs  max rel
//! ──────────────────────────────────────────────────────────────────────
//! ~  embed.weight  dtype    F32 → BF16 [8, 4]  0 of 32        0        0
//! ~  head.weight   dtype    F32 → BF16 [4, 4]  0 of 16        0        0
//!
//! 0 tensors equal, 2 different
//! exit code 1
//! $ safetensors diff model.safetensors half --ignore-dtype
//! 2 tensors equal
//! ```
//!
//! # Metadata and digests
//!
//! `metadata` writes a copy with the new header, and replaces the file by it. So the file is old or
//! new, even after a kill. In a sharded model, all files change.
//!
//! ```console
//! $ safetensors metadata set model.safetensors license=mit
//! model.safetensors: rewritten
//! $ safetensors metadata get model.safetensors license
//! mit
//! $ safetensors metadata remove model.safetensors license
//! model.safetensors: rewritten
//! ```
//!
//! Only digests show bytes that were changed on the way. The author of a file records them in its
//! metadata, and the receiver compares:
//!
//! ```console
//! $ safetensors digest --record model.safetensors
//! model.safetensors: 2 digests recorded
//! $ safetensors verify --digests model.safetensors
//! model.safetensors: ok, 2 tensors, 48 parameters, 192 B, 2 digests right
//! ```
//!
//! # What goes wrong
//!
//! A download broke off, or a shard is missing: the message names the file and the problem, and the
//! exit code is 1.
//!
//! ```console
//! $ cp -r half broken; truncate -s -4 broken/model-00001-of-00002.safetensors
//! $ safetensors verify broken || echo "exit code $?"
//! error: broken/model-00001-of-00002.safetensors: tensor "embed.weight": cut off: 4 of 64 bytes of the tensors are missing
//! exit code 1
//! $ rm broken/model-00001-of-00002.safetensors
//! $ safetensors verify broken || echo "exit code $?"
//! error: broken/model-00001-of-00002.safetensors: tensor "embed.weight": the shard is missing; the index needs it for 1 tensor
//! exit code 1
//! ```
//!
//! An output that exists is replaced only with `--force`, or after a question on a terminal:
//!
//! ```console
//! $ safetensors convert half/model-00001-of-00002.safetensors model.safetensors || echo "exit code $?"
//! error: model.safetensors exists: it has 2 tensors, 192 B, and would be replaced; --force replaces it
//! exit code 1
//! ```
//!
//! # Many files, and programs
//!
//! `verify` searches directories. Good files go to standard output and faults to standard error, so
//! only the faults are left here:
//!
//! ```console
//! $ safetensors verify . > report.txt || echo "exit code $?"
//! error: ./broken/model-00001-of-00002.safetensors: tensor "embed.weight": the shard is missing; the index needs it for 1 tensor
//! exit code 1
//! $ safetensors inspect --json model.safetensors | grep '"parameters"'
//!     "parameters": 48,
//!       "parameters": 48,
//!       "parameters": 32,
//!       "parameters": 16,
//! ```
//!
//! `inspect`, `stats` and `digest` take many paths, and `-r` takes all below a directory. The
//! documents of `--json` have schemas. A program may rely on them, and on exit codes.
//!
//! | to | command |
//! |---|---|
//! | find NaN and infinity | `safetensors stats model` |
//! | look at values | `safetensors show model embed.weight '[:3]'` |
//! | take one tensor out | `safetensors extract model embed.weight -o embed.npy` |
//! | merge a LoRA adapter | `safetensors convert model merged --lora adapter` |
//! | make a GGUF file for llama.cpp | `safetensors convert model model.gguf --quantize q8_0` |
//! | convert a GGUF file to a model | `safetensors convert model.gguf model --names transformers --dtype bf16` |
//! | have Zarr and xarray read the file in place | `safetensors manifest model -o model.json` |
//! | read from the Hub or a bucket, without a download | `hf://owner/name`, `s3://bucket/model` as the path; feature `remote` |
//!
//! The [command's page](https://docs.rs/crate/safetensors-bridge-cli/latest/source/README.md) has the
//! rules that all commands share: paths, addresses, outputs, exit codes. Its `MANUAL.md` has every
//! option.
