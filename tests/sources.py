"""Parses Python sources in tests."""

import ast
import gc


def parse_source(code: str) -> ast.Module:
    """Return the syntax tree of `code`, with the garbage collector off meanwhile.

    CPython 3.11 has one depth counter for all threads that build syntax trees. A collection amid one runs Python
    code (Hypothesis has a callback there), which lets another thread build its own, as 3.11's tracebacks do, and the
    first then ends with "SystemError: AST constructor recursion depth mismatch" (python/cpython#106905).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(code)
    finally:
        if was_on:
            gc.enable()
