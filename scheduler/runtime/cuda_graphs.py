"""Records launches as CUDA graphs. It knows CUDA's streams and graphs, nothing of what is launched.

All recordings of one recorder share memory: only one of them may run at a time, and what it gave
is to be copied before the next one runs.
"""

import torch
from torch import Tensor

from scheduler.runtime.graphs import Launch


class GraphRecorder:
    """A `Record` for launches on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        # One that went away would take cuBLAS's workspace of its stream with it, whose address the
        # others recorded (torch 2.13, CUDAGraph::reset): all stay, also those that failed.
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._broken = False

    def __call__(self, launch: Launch) -> Launch:
        """A replay of `launch`, which runs once to warm up. Raises RuntimeError when it cannot be
        recorded, or an earlier one broke off while it was being recorded."""
        if self._broken:
            raise RuntimeError("an earlier recording broke off")
        current = torch.cuda.current_stream(self._device)
        # Nothing is recorded on the default stream; who set another one wants this one recorded.
        own = current == torch.cuda.default_stream(self._device)
        stream = self._stream if own else current
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                self._warm_up(launch)
                graph, states = self._recorded(launch)
        finally:
            # What was launched before something failed still works on the launch's memory.
            current.wait_stream(stream)

        def replay() -> Tensor:
            graph.replay()
            return states

        return replay

    def _warm_up(self, launch: Launch) -> None:
        """Run it once: libraries make their plans and take their memory. A launch that waits for
        the device is refused here, where nothing is half recorded yet."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch()
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def _recorded(self, launch: Launch) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # As torch.cuda.graph does: while something is recorded, no cached memory is given back.
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        # Other threads may use the device meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            states = launch()
        finally:
            self._end(graph)
        return graph, states

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            # Torch's allocators go on asking this graph where memory belongs: memory must come from
            # the common pool again (torch 2.13, CUDAGraph.cpp).
            self._broken = True
            end = torch._C._cuda_endAllocateToPool  # noqa: SLF001 - torch has no public one
            end(torch.cuda.current_device(), self._pool)
            raise
