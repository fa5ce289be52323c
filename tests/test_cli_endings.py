"""However a command ends: one message, the right exit code, no traceback, nothing half-written."""

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from attnlab.cli import ending, main
from attnlab.cli.doctor import Doctor
from attnlab.cli.ending import guarded
from attnlab.cli.life import heartbeat, times
from attnlab.cli.show import print_rows
from attnlab.errors import InputError


def ended(capsys, error) -> tuple[int, str]:
    """Exit code and message of a command that raises."""

    def run():
        raise error

    code = guarded(run)
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


def program(code: str, *, arguments=(), **options) -> subprocess.Popen:
    """A light one: nothing but the command line's own modules."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env=dict(os.environ), **options
    )


# Errors


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("`x` is 3.\n\nhint: 4"), 2, "error: `x` is 3.\n\nhint: 4\n"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), 2, "error: `a/b`: No such file or directory\n"),
        (OSError("odd"), 2, "error: odd\n"),
        (MemoryError("Unable to allocate 8 TiB"), 2, "Unable to allocate 8 TiB"),
        (ZeroDivisionError("first line\nsecond"), 70, "attnlab failed with ZeroDivisionError: first line\n"),
        (RecursionError(), 70, "attnlab failed with RecursionError\n"),
        (KeyboardInterrupt(), 130, "stopped"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_errors_are_one_message_and_an_exit_code(capsys, monkeypatch, error, code, words):
    monkeypatch.setattr(ending, "to_nowhere", lambda stream: None)
    monkeypatch.delenv("ATTNLAB_TRACEBACK", raising=False)
    found, told = ended(capsys, error)
    assert found == code
    assert words in told
    assert "Traceback" not in told
    assert ("ATTNLAB_TRACEBACK=1" in told) == (code == 70)


def test_a_traceback_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setenv("ATTNLAB_TRACEBACK", "1")
    for error, code in ((ZeroDivisionError("mine"), 70), (InputError("`x`"), 2)):
        found, told = ended(capsys, error)
        assert found == code
        assert "Traceback" in told
        assert "in run" in told


def test_notes_say_what_was_going_on(capsys):
    error = ZeroDivisionError("zero")
    error.add_note("while computing 'claim'")
    assert "while computing 'claim'" in ended(capsys, error)[1]


def test_a_fault_in_a_command_is_no_traceback(capsys, monkeypatch):
    def fail(self):
        raise AttributeError("no such thing")

    monkeypatch.setattr(Doctor, "run", fail)
    assert main(["doctor"]) == 70
    assert "AttributeError: no such thing" in capsys.readouterr().err


def test_warnings_are_one_line(capsys):
    def run():
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("beware", stacklevel=1)
        return 0

    assert guarded(run) == 0
    assert capsys.readouterr().err == "warning: beware\n"


# Ctrl-C


@pytest.fixture
def minded():
    """Ctrl-C as in a terminal; tests that run under nohup have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("minded")
def test_ctrl_c_that_a_library_turns_into_another_error_is_still_ctrl_c(capsys):
    def run():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            sys.excepthook(*sys.exc_info())  # as C code does
            raise ImportError("initialization failed") from None
        return 0

    assert guarded(run) == 130
    assert capsys.readouterr().err.startswith("stopped")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("minded")
def test_ctrl_c_that_python_drops_comes_again(capsys):
    class Tidies:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def run():
        Tidies()
        time.sleep(20)
        return 0

    assert guarded(run) == 130
    assert "stopped" in capsys.readouterr().err


# Ctrl-C is minded as in a terminal, even if these tests run under nohup.
STARTED = (
    "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from attnlab.cli import ending\n"
)


