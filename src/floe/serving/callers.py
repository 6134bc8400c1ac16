"""Who calls: a tenant by its key, or the operator by the admin key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from floe.core.config_rules import DEFAULT
from floe.core.errors import BadConfig, NotAllowed
from floe.serving.errors import Forbidden

_STATE = "floe_caller"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A tenant; the operator acts for the tenant "default"."""

    tenant: str = DEFAULT
    is_admin: bool = False


class KeyRing:
    """Keys and whose they are.

    A key that is given is compared with every key there is, each in constant time and without an
    early end: the time says neither how near it was nor whose it is.

    Raises:
        BadConfig: one key for two doors.
    """

    def __init__(
        self, *, api_key: str | None, tenant_keys: Mapping[str, str], admin_key: str | None
    ) -> None:
        owned = [(key, Caller(tenant=name)) for name, key in tenant_keys.items()]
        owned += [(api_key, Caller())] if api_key is not None else []
        self._guards_all = bool(owned)
        self._has_admin = admin_key is not None
        owned += [(admin_key, Caller(is_admin=True))] if admin_key is not None else []
        if len({key for key, _ in owned}) < len(owned):
            raise BadConfig("two keys of the server are the same: give each tenant its own")
        self._owned = [(_hashed(key), caller) for key, caller in owned]

    @property
    def guards_all(self) -> bool:
        """Whether a key is needed to come in at all."""
        return self._guards_all

    def caller(self, headers: Headers) -> Caller:
        """Who calls. Where no key is needed, whoever has no known key is the tenant "default".

        Raises:
            NotAllowed: no key or a wrong one, where one is needed.
        """
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        hashed = _hashed(token.strip())
        found: Caller | None = None
        for key, caller in self._owned:
            found = caller if hmac.compare_digest(hashed, key) else found
        if found is not None and scheme.lower() == "bearer":
            return found
        if not self._guards_all:
            return Caller()
        if not given:
            raise NotAllowed("an API key is required: send the header Authorization: Bearer KEY")
        raise NotAllowed("the API key is wrong: check FLOE_API_KEY of the server")

    def check_admin(self, caller: Caller) -> None:
        """Raise Forbidden for whoever is not the operator, saying how to become it."""
        if caller.is_admin:
            return
        if not self._has_admin:
            raise Forbidden(
                "this address is off: it needs an admin key. Set FLOE_ADMIN_KEY and start the "
                "server again"
            )
        raise Forbidden(
            "this address needs the admin key: send Authorization: Bearer with FLOE_ADMIN_KEY"
        )


def _hashed(key: str) -> bytes:
    """Of one length for every key, so that a comparison does not tell the length either."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def keep_caller(scope: Scope, caller: Caller) -> None:
    """Note who calls with the request."""
    scope.setdefault("state", {})[_STATE] = caller


def caller_of(scope: Scope) -> Caller:
    """Who calls, as `Edge` found out."""
    caller: Caller = scope["state"][_STATE]
    return caller
