"""Contracts are kept on moto, whose transactions cost what they are worth."""

from tests.transactions import copied_once

copied_once()
