"""The error tree: HTTP status and exit code follow from the class.

FloeError                      500  exit 1
|-- BadRequest                 400  exit 2   the caller's input is wrong
|   |-- ContextTooLong         400           prompt and answer do not fit the model's context
|   |-- BadPlan                400  exit 2   a pruning plan that no model can be built from
|   `-- BadConfig              400  exit 2   configuration file or option
|-- NotAllowed                 401  exit 3   missing or wrong key
|-- NotFound                   404  exit 4   no such model, adapter or file
|-- BadAdapter                 409  exit 5   an adapter that cannot be applied
|   `-- Untrusted              409  exit 5   ... for it is unsigned, revoked or signed by a stranger
|-- BadModel                   409  exit 6   a model file that cannot be loaded
|-- Busy                       503  exit 7   no room now; try again
|-- Missing                    501  exit 8   an optional part is not installed
|-- PullFailed                 502  exit 9   no source gave the file with the right hash
|-- KnobFailed                 500  exit 11  a clock that the kernel or driver would not set
|-- BadUpdate                  409  exit 12  a device's update that is not taken into a round
|-- BadRound                   409  exit 13  a round that changes nothing: too few good updates
|-- PrivacySpent               409  exit 14  the round would cost more epsilon than is left
`-- CloudFailed                502  exit 10  the cloud did not answer; never ends a stream
    `-- NotSent                502  exit 10  ... for nothing was sent to it

A message says what is wrong, where, and what to do. It never holds the user's text.
"""

from __future__ import annotations

from typing import ClassVar


class FloeError(Exception):
    """Something Floe could not do, with a message for the person who asked for it."""

    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(FloeError):
    """The caller's input is wrong; `param` names the field."""

    http_status = 400
    exit_code = 2
    kind = "invalid_request_error"


class ContextTooLong(BadRequest):
    """Prompt and answer together do not fit the model's context."""


class BadPlan(BadRequest):
    """A pruning plan, device profile or manifest that cannot be carried out here."""


class BadConfig(BadRequest):
    """A configuration value that stops the start."""


class NotAllowed(FloeError):
    """A missing or wrong key."""

    http_status = 401
    exit_code = 3
    kind = "authentication_error"


class NotFound(FloeError):
    """A model, adapter or file that is not there."""

    http_status = 404
    exit_code = 4
    kind = "not_found_error"


class BadAdapter(FloeError):
    """An adapter that cannot be applied as it is; nothing was changed."""

    http_status = 409
    exit_code = 5
    kind = "adapter_error"


class Untrusted(BadAdapter):
    """An adapter without a signature of a trusted key, or one that was revoked."""


class BadModel(FloeError):
    """A model file that cannot be loaded."""

    http_status = 409
    exit_code = 6
    kind = "model_error"


class Busy(FloeError):
    """No room at the moment; the same call may succeed later."""

    http_status = 503
    exit_code = 7
    kind = "overloaded_error"


class Missing(FloeError):
    """An optional part is not installed; the message says how to get it."""

    http_status = 501
    exit_code = 8
    kind = "not_installed_error"


class PullFailed(FloeError):
    """No source gave the file with the expected hash."""

    http_status = 502
    exit_code = 9
    kind = "pull_error"


class KnobFailed(FloeError):
    """A clock that could not be set; what was changed before it was put back."""

    exit_code = 11
    kind = "power_error"


class BadUpdate(FloeError):
    """A device's update that is refused by name; `reason` is a short word for the round report."""

    http_status = 409
    exit_code = 12
    kind = "update_error"

    def __init__(self, message: str, *, reason: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.reason = reason


class BadRound(FloeError):
    """A round that changes nothing, such as one with too few good updates."""

    http_status = 409
    exit_code = 13
    kind = "round_error"


class PrivacySpent(FloeError):
    """The privacy budget does not cover what was asked; nothing was trained or sent."""

    http_status = 409
    exit_code = 14
    kind = "privacy_budget_error"


class CloudFailed(FloeError):
    """The cloud did not answer in time or in form."""

    http_status = 502
    exit_code = 10
    kind = "cloud_error"


class NotSent(CloudFailed):
    """The cloud was not asked at all: no byte of the question left."""
