"""`sluice`: the entry point of the program, which imports little itself."""

import signal


def main() -> None:
    """Run the program. Ctrl-C ends it without a traceback, even while Python imports modules or exits."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # Shells let background programs ignore SIGINT.
    if not is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sluice.cli.program import app  # noqa: PLC0415 - takes long

    try:
        app()
    finally:
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
