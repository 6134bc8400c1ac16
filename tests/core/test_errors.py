"""One tree; status and exit code follow from the class, and the drawing shows every class."""

from __future__ import annotations

from collections.abc import Iterator

import floe.core.errors as errors
from floe.core.errors import FloeError


def tree(root: type[FloeError]) -> Iterator[type[FloeError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def test_every_class_is_drawn_with_its_status() -> None:
    drawing = {
        line.strip(" |`-").split()[0]: line
        for line in (errors.__doc__ or "").splitlines()
        if line.strip(" |`-")
    }
    for one in tree(FloeError):
        assert one.__name__ in drawing, f"{one.__name__} is not in the drawing"
        assert str(one.http_status) in drawing[one.__name__]
        if f"exit {one.exit_code}" not in drawing[one.__name__]:
            parent = one.__mro__[1]
            assert one.exit_code == parent.exit_code  # type: ignore[attr-defined]


def test_exit_codes_differ_between_branches() -> None:
    branches = [one for one in FloeError.__subclasses__() if one.__module__ == errors.__name__]
    codes = [one.exit_code for one in branches]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes


def test_the_message_is_what_is_printed() -> None:
    error = errors.BadRequest("wrong: do that", param="n")
    assert str(error) == error.message == "wrong: do that"
    assert error.param == "n"