def interrupted(code: str, *, times: int = 1) -> tuple[int, str]:
    process = program(STARTED + code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it runs
    try:
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, told


def test_ctrl_c_ends_a_computation_that_does_not_return_to_python():
    code = (
        "import hashlib\nending.PATIENCE = 0.3\n"
        "def run():\n    print('runs', flush=True)\n    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
        "sys.exit(ending.guarded(run))\n"
    )
    status, told = interrupted(code)
    assert status == 130
    assert told.startswith("stopped")


def test_a_second_ctrl_c_does_not_wait():
    code = (
        "ending.PATIENCE = 1000\n"
        "def run():\n    print('runs', flush=True)\n"
        "    try:\n        time.sleep(1000)\n    finally:\n        time.sleep(1000)\n"
        "sys.exit(ending.guarded(run))\n"
    )
    status, told = interrupted(code, times=2)
    assert status == 130
    assert told.startswith("stopped")


def test_ctrl_c_after_the_end_changes_nothing():
    code = (
        "import atexit\n"
        "def tidy():\n    print('tidies', flush=True)\n    time.sleep(1000)\n"
        "atexit.register(tidy)\n"
        "sys.exit(ending.guarded(lambda: 7, last=True))\n"
    )
    assert interrupted(code) == (7, "")


def test_ctrl_c_that_is_ignored_from_outside_stays_ignored():
    """As under nohup."""
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "def run():\n    print('runs', flush=True)\n    time.sleep(1)\n    return 7\n"
        "sys.exit(ending.guarded(run))\n"
    )
    assert interrupted(code) == (7, "")


def test_the_command_line_is_minded_while_it_loads():
    """What loads before Ctrl-C is minded takes no time: none of the libraries."""
    code = (
        "import sys, attnlab.cli\n"
        "print([m for m in ('tyro', 'rich', 'numpy', 'attnlab.cli.commands') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"


# Pipes


TABLE = (
    "import sys\nfrom attnlab.cli.ending import guarded\nfrom attnlab.cli.show import print_rows, print_text, say\n"
    "def run():\n"
    "    print_rows([{'a': i, 'b': 'word'} for i in range(5000)], 'Table')\n"
    "    print_text('x' * 100_000)\n"
    "    say('written')\n    return 1\n"
    "sys.exit(guarded(run))\n"
)


def test_a_reader_who_leaves_does_not_change_how_it_ends():
    with program(TABLE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == "written\n"
    assert process.returncode == 1


def test_help_into_a_closed_pipe():
    code = "import sys\nfrom attnlab.cli import main\nsys.exit(main(['--help']))"
    with program(code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_full_output_disk_is_told():
    with open("/dev/full", "w") as full:
        process = program(TABLE, stdout=full)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert told == "error: No space left on device\n"


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_streams_do_no_harm(closed):
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}>&-', sys.executable, TABLE], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr


def test_characters_that_a_terminal_does_not_have(tmp_path):
    code = TABLE.replace("'word'", "'\\u03b3 \\u2264 1'")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=dict(os.environ, PYTHONIOENCODING="ascii")
    )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


# Tables and progress


@pytest.mark.parametrize(
    ("given", "width"), [("60", 60), ("132", 132), ("7", 40), ("", 100), ("many", 100), ("²", 100)]
)
def test_columns_are_respected_where_there_is_no_terminal(capsys, monkeypatch, given, width):
    monkeypatch.setenv("COLUMNS", given)
    print_rows([{"a": "word " * 100, "b": "word " * 100}], "Table")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == width


def test_brackets_in_cells_and_titles_are_words(capsys):
    print_rows([{"[bold]": "[/] [red]x[/red] :smile:", "b": "x[0]"}], "tokens[/].npz")
    told = capsys.readouterr().out
    for words in ("[bold]", "[/] [red]x[/red] :smile:", "x[0]", "tokens[/].npz"):
        assert words in told
    print_rows([], "none[/]")
    assert "none[/]: none" in capsys.readouterr().out


def test_progress_says_what_is_elapsed_and_what_is_left():
    assert times(12.9, 18.2) == "0:00:12 elapsed, about 0:00:19 left"
    assert times(0.0, None) == "0:00:00 elapsed"


def test_a_log_gets_a_sign_of_life_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr("attnlab.cli.life.EVERY", 0.01)
    with heartbeat("solve") as show:
        show(0, None, "solving")
        time.sleep(0.2)
        show(2, 5, "claims")
        time.sleep(0.2)
    told = capsys.readouterr().err
    assert "solving: 0:00:00 elapsed" in told
    assert "claims (2 of 5): 0:00:00 elapsed" in told
    time.sleep(0.1)
    assert capsys.readouterr().err == ""
