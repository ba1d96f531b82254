"""Environments for tests: each shows in its numbers which one it is, and fails where it is told to."""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env):
    """Observes ``[env_id, episode, step]`` in one buffer that it reuses; reward is the step, action is echoed."""

    def __init__(self, env_id: int, horizon: int | None = None) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(5)
        self.env_id, self.horizon = env_id, horizon
        self.buffer = np.zeros(3, np.float32)
        self.episode, self.count = -1, 0
        self.reset_calls: list[Any] = []
        self.secret = lambda: None  # cannot be pickled by plain pickle

    def reset(self, *, seed=None, options=None):
        self.reset_calls.append((seed, options))
        self.episode += 1
        self.count = 0
        self.buffer[:] = self.env_id, self.episode, 0
        return self.buffer, {"episode_number": self.episode}

    def step(self, action):
        self.count += 1
        self.buffer[:] = self.env_id, self.episode, self.count
        truncated = self.horizon is not None and self.count >= self.horizon
        info = {"action": action, "kind": type(action).__name__, "count": self.count}
        return self.buffer, float(self.count), False, truncated, info

    def add(self, a, b=0):
        return self.env_id + a + b


class SpaceEnv(gymnasium.Env):
    """Samples a space as observations; infos of every kind; episodes of 7 steps, ended in turn by each flag."""

    def __init__(self, space: spaces.Space, env_id: int = 0) -> None:
        self.observation_space = copy.deepcopy(space)  # sampling changes it
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.env_id, self.count, self.episode = env_id, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        self.episode += 1
        info = {"first": self.np_random.random(), "options": options} if self.episode % 2 else {}
        return self.observation_space.sample(), info

    def step(self, action):
        self.count += 1
        done = self.count >= 4 + self.env_id
        terminated = done and self.episode % 3 != 1
        truncated = np.bool_(done and self.episode % 3 != 2)
        info: dict[str, Any] = {
            "float": self.np_random.random(),
            "np_float": np.float64(self.np_random.random()),
            "narrow": np.float32(self.np_random.random()),
            "int": self.count,
            "np_int": np.int32(self.count),
            "bool": done,
            "np_bool": np.bool_(done),
            "vector": self.np_random.random(3).astype(np.float32),
        }
        if self.count % 2:
            info["text"] = f"step {self.count}"
        if done:
            info["episode"] = {"r": 1.5, "l": self.count}
            info["big"] = 2**80
        return self.observation_space.sample(), np.float64(self.np_random.random()), terminated, truncated, info


