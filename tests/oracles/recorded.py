"""Records a launch as a CUDA graph would, on any device: its operations, with all host values in.

A replay repeats the operations on the very tensors of the recording, and gives the very states.
Of memory that the launch did not make itself it holds none: what is gone by the time of a replay
makes the replay fail, where a graph would read whatever lies there now.
"""

import weakref
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten


class Unrecordable(RuntimeError):
    """The launch asks the device for a value, which no graph can hold."""


class Gone(Exception):
    """A replay reads memory that was given back after the recording."""


class Recordings:
    """Records launches, and counts what came of it."""

    def __init__(self):
        self.recorded = self.replays = 0
        self.refused = []

    def record(self, launch):
        """A replay of `launch`, which runs twice: once to warm up, once to be recorded."""
        launch()
        recorder = _Recorder()
        try:
            with recorder:
                states = launch()
            made = recorder.numbers[id(states)]
        except Exception as problem:
            self.refused.append(problem)
            raise
        self.recorded += 1
        steps, count = recorder.steps, len(recorder.numbers)

        def replay():
            self.replays += 1
            values = [None] * count
            for step in steps:
                step.run(values)
            return states.copy_(values[made])

        return replay


class _Recorder(TorchDispatchMode):
    """Notes every operation in `steps`; `numbers` are those of all tensors that came of them, by
    their ids."""

    def __init__(self):
        super().__init__()
        self.numbers, self.steps, self._alive = {}, [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given, spec = tree_flatten((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        outputs, _ = tree_flatten(result)
        if not all(isinstance(each, torch.Tensor) for each in outputs):
            raise Unrecordable(f"{func} gives the host a value")
        sources = [self._source(each) for each in given]
        targets = [self._target(each, given) for each in outputs]
        self.steps.append(_Step(func, spec, sources, targets))
        return result

    def _source(self, value):
        """How a replay finds an argument: by number, as a constant, or outside, held by no one."""
        if not isinstance(value, torch.Tensor):
            return lambda values: value
        number = self.numbers.get(id(value))
        if number is not None:
            return lambda values: values[number]
        return partial(_outside, weakref.ref(value))

    def _target(self, output, given):
        """The number of an output, None for a tensor from outside that was changed in place."""
        if id(output) not in self.numbers and all(output is not each for each in given):
            self._alive.append(output)  # or its id would come back for another
            self.numbers[id(output)] = len(self.numbers)
        return self.numbers.get(id(output))


def _outside(reference, values):
    found = reference()
    if found is None:
        raise Gone("a tensor from outside the recording")
    return found


class _Step:
    """One operation, and the numbers of what it gives."""

    def __init__(self, func, spec, sources, targets):
        self._func, self._spec = func, spec
        self._sources, self._targets = sources, targets

    def run(self, values):
        args, kwargs = tree_unflatten([source(values) for source in self._sources], self._spec)
        outputs, _ = tree_flatten(self._func(*args, **kwargs))
        for number, output in zip(self._targets, outputs, strict=True):
            if number is not None:
                values[number] = output
