"""What a reference asks for: which files, in which folder of the cache."""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from floe.core.errors import BadRequest, NotFound
from floe.core.files import safe_name
from floe.models import cache
from floe.models.cache import FolderRecord
from floe.models.registry import KNOWN, KnownModel, ModelFile
from floe.models.sources import Local, Source, parse_source, source_file_name

_KINDS = (".gguf", ".safetensors", ".onnx", ".json")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to have, under which reference, in which folder."""

    ref: str
    model: KnownModel
    folder: Path


def checked_hash(sha256: str | None) -> str | None:
    """The hash in lower case without "sha256:". Raises BadRequest when it is none."""
    if sha256 is None:
        return None
    digest = sha256.strip().lower().removeprefix("sha256:")
    if not _SHA256.fullmatch(digest):
        raise BadRequest("a sha256 has 64 hexadecimal digits", param="sha256")
    return digest


def resolve(ref: str, *, home: Path, sha256: str | None) -> Wanted:
    """What `ref` asks for. Raises NotFound or BadRequest; see `floe.models.pull.ensure`."""
    root = cache.models_folder(home)
    if ref in KNOWN:
        model = KNOWN[ref]
        if sha256 and sha256 != model.files[0].sha256:
            raise BadRequest(
                f"{ref} is known with sha256 {model.files[0].sha256}; give no other one, "
                "or name the source",
                param="sha256",
            )
        return Wanted(ref=ref, model=model, folder=root / ref)
    source = parse_source(ref)
    if source is None:
        return _pulled_before(ref, home=home)
    return _from_source(ref, source, home=home, sha256=sha256)


def _pulled_before(name: str, *, home: Path) -> Wanted:
    for folder, record in cache.records(home):
        if folder.name == name:
            source = parse_source(record.ref)
            if source is not None:
                return _wanted(record.ref, source, folder=folder, sha256=record.files[0].sha256)
    names = sorted({*KNOWN, *(folder.name for folder, _ in cache.records(home))})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    raise NotFound(f"no model {name}; {hint}known: {', '.join(names)}", param="model")


def _from_source(ref: str, source: Source, *, home: Path, sha256: str | None) -> Wanted:
    if isinstance(source, Local):
        ref = str(source.path)  # "./x" means another file elsewhere
    folder, known = _folder(ref, source, home=home)
    if isinstance(source, Local):
        if source.path.is_dir():
            raise BadRequest(f"{source.path} is a folder; name a GGUF file in it", param="ref")
        if known is None and not source.path.exists():
            raise NotFound(f"no file {source.path}", param="ref")
        if source.path.exists() and not source.path.is_file():  # a pipe or device may never end
            raise BadRequest(f"{source.path} is no regular file", param="ref")
        if known is None and source.path.suffix.lower() not in _KINDS:
            raise BadRequest(
                f"{source.path} is no model file; expected one that ends in {', '.join(_KINDS)}",
                param="ref",
            )
    elif sha256 is None and known is None:
        raise BadRequest(
            "this source is not among the known models: give the file's hash with --sha256",
            param="sha256",
        )
    elif sha256 is None and known is not None:
        sha256 = known.files[0].sha256
    return _wanted(ref, source, folder=folder, sha256=sha256)


def _folder(ref: str, source: Source, *, home: Path) -> tuple[Path, FolderRecord | None]:
    """The folder of this reference; a second file of the same name gets its own."""
    for folder, record in cache.records(home):
        if record.ref == ref:
            return folder, record
    stem = re.sub(r"[^a-z0-9._-]+", "-", Path(source_file_name(source)).stem.lower())
    stem = re.sub(r"\.{2,}", ".", stem).strip(".-_")[:48] or "model"
    folder = cache.models_folder(home) / stem
    if stem in KNOWN or cache.read_record(folder) is not None:
        folder = folder.with_name(f"{stem}-{hashlib.sha256(ref.encode()).hexdigest()[:8]}")
    return folder, None


def _wanted(ref: str, source: Source, *, folder: Path, sha256: str | None) -> Wanted:
    file_name = re.sub(r"[^A-Za-z0-9._-]+", "-", source_file_name(source)).lstrip(".-_")[:64]
    file = ModelFile(
        role="model",
        file_name=safe_name(re.sub(r"\.{2,}", ".", file_name), what="file"),
        sha256=sha256,
        size_bytes=None,
        sources=(source,),
    )
    model = KnownModel(
        name=folder.name,
        description=ref,
        licence="unknown",
        files=(file,),
        base_names=frozenset({folder.name.lower()}),
    )
    return Wanted(ref=ref, model=model, folder=folder)