class OddError(Exception):
    """An exception whose constructor cannot be called with its message."""

    def __init__(self, *, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


class UnpicklableError(Exception):
    """An exception that holds what cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


#: What a flood writes to each stream, as often; what a huge reply is made of, so many times.
FLOOD, FLOODS = "x" * 99_999 + "\n", 100
HUGE, HUGES = b"0123456789", 5_000_000


class BaseOnlyError(BaseException):
    """Derived from BaseException directly."""


def fail(how: str) -> Any:
    """Do one of the faults; what it returns is the result."""
    if how == "raise":
        raise KeyError("bad torque")
    if how == "odd":
        raise OddError(code=7, detail="bad torque")
    if how == "unpicklable":
        raise UnpicklableError("bad torque")
    if how == "base":
        raise BaseOnlyError("bad torque")
    if how == "native":
        ctypes.pythonapi.PyErr_BadInternalCall.restype = ctypes.c_void_p
        ctypes.pythonapi.PyErr_BadInternalCall()
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(9)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)
    if how == "sleep":
        time.sleep(3600)
    if how == "busy":  # in C, with the GIL held
        sum(range(10**12))
    if how == "flood":
        for stream in (sys.stdout, sys.stderr) * FLOODS:
            stream.write(FLOOD)
            stream.flush()
    if how == "huge":
        return HUGE * HUGES
    return None


class FaultyEnv(CountingEnv):
    """Fails in one method, in one way, at one count."""

    def __init__(self, env_id: int, where: str, how: str, at: int = 3, horizon: int | None = None) -> None:
        super().__init__(env_id, horizon)
        self.where, self.how, self.at = where, how, at
        if where == "constructor":
            fail(how)

    def reset(self, *, seed=None, options=None):
        if self.where == "reset":
            fail(self.how)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        result = super().step(action)
        if self.where == "step" and self.count == self.at:
            fail(self.how)
        return result

    def close(self):
        if self.where == "close":
            fail(self.how)

    def method(self):
        if self.where == "method":
            fail(self.how)


class WitnessedEnv(CountingEnv):
    """Fails in one method, in one way; files in a folder tell what has come to pass. It has a process of its own."""

    def __init__(self, env_id: int, folder: Path, where: str, how: str) -> None:
        super().__init__(env_id)
        self.folder, self.where, self.how = folder, where, how
        if where:
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            child.start()
            self.tell(f"child-{child.pid}")
        self.fail_in("constructor")

    def tell(self, event: str) -> None:
        (self.folder / event).touch()

    def fail_in(self, where: str) -> Any:
        if self.where != where:
            return None
        self.tell(f"fault-{os.getpid()}")
        return fail(self.how)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "result": self.fail_in("reset")}

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "result": self.fail_in("step") if self.count == 2 else None}

    def method(self):
        return self.fail_in("method")

    def render(self):
        return self.fail_in("render")

    def close(self):
        self.fail_in("close")
        self.tell(f"closed-{self.env_id}")


class SleepyEnv(CountingEnv):
    """Sleeps in one step."""

    def __init__(self, env_id: int, at: int, seconds: float) -> None:
        super().__init__(env_id)
        self.at, self.seconds = at, seconds

    def step(self, action):
        result = super().step(action)
        if self.count == self.at:
            time.sleep(self.seconds)
        return result


class ConstantEnv(gymnasium.Env):
    """Returns what it is told to."""

    def __init__(self, space, observation, reward=0.0, info=None):
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self.observation, self.reward, self.info = observation, reward, info

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample() if self.observation is None else self.observation, {}

    def step(self, action):
        observation = self.observation_space.sample() if self.observation is None else self.observation
        return observation, self.reward, False, False, {} if self.info is None else self.info


class BigInfoEnv(CountingEnv):
    """Returns an info that no mailbox holds, with its count in it."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"blob": str(self.count) * 1_000_000, "count": self.count}


class SampledEnv(gymnasium.Env):
    """Samples its observations, shows the action in the reward, and tells infos whose keys keep their types."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, env_id: int = 0) -> None:
        self.observation_space = copy.deepcopy(observation_space)  # sampling changes it
        self.action_space = copy.deepcopy(action_space)
        self.env_id, self.count, self.episode = env_id, 0, 0
        self.tag: Any = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        self.episode += 1
        info = {"first": self.np_random.random(), "options": options and sorted(options)} if self.episode % 3 else {}
        return self.observation_space.sample(), info

    def step(self, action):
        self.count += 1
        done = self.count >= 3 + self.env_id % 4
        info: dict[str, Any] = {
            "float": self.np_random.random(),
            "narrow": np.float32(self.np_random.random()),
            "int": self.count,
            "bool": done,
            "np_bool": np.bool_(done),
            "vector": self.np_random.random(3).astype(np.float32),
            "action": repr(action),
            "nested": {"kind": type(action).__name__, "deep": {"count": self.count}},
        }
        if self.count % 2:
            info["sometimes"] = self.np_random.random()
        if done:
            info["empty"] = {}
        truncated = done and self.episode % 2 == 0
        return self.observation_space.sample(), self.np_random.random(), done and not truncated, truncated, info

    def tell(self, a, b=0):
        return self.env_id, a, b, self.tag


class FailingOnceEnv(CountingEnv):
    """Fails in one method, in one way, at one count; the file ``flag`` says that it has, whichever process asks."""

    def __init__(self, env_id: int, flag: str, where: str, how: str, at: int = 3, horizon: int | None = None) -> None:
        self.flag, self.where, self.how, self.at = flag, where, how, at
        self.fail_in("constructor")
        super().__init__(env_id, horizon)

    def fail_in(self, where: str) -> None:
        if self.where == where and not os.path.exists(self.flag):
            with open(self.flag, "w"):
                pass
            fail(self.how)

    def reset(self, *, seed=None, options=None):
        self.fail_in("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        result = super().step(action)
        if self.count == self.at:
            self.fail_in("step")
        return result

    def method(self):
        self.fail_in("method")
        return self.env_id


class KilledOnceEnv(SampledEnv):
    """A :class:`SampledEnv` whose process is killed once, in its n-th step."""

    def __init__(self, flag: str, n: int, *args: Any) -> None:
        super().__init__(*args)
        self.flag, self.left = flag, n

    def step(self, action):
        self.left -= 1
        if self.left == 0 and not os.path.exists(self.flag):
            with open(self.flag, "w"):
                pass
            fail("SIGKILL")
        return super().step(action)


class StreamEnv(gymnasium.Env):
    """Draws observations, rewards and lengths of episodes from its own generator, and remembers nothing else."""

    def __init__(self, kind: str = "box", env_id: int = 0) -> None:
        box = spaces.Box(0, 1, (2,), np.float32)
        self.observation_space = {
            "box": box,
            "text": spaces.Text(6),
            "dict": spaces.Dict({"box": box, "text": spaces.Text(6)}),
        }[kind]
        self.action_space = spaces.Discrete(3)
        self.kind, self.env_id = kind, env_id

    def observe(self):
        box = self.np_random.random(2, np.float32)
        text = str(self.np_random.integers(10**5))
        return {"box": box, "text": text, "dict": {"box": box, "text": text}}[self.kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6))
        info = {"first": self.np_random.random(), "options": options} if self.np_random.random() < 0.7 else {}
        return self.observe(), info

    def step(self, action):
        self.left -= 1
        info: dict[str, Any] = {"drawn": self.np_random.random(), "action": action}
        if self.np_random.random() < 0.3:
            info["text"] = "now and then"
        done = self.left == 0
        truncated = done and self.np_random.random() < 0.5
        return self.observe(), self.np_random.random(), done and not truncated, truncated, info

    def pid(self):
        return os.getpid()
