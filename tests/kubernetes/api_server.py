"""An API server in memory, on loopback: what its clients may count on, and no controller.

Versions and conflicts, generations, status apart from the rest, terminating pods, label selectors, pages, field
managers, and who may do what by Roles, as the real one has them; the same suite runs on both.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

Json = dict[str, Any]
PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?"
)
# By group and version: plurals that have a status apart, and those that don't.
WITH_STATUS = {
    "apps/v1": {"deployments", "statefulsets"},
    "argoproj.io/v1alpha1": {"rollouts"},
    "keda.sh/v1alpha1": {"scaledobjects"},
    "v1": {"pods"},
}
OTHERS = {
    "argoproj.io/v1alpha1": {"applications"},
    "rbac.authorization.k8s.io/v1": {"roles", "rolebindings"},
    "v1": {"configmaps", "namespaces"},
}
CODES = {"Forbidden": 403, "NotFound": 404, "Conflict": 409, "AlreadyExists": 409, "Unauthorized": 401}
ADMIN, ROLE = "admin-token", "role-token"
GROUP = "sluice"  # whose the role's token is


class Refused(Exception):
    """A request with a Status for an answer."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Request:
    """What is asked: of which collection, of which object, and by whom."""

    method: str
    group_version: str
    namespace: str
    plural: str
    name: str
    sub: str
    query: Mapping[str, str]
    body: Json | None
    token: str

    @property
    def group(self) -> str:
        return self.group_version.rpartition("/")[0]

    @property
    def verb(self) -> str:
        verbs = {"POST": "create", "PUT": "update", "DELETE": "delete"}
        return verbs.get(self.method, "get" if self.name else "list")


