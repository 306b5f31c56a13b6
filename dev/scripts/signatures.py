#!/usr/bin/env python3
"""Compares signatures of models with PyPI's `model-signing`, the reference, and writes the fixtures.

Run by hand, as CI has no Python:

    python3 -m venv venv
    venv/bin/pip install model-signing pyOpenSSL
    cargo build -p safetensors-bridge-cli
    venv/bin/python dev/scripts/signatures.py target/debug/safetensors

Each of the two signs the same model with each key, hash and chain of certificates, and each
verifies what both have signed; then what was tampered with, which both must refuse.

With `--write`, it writes the fixtures of `safetensors-sign` instead: keys, certificates, and
signatures that the reference makes of the model in MODEL, which the tests make, too. New keys give
new fixtures each time. The keys are for these tests alone.
"""

import argparse
import datetime
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from model_signing import hashing, signing, verifying

FIXTURES = Path(__file__).resolve().parents[2] / "extras/sign/tests/fixtures"

# The files of the model. The reference sorts `a/c` before `a.b`, the specification after it.
MODEL = {
    "a.b": b"dot",
    "a/c": b"slash",
    "config.json": b"{}",
    "empty": b"",
    "h\u00e9 y:0:1": "\u00e9".encode(),
    "model.safetensors": b"\x08\0\0\0\0\0\0\0{}      ",
}

CURVES = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}
LONG = (datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1))
SHORT = (datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1))


def write_model(directory):
    for name, content in MODEL.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# Keys and certificates.


def save_key(path, key, form=serialization.PrivateFormat.PKCS8, password=None):
    encryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


