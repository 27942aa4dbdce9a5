"""What a model answers other than success; the client makes botocore's error of it."""

from typing import Any


class ServiceError(Exception):
    """AWS's code, text and status; `more` is what else the answer has."""

    def __init__(self, code: str, message: str = "", *, status: int = 400, **more: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status, self.more = code, message, status, more
