"""Why a jq program doesn't compile: `filters.jq.CompileProblem`. Compiling always ends, unlike running."""

import jq


def compile_problem(program: str) -> str | None:
    """Give the compiler's own words, or None for a program that compiles."""
    try:
        jq.compile(program)
    except ValueError as error:
        return str(error).strip().splitlines()[0]
    return None
