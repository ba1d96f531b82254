"""Prefixes on what workers print: whole lines, each with the worker that wrote it."""

from __future__ import annotations

import functools
import io
import logging
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from engines import START_METHODS, make_engine, reset
from hypothesis import given
from hypothesis import strategies as st
from toys import CountingEnv, FailingOnceEnv

from fastvec import errors
from fastvec._core.config import EngineConfig
from fastvec._core.output import LONGEST_LINE, PrefixedLines, output_prefix

PREFIX = b"[worker 1, envs 4-7] "


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """What arrives in a file of pieces that are written one after the other, and what of it before the end."""

    def lines(pieces, prefix=PREFIX):
        with open(tmp_path_factory.mktemp("output") / "file", "w+b", buffering=0) as file:
            stream = PrefixedLines(file.fileno(), prefix)
            assert [stream.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
            before = os.pread(file.fileno(), 1 << 24, 0)
            stream.end()
            stream.end()
            stream.close()
            return before, os.pread(file.fileno(), 1 << 24, 0)

    return lines


@given(st.lists(st.text("ab\r\n", max_size=9).map(str.encode), max_size=12))
def test_pieces_become_whole_lines_with_a_prefix(lines, pieces):
    """However the text comes in pieces: complete lines at once, an incomplete one at the end."""
    *complete, rest = b"".join(pieces).split(b"\n")
    before, after = lines(pieces)
    assert before == b"".join(PREFIX + line + b"\n" for line in complete)
    assert after == before + (PREFIX + rest + b"\n" if rest else b"")


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_written(lines, buffer):
    """And it is counted in bytes."""
    assert lines([buffer(b"one\ntw"), buffer(b"o\n")])[0] == PREFIX + b"one\n" + PREFIX + b"two\n"


@pytest.mark.parametrize("piece", [1, 1000, LONGEST_LINE, 2 * LONGEST_LINE + 5])
def test_a_line_that_does_not_end_is_broken(lines, piece):
    """It arrives in parts of a fixed size, in whatever pieces it was written."""
    size = 2 * LONGEST_LINE + 5
    text = bytes(97 + i % 26 for i in range(size))
    before, after = lines([text[i : i + piece] for i in range(0, size, piece)])
    first, second, third = text[:LONGEST_LINE], text[LONGEST_LINE : 2 * LONGEST_LINE], text[2 * LONGEST_LINE :]
    assert before == PREFIX + first + b"\n" + PREFIX + second + b"\n"
    assert after == before + PREFIX + third + b"\n"


def test_threads_have_lines_of_their_own():
    """What two threads write in turn does not end up in one line."""
    read, write = os.pipe()
    stream = io.TextIOWrapper(PrefixedLines(write, b"> "), "utf-8", write_through=True)
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def talk(me):
        for word in ("one ", "two ", "three\n"):
            turns[me].acquire()
            stream.write(f"{me}{word}")
            turns[1 - me].release()

    threads = [threading.Thread(target=talk, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(write)
    with open(read) as file:
        assert file.read() == "> 0one 0two 0three\n> 1one 1two 1three\n"


def test_lines_in_a_pipe_do_not_mix():
    """Of several processes that write lines of up to 4096 bytes into one pipe, each line arrives whole."""
    code = (
        "import sys; from fastvec._core.output import *; prefix_output(f'[{sys.argv[1]}] ')\n"
        "for i in range(300): print(sys.argv[1] * (i * 13 % 4000)); print('-', file=sys.stderr)"
    )
    read, write = os.pipe()
    writers = [subprocess.Popen([sys.executable, "-c", code, name], stdout=write, stderr=write) for name in "abc"]
    os.close(write)
    with open(read) as file:
        found = file.read().splitlines()
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(found) == 1800
    for name in "abc":
        mine = [line for line in found if line.startswith(f"[{name}] ")]
        assert mine == [line for i in range(300) for line in (f"[{name}] {name * (i * 13 % 4000)}", f"[{name}] -")]


def test_the_prefix_names_the_worker_and_its_environments():
    """In the form of the errors, which count environments from 0."""
    assert output_prefix(1, range(4, 8)) == "[worker 1, envs 4-7] "
    assert output_prefix(0, range(0, 1)) == "[worker 0, env 0] "


class TalkingEnv(CountingEnv):
    """Prints in each of its methods, to one stream or the other; the last word without an end."""

    def __init__(self, env_id):
        super().__init__(env_id)
        print("made", env_id)

    def reset(self, *, seed=None, options=None):
        sys.stdout.write(f"reset {self.env_id} ")
        sys.stdout.flush()
        sys.stdout.write("é\nagain\n")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        print("step", self.env_id, file=sys.stderr)
        return super().step(action)

    def close(self):
        print("closed", self.env_id, end=";")


def of(worker, text):
    """The lines of a worker, without its prefix."""
    return [line.partition("] ")[2] for line in text.splitlines() if line.startswith(f"[worker {worker}, ")]


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_print_with_a_prefix(method, capfd):
    """From the constructor to the end, in order, on both streams."""
    engine = make_engine(
        [functools.partial(TalkingEnv, i) for i in range(3)],
        start_method=method,
        worker_output="prefix",
        worker_env={"PYTHONIOENCODING": "utf-8"},
    )
    reset(engine)
    engine.send(np.zeros(3, np.int64))
    engine.recv()
    engine.close()
    out, err = capfd.readouterr()
    assert of(0, out) == ["made 0", "made 1", "reset 0 é", "again", "reset 1 é", "again", "closed 0;closed 1;"]
    assert of(1, out) == ["made 2", "reset 2 é", "again", "closed 2;"]
    assert of(0, err) == ["step 0", "step 1"]
    assert of(1, err) == ["step 2"]
    for text in (out, err):
        assert all(line.startswith(("[worker 0, envs 0-1] ", "[worker 1, env 2] ")) for line in text.splitlines())
        assert text.endswith("\n")


def test_warnings_and_logs_have_a_prefix(capfd):
    """What Python itself prints of them, in a process of its own."""

    class Worried(CountingEnv):
        def reset(self, *, seed=None, options=None):
            warnings.warn("too far", stacklevel=1)
            logging.getLogger("env").error("too late")
            return super().reset(seed=seed, options=options)

    engine = make_engine([functools.partial(Worried, 0)], start_method="spawn", worker_output="prefix")
    reset(engine)
    engine.close()
    first, *_, last = of(0, capfd.readouterr().err)
    assert first.endswith("UserWarning: too far")
    assert last == "too late"


@pytest.mark.parametrize("options", [{}, {"worker_output": "inherit"}, {"worker_output": "prefix", "num_workers": 0}])
def test_other_output_is_as_it_was(options, capfd):
    """By default and in this process there is no prefix, and nothing is changed."""
    streams = sys.stdout, sys.stderr
    engine = make_engine([functools.partial(TalkingEnv, 0)], **options)
    reset(engine)
    engine.close()
    assert (sys.stdout, sys.stderr) == streams
    assert capfd.readouterr() == ("made 0\nreset 0 é\nagain\nclosed 0;", "")


def test_a_new_worker_in_the_place_of_another_prints_like_it(tmp_path, capfd):
    """Also what the old one had begun to print when its environment raised arrives."""

    class Talking(FailingOnceEnv):
        def step(self, action):
            print("step", end=" ")
            return super().step(action)

    fns = [functools.partial(Talking, i, str(tmp_path / "flag") if i == 1 else "/", "step", "raise") for i in range(2)]
    engine = make_engine(fns, worker_output="prefix", on_failure="restart")
    reset(engine)
    for _ in range(4):
        engine.send(np.zeros(2, np.int64))
        engine.recv()
    engine.close()
    out, err = capfd.readouterr()
    assert of(0, out) == ["step step step step "]
    assert of(1, out) == ["step step step ", "step "]
    assert err == ""


def test_the_traceback_of_a_worker_has_a_prefix(capfd):
    """It is printed where nobody waits for an answer, as in close()."""

    class Stubborn(CountingEnv):
        def close(self):
            raise ValueError("not yet")

    engine = make_engine([functools.partial(Stubborn, 0)], worker_output="prefix")
    reset(engine)
    engine.close()
    lines = of(0, capfd.readouterr().err)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: not yet"


def test_another_word_is_an_error():
    """It says which there are."""
    with pytest.raises(errors.ConfigError, match="worker_output must be 'inherit' or 'prefix', got True"):
        EngineConfig.resolve(2, worker_output=True)