@dataclass
class ApiServer:
    """Its objects by group and version, namespace, plural and name."""

    objects: dict[tuple[str, str, str, str], Json] = field(default_factory=dict)
    version: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, request: Request) -> tuple[int, Json]:
        with self.lock:
            try:
                self._authorize(request)
                return (201 if request.method == "POST" else 200), self._perform(request)
            except Refused as error:
                code = CODES[error.reason]
                return code, {"kind": "Status", "reason": error.reason, "message": str(error), "code": code}

    def _perform(self, request: Request) -> Json:
        known = WITH_STATUS.get(request.group_version, set()) | OTHERS.get(request.group_version, set())
        if request.plural not in known:
            raise Refused("NotFound", "the server could not find the requested resource")
        key = (request.group_version, request.namespace, request.plural, request.name)
        match request.verb:
            case "list":
                return self._listed(request)
            case "create":
                return self._created(request)
        if key not in self.objects:
            raise Refused("NotFound", f'{request.plural} "{request.name}" not found')
        match request.verb:
            case "update":
                self._replace(key, request)
            case "delete":
                return self._deleted(key, request)
        return deepcopy(self.objects[key])

    def _authorize(self, request: Request) -> None:
        if request.token == ADMIN:
            return
        if request.token != ROLE:
            raise Refused("Unauthorized", "Unauthorized")
        for rule in self._rules(request.namespace):
            names = rule.get("resourceNames", [])
            if (
                request.group in rule["apiGroups"]
                and request.plural in rule["resources"]
                and request.verb in rule["verbs"]
                and (not names or request.name in names)
            ):
                return
        where = f'in API group "{request.group}" in the namespace "{request.namespace}"'
        raise Refused(
            "Forbidden",
            f'{request.plural} "{request.name}" is forbidden: User "sluice" cannot {request.verb} resource '
            f'"{request.plural}" {where}',
        )

    def _rules(self, namespace: str) -> Iterator[Json]:
        rbac = "rbac.authorization.k8s.io/v1"
        for (group_version, where, plural, _), binding in list(self.objects.items()):
            if (group_version, where, plural) != (rbac, namespace, "rolebindings"):
                continue
            if any(subject["name"] == GROUP for subject in binding["subjects"]):
                yield from self.objects[rbac, namespace, "roles", binding["roleRef"]["name"]]["rules"]

    def _listed(self, request: Request) -> Json:
        of = (request.group_version, request.namespace, request.plural)
        found = [deepcopy(each) for key, each in sorted(self.objects.items()) if key[:3] == of]
        found = [each for each in found if selects(request.query.get("labelSelector", ""), each)]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 0)) or len(found)
        end = start + limit
        for each in found:  # the list says it once for all
            del each["apiVersion"], each["kind"]
        return {"items": found[start:end], "metadata": {"continue": str(end)} if end < len(found) else {}}

    def _created(self, request: Request) -> Json:
        made = deepcopy(request.body or {})
        metadata = made["metadata"]
        key = (request.group_version, request.namespace, request.plural, metadata["name"])
        if key in self.objects:
            raise Refused("AlreadyExists", f'{request.plural} "{metadata["name"]}" already exists')
        metadata |= {"uid": str(uuid4()), "namespace": request.namespace, "creationTimestamp": now()}
        if "spec" in made and request.plural != "pods":
            metadata["generation"] = 1
        if request.plural in WITH_STATUS.get(request.group_version, set()):
            made["status"] = {}
        self._store(key, made, request)
        return deepcopy(made)

    def _replace(self, key: tuple[str, str, str, str], request: Request) -> None:
        old, new = self.objects[key], deepcopy(request.body or {})
        if (
            new["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"])
            != (old["metadata"]["resourceVersion"])
        ):
            raise Refused("Conflict", "the object has been modified; please apply your changes to the latest version")
        if request.sub == "status":
            new = {**deepcopy(old), "status": new.get("status", {})}
        elif request.plural in WITH_STATUS.get(request.group_version, set()):
            new["status"] = deepcopy(old["status"])
        own = ("uid", "creationTimestamp", "generation", "managedFields", "resourceVersion", "deletionTimestamp")
        for each in own:
            new["metadata"].pop(each, None)
            if each in old["metadata"]:
                new["metadata"][each] = deepcopy(old["metadata"][each])
        if new == old:
            return
        if "generation" in old["metadata"] and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] += 1
        self._store(key, new, request)

    def _store(self, key: tuple[str, str, str, str], new: Json, request: Request) -> None:
        self.version += 1
        metadata = new["metadata"]
        metadata["resourceVersion"] = str(self.version)
        for name in ("annotations", "labels"):
            if metadata.get(name) == {}:  # it has no empty ones
                del metadata[name]
        manager = {"manager": request.query.get("fieldManager", "other"), "operation": "Update", "time": now()}
        if request.sub:
            manager["subresource"] = request.sub
        of = ("manager", "subresource")
        others = [
            each
            for each in metadata.get("managedFields", [])
            if any(each.get(name) != manager.get(name) for name in of)
        ]
        metadata["managedFields"] = [*others, manager]
        self.objects[key] = new

    def _deleted(self, key: tuple[str, str, str, str], request: Request) -> Json:
        found = self.objects[key]
        if (
            request.plural == "pods"
            and found["spec"].get("nodeName")
            and request.query.get("gracePeriodSeconds") != "0"
        ):
            found["metadata"].setdefault("deletionTimestamp", now())
            return deepcopy(found)
        return self.objects.pop(key)


def selects(selector: str, found: Json) -> bool:
    """Whether an object has the labels that a query's selector asks for."""
    labels = found["metadata"].get("labels") or {}
    for term in re.split(r",(?![^(]*\))", selector) if selector else ():
        if chosen := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term):
            key, operator, values = chosen.groups()
            if (labels.get(key) in values.split(",")) != (operator == "in"):
                return False
        elif "=" in term:
            key, value = term.split("=")
            if labels.get(key) != value:
                return False
        elif (term.lstrip("!") in labels) == term.startswith("!"):
            return False
    return True


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def served(server: ApiServer) -> Iterator[str]:
    """Serve on loopback; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = PATH.fullmatch(url.path)
            if parts is None:
                status, answer = 404, {"kind": "Status", "reason": "NotFound", "message": url.path, "code": 404}
            else:
                status, answer = server.answer(
                    Request(
                        method=self.command,
                        group_version=parts["core"] or parts["group"],
                        namespace=parts["namespace"] or "",
                        plural=parts["plural"],
                        name=parts["name"] or "",
                        sub=parts["sub"] or "",
                        query={key: values[0] for key, values in parse_qs(url.query).items()},
                        body=body,
                        token=(self.headers.get("Authorization") or "").removeprefix("Bearer "),
                    )
                )
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the base class's names

        def log_message(self, *_: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()
