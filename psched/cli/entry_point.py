"""The programs `psched` and `pschedd`. Ctrl-C ends them silently, even while their modules are imported."""

# The module `signal` takes 5 ms longer to import, and Ctrl-C would print a traceback in this time.
from _signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]

_HANDLES_SIGINT = getsignal(SIGINT) is default_int_handler  # False if SIGINT is ignored, as under nohup
if _HANDLES_SIGINT:
    signal(SIGINT, SIG_DFL)

import gc  # noqa: E402
import sys  # noqa: E402
from importlib import import_module  # noqa: E402

_INTERRUPTED = 130  # the exit code that shells use for a program ended by SIGINT
_COLLECTED = 50_000
"""Python searches for cyclic garbage after this many new objects. With Python's default of 700, the searches took a
third of the processor time of psched plan with 10,000 schedules (2026-11-28).
"""


def psched() -> int:
    return _run("psched.cli.main")


def pschedd() -> int:
    if "--json" in sys.argv:
        code: int | None = import_module("psched.cli.pschedd_status_json").main(sys.argv[1:])
        if code is not None:
            return code
    return _run("psched.cli.pschedd")


def _run(module: str) -> int:
    """Run `main` of a module. Before and after `main`, SIGINT ends the process immediately."""
    gc.set_threshold(_COLLECTED)
    main = import_module(module).main
    if not _HANDLES_SIGINT:
        return int(main())
    try:
        signal(SIGINT, _interrupt)
        return int(main())
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        signal(SIGINT, SIG_DFL)


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt. A second Ctrl-C ends the process immediately."""
    signal(SIGINT, SIG_DFL)
    if "logging" in sys.modules:
        sys.modules["logging"].disable()  # otherwise SQLAlchemy would log that its clean-up was interrupted
    raise KeyboardInterrupt
