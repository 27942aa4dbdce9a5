"""Patches of ministack 1.5.33 in its own process, where it does otherwise than AWS always does; our stacks don't know.

A patch's docstring says what the patch does, what ministack does without it, and what AWS does, with AWS's page: it can
be sent to ministack's maintainers as it is. ministack's version is pinned, and every patch fails at the start of the
cloud if what it replaces isn't there. A newer version is tried with each patch left out: a patch whose test then
passes goes. What AWS may do and rarely does is in `sluice.local.harsh`.
"""
