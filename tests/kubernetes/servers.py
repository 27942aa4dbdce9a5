"""The API servers that the suite runs on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from sluice.kubernetes.api import Api
from sluice.kubernetes.connections import connect
from tests.kubernetes.api_server import ADMIN, ROLE, ApiServer, served


@dataclass(frozen=True)
class Server:
    """Where a server is, and whom it knows: tokens of an administrator, and of the group of the documents."""

    url: str
    authority: str = ""
    admin_token: str = ADMIN
    role_token: str = ROLE

    @cached_property
    def admin(self) -> Api:
        return connect(self.url, self.authority, lambda: self.admin_token)

    @cached_property
    def role(self) -> Api:
        return connect(self.url, self.authority, lambda: self.role_token)


@contextmanager
def in_memory() -> Iterator[Server]:
    with served(ApiServer()) as url:
        yield Server(url)
