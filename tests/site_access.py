"""How programs reach what is deployed at a site of the embedded cloud: as its account's root, or as a client."""

from dataclasses import dataclass
from functools import cached_property

from sluice.aws.connections import Connection, connect_environment
from sluice.aws.deployment import Deployment, read_deployment
from sluice.aws.rendezvous.clients import ClientUser, rotate_keys, sqscreds
from sluice.local.cloud import Cloud
from sluice.local.sites import Site


@dataclass(frozen=True)
class SiteAccess:
    """One site with the stacks deployed. Everything is asked for once."""

    cloud: Cloud
    site: Site

    @cached_property
    def connection(self) -> Connection:
        """As the root of the site's account."""
        return connect_environment(self.cloud.environment(self.site), stage=self.site.stage)

    @cached_property
    def deployment(self) -> Deployment:
        """The stack's outputs."""
        return read_deployment(self.connection)

    @cached_property
    def sqscreds(self) -> str:
        """A new access key for clients, as text."""
        user = ClientUser(self.connection.client("iam"), self.deployment.client_user_name)
        return sqscreds(rotate_keys(user, keep_previous=True).credentials)
