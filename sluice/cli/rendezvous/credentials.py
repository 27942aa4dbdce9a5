"""What `sluice rendezvous creds` does and says. The secret goes to standard output and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from sluice.aws.operator.client_user import ClientUser, Rotation, first_key, revoke, rotate, sqscreds
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import Deployment, read_deployment
from sluice.cli.output import note, show_json


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one site's clients."""

    deployment: Deployment
    user: ClientUser

    @classmethod
    def of(cls, connection: Connection) -> "Credentials":
        """Find those of the site that is connected to. Raises what reading the deployment raises."""
        deployment = read_deployment(connection)
        return cls(deployment, ClientUser(connection.client("iam"), deployment.client_user_name))

    def make(self, *, as_json: bool) -> None:
        """Make the first key, and show it. Raises `SecretUnknown` where there is one, or `CallFailed`."""
        self._show(Rotation(credentials=first_key(self.user)), as_json=as_json)

    def rotate(self, *, keep_previous: bool, as_json: bool) -> None:
        """Make a key in place of the others. Raises the `CallFailed` of a deletion after the new key was shown."""
        rotation = rotate(self.user, keep_previous=keep_previous)
        self._show(rotation, as_json=as_json)
        if rotation.fault:
            raise rotation.fault

    def revoke(self, *, as_json: bool) -> None:
        """Leave no key at all. Raises `CallFailed`."""
        deleted = revoke(self.user)
        if as_json:
            show_json({"user": self.user.name, "deleted": deleted})
        else:
            note(_said("deleted", deleted) or f"{self.user.name} had no access key")

    def _show(self, rotation: Rotation, *, as_json: bool) -> None:
        if as_json:
            show_json(
                {
                    "user": self.user.name,
                    "access_key_id": rotation.credentials.access_key_id,
                    "sqscreds": sqscreds(rotation.credentials),
                    "offers_queue_url": self.deployment.offers_queue_url,
                    "deleted": list(rotation.deleted),
                    "kept": list(rotation.kept),
                }
            )
            return
        # So that it can be taken as it is: SLUICE_SQSCREDS=$(sluice rendezvous creds --rotate)
        typer.echo(sqscreds(rotation.credentials))
        note(
            f"access key {rotation.credentials.access_key_id} of {self.user.name}; IAM shows its secret only this once"
        )
        note(f"clients take it with -sqsqueue {self.deployment.offers_queue_url} -sqscreds and the text above")
        for said in (_said("deleted", rotation.deleted), _said("still valid until the next rotation:", rotation.kept)):
            if said:
                note(said)


def _said(what: str, key_ids: Sequence[str]) -> str:
    return f"{what} {', '.join(key_ids)}" if key_ids else ""
