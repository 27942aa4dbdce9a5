"""Patches of the AWS emulator ministack 1.5.33, where it differs from what AWS always does.

The patches run in ministack's process. A patch's docstring says what the patch does, what ministack does without the
patch, and what AWS does, with AWS's page. The docstring can be reported to ministack's maintainers. ministack's version
is pinned. A patch fails at the cloud's start if ministack lacks the code to replace. With a newer version, a patch is
deleted if its test passes without the patch. `sluice.local.harsh` imitates what AWS does only sometimes.
"""
