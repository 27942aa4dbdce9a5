"""Patches of the AWS emulator ministack 1.5.33, where it differs from what AWS always does.

The patches run in ministack's process. A patch's docstring says what the patch does, what ministack does without it,
and what AWS does, with AWS's page: it can be reported to ministack's maintainers as it is. ministack's version is
pinned, and every patch fails at the cloud's start if the code that it replaces is missing. A newer version is tried
without each patch, which is deleted if its test passes. `sluice.local.harsh` has what AWS does only sometimes.
"""