def save_public(path, key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


def certificate(name, key, issuer=None, ca=False, usage="digital", valid=LONG, hash=hashes.SHA256(),
                path_length=None, extra=None):
    """A certificate of `key`, signed by `issuer`: its certificate and key, or else by itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.issuer_name(issuer[0].subject if issuer else subject)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(valid[0]).not_valid_after(valid[1])
    builder = builder.add_extension(x509.BasicConstraints(ca, path_length), critical=True)
    flags = dict.fromkeys(
        ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
         "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"], False)
    flags["key_cert_sign"] = ca
    flags["content_commitment"] = not ca and usage in ["none", "commitment"]
    flags["digital_signature"] = usage in ["digital", "server"]
    if usage != "code":
        builder = builder.add_extension(x509.KeyUsage(**flags), critical=True)
    if usage in ["code", "commitment"]:
        code = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        builder = builder.add_extension(code, critical=False)
    if usage == "server":
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(server, critical=True)
    if extra:
        builder = builder.add_extension(extra, critical=True)
    return builder.sign(issuer[1] if issuer else key, hash)


def save_certificates(path, *certificates):
    pem = [it.public_bytes(serialization.Encoding.PEM) for it in certificates]
    path.write_bytes(b"".join(pem))


def write_keys(out):
    keys = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}
    for name, key in keys.items():
        save_key(out / f"{name}.pem", key)
        save_key(out / f"{name}.sec1.pem", key, serialization.PrivateFormat.TraditionalOpenSSL)
        save_public(out / f"{name}.pub", key)
    save_public(out / "other.pub", ec.generate_private_key(CURVES["p256"]))
    save_key(out / "encrypted.pem", keys["p256"], password=b"secret")
    old = serialization.PrivateFormat.TraditionalOpenSSL
    save_key(out / "encrypted.sec1.pem", keys["p256"], old, b"secret")
    save_key(out / "k1.pem", ec.generate_private_key(ec.SECP256K1()))
    save_key(out / "rsa.pem", rsa.generate_private_key(65537, 2048))
    return keys


def write_certificates(out, keys):
    """Chains of two and three, each as NAME.chain.pem for the signer and a root for the verifier."""
    root_key = ec.generate_private_key(CURVES["p521"])
    # SHA-256 has fewer bits than half of the curve.
    root = certificate("root", root_key, ca=True)
    middle_key = ec.generate_private_key(CURVES["p384"])
    middle = certificate("middle", middle_key, (root, root_key), ca=True, hash=hashes.SHA384())
    narrow = certificate("narrow", middle_key, (root, root_key), ca=True, path_length=0)
    rsa_key = rsa.generate_private_key(65537, 2048)
    rsa_root = certificate("rsa root", rsa_key, ca=True)
    not_ca = certificate("no issuer", middle_key, (root, root_key))
    for_servers = certificate("for servers", middle_key, (root, root_key), ca=True, usage="server")
    old_root = certificate("old root", root_key, ca=True, valid=SHORT)
    save_certificates(out / "root.pem", root)
    save_certificates(out / "rsa-root.pem", rsa_root)
    save_certificates(out / "old-root.pem", old_root)
    save_certificates(out / "middle.pem", middle)

    leaf, by_middle = keys["p256"], (middle, middle_key)
    names = x509.NameConstraints([x509.DNSName("example.com")], None)
    chains = {
        "digital": [certificate("signer", leaf, by_middle), middle],
        "code": [certificate("signer", leaf, by_middle, usage="code"), middle],
        # As the reference's own script makes it: an issuer with the name of its issuer.
        "rsa": [certificate("rsa root", leaf, (rsa_root, rsa_key), ca=True, usage="digital")],
        "expired": [certificate("signer", leaf, by_middle, valid=SHORT), middle],
        "old": [certificate("signer", leaf, (old_root, root_key), valid=SHORT)],
        "usage": [certificate("signer", leaf, by_middle, usage="none"), middle],
        "commitment": [certificate("signer", leaf, by_middle, usage="commitment"), middle],
        "server": [certificate("signer", leaf, by_middle, usage="server"), middle],
        "for-servers": [certificate("signer", leaf, (for_servers, middle_key)), for_servers],
        "not-ca": [certificate("signer", leaf, (not_ca, middle_key)), not_ca],
        "critical": [certificate("signer", leaf, by_middle, extra=names), middle],
        "forged": [certificate("signer", leaf, (middle, root_key)), middle],
    }
    below_key = ec.generate_private_key(CURVES["p256"])
    below = certificate("below", below_key, (narrow, middle_key), ca=True)
    chains["too-long"] = [certificate("signer", leaf, (below, below_key)), below, narrow]
    for name, chain in chains.items():
        save_certificates(out / f"{name}.chain.pem", *chain)
    return chains


# The reference.


def hash_config(algorithm="sha256", ignore=(), symlinks=False):
    config = hashing.Config().use_file_serialization(
        hashing_algorithm=algorithm, allow_symlinks=symlinks)
    return config.set_ignored_paths(paths=list(ignore)).set_allow_symlinks(symlinks)


def reference_signs(model, signature, key, chain=None, config=None):
    signer = signing.Config()
    if chain:
        # The reference wants the leaf and the others in two files.
        with tempfile.TemporaryDirectory() as directory:
            leaf, others = Path(directory) / "leaf.pem", Path(directory) / "others.pem"
            blocks = chain.read_text().split("-----END CERTIFICATE-----\n")
            blocks = [block + "-----END CERTIFICATE-----\n" for block in blocks if block.strip()]
            leaf.write_text(blocks[0])
            # It wants one certificate at least.
            others.write_text("".join(blocks[1:] or blocks[:1]))
            signer.use_certificate_signer(
                private_key=key, signing_certificate=leaf, certificate_chain=[others])
    else:
        signer.use_elliptic_key_signer(private_key=key)
    config = config or hash_config(ignore=[signature.name])
    signer.set_hashing_config(config).sign(model, signature)


def reference_verifies(model, signature, key=None, root=None, ignore_unsigned=False):
    verifier = verifying.Config().set_ignore_unsigned_files(ignore_unsigned)
    if root:
        verifier.use_certificate_verifier(certificate_chain=[root])
    else:
        verifier.use_elliptic_key_verifier(public_key=key)
    verifier.verify(model, signature)


def write_fixtures(out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    keys = write_keys(out)
    chains = write_certificates(out, keys)
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        write_model(model)
        sign = lambda name, **more: reference_signs(model, out / f"{name}.sig", **more)
        for curve in CURVES:
            sign(curve, key=out / f"{curve}.pem")
        sign("blake3", key=out / "p256.pem", config=hash_config("blake3"))
        sign("blake2", key=out / "p256.pem", config=hash_config("blake2"))
        sharded = hashing.Config().use_shard_serialization(shard_size=4)
        sign("shards", key=out / "p256.pem", config=sharded)
        ignoring = hash_config(ignore=["a", "later"])
        sign("ignoring", key=out / "p256.pem", config=ignoring)
        for name in chains:
            sign(name, key=out / "p256.pem", chain=out / f"{name}.chain.pem")
        single = model / "model.safetensors"
        reference_signs(single, out / "single.sig", out / "p256.pem")
    print(f"{sum(it.stat().st_size for it in out.iterdir())} bytes in {len(list(out.iterdir()))} files")


# Both.


class Interop:
    def __init__(self, command):
        self.command = command
        self.checks = 0

    def run(self, *arguments):
        done = subprocess.run([self.command, *map(str, arguments)], capture_output=True, text=True)
        assert "PRIVATE KEY" not in done.stdout + done.stderr
        return done

    def ok(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        self.checks += 1

    def refused(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 1, (done.stdout, done.stderr)
        self.checks += 1
        return done.stderr

    def reference_refuses(self, *arguments, **more):
        try:
            reference_verifies(*arguments, **more)
        except Exception:
            self.checks += 1
            return
        raise AssertionError(f"the reference accepts {arguments}")

    def pair(self, model, key, trust, chain=None, algorithm="sha256"):
        """Signs by both, and lets both verify each signature, intact and tampered with."""
        option = "--certificate-chain" if chain else "--key"
        named = {"root": trust} if chain else {"key": trust}
        signatures = [model / "ours.sig", model / "theirs.sig"]
        for signature in signatures:
            signature.unlink(missing_ok=True)
        certificates = ["--certificate", chain] if chain else []
        ignored = ["--ignore", "theirs.sig"]
        self.ok("sign", model, "--key", key, *certificates, "--hash", algorithm, *ignored,
                "--signature", signatures[0])
        config = hash_config(algorithm, ignore=["ours.sig", "theirs.sig"])
        reference_signs(model, signatures[1], key, chain, config)
        for signature in signatures:
            ours = ["verify", model, "--signature", signature, option, trust]
            self.ok(*ours)
            reference_verifies(model, signature, **named)
            self.checks += 1

            changed = model / "a/c"
            before = changed.read_bytes()
            changed.write_bytes(before + b"!")
            assert "a/c" in self.refused(*ours)
            self.reference_refuses(model, signature, **named)
            changed.write_bytes(before)

            added = model / "added"
            added.write_bytes(b"new")
            assert "added" in self.refused(*ours)
            self.reference_refuses(model, signature, **named)
            self.ok(*ours, "--ignore-unsigned-files")
            reference_verifies(model, signature, ignore_unsigned=True, **named)
            added.unlink()

            renamed = model / "b"
            (model / "a.b").rename(renamed)
            assert "a.b" in self.refused(*ours)
            self.reference_refuses(model, signature, **named)
            renamed.rename(model / "a.b")


def interop(command):
    both = Interop(command)
    with tempfile.TemporaryDirectory() as directory:
        out, model = Path(directory) / "keys", Path(directory) / "model"
        out.mkdir()
        write_model(model)
        write_certificates(out, write_keys(out))
        for curve in CURVES:
            for form in ["", ".sec1"]:
                both.pair(model, out / f"{curve}{form}.pem", out / f"{curve}.pub")
        both.pair(model, out / "p256.pem", out / "p256.pub", algorithm="blake3")
        for name, root in [("digital", "root"), ("code", "root"), ("rsa", "rsa-root")]:
            chain = out / f"{name}.chain.pem"
            both.pair(model, out / "p256.pem", out / f"{root}.pem", chain)
        # The reference obeys constraints of names; ours refuses every certificate that has them.
        # It takes one of two usages, whatever the other is, and ignores the usages of issuers.
        accepted = ["critical", "commitment", "server", "for-servers"]
        for name in ["usage", "not-ca", "forged", "too-long", *accepted]:
            signature = out / f"{name}.sig"
            reference_signs(model, signature, out / "p256.pem", out / f"{name}.chain.pem",
                            hash_config(ignore=["ours.sig", "theirs.sig"]))
            both.refused("verify", model, "--signature", signature,
                         "--certificate-chain", out / "root.pem")
            if name not in accepted:
                both.reference_refuses(model, signature, root=out / "root.pem")
    print(f"{both.checks} checks passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", help="the command `safetensors`")
    parser.add_argument("--write", action="store_true", help="write the fixtures instead")
    arguments = parser.parse_args()
    if arguments.write:
        write_fixtures(FIXTURES)
    elif arguments.command:
        interop(arguments.command)
    else:
        parser.error("name the command, or give --write")


if __name__ == "__main__":
    sys.exit(main())
