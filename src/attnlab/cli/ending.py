"""How a command ends: its exit code, one message and no traceback, whatever happens.

| code | meaning |
|---|---|
| 0 | all as stated |
| 1 | a claim, a figure or a check failed, or no W separates the tokens |
| 2 | wrong usage or bad input, or a file or folder that cannot be read or written |
| 3 | `--time-limit` was reached; what is known by then is printed |
| 70 | a fault in attnlab (or in a claim of your own); ATTNLAB_TRACEBACK=1 shows where |
| 130 | stopped by Ctrl-C; what was finished is kept, nothing is half-written |

Light: nothing is imported here that takes time, so that Ctrl-C is minded from the first moment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from attnlab.errors import AttnlabError

WRONG, OUT_OF_TIME, FAULT, STOPPED = 2, 3, 70, 130
VARIABLE = "ATTNLAB_TRACEBACK"
PATIENCE = 5.0  # seconds after Ctrl-C until a computation that does not look up is left where it is


def guarded(run: Callable[[], int], *, last: bool = False) -> int:
    """The exit code of `run()`; errors become messages. If it is the `last` thing, Ctrl-C is minded to the very end."""
    _prepare_streams()
    with _Interrupts(last) as interrupts:
        interrupts.code = _code_of(run, interrupts)
    return interrupts.code


def _code_of(run: Callable[[], int], interrupts: _Interrupts) -> int:
    try:
        with _own_warnings():
            code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:  # the reader went away, as with `| head`
        to_nowhere(sys.stdout)
        return 0
    except Exception as error:
        # A library that was stopped while it loaded may say something else than KeyboardInterrupt.
        return _stopped() if interrupts.seen else _told(error)


def say(text: str) -> None:
    """A message, to stderr; if nobody can read it, it is lost and all else goes on."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        to_nowhere(sys.stderr)


def to_nowhere(stream: TextIO) -> None:
    """What is still to be written to a closed pipe or a full disk goes to nowhere, also when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _told(error: Exception) -> int:
    """One message about an error, and the exit code."""
    if os.environ.get(VARIABLE):
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, AttnlabError):
        say(f"error: {error}")
        return WRONG
    if isinstance(error, OSError):
        to_nowhere(sys.stdout)  # it may be what cannot be written
        place = "" if error.filename is None else f"`{error.filename}`: "
        say(f"error: {place}{error.strerror or error}")
        return WRONG
    if isinstance(error, MemoryError):
        say(f"error: out of memory. {error}".rstrip() + "\n\nhint: smaller sizes, or fewer trials at a time")
        return WRONG
    lines = [line for line in str(error).splitlines() if line.strip()]
    say(f"error: attnlab failed with {type(error).__name__}{': ' + lines[0] if lines else ''}")
    for note in getattr(error, "__notes__", ()):
        say(f"  {note}")
    say(f"\nhint: {VARIABLE}=1 attnlab ... shows where")
    return FAULT


def _stopped() -> int:
    say("stopped; nothing is half-written, and what was finished is kept for the next time")
    return STOPPED


def _prepare_streams() -> None:
    """Closed streams lead nowhere; characters that a terminal does not have become question marks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        with suppress(Exception):
            getattr(sys, name).reconfigure(errors="replace")


@contextmanager
def _own_warnings() -> Iterator[None]:
    """Warnings as one line of words, without the place in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda text, *_, **__: say(f"warning: {text}")
        yield


class _Interrupts:
    """Ctrl-C ends the command wherever it is.

    The first raises KeyboardInterrupt, so that everything is put away properly. The second, or `PATIENCE` seconds in
    a computation that does not return to Python, ends the process at once: all files are written under other names
    first, so nothing is harmed.
    """

    def __init__(self, last: bool = False) -> None:
        self.last = last
        self.seen = False
        self.code = STOPPED
        self.over = threading.Event()

    def __enter__(self) -> _Interrupts:
        main = threading.current_thread() is threading.main_thread()
        self.minded = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self.minded:
            signal.signal(signal.SIGINT, self._raise)
            self.unraisable, sys.unraisablehook = sys.unraisablehook, self._lost
            self.printed, sys.excepthook = sys.excepthook, self._print
            self._watch()
        return self

    def __exit__(self, *_: Any) -> None:
        self.over.set()
        if self.minded:
            # All is done; what is left for Python to tidy may be cut short.
            end = (lambda *_: os._exit(self.code)) if self.last else signal.default_int_handler
            signal.signal(signal.SIGINT, end)
            sys.unraisablehook, sys.excepthook = self.unraisable, self.printed
            signal.set_wakeup_fd(self.before)
            os.close(self.write_end)  # and the watcher reads the end

    def _raise(self, *_: Any) -> None:
        if self.seen:
            _leave()
        self.seen = True
        raise KeyboardInterrupt

    def _print(self, kind: Any, error: Any, trace: Any) -> None:
        """C code that is stopped while it loads prints what stopped it; of Ctrl-C there is nothing to print."""
        if not isinstance(error, KeyboardInterrupt):
            self.printed(kind, error, trace)

    def _lost(self, told: Any) -> None:
        """Python drops an exception that comes up while it tidies; Ctrl-C is not to be dropped, but comes again."""
        if isinstance(told.exc_value, KeyboardInterrupt):
            self.seen = False
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            self.unraisable(told)

    def _watch(self) -> None:
        """A thread that is told of Ctrl-C even while the main one computes outside Python."""
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        self.before = signal.set_wakeup_fd(self.write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._watched, daemon=True).start()

    def _watched(self) -> None:
        with open(self.read_end, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] == signal.SIGINT and not self.over.wait(PATIENCE):
                    _leave()


def _leave() -> None:
    _stopped()
    os._exit(STOPPED)
