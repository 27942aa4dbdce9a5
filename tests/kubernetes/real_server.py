"""A real API server with its etcd, as `make build/kube-apiserver/ready` builds them, for as long as the tests take.

It is no cluster: there are no controllers, and nothing runs pods.
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.errors import CallFailed
from sluice.kubernetes.api import Api
from tests.kubernetes.api_server import ADMIN, GROUP, ROLE
from tests.kubernetes.servers import Server

BUILT = Path(__file__).parents[2] / "build" / "kube-apiserver" / "bin"
START_S = 60
# Kinds that others bring, by group: plural, kind, and whether the status is apart.
CUSTOM = (
    ("argoproj.io", "v1alpha1", "rollouts", "Rollout", True),
    ("argoproj.io", "v1alpha1", "applications", "Application", False),
    ("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject", True),
)


@contextmanager
def real() -> Iterator[Server]:
    """Start both on loopback."""
    if not (BUILT / "etcd").exists():
        raise AssertionError("there is no API server yet: make build/kube-apiserver/ready")
    with TemporaryDirectory() as name, ExitStack() as running:
        folder, etcd, peer, port = Path(name), free_port(), free_port(), free_port()
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "key.pem").write_bytes(text)
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n{ROLE},sluice,2,"{GROUP}"\n')
        clients, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        running.enter_context(
            process(
                folder / "etcd.log",
                *("etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={clients}"),
                *(f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}"),
                *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"),
            )
        )
        running.enter_context(
            process(
                folder / "server.log",
                *("kube-apiserver", f"--etcd-servers={clients}", f"--cert-dir={folder}", f"--secure-port={port}"),
                *("--bind-address=127.0.0.1", "--authorization-mode=RBAC", "--endpoint-reconciler-type=none"),
                *(f"--token-auth-file={folder / 'tokens.csv'}", "--service-cluster-ip-range=10.0.0.0/24"),
                *(f"--service-account-key-file={folder / 'key.pem'}", "--disable-admission-plugins=ServiceAccount"),
                *(f"--service-account-signing-key-file={folder / 'key.pem'}", "--service-account-issuer=https://here"),
            )
        )
        server = wait_for(folder, port)
        define(server.admin)
        yield server


@contextmanager
def process(log: Path, program: str, *arguments: str) -> Iterator[None]:
    with log.open("wb") as output:
        command: Sequence[str] = [str(BUILT / program), *arguments]
        started = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_for(folder: Path, port: int) -> Server:
    """Wait until it has made its certificate, and says that it is ready."""
    certificate, end = folder / "apiserver.crt", time.monotonic() + START_S
    while True:
        try:
            server = Server(f"https://127.0.0.1:{port}", certificate.read_text())
            if is_ready(server.admin):
                return server
        except (OSError, CallFailed) as error:
            if time.monotonic() > end:
                raise AssertionError((folder / "server.log").read_text()[-4_000:]) from error
        time.sleep(0.2)


def is_ready(admin: Api) -> bool:
    """Whether what it makes for itself is there: the roles, and the first namespace."""
    admin.get_object("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
    admin.get_object("/api/v1/namespaces/default")
    return True


def define(admin: Api) -> None:
    """Define the kinds that others bring, and wait until they are served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for group, version, plural, kind, with_status in CUSTOM:
        schema: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        if with_status:
            served["subresources"] = {"status": {}}
        spec = {
            "group": group,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [served],
        }
        made = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
        admin.create_object(path, {**made, "metadata": {"name": f"{plural}.{group}"}})
    end = time.monotonic() + START_S
    for group, version, plural, _, _ in CUSTOM:
        while True:
            try:
                admin.get_object(f"/apis/{group}/{version}/namespaces/default/{plural}")
                break
            except CallFailed:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
