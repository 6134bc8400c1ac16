"""Files of the Hugging Face hub, which may be out of reach: that must show within seconds.

One HEAD request finds out whether the hub answers, whether the file is there, and (for large
files) its sha256, so that a wrong file is not downloaded. With the `hub` extra, huggingface_hub
supplies address and login; without it only public files can be had. Neither reports usage.
"""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable

import httpx

from floe.models.https import CONNECT_S, fetch_https, open_client
from floe.models.part import Part
from floe.models.sources import Hub, SourceFailed

_PROBE_S = 2 * CONNECT_S


class HubDoor:
    """Fetches from the hub; once the hub was out of reach it is not asked again."""

    def __init__(self, *, transport: httpx.BaseTransport | None = None) -> None:
        self._transport = transport
        self._out_of_reach: str | None = None

    def fetch(
        self,
        source: Hub,
        part: Part,
        *,
        sha256: str | None,
        size_bytes: int | None,
        report: Callable[[int], None],
    ) -> None:
        """Bring `part` to the whole file.

        Raises:
            SourceFailed: hub out of reach, no such file, no access, or a file with another hash.
            PullFailed: not enough disk space.
        """
        if self._out_of_reach:
            raise SourceFailed(self._out_of_reach)
        url, headers = _address(source)
        found = self._probe(url, headers)
        if sha256 and found and found != sha256:
            raise SourceFailed(f"the hub's file has sha256 {found}, expected {sha256}")
        fetch_https(
            url,
            part,
            size_bytes=size_bytes,
            report=report,
            headers=headers,
            transport=self._transport,
        )

    def _probe(self, url: str, headers: dict[str, str]) -> str | None:
        """The file's sha256 if the hub tells it."""
        try:
            # Looking up a host name has no time-out of its own: bound the whole request.
            response = _within(_PROBE_S, lambda: self._head(url, headers))
        except (httpx.HTTPError, TimeoutError) as error:
            self._out_of_reach = f"the hub is out of reach ({error or type(error).__name__})"
            raise SourceFailed(self._out_of_reach) from error
        if response.status_code in (401, 403):
            raise SourceFailed(
                "the hub wants a login for this file (or has none of that name); set HF_TOKEN"
            )
        if response.status_code >= 400:
            raise SourceFailed(f"the hub answered {response.status_code}")
        tag = response.headers.get("X-Linked-ETag", "").strip('"')
        return tag if re.fullmatch(r"[0-9a-f]{64}", tag) else None

    def _head(self, url: str, headers: dict[str, str]) -> httpx.Response:
        with open_client(self._transport, redirects=False) as client:
            response = client.head(url, headers=headers)
            place = response.headers.get("Location", "")
            if response.is_redirect and place.startswith("/"):  # a renamed repository
                response = client.head(httpx.URL(url).join(place), headers=headers)
            return response


def _address(source: Hub) -> tuple[str, dict[str, str]]:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import get_token, hf_hub_url  # an extra, and slow to import
    except ImportError:
        base = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        url = f"{base}/{source.repo}/resolve/{source.revision}/{source.path}"
        token = os.environ.get("HF_TOKEN")
    else:
        url = hf_hub_url(source.repo, source.path, revision=source.revision)
        token = get_token()
    return url, {"Authorization": f"Bearer {token}"} if token else {}


def _within(seconds: float, call: Callable[[], httpx.Response]) -> httpx.Response:
    results: queue.SimpleQueue[httpx.Response | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(call())
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, name="floe-hub-probe", daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if isinstance(result, Exception):
        raise result
    return result
