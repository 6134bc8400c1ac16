"""What people think of answers, on its way to the router: `POST /v1/feedback`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from floe.core.errors import BadRequest, Missing, NotFound
from floe.serving import fields
from floe.serving.body import read_json
from floe.serving.callers import caller_of
from floe.serving.replies import encode
from floe.serving.service import Feedback, Service

KEPT = 4_096
KEPT_S = 24 * 3_600.0


class Answered:
    """Whose answer each id was: the last `most` of them, each for `kept_s`."""

    def __init__(
        self,
        *,
        most: int = KEPT,
        kept_s: float = KEPT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._kept_s, self._now_s = most, kept_s, now_s
        self._owner: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def add(self, request_id: str, tenant: str) -> None:
        """An answer came to its end."""
        self._owner[request_id] = (tenant, self._now_s())
        while len(self._owner) > self._most:
            self._owner.popitem(last=False)

    def check(self, request_id: str, tenant: str) -> None:
        """Raise NotFound for an id that is not known, too old, or another tenant's."""
        owner, at_s = self._owner.get(request_id, ("", 0.0))
        if owner != tenant or self._now_s() - at_s > self._kept_s:
            raise NotFound(
                "no answer of this id, or it is too long ago: send feedback with the `id` of the "
                "answer, within a day",
                param="request_id",
            )


def feedback_of(body: Mapping[str, Any], *, tenant: str) -> Feedback:
    """What a body of /v1/feedback says.

    Raises:
        BadRequest: naming the field that is wrong.
    """
    fields.only(body, {"request_id", "thumbs", "metric"})
    given = {key: value for key, value in body.items() if value is not None}
    if "request_id" not in given:
        raise BadRequest("request_id is required: the `id` of an answer", param="request_id")
    request_id = fields.text(given["request_id"], "request_id", least=1, most=128)
    thumbs, metric = None, None
    if "thumbs" in given:
        thumbs = fields.integer(given["thumbs"], "thumbs", low=-1, high=1)
        if thumbs == 0:
            raise BadRequest("thumbs must be 1, -1 or null", param="thumbs")
    if "metric" in given:
        metric = fields.number(given["metric"], "metric", low=0, high=1)
    if thumbs is None and metric is None:
        raise BadRequest("give thumbs (1 or -1), a metric (0 to 1), or both", param="thumbs")
    return Feedback(request_id=request_id, tenant=tenant, thumbs=thumbs, metric=metric)


def feedback_route(service: Service, answered: Answered) -> Route:
    """The address of this module."""

    async def feedback(http: HttpRequest) -> Response:
        body = await read_json(http, max_bytes=service.config.max_body_bytes)
        said = feedback_of(body, tenant=caller_of(http.scope).tenant)
        if service.feedback is None:
            raise Missing("this server learns nothing from feedback")
        answered.check(said.request_id, said.tenant)
        learned = await service.feedback(said)
        reply = {"object": "feedback", "request_id": said.request_id, "learned": learned}
        return Response(encode(reply), media_type="application/json")

    return Route("/v1/feedback", feedback, methods=["POST"])
